"""Flows on the page: a list, a graph that lives, and what an operator can do with a branch."""

import re
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.async_api import Browser, Locator, Page, expect

from rowlock.client.flows import EnqueuedFlow, Node
from rowlock.core.flows import NewChildren, derived_id
from rowlock.core.job import Job, new_job
from rowlock.core.lifecycle import Completed, Failed
from rowlock.tasks import Draft
from tests.http.harness import GUEST, Server, World
from tests.stores.harness import claim_by, settlement
from tests.ui.browser import Visitor, visiting
from tests.ui.test_job_actions import audited
from tests.ui.test_screens import EVIL, TOO_SMALL, TOO_WIDE

SMALL_PHONE = 360

# Pairs of boxes of the graph that overlap.
OVERLAPS = """() => {
    const boxes = [...document.querySelectorAll(".node")].map(one => [one.getBoundingClientRect(), one.innerText]);
    return boxes.flatMap(([a, one], n) => boxes.slice(n + 1)
        .filter(([b]) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
        .map(([, other]) => `${one} / ${other}`));
}"""


def draft(topic: str, **payload: Any) -> Draft[Any]:
    return Draft(topic, payload, {})


async def order(world: World, name: str = "order") -> EnqueuedFlow:
    """Enqueue this flow: pay → review or thanks; pay, stock → pack → ship → tell. ship is held if pack fails."""
    flow = world.jobs.flow(name)
    pay = flow.add(draft("charge"), name="pay")
    stock = flow.add(draft("stock"), name="stock")
    flow.add(draft("review"), after=pay, when="pay.result.amount > 100", name="review")
    flow.add(draft("mail"), after=pay, when="pay.result.amount <= 100", name="thanks")
    pack = flow.add(draft("pack"), after=[pay, stock], name="pack")
    ship = flow.add(draft("ship"), after=pack, if_failed="hold", name="ship")
    flow.add(draft("mail"), after=ship, name="tell")
    return await flow.enqueue(by="ann")


async def fan(world: World, count: int) -> EnqueuedFlow:
    flow = world.jobs.flow("embed all")
    first = flow.add(draft("split"))
    parts = [flow.add(draft("embed", n=n), after=first, name=f"part_{n}") for n in range(count)]
    flow.add(draft("index"), after=parts)
    return await flow.enqueue()


async def claimed(world: World, topic: str, count: int = 1) -> list[Job]:
    jobs = list((await (await world.store()).claim(claim_by("w1", topic, limit=count))).jobs)
    assert len(jobs) == count
    return jobs


async def finish(world: World, topic: str, result: Any = None, *, error: str | None = None, count: int = 1) -> None:
    """Run jobs of a topic to their end, as a worker does."""
    outcome = Completed(result) if error is None else Failed(error, final=True)
    jobs = await claimed(world, topic, count)
    await (await world.store()).settle([settlement(job, outcome, ran=0.5) for job in jobs])


async def gathered(world: World) -> tuple[str, str]:
    """Make a job that has started three jobs by ctx.gather; one has completed. Return its id, and its flow's id."""
    await world.enqueue(None, topic="report")
    [run] = await claimed(world, "report")
    flow_id = derived_id(run.id, "flow")
    jobs = [new_job(derived_id(run.id, 1, n), "chapter", {"n": n}) for n in range(3)]
    children = NewChildren(
        id=run.id, version=run.version, worker="w1", call=1, flow_id=flow_id, name="report", by="w1",
        jobs=[replace(one, flow_id=flow_id) for one in jobs],
    )  # fmt: skip
    await (await world.store()).start_children(children)
    await finish(world, "chapter")
    return run.id, flow_id


def graph(page: Page) -> Locator:
    return page.get_by_role("region", name="Graph")


def node(page: Page, name: str) -> Locator:
    """Return a box of the graph."""
    return page.locator(".node").filter(has=page.locator("b").get_by_text(name, exact=True))


def row(page: Page, name: str) -> Locator:
    """Return a row of a table."""
    return page.locator("tbody tr").filter(has=page.get_by_role("link", name=name, exact=True))


async def places(page: Page) -> dict[str, tuple[float, float]]:
    """Return the centre of each box that is drawn."""
    found: dict[str, tuple[float, float]] = {}
    for one in await page.locator(".node").all():
        box = await one.bounding_box()
        assert box is not None
        name = await one.locator("b").inner_text()
        found[name] = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    return found


async def choose(page: Page, where: Locator, action: str) -> None:
    """Choose an action on a node, from its menu."""
    await where.get_by_role("button", name="Actions on").click()
    await page.locator(".popover").get_by_role("button", name=action).click()


async def confirm(page: Page, button: str, reason: str) -> None:
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Why?").fill(reason)
    await dialog.get_by_role("button", name=button, exact=True).click()
    await expect(dialog).to_have_count(0)


# ── The list ──


async def test_flows_are_listed_and_found_by_name(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    page = await sqlite_visitor.enter()
    await page.keyboard.press("g")
    await page.keyboard.press("l")
    await expect(page.get_by_role("heading", name="No flows yet")).to_be_visible()
    await expect(page.locator("pre")).to_contain_text("jobs.flow(")
    assert await sqlite_visitor.violations() == []
    made = await order(sqlite_world)
    found = row(page, "order")
    await expect(found).to_contain_text("running")
    await expect(found).to_contain_text("by ann")
    await expect(found.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "0")
    await finish(sqlite_world, "charge", {"amount": 250})
    await expect(found.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "28")  # pay and thanks have ended
    await expect(found.get_by_title("1 completed")).to_be_visible()
    await expect(found.get_by_title("2 pending")).to_be_visible()

    # A new flow does not move the rows.
    await fan(sqlite_world, 3)
    await expect(row(page, "embed all")).to_have_count(0)
    await page.get_by_role("button", name="1 new flow").click()
    await expect(page.locator("tbody tr").first).to_contain_text("embed all")

    await page.keyboard.press("/")
    await page.keyboard.type("order")
    await expect(row(page, "embed all")).to_have_count(0)
    await expect(found).to_be_visible()
    await expect(page).to_have_url(re.compile("name=order"))
    await page.get_by_label("Flows of this name").fill("orde")  # a part of a name finds nothing
    await expect(page.get_by_role("heading", name="No flow has this name")).to_be_visible()
    await page.get_by_role("button", name="All flows").click()
    await page.get_by_role("heading", name="Flows", exact=True).click()
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="order", exact=True)).to_be_visible()
    await expect(page).to_have_url(re.compile(made.id))


async def test_the_list_has_pages(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    for n in range(52):
        flow = sqlite_world.jobs.flow(f"flow {n}")
        flow.add(draft("mail"))
        await flow.enqueue()
    page = await sqlite_visitor.enter("flows")
    await expect(page.locator("tbody tr")).to_have_count(50)
    await page.get_by_role("button", name="More").click()
    await expect(page.locator("tbody tr")).to_have_count(2)
    await expect(row(page, "flow 0")).to_be_visible()
    await page.get_by_role("button", name="Back").click()
    await expect(page.locator("tbody tr")).to_have_count(50)


# ── The graph ──


@pytest.mark.quick
async def test_a_graph_lives_and_a_held_job_is_released(visitor: Visitor, world: World) -> None:
    made = await order(world)
    page = await visitor.enter(f"flow/{made.id}")
    await expect(page.locator(".node")).to_have_count(7)
    await expect(node(page, "pay")).to_contain_text("pending")
    await expect(node(page, "review")).to_contain_text("if pay.result.amount > 100")
    await expect(page.get_by_role("progressbar", name="Progress")).to_have_attribute("aria-valuenow", "0")
    before = await places(page)
    await claimed(world, "stock")
    await expect(node(page, "stock")).to_contain_text("processing")
    await finish(world, "charge", {"amount": 250})
    await expect(node(page, "pay")).to_contain_text("completed")
    await expect(node(page, "review")).to_contain_text("pending")
    await expect(node(page, "thanks")).to_contain_text("not taken")
    await expect(row(page, "thanks")).to_contain_text("not taken")
    await expect(node(page, "pack")).to_contain_text("blocked")
    assert await places(page) == before  # no box moves while the flow runs

    jobs = {name: one.id for name, one in made.jobs.items()}
    await world.jobs.cancel(jobs["stock"])
    store = await world.store()
    stock = await world.job(jobs["stock"])
    await store.settle([settlement(stock, Failed("stopped", final=True))])
    await expect(node(page, "pack")).to_contain_text("cancelled")
    await expect(node(page, "ship")).to_contain_text("held")
    await expect(page.get_by_role("status").filter(has_text="1 job is held")).to_be_visible()
    await node(page, "ship").get_by_role("button", name="Release").click()
    await confirm(page, "Release", "it is in the shop")
    await visitor.toast("ship is released")
    await expect(node(page, "ship")).to_contain_text("pending")
    await expect(page.get_by_role("button", name="Release")).to_have_count(0)
    await finish(world, "ship")
    await expect(node(page, "tell")).to_contain_text("pending")
    assert ("release_hold", "it is in the shop") in await audited(world, jobs["ship"])
    await node(page, "tell").get_by_role("link").click()
    await expect(page.get_by_role("heading", name="mail")).to_be_visible()
    await expect(page).to_have_url(re.compile(jobs["tell"]))


async def test_branches_are_cancelled_and_requeued(visitor: Visitor, world: World) -> None:
    made = await order(world)
    page = await visitor.enter(f"flow/{made.id}")
    await choose(page, node(page, "pack"), "Cancel this branch…")
    await expect(page.get_by_role("dialog")).to_contain_text("3 jobs of pack and of what waits for it")
    await confirm(page, "Cancel the branch", "no stock")
    await visitor.toast("3 jobs are cancelled")
    for name in ("pack", "ship", "tell"):
        await expect(node(page, name)).to_contain_text("cancelled")
    await expect(node(page, "pay")).to_contain_text("pending")
    await choose(page, row(page, "pack"), "Requeue this branch…")
    await confirm(page, "Requeue", "found some")
    for name in ("pack", "ship", "tell"):
        await expect(node(page, name)).to_contain_text("blocked")
    assert ("requeue", "found some") in await audited(world, made.jobs["pack"].id)

    # One button runs again what failed, and what was cancelled because of it.
    await finish(world, "charge", error="no money")
    await expect(node(page, "pay")).to_contain_text("failed")
    await expect(node(page, "pack")).to_contain_text("cancelled")
    await page.get_by_role("button", name="Requeue failed").click()
    await expect(page.get_by_role("dialog")).to_contain_text("1 job runs again")
    await confirm(page, "Requeue", "paid now")
    await visitor.toast("1 job runs again")
    await expect(node(page, "pay")).to_contain_text("pending")
    await expect(node(page, "pack")).to_contain_text("blocked")

    # Delete is refused while a job of the flow is live.
    await page.get_by_role("button", name="More").click()
    await expect(page.get_by_role("button", name="Delete…")).to_be_disabled()
    await page.keyboard.press("Escape")
    await page.get_by_role("heading", name="order").click()
    await page.keyboard.press("c")
    await confirm(page, "Cancel the flow", "over")
    await expect(page.locator(".hero")).to_contain_text("cancelled")
    await page.get_by_role("button", name="More").click()
    await page.get_by_role("button", name="Delete…").click()
    await expect(page.get_by_role("dialog")).to_contain_text("The flow and its 7 jobs are removed for good")
    await confirm(page, "Delete", "a test")
    await visitor.toast("order is deleted")
    await expect(page.get_by_role("heading", name="No flows yet")).to_be_visible()
    await visitor.go(f"flow/{made.id}")
    await expect(page.get_by_role("heading", name="Flow not found")).to_be_visible()
    visitor.complaints[:] = [one for one in visitor.complaints if "404" not in one]  # the browser reports the 404


async def test_a_flow_that_is_deleted_meanwhile_stays_on_the_screen(
    sqlite_visitor: Visitor, sqlite_world: World
) -> None:
    made = await order(sqlite_world)
    page = await sqlite_visitor.enter(f"flow/{made.id}")
    await expect(node(page, "pay")).to_be_visible()
    await sqlite_world.jobs.flows.cancel(made.id)
    await sqlite_world.jobs.flows.delete(made.id)
    await expect(page.get_by_role("status").filter(has_text="This flow has been deleted")).to_be_visible()
    await expect(node(page, "pay")).to_be_visible()
    await expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)
    sqlite_visitor.complaints[:] = [one for one in sqlite_visitor.complaints if "404" not in one]


async def test_a_job_that_was_deleted_stays_in_the_graph(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    made = await order(sqlite_world)
    await finish(sqlite_world, "charge", {"amount": 7})
    page = await sqlite_visitor.enter(f"flow/{made.id}")
    await expect(node(page, "pay")).to_contain_text("completed")
    await sqlite_world.jobs.delete(made.jobs["pay"].id)
    await expect(node(page, "pay")).to_contain_text("not stored any more")
    await expect(node(page, "pay")).to_contain_text("completed")
    await expect(node(page, "pay").get_by_role("button")).to_have_count(0)
    assert len(await places(page)) == len(made.jobs)


async def test_a_thousand_children_are_drawn_as_one(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    made = await fan(sqlite_world, 1000)
    await finish(sqlite_world, "split")
    page = await sqlite_visitor.enter(f"flow/{made.id}")
    await expect(page.locator(".node")).to_have_count(3)
    many = page.locator(".node.many")
    await expect(many).to_contain_text("× 1,000")
    await expect(many).to_contain_text("1,000 pending")
    await finish(sqlite_world, "embed", count=10)
    await finish(sqlite_world, "embed", error="no model", count=2)
    await expect(many).to_contain_text("2 failed, 988 pending")
    widths = await many.locator(".tally-bar i").evaluate_all("all => all.map(one => [one.className, one.offsetWidth])")
    assert [what for what, _ in widths] == ["failed", "pending", "completed"]
    assert all(width >= 2 for _, width in widths)
    await many.get_by_role("button").click()
    table = page.get_by_role("region", name="Jobs")
    await expect(table.get_by_role("heading", name="1,000 jobs that are alike")).to_be_focused()
    await expect(table.locator("tbody tr")).to_have_count(50)
    await expect(row(page, "split")).to_have_count(0)
    await table.get_by_role("button", name="More").click()
    await expect(table.locator("tbody tr")).to_have_count(100)
    await table.get_by_role("link", name="failed 2").click()
    await expect(table.locator("tbody tr")).to_have_count(2)
    await page.reload()  # the address holds all of it
    await expect(table.get_by_role("heading", name="1,000 jobs that are alike")).to_be_visible()
    await expect(table.locator("tbody tr")).to_have_count(2)
    await table.get_by_role("button", name="All jobs").click()
    await table.get_by_role("link", name="All", exact=True).click()
    await expect(row(page, "split")).to_be_visible()
    await expect(row(page, "part_0")).to_contain_text("after split")


# ── Where boxes are drawn ──


async def test_boxes_stand_behind_what_they_wait_for_and_never_overlap(
    sqlite_visitor: Visitor, sqlite_world: World
) -> None:
    made = await order(sqlite_world)
    page = await sqlite_visitor.enter(f"flow/{made.id}")
    await expect(page.locator(".node")).to_have_count(7)
    at = await places(page)
    axis = 1 if at["pack"][1] > at["pay"][1] else 0  # layers are rows or columns
    for first, second in (("pay", "pack"), ("stock", "pack"), ("pack", "ship"), ("ship", "tell"), ("pay", "review")):
        assert at[first][axis] + 40 < at[second][axis], (first, second)
    assert await page.evaluate(OVERLAPS) == []

    # 200 jobs, no two of them alike, are all drawn.
    flow = sqlite_world.jobs.flow("large")
    added: list[Node[Any]] = []
    for n in range(200):
        after = [added[n - 20], added[n - 20 - n % 3]] if n >= 23 else None
        added.append(flow.add(draft(f"build{n % 9}"), after=after, name=f"target_{n}"))
    large = await flow.enqueue()
    await sqlite_visitor.go(f"flow/{large.id}")
    await page.get_by_role("button", name="Whole graph").click()
    await expect(page.locator(".node")).to_have_count(200)
    assert await page.evaluate(OVERLAPS) == []
    paths = await page.locator(".sheet > svg > path:not([class])").get_attribute("d")
    wanted = {(n - 20 - extra, n) for n in range(23, 200) for extra in (0, n % 3)}
    assert paths is not None
    assert paths.count("M") == len(wanted)


async def test_many_chains_that_are_alike_become_one(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    flow = sqlite_world.jobs.flow("chains")
    first = flow.add(draft("list"))
    for n in range(150):
        loaded = flow.add(draft("load"), after=first, name=f"load_{n}")
        flow.add(draft("store"), after=loaded, name=f"store_{n}")
    made = await flow.enqueue()
    page = await sqlite_visitor.enter(f"flow/{made.id}")
    await expect(page.locator(".node")).to_have_count(3)
    await expect(node(page, "load")).to_contain_text("× 150")
    await expect(node(page, "store")).to_contain_text("× 150")


async def test_ten_thousand_jobs_in_a_row_can_be_seen(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    """Only what is in sight is in the document."""
    flow = sqlite_world.jobs.flow("row")
    last = None
    for n in range(10_000):
        last = flow.add(draft("step"), after=last, name=f"step_{n}")
    made = await flow.enqueue()
    page = await sqlite_visitor.enter(f"flow/{made.id}")
    await expect(node(page, "step_0")).to_be_visible()
    assert await page.locator(".node").count() < 60
    await page.locator(".graph").evaluate("one => one.scrollTo(1e9, 1e9)")
    await expect(node(page, "step_9999")).to_be_visible()
    assert await page.locator(".node").count() < 60


async def test_a_graph_is_walked_by_the_keyboard(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    made = await order(sqlite_world)
    await finish(sqlite_world, "charge", {"amount": 250})
    await finish(sqlite_world, "stock")
    await finish(sqlite_world, "pack", error="no boxes")
    page = await sqlite_visitor.enter(f"flow/{made.id}")
    await expect(node(page, "ship")).to_contain_text("held")
    at = await places(page)
    forth = "ArrowDown" if at["pack"][1] > at["pay"][1] else "ArrowRight"
    back = {"ArrowDown": "ArrowUp", "ArrowRight": "ArrowLeft"}[forth]
    assert await page.locator(".node [tabindex='0'][data-box]").count() == 1  # one tab stop for all boxes
    await node(page, "pack").get_by_role("link").focus()
    await page.keyboard.press(forth)
    await expect(node(page, "ship").get_by_role("link")).to_be_focused()
    await page.keyboard.press(forth)
    await expect(node(page, "tell").get_by_role("link")).to_be_focused()
    await page.keyboard.press(back)
    await page.keyboard.press("Tab")
    await expect(node(page, "ship").get_by_role("button", name="Release")).to_be_focused()
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.locator(".popover")).to_be_visible()
    await page.keyboard.press("Escape")  # closes the menu, and leaves the screen as it is
    await expect(page.locator(".popover")).to_be_hidden()
    await expect(node(page, "ship").get_by_role("button", name="Actions on ship")).to_be_focused()
    await page.keyboard.press("Shift+Tab")
    await page.keyboard.press("Enter")
    await page.keyboard.type("as it is")  # the field for the reason has the focus
    await page.keyboard.press("Enter")
    await expect(node(page, "ship")).to_contain_text("pending")
    assert ("release_hold", "as it is") in await audited(sqlite_world, made.jobs["ship"].id)
    await node(page, "ship").get_by_role("link").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="ship")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("heading", name="order")).to_be_visible()


# ── The job's page ──


async def test_a_job_shows_what_it_waits_for_and_what_waits_for_it(visitor: Visitor, world: World) -> None:
    made = await order(world)
    await finish(world, "charge", {"amount": 7})
    await finish(world, "stock")
    page = await visitor.enter(f"job/{made.jobs['pack'].id}")
    card = page.get_by_role("region", name="Flow")
    await expect(card.get_by_role("list", name="Waits for", exact=True)).to_contain_text(re.compile("completed ?pay"))
    await expect(card.get_by_role("list", name="Waits for this job")).to_contain_text(
        re.compile("blocked ?ship ?held if one fails")
    )
    await finish(world, "pack", error="no boxes")
    held = card.get_by_role("list", name="Waits for this job")
    await expect(held).to_contain_text(re.compile("held ?ship"))
    await held.get_by_role("link", name="ship").click()
    await expect(card.get_by_role("list", name="Waits for", exact=True)).to_contain_text(re.compile("failed ?pack"))
    await card.get_by_role("button", name="Release…").click()
    await confirm(page, "Release", "boxes have come")
    await expect(page.locator(".hero")).to_contain_text("pending")
    await expect(card.get_by_role("button", name="Release…")).to_have_count(0)
    await card.get_by_role("link", name="order").click()
    await expect(page.locator(".node")).to_have_count(7)
    # A job without a flow has no such card.
    await visitor.go(f"job/{await world.enqueue(None, topic='alone')}")
    await expect(page.get_by_role("heading", name="alone")).to_be_visible()
    await expect(card).to_have_count(0)


async def test_a_job_shows_what_it_has_started(visitor: Visitor, world: World) -> None:
    job_id, flow_id = await gathered(world)
    page = await visitor.enter(f"job/{job_id}")
    started = page.get_by_role("list", name="Has started")
    await expect(started.get_by_role("listitem")).to_have_count(3)
    await expect(started.get_by_text("completed")).to_have_count(1)
    await finish(world, "chapter")
    await expect(started.get_by_text("completed")).to_have_count(2)
    await started.get_by_role("link", name="chapter").first.click()
    await expect(page.get_by_role("list", name="Started by")).to_contain_text(re.compile("processing ?report"))
    await visitor.go(f"flow/{flow_id}")
    await expect(page.locator(".node")).to_have_count(4)
    await expect(page.get_by_text("Dashed: started by the job itself")).to_be_visible()
    calls = await page.locator(".sheet .calls").get_attribute("d")
    assert calls is not None
    assert calls.count("M") == 3
    at = await places(page)
    assert at["report"] < at["chapter"]  # a job stands before the jobs that it has started
    await expect(row(page, "chapter").first).to_contain_text("started by report")


# ── Which callers may act, and what is shown ──


async def test_who_only_looks_steers_no_flow(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    made = await order(sqlite_world)
    for topic in ("charge", "stock"):
        await finish(sqlite_world, topic, {"amount": 7})
    await finish(sqlite_world, "pack", error="no boxes")
    page = await sqlite_visitor.enter("flows", GUEST)
    await row(page, "order").get_by_role("link").first.click()
    await expect(node(page, "ship")).to_contain_text("held")
    await expect(page.get_by_role("button", name=re.compile("^(Requeue|Cancel|Release|Actions)"))).to_have_count(0)
    await page.get_by_role("button", name="More").click()
    await expect(page.get_by_role("button", name="Delete…")).to_have_count(0)
    await page.get_by_role("link", name="Its jobs, as a list").click()
    await expect(page.locator("tbody tr")).to_have_count(len(made.jobs))


@pytest.mark.quick
async def test_nothing_of_a_flow_is_run(sqlite_visitor: Visitor, sqlite_world: World) -> None:
    page = await sqlite_visitor.enter()
    for text in EVIL:
        flow = sqlite_world.jobs.flow(text[:200])
        first = flow.add(draft("mail"), name="a")
        flow.add(draft("mail"), after=first, when=f"a.result.x = {EVIL[2]!r}", name="b")
        made = await flow.enqueue(by=text[:200])
        await sqlite_visitor.go(f"flow/{made.id}")
        await expect(node(page, "b")).to_contain_text("if a.result.x")
        await expect(page.locator("h1")).to_contain_text(text[:10])
        await sqlite_visitor.go(f"job/{made.jobs['b'].id}")
        await expect(page.get_by_role("region", name="Flow")).to_contain_text(text[:10])
    await sqlite_visitor.go("flows")
    await expect(page.locator("tbody tr")).to_have_count(len(EVIL))
    assert await page.evaluate("() => window.owned") is None


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, SMALL_PHONE])
async def test_flows_are_accessible(browser: Browser, sqlite_world: World, theme: str, width: int) -> None:
    made = await order(sqlite_world, "a very long name of a flow " * 5)
    await finish(sqlite_world, "charge", {"amount": 250})
    await finish(sqlite_world, "stock")
    await claimed(sqlite_world, "review")
    await finish(sqlite_world, "pack", error="no boxes")
    many = await fan(sqlite_world, 300)
    await finish(sqlite_world, "split")
    await finish(sqlite_world, "embed", count=50)
    await finish(sqlite_world, "embed", error="no", count=5)
    _, gathering = await gathered(sqlite_world)
    shape: dict[str, Any] = {"color_scheme": theme, "viewport": {"width": width, "height": 800}}
    with Server.running(sqlite_world.place.url) as server:
        async with visiting(browser, server.url, **shape) as visitor:
            page = await visitor.enter()

            async def is_fine(what: str) -> None:
                await expect(page.locator(".skeleton")).to_have_count(0)
                assert await visitor.violations() == [], what
                assert await page.evaluate(TOO_WIDE) == [], what
                if width == SMALL_PHONE:
                    assert await page.evaluate(TOO_SMALL) == [], what

            await visitor.go("flows")
            await expect(row(page, "embed all")).to_be_visible()
            await is_fine("flows")
            await visitor.go(f"flow/{made.id}")
            await expect(node(page, "ship")).to_contain_text("held")
            await is_fine("flow")
            await node(page, "ship").get_by_role("button", name="Actions on ship").click()
            await is_fine("menu")
            await page.locator(".popover").get_by_role("button", name="Cancel this branch…").click()
            await is_fine("cancel")
            await page.get_by_role("dialog").get_by_role("button", name="Back", exact=True).click()
            await visitor.go(f"flow/{many.id}")
            await page.locator(".node.many").get_by_role("button").click()
            await is_fine("many")
            await visitor.go(f"flow/{gathering}")
            await expect(node(page, "report")).to_be_visible()
            await is_fine("gathered")
            await visitor.go(f"job/{made.jobs['ship'].id}")
            await expect(page.get_by_role("button", name="Release…")).to_be_visible()
            await is_fine("job")
