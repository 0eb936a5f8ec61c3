"""Many jobs at once: every bulk action, to its end, and how an operator finds the list of its jobs again."""

import pytest
from playwright.async_api import Page, expect

from rowlock.http import upkeep
from rowlock.stores.queries import Filter
from tests.http.harness import World
from tests.ui.browser import Visitor


async def pick_all(page: Page, count: int) -> None:
    await expect(page.locator("tbody tr")).to_have_count(count)
    await page.get_by_label("Select the page").check()
    await expect(page.get_by_text(f"{count} selected")).to_be_visible()


async def confirm(visitor: Visitor, name: str, done: str, *, reason: str = "") -> None:
    if reason:
        await visitor.page.get_by_label("Why?").fill(reason)
    await visitor.page.get_by_role("dialog").get_by_role("button", name=name, exact=True).click()
    await visitor.toast(done)
    await expect(visitor.page.get_by_role("dialog")).to_have_count(0)


async def test_pending_jobs_are_reprioritised_rescheduled_cancelled_requeued_and_deleted(
    visitor: Visitor, world: World
) -> None:
    await world.jobs.enqueue_many([{"topic": "many", "payload": {"n": n}, "delay": 3600} for n in range(3)])
    page = await visitor.enter("jobs?topic=many")

    async def jobs() -> list[tuple[str, int, bool]]:
        now = await (await world.store()).now()
        found = (await world.jobs.list(Filter(topics=["many"]))).items
        return [(str(job.status), job.priority, job.run_at <= now) for job in found]

    await pick_all(page, 3)
    await page.get_by_role("button", name="Priority").click()
    await page.get_by_label("New priority").fill("33")
    await page.get_by_role("button", name="Show what would change").click()
    await confirm(visitor, "Reprioritise 3 jobs", "3 jobs reprioritised", reason="they wait")
    assert await jobs() == [("pending", 33, False)] * 3

    await pick_all(page, 3)
    await page.get_by_role("button", name="Reschedule").click()
    await page.get_by_role("button", name="Show what would change").click()
    await confirm(visitor, "Reschedule 3 jobs", "3 jobs rescheduled", reason="no need to wait")
    assert await jobs() == [("pending", 33, True)] * 3

    await pick_all(page, 3)
    await page.get_by_role("button", name="Reschedule").click()
    await page.get_by_label("When").select_option("at")
    await expect(page.get_by_role("button", name="Show what would change")).to_be_disabled()
    await page.get_by_label("Time", exact=True).fill("2099-01-01T00:00")
    await page.get_by_role("button", name="Show what would change").click()
    await confirm(visitor, "Reschedule 3 jobs", "3 jobs rescheduled")
    assert await jobs() == [("pending", 33, False)] * 3

    await page.keyboard.press("j")
    await page.keyboard.press("x")
    await page.locator("tbody tr").nth(2).get_by_role("checkbox").click(modifiers=["Shift"])
    await expect(page.get_by_text("3 selected")).to_be_visible()
    await page.keyboard.press("c")
    await confirm(visitor, "Cancel 3 jobs", "3 jobs cancelled", reason="not needed")
    assert await jobs() == [("cancelled", 33, False)] * 3

    await pick_all(page, 3)
    await page.keyboard.press("r")
    await confirm(visitor, "Requeue 3 jobs", "3 jobs requeued")
    assert await jobs() == [("pending", 33, True)] * 3

    await pick_all(page, 3)
    await page.get_by_role("button", name="Delete").click()
    await confirm(visitor, "Delete 3 jobs", "3 jobs deleted", reason="tidy")
    assert await jobs() == []

    await visitor.go("audit")
    await expect(page.get_by_role("row").filter(has_text="bulk start")).to_have_count(6)
    row = page.get_by_role("row").filter(has_text="bulk start").filter(has_text="they wait")
    await row.get_by_role("link", name="3 jobs").click()
    await expect(page.get_by_role("heading", name="Outcome for each job")).to_be_visible()
    await expect(page.locator("tbody").nth(1).get_by_role("row").filter(has_text="done")).to_have_count(3)
    started = [(one.action, one.reason) for one in (await world.jobs.bulk.list()).items]
    assert started == [
        ("delete", "tidy"), ("requeue", None), ("cancel", "not needed"), ("reschedule", None),
        ("reschedule", "no need to wait"), ("reprioritise", "they wait"),
    ]  # fmt: skip


async def test_what_can_not_be_had_is_said_before_and_what_was_skipped_after(visitor: Visitor, world: World) -> None:
    dead = [await world.ended(None, "many", error="no", payload={"n": n}, key=f"k{n}") for n in range(2)]
    holder = await world.enqueue(None, topic="many", key="k0", delay=3600)
    page = await visitor.enter("jobs?topic=many")
    await pick_all(page, 3)
    await page.get_by_role("button", name="Requeue").click()
    await expect(page.get_by_text("1 is pending and can't be")).to_be_visible()
    await confirm(visitor, "Requeue 2 jobs", "1 job requeued, 1 skipped")
    await page.locator(".toast a").click()
    await expect(page.get_by_text("key taken")).to_be_visible()
    await expect(page.get_by_role("link", name=holder)).to_be_visible()
    assert [str((await world.jobs.get(job_id)).status) for job_id in dead] == ["failed", "pending"]


@pytest.fixture
def nobody_looks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep servers from looking for work, so that a bulk action that was started elsewhere stays where it is."""
    monkeypatch.setattr(upkeep, "LOOK", 3600.0)


@pytest.mark.usefixtures("nobody_looks_by_itself")
async def test_a_bulk_action_is_stopped_and_goes_on(world: World, visitor: Visitor) -> None:
    page = await visitor.enter()
    await world.jobs.enqueue_many([{"topic": "many", "delay": 3600} for _ in range(4)])
    made = await world.jobs.bulk.prepare("cancel", Filter(topics=["many"]), dry_run=False)
    await (await world.store()).run_bulk(made.id, 1)
    await visitor.go("bulk")
    await expect(page.get_by_text("1 of 4")).to_be_visible()
    await page.get_by_role("button", name="Stop").click()
    await visitor.toast("Stopped. Finished changes stay.")
    await expect(page.locator("tbody").get_by_text("stopped")).to_be_visible()
    assert (await world.jobs.bulk.get(made.id)).status == "stopped"
    await page.get_by_role("button", name="Resume").click()
    await visitor.toast("Resumed")
    await expect(page.get_by_text("4 of 4")).to_be_visible()
    statuses = [str(job.status) for job in (await world.jobs.list(Filter(topics=["many"]))).items]
    assert statuses == ["cancelled"] * 4


async def test_a_preview_shows_what_is_meant_page_by_page(visitor: Visitor, world: World) -> None:
    ids = [await world.ended(None, "bills", error="ValueError: no money", payload={"bill": n}) for n in range(12)]
    page = await visitor.enter("failures")
    await page.get_by_role("row").filter(has_text="no money").get_by_role("button", name="Requeue").click()
    sample = page.get_by_label("Jobs in the preview")
    shown = set[str]()
    for said, count in (("1–5 of 12", 5), ("6–10 of 12", 5), ("11–12 of 12", 2)):
        await expect(sample.get_by_text(said)).to_be_visible()
        await expect(sample.locator("li")).to_have_count(count)
        for row in await sample.locator("li").all():
            await expect(row).to_contain_text('{"bill":')
            await expect(row).to_contain_text("ValueError: no money")
            await expect(row.locator("time")).to_be_visible()
            shown.add((await row.get_by_role("link").get_attribute("href") or "").removeprefix("#/job/"))
        if count == 5:
            await sample.get_by_role("button", name="Next jobs").click()
    assert shown == set(ids)
    assert await visitor.violations() == []
    await sample.get_by_role("button", name="Jobs before").click()
    await expect(sample.get_by_text("6–10 of 12")).to_be_visible()
    await page.get_by_role("dialog").get_by_role("button", name="Requeue 12 jobs").click()
    await visitor.toast("12 jobs requeued")
