"""Lists of jobs: to find, to page, to choose what is shown, and to come back to it."""

from datetime import datetime, timedelta

from playwright.async_api import expect

from tests.http.harness import World
from tests.ui.browser import Visitor


async def test_a_filter_is_typed_with_suggestions_and_saved_by_a_name(visitor: Visitor, world: World) -> None:
    await world.ended(None, "bills", error="ValueError: no money", payload={"user": {"id": 7}}, tags=["vip"])
    await world.ended(None, "bills", error="KeyError: 'x'", payload={"user": {"id": 8}})
    page = await visitor.enter()
    await page.keyboard.press("/")  # it works on every screen
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
    await visitor.toast("“No money” is saved in this browser")
    await expect(page.get_by_role("button", name="Save this view…")).to_have_count(0)
    await page.get_by_role("button", name="Clear all").click()
    await expect(page.locator("tbody tr")).to_have_count(3)
    await page.reload()
    await page.get_by_role("link", name="No money").click()
    await expect(page.locator("tbody tr")).to_have_count(1)
    assert "created_from=2h" in page.url  # two hours before the view is looked at, whenever that is
    await page.get_by_role("button", name="Remove the view No money").click()
    await expect(page.get_by_role("link", name="No money")).to_have_count(0)
    await page.get_by_role("button", name="Undo").click()
    await expect(page.get_by_role("link", name="No money")).to_be_visible()


async def test_pages_tabs_columns_and_times(visitor: Visitor, world: World) -> None:
    jobs = [{"topic": "many", "payload": {"n": n}, "delay": 3600, "key": f"key-{n}"} for n in range(60)]
    await world.jobs.enqueue_many(jobs)
    await world.ended(None, "many", error="no")
    page = await visitor.enter("jobs?topic=many")
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


async def test_pages_of_a_time_that_goes_on(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    """A cursor is for one query, so an age becomes a time on older pages. A cursor of another query is dropped."""
    await sqlite_world.jobs.enqueue_many([{"topic": "many", "payload": {"n": n}} for n in range(60)])
    page = await sqlite_visitor.enter("jobs?topic=many&created_from=2h")
    await expect(page.locator("tbody tr")).to_have_count(50)
    await page.get_by_role("button", name="Older").click()
    await expect(page.locator("tbody tr")).to_have_count(10)
    assert "created_from=20" in page.url
    await page.reload()
    await expect(page.locator("tbody tr")).to_have_count(10)
    await page.evaluate("location.hash = location.hash.replace('topic=many', 'topic=other')")
    await expect(page.get_by_text("No job matches")).to_be_visible()
    assert "cursor=" not in page.url
    [refused] = sqlite_visitor.complaints
    assert "400" in refused
    sqlite_visitor.complaints.clear()


async def test_live_is_paused_and_goes_on(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    first = await sqlite_world.enqueue(None, topic="live", delay=3600)
    page = await sqlite_visitor.enter("jobs?topic=live")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await page.keyboard.press(".")
    await expect(page.get_by_role("status").filter(has_text="Paused")).to_be_visible()
    await sqlite_world.jobs.cancel(first)
    await page.get_by_role("button", name="Resume live").click()
    await expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    await expect(page.locator("tbody tr").filter(has_text="cancelled")).to_be_visible()


async def test_numbers_and_charts_lead_to_jobs(visitor: Visitor, world: World) -> None:
    await world.ended(None, "bills", error="no")
    await world.ended(None, "letters")
    page = await visitor.enter()
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


async def test_a_search_goes_on_among_older_jobs(visitor: Visitor, world: World) -> None:
    needle = await world.enqueue(None, topic="old", payload={"user": {"id": 7}}, delay=3600)
    other = await world.enqueue(None, topic="old", payload={"user": {"id": 9}}, delay=3600)
    for _ in range(6):
        await world.jobs.enqueue_many([{"topic": "new", "payload": {"user": {"id": 1}}, "delay": 3600}] * 1000)
    page = await visitor.enter("jobs?payload=user.id%3D7")
    await expect(page.get_by_text("No match among the newest jobs")).to_be_visible()
    await expect(page.get_by_text("Searched jobs back to ")).to_be_visible()
    await page.get_by_role("button", name="Search older").click()
    await expect(page.locator("tbody tr")).to_have_count(1)
    await expect(page.locator(f"a[href='#/job/{needle}']")).to_be_visible()
    await expect(page.get_by_text("1 job found. All jobs were searched.")).to_be_visible()
    await world.jobs.cancel(needle)  # the page also follows jobs that a search found
    await expect(page.locator("tbody tr").filter(has_text="cancelled")).to_be_visible()
    # The search finds a few jobs, and goes on among older ones.
    newest = await world.enqueue(None, topic="old", payload={"user": {"id": 9}}, delay=3600)
    await visitor.go("jobs?payload=user.id%3D9")
    await expect(page.get_by_text("1 job found. Searched jobs back to ")).to_be_visible()
    await page.get_by_role("button", name="Search older").click()
    for job_id in (newest, other):
        await expect(page.locator(f"a[href='#/job/{job_id}']")).to_be_visible()
    await expect(page.get_by_role("button", name="Search older")).to_have_count(0)
    # The search goes to the end and finds nothing.
    await visitor.go("jobs?payload=user.id%3D8")
    await page.get_by_role("button", name="Search older").click()
    await expect(page.get_by_text("No job matches")).to_be_visible()
    await expect(page.get_by_text("All jobs were searched.")).to_be_visible()


async def test_every_term_can_be_typed_and_the_tabs_count_what_is_left(visitor: Visitor, world: World) -> None:
    await world.ended(None, "mail", error="ValueError: no", payload={"n": 1})
    done = await world.ended(None, "mail", payload={"n": 1})
    await world.enqueue(None, topic="mail", payload={"n": 2}, delay=9999, key="k-1", scope="user", tags=["vip"])
    await world.enqueue("u-7", topic="bills", payload={"n": 2}, delay=9999)
    page = await visitor.enter("jobs")
    bar, rows = page.get_by_label("Filter jobs"), page.locator("tbody tr")
    await expect(rows).to_have_count(5)
    cases = {
        "status:failed": 1, "status:pending": 3, "topic:mail": 3, "key:k-1": 1, "scope:user": 1, "tag:vip": 1,
        "scope_id:u-7": 1, "scopeId:u-7": 1, f"id:{done}": 1, "status:failed topic:mail": 1,
        'topic:mail error:"ValueError: no"': 1, "STATUS:Completed topic=mail": 1, "payload.n:2 topic:bills": 1,
    }  # fmt: skip
    for text, count in cases.items():
        await bar.fill(text)
        await page.keyboard.press("Enter")
        await expect(rows).to_have_count(count)
        await visitor.go("jobs")
        await expect(rows).to_have_count(5)
    await bar.fill("status:fialed")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("There is no status “fialed”")).to_be_visible()
    await bar.fill("status:failed status:com")
    await page.get_by_role("option").filter(has_text="completed").click()
    await expect(rows).to_have_count(2)
    tabs = page.get_by_role("navigation", name="Status")
    await expect(tabs.get_by_role("link", name="pending")).to_contain_text("3")  # this counts all jobs
    await bar.fill("payload.n:2")
    await page.keyboard.press("Enter")
    await expect(tabs.get_by_role("link", name="pending")).to_contain_text("2")
    await expect(tabs.get_by_role("link", name="failed")).to_contain_text("0")
    await tabs.get_by_role("link", name="pending").click()
    await expect(rows).to_have_count(2)


async def test_jobs_of_a_time_range(visitor: Visitor, world: World) -> None:
    old = await world.enqueue(None, topic="times", delay=9999)
    [before] = await world.place.fetch("SELECT min(created) FROM _jobs")
    ago = before[0] - (3 * 3600_000_000 if world.place.kind == "sqlite" else timedelta(hours=3))
    value = ago if world.place.kind == "sqlite" else f"'{ago.isoformat()}'"
    await world.place.fetch(f"UPDATE _jobs SET created = {value}, stray = true WHERE id = '{old}'")
    new = await world.enqueue(None, topic="times", delay=9999)
    page = await visitor.enter("jobs?topic=times")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(2)
    for choice, count, found in (("Last hour", 1, new), ("Last 24 hours", 2, old), ("Last 15 minutes", 1, new)):
        await page.locator(".finding .menu > button").click()
        await page.get_by_role("button", name=choice, exact=True).click()
        await expect(page.locator(".finding .menu > button")).to_have_text(choice)
        await expect(rows).to_have_count(count)
        await expect(page.locator(f"a[href='#/job/{found}']")).to_be_visible()
    assert await visitor.violations() == []
    await page.locator(".finding .menu > button").click()
    await page.get_by_role("button", name="Custom range…").click()
    await page.get_by_label("Until").fill((datetime.now().astimezone() - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M"))
    await page.get_by_role("button", name="Show them").click()
    await expect(rows).to_have_count(1)
    await expect(page.locator(f"a[href='#/job/{old}']")).to_be_visible()
    await expect(page.locator(".finding .menu > button")).to_have_text("Custom range")
    await page.locator(".finding .menu > button").click()
    await page.get_by_role("button", name="Any time").click()
    await expect(rows).to_have_count(2)
