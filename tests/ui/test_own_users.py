"""An application's own users: the page that is mounted in it shows them what the rules allow, and nothing else."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from rowlock.http.request import Request
from tests.http.harness import A, B, Server, World
from tests.stores.harness import claim_by
from tests.ui.browser import Visitor, visiting

OWN = "scope_id = @request.auth.id"
NAMES = {A: "Ann Example", B: "Ben Example"}


def who_is_it(request: Request) -> Mapping[str, Any] | None:
    """Return the user that is logged in at the application itself, by its cookie."""
    user = request.cookie("shop_user")
    return {"id": user, "name": NAMES[user]} if user in NAMES else None


@asynccontextmanager
async def shopping(browser: Browser, world: World, user: str, **shape: Any) -> AsyncIterator[Visitor]:
    """Open the page as a user of the application."""
    with Server.running(world.place.url, authenticate=who_is_it) as server:
        async with visiting(browser, server.url, **shape) as visitor:
            await visitor.page.context.add_cookies([{"name": "shop_user", "value": user, "url": server.url}])
            await visitor.page.goto(f"{server.url}/_/")
            yield visitor


def shown_in(page: Page, name: str) -> Any:
    return page.locator("main").get_by_role("button", name=name, exact=True)


@pytest.mark.quick
@pytest.mark.parametrize("width", [1440, pytest.param(390, marks=pytest.mark.proof)])
async def test_a_user_watches_and_cancels_their_own_jobs_and_no_more(
    browser: Browser, world: World, width: int
) -> None:
    await world.change_settings(view_rule=OWN, cancel_rule=OWN)
    running = await world.enqueue(A, topic="render", payload={"film": 1})
    store = await world.store()
    [claimed] = (await store.claim(claim_by("w1", "render"))).jobs
    failed = await world.ended(A, "mail.sent", error="ValueError: no")
    other = await world.enqueue(B, topic="secret", delay=3600)
    async with shopping(browser, world, A, viewport={"width": width, "height": 850}) as visitor:
        page = visitor.page
        await expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()  # the page opens here
        await expect(page.locator("tbody tr")).to_have_count(3)  # one job is the world's own
        await expect(page.get_by_text("secret")).to_have_count(0)
        await expect(page.locator(".problem")).to_have_count(0)
        if width == 390:
            await page.get_by_role("button", name="Menu").click()
        links = page.get_by_role("navigation", name="Screens").get_by_role("link")
        await expect(links).to_have_text(["Jobs"])
        await expect(page.locator(".side .foot").get_by_text("Ann Example")).to_be_visible()
        await expect(page.get_by_title("Log out")).to_have_count(0)  # logging out is left to the application
        if width == 390:
            await page.get_by_role("button", name="Close the menu").click(position={"x": 380, "y": 400})
        assert await visitor.violations() == []
        await expect(page.get_by_label("Select the page")).to_have_count(0)
        await expect(page.get_by_role("link", name="New job")).to_have_count(0)

        await visitor.go(f"job/{failed}")
        await expect(page.get_by_text("after 1 attempt")).to_be_visible()
        await expect(shown_in(page, "Requeue")).to_have_count(0)
        await page.get_by_role("button", name="More").click()
        for name in ("Edit…", "Delete…", "Clone…", "Run now"):
            await expect(shown_in(page, name)).to_have_count(0)

        await visitor.go(f"job/{running}")
        await shown_in(page, "Cancel").click()
        await page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
        await visitor.toast("was asked to stop")
        assert (await world.job(claimed.id)).status == "cancel_requested"

        for screen in ("failures", "topics", "audit", "settings"):
            await visitor.go(screen)
            await expect(page.get_by_role("heading", name="This screen is for operators")).to_be_visible()
        await page.get_by_role("link", name="To your jobs").click()
        await expect(page.locator("tbody tr")).to_have_count(3)
        assert visitor.complaints == []  # the page asks for nothing that is refused
        await visitor.go(f"job/{other}")
        await expect(page.get_by_role("heading", name="Job not found")).to_be_visible()
        visitor.complaints.clear()  # the browser reports the refusal


async def test_a_user_who_may_manage_requeues_and_enqueues(browser: Browser, sqlite_world: World) -> None:
    await sqlite_world.change_settings(manage_rule=OWN, enqueue_rule=OWN)
    failed = await sqlite_world.ended(A, "mail.sent", error="ValueError: no")
    async with shopping(browser, sqlite_world, A) as visitor:
        page = visitor.page
        await expect(page.locator("tbody tr")).to_have_count(2)
        await visitor.go(f"job/{failed}")
        await shown_in(page, "Requeue").click()
        await visitor.toast("is pending again")
        await visitor.go("new")
        await page.get_by_role("combobox", name="Topic").fill("mail.sent")
        await page.get_by_role("button", name="Copy the last payload of this topic").click()
        await expect(page.get_by_label("Scope id")).to_have_value(A)
        await page.get_by_role("button", name="Enqueue").click()
        await visitor.toast("The job is enqueued")
        found = await sqlite_world.jobs.list(limit=1)
        assert (found.items[0].topic, found.items[0].scope_id) == ("mail.sent", A)


async def test_a_user_for_whom_there_is_no_rule_is_told_so(browser: Browser, sqlite_world: World) -> None:
    async with shopping(browser, sqlite_world, B) as visitor:
        await expect(visitor.page.get_by_role("heading", name="You may not see any job")).to_be_visible()
        await expect(visitor.page.locator("main")).to_contain_text("Ben Example")
        assert await visitor.violations() == []
