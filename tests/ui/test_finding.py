"""Lists of jobs: to find, to page, to choose what is shown, and to come back to it."""

import pytest
from playwright.async_api import expect

from tests.http.harness import World
from tests.ui.browser import Visitor


@pytest.mark.proof
async def test_a_filter_is_typed_with_suggestions_and_saved_by_a_name(visitor: Visitor, world: World) -> None:
    await world.ended(None, "bills", error="ValueError: no money", payload={"user": {"id": 7}}, tags=["vip"])
    await world.ended(None, "bills", error="KeyError: 'x'", payload={"user": {"id": 8}})
    page = visitor.page
    await visitor.log_in()
    await page.keyboard.press("/")  # from wherever one is
    await expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    bar = page.get_by_label("Filter jobs")
    await expect(bar).to_be_focused()
    await expect(page.locator("tbody tr")).to_have_count(3)
    options = page.get_by_role("option")
    await bar.fill("topic:bi")
    await options.filter(has_text="topic:bills").click()
    await expect(page.locator("tbody tr")).to_have_count(2)
    await bar.fill("payload.us")
    await expect(options.filter(has_text="payload.user.id:")).to_be_visible()
    await page.keyboard.press("Tab")
    await page.keyboard.type("7")
    await page.keyboard.press("Enter")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await page.get_by_role("button", name="Remove payload user.id=7").click()
    await expect(page.locator("tbody tr")).to_have_count(2)
    await bar.fill("money")
    await options.filter(has_text="error:ValueError: no money").click()
    await expect(page.locator("tbody tr")).to_have_count(1)
    await bar.fill("tag:v")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await bar.fill("created after:2h")
    await page.keyboard.press("Enter")
    await expect(page.locator(".chip").filter(has_text="2h ago")).to_be_visible()
    await expect(page.locator("tbody tr")).to_have_count(1)

    await page.get_by_role("button", name="Save this view…").click()
    await page.get_by_label("Name").fill("No money")
    await page.get_by_role("button", name="Save", exact=True).click()
    await visitor.toast("“No money” is kept in this browser")
    await expect(page.get_by_role("button", name="Save this view…")).to_have_count(0)
    await page.get_by_role("button", name="Clear all").click()
    await expect(page.locator("tbody tr")).to_have_count(3)
    await page.reload()
    await page.get_by_role("link", name="No money").click()
    await expect(page.locator("tbody tr")).to_have_count(1)
    assert "created_from=2h" in page.url  # two hours before whenever it is looked at
    await page.get_by_role("button", name="Forget the view No money").click()
    await expect(page.get_by_role("link", name="No money")).to_have_count(0)
    await page.get_by_role("button", name="Undo").click()
    await expect(page.get_by_role("link", name="No money")).to_be_visible()


@pytest.mark.proof
async def test_pages_tabs_columns_and_times(visitor: Visitor, world: World) -> None:
    jobs = [{"topic": "many", "payload": {"n": n}, "delay": 3600, "key": f"key-{n}"} for n in range(60)]
    await world.jobs.enqueue_many(jobs)
    await world.ended(None, "many", error="no")
    page = visitor.page
    await visitor.log_in()
    await visitor.go("jobs?topic=many")
    await expect(page.locator("tbody tr")).to_have_count(50)
    await page.get_by_role("button", name="Older").click()
    await expect(page.locator("tbody tr")).to_have_count(11)
    await page.get_by_role("link", name="Newest").click()
    await expect(page.locator("tbody tr")).to_have_count(50)
    tabs = page.get_by_role("navigation", name="Status")
    await expect(tabs.get_by_role("link", name="pending")).to_contain_text("60")
    await tabs.get_by_role("link", name="failed").click()
    await expect(page.locator("tbody tr")).to_have_count(1)
    await tabs.get_by_role("link", name="pending").click()
    await expect(page.locator("tbody tr")).to_have_count(50)
    await page.get_by_role("button", name="Columns").click()
    await page.get_by_label("Key", exact=True).check()
    await page.get_by_label("Priority", exact=True).check()
    await page.get_by_label("Times").select_option("utc")
    await expect(page.get_by_role("columnheader", name="Key")).to_be_visible()
    await expect(page.locator("tbody tr").first).to_contain_text("key-59")
    await expect(page.locator("tbody time").first).to_contain_text("Z")
    await page.reload()
    await expect(page.locator("tbody tr").first).to_contain_text("key-59")
    await page.get_by_role("button", name="Export").click()
    async with page.expect_download() as download:
        await page.get_by_role("button", name="JSON", exact=True).click()
    assert (await (await download.value).path()).read_text().count('"topic": "many"') == 60


@pytest.mark.proof
async def test_pages_of_a_time_that_goes_on(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    """A cursor is for one question, so an age becomes a time on older pages. One of another question is dropped."""
    await sqlite_world.jobs.enqueue_many([{"topic": "many", "payload": {"n": n}} for n in range(60)])
    page = sqlite_visitor.page
    await sqlite_visitor.log_in()
    await sqlite_visitor.go("jobs?topic=many&createdFrom=2h")
    await expect(page.locator("tbody tr")).to_have_count(50)
    await page.get_by_role("button", name="Older").click()
    await expect(page.locator("tbody tr")).to_have_count(10)
    assert "createdFrom=20" in page.url
    await page.reload()
    await expect(page.locator("tbody tr")).to_have_count(10)
    await page.evaluate("location.hash = location.hash.replace('topic=many', 'topic=other')")
    await expect(page.get_by_text("No job meets this")).to_be_visible()
    assert "cursor=" not in page.url
    [refused] = sqlite_visitor.complaints
    assert "400" in refused
    sqlite_visitor.complaints.clear()


@pytest.mark.proof
async def test_live_is_paused_and_goes_on(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    first = await sqlite_world.enqueue(None, topic="live", delay=3600)
    page = sqlite_visitor.page
    await sqlite_visitor.log_in()
    await sqlite_visitor.go("jobs?topic=live")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await page.keyboard.press(".")
    await expect(page.get_by_role("status").filter(has_text="Paused")).to_be_visible()
    await sqlite_world.jobs.cancel(first)
    await page.get_by_role("button", name="Go on live").click()
    await expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    await expect(page.locator("tbody tr").filter(has_text="cancelled")).to_be_visible()


@pytest.mark.proof
async def test_numbers_and_charts_lead_to_jobs(visitor: Visitor, world: World) -> None:
    await world.ended(None, "bills", error="no")
    await world.ended(None, "letters")
    page = visitor.page
    await visitor.log_in()
    await page.get_by_role("button", name="24h").click()
    assert "range=24h" in page.url
    await page.get_by_role("link", name="Dead letters").click()
    await expect(page.locator("tbody tr")).to_have_count(1)
    await visitor.go("overview")
    await page.get_by_role("link", name="See why").click()
    await expect(page.get_by_role("heading", name="Failures")).to_be_visible()
    await page.get_by_role("link", name="no", exact=True).click()
    await expect(page.locator("tbody tr").filter(has_text="bills")).to_have_count(1)
    await visitor.go("overview")
    chart = page.locator(".u-over").first
    await chart.wait_for()
    box = await chart.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    await page.mouse.move(box["x"] + 20, middle)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] - 2, middle, steps=5)
    await page.mouse.up()
    await expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    assert "finished_from=" in page.url
    await page.keyboard.press("Control+k")
    await page.keyboard.type("letters")
    await page.keyboard.press("Enter")
    await expect(page.locator("tbody tr").filter(has_text="letters")).to_have_count(1)
