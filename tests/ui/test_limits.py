"""Limits on the page: how much of them is used, and what an operator can put and clear."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from rowlock import Concurrency, Fair, Rate
from tests.http.harness import GUEST, Server, World
from tests.stores.harness import claim_by
from tests.ui.browser import Visitor, visiting
from tests.ui.test_flows import SMALL_PHONE
from tests.ui.test_screens import EVIL, TOO_SMALL, TOO_WIDE

SHOTS = os.environ.get("ROWLOCK_SHOTS")  # a folder for pictures that people look at


async def furnish(world: World, *, started: bool = True) -> None:
    """Put limits: two at once, five an hour for each tenant, turns. Enqueue nine jobs of two tenants; two run."""
    limits = world.jobs.limits
    await limits.put("llm.complete", Concurrency(2))
    await limits.put("llm.complete", Rate(5, per=3600, by="scope_id"))
    await limits.put("llm.complete", Fair("scope_id", {"acme": 3}))
    for tenant, count in (("acme", 6), ("beta", 3)):
        for _ in range(count):
            await world.jobs.enqueue("llm.complete", {}, scope="tenant", scope_id=tenant)
    if started:
        await start(world, 2)


async def start(world: World, count: int) -> None:
    jobs = (await (await world.store()).claim(claim_by("w1", "llm.complete", limit=10))).jobs
    assert len(jobs) == count


def row(page: Page, text: str) -> Locator:
    return page.locator("tbody tr").filter(has_text=text).first


async def test_limits_are_shown_live(visitor: Visitor, world: World) -> None:
    page = await visitor.enter()
    await page.keyboard.press("g")
    await page.keyboard.press("m")
    await expect(page.get_by_role("heading", name="No limits yet")).to_be_visible()
    await expect(page.locator("pre")).to_contain_text("Concurrency(20)")
    assert await visitor.violations() == []
    await furnish(world, started=False)
    at_once = row(page, "2 at once")
    await expect(at_once).to_contain_text("0 of 2")
    await expect(page.get_by_text("Waiting for a limit")).to_have_count(0)
    await start(world, 2)
    await expect(at_once.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "2")
    await expect(at_once).to_contain_text("7")
    await expect(page.get_by_text("Waiting for a limit: 7 jobs")).to_be_visible()
    await expect(row(page, "5 in 3600 s")).to_contain_text("1 value")
    await expect(row(page, "one after the other")).to_contain_text("1 value running")

    await page.get_by_role("button", name="Values of llm.complete, rate").click()
    values = page.get_by_role("table", name="Values of llm.complete")
    await expect(values.get_by_role("row").filter(has_text="acme")).to_contain_text("2 of 5")
    await expect(page).to_have_url(re.compile("open="))
    assert await visitor.violations() == []

    await visitor.go("overview")
    concern = page.locator(".attention li").filter(has_text="Waiting for a limit: 7 jobs")
    await concern.get_by_role("link", name="Limits").click()
    await expect(page.get_by_role("heading", name="Limits", exact=True)).to_be_visible()
    assert visitor.complaints == []


@pytest.mark.quick
async def test_put_and_clear(visitor: Visitor, world: World) -> None:
    page = await visitor.enter("limits")
    await page.get_by_role("button", name="Put a limit").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Topic, or a name").fill("llm complete")
    await dialog.get_by_label("At most").fill("20")
    await dialog.get_by_role("button", name="Put", exact=True).click()
    await expect(dialog.get_by_role("alert")).to_contain_text("name")  # the name has a space; the form keeps it
    visitor.complaints.clear()  # the browser reports the 400
    await dialog.get_by_label("Topic, or a name").fill("llm/complete")
    await dialog.get_by_label("Kind").select_option("rate")
    await dialog.get_by_label("In seconds").fill("60")
    await dialog.get_by_label("At once", exact=True).fill("10")
    await dialog.get_by_label("By").fill("scope_id")
    await dialog.get_by_label("Why?").fill("the provider asks for it")
    assert await visitor.violations() == []
    await dialog.get_by_role("button", name="Put", exact=True).click()
    await expect(dialog).to_have_count(0)
    await visitor.toast("workers obey within a second")
    await expect(row(page, "20 in 60 s, 10 at once")).to_contain_text("put")
    [info] = await world.jobs.limits.get("llm/complete")
    assert info.limit == Rate(20, per=60, by="scope_id", burst=10)

    # A limit for one value.
    await page.get_by_role("button", name="Change llm/complete, rate").click()
    await dialog.get_by_label("At most").fill("100")
    await dialog.get_by_label("At once", exact=True).fill("")
    await dialog.get_by_label("Only for the value").fill("acme")
    await dialog.get_by_role("button", name="Put", exact=True).click()
    await expect(dialog).to_have_count(0)
    await page.get_by_role("button", name="Values of llm/complete, rate").click()
    await expect(page.get_by_role("table", name="Values of")).to_contain_text("0 of 100")
    await page.get_by_role("button", name="Clear for acme").click()
    await dialog.get_by_role("button", name="Clear", exact=True).click()
    await visitor.toast("1 limit of llm/complete cleared")
    await expect(page.get_by_text("No value uses this limit now.")).to_be_visible()

    # Turns with weights.
    await page.get_by_role("button", name="Put a limit").click()
    await dialog.get_by_label("Topic, or a name").fill("embed")
    await dialog.get_by_label("Kind").select_option("fair")
    await dialog.get_by_label("By").fill("scope_id")
    await dialog.get_by_label("Weights").fill("acme=3\nbeta=2")
    await dialog.get_by_role("button", name="Put", exact=True).click()
    await expect(row(page, "one after the other")).to_be_visible()
    assert (await world.jobs.limits.get("embed"))[0].limit == Fair("scope_id", {"acme": 3, "beta": 2})

    await page.get_by_role("button", name="Clear llm/complete, rate").click()
    await dialog.get_by_label("Why?").fill("it is back")
    await dialog.get_by_role("button", name="Clear", exact=True).click()
    await expect(row(page, "20 in 60 s")).to_have_count(0)
    entries = (await world.get("admin token", "/api/audit?limit=200")).json()["items"]
    actions = {(entry["action"], entry["reason"]) for entry in entries}
    assert {("limit.put", "the provider asks for it"), ("limit.clear", "it is back")} <= actions


async def test_only_the_limit_of_its_row_is_cleared(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    limits = sqlite_world.jobs.limits
    await limits.put("mail", Concurrency(7))
    await limits.put("mail", Concurrency(3, by="scope_id"))
    page = await sqlite_visitor.enter("limits")
    await row(page, "7 at once").get_by_role("button", name="Clear").click()
    await page.get_by_role("dialog").get_by_role("button", name="Clear", exact=True).click()
    await sqlite_visitor.toast("1 limit of mail cleared")
    assert [one.limit for one in await limits.get("mail")] == [Concurrency(3, by="scope_id")]


async def test_a_read_only_superuser_changes_nothing(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    await furnish(sqlite_world)
    page = await sqlite_visitor.enter("limits", GUEST)
    await expect(row(page, "2 at once")).to_contain_text("2 of 2")
    for name in ("Put a limit", "Change", "Clear"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)


async def test_the_keyboard_opens_values(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    await furnish(sqlite_world)
    page = await sqlite_visitor.enter("limits")
    await expect(row(page, "2 at once")).to_be_visible()
    for key in ("j", "j", "j", "Enter"):
        await page.keyboard.press(key)
    await expect(page.get_by_role("table", name="Values of llm.complete")).to_contain_text("acme")


async def test_nothing_of_a_value_is_run(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    await sqlite_world.jobs.limits.put("llm.complete", Rate(20, per=3600, by="payload.tenant"))
    for text in EVIL:
        await sqlite_world.jobs.enqueue("llm.complete", {"tenant": text})
    await start(sqlite_world, len(EVIL))
    page = await sqlite_visitor.enter("limits")
    await page.get_by_role("button", name="Values of").click()
    await expect(page.get_by_role("table", name="Values of").get_by_role("row")).to_have_count(len(EVIL) + 1)
    assert await page.evaluate("window.owned") is None
    assert await page.evaluate(TOO_WIDE) == []
    assert sqlite_visitor.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_fits_a_phone_and_is_accessible(browser: Browser, sqlite_world: World, scheme: str) -> None:
    await furnish(sqlite_world)
    await sqlite_world.jobs.limits.put("llm.complete", Rate(50, per=3600, by="scope_id"), value="acme")
    with Server.running(sqlite_world.place.url) as server:
        for width in (SMALL_PHONE, 1280):
            shape: dict[str, Any] = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
            async with visiting(browser, server.url, **shape) as visitor:
                await look(visitor, f"{scheme}-{width}", is_phone=width == SMALL_PHONE)


async def look(visitor: Visitor, what: str, *, is_phone: bool) -> None:
    page = await visitor.enter("limits")
    await page.get_by_role("button", name="Values of llm.complete, rate").click()
    await expect(page.get_by_role("table", name="Values of")).to_contain_text("acme")
    for part in ("list", "dialog"):
        if part == "dialog":
            await page.get_by_role("button", name="Change llm.complete, rate").click()
            await expect(page.get_by_role("dialog")).to_be_visible()
        if SHOTS:
            await page.screenshot(path=Path(SHOTS) / f"limits-{what}-{part}.png", full_page=part == "list")
        assert await page.evaluate(TOO_WIDE) == [], what
        if is_phone:
            assert await page.evaluate(TOO_SMALL) == [], what
        assert await visitor.violations() == [], what
