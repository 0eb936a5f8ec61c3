"""Tokens on the screen Access: those of programs, and those of browsers, of which there may be thousands."""

import os
from datetime import timedelta
from pathlib import Path

from playwright.async_api import Browser, Page, expect

from rowlock.access import secrets, tokens
from rowlock.stores.records import Entry, Write
from tests.http.harness import World
from tests.ui.browser import Visitor, visiting

PAGE = 2000  # tokens that the screen loads by itself


async def picture(page: Page, name: str) -> None:
    """Keep a picture, if PICTURES names a folder."""
    if folder := os.environ.get("PICTURES"):
        await page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


async def count(world: World) -> int:
    """Return how many tokens for browsers there are. A new world has some already."""
    return sum(one.job is not None or one.scope is not None for one in await tokens.every(await world.store()))


async def has_browsers(world: World, count: int) -> None:
    """Write so many tokens for browsers into the store, because one call for each would take minutes."""
    store = await world.store()
    until = await store.now() + timedelta(hours=1)
    data = {"scopes": ["read"], "topics": None, "job": "-", "scope": "user", "enqueue": None, "hash": "", "by": "test",
            "maker": None, "used": None}  # fmt: skip
    writes = [
        Write(tokens.KIND, secrets.issue(tokens.KIND).id, {**data, "name": f"many {n}", "scope_id": str(n)}, revision=0,
              expires_at=until)
        for n in range(count)
    ]  # fmt: skip
    assert await store.write_records(writes, Entry("test", "token.create"))


async def test_tokens_for_browsers_are_folded_and_show_their_bounds(visitor: Visitor, world: World) -> None:
    before = await count(world)
    page = await visitor.enter("access")
    await page.get_by_role("button", name="New token").click()
    await page.get_by_label("Name").fill("the back end")
    await page.get_by_role("checkbox", name="enqueue add jobs").uncheck()
    await page.get_by_role("checkbox", name="tokens make short-lived tokens for browsers").check()
    await page.get_by_role("button", name="Create").click()
    maker = {"authorization": f"Bearer {await page.locator('.note code').inner_text()}"}
    job = await world.enqueue(None, topic="film", delay=3600)
    for body in (
        {"scope": "user", "scope_id": "ada", "enqueue": ["render", "film"], "cancel": True, "seconds": 600},
        {"job": job},
    ):
        assert (await world.call("anonymous", "POST", "/api/tokens", body, headers=maker)).status_code == 201
    await page.reload()
    own = page.get_by_role("row").filter(has_text="the back end")
    await expect(own.locator(".badge")).to_have_text(["tokens"])
    fold = page.locator("summary").filter(has_text="Tokens for browsers")
    await expect(fold.locator(".badge")).to_have_text(str(before + 2))
    for_user, for_job = (page.get_by_role("row").filter(has_text=text) for text in ("jobs of user ada", job[-12:]))
    await expect(for_user).to_have_count(0)
    await fold.click()
    await expect(for_user.locator(".badge")).to_have_text(["read", "cancel", "enqueue"])
    await expect(for_user).to_contain_text("may enqueue render, film")
    await expect(for_user).to_contain_text("the back end")  # the maker of the token
    await expect(for_job.locator(".badge")).to_have_text(["read"])
    assert await visitor.violations() == []
    await picture(page, "access")
    await for_user.get_by_role("button", name="Revoke").click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    await visitor.toast("for user ada is revoked")
    await expect(fold.locator(".badge")).to_have_text(str(before + 1))
    await expect(for_job).to_be_visible()  # the list stays open
    await for_job.get_by_role("link").click()
    await expect(page.get_by_role("heading", name="film")).to_be_visible()


async def test_thousands_of_tokens_come_in_parts(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    await has_browsers(sqlite_world, PAGE + 50)
    whole = f"{await count(sqlite_world):,}"
    page = await sqlite_visitor.enter("access")
    fold = page.locator("summary").filter(has_text="Tokens for browsers")
    more = page.get_by_role("button", name="Load more")
    await expect(fold.locator(".badge")).to_contain_text("+")
    await expect(page.get_by_text("2,000 tokens are loaded, and there are more.")).to_be_visible()
    await more.click()
    await expect(fold.locator(".badge")).to_have_text(whole)
    await expect(more).to_have_count(0)
    await expect(page.get_by_role("row").filter(has_text="admin token")).to_be_visible()  # the token of a program
    rows = page.get_by_role("row").filter(has_text="many")
    await expect(rows).to_have_count(0)
    await fold.click()
    await expect(rows).to_have_count(100)
    await expect(page.get_by_text(f"The newest 100 of {whole} are shown.")).to_be_visible()
    await page.get_by_role("button", name="Show more").click()
    await expect(rows).to_have_count(200)


async def test_tokens_for_browsers_fit_a_phone(browser: Browser, sqlite_visitor: Visitor, sqlite_world: World) -> None:
    await has_browsers(sqlite_world, 3)
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "color_scheme": "dark"}
    async with visiting(browser, sqlite_visitor.url, **phone) as visitor:
        page = await visitor.enter("access")
        await page.locator("summary").filter(has_text="Tokens for browsers").click()
        await expect(page.get_by_role("row").filter(has_text="many")).to_have_count(3)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert await visitor.violations() == []
        await picture(page, "access-phone")
