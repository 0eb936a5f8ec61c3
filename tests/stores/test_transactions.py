"""Store.transaction: what a handler writes is committed only while its run holds the lease."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any

import pytest
from msgspec import structs

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Answer, Completed
from rowlock.core.moves import Cancel, CancelTimeout, Rescue
from rowlock.errors import ConnectionRefused, LeaseLost, StoreError
from rowlock.stores import reading
from rowlock.stores.base import Beat, Guard, Hold, Store
from rowlock.stores.callers import caller_for
from tests.stores.harness import Harness, claim_by, ids, mark, settlement
from tests.stores.processes import real_job

COLOURS = ["async", "sync"]


@pytest.fixture
async def real_store(real_store: Harness) -> Harness:
    """Return a harness whose database also has a table of the application."""
    await real_store.execute("CREATE TABLE orders (n integer PRIMARY KEY)")
    return real_store


@asynccontextmanager
async def fenced(store: Store, guard: Guard, colour: str = "async", longest: float = 30.0) -> AsyncIterator[Any]:
    if colour == "async":
        async with store.transaction(guard, longest=longest) as conn:
            yield conn
    else:
        with store.sync_transaction(guard, longest=longest) as conn:
            yield conn


async def execute(conn: Any, statement: str) -> None:
    answer = conn.execute(statement)
    if isawaitable(answer):
        await answer


async def order(conn: Any, n: int) -> None:
    await execute(conn, f"INSERT INTO orders VALUES ({n})")


async def write(store: Store, guard: Guard, colour: str = "async", n: int = 1) -> None:
    """Write as a handler does in its transaction."""
    async with fenced(store, guard, colour) as conn:
        await order(conn, n)


async def orders(harness: Harness) -> list[int]:
    return [n for (n,) in await harness.fetch("SELECT n FROM orders ORDER BY n")]


async def claimed(harness: Harness, worker: str = "w1") -> Job:
    await harness.insert(new := real_job())
    [run] = (await harness.store.claim(claim_by(worker))).jobs
    assert run.id == new.id
    return run


def guard(run: Job, *, completes: bool = False) -> Guard:
    done = settlement(run, Completed({"ok": True}), ran=1.0) if completes else None
    return Guard(run.id, run.version, done, run.locked_by)


# ── Commit, or not ──


@pytest.mark.parametrize("colour", COLOURS)
async def test_a_run_that_holds_its_lease_commits(real_store: Harness, colour: str) -> None:
    run = await claimed(real_store)
    for n in (1, 2):
        await write(real_store.store, guard(run), colour, n)
    assert await orders(real_store) == [1, 2]
    assert await real_store.job(run.id) == run


async def _rescued(harness: Harness, run: Job) -> None:
    await harness.store.move_due(Rescue(by="m1", backoff=[0.0], workers=["w1"]))


async def _rescued_and_claimed(harness: Harness, run: Job) -> None:
    await _rescued(harness, run)
    [again] = (await harness.store.claim(claim_by("w2"))).jobs
    assert (again.id, again.version) == (run.id, 2)


async def _forgotten_and_claimed(harness: Harness, run: Job) -> None:
    await harness.forget_claims()
    [again] = (await harness.store.claim(claim_by("w2"))).jobs
    assert (again.id, again.version) == (run.id, 1)


async def _cancelled_by_timeout(harness: Harness, run: Job) -> None:
    await harness.store.move([run.id], Cancel(by="ann"))
    assert ids(await harness.store.move_due(CancelTimeout(by="m1", grace=0.0))) == [run.id]


async def _completed(harness: Harness, run: Job) -> None:
    await harness.store.settle([settlement(run, Completed())])


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("completes", [False, True])
@pytest.mark.parametrize(
    "lose", [_rescued, _rescued_and_claimed, _forgotten_and_claimed, _cancelled_by_timeout, _completed]
)
async def test_a_zombie_commits_nothing(
    real_store: Harness, lose: Callable[[Harness, Job], Awaitable[None]], completes: bool, colour: str
) -> None:
    run = await claimed(real_store)
    await lose(real_store, run)
    before = await real_store.rows()
    with pytest.raises(LeaseLost) as lost:
        await write(real_store.store, guard(run, completes=completes), colour)
    assert (lost.value.job_id, lost.value.version) == (run.id, 1)
    assert await orders(real_store) == []
    assert await real_store.rows() == before


@pytest.mark.parametrize("colour", COLOURS)
async def test_a_completion_commits_with_the_writes(real_store: Harness, colour: str) -> None:
    run = await claimed(real_store)
    async with fenced(real_store.store, goes := guard(run), colour) as conn:
        await order(conn, 1)
        goes.completion = settlement(run, Completed({"ok": True}), ran=1.0)  # decided inside the block
    assert await orders(real_store) == [1]
    done = await real_store.job(run.id)
    assert (done.status, done.version, done.result) == (Status.COMPLETED, 1, {"ok": True})
    assert await real_store.story(run.id) == ["enqueued", "claimed", "completed"]
    assert (await real_store.store.stats()).completed == 1
    [verdict] = (await real_store.store.settle([goes.completion])).verdicts
    assert verdict.answer is Answer.ALREADY
    with pytest.raises(LeaseLost):
        await write(real_store.store, goes, colour, 2)
    assert await orders(real_store) == [1]


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("completes", [False, True])
async def test_a_step_s_result_commits_with_the_writes(real_store: Harness, colour: str, completes: bool) -> None:
    run = await claimed(real_store)
    async with fenced(real_store.store, goes := guard(run, completes=completes), colour) as conn:
        await order(conn, 1)
        goes.checkpoint = mark(run, "pay", "succeeded", result='{"paid":1}', percent=50.0)  # decided inside the block
    assert await orders(real_store) == [1]
    [step] = await reading.steps(real_store.store, run.id)
    assert (step.name, step.state, step.result) == ("pay", "succeeded", {"paid": 1})
    job = await real_store.job(run.id)
    assert (job.step, job.progress) == ("pay", 100.0 if completes else 50.0)
    assert (job.status is Status.COMPLETED) == completes


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("lose", [_rescued, _rescued_and_claimed, _forgotten_and_claimed, _cancelled_by_timeout])
async def test_a_zombie_stores_no_result(
    real_store: Harness, lose: Callable[[Harness, Job], Awaitable[None]], colour: str
) -> None:
    run = await claimed(real_store)
    await lose(real_store, run)
    before = await real_store.rows()
    goes = structs.replace(guard(run), checkpoint=mark(run, "pay", "succeeded"))
    with pytest.raises(LeaseLost):
        await write(real_store.store, goes, colour)
    assert await orders(real_store) == []
    assert await real_store.rows() == before


@pytest.mark.parametrize("colour", COLOURS)
async def test_a_result_is_rolled_back_with_the_writes(real_store: Harness, colour: str) -> None:
    run = await claimed(real_store)

    async def handler() -> None:
        goes = structs.replace(guard(run), checkpoint=mark(run, "pay", "succeeded"))
        async with fenced(real_store.store, goes, colour) as conn:
            await order(conn, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await handler()
    assert (await orders(real_store), await reading.steps(real_store.store, run.id)) == ([], [])
    assert await real_store.job(run.id) == run


@pytest.mark.parametrize("colour", COLOURS)
async def test_an_exception_rolls_back_and_goes_on(real_store: Harness, colour: str) -> None:
    run = await claimed(real_store)

    async def handler() -> None:
        async with fenced(real_store.store, guard(run, completes=True), colour) as conn:
            await order(conn, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await handler()
    assert await orders(real_store) == []
    assert await real_store.job(run.id) == run
    await write(real_store.store, guard(run), colour)


@pytest.mark.parametrize("colour", COLOURS)
async def test_an_error_of_the_applications_own_passes_through(real_store: Harness, colour: str) -> None:
    run = await claimed(real_store)
    await real_store.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(Exception, match=r"(?i)unique") as said:
        await write(real_store.store, guard(run), colour)
    assert not isinstance(said.value, StoreError)
    await write(real_store.store, guard(run), colour, 2)
    assert await orders(real_store) == [1, 2]


async def test_cancellation_rolls_back(real_store: Harness) -> None:
    run = await claimed(real_store)
    inside = asyncio.Event()

    async def handler() -> None:
        async with fenced(real_store.store, guard(run, completes=True)) as conn:
            await order(conn, 1)
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(handler())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await orders(real_store) == []
    assert await real_store.store.heartbeat([Beat(run.id, 1)], 60.0) == [Hold.KEPT]
    await write(real_store.store, guard(run))


@pytest.mark.parametrize("colour", COLOURS)
async def test_a_transaction_left_half_way_is_noticed(real_store: Harness, colour: str) -> None:
    run = await claimed(real_store)

    async def handler(*statements: str) -> None:
        async with fenced(real_store.store, guard(run, completes=True), colour) as conn:
            for statement in statements:
                await execute(conn, statement)

    with pytest.raises(ConnectionRefused) as refused:
        await handler("INSERT INTO orders VALUES (1)", "ROLLBACK")
    assert refused.value.code == "no_transaction"
    with pytest.raises(ConnectionRefused) as refused:
        await handler("INSERT INTO orders VALUES (2)", "COMMIT", "BEGIN", "INSERT INTO orders VALUES (3)")
    assert refused.value.code == "no_transaction"
    assert await orders(real_store) == [2]  # the handler's own COMMIT wrote this
    assert await real_store.job(run.id) == run


@pytest.mark.parametrize("colour", COLOURS)
async def test_a_job_can_be_enqueued_on_it(real_store: Harness, colour: str) -> None:
    run = await claimed(real_store)
    home = await real_store.store.home()
    child, orphan = real_job(), real_job()

    async def handler(goes: Guard, *new: Any) -> None:
        async with fenced(real_store.store, goes, colour) as conn:
            answers = caller_for(conn, home).insert(new, repeat=False, notify=False)
            assert len(await answers if isawaitable(answers) else answers) == 1

    await handler(guard(run), child)
    with pytest.raises(LeaseLost):
        await handler(Guard(run.id, 9), orphan)
    assert set(await real_store.store.read([child.id, orphan.id], Job)) == {child.id}


@pytest.mark.parametrize("colour", COLOURS)
async def test_a_savepoint_inside(real_store: Harness, colour: str) -> None:
    run = await claimed(real_store)
    async with fenced(real_store.store, guard(run), colour) as conn:
        await order(conn, 1)
        await execute(conn, "SAVEPOINT mine")
        await order(conn, 2)
        await execute(conn, "ROLLBACK TO SAVEPOINT mine")
    assert await orders(real_store) == [1]


async def test_sync_code_needs_no_open_store(real_store: Harness) -> None:
    run = await claimed(real_store)
    await write(real_store.new_store(), guard(run), "sync")
    assert await orders(real_store) == [1]


# ── Races ──


@pytest.mark.parametrize("completes", [False, True])
async def test_a_commit_against_a_rescue_and_the_next_claim(real_store: Harness, completes: bool) -> None:
    """Either the writes are committed when the rescue takes the job away, or they never will be."""
    operator = await real_store.another()
    for n in range(50):
        await real_store.insert(real_job(topic := f"t{n}"))
        [run] = (await real_store.store.claim(claim_by("w1", topic))).jobs
        held, robbed = await asyncio.gather(
            _commits(real_store, guard(run, completes=completes), n), _robs(real_store, operator, run, n)
        )
        assert (n in await orders(real_store)) == held
        after = await real_store.job(run.id)
        if completes:
            assert (after.status is Status.COMPLETED, after.version) == (held, 1 if held else 2)
        if robbed is not None:
            assert robbed == held  # all commits came before the rescue
            assert (after.version, after.locked_by) == (2, "w2")


async def _commits(harness: Harness, goes: Guard, n: int) -> bool:
    try:
        await write(harness.store, goes, n=n)
    except LeaseLost:
        return False
    return True


async def _robs(harness: Harness, operator: Store, run: Job, n: int) -> bool | None:
    """Take the job away. Return True if the writes were there right afterwards; None if the rescue failed."""
    for _ in range(n % 10):  # begin at another moment in each round
        await operator.heartbeat([Beat(real_job().id, 1)], 1.0)
    rescued = await operator.move_due(
        Rescue(by="m1", backoff=[0.0], workers=["w1"])
    )  # also rescues jobs of earlier rounds
    if run.id not in {one.id for one in rescued}:
        return None
    written = n in await orders(harness)
    claim = await operator.claim(claim_by("w2", run.topic))
    while not claim.jobs:  # a zombie that checks its fence locks the row for a moment
        assert claim.contended
        claim = await operator.claim(claim_by("w2", run.topic))
    return written
