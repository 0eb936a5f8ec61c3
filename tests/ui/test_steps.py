"""The steps of a job: what is shown of them, how they move, and a job that starts again from one of them."""

import re
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from rowlock.core.job import Job
from rowlock.core.lifecycle import Completed, Failed
from rowlock.stores import reading
from tests.http.harness import GUEST, Server, World
from tests.http.test_steps import PIPELINE, half_done
from tests.stores.harness import claim_by, mark, settlement
from tests.ui.browser import Visitor, visiting
from tests.ui.test_job_actions import audited, more
from tests.ui.test_screens import PHONE, TOO_SMALL, TOO_WIDE


def row(page: Page, title: str) -> Locator:
    return (
        page.get_by_role("region", name="Steps").get_by_role("listitem").filter(has=page.get_by_text(title, exact=True))
    )


async def begun(world: World) -> Job:
    """Return a running job of a declared pipeline that has stored nothing yet."""
    await world.jobs.templates.create(PIPELINE)
    await world.enqueue(None, topic="pipe", payload={"n": 1})
    [run] = (await (await world.store()).claim(claim_by("w1", "pipe"))).jobs
    return run


async def said(world: World, run: Job, *marks: tuple[str, str, dict[str, Any]]) -> None:
    store = await world.store()
    await store.checkpoint([mark(run, name, state, **more) for name, state, more in marks])


@pytest.mark.quick
async def test_steps_move_while_the_job_runs(visitor: Visitor, world: World) -> None:
    run = await begun(world)
    page = visitor.page
    bar = page.get_by_role("region", name="Steps").get_by_role("img")
    await visitor.log_in()
    await visitor.go(f"job/{run.id}")
    await expect(bar).to_have_attribute("aria-label", "0 of 3 steps done")
    await expect(row(page, "Fetch it")).to_contain_text("pending")
    await said(world, run, ("fetch", "running", {"position": 1}))
    await expect(row(page, "Fetch it")).to_contain_text("running")
    await expect(bar).to_have_attribute("aria-label", "0 of 3 steps done, now Fetch it")
    await said(
        world, run, ("fetch", "succeeded", {"position": 1, "result": '{"pages":9007199254740993}', "percent": 20.0})
    )
    await expect(bar).to_have_attribute("aria-label", "1 of 3 steps done")
    await expect(row(page, "Fetch it")).to_contain_text("succeeded")
    # The same name again: of the job's row, only the time changes.
    await said(world, run, ("embed", "succeeded", {"position": 2, "result": "[1.5]"}))
    await expect(row(page, "Embed it")).to_contain_text("succeeded")
    await said(world, run, ("embed", "running", {"position": 3, "n": 2}))
    await expect(row(page, "Embed it #2")).to_contain_text("running")
    await said(world, run, ("embed", "pending", {"position": 3, "n": 2, "retries": 1, "error": "Busy: 503"}))
    await expect(row(page, "Embed it #2")).to_contain_text("to retry")
    await expect(row(page, "Embed it #2")).to_contain_text("1 of 3 retries")
    await expect(row(page, "Embed it #2").get_by_text("Busy: 503").first).to_be_visible()
    await expect(row(page, "tell")).to_contain_text("not cancelable")
    # The keyboard unfolds a result, and its numbers are exact.
    await row(page, "Fetch it").locator("summary").press("Enter")
    await expect(row(page, "Fetch it").locator(".json")).to_contain_text("9007199254740993")
    await (await world.store()).settle([settlement(run, Completed({"done": True}))])
    await expect(page.locator(".hero").get_by_text("completed")).to_be_visible()
    await expect(row(page, "tell")).to_contain_text("skipped")
    await expect(row(page, "Fetch it").locator(".json")).to_be_visible()  # the result is still open
    await expect(page.locator(".timeline").get_by_text("step succeeded: fetch")).to_be_visible()
    await expect(page.get_by_role("button", name="Requeue from")).to_have_count(0)


async def test_a_job_starts_again_from_a_step_after_a_look_at_what_is_dropped(visitor: Visitor, world: World) -> None:
    job_id = await half_done(world)
    page, dialog = visitor.page, visitor.page.get_by_role("dialog")
    await visitor.log_in()
    await visitor.go(f"job/{job_id}")
    await expect(row(page, "Embed it #2")).to_contain_text("3 of 3 retries")
    await expect(row(page, "Embed it #2").get_by_text("503: busy").last).to_be_visible()  # a failed step is open
    await expect(row(page, "tell").get_by_role("button")).to_have_count(0)  # the step was never called
    await page.get_by_role("button", name="Requeue from Embed it", exact=True).click()
    await expect(dialog.get_by_role("heading")).to_have_text("Requeue from “Embed it”?")
    await expect(dialog).to_contain_text("1 stored result is dropped, and these steps run again: Embed it.")
    await expect(dialog).to_contain_text("keep their results and don't run again: Fetch it.")
    assert await visitor.violations() == []
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    assert (await world.job(job_id)).status == "failed"
    await page.get_by_role("button", name="Requeue from Embed it", exact=True).press("Enter")
    await page.keyboard.type("another model")  # the field for the reason has the focus
    await page.keyboard.press("Enter")
    await visitor.toast("is pending again")
    await expect(row(page, "Embed it")).to_contain_text("pending")
    await expect(row(page, "Fetch it")).to_contain_text("succeeded")
    assert [(step.name, step.state) for step in await reading.steps(await world.store(), job_id)] == [
        ("fetch", "succeeded")
    ]
    assert await audited(world, job_id) == [("requeue", "another model")]
    await visitor.go("audit")
    await expect(page.get_by_text("dropped steps: embed, embed#2").first).to_be_visible()


async def test_a_job_starts_again_from_the_start_and_not_if_it_has_run_meanwhile(
    visitor: Visitor, world: World
) -> None:
    job_id = await half_done(world)
    page, dialog = visitor.page, visitor.page.get_by_role("dialog")
    await visitor.log_in()
    await visitor.go(f"job/{job_id}")
    await more(page, "Requeue from the start…")
    await expect(dialog).to_contain_text("2 stored results are dropped, and these steps run again: Fetch it, Embed it.")
    store = await world.store()
    await world.jobs.requeue(job_id)  # another operator was faster
    [run] = (await store.claim(claim_by("w2", "pipe"))).jobs
    await store.settle([settlement(run, Failed("again", final=True))])
    await dialog.get_by_role("button", name="Requeue", exact=True).click()
    await visitor.toast("it has run again since version 1")
    assert all("409 (Conflict)" in complaint for complaint in visitor.complaints)
    visitor.complaints.clear()
    assert len(await reading.steps(store, job_id)) == 2
    await expect(page.get_by_text("Attempt 2")).to_be_visible()
    await more(page, "Requeue from the start…")
    await dialog.get_by_role("button", name="Requeue", exact=True).click()
    await visitor.toast("is pending again")
    assert await reading.steps(store, job_id) == []


async def test_who_only_looks_sees_steps_and_requeues_none(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    job_id = await half_done(sqlite_world)
    page = sqlite_visitor.page
    await sqlite_visitor.log_in(GUEST)
    await sqlite_visitor.go(f"job/{job_id}")
    await expect(row(page, "Fetch it")).to_contain_text("succeeded")
    await expect(page.get_by_role("button", name="Requeue from")).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, PHONE])
async def test_steps_are_accessible(browser: Browser, sqlite_world: World, theme: str, width: int) -> None:
    job_id = await half_done(sqlite_world, error="x" * 300)
    running = await sqlite_world.enqueue(None, topic="pipe")
    [run] = (await (await sqlite_world.store()).claim(claim_by("w1", "pipe"))).jobs
    await said(sqlite_world, run, ("fetch", "running", {"position": 1}))
    shape: dict[str, Any] = {"color_scheme": theme, "viewport": {"width": width, "height": 850}}
    with Server.running(sqlite_world.place.url) as server:
        async with visiting(browser, server.url, **shape) as visitor:
            await visitor.log_in()
            for shown in (job_id, running):
                await visitor.go(f"job/{shown}")
                await expect(row(visitor.page, "Fetch it")).to_be_visible()
                for one in await visitor.page.locator(".steps summary").all():
                    await one.click()
                assert await visitor.violations() == []
                assert await visitor.page.evaluate(TOO_WIDE) == []
                if width == PHONE:
                    assert await visitor.page.evaluate(TOO_SMALL) == []


async def test_a_thousand_steps_are_folded(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    await sqlite_world.enqueue(None, topic="pipe")
    store = await sqlite_world.store()
    [run] = (await store.claim(claim_by("w1", "pipe"))).jobs
    await store.checkpoint([mark(run, "part", "succeeded", n=n, position=n, result="1") for n in range(1, 1001)])
    await store.settle([settlement(run, Failed("no", final=True))])
    page = sqlite_visitor.page
    await sqlite_visitor.log_in()
    await sqlite_visitor.go(f"job/{run.id}")
    await expect(row(page, "part#1000")).to_be_visible()
    await expect(row(page, "part#950")).to_have_count(0)
    await page.get_by_role("button", name="950 earlier steps").click()
    await expect(row(page, "part#1000")).to_be_visible()
    await expect(page.get_by_role("region", name="Steps").get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("1,000 of 1,000 steps done")
    )
