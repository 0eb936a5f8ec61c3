"""Schedules on the page: a form with the next times, what became of past ones, and what an operator can do."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs
from playwright.async_api import Browser, Page, expect

from rowlock import Cron, Every
from rowlock.access.identity import SCOPES
from rowlock.core.lifecycle import Completed, Failed, Outcome
from rowlock.core.schedules import Fire, Schedule
from rowlock.stores.schedules import ScheduleChange, Which
from tests.http.harness import GUEST, Server, World
from tests.stores.harness import claim_by, settlement
from tests.ui.browser import Visitor, visiting
from tests.ui.test_screens import PHONE, TOO_SMALL, TOO_WIDE

BERLIN = Cron("30 2 * * *", "Europe/Berlin")
REPORT: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["tenant"],
    "properties": {
        "tenant": {"type": "integer"},
        "day": {"type": "string", "format": "date"},
        "mode": {"enum": ["fast", "cheap"], "default": "fast"},
    },
}
OUTCOMES = (
    *["completed"] * 8, "failed", "completed", "missed", "missed", "completed", "live", "live", "paused", "disabled",
    "invalid", "completed", "running", "pending",
)  # fmt: skip


async def nightly(world: World, name: str = "nightly", **more: Any) -> Schedule:
    job = ("report", {"tenant": 7, "day": "{{fire_date}}"})
    return await world.jobs.schedules.put(name, job, more.pop("when", BERLIN), **more)


async def fired(world: World, schedule: Schedule, *outcomes: str) -> None:
    """Write what became of past times of the schedule, oldest first, with an hour between two of them."""
    store = await world.store()
    firing = world.jobs.schedules.firing
    hour = (await store.now()).replace(minute=30, second=0, microsecond=0) - timedelta(hours=1)
    for n, outcome in enumerate(outcomes):
        at = hour - timedelta(hours=len(outcomes) - n)
        has_job = outcome in ("completed", "failed", "running", "pending")
        detail = "tenant: must be a number" if outcome == "invalid" else None
        fire = (
            Fire(fire_at=at, job=firing.job(schedule, at, UTC, "schedule"))
            if has_job
            else Fire(fire_at=at, reason=outcome, detail=detail)  # type: ignore[arg-type]
        )

        def decide(old: Schedule | None, now: datetime, fire: Fire = fire) -> ScheduleChange:
            return ScheduleChange(old, [fire])

        await store.change_schedules(Which(ids=(schedule.id,)), decide)
        if outcome in ("completed", "failed", "running"):
            [claimed] = (await store.claim(claim_by("w1", "report", limit=1))).jobs
            ends: dict[str, Outcome] = {"completed": Completed(None), "failed": Failed("ValueError: no", final=True)}
            if outcome in ends:
                await store.settle([settlement(claimed, ends[outcome], ran=0.5)])


async def change(world: World, schedule: Schedule, **changed: Any) -> None:
    """Change the schedule in the store, without the page."""

    def decide(old: Schedule | None, now: datetime) -> ScheduleChange:
        assert old is not None
        return ScheduleChange(structs.replace(old, **changed))

    await (await world.store()).change_schedules(Which(ids=(schedule.id,)), decide)


def clocks_go_forward() -> date:
    """Return the day on which the clocks go forward in Europe next year: the last Sunday of March."""
    last = date(datetime.now(UTC).year + 1, 3, 31)
    return last - timedelta(days=(last.weekday() + 1) % 7)


def row(page: Page, name: str) -> Any:
    return page.locator("tbody tr").filter(has=page.get_by_role("link", name=name, exact=True))


async def test_a_schedule_is_created_by_the_form(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    await sqlite_world.jobs.templates.create({"topic": "report", "version": 1, "schema": REPORT})
    page = await sqlite_visitor.enter()
    await page.keyboard.press("g")
    await page.keyboard.press("c")
    await expect(page.get_by_role("heading", name="No schedules yet")).to_be_visible()
    await expect(page.locator("pre")).to_contain_text("@jobs.task")
    assert await sqlite_visitor.violations() == []
    await page.get_by_role("link", name="New schedule").first.click()
    await page.get_by_label(re.compile("^Name")).fill("nightly")
    preview = page.get_by_role("status", name="Preview")
    await page.get_by_label("Expression").fill("30 2 * * *")
    zone = page.get_by_role("combobox", name="Time zone")
    await zone.fill("Europe/Berlin")
    await expect(preview).to_contain_text("At 02:30 every day (Europe/Berlin)")
    day = clocks_go_forward()
    await page.get_by_label(re.compile("^Start")).fill(f"{day - timedelta(days=1)}T12:00")
    await expect(preview).to_contain_text(f"02:30 does not exist on {day} in Europe/Berlin (clocks go forward)")
    await expect(preview).to_contain_text(f"Sun {day} 03:00 +02:00")
    await page.get_by_label("If a time does not exist").select_option("skip")
    await expect(preview.get_by_text("skipped", exact=True)).to_be_visible()
    await page.get_by_label(re.compile("^Start")).fill("")

    await zone.fill("Europe/Berln")
    await expect(zone).to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_text("there is no time zone Europe/Berln")).to_be_visible()
    await zone.fill("Europe/Berlin")
    await page.get_by_label("Expression").fill("61 2 * * *")
    await expect(page.get_by_text("the minute 61 is out of range")).to_be_visible()
    await page.get_by_label("Expression").fill("30 2 * * *")
    await expect(preview).to_contain_text("At 02:30 every day")

    await page.get_by_role("combobox", name="Topic").fill("report")
    create = page.get_by_role("button", name="Create")
    await create.click()  # nothing is sent: the tenant is missing
    await expect(page.get_by_label("tenant")).to_have_attribute("aria-invalid", "true")
    await page.get_by_label("tenant").fill("12345678901234567")
    await page.get_by_label("day").fill("{{fire_day}}")
    await create.click()
    await expect(page.get_by_text("is none of {{fire_at}}")).to_be_visible()
    sqlite_visitor.complaints.clear()  # the browser reports the refusal
    await page.get_by_label("day").fill("{{fire_date}}")
    await page.get_by_label("If times were missed").select_option("all")
    await page.get_by_label("At most").fill("10")
    await page.get_by_label("If the last job is not over").select_option("queue")
    await create.click()
    await sqlite_visitor.toast("nightly is created")
    await expect(page.get_by_role("heading", name="nightly")).to_be_visible()
    when = page.get_by_role("region", name="When")
    await expect(when).to_contain_text("At 02:30 every day (Europe/Berlin)")
    await expect(when.locator("tbody tr:not(.of-above)")).to_have_count(5)
    policy = page.get_by_role("region", name="Policy")
    await expect(policy).to_contain_text("a job for each missed time, oldest first, 10 jobs at most")
    await expect(policy).to_contain_text("one job waits until the last one is over")
    made = await sqlite_world.jobs.schedules.get("nightly")
    assert made.when == Cron("30 2 * * *", "Europe/Berlin", "skip")
    assert made.payload == {"tenant": 12345678901234567, "day": "{{fire_date}}", "mode": "fast"}
    assert (made.missed, made.most, made.if_live, made.version) == ("all", 10, "queue", None)

    await sqlite_visitor.go("new-schedule?topic=report")
    await page.get_by_label(re.compile("^Name")).fill("nightly")
    await page.get_by_label("tenant").fill("1")
    await create.click()
    await expect(page.get_by_label(re.compile("^Name"))).to_be_focused()
    await expect(page.get_by_text("there is a schedule 'nightly'")).to_be_visible()
    sqlite_visitor.complaints.clear()  # the browser reports the refusal
    await page.get_by_label(re.compile("^Name")).fill("often")
    await page.get_by_role("button", name="Interval").click()
    await page.get_by_label("Every", exact=True).fill("2")
    await page.get_by_label("Unit").select_option("hours")
    await expect(preview).to_contain_text("Every 2 hours")
    await create.click()
    await sqlite_visitor.toast("often is created")
    assert (await sqlite_world.jobs.schedules.get("often")).when == Every(7200.0)


async def test_a_schedule_is_run_paused_and_resumed(visitor: Visitor, world: World) -> None:
    schedule = await nightly(world)
    page = await visitor.enter(f"schedule/{schedule.id}")
    await page.get_by_role("button", name="Run now").click()
    await visitor.toast("A job of nightly is made")
    past = page.get_by_role("region", name="History").locator("tbody tr")
    await expect(past).to_have_count(1)
    await expect(past).to_contain_text("run now")
    await expect(past).to_contain_text("pending")
    await past.get_by_role("link").click()
    state = page.get_by_role("region", name="State")
    await expect(state).to_contain_text(re.compile(r"Made by the schedule nightly for .* \(Europe/Berlin\)"))
    await state.get_by_role("link", name="nightly").click()
    await page.get_by_role("button", name="Pause", exact=True).click()
    await page.get_by_label("Why?").fill("the shop is closed")
    await page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    await visitor.toast("nightly is paused")
    await expect(page.get_by_role("status").filter(has_text="the shop is closed")).to_be_visible()
    assert (await world.jobs.schedules.get("nightly")).is_paused
    await visitor.go("schedules?state=paused")
    await expect(row(page, "nightly").get_by_text("paused").first).to_be_visible()
    await page.get_by_role("button", name="Resume nightly").click()
    await visitor.toast("nightly is resumed")
    await expect(page.get_by_role("heading", name="No schedule matches")).to_be_visible()
    assert not (await world.jobs.schedules.get("nightly")).is_paused
    await page.get_by_role("button", name="All schedules").click()
    await expect(row(page, "nightly")).to_be_visible()


async def test_a_schedule_is_edited_and_deleted(visitor: Visitor, world: World) -> None:
    schedule = await nightly(world, jitter=5.0, description="For the boss")
    page = await visitor.enter(f"schedule/{schedule.id}")
    await page.get_by_role("link", name="Edit").click()
    expression = page.get_by_label("Expression")
    await expect(expression).to_have_value("30 2 * * *")
    await expression.fill("0 5 * * MON-FRI")
    await expect(page.get_by_role("status", name="Preview")).to_contain_text("05:00")
    await nightly(world, description="For her deputy")  # another operator changes it
    save = page.get_by_role("button", name="Save")
    await save.click()
    await expect(page.get_by_role("alert")).to_contain_text("has changed this schedule since you opened it")
    visitor.complaints.clear()  # the browser reports the refusal
    await page.get_by_role("button", name="Load it again").click()
    await expect(page.get_by_label("Description")).to_have_value("For her deputy")
    await expect(expression).to_have_value("30 2 * * *")
    await expression.fill("0 5 * * MON-FRI")
    await page.get_by_label("Why?").fill("it is too early")
    await save.click()
    await visitor.toast("nightly is changed")
    await expect(page.get_by_role("region", name="When")).to_contain_text("0 5 * * ")
    found = await world.jobs.schedules.get("nightly")
    assert (found.revision, found.payload) == (3, schedule.payload)
    assert isinstance(found.when, Cron)
    assert found.when.zone == "Europe/Berlin"
    await page.get_by_role("button", name="More").click()
    await page.get_by_role("button", name="Delete…").click()
    await expect(page.get_by_role("dialog")).to_contain_text("Its jobs stay")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await visitor.toast("nightly is deleted")
    await expect(page.get_by_role("heading", name="No schedules yet")).to_be_visible()
    await visitor.go(f"schedule/{schedule.id}")
    await expect(page.get_by_role("heading", name="Schedule not found")).to_be_visible()
    visitor.complaints.clear()  # the browser reports that there is no such schedule


async def test_past_times_are_filled_in(visitor: Visitor, world: World) -> None:
    schedule = await nightly(world, when=Every(6 * 3600))
    page = await visitor.enter(f"schedule/{schedule.id}")
    dialog = page.get_by_role("dialog")

    async def open_dialog() -> None:
        await page.get_by_role("button", name="More").click()
        await page.get_by_role("button", name="Backfill…").click()
        await dialog.get_by_role("button", name="Preview").click()

    await open_dialog()
    await expect(dialog).to_contain_text("4 times get a job")
    await expect(dialog.locator("li")).to_have_count(4)
    assert (await world.jobs.schedules.history("nightly")) == []
    await dialog.get_by_label("To").fill("2099-01-01T00:00")
    await dialog.get_by_role("button", name="Preview").click()
    await expect(dialog.get_by_text("must not be later than now")).to_be_visible()
    visitor.complaints.clear()  # the browser reports the refusal
    await dialog.get_by_role("button", name="Back").click()
    await open_dialog()
    await dialog.get_by_role("button", name="Make 4 jobs").click()
    await visitor.toast("4 jobs are made")
    past = page.get_by_role("region", name="History").locator("tbody tr")
    await expect(past).to_have_count(4)
    await expect(past.first).to_contain_text("backfill")
    assert len(await world.jobs.schedules.history("nightly")) == 4
    await open_dialog()
    await expect(dialog).to_contain_text("0 times get a job, 4 have one already")
    await expect(dialog.get_by_role("button", name="Nothing to do")).to_be_disabled()


async def test_what_became_of_past_times_is_seen_at_a_glance(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    schedule = await nightly(sqlite_world)
    await nightly(sqlite_world, "another", when=Every(3600))
    await fired(sqlite_world, schedule, *["completed"] * 30, *OUTCOMES)
    page = await sqlite_visitor.enter("schedules")
    found = row(page, "nightly")
    await expect(found).to_contain_text("2 missed")
    await expect(found).to_contain_text("1 refused")
    strip = found.get_by_role("link", name="The last 30 times")
    await expect(strip).to_have_attribute("aria-label", re.compile("1 failed, .* 2 missed"))
    await expect(strip.locator("span")).to_have_count(30)
    await expect(strip.locator(".missed").first).to_have_attribute("title", re.compile("Missed: no worker"))
    await strip.locator(".failed").click()
    await expect(page.get_by_role("heading", name="report")).to_be_visible()
    await expect(page.locator(".hero")).to_contain_text("failed")
    await page.go_back()
    await page.get_by_label("Find a schedule").fill("NIGHT")
    await expect(row(page, "another")).to_have_count(0)
    await page.get_by_role("heading", name="Schedules").click()  # Escape would clear the field
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status").filter(has_text="2 were missed")).to_be_visible()
    history = page.get_by_role("region", name="History")
    past = history.locator("tbody tr")
    await expect(past).to_have_count(30)
    await expect(history.get_by_text("Missed: no worker and no server was there in time")).to_have_count(2)
    await expect(history.get_by_text("tenant: must be a number")).to_be_visible()
    await history.get_by_role("button", name="Older").click()
    await expect(past).to_have_count(30 + len(OUTCOMES))
    await expect(history.get_by_role("button", name="Older")).to_have_count(0)


@pytest.mark.quick
async def test_what_code_declares_is_changed_there(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    @sqlite_world.jobs.task("report", schedule=Cron("0 9 * * *", "Asia/Taipei"))
    async def report() -> None: ...

    [schedule] = await sqlite_world.jobs.schedules.publish()
    page = await sqlite_visitor.enter("schedules")
    await expect(row(page, "report").first).to_contain_text("in code")
    await page.get_by_role("link", name="report", exact=True).first.click()
    await expect(page.get_by_text("declares this schedule, and every start of a worker")).to_be_visible()
    for name in ("Run now", "Pause"):
        await expect(page.get_by_role("button", name=name, exact=True)).to_be_visible()
    await expect(page.get_by_role("link", name="Edit")).to_have_count(0)
    await page.get_by_role("button", name="More").click()
    await expect(page.get_by_role("button", name="Backfill…")).to_be_visible()
    await expect(page.get_by_role("button", name="Delete…")).to_have_count(0)
    await sqlite_visitor.go(f"edit-schedule/{schedule.id}")
    await expect(page.get_by_role("heading", name="report is declared in code")).to_be_visible()

    await change(sqlite_world, schedule, absent=True)
    await sqlite_visitor.go("overview")
    await (
        page.get_by_role("listitem")
        .filter(has_text="The schedule report is not in the code any more")
        .get_by_role("link")
        .click()
    )
    await expect(page.get_by_role("status").filter(has_text="does not declare this schedule any more")).to_be_visible()
    await expect(page.get_by_role("link", name="Edit")).to_be_visible()
    await sqlite_visitor.go("schedules?state=absent")
    await expect(row(page, "report").first).to_contain_text("not in the code any more")


async def test_who_only_looks_changes_no_schedule(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    schedule = await nightly(sqlite_world, end=datetime.now(UTC) + timedelta(days=9))
    await change(sqlite_world, schedule, next_run_at=None)
    page = await sqlite_visitor.enter("schedules", GUEST)
    await expect(row(page, "nightly")).to_contain_text("never fires again")
    await expect(page.get_by_role("link", name="New schedule")).to_have_count(0)
    await row(page, "nightly").get_by_role("link", name="nightly").click()
    await expect(page.get_by_text("It never fires again")).to_be_visible()
    await expect(page.get_by_role("button", name=re.compile("^(Run now|Pause|More)$"))).to_have_count(0)
    await sqlite_visitor.go("new-schedule")
    await expect(page.get_by_role("heading", name="This screen is for operators")).to_be_visible()


async def test_a_token_may_have_the_scope_of_schedules(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    page = await sqlite_visitor.enter("access")
    await page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog")
    offered = await dialog.get_by_role("checkbox").evaluate_all("boxes => boxes.map(one => one.value)")
    assert set(offered) == set(SCOPES)
    await dialog.get_by_label("Name").fill("planner")
    await dialog.locator("input[value=enqueue]").uncheck()
    await dialog.locator("input[value=schedules]").check()
    await dialog.get_by_role("button", name="Create").click()
    await expect(page.get_by_role("row").filter(has_text="planner").get_by_text("schedules")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, PHONE])
async def test_schedules_are_accessible(browser: Browser, sqlite_world: World, theme: str, width: int) -> None:
    await sqlite_world.jobs.templates.create({"topic": "report", "version": 0, "schema": REPORT})
    schedule = await nightly(sqlite_world, description="A report for each tenant. " * 5)
    await fired(sqlite_world, schedule, *["completed"] * 15, *OUTCOMES)  # as many as the page shows at once
    paused = await nightly(sqlite_world, "a very long name of a schedule " * 3 + "end", when=Every(90.0))
    await sqlite_world.jobs.schedules.pause(paused.id, reason="x" * 300)
    gone = await nightly(sqlite_world, "gone")
    await change(sqlite_world, gone, absent=True, owner="shop.tasks")
    shape: dict[str, Any] = {"color_scheme": theme, "viewport": {"width": width, "height": 850}}
    with Server.running(sqlite_world.place.url) as server:
        async with visiting(browser, server.url, timezone_id="America/New_York", **shape) as visitor:
            page = await visitor.enter()

            async def is_fine(what: str) -> None:
                await expect(page.locator(".skeleton")).to_have_count(0)
                assert await visitor.violations() == [], what
                assert await page.evaluate(TOO_WIDE) == [], what
                if width == PHONE:
                    assert await page.evaluate(TOO_SMALL) == [], what

            await visitor.go("schedules")
            await expect(row(page, "nightly")).to_be_visible()
            await is_fine("schedules")
            for one in (schedule, paused, gone):
                await visitor.go(f"schedule/{one.id}")
                await expect(page.get_by_role("heading", name=one.name)).to_be_visible()
                await is_fine(one.name)
            await expect(page.get_by_text("Your zone, America/New_York")).to_be_visible(visible=width != PHONE)
            await page.get_by_role("button", name="More").click()
            await is_fine("menu")
            await page.get_by_role("button", name="Backfill…").click()
            await page.get_by_role("dialog").get_by_role("button", name="Preview").click()
            await expect(page.get_by_role("dialog").get_by_text("gets a job", exact=True)).to_be_visible()
            await is_fine("backfill")
            await page.get_by_role("dialog").get_by_role("button", name="Back", exact=True).click()
            await page.get_by_role("button", name="Pause", exact=True).click()
            await is_fine("pause")
            await page.get_by_role("dialog").get_by_role("button", name="Back", exact=True).click()
            await visitor.go(f"edit-schedule/{schedule.id}")
            await page.get_by_label(re.compile("^Start")).fill(f"{clocks_go_forward() - timedelta(days=1)}T12:00")
            await expect(page.get_by_role("status", name="Preview")).to_contain_text("does not exist")
            await page.get_by_text("Priority, retries").click()
            await page.get_by_label("If times were missed").select_option("all")
            await is_fine("edit")
            await visitor.go("new-schedule?topic=report")
            await expect(page.get_by_label("tenant")).to_be_visible()
            await page.get_by_role("button", name="Create").click()
            await is_fine("new")
