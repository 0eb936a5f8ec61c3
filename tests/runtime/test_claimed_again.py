"""A database that took over has lost the worker's claim, and gives it the same job under the same version once more.
The older run is lost, though the database's record can't tell it from the newer run."""

import asyncio
import threading
import time
from typing import Any

import pytest

from rowlock.context import Context, Interruption
from rowlock.core.job import Lane, Status
from rowlock.errors import LeaseLost, OutcomeUnknown, StoreUnavailable
from rowlock.jobs import Jobs
from rowlock.runtime.heartbeat import HeartbeatThread
from rowlock.runtime.run import Run
from rowlock.stores.base import Claim, Claimed
from tests.proof.witness import TablesAt
from tests.runtime.running import ran, working
from tests.stores.harness import FORGET_CLAIMS
from tests.waiting import ended, until


async def nothing(*_: object) -> None: ...


@pytest.fixture(autouse=True)
def _the_keeper_does_not_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the renewals of the heartbeat thread. It asks twice a second, and would learn that the lease is lost before
    the next claim."""
    monkeypatch.setattr(HeartbeatThread, "_renew_all", nothing)


async def claimed_again(jobs: Jobs, url: str) -> Run:
    """Claim the job of the only run once more, here or by a round of the worker. Return the newer run."""
    worker = working(jobs)
    [(key, older)] = worker.slots.runs.items()
    await TablesAt(url).execute(FORGET_CLAIMS)
    claimed = await worker.claim_settle._store.claim(Claim(worker.name, (Lane("work"),), 1, 600.0))
    worker._take(claimed.jobs, lease=30, marked=True, sent=time.monotonic())
    await until(lambda: worker.slots.runs.get(key, older) is not older)
    assert older.interruption is Interruption.LOST
    return worker.slots.runs[key]


def older_and_newer(jobs: Jobs, go_on: asyncio.Event) -> Any:
    """Return a task whose first run ends at once, and whose second run waits for `go_on`."""
    begun = []

    @jobs.task
    async def work() -> str:
        begun.append("run")
        if len(begun) == 1:
            return "the older"
        await go_on.wait()
        return "the newer"

    return work


def held_up(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, gate: asyncio.Event, error: Exception | None = None
) -> list[list[Any]]:
    """Let the first settle wait for the gate, and then fail with the error, if given. Return the list of the results
    that each call tries to settle."""
    store = working(jobs).claim_settle._store
    settle, tried = store.settle, list[list[Any]]()

    async def held(settlements: Any, claim: Any = None) -> Any:
        tried.append([one.transition.result for one in settlements])
        if len(tried) == 1:
            await gate.wait()
            if error is not None:
                raise error
        return await settle(settlements, claim)

    monkeypatch.setattr(store, "settle", held)
    return tried


async def test_the_older_run_is_stopped_and_the_newer_one_counts(jobs: Jobs, url: str) -> None:
    begun, ends = asyncio.Event(), []

    @jobs.task
    async def work() -> str:
        if begun.is_set():
            return "the newer"
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("stopped")
        return "the older"

    await jobs.start()
    made = await work.enqueue()
    await begun.wait()
    await TablesAt(url).execute(FORGET_CLAIMS)
    working(jobs).claim_settle.wake()
    job = await ended(jobs, made.id)
    assert (job.result, job.version, job.retries) == ("the newer", 1, 0)
    await until(lambda: not working(jobs).slots.runs)
    assert ends == ["stopped"]
    assert [event.event for event in await jobs.events(made.id)] == ["enqueued", "claimed", "completed"]


async def test_what_had_ended_is_not_settled_in_place_of_the_newer_one(
    jobs: Jobs, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database went away while the outcome was on its way to the database."""
    gate, go_on = asyncio.Event(), asyncio.Event()
    work = older_and_newer(jobs, go_on)
    await jobs.start(poll=0.05)
    tried = held_up(jobs, monkeypatch, gate, StoreUnavailable("failing over"))
    made = await work.enqueue()
    await until(lambda: len(tried) == 1)
    await claimed_again(jobs, url)
    gate.set()
    await until(lambda: not working(jobs).claim_settle.in_trouble and not working(jobs).claim_settle._finished)
    go_on.set()
    assert (await ended(jobs, made.id)).result == "the newer"
    assert tried == [['"the older"'], ['"the newer"']]
    await until(lambda: not working(jobs).slots.runs)


async def test_an_outcome_that_is_settled_with_the_claim_that_brings_the_job_again_is_lost(
    jobs: Jobs, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    @jobs.task
    async def work() -> str:
        begun.append("run")
        return "the older" if len(begun) == 1 else "the newer"

    await jobs.start(poll=0.05, concurrency=1)
    store = working(jobs).claim_settle._store
    settle, tries = store.settle, []

    async def finds_nothing(wish: Claim) -> Claimed:
        return Claimed([], contended=False, next_due=None)

    async def away_at_first(settlements: Any, claim: Any = None) -> Any:
        tries.append(claim)
        if len(tries) == 1:
            monkeypatch.setattr(store, "claim", finds_nothing)  # else a claim alone could bring the job again first
            await TablesAt(url).execute(FORGET_CLAIMS)
            raise StoreUnavailable("failing over")
        return await settle(settlements, claim)

    monkeypatch.setattr(store, "settle", away_at_first)
    job = await ran(jobs, work)
    assert (job.result, job.version) == ("the newer", 1)
    assert begun == ["run", "run"]
    assert tries[1] is not None  # the second try settles and claims in one call
    await until(lambda: not working(jobs).slots.runs)


async def test_a_settlement_that_arrives_after_all_does_not_make_us_forget_the_newer_run(
    jobs: Jobs, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, go_on = asyncio.Event(), asyncio.Event()
    work = older_and_newer(jobs, go_on)
    await jobs.start(poll=0.05)
    tried = held_up(jobs, monkeypatch, gate)
    made = await work.enqueue()
    await until(lambda: len(tried) == 1)
    newer = await claimed_again(jobs, url)
    gate.set()
    job = await ended(jobs, made.id)
    assert job.result == "the older"  # in the database, the lease was that run's; only one completion is recorded
    await until(lambda: working(jobs).claim_settle.under_way == 0)
    assert working(jobs).slots.runs == {newer.key: newer}
    go_on.set()
    await until(lambda: not working(jobs).slots.runs)
    assert (await jobs.get(made.id)).result == "the older"


async def test_one_that_has_not_started_makes_room(jobs: Jobs) -> None:
    gate, begun = asyncio.Event(), []

    @jobs.task
    async def hold() -> None:
        await gate.wait()

    @jobs.task
    async def work() -> None:
        begun.append("run")

    await jobs.start(concurrency=1)
    worker = working(jobs)
    await hold.enqueue()
    await until(lambda: worker.running == 1)
    made = await work.enqueue()
    [job] = (await worker.claim_settle._store.claim(Claim(worker.name, (Lane("work"),), 1, 600.0))).jobs

    def take() -> Run:
        worker._take([job], lease=30, marked=True, sent=time.monotonic())
        return worker.slots.runs[job.id, job.version]

    older, newer = take(), take()
    assert (older.concluded, newer.concluded) == (True, False)
    assert [*worker._ahead] == [newer]
    gate.set()
    assert (await ended(jobs, made.id)).status is Status.COMPLETED
    assert begun == ["run"]


async def test_what_the_older_run_says_and_commits_is_dropped(jobs: Jobs, url: str) -> None:
    """The worker drops also the writes that the database would accept."""
    begun, replaced, go_on = threading.Event(), threading.Event(), threading.Event()
    refusals: list[BaseException] = []
    tables = TablesAt(url)
    await tables.execute("CREATE TABLE orders (n integer)")

    def late(ctx: Context) -> None:
        ctx.log("from the older")
        with pytest.raises(LeaseLost) as refused, ctx.transaction() as conn:
            conn.execute("INSERT INTO orders VALUES (1)")
        refusals.append(refused.value)
        with pytest.raises(LeaseLost):
            ctx.sync.fence(None)

    @jobs.task
    def work(ctx: Context) -> str:
        if begun.is_set():
            ctx.log("from the newer")
            go_on.wait(60)
            return "the newer"
        begun.set()
        replaced.wait(60)
        try:
            late(ctx)
        finally:
            go_on.set()
        return "the older"

    await jobs.start()
    made = await work.enqueue()
    await asyncio.to_thread(begun.wait, 60)
    await claimed_again(jobs, url)
    replaced.set()
    assert (await ended(jobs, made.id)).result == "the newer"
    assert len(refusals) == 1
    assert await tables.fetch("SELECT n FROM orders") == []
    assert [line.text for line in (await jobs.logs(made.id)).lines] == ["from the newer"]


async def test_a_transaction_that_was_begun_before_is_rolled_back(jobs: Jobs, url: str) -> None:
    """Async and sync: the worker notices the loss while the transaction is open."""
    tables = TablesAt(url)
    await tables.execute("CREATE TABLE orders (n integer)")
    refusals: list[str] = []

    @jobs.task
    async def asynchronous(ctx: Context) -> None:
        try:
            async with ctx.transaction() as conn:
                written = conn.execute("INSERT INTO orders VALUES (1)")
                if asyncio.iscoroutine(written):
                    await written
                ctx.complete("the older")
                ctx._link.interruption = Interruption.LOST
        except LeaseLost:
            refusals.append("async")

    @jobs.task
    def synchronous(ctx: Context) -> None:
        try:
            with ctx.transaction() as conn:
                conn.execute("INSERT INTO orders VALUES (2)")
                ctx.complete("the older")
                ctx._link.interruption = Interruption.LOST
        except LeaseLost:
            refusals.append("sync")

    await jobs.start()
    made = [(await task.enqueue()).id for task in (asynchronous, synchronous)]
    await until(lambda: sorted(refusals) == ["async", "sync"])
    assert await tables.fetch("SELECT n FROM orders") == []
    assert [(await jobs.get(job_id)).status for job_id in made] == [Status.PROCESSING] * 2


async def test_a_lost_claim_is_given_back_although_a_run_that_was_lost_has_its_version(
    jobs: Jobs, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim that brought the job again got no answer, and the older run has not ended yet."""
    release, begun = threading.Event(), threading.Event()

    @jobs.task
    def work() -> str:
        if begun.is_set():
            return "the newer"
        begun.set()
        release.wait(60)
        return "the older"

    await jobs.start(poll=0.05)
    worker = working(jobs)
    made = await work.enqueue()
    await asyncio.to_thread(begun.wait, 60)
    [older] = worker.slots.runs.values()
    older.interrupt(Interruption.LOST)  # as the heartbeat thread does when it learns of the loss
    claim, claims = worker.claim_settle._store.claim, []

    async def unheard_at_first(wish: Claim) -> Claimed:
        claims.append(wish)
        if len(claims) == 1:
            await TablesAt(url).execute(FORGET_CLAIMS)
            await claim(wish)
            raise OutcomeUnknown("cut off")
        return await claim(wish)

    monkeypatch.setattr(worker.claim_settle._store, "claim", unheard_at_first)
    worker.nudge()
    job = await ended(jobs, made.id)
    assert (job.result, job.version) == ("the newer", 2)
    release.set()
