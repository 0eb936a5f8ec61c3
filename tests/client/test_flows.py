"""`jobs.flow`, `jobs.chain` and `jobs.flows` on both stores, and on every kind of connection that `conn=` takes: errors
are clear, and no flow is half written."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rowlock import Context, Every, Jobs, Node
from rowlock.core.flows import MAX_EDGES, MAX_JOBS, NewFlow
from rowlock.core.job import Status
from rowlock.core.lifecycle import Completed, Failed, Outcome
from rowlock.errors import (
    ChildrenWait,
    FlowKeyTaken,
    FlowNotFound,
    FlowRefused,
    InvalidInput,
    InvalidState,
    JobNotFound,
    KeyTaken,
    UnknownParent,
    WrongContext,
)
from rowlock.stores.base import Retention, Store
from rowlock.stores.callers import caller_for
from rowlock.stores.callers.work import InsertFlow
from tests.client.conn_kinds import Kind, done
from tests.databases import KINDS, Databases
from tests.runtime.running import started
from tests.stores.flow_maker import claim, end, make, node, tick
from tests.stores.harness import NOBODY, job
from tests.waiting import ended

FAILS = Failed("no", final=True)


@pytest.fixture(params=KINDS)
async def jobs(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> AsyncIterator[Jobs]:
    async with databases.at(request.param, tmp_path) as url, Jobs(url) as jobs:
        yield jobs


async def store_of(jobs: Jobs) -> Store:
    return await jobs._store()


async def run(jobs: Jobs, *ids: str, outcome: Outcome | None = None) -> None:
    """Check that exactly these jobs can be claimed, and run them to their end."""
    store = await store_of(jobs)
    runs = await claim(store, "mail", "bills")
    assert sorted(one.id for one in runs) == sorted(ids)
    for one in runs:
        await end(store, one, outcome)


async def nothing_is_there(jobs: Jobs) -> None:
    assert (await jobs.list()).total == 0
    assert (await jobs.flows.list()).items == []


# ── Errors: clear, and nothing is written ──


async def refused(jobs: Jobs, build: Callable[[Any], object], field: str, code: str) -> InvalidInput:
    """Check that `build` on a flow, or the enqueue of the flow, is refused. Return the error."""
    flow = jobs.flow("order")
    with pytest.raises(InvalidInput) as error:  # noqa: PT012 - where it is refused is not the point
        build(flow)
        await flow.enqueue()
    assert (error.value.field, error.value.code) == (field, code)
    await nothing_is_there(jobs)
    return error.value


async def test_a_cycle(jobs: Jobs) -> None:
    def build(flow: Any) -> None:
        a = flow.add(("mail", {}), name="a")
        b = flow.add(("mail", {}), name="b", after=a)
        c = flow.add(("mail", {}), name="c", after=b)
        flow.wait(a, c)

    error = await refused(jobs, build, "jobs[0].after", "cycle")
    assert "a → c → b → a" in str(error)


async def test_a_job_that_waits_for_itself(jobs: Jobs) -> None:
    def build(flow: Any) -> None:
        a = flow.add(("mail", {}), name="a")
        flow.wait(a, a)

    await refused(jobs, build, "jobs[0].after", "cycle")


async def test_a_parent_of_another_flow_by_its_node(jobs: Jobs) -> None:
    other = jobs.flow("other").add(("mail", {}))
    await refused(jobs, lambda flow: flow.add(("mail", {}), after=other), "after", "unknown_parent")


async def test_an_empty_flow(jobs: Jobs) -> None:
    await refused(jobs, lambda flow: None, "jobs", "empty")


async def test_too_many_jobs(jobs: Jobs) -> None:
    def build(flow: Any) -> None:
        for _ in range(MAX_JOBS + 1):
            flow.add(("mail", {}))

    error = await refused(jobs, build, "jobs", "too_many")
    assert "10,000" in str(error)


async def test_too_many_edges(jobs: Jobs) -> None:
    def build(flow: Any) -> None:
        first = [flow.add(("mail", {})) for _ in range(400)]
        for _ in range(MAX_EDGES // 400 + 1):
            flow.add(("mail", {}), after=first)

    await refused(jobs, build, "after", "too_many")


@pytest.mark.parametrize("when", ["a.status =", "b.status = 'failed'", "a.result.n > ", "", "a.color = 1", "5 > a"])
async def test_a_condition_that_does_not_parse(jobs: Jobs, when: str) -> None:
    def build(flow: Any) -> None:
        flow.add(("mail", {}), name="a")
        flow.add(("mail", {}), after="a", when=when)

    await refused(jobs, build, "when", "bad_rule")


async def test_an_unknown_or_deleted_or_pruned_parent(jobs: Jobs) -> None:
    store = await store_of(jobs)
    deleted, kept = [(await jobs.enqueue("mail")).id for _ in range(2)]
    await jobs.delete(deleted)
    pruned = (await jobs.enqueue("mail")).id
    await jobs.cancel(pruned)
    await store.prune(Retention(cancelled=0.0))
    for parent in (NOBODY, deleted, pruned):
        flow = jobs.flow("order")
        flow.add(("mail", {}), after=[kept, parent], name="a")
        flow.add(("mail", {}), after="a")
        with pytest.raises(UnknownParent) as error:
            await flow.enqueue()
        assert (error.value.parent, error.value.field) == (parent, "jobs[0].after")
    assert (await jobs.list()).total == 1
    assert (await jobs.flows.list()).items == []
    await jobs.delete(kept)  # no job waits for it


async def test_a_key_that_a_live_job_has(jobs: Jobs) -> None:
    holder = await jobs.enqueue("mail", key="k")
    flow = jobs.flow("order")
    flow.add(("mail", {}), name="a")
    draft: Any = {"topic": "mail", "key": "k"}
    flow.add(draft, after="a")
    with pytest.raises(FlowKeyTaken) as error:
        await flow.enqueue()
    assert (error.value.holder, error.value.field) == (holder.id, "jobs[1].key")
    assert (await jobs.list()).total == 1
    await jobs.delete(holder.id)
    assert len((await flow.enqueue()).jobs) == 2  # the enqueue may be tried again
    with pytest.raises(WrongContext):
        await flow.enqueue()


async def test_a_payload_and_a_result_that_do_not_fit_the_schema(jobs: Jobs) -> None:
    @jobs.task(max_retries=0)
    async def bills(amount: int, to: str) -> None: ...

    bad = ("bills", {"amount": "much", "to": "ann"})
    await refused(jobs, lambda flow: flow.add(bad), "jobs[0].payload.amount", "bad_arguments")

    def build(flow: Any) -> None:
        paid = flow.add(("mail", {}), name="paid")
        flow.add(("bills", {"amount": paid.result, "to": 5}))

    await refused(jobs, build, "jobs[1].payload.to", "bad_payload")
    flow = jobs.flow("order")
    paid: Any = flow.add(("mail", {}), name="paid")
    flow.add(bills.draft(paid.result, "ann"), name="bill")
    enqueued = await flow.enqueue()
    await run(jobs, enqueued.jobs["paid"].id, outcome=Completed("a text"))
    worker = await started(jobs)
    failed = await ended(jobs, enqueued.jobs["bill"].id)
    await worker.stop()
    assert failed.status is Status.FAILED
    assert "payload.amount: must be a whole number, not a text" in (failed.last_error or "")


async def test_a_result_outside_of_its_flow(jobs: Jobs) -> None:
    """Otherwise a job would get the placeholder of the result as if it were data."""

    @jobs.task
    async def count(n: int) -> int:
        return n

    @jobs.task
    async def show(what: Any) -> None: ...

    @jobs.task(max_retries=0)
    async def gather(ctx: Context) -> str:
        leaf: Node[int] = jobs.flow("order").add(count.draft(1))
        texts = []
        for call in (ctx.gather([show.draft(leaf.result)]), ctx.enqueue("show", {"what": leaf.result})):
            with pytest.raises(InvalidInput) as error:
                await call
            texts.append(str(error.value))
        return "; ".join(texts)

    leaf: Node[int] = jobs.flow("order").add(count.draft(1))
    calls: dict[str, Callable[[], Any]] = {
        "payload.n": lambda: count.enqueue(leaf.result),
        "payload.what": lambda: show.using(delay=5).enqueue(leaf.result),
        "payload.a[0]": lambda: jobs.enqueue("mail", {"a": [leaf.result]}),
        "jobs[1].payload.n": lambda: jobs.enqueue_many([count.draft(1), count.draft(leaf.result)]),
        "jobs[0].payload.a": lambda: jobs.enqueue_many([("mail", {"a": leaf.result})]),
        "payload.n ": lambda: jobs.schedules.put("s", count.draft(leaf.result), Every(60)),
    }
    for field, call in calls.items():
        with pytest.raises(InvalidInput, match=r"add this job to that flow, by flow\.add") as error:
            await call()
        assert error.value.field == field.strip()
    await nothing_is_there(jobs)
    started_by = await gather.enqueue()
    worker = await started(jobs)
    done = await ended(jobs, started_by.id)
    await worker.stop()
    assert [text.split(": ")[0] for text in str(done.result).split("; ")] == ["jobs[0].payload.what", "payload.what"]


async def test_a_new_payload_uses_only_results_that_can_be_filled_in(jobs: Jobs) -> None:
    flow = jobs.flow("order")
    paid: Any = flow.add(("mail", {}), name="paid")
    packed: Any = flow.add(("mail", {}), name="packed")
    bill = flow.add(("bills", {"amount": paid.result.amount}), after=packed)
    await flow.enqueue()
    await jobs.cancel(bill.id)
    wrong: list[tuple[Any, str]] = [
        ("nope.x", "unknown_parent"), (5, "bad_result"), ("packed", "unknown_parent"), ("bills", "unknown_parent"),
    ]  # fmt: skip
    for result, code in wrong:
        with pytest.raises(InvalidInput) as error:
            await jobs.requeue(bill.id, payload={"all": [{"$result": result}]})
        assert (error.value.field, error.value.code) == ("payload.all[0]", code)
    assert (await jobs.get(bill.id)).status is Status.CANCELLED
    plain = await jobs.enqueue("plain", delay=60)
    for result, _ in wrong:  # in a job without a flow, this is plain data
        await jobs.update(plain.id, payload={"all": {"$result": result}})
    await jobs.requeue(bill.id, payload={"all": [{"$result": "paid.amount"}]})
    await run(jobs, paid.id, packed.id, outcome=Completed({"amount": 7}))
    assert (await jobs.get(bill.id)).payload == {"all": [7]}
    with pytest.raises(InvalidInput, match="has filled it in already"):
        await jobs.update(bill.id, payload={"all": [{"$result": "paid.amount"}]})
    await run(jobs, bill.id)


# ── Steering ──


async def diamond(jobs: Jobs, **options: Any) -> dict[str, str]:
    flow = jobs.flow("order")
    flow.add(("mail", {}), name="a")
    flow.add(("mail", {}), name="b", after="a", **options)
    flow.add(("mail", {}), name="c", after="a", **options)
    flow.add(("mail", {}), name="d", after=["b", "c"], **options)
    enqueued = await flow.enqueue(by="ann")
    return {"flow": enqueued.id, **{name: one.id for name, one in enqueued.jobs.items()}}


async def statuses(jobs: Jobs, ids: dict[str, str]) -> dict[str, str]:
    graph = await jobs.flows.graph(ids["flow"])
    return {one.name: one.status or "" for one in graph.nodes}


async def test_a_flow_from_its_begin_to_its_end(jobs: Jobs) -> None:
    ids = await diamond(jobs)
    view = await jobs.flows.get(ids["flow"])
    assert (view.name, view.by, view.status, view.progress, view.jobs) == ("order", "ann", "running", 0.0, 4)
    await run(jobs, ids["a"])
    assert (await jobs.flows.get(ids["flow"])).progress == 25.0
    await run(jobs, ids["b"], ids["c"])
    graph = await jobs.flows.graph(ids["flow"])
    assert (graph.nodes[0].name, graph.nodes[-1].name) == ("a", "d")
    await run(jobs, ids["d"])
    view = await jobs.flows.get(ids["flow"])
    assert (view.status, view.progress) == ("completed", 100.0)
    assert [one.id for one in (await jobs.flows.list(name="order")).items] == [ids["flow"]]
    assert (await jobs.flows.list(name="other")).items == []


async def test_cancel_and_requeue_of_a_flow_and_of_a_branch(jobs: Jobs) -> None:
    ids = await diamond(jobs)
    assert await jobs.flows.cancel(ids["flow"], node="b", by="ann") == 2
    await tick(await store_of(jobs))
    assert await statuses(jobs, ids) == {"a": "pending", "b": "cancelled", "c": "blocked", "d": "cancelled"}
    assert await jobs.flows.cancel(ids["flow"]) == 2
    assert (await jobs.flows.get(ids["flow"])).status == "cancelled"
    assert await jobs.flows.requeue(ids["flow"]) == 4
    await tick(await store_of(jobs))
    assert await statuses(jobs, ids) == {"a": "pending", "b": "blocked", "c": "blocked", "d": "blocked"}
    await run(jobs, ids["a"], outcome=FAILS)
    assert (await jobs.flows.get(ids["flow"])).status == "failed"
    assert await jobs.flows.requeue(ids["flow"]) == 1  # the stopped jobs come back by themselves
    await tick(await store_of(jobs))
    assert await statuses(jobs, ids) == {"a": "pending", "b": "blocked", "c": "blocked", "d": "blocked"}
    await run(jobs, ids["a"])
    await run(jobs, ids["b"], ids["c"])
    await run(jobs, ids["d"])


@pytest.mark.parametrize("taken", ["a", "c"])
async def test_a_key_that_is_taken_refuses_the_requeue_of_a_flow(jobs: Jobs, taken: str) -> None:
    """Otherwise a job would run before its parent, which stays cancelled."""

    def job(name: str, **payload: Any) -> dict[str, Any]:
        return {"topic": "mail", "payload": payload, **({"key": "k"} if name == taken else {})}

    flow = jobs.flow("order")
    a: Any = flow.add(job("a"), name="a")
    c: Any = flow.add(job("c", x=a.result), name="c")
    d: Any = flow.add(job("d", x=c.result), name="d")
    ids = {"flow": (await flow.enqueue()).id}
    await run(jobs, a.id, outcome=FAILS)
    holder = await jobs.enqueue("mail", key="k", delay=3600)
    before = await statuses(jobs, ids)
    for branch in (None, "a"):
        with pytest.raises(KeyTaken) as error:
            await jobs.flows.requeue(ids["flow"], node=branch)
        assert (error.value.job_id, error.value.key, error.value.holder) == ({"a": a, "c": c}[taken].id, "k", holder.id)
    assert await statuses(jobs, ids) == before == {"a": "failed", "c": "cancelled", "d": "cancelled"}

    if taken == "c":  # a requeue of the parent alone is not refused for its children
        await jobs.requeue(a.id)
        assert f"its key was taken by job {holder.id}" in ((await jobs.get(c.id)).cancel_reason or "")
        assert (await jobs.events(c.id))[-1].event == "block_refused"
        await run(jobs, a.id, outcome=Completed(1))
        with pytest.raises(KeyTaken):
            await jobs.flows.requeue(ids["flow"])
        assert await statuses(jobs, ids) == {"a": "completed", "c": "cancelled", "d": "cancelled"}
    await jobs.cancel(holder.id)
    assert await jobs.flows.requeue(ids["flow"]) == (2 if taken == "c" else 1)
    if taken == "a":
        await run(jobs, a.id, outcome=Completed(1))
    await run(jobs, c.id, outcome=Completed(2))
    assert (await jobs.get(d.id)).payload == {"x": 2}
    await run(jobs, d.id)


async def test_a_hold_is_released_or_refused(jobs: Jobs) -> None:
    ids = await diamond(jobs, if_failed="hold")
    with pytest.raises(InvalidState):
        await jobs.flows.release(ids["b"])
    with pytest.raises(JobNotFound):
        await jobs.flows.release(NOBODY)
    await run(jobs, ids["a"], outcome=FAILS)
    assert (await jobs.flows.get(ids["flow"])).status == "held"
    await jobs.flows.release(ids["b"], by="ann", reason="it is fine")
    await tick(await store_of(jobs))
    assert await statuses(jobs, ids) == {"a": "failed", "b": "pending", "c": "blocked", "d": "blocked"}
    [entry] = await jobs.audit.list(limit=1)
    assert (entry.action, entry.by, entry.reason) == ("release_hold", "ann", "it is fine")


async def test_why_says_how_the_parent_of_a_held_job_has_ended(jobs: Jobs) -> None:
    flow = jobs.flow("order")
    first = flow.add(("mail", {}), name="first")
    flow.add(("mail", {}), after=first, when="first.result = 1", name="untaken")
    second = flow.add(("mail", {}), name="second")
    third = flow.add(("mail", {}), name="third")
    held = {name: flow.add(("mail", {}), after=name, if_failed="hold") for name in ("untaken", "second", "third")}
    await flow.enqueue()
    await jobs.cancel(second.id)
    store = await store_of(jobs)
    for one in await claim(store, "mail"):
        await end(store, one, FAILS if one.id == third.id else Completed(2))
    for name, how in (("untaken", "was not taken"), ("second", "was cancelled"), ("third", "has failed")):
        answer = (await jobs.why(held[name].id)).answer
        assert answer.startswith(f"It is held until a person decides: {name} (")
        assert answer.endswith(f") {how}.")


async def test_a_flow_is_deleted_as_a_whole(jobs: Jobs) -> None:
    ids = await diamond(jobs)
    with pytest.raises(ChildrenWait):
        await jobs.delete(ids["a"])
    with pytest.raises(FlowRefused):
        await jobs.flows.delete(ids["flow"])
    await run(jobs, ids["a"])
    await jobs.flows.cancel(ids["flow"])
    await tick(await store_of(jobs))
    assert await jobs.flows.delete(ids["flow"]) == 4
    with pytest.raises(FlowNotFound):
        await jobs.flows.get(ids["flow"])
    await nothing_is_there(jobs)


async def test_a_chain_behind_jobs_that_are_there(jobs: Jobs) -> None:
    first, second = [(await jobs.enqueue("bills", {"n": n})).id for n in range(2)]
    chain = await jobs.chain(first, second, ("mail", {"n": 1}), ("mail", {"n": 2}), name="after bills")
    one, other = chain.jobs.values()
    await run(jobs, first, second)
    await run(jobs, one.id)
    await run(jobs, other.id)
    with pytest.raises(InvalidInput) as error:
        await jobs.chain(("mail", {}), first)
    assert (error.value.field, error.value.code) == ("jobs[1]", "id_behind")


async def test_pages_of_flows(jobs: Jobs) -> None:
    made_ids = [(await jobs.chain(("mail", {}), ("mail", {}), if_failed="run")).id for _ in range(5)]
    page = await jobs.flows.list(limit=2)
    found = [one.id for one in page.items]
    while page.next is not None:
        page = await jobs.flows.list(limit=2, cursor=page.next)
        found += [one.id for one in page.items]
    assert found == made_ids[::-1]
    with pytest.raises(InvalidInput):
        await jobs.flows.list(cursor="nonsense")


async def test_the_sync_twin(jobs: Jobs) -> None:
    def build() -> str:
        flow = jobs.sync.flow("order")
        paid: Any = flow.add(("mail", {}), name="a")
        flow.add(("mail", {"x": paid.result}), name="b", if_failed="hold")
        enqueued = flow.enqueue(by="ann")
        assert jobs.sync.flows.get(enqueued.id).status == "running"
        assert len(jobs.sync.chain(("bills", {}), ("bills", {})).jobs) == 2
        return enqueued.jobs["a"].id

    parent = await asyncio.to_thread(build)
    store = await store_of(jobs)
    [one] = [one for one in await claim(store) if one.id == parent]
    await end(store, one, Completed({"n": 1}))
    [child] = await claim(store)
    assert child.payload == {"x": {"n": 1}}


# ── In the transaction of the caller ──


class Oops(Exception):
    pass


async def insert_flow(kind: Kind, flow: NewFlow) -> list[Any]:
    caller: Any = caller_for(kind.conn, kind.place.home)
    answers: list[Any] = await done(caller.carry(InsertFlow(flow, False, False)))
    return answers


async def kept(kind: Kind) -> tuple[int, int, int]:
    """Return how many jobs, flows and edges other connections see."""
    tables = ("_jobs", "_jobs_flows", "_jobs_edges")
    counts = [(await kind.place._fetch(f"SELECT count(*) FROM {{}}{table}"))[0][0] for table in tables]
    return counts[0], counts[1], counts[2]


CHAIN = {"a": node(), "b": node("a", payload={"x": {"$result": "a"}}), "c": node("b", key="k")}


@pytest.mark.sampled(4)
async def test_a_flow_commits_with_the_data(kind: Kind) -> None:
    flow = make(CHAIN)
    async with kind.transaction():
        await kind.order(1)
        answers = await insert_flow(kind, flow)
        assert await kept(kind) == (0, 0, 0)
    assert [one.status for one in answers] == [Status.PENDING, Status.BLOCKED, Status.BLOCKED]
    assert await kept(kind) == (3, 1, 2)
    store = kind.place.store
    for n, name in enumerate(CHAIN):
        [one] = await claim(store)
        assert one.id == flow.jobs[n].id, name
        if name == "b":
            assert one.payload == {"x": {"n": 5}}
        await end(store, one, Completed({"n": 5}))


@pytest.mark.sampled(4)
async def test_a_flow_rolls_back_with_the_data(kind: Kind) -> None:
    with suppress(Oops):
        async with kind.transaction():
            await insert_flow(kind, make(CHAIN))
            await kind.order(1)
            raise Oops
    assert await kept(kind) == (0, 0, 0)
    assert (await kind.place.committed())[0] == []


@pytest.mark.sampled(4)
async def test_a_savepoint_takes_a_flow_back(kind: Kind) -> None:
    async with kind.transaction():
        await kind.order(1)
        with suppress(Oops):
            async with kind.savepoint():
                await insert_flow(kind, make(CHAIN))
                raise Oops
        await insert_flow(kind, make({"a": node(), "b": node("a")}))
    assert await kept(kind) == (2, 1, 1)


@pytest.mark.sampled(4)
async def test_a_refused_flow_leaves_the_transaction_as_it_was(kind: Kind) -> None:
    """Nothing of the flow is written, and the caller's transaction goes on."""
    await kind.place.store.insert([holder := job(key="k")])
    async with kind.transaction():
        await kind.order(1)
        with pytest.raises(FlowKeyTaken) as error:
            await insert_flow(kind, make(CHAIN))
        assert error.value.holder == holder.id
        await kind.order(2)
        await insert_flow(kind, make({"a": node(), "b": node("a")}))
    assert (await kind.place.committed())[0] == [1, 2]
    assert await kept(kind) == (3, 1, 1)


async def test_a_flow_with_conn_does_not_wait_for_others(jobs: Jobs) -> None:
    """Jobs outside of the flow may be locked by a transaction that waits for this one: a deadlock."""
    there = await jobs.enqueue("mail")
    flow = jobs.flow("order")
    flow.add(("mail", {}), after=there.id)
    with pytest.raises(InvalidInput) as error:
        await flow.enqueue(conn=object())
    assert (error.value.field, error.value.code) == ("after", "outside")
