"""Jobs that wait: what is shown of them, and how an operator answers, ends the wait, or cancels."""

import re
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from playwright.async_api import Browser, Page, expect

from rowlock.core.job import Job
from rowlock.core.lifecycle import Completed, Failed, Settlement, decide
from rowlock.core.moves import ReportCallback
from rowlock.core.steps import StepState
from rowlock.stores import reading
from tests.http.harness import GUEST, Server, World
from tests.ui.browser import Visitor, visiting
from tests.ui.test_job_actions import audited, more
from tests.ui.test_screens import PHONE, TOO_SMALL, TOO_WIDE
from tests.ui.test_steps import row
from tests.waits import run_of, suspend, take, waiting

HOUR = 3600.0
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean", "description": "May it be paid?"},
        "note": {"type": "string", "pattern": "^[a-z ]*$"},  # only the server checks patterns
    },
    "required": ["ok"],
}


async def made(world: World, **how: Any) -> str:
    """Return the id of a job that waits for a decision, after the step "ask", for an hour at most."""
    job_id = await world.enqueue(None, topic="approve", payload={"request": 7})
    await waiting(await world.store(), job_id, **{"seconds": HOUR, "schema": SCHEMA, "steps": ["ask"], **how})
    return job_id


async def settled(world: World, run: Job, outcome: Completed | Failed) -> None:
    store = await world.store()
    to = decide(run, outcome, await store.now(), ran=0.1)
    await store.settle([Settlement(run.id, run.version, to, run.locked_by)])


def timeline(page: Page, text: str) -> Any:
    return page.locator(".timeline:not(.plain) li").filter(has_text=text)


@pytest.mark.quick
async def test_a_waiting_job_gets_its_signal_by_a_form(visitor: Visitor, world: World) -> None:
    job_id = await made(world)
    page, dialog = visitor.page, visitor.page.get_by_role("dialog")
    await visitor.log_in()
    await visitor.go(f"job/{job_id}")
    state = page.get_by_role("region", name="State")
    await expect(state).to_contain_text("Waits for the signal decision")
    await expect(state).to_contain_text(re.compile(r"Until .* in 59 min\. Then it goes on without the signal\."))
    await expect(row(page, "Wait for decision")).to_contain_text("waiting")
    await expect(row(page, "Wait for decision")).to_contain_text("ends in 59 min")
    # A wait is not work: it counts neither in the list of steps nor in the bar.
    bar = page.get_by_role("region", name="Steps").get_by_role("img")
    await expect(bar).to_have_attribute("aria-label", "1 of 1 step done, now Wait for decision")
    await expect(page.get_by_text("@signal")).to_have_count(0)
    await page.keyboard.press("s")
    await expect(dialog.get_by_role("heading").first).to_have_text("Send the signal decision?")
    assert await visitor.violations() == []
    await dialog.get_by_label("ok").check()
    await dialog.get_by_label("note").fill("FINE")
    await dialog.get_by_label("Why?").fill("they called")
    await dialog.get_by_role("button", name="Send", exact=True).click()
    # The server refuses the note, and the form shows that at its field.
    note = dialog.locator('[data-path="data.note"]')
    await expect(note.locator(".wrong")).to_be_visible()
    await expect(note.get_by_label("note")).to_be_focused()
    await expect(dialog.locator(".problem")).to_have_count(0)
    assert all("400 (Bad Request)" in complaint for complaint in visitor.complaints)
    visitor.complaints.clear()
    assert (await world.job(job_id)).status == "waiting"
    await note.get_by_label("note").fill("fine")
    await page.keyboard.press("Enter")
    await visitor.toast("The signal decision is sent")
    await expect(page.locator(".hero").get_by_text("pending")).to_be_visible()
    await expect(timeline(page, "got decision, goes on")).to_contain_text("they called")
    await expect(timeline(page, "waits for decision")).to_be_visible()
    assert await audited(world, job_id) == [("signal", "they called")]
    # The next run reads the signal.
    run = await run_of(await world.store(), job_id)
    taken = await take(await world.store(), run, seconds=HOUR)
    assert (taken.state, taken.result) == (StepState.SUCCEEDED, '{"ok":true,"note":"fine"}')
    await settled(world, run, Completed("paid"))
    await expect(page.locator(".hero").get_by_text("completed")).to_be_visible()
    await expect(row(page, "Wait for decision")).to_contain_text("ended")
    await row(page, "Wait for decision").locator("summary").click()
    await expect(row(page, "Wait for decision").locator(".json")).to_contain_text("fine")
    # Two runs, but one attempt.
    await expect(page.get_by_text(re.compile("^Completed .*, after 1 attempt$"))).to_be_visible()
    await expect(page.locator(".attempt").first).to_contain_text("Attempt 1 after a wait")


async def test_a_signal_without_a_schema_is_json_and_exact(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    job_id = await made(sqlite_world, schema=None, seconds=None)
    page, dialog = sqlite_visitor.page, sqlite_visitor.page.get_by_role("dialog")
    await sqlite_visitor.log_in()
    await sqlite_visitor.go(f"job/{job_id}")
    await expect(page.get_by_role("region", name="State")).to_contain_text("Without a time limit.")
    await page.get_by_role("button", name="Send signal…").click()
    await dialog.get_by_label("Data").fill('{"n": 9007199254740993')
    await expect(dialog.get_by_role("button", name="Send", exact=True)).to_be_disabled()
    await dialog.get_by_label("Data").fill('{"n": 9007199254740993}')
    await dialog.get_by_role("button", name="Send", exact=True).click()
    await sqlite_visitor.toast("is sent")
    store = await sqlite_world.store()
    run = await run_of(store, job_id)
    assert (await take(store, run)).result == '{"n":9007199254740993}'
    # A running job keeps a signal until it waits for it. An empty field sends null.
    await more(page, "Send a signal…")
    await dialog.get_by_label("Signal").fill("go/on")
    await dialog.get_by_role("button", name="Send", exact=True).click()
    await sqlite_visitor.toast("The signal go/on is sent")
    await expect(timeline(page, "got go/on")).to_be_visible()
    assert (await take(store, run, signal="go/on", position=11)).result == "null"
    await settled(sqlite_world, run, Completed(None))
    await expect(page.locator(".hero").get_by_text("completed")).to_be_visible()
    await page.get_by_role("button", name="More").click()
    await expect(page.get_by_role("button", name="Send a signal…")).to_be_disabled()


async def test_a_wait_is_ended_now(visitor: Visitor, world: World) -> None:
    asleep, job_id = await world.enqueue(None, topic="nap"), await made(world)
    await waiting(await world.store(), asleep, signal=None, seconds=HOUR)
    page, dialog = visitor.page, visitor.page.get_by_role("dialog")
    await visitor.log_in()
    await visitor.go(f"job/{asleep}")
    await expect(page.get_by_role("region", name="State")).to_contain_text("Sleeps")
    await expect(row(page, "Sleep")).to_contain_text("waiting")
    await expect(page.get_by_role("button", name="Send signal…")).to_have_count(0)
    await page.get_by_role("button", name="End the wait now…").click()
    await expect(dialog).to_contain_text("as if its sleep were over")
    await dialog.get_by_label("Why?").fill("no time")
    await page.keyboard.press("Enter")
    await visitor.toast("goes on now")
    await expect(timeline(page, "goes on after its sleep")).to_contain_text("no time")
    assert await audited(world, asleep) == [("wake", "no time")]
    await visitor.go(f"job/{job_id}")
    await page.get_by_role("button", name="End the wait now…").click()
    await expect(dialog).to_contain_text("with its default, or with an error if the handler has none")
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    assert (await world.job(job_id)).status == "waiting"
    # Another process ends the wait, and the page follows.
    await world.jobs.wake(job_id)
    await expect(page.locator(".hero").get_by_text("pending")).to_be_visible()
    await expect(timeline(page, "goes on without decision")).to_be_visible()
    run = await run_of(await world.store(), job_id)
    assert (await take(await world.store(), run, seconds=HOUR)).state is StepState.FAILED
    await settled(world, run, Failed("WaitTimeout: no decision", final=True))
    await expect(row(page, "Wait for decision")).to_contain_text("timed out")


async def test_a_cancelled_wait_says_what_it_waits_for(visitor: Visitor, world: World) -> None:
    undone = await made(world)
    outside = await world.enqueue(None, topic="render")
    await waiting(await world.store(), outside, callback=HOUR)
    idle = await world.enqueue(None, topic="nap")
    await waiting(await world.store(), idle)
    page, dialog = visitor.page, visitor.page.get_by_role("dialog")
    state = page.get_by_role("region", name="State")
    await visitor.log_in()
    for job_id, asked, then in (
        (undone, "Its handler runs once more", "a worker has to run its handler once more"),
        (outside, "The outside works on it", "which has a callback for the signal decision, has to say"),
        (idle, "It will not run", "Cancelled"),
    ):
        await visitor.go(f"job/{job_id}")
        await expect(state).to_contain_text("Waits for the signal decision")
        await page.get_by_role("button", name="Cancel", exact=True).click()
        await expect(dialog).to_contain_text(asked)
        await dialog.get_by_role("button", name="Cancel the job").click()
        await expect(state).to_contain_text(then)
        await expect(page.get_by_role("button", name="Send signal…")).to_have_count(0)


async def test_the_outside_reports_and_the_page_follows(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    job_id = await sqlite_world.enqueue(None, topic="render")
    store = await sqlite_world.store()
    await waiting(store, job_id, callback=HOUR, seconds=HOUR)
    page = sqlite_visitor.page
    await sqlite_visitor.log_in()
    await sqlite_visitor.go(f"job/{job_id}")
    await expect(row(page, "Address for decision")).to_contain_text("open")
    await expect(row(page, "Address for decision")).to_contain_text("ends in 59 min")
    report = ReportCallback(by="callback", signal="decision", number=1, timeout=HOUR, percent=40.0, message="4 of 10")
    assert (await store.move([job_id], report))[0].done
    await expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "40")
    await expect(page.get_by_role("region", name="State")).to_contain_text("4 of 10")
    await sqlite_world.jobs.cancel(job_id, reason="too late")
    await expect(page.get_by_role("region", name="State")).to_contain_text("too late")


async def test_a_requeue_starts_at_a_step_and_waits_again(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    job_id = await made(sqlite_world)
    await sqlite_world.jobs.signal(job_id, "decision", {"ok": True})
    store = await sqlite_world.store()
    run = await run_of(store, job_id)
    await take(store, run, seconds=HOUR)
    await settled(sqlite_world, run, Failed("ValueError: no", final=True))
    page, dialog = sqlite_visitor.page, sqlite_visitor.page.get_by_role("dialog")
    await sqlite_visitor.log_in()
    await sqlite_visitor.go(f"job/{job_id}")
    await expect(row(page, "Wait for decision")).to_contain_text("ended")
    await expect(page.get_by_role("button", name="Requeue from")).to_have_count(1)
    await page.get_by_role("button", name="Requeue from ask").click()
    await expect(dialog).to_contain_text("1 stored result is dropped, and these steps run again: ask.")
    await expect(dialog).to_contain_text("It waits again: Wait for decision. What had come is dropped.")
    await dialog.get_by_role("button", name="Requeue", exact=True).click()
    await sqlite_visitor.toast("is pending again")
    assert await reading.steps(store, job_id) == []


async def test_waiting_jobs_are_counted_listed_and_alarm_nobody(visitor: Visitor, world: World) -> None:
    job_id = await made(world)
    asleep = await world.enqueue(None, topic="nap")
    await waiting(await world.store(), asleep, signal=None, seconds=HOUR)
    page = visitor.page
    await visitor.log_in()
    tile = page.locator(".tile").filter(has_text="Waiting")
    await expect(tile.locator(".value")).to_have_text("2")
    await expect(page.locator(".attention")).not_to_contain_text(re.compile("approve|nap"))
    await tile.click()
    await expect(page).to_have_url(re.compile("status=waiting"))
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(2)
    await expect(rows.filter(has_text="approve")).to_contain_text("waits for decision, ends in 59 min")
    await expect(rows.filter(has_text="nap")).to_contain_text("sleeps, ends in 59 min")
    tab = page.get_by_role("navigation", name="Status").get_by_role("link", name="waiting")
    await expect(tab).to_contain_text("2")
    await visitor.go("jobs?topic=approve")
    await expect(rows).to_contain_text("waits for decision")
    await world.jobs.signal(job_id, "decision", {"ok": True})
    await expect(rows).to_contain_text("pending")
    # The row also follows to the next wait.
    store = await world.store()
    run = await run_of(store, job_id)
    await take(store, run, seconds=HOUR)
    await suspend(store, run, await take(store, run, signal="parcel", position=11), "parcel")
    await expect(rows).to_contain_text("waits for parcel")
    await visitor.go("topics")
    await expect(rows.filter(has_text="nap").locator("[data-label=waiting]")).to_have_text("1")


async def test_who_only_looks_sees_the_wait_and_ends_none(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    job_id = await made(sqlite_world)
    page = sqlite_visitor.page
    await sqlite_visitor.log_in(GUEST)
    await sqlite_visitor.go(f"job/{job_id}")
    await expect(page.get_by_role("region", name="State")).to_contain_text("Waits for the signal decision")
    await expect(page.get_by_role("button", name=re.compile("signal|wait"))).to_have_count(0)
    await page.keyboard.press("s")
    await expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, PHONE])
async def test_waits_are_accessible(browser: Browser, sqlite_world: World, theme: str, width: int) -> None:
    job_id = await made(sqlite_world, callback=HOUR)
    until = (await sqlite_world.job(job_id)).run_at
    shape: dict[str, Any] = {
        "color_scheme": theme, "viewport": {"width": width, "height": 850}, "timezone_id": "Asia/Taipei",
    }  # fmt: skip
    with Server.running(sqlite_world.place.url) as server:
        async with visiting(browser, server.url, **shape) as visitor:
            page = visitor.page
            await visitor.log_in()
            await visitor.go(f"job/{job_id}")
            await expect(row(page, "Wait for decision")).to_be_visible()
            told = _minute(until).astimezone(ZoneInfo("Asia/Taipei")).strftime("%Y-%m-%d %H:%M")
            await expect(page.get_by_role("region", name="State")).to_contain_text(told)
            await expect(page.get_by_role("region", name="State")).to_contain_text("Asia/Taipei")
            for screen in ("job", "dialog", "jobs", "overview"):
                if screen == "dialog":
                    await page.get_by_role("button", name="Send signal…").click()
                    await expect(page.get_by_role("dialog")).to_be_visible()
                elif screen == "jobs":
                    await page.keyboard.press("Escape")
                    await visitor.go("jobs?status=waiting")
                    await expect(page.locator("tbody tr")).to_have_count(1)
                elif screen == "overview":
                    await visitor.go("overview")
                    await expect(page.locator(".tile").filter(has_text="Waiting")).to_be_visible()
                assert await visitor.violations() == [], screen
                assert await page.evaluate(TOO_WIDE) == [], screen
                if width == PHONE:
                    assert await page.evaluate(TOO_SMALL) == [], screen


def _minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)
