"""One job: everything that can be done to it, and what may happen to it meanwhile."""

import asyncio
import re

import pytest
from playwright.async_api import Browser, Page, expect

from rowlock.core.lifecycle import Failed, Outcome, Released
from rowlock.core.moves import CancelTimeout, Update
from rowlock.stores.base import Edit, NewLine, Progress
from tests.http.harness import GUEST, Server, World
from tests.stores.harness import claim_by, settlement
from tests.ui.browser import Visitor, visiting

SECRET = "hunter22"


async def more(page: Page, action: str) -> None:
    await page.get_by_role("button", name="More").click()
    await page.get_by_role("button", name=action, exact=True).click()


async def audited(world: World, job_id: str) -> list[tuple[str, str | None]]:
    """Return what was done to the job, and why, newest first."""
    entries = (await world.get("admin token", "/api/audit?limit=200")).json()["items"]
    return [(entry["action"], entry["reason"]) for entry in entries if entry["job_id"] == job_id]


# ── Change it ──


@pytest.mark.quick
async def test_a_dead_letter_runs_again_with_another_payload_as_the_job_it_is(visitor: Visitor, world: World) -> None:
    job_id = await world.ended(None, "one", error="ValueError: no", payload={"n": 1}, key="k")
    page = await visitor.enter(f"job/{job_id}")
    await expect(page.get_by_text("ValueError: no").first).to_be_visible()
    await page.keyboard.press("e")
    await page.get_by_label("Payload").fill('{"n": 9223372036854775807}')
    await page.get_by_label("Priority").fill("7")
    await page.get_by_label("Tags").fill("late, again")
    await page.get_by_label("Why?").fill("a typo")
    await page.get_by_role("dialog").get_by_role("button", name="Requeue").click()
    await visitor.toast("The job is changed, and pending again")
    await expect(page.locator(".hero").get_by_text("pending")).to_be_visible()
    await expect(page.locator(".timeline").get_by_text("requeued")).to_be_visible()
    job = await world.job(job_id)
    assert (job.status, job.payload, job.priority) == ("pending", {"n": 9223372036854775807}, 7)
    assert (job.key, job.tags) == ("k", ("late", "again"))
    assert await audited(world, job_id) == [("requeue", "a typo")]
    assert len((await world.jobs.list()).items) == 2  # this job, and the one that every world has


async def test_a_job_that_has_run_again_meanwhile_is_not_overwritten(visitor: Visitor, world: World) -> None:
    job_id = await world.ended(None, "one", error="ValueError: no", payload={"n": 1})
    page = await visitor.enter(f"job/{job_id}")
    await expect(page.get_by_text("ValueError: no").first).to_be_visible()
    await page.keyboard.press("e")
    await page.get_by_label("Payload").fill('{"n": 2}')
    await world.jobs.requeue(job_id, payload={"n": 3})
    store = await world.store()
    [claimed] = (await store.claim(claim_by("w2", "one"))).jobs
    await world.jobs.cancel(claimed.id)
    await store.move_due(CancelTimeout(by="m", grace=0.0))
    await expect(page.locator(".hero").get_by_text("cancelled")).to_be_visible()
    await page.get_by_role("dialog").get_by_role("button", name="Requeue").click()
    await expect(page.get_by_role("dialog").get_by_text("it has run again since version 1")).to_be_visible()
    await expect(page.get_by_role("dialog").get_by_text("request")).to_be_visible()
    assert (await world.job(job_id)).payload == {"n": 3}
    assert all("409 (Conflict)" in complaint for complaint in visitor.complaints)
    visitor.complaints.clear()


async def test_a_job_is_run_now_cloned_and_steered_by_keys(visitor: Visitor, world: World) -> None:
    job_id = await world.enqueue(None, topic="one", payload={"n": 1}, delay=3600, tags=["a"])
    page = await visitor.enter(f"job/{job_id}")
    await more(page, "Run now")
    await visitor.toast("is due now")
    job = await world.job(job_id)
    assert job.run_at <= job.updated
    await page.keyboard.press("c")
    await page.get_by_label("Why?").fill("not needed")
    await page.get_by_role("button", name="Cancel the job").click()
    await visitor.toast("is cancelled")
    await page.keyboard.press("r")
    await visitor.toast("is pending again")
    await more(page, "Edit…")
    await page.get_by_label("Not before").fill("2099-01-01T00:00")
    await page.get_by_label("Tags").fill("")
    await page.get_by_label("Why?").fill("much later")
    await page.get_by_role("button", name="Save").click()
    await visitor.toast("The job is changed")
    job = await world.job(job_id)
    assert (job.run_at.year in (2098, 2099), job.tags) == (True, ())
    assert [action for action, _ in await audited(world, job_id)] == ["update", "requeue", "cancel", "update"]
    await more(page, "Clone…")
    await page.get_by_label("Payload").fill('{"n": 2}')
    await page.get_by_role("button", name="Enqueue").click()
    await visitor.toast("The new job is enqueued")
    await expect(page.locator(".json").get_by_text("2", exact=True)).to_be_visible()
    assert job_id not in page.url
    [new] = (await world.jobs.list(limit=1)).items
    assert (new.topic, new.payload) == ("one", {"n": 2})


async def test_a_running_job_is_watched_and_asked_to_stop(visitor: Visitor, world: World) -> None:
    job_id = await world.enqueue(None, topic="one")
    store = await world.store()
    [claimed] = (await store.claim(claim_by("w1", "one"))).jobs
    page = await visitor.enter(f"job/{job_id}")
    lines = (NewLine(0.0, "warning", "half of it"),)
    await store.progress([Progress(job_id, claimed.version, 40.0, "packing", "box 2", lines)])
    await expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "40")
    await expect(page.get_by_text("packing: box 2")).to_be_visible()
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await page.get_by_label("Why?").fill("the customer left")
    await page.get_by_role("button", name="Cancel the job").click()
    await visitor.toast("was asked to stop")
    await expect(page.get_by_role("button", name="Undo")).to_have_count(0)  # it can't be requeued before it has stopped
    await expect(page.get_by_text("half of it")).to_be_visible()
    job = await world.job(job_id)
    assert (job.status, job.cancel_reason) == ("cancel_requested", "the customer left")


# ── What is hidden ──


async def test_what_is_hidden_is_revealed_to_who_says_why_and_never_sent_back(visitor: Visitor, world: World) -> None:
    await world.change_settings(redact=["password"])
    payload = {"password": SECRET, "n": 1}
    job_id = await world.ended(None, "one", error=f"ValueError: password={SECRET}", payload=payload)
    page = await visitor.enter(f"job/{job_id}")
    await expect(page.locator(".json").get_by_text("[redacted]")).to_be_visible()
    await page.keyboard.press("e")
    await expect(page.get_by_label("Payload")).not_to_be_editable()
    await page.get_by_label("Priority").fill("9")
    await page.get_by_role("dialog").get_by_role("button", name="Requeue").click()
    await visitor.toast("The job is changed, and pending again")
    job = await world.job(job_id)
    assert (job.payload, job.priority) == (payload, 9)
    assert SECRET not in await page.content()
    await page.get_by_role("button", name="Reveal…").click()
    await page.get_by_role("button", name="Reveal", exact=True).click()  # without a reason the browser objects
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.get_by_label("Why?").fill("the customer asks")
    await page.get_by_role("button", name="Reveal", exact=True).click()
    await expect(page.locator(".json").get_by_text(SECRET)).to_be_visible()
    await expect(page.locator(".attempt").get_by_text(SECRET).first).to_be_visible()
    assert await audited(world, job_id) == [("reveal", "the customer asks"), ("requeue", None)]
    await more(page, "Edit…")
    await page.get_by_label("Payload").fill('{"password": "hunter33"}')
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("dialog")).to_have_count(0)  # the toast of the requeue may still be there
    await visitor.toast("The job is changed")
    assert (await world.job(job_id)).payload == {"password": "hunter33"}
    await expect(page.locator(".json").get_by_text("[redacted]")).to_be_visible()
    await visitor.go("audit")
    await expect(page.get_by_text("the customer asks")).to_be_visible()
    assert "hunter" not in await page.content()


async def test_who_only_looks_is_not_offered_to_reveal_and_would_be_refused(visitor: Visitor, world: World) -> None:
    await world.change_settings(redact=["password"])
    job_id = await world.ended(None, "one", error="no", payload={"password": SECRET})
    page = await visitor.enter(f"job/{job_id}", GUEST)
    await expect(page.locator(".json").get_by_text("[redacted]")).to_be_visible()
    await expect(page.get_by_role("button", name="Reveal…")).to_have_count(0)
    for path, body in (("reveal", '{"reason": "x"}'), ("requeue", '{"payload": {}}'), ("cancel", "{}")):
        status = await page.evaluate(
            """([path, body]) => fetch(`../api/jobs/${path}`, {
                method: "POST", body, headers: { "x-rowlock-csrf": "1", "content-type": "application/json" },
            }).then(answer => answer.status)""",
            [f"{job_id}/{path}", body],
        )
        assert status == 403, path
    visitor.complaints.clear()  # the browser reports the refusal
    assert SECRET not in await page.content()
    assert await audited(world, job_id) == []


# ── Copy a job ──


async def test_a_job_is_copied_as_json_and_as_code(browser: Browser, sqlite_world: World) -> None:
    large = 9_223_372_036_854_775_807
    job_id = await sqlite_world.ended(None, "one", error="no", payload={"n": large, "s": "it's `${x}`"}, key="k")
    with Server.running(sqlite_world.place.url) as server:
        allowed = {"permissions": ["clipboard-read", "clipboard-write"]}
        async with visiting(browser, server.url, **allowed) as visitor:
            page = await visitor.enter(f"job/{job_id}")
            for name, wanted in (
                ("Copy the id", [job_id]),
                ("Copy the payload", [f'"n": {large}']),
                ("Copy as curl", ["curl ", f'"n":{large}', "/api/jobs/enqueue", r"it'\''s"]),
                ("Copy as Python", ["await jobs.enqueue(", f'"n": {large}', 'key="k"']),
                ("Copy as TypeScript", ["await fetch(", f'"n": {large}', "\\u0060\\u0024{x}\\u0060"]),
                ("Copy the error", ["no"]),
            ):
                await page.get_by_title(name, exact=True).click()
                text = await page.evaluate("() => navigator.clipboard.readText()")
                for part in wanted:
                    assert part in text, (name, text)


# ── Changes while the page is open ──


async def test_a_job_that_somebody_else_deletes_says_so_and_stays_in_sight(visitor: Visitor, world: World) -> None:
    job_id = await world.ended(None, "one", error="ValueError: no", payload={"n": 1})
    page = await visitor.enter(f"job/{job_id}")
    await expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    await expect(page.get_by_text("ValueError: no").first).to_be_visible()
    await page.get_by_role("button", name="More").click()
    await world.jobs.delete(job_id)
    await expect(page.get_by_text("This job has been deleted")).to_be_visible()
    await expect(page.get_by_text("ValueError: no").first).to_be_visible()
    for name in ("Requeue", "Cancel", "Delete…", "Clone…"):
        await expect(page.locator("main").get_by_role("button", name=name, exact=True)).to_have_count(0)


async def test_a_job_that_is_not_there_is_said_calmly(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    job_id = await sqlite_world.ended(None, "one", error="no")
    await sqlite_world.jobs.delete(job_id)
    await sqlite_visitor.enter(f"job/{job_id}")
    await expect(sqlite_visitor.page.get_by_role("heading", name="Job not found")).to_be_visible()
    async with asyncio.timeout(30):  # the browser complains about each of four answers
        while len(sqlite_visitor.complaints) < 4:  # noqa: ASYNC110 - nothing tells when it does
            await asyncio.sleep(0.05)
    assert all("404 (Not Found)" in complaint for complaint in sqlite_visitor.complaints)
    sqlite_visitor.complaints.clear()


@pytest.mark.parametrize("screen", ["jobs", "topics", "job"])
async def test_what_can_not_be_loaded_again_stays_and_says_how_old_it_is(
    sqlite_visitor: Visitor, sqlite_world: World, screen: str
) -> None:
    job_id = await sqlite_world.ended(None, "one", error="no")
    page = await sqlite_visitor.enter(f"job/{job_id}" if screen == "job" else screen)
    shown = page.locator(".attempt" if screen == "job" else "tbody tr").first
    await expect(shown).to_be_visible()
    await expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    all_but_the_stream = re.compile(r"/api/(?!events)")
    await page.route(all_but_the_stream, lambda route: route.fulfill(status=500, body='{"code": "internal"}'))
    if screen == "jobs":
        await sqlite_world.enqueue(None, topic="two", delay=3600)
        await page.get_by_role("button", name="1 new").click()
    elif screen == "job":
        await sqlite_world.jobs.requeue(job_id)  # the stream tells the page of it
    note = page.get_by_text("You see the data of")
    await expect(note).to_be_visible()
    await expect(shown).to_be_visible()
    await page.unroute(all_but_the_stream)
    await page.get_by_role("button", name="Try again").click()
    await expect(note).to_have_count(0)
    sqlite_visitor.complaints.clear()  # the browser reports that the server was in trouble


async def test_attempts_are_runs_and_not_claims(visitor: Visitor, world: World) -> None:
    """A worker that claims ahead and gives the job back has made no attempt."""
    job_id = await world.enqueue(None, topic="ahead", max_retries=1)
    store = await world.store()
    outcomes: list[tuple[Outcome, float | None]] = [(Released(), None), (Failed("no"), 0.5)]
    for outcome, ran in outcomes * 2:
        await store.move([job_id], Update(by="ann", edit=Edit(delay=0.0)))  # the retry is due now
        [claimed] = (await store.claim(claim_by("w1", "ahead", limit=1, start=ran is not None))).jobs
        await store.settle([settlement(claimed, outcome, ran=ran)])
    page = await visitor.enter("jobs?topic=ahead")
    row = page.locator("tbody tr")
    await expect(row.filter(has_text="failed")).to_be_visible()
    await expect(row.locator("td[data-label=tries]")).to_have_text("2")
    await visitor.go(f"job/{job_id}")
    await expect(page.get_by_text("after 2 attempts")).to_be_visible()
    await expect(page.locator(".attempt b")).to_have_text(["Attempt 2", "Attempt 1"])
