"""Lists of jobs and single ones: to find them, to watch them, to act on them."""

import json
import re

import pytest
from playwright.async_api import expect

from tests.http.harness import World
from tests.ui.browser import Visitor

LARGE = 9_223_372_036_854_775_807  # a number that JavaScript would round


@pytest.mark.quick
async def test_a_list_is_filtered_and_its_jobs_are_requeued_together(visitor: Visitor, world: World) -> None:
    failed = [await world.ended(None, "bills", error=f"Boom {n}", payload={"n": n}) for n in range(3)]
    await world.ended(None, "letters", error="other")
    page = await visitor.enter("jobs?status=failed")
    await expect(page.locator("tbody tr")).to_have_count(4)
    await page.keyboard.press("/")
    await page.keyboard.type("topic:bills")
    await page.keyboard.press("Enter")
    await expect(page.locator("tbody tr")).to_have_count(3)
    await expect(page).to_have_url(re.compile("topic=bills"))
    await page.get_by_label("Filter jobs").fill("payload.n:1")
    await page.keyboard.press("Enter")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await page.go_back()
    await expect(page.locator("tbody tr")).to_have_count(3)
    await page.get_by_label("Select the page").check()
    await page.get_by_role("button", name="Requeue").click()
    await expect(page.get_by_text("3 jobs will be requeued")).to_be_visible()
    await page.get_by_label("Why?").fill("fixed")
    await page.get_by_role("button", name="Requeue 3 jobs").click()
    await visitor.toast("3 jobs requeued")
    for job_id in failed:
        assert (await world.job(job_id)).status == "pending"


async def test_more_than_a_hundred_are_deleted_only_after_their_number_is_typed(
    sqlite_visitor: Visitor, sqlite_world: World
) -> None:
    await sqlite_world.jobs.enqueue_many([{"topic": "many", "payload": {"n": n}, "delay": 3600} for n in range(101)])
    page = await sqlite_visitor.enter("jobs?topic=many")
    await page.get_by_label("Select the page").check()
    await page.get_by_role("button", name="Select all 101 matching").click()
    await page.get_by_role("button", name="Delete").click()
    sure = page.get_by_role("button", name="Delete 101 jobs")
    await expect(sure).to_be_disabled()
    await page.get_by_label("Type 101").fill("100")
    await expect(sure).to_be_disabled()
    await page.get_by_label("Type 101").fill("101")
    await sure.click()
    await sqlite_visitor.toast("101 jobs deleted")
    await expect(page.get_by_text("No job matches")).to_be_visible()


@pytest.mark.quick
async def test_rows_are_reached_by_the_keyboard(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    ids = [await sqlite_world.enqueue(None, topic="keys", payload={"n": n}, delay=3600) for n in range(3)]
    page = await sqlite_visitor.enter("jobs?topic=keys")
    await expect(page.locator("tbody tr")).to_have_count(3)
    for key in ("j", "j", "x"):
        await page.keyboard.press(key)
    await expect(page.get_by_text("1 selected")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("k")
    await page.keyboard.press("c")
    await sqlite_visitor.toast("is cancelled")
    assert (await sqlite_world.job(ids[-1])).status == "cancelled"
    await page.get_by_role("button", name="Undo").click()
    await sqlite_visitor.toast("Undone")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="keys")).to_be_visible()
    await page.keyboard.press("g")
    await page.keyboard.press("w")
    await expect(page.get_by_role("heading", name="Workers", exact=True)).to_be_visible()
    await page.keyboard.press("Control+k")
    await page.keyboard.type(ids[0])
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(ids[0]))
    await page.keyboard.press("?")
    await expect(page.get_by_role("heading", name="Keyboard")).to_be_visible()


@pytest.mark.quick
async def test_what_happens_is_shown_without_asking(visitor: Visitor, world: World) -> None:
    first = await world.enqueue(None, topic="live", delay=3600)
    page = await visitor.enter("jobs?topic=live")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    await world.jobs.cancel(first)
    await expect(page.locator("tbody tr").filter(has_text="cancelled")).to_be_visible()
    await world.enqueue(None, topic="live", delay=3600)
    await page.get_by_role("button", name="1 new").click()
    await expect(page.locator("tbody tr")).to_have_count(2)


@pytest.mark.quick
async def test_a_job_is_watched_edited_cancelled_requeued_and_deleted(visitor: Visitor, world: World) -> None:
    job_id = await world.enqueue(None, topic="one", payload={"n": LARGE, "f": 1.5}, delay=3600)
    page = await visitor.enter(f"job/{job_id}")
    await expect(page.locator(".json").get_by_text(str(LARGE))).to_be_visible()
    await expect(page.get_by_text("It is not due before")).to_be_visible()
    await page.get_by_role("button", name="More").click()
    await page.get_by_role("button", name="Edit…", exact=True).click()
    await page.get_by_label("Payload").fill(json.dumps({"n": LARGE - 1})[:-1])
    await expect(page.get_by_text("line 1, column 26: expected a comma or }")).to_be_visible()
    await page.get_by_label("Payload").fill(json.dumps({"n": LARGE - 1}))
    await page.get_by_role("button", name="Save").click()
    await visitor.toast("The job is changed")
    assert (await world.job(job_id)).payload == {"n": LARGE - 1}
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await page.get_by_label("Why?").fill("not needed")
    await page.get_by_role("button", name="Cancel the job").click()
    await expect(page.locator(".hero").get_by_text("cancelled")).to_be_visible()
    await page.get_by_role("button", name="Requeue", exact=True).click()
    await expect(page.locator(".hero").get_by_text("pending")).to_be_visible()
    await page.get_by_role("button", name="More").click()
    await page.get_by_role("button", name="Delete…").click()
    await page.get_by_role("button", name="Delete", exact=True).click()
    await visitor.toast("is deleted")
    assert await world.find(job_id) is None


async def test_a_new_job_is_made_from_json(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    page = await sqlite_visitor.enter("new")
    await page.get_by_role("combobox", name="Topic").fill("made.here")
    await page.get_by_label("Payload").fill(f'{{"n": {LARGE}}}')
    await page.get_by_label("Priority").fill("explicit")
    await page.get_by_label("When").select_option("delay")
    await page.get_by_role("button", name="Enqueue").click()
    await sqlite_visitor.toast("The job is enqueued")
    [made] = (await sqlite_world.jobs.list()).items[:1]
    assert (made.topic, made.payload, made.priority) == ("made.here", {"n": LARGE}, 150)


async def test_jobs_are_exported(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    await sqlite_world.enqueue(None, topic="one", payload={"n": LARGE, "f": "=1+1"}, key="=cmd()")
    page = await sqlite_visitor.enter("jobs?topic=one")
    await expect(page.locator("tbody tr")).to_have_count(1)
    texts = {}
    for name in ("NDJSON", "CSV"):
        await page.get_by_role("button", name="Export").click()
        async with page.expect_download() as download:
            await page.get_by_role("button", name=name, exact=True).click()
        texts[name] = (await (await download.value).path()).read_text()
    [job] = [json.loads(line) for line in texts["NDJSON"].splitlines()]
    assert job["payload"]["n"] == LARGE
    assert "'=cmd()" in texts["CSV"]  # a spreadsheet must not run it
