"""A database that refuses statements, and handlers and programs that behave in unexpected ways."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rowlock.context import Context
from rowlock.core.job import Job, Lane, Status
from rowlock.core.moves import Due, Expire
from rowlock.core.retry import Delays
from rowlock.errors import Cancelled, OutcomeUnknown, StoreBusy, StoreError, StoreUnavailable
from rowlock.jobs import Jobs
from rowlock.runtime.health import Health
from rowlock.stores.base import Claim, Claimed, Moved, Store
from tests.runtime.running import nothing, ran, started, working
from tests.waiting import ended, status_of, until

AT_ONCE = Delays((0.0,))


def failing(
    monkeypatch: pytest.MonkeyPatch, store: Any, verb: str, *errors: BaseException, after: bool = False
) -> list[str]:
    """Let the next calls of the verb fail with these errors; with `after`, the store carries the call out first. Return
    a list with an entry for each call."""
    real: Callable[..., Awaitable[Any]] = getattr(store, verb)
    left, calls = list(errors), []

    async def call(*arguments: Any, **options: Any) -> Any:
        calls.append(verb)
        if left and after:
            await real(*arguments, **options)
        if left:
            raise left.pop(0)
        return await real(*arguments, **options)

    monkeypatch.setattr(store, verb, call)
    return calls


# ── The database ──


@pytest.mark.parametrize("error", [StoreBusy, StoreUnavailable, StoreError, OutcomeUnknown])
@pytest.mark.parametrize("verb", ["settle", "progress"])
async def test_trouble_while_settling_changes_no_outcome(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, verb: str, error: type[StoreError]
) -> None:
    runs: list[int] = []

    @jobs.task
    async def work(ctx: Context, n: int) -> int:
        runs.append(n)
        ctx.progress(50, stage="half")
        return n

    await jobs.start()
    calls = failing(monkeypatch, working(jobs).claim_settle._store, verb, *[error("not now")] * 3)
    # The heartbeat thread, if it is quick, would write the reports of the handlers.
    monkeypatch.setattr(working(jobs)._heartbeat_thread, "said", lambda run: None)
    made = [answer.id for answer in await jobs.enqueue_many([work.draft(n) for n in range(5)])]
    results = [await ended(jobs, job_id) for job_id in made]
    assert [(job.status, job.result, job.version, job.retries) for job in results] == [
        (Status.COMPLETED, n, 1, 0) for n in range(5)
    ]
    assert sorted(runs) == list(range(5))
    assert len(calls) >= 1


async def test_a_worker_waits_longer_and_longer_although_reading_works(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens on a full disk: each settle with a claim fails, but the worker can read which jobs it holds."""

    @jobs.task
    async def work() -> str:
        return "stored at last"

    await jobs.start()
    claim_settle = working(jobs).claim_settle
    backoff, in_a_row = claim_settle._backoff, 0
    failed = backoff.failed

    def noting(problem: BaseException) -> float:
        nonlocal in_a_row
        in_a_row = max(in_a_row, backoff._failures + 1)
        return failed(problem)

    monkeypatch.setattr(backoff, "failed", noting)
    settle, full = claim_settle._store.settle, True

    async def refuse(settlements: Any, claim: Any = None) -> Any:
        if settlements and full:
            raise OutcomeUnknown("the disk is full")
        return await settle(settlements, claim)

    monkeypatch.setattr(claim_settle._store, "settle", refuse)
    made = await work.enqueue()
    await until(lambda: in_a_row >= 5)
    full = False
    assert (await ended(jobs, made.id)).result == "stored at last"
    await until(lambda: not claim_settle.in_trouble)


async def test_a_settle_whose_reply_is_lost_is_repeated_and_counts_once(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    @jobs.task
    async def work() -> str:
        return "once"

    await jobs.start()
    failing(monkeypatch, working(jobs).claim_settle._store, "settle", OutcomeUnknown("cut off"), after=True)
    job = await ran(jobs, work)
    assert (job.status, job.result, job.version) == (Status.COMPLETED, "once", 1)
    await until(lambda: not working(jobs).slots.runs)
    assert (await jobs.stats("work")).completed == 1


async def test_what_can_never_be_settled_fails_alone(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    @jobs.task
    async def work(n: int) -> int:
        return n

    await jobs.start()
    store = working(jobs).claim_settle._store
    settle = store.settle

    async def refuse_three(settlements: Any, claim: Any = None) -> Any:
        if any(one.transition.result == "3" for one in settlements):
            raise StoreError("I don't like threes")
        return await settle(settlements, claim)

    monkeypatch.setattr(store, "settle", refuse_three)
    made = [answer.id for answer in await jobs.enqueue_many([work.draft(n) for n in range(6)])]
    results = [await ended(jobs, job_id) for job_id in made]
    assert [job.result for job in results] == [0, 1, 2, None, 4, 5]
    assert results[3].status is Status.FAILED
    assert "I don't like threes" in (results[3].last_error or "")


async def test_a_lost_claim_is_given_back_even_while_stopping(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    work = jobs.register("work", nothing)
    worker = await started(jobs, poll=30, lease=600.0)
    failing(monkeypatch, worker.claim_settle._store, "claim", OutcomeUnknown("cut off"), after=True)
    failing(monkeypatch, worker.claim_settle._store, "held_by", StoreUnavailable("not yet"))
    made = await work.enqueue()
    await until(lambda: worker.claim_settle.claim_lost)
    await jobs.stop(grace=30)
    job = await jobs.get(made.id)
    assert (job.status, job.retries, job.locked_by) == (Status.PENDING, 0, None)


async def test_a_database_that_stays_away_is_not_asked_more_and_more_often(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round looks for the jobs of a claim whose reply was lost, another round settles. Both fail repeatedly."""
    over = asyncio.Event()

    @jobs.task
    async def work() -> None:
        await over.wait()

    await jobs.start(poll=0.05, lease=2)
    worker = working(jobs)
    made = await work.enqueue()
    await status_of(jobs, made.id, Status.PROCESSING)
    tries = 0

    async def away(*arguments: Any) -> Any:
        nonlocal tries
        tries += 1
        await asyncio.sleep(0.01)  # long enough that the other round is under way
        raise OutcomeUnknown("cut off")

    with monkeypatch.context() as patched:
        for verb in ("claim", "held_by", "settle"):
            patched.setattr(worker.claim_settle._store, verb, away)
        await until(lambda: worker.claim_settle.claim_lost)
        over.set()
        await asyncio.sleep(1.5)
        assert tries < 30  # every third of a second, two at a time
    assert (await ended(jobs, made.id)).status is Status.COMPLETED


async def test_a_lost_claim_that_was_cancelled_meanwhile_ends_cancelled(jobs: Jobs, elsewhere: Store) -> None:
    work = jobs.register("work", nothing)
    made = await work.enqueue()
    jobs._worker = worker = jobs.make_worker(lease=600.0)
    await elsewhere.claim(Claim(worker.name, (Lane("work"),), 1, 600.0))
    await jobs.cancel(made.id)
    await worker.start()
    worker.claim_settle.claim_lost = True
    worker.nudge()
    assert (await ended(jobs, made.id)).status is Status.CANCELLED


async def test_a_heartbeat_that_is_never_answered_is_sent_again(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()

    @jobs.task
    async def work() -> None:
        await gate.wait()

    await jobs.start(lease=1.5, poll=0.2)
    store = working(jobs)._heartbeat_thread._store
    heartbeat, calls = store.heartbeat, []

    async def silent_at_first(beats: Any, lease: float) -> Any:
        calls.append(lease)
        if len(calls) == 1:
            await asyncio.sleep(3600)
        return await heartbeat(beats, lease)

    monkeypatch.setattr(store, "heartbeat", silent_at_first)
    made = await work.enqueue()
    first = await status_of(jobs, made.id, Status.PROCESSING)

    async def renewed() -> bool:
        job = await jobs.get(made.id)
        return job.locked_until is not None and first.locked_until is not None and job.locked_until > first.locked_until

    await until(renewed)
    gate.set()
    assert (await ended(jobs, made.id)).version == 1


async def test_a_duty_that_is_refused_does_not_keep_the_others_from_being_done(
    jobs: Jobs, elsewhere: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    @jobs.task
    async def work() -> None: ...

    made = await work.enqueue()
    await elsewhere.claim(Claim("a dead worker", (Lane("work"),), 1, 0.05))
    worker = await started(jobs, lease=0.9, poll=0.1, maintenance=0.05)
    inner = worker._heartbeat_thread._store
    for verb in ("promote", "tidy"):
        failing(monkeypatch, inner, verb, *[StoreError("no permission")] * 100_000)
    move_due = inner.move_due

    async def all_but_expire(order: Due, limit: int = 500) -> list[Moved]:
        if isinstance(order, Expire):
            raise StoreError("no permission")
        return await move_due(order, limit)

    monkeypatch.setattr(inner, "move_due", all_but_expire)
    assert (await ended(jobs, made.id)).crashes == 1


async def test_rows_that_others_have_locked_are_not_asked_for_all_the_time(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.register("work", nothing)
    await jobs.start(poll=0.2)
    calls, done = [], asyncio.Event()

    async def contended(claim: Claim) -> Claimed:
        calls.append(claim)
        if len(calls) == 12:  # pauses of 10, 20, 40, … ms, cut short by polls, lead here; without pauses, at once
            done.set()
        return Claimed([], contended=True, next_due=None)

    monkeypatch.setattr(working(jobs).claim_settle._store, "claim", contended)
    loop = asyncio.get_running_loop()
    began = loop.time()
    working(jobs).nudge()
    await asyncio.wait_for(done.wait(), 60)
    assert loop.time() - began > 0.15


async def test_long_jobs_end_what_is_claimed_ahead(jobs: Jobs) -> None:
    """The worker has measured quick jobs. The measurement says nothing about the long jobs that hold all slots now."""
    gate = asyncio.Event()

    @jobs.task
    async def work(hold: bool = False) -> None:
        if hold:
            await gate.wait()

    await jobs.enqueue_many([work.draft() for _ in range(100)])
    await jobs.start(concurrency=2)
    worker = working(jobs)
    await until(lambda: worker.slots.lookahead() > 10)
    for _ in range(2):
        await work.enqueue(hold=True)
    await until(lambda: worker.running == 2 and worker.slots.lookahead() == 0)
    gate.set()


# ── Handlers ──


async def test_outcomes_that_make_no_sense_end_the_job(jobs: Jobs) -> None:
    class Forgetful(Cancelled):
        def __init__(self) -> None:
            pass

    def exits(job: Job, error: BaseException | str) -> float:
        raise asyncio.CancelledError

    @jobs.task
    async def strange_reason() -> None:
        raise Cancelled(ValueError("x"))  # type: ignore[arg-type]

    @jobs.task
    def forgetful() -> None:
        raise Forgetful

    @jobs.task(max_retries=1, retry=exits)
    async def strange_policy() -> None:
        raise ValueError("x")

    @jobs.task(max_retries=0)
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    assert (await ran(jobs, strange_reason)).status is Status.CANCELLED
    assert (await ran(jobs, forgetful)).status is Status.CANCELLED
    job = await ran(jobs, cancels_itself)
    told = "Max retries exceeded: The handler cancelled its own task"
    assert (job.status, job.last_error) == (Status.FAILED, told)
    made = await strange_policy.enqueue()

    async def waits() -> bool:
        job = await jobs.get(made.id)
        return job.status is Status.PENDING and job.retries == 1

    await until(waits)  # the default policy is used instead


async def test_whatever_a_handler_says_can_be_written(jobs: Jobs) -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    @jobs.task
    async def odd(ctx: Context) -> None:
        ctx.log("by number", level=logging.INFO)  # type: ignore[arg-type]
        ctx.log(Odd(), level="x" * 100)
        ctx.progress(float("nan"), stage=Odd(), message=Odd())  # type: ignore[arg-type]

    job = await ran(jobs, odd)
    assert (job.status, job.stage, job.message) == (Status.COMPLETED, "odd", "odd")
    assert [line.text for line in (await jobs.logs(job.id)).lines] == ["by number", "odd"]


async def test_a_handler_may_go_on_after_it_has_completed_its_job(jobs: Jobs) -> None:
    finished = asyncio.Event()

    @jobs.task
    async def tidy(ctx: Context) -> None:
        async with ctx.transaction():
            ctx.complete()
        await asyncio.sleep(1.5)  # longer than the worker needs to notice that the job is gone
        finished.set()

    await jobs.start(poll=0.2, lease=0.9)
    await ran(jobs, "tidy")
    await asyncio.wait_for(finished.wait(), 60)


async def test_who_asks_hears_that_the_worker_stops(jobs: Jobs) -> None:
    told, begun = threading.Event(), threading.Event()

    @jobs.task
    def looks(ctx: Context) -> None:
        begun.set()
        while not ctx.cancelled:
            threading.Event().wait(0.01)
        told.set()
        ctx.check()

    await jobs.start()
    made = await jobs.enqueue("looks")
    await until(begun.is_set)
    await jobs.stop(grace=1.0)
    assert told.is_set()
    assert (await jobs.get(made.id)).status is Status.PENDING


# ── Programs ──


def test_a_loop_that_ends_without_stop_gives_its_jobs_back(tmp_path: Path) -> None:
    jobs = Jobs(f"sqlite:///{tmp_path}/jobs.db")
    begun = threading.Event()

    @jobs.task
    async def work() -> None:
        begun.set()
        await asyncio.sleep(600)

    async def careless() -> str:
        await jobs.start(lease=600, poll=0.1)
        made = await work.enqueue()
        await until(begun.is_set)
        return made.id

    job_id = asyncio.run(careless())

    async def later() -> None:
        other = Jobs(f"sqlite:///{tmp_path}/jobs.db")
        job = await status_of(other, job_id, Status.PENDING)
        assert (job.retries, job.locked_by) == (0, None)
        await other.close()
        await jobs.start()  # the same Jobs object can be used again
        await jobs.stop(grace=0)
        await jobs.close()

    asyncio.run(later())


async def test_stop_while_it_starts(jobs: Jobs) -> None:
    work = jobs.register("work", nothing)
    starting = asyncio.create_task(jobs.start())
    await asyncio.sleep(0)
    await asyncio.gather(starting, jobs.stop(), jobs.stop())
    await jobs.stop()
    await jobs.start()
    assert (await ran(jobs, work)).status is Status.COMPLETED


def test_a_health_file_that_can_not_be_written_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    health = Health(file=str(tmp_path / "gone" / "health"), address=None, patience=30.0)
    for _ in range(3):
        health._written = 0.0
        health.update([1e18], 1)
    assert caplog.text.count("can't be written") == 1
    health.close()
