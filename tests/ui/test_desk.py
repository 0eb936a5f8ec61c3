"""Topics, workers, failures, new jobs, who may do what: every action of the screens that are not lists of jobs."""

import re
from datetime import UTC, datetime, timedelta

from playwright.async_api import Browser, expect

from rowlock.access import settings as access_settings
from rowlock.stores.base import Progress
from rowlock.stores.queries import Filter
from rowlock.stores.sqlite.rows import micros
from tests.http.harness import BOSS, GUEST, Server, World
from tests.stores.harness import claim_by, info
from tests.ui.browser import Visitor, visiting


async def test_a_topic_is_paused_until_a_time_and_shows_how_long_it_runs(visitor: Visitor, world: World) -> None:
    await world.ended(None, "bills")
    await (await world.store()).tidy("fold_counts", 10_000)
    earlier = "at - 180000000" if world.place.kind == "sqlite" else "at - interval '3 minutes'"
    await world.place.fetch(f"UPDATE _jobs_rollups SET at = {earlier} WHERE span = 60")  # no run has ended since
    page = await visitor.enter("topics")
    row = page.get_by_role("row").filter(has_text="bills")
    await row.get_by_role("button", name="Pause").click()
    await page.get_by_label("Why?").fill("the bank is away")
    await page.get_by_label("Until").fill("2099-01-01T00:00")
    await page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    await visitor.toast("bills is paused")
    await expect(row).to_contain_text("the bank is away")
    [pause] = await (await world.store()).paused()
    assert pause.until is not None
    assert pause.until.year in (2098, 2099)
    await row.get_by_role("button", name="Resume").click()
    await visitor.toast("bills is resumed")
    assert await (await world.store()).paused() == []
    await row.get_by_role("button", name="Charts").click()
    chart = page.get_by_role("img", name="Run time, last hour")
    await expect(chart).to_be_visible()
    await expect(chart).to_have_accessible_name(re.compile(r"p50 [\d.]+ m?s, p95 [\d.]+ m?s"))
    await row.get_by_role("button", name="Charts").click()
    await expect(chart).to_have_count(0)


async def test_all_that_needs_attention_can_be_shown(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    for n in range(12):
        await sqlite_world.enqueue(None, topic=f"t{n:02}")
    page = await sqlite_visitor.enter("overview")
    concerns = page.locator(".attention li").filter(has_text="No live worker knows")
    last = concerns.filter(has_text="t11;")
    await expect(concerns.first).to_be_visible()
    await expect(last).to_have_count(0)
    await page.get_by_role("button", name="Show all").click()
    await expect(last).to_be_visible()
    await page.get_by_role("button", name="Show the first 8").click()
    await expect(last).to_have_count(0)


async def test_workers_show_what_they_run_and_what_a_dead_one_held(visitor: Visitor, world: World) -> None:
    store = await world.store()
    held = await world.enqueue(None, topic="bills")
    await store.claim(claim_by("gone", "bills", lease=0.01))
    await store.report(info("gone", lease=0.01, running=1))
    running = await world.enqueue(None, topic="letters")
    await store.claim(claim_by("alive", "letters", lease=600))
    await store.report(info("alive", lease=600.0, running=0, concurrency=3))
    page = await visitor.enter("workers")
    alive, gone = page.get_by_role("row").filter(has_text="alive"), page.get_by_role("row").filter(has_text="gone")
    await expect(alive).to_contain_text("1 / 3")  # the worker has not reported this run yet
    await expect(alive.get_by_role("link", name="letters", exact=True)).to_have_attribute("href", f"#/job/{running}")
    await gone.get_by_role("link", name=held[-12:]).click()
    await expect(page.get_by_role("heading", name="bills")).to_be_visible()


async def test_a_group_of_failures_is_deleted(visitor: Visitor, world: World) -> None:
    for n in range(2):
        await world.ended(None, "bills", error=f"ValueError: {n}")
    await world.ended(None, "letters", error="KeyError: 1")
    page = await visitor.enter("failures")
    await page.get_by_role("button", name="30 days").click()
    await page.get_by_role("link", name="bills").click()
    row = page.get_by_role("row").filter(has_text="bills")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await row.get_by_role("button", name="Delete the group").click()
    await page.get_by_label("Why?").fill("hopeless")
    await page.get_by_role("button", name="Delete 2 jobs").click()
    await visitor.toast("2 jobs deleted")
    await expect(page.get_by_text("No dead letters")).to_be_visible()
    await page.get_by_role("button", name="All topics").click()
    await expect(page.locator("tbody tr").filter(has_text="letters")).to_have_count(1)
    assert [job.topic for job in (await world.jobs.list(Filter(statuses=["failed"]))).items] == ["letters"]


async def test_a_new_job_has_all_that_was_asked_for_and_a_key_is_made_once(visitor: Visitor, world: World) -> None:
    await world.enqueue(None, topic="bills", payload={"n": 1}, delay=3600)
    page = await visitor.enter("new")
    await page.get_by_role("combobox", name="Topic").fill("bills")
    await page.get_by_role("button", name="Copy the last payload of this topic").click()
    await expect(page.get_by_label("Payload")).to_have_value('{\n  "n": 1\n}')
    await page.get_by_label("Payload").fill("[1]")
    await expect(page.get_by_text("The payload must be an object")).to_be_visible()
    await expect(page.get_by_role("button", name="Enqueue")).to_be_disabled()
    await page.get_by_label("Payload").fill('{"n": 2}')
    await page.get_by_label("When").select_option("at")
    await page.get_by_label("Time", exact=True).fill("2099-01-01T00:00")
    await page.get_by_label("Key").fill("k")
    await page.get_by_label("Retries").fill("9")
    await page.get_by_label("Tags").fill("a, b")
    await page.get_by_role("button", name="Enqueue").click()
    await visitor.toast("The job is enqueued")
    [made] = (await world.jobs.list(limit=1)).items
    assert (made.payload, made.key, made.max_retries, made.tags) == ({"n": 2}, "k", 9, ("a", "b"))
    assert made.run_at - made.created > timedelta(days=365)
    await visitor.go("new?topic=bills")
    await page.get_by_label("Key").fill("k")
    await page.get_by_role("button", name="Enqueue").click()
    await visitor.toast("A live job has this key already")
    assert made.id in page.url
    await visitor.go("new?topic=bills")
    await page.get_by_label("Priority").fill("soon")
    await page.get_by_role("button", name="Enqueue").click()
    problem = page.get_by_role("alert")
    await expect(problem).to_contain_text("priority")
    await expect(problem).to_contain_text("request")  # the request's id, to find it in the log
    assert all("400 (Bad Request)" in complaint for complaint in visitor.complaints)
    visitor.complaints.clear()


async def test_tokens_are_bound_and_sessions_ended(browser: Browser, world: World) -> None:
    with Server.running(world.place.url) as server:
        async with visiting(browser, server.url) as guest, visiting(browser, server.url) as visitor:
            await guest.log_in(GUEST)
            page = await visitor.enter("access")
            await page.get_by_role("button", name="New token").click()
            await page.get_by_label("Name").fill("the shop")
            await page.get_by_role("checkbox", name="read see all jobs").check()
            await page.get_by_label("Only for these topics").fill("bills, letters")
            await page.get_by_label("Until").fill("2099-01-01T00:00")
            await page.get_by_role("button", name="Create").click()
            row = page.get_by_role("row").filter(has_text="the shop")
            await expect(row).to_contain_text("bills, letters")
            tokens = (await world.get("admin token", "/api/tokens")).json()["items"]
            [made] = [one for one in tokens if one["name"] == "the shop"]
            assert (sorted(made["scopes"]), made["topics"]) == (["enqueue", "read"], ["bills", "letters"])
            assert made["expires_at"] is not None
            await (
                page.get_by_role("row")
                .filter(has_text=GUEST)
                .filter(has_text="Chrome")
                .get_by_role("button", name="End")
                .click()
            )
            await visitor.toast(f"A session of {GUEST} is ended")
            await expect(guest.page.get_by_role("heading", name="Log in")).to_be_visible()
            guest.complaints.clear()  # the browser reports the refusal


async def test_settings_are_saved_with_a_reason_and_the_browser_has_its_own(visitor: Visitor, world: World) -> None:
    page = await visitor.enter("settings")
    await page.get_by_label("Slots of a worker").fill("7")
    await page.get_by_label("Poll, in seconds").fill("0.5")
    await page.get_by_label("Lease, in seconds").fill("45")
    await page.get_by_label("Topics that may be enqueued").fill("bills\nletters")
    await page.get_by_label("Hidden fields").fill("password\ncard")
    await page.get_by_label("Why?").fill("a larger machine")
    await page.get_by_role("button", name="Save").click()
    await visitor.toast("Saved")
    settings = (await world.get("admin token", "/api/settings")).json()
    assert (settings["worker_pool_size"], settings["poll_interval"], settings["lock_duration"]) == (7, 0.5, 45)
    assert (settings["allowed_topics"], settings["redact"]) == (["bills", "letters"], ["password", "card"])
    await page.get_by_label("Theme").select_option("dark")
    await page.get_by_label("Times").select_option("utc")
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    await visitor.go("audit")
    await expect(page.get_by_text("a larger machine")).to_be_visible()
    await expect(page.locator("tbody time").first).to_contain_text("Z")


async def test_the_audit_has_pages(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    for n in range(60):
        await sqlite_world.jobs.topics.pause("bills", reason=f"number {n}")
    page = await sqlite_visitor.enter("audit")
    await expect(page.get_by_text("number 59")).to_be_visible()
    await page.get_by_role("button", name="Older").click()
    await expect(page.get_by_text("number 9", exact=True)).to_be_visible()
    await page.get_by_role("button", name="Back").click()
    await expect(page.get_by_text("number 59")).to_be_visible()


async def test_a_wrong_password_is_told_with_the_request(sqlite_visitor: Visitor) -> None:
    page = sqlite_visitor.page
    await page.goto(f"{sqlite_visitor.url}/_/")
    await page.get_by_label("E-mail address").fill(BOSS)
    await page.get_by_label("Password").fill("a wrong password, surely")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_contain_text("request")
    sqlite_visitor.complaints.clear()  # the browser reports the refusal
    await sqlite_visitor.log_in()
    await page.get_by_title("Log out").click()
    await expect(page.get_by_role("heading", name="Log in")).to_be_visible()


async def test_groups_of_failures_are_reached_by_the_keyboard(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    for n, topic in enumerate(("bills", "bills", "letters")):
        await sqlite_world.ended(None, topic, error="ValueError: no", payload={"n": n})
    page = await sqlite_visitor.enter("failures")
    await expect(page.locator("tbody tr")).to_have_count(2)
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await expect(page.locator("tbody tr.current")).to_contain_text("letters")
    await page.keyboard.press("k")
    await page.keyboard.press("r")
    await expect(page.get_by_role("dialog")).to_contain_text("2 jobs will be requeued")
    await page.keyboard.press("Escape")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    await expect(page.locator("tbody tr").filter(has_text="bills")).to_have_count(2)


async def test_the_audit_is_searched_and_says_what_was_changed(visitor: Visitor, world: World) -> None:
    for n in range(3):
        await world.jobs.cancel(await world.enqueue(None, topic=f"bills.{n}", delay=3600), by="ann", reason="no money")
    await world.change_settings(worker_pool_size=7, poll_interval=2.0, reason="a quiet night")
    page = await visitor.enter("audit")
    entry = page.locator("tbody tr").filter(has_text="a quiet night")
    await expect(entry).to_contain_text("worker pool size: – → 7")
    await expect(entry).to_contain_text("poll interval: – → 2")
    field = page.get_by_label("Search the audit")
    await field.fill("BILLS.1")
    await page.get_by_role("button", name="Search", exact=True).click()
    await expect(page.locator("tbody tr")).to_have_count(1)
    assert "search=BILLS.1" in page.url
    await field.fill("money")
    await page.keyboard.press("Enter")
    await expect(page.locator("tbody tr")).to_have_count(3)
    await field.fill("nothing like it")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("No entry contains")).to_be_visible()
    await page.get_by_role("button", name="All entries").click()
    await expect(entry).to_be_visible()
    assert await visitor.violations() == []


async def test_switching_off_the_api_is_asked_for_by_our_own_dialog(
    sqlite_visitor: Visitor, sqlite_world: World
) -> None:
    page = await sqlite_visitor.enter("settings")
    await page.get_by_label("The HTTP API and this page are on").uncheck()
    await page.get_by_role("button", name="Save", exact=True).click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Only the command line switches it on again")
    await dialog.get_by_role("button", name="Back").click()
    assert (await access_settings.load(await sqlite_world.store())).settings.http_enabled
    await page.get_by_role("button", name="Save", exact=True).click()
    await dialog.get_by_role("button", name="Switch it off").click()
    await sqlite_visitor.toast("Saved")
    assert not (await access_settings.load(await sqlite_world.store())).settings.http_enabled
    await page.goto("about:blank")  # ends the page's requests, which are refused now
    sqlite_visitor.complaints.clear()  # the browser reports that nothing is there any more


async def test_numbers_are_rounded_once_and_fit(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    """This holds in the list, on the job's screen, and in what the server says about the job."""
    job_id = await sqlite_world.enqueue(None, topic="slow")
    store = await sqlite_world.store()
    [claimed] = (await store.claim(claim_by("w1", "slow"))).jobs
    await store.progress([Progress(job_id, claimed.version, 80 / 3, "reading", None, ())])
    page = await sqlite_visitor.enter(f"job/{job_id}")
    await expect(page.get_by_text("27 %")).to_have_count(1)
    await expect(page.locator("main")).not_to_contain_text("26.6")
    why = await sqlite_world.get("superuser", f"/api/jobs/{job_id}/why")
    assert "27 %" in why.text
    for seconds, said in ((0, "0 s"), (0.000_001, "< 0.01 ms"), (0.000_35, "0.35 ms"), (1, "1 s"), (1.25, "1.3 s")):
        begin = datetime(2026, 1, 1, tzinfo=UTC)
        end = begin + timedelta(seconds=seconds)
        await sqlite_world.place.fetch(
            f"UPDATE _jobs SET status = 'cancelled', locked_by = NULL, locked_until = NULL, "
            f"started_at = {micros(begin)}, finished_at = {micros(end)}, updated = updated + 1 WHERE id = '{job_id}'"
        )
        await sqlite_visitor.go("jobs?topic=slow")
        await page.reload()
        await expect(page.locator("tbody td").last).to_have_text(said)
