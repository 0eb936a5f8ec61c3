"""What lies between the page and the server: prefixes, restarts, sessions that end."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from playwright.async_api import Browser, expect
from starlette.applications import Starlette
from starlette.routing import Mount

from rowlock.access import sessions
from tests.http.harness import Server, World
from tests.ui.browser import Visitor, visiting


@contextmanager
def below(world: World, prefix: str) -> Iterator[Server]:
    """Run a server whose application is mounted at a prefix of another one."""
    server = Server(world.place.url)
    mounted = Starlette(routes=[Mount(prefix, server.app)])
    config = uvicorn.Config(mounted, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server._uvicorn = uvicorn.Server(config)
    with server.serving():
        yield server


@pytest.mark.quick
async def test_it_works_below_any_prefix(browser: Browser, sqlite_world: World) -> None:
    with below(sqlite_world, "/deep/queue") as server:
        async with visiting(browser, f"{server.url}/deep/queue") as visitor:
            await visitor.enter("jobs")
            await expect(visitor.page.get_by_role("status").filter(has_text="Live")).to_be_visible()
            await expect(visitor.page.locator("tbody tr")).to_have_count(1)


async def test_a_server_that_comes_back_is_found_again(browser: Browser, sqlite_world: World) -> None:
    first = Server(sqlite_world.place.url)
    with first.serving():
        async with visiting(browser, first.url) as visitor:
            page = await visitor.enter("jobs?topic=later")
            await expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
            first.call(first.app.stop)
            await asyncio.to_thread(first.stop)
            await expect(page.get_by_role("status").filter(has_text="No connection")).to_be_visible()
            second = Server(sqlite_world.place.url)
            second._uvicorn.config.port = first.port
            with second.serving():
                await expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
                await sqlite_world.enqueue(None, topic="later", delay=3600)
                await expect(page.locator("tbody tr")).to_have_count(1)
                second.call(second.app.stop)
            visitor.complaints.clear()  # the browser reports that the server was away


async def test_without_streams_it_asks_every_few_seconds(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    page = sqlite_visitor.page
    broken = "class { constructor() { setTimeout(() => this.onerror()) } addEventListener() {} close() {} }"
    await page.add_init_script(f"window.EventSource = {broken}")
    await sqlite_visitor.enter("jobs?topic=polled")
    await expect(page.get_by_role("status").filter(has_text="Every 3 seconds")).to_be_visible()
    await sqlite_world.enqueue(None, topic="polled", delay=3600)
    await expect(page.locator("tbody tr")).to_have_count(1)


async def test_a_session_that_has_ended_leads_to_the_login(browser: Browser, sqlite_world: World) -> None:
    with Server.running(sqlite_world.place.url) as server:
        async with visiting(browser, server.url) as visitor:
            await visitor.log_in()
            store = await sqlite_world.store()
            for one in await sessions.every(store):
                await sessions.end(store, one.id, by="test")
            await expect(visitor.page.get_by_role("heading", name="Log in")).to_be_visible()
            visitor.complaints.clear()  # the browser reports the refusal


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_the_theme_is_chosen_and_remembered(sqlite_visitor: Visitor, theme: str) -> None:
    page = await sqlite_visitor.enter()
    for _ in range(["system", "light", "dark"].index(theme)):
        await page.keyboard.press("t")
    await page.reload()
    await expect(page.locator("html")).to_have_attribute("data-theme", theme)
    scheme = await page.evaluate("() => getComputedStyle(document.documentElement).colorScheme")
    assert scheme == theme
