"""The server or its database goes away: the page stays, says so, and goes on when it is back."""

import asyncio

import pytest
from playwright.async_api import Browser, expect

from tests.http.harness import Server, World
from tests.proxy import Proxy
from tests.ui.browser import visiting

PHONE = {"viewport": {"width": 390, "height": 844}}


@pytest.mark.quick
async def test_a_lost_server_is_told_and_found_again(browser: Browser, sqlite_world: World) -> None:
    await sqlite_world.enqueue(None, topic="kept", delay=3600)
    first = Server(sqlite_world.place.url)
    with first.serving():
        async with visiting(browser, first.url, **PHONE) as visitor:
            page, banner = visitor.page, visitor.page.locator(".banner")
            await visitor.enter("jobs?topic=kept")
            await expect(page.locator("tbody tr")).to_have_count(1)
            await expect(banner).to_have_count(0)
            first.call(first.app.stop)
            await asyncio.to_thread(first.stop)
            await expect(banner).to_contain_text("No connection to the server for")
            await expect(banner).to_contain_text("You see the data of")
            await expect(banner).to_be_in_viewport()
            await expect(page.locator("tbody tr")).to_have_count(1)  # the old rows stay in sight
            assert await visitor.violations() == []
            await sqlite_world.enqueue(None, topic="kept", delay=3600)
            second = Server(sqlite_world.place.url)
            second._uvicorn.config.port = first.port
            with second.serving():
                await expect(banner).to_have_count(0)
                await expect(page.locator("tbody tr")).to_have_count(2)  # the page asks by itself
                second.call(second.app.stop)
            visitor.complaints.clear()  # the browser reports that the server was away


@pytest.mark.parametrize("context", [{}, pytest.param(PHONE, marks=pytest.mark.proof)], ids=["desktop", "phone"])
async def test_a_lost_database_is_told_also_by_a_page_that_is_opened_then(
    browser: Browser, postgres_world: World, context: dict[str, object]
) -> None:
    await postgres_world.enqueue(None, topic="kept", delay=3600)
    url = postgres_world.place.url
    async with Proxy.before(url) as proxy:
        with Server.running(proxy.through(url)) as server:
            async with visiting(browser, server.url, **context) as visitor:
                page, banner = visitor.page, visitor.page.locator(".banner")
                await visitor.enter("jobs?topic=kept")
                await expect(page.locator("tbody tr")).to_have_count(1)
                proxy.cut()
                await expect(banner).to_contain_text("The server can't reach its database for")
                await expect(banner).to_contain_text("You see the data of")
                await expect(page.locator("tbody tr")).to_have_count(1)
                proxy.mend()
                await expect(banner).to_have_count(0)
                proxy.cut()
                await page.reload()
                await expect(banner).to_contain_text("The server can't reach its database for")
                await expect(page.get_by_text("The page opens by itself")).to_be_visible()
                assert await visitor.violations() == []
                proxy.mend()
                await expect(page.locator("tbody tr")).to_have_count(1)  # the same screen as before, without a login
                await expect(banner).to_have_count(0)
                visitor.complaints.clear()  # the browser reports that the database was away
