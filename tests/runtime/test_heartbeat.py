"""The worker keeps leases while a handler blocks the event loop, and notices lost leases."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

import pytest

from rowlock.context import Context
from rowlock.core.job import Job, Lane, Status
from rowlock.core.moves import Rescue
from rowlock.core.retry import Delays
from rowlock.errors import LeaseLost
from rowlock.jobs import Jobs
from rowlock.runtime import claim_settle, heartbeat
from rowlock.runtime import run as run_module
from rowlock.runtime.heartbeat import _GOODBYE, HeartbeatThread
from rowlock.runtime.run import Run, write_reports
from rowlock.stores import open_store
from rowlock.stores.base import Claim, Hold, Moved, NewLine, Progress, Store, WorkerInfo
from tests.closing import opening
from tests.runtime.running import nothing, ran, started, working
from tests.waiting import ended, status_of, until

T = TypeVar("T")
BACKOFF = [0.0]


async def test_a_handler_that_blocks_the_loop_keeps_its_lease(jobs: Jobs, url: str) -> None:
    outlived = threading.Event()

    @jobs.task
    async def blocking() -> bool:
        return outlived.wait(60)

    made = await blocking.enqueue()

    async def rescue_until_outlived(store: Store) -> None:
        """Try to rescue all the time, until the job has been held for longer than its first lease."""
        end: datetime | None = None
        while end is None or await store.now() <= end:
            end = end or (await store.read([made.id], Job))[made.id].locked_until
            assert await store.move_due(Rescue(by="test", backoff=BACKOFF)) == []
            await asyncio.sleep(0.02)

    rescuing = asyncio.create_task(asyncio.to_thread(in_a_loop_of_its_own, url, rescue_until_outlived, outlived))
    await jobs.start(lease=3, poll=0.2)  # the heartbeat of a slow machine may be two seconds late
    await rescuing
    job = await ended(jobs, made.id)
    assert (job.status, job.result, job.version) == (Status.COMPLETED, True, 1)


def in_a_loop_of_its_own(url: str, work: Callable[[Store], Awaitable[T]], after: threading.Event) -> T:
    """Run `work` in a loop of this thread, because the other loop is blocked until `after`. Return its result."""

    async def with_store() -> T:
        async with opening(open_store(url)) as store:
            return await work(store)

    try:
        return asyncio.run(with_store())
    finally:
        after.set()


async def test_past_its_timeout_and_grace_a_blocking_handler_loses_its_lease(jobs: Jobs, url: str) -> None:
    taken, told = threading.Event(), threading.Event()

    @jobs.task(timeout=0.2, max_retries=1, retry=Delays((600.0,)))
    async def wedged(ctx: Context) -> None:
        taken.wait(60)  # the process is alive, but the handler is wedged
        end = time.monotonic() + 60
        while time.monotonic() < end:  # the handler blocks the loop further, but asks whether it may go on
            try:
                ctx.check()
            except LeaseLost:
                told.set()
                raise
            threading.Event().wait(0.01)

    async def rescue(store: Store) -> list[Moved]:
        return await until(lambda: store.move_due(Rescue(by="test", backoff=BACKOFF)))

    made = await wedged.enqueue()
    rescuing = asyncio.create_task(asyncio.to_thread(in_a_loop_of_its_own, url, rescue, taken))
    await started(jobs, lease=0.6, poll=0.2, grace=0.3, notice=0.0)
    assert [one.id for one in await rescuing] == [made.id]
    await until(told.is_set)
    job = await jobs.get(made.id)
    assert (job.retries, job.crashes) == (1, 1)
    assert "Task timed out (worker crashed?)" in (job.last_error or "")


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_run_that_lost_its_lease_is_told_and_changes_nothing(jobs: Jobs, elsewhere: Store, kind: str) -> None:
    told: list[str] = []

    async def looping(ctx: Context) -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            told.append("CancelledError")
            raise

    def spinning(ctx: Context) -> None:
        try:
            while True:
                ctx.check()
                time.sleep(0.01)
        except LeaseLost:
            told.append("LeaseLost")
            raise

    jobs.register("work", looping if kind == "async" else spinning)
    await jobs.start()
    made = await jobs.enqueue("work")
    job = await status_of(jobs, made.id, Status.PROCESSING)
    assert job.locked_by is not None
    await elsewhere.move_due(Rescue(by="test", backoff=BACKOFF, workers=[job.locked_by]))
    # Another worker claims the job before our worker could claim it again.
    await elsewhere.claim(Claim("someone else", (Lane("work"),), 1, 600.0))
    await until(lambda: bool(told))
    assert told == ["CancelledError" if kind == "async" else "LeaseLost"]
    worker = working(jobs)
    await until(lambda: (made.id, 1) not in worker.slots.runs)
    now = await jobs.get(made.id)
    assert now.version >= 2
    assert now.status is Status.PROCESSING


async def test_progress_is_written_a_few_times_a_second(jobs: Jobs) -> None:
    gate = asyncio.Event()

    @jobs.task
    async def chatty(ctx: Context) -> None:
        for n in range(10_000):
            ctx.progress(n / 100, stage="counting", message=f"number {n}")
            if n % 500 == 0:
                await asyncio.sleep(0.05)
        await gate.wait()

    await jobs.start()
    worker = working(jobs)
    store = worker._heartbeat_thread._store
    writes, write = [], store.progress

    async def counting(reports: list[object]) -> object:
        writes.append(reports)
        return await write(reports)  # type: ignore[arg-type]

    store.progress = counting  # type: ignore[method-assign, assignment]
    made = await chatty.enqueue()

    async def last_one() -> bool:
        job = await jobs.get(made.id)
        return (job.progress, job.stage, job.message) == (99.99, "counting", "number 9999")

    await until(last_one)
    assert 1 <= len(writes) < 20  # of ten thousand reports
    gate.set()
    assert (await ended(jobs, made.id)).progress == 100


async def test_what_a_handler_says_last_is_kept(jobs: Jobs) -> None:
    @jobs.task(max_retries=1, retry=Delays((0.0,)))
    def brief(ctx: Context) -> None:
        ctx.progress(40, stage="looking")
        ctx.log(f"attempt {ctx.job.attempts}")
        ctx.log("no such file", level="error")
        raise FileNotFoundError("x")

    job = await ran(jobs, "brief", max_retries=1)
    assert (job.status, job.progress, job.stage) == (Status.FAILED, 40, "looking")
    log = await jobs.logs(job.id)
    assert [(line.version, line.level, line.text) for line in log.lines] == [
        (1, "info", "attempt 1"), (1, "error", "no such file"),
        (2, "info", "attempt 2"), (2, "error", "no such file"),
    ]  # fmt: skip


async def test_the_log_is_bounded(jobs: Jobs) -> None:
    @jobs.task
    def verbose(ctx: Context) -> None:
        for n in range(1000):
            ctx.log(f"{n}: " + "x" * 5000)

    made = await ran(jobs, "verbose")
    log = await jobs.logs(made.id)
    assert len(log.lines) == 200
    assert log.lines[-1].text.startswith("999: ")
    assert max(len(line.text) for line in log.lines) <= 1000


async def test_what_the_keeper_collects_at_the_last_moment_is_kept(
    jobs: Jobs, elsewhere: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim loop looks whether the heartbeat thread is writing reports, and then writes itself. In between, the
    heartbeat thread may collect all reports without having written them yet."""
    written: list[asyncio.Task[None]] = []

    async def late_keeper(own: Store, runs: Iterable[Run]) -> dict[Run, Hold]:
        runs = list(runs)
        if not written:
            written.extend(asyncio.create_task(write_late(run)) for run in runs)
            await asyncio.sleep(0)
        return await write_reports(own, runs)

    async def write_late(run: Run) -> None:
        report = run.collect()
        assert report is not None
        await asyncio.sleep(0.3)
        [hold] = await elsewhere.progress([report])
        run.written(report, kept=hold is not Hold.LOST)

    monkeypatch.setattr(claim_settle, "write_reports", late_keeper)
    monkeypatch.setattr(HeartbeatThread, "said", lambda *_: None)

    @jobs.task
    def brief(ctx: Context) -> None:
        ctx.log("last words")

    made = await ran(jobs, "brief")
    assert [line.text for line in (await jobs.logs(made.id)).lines] == ["last words"]
    assert written


async def test_what_is_being_collected_counts_as_said(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a while to collect many lines. Meanwhile `has_said` must be true, or the lines would be lost."""
    looked: list[bool] = []
    line = NewLine

    def looked_at(*parts: Any) -> NewLine:
        looked.append(held[0].has_said)
        return line(*parts)

    held: list[Run] = []
    collect = Run.collect

    def collected(run: Run) -> Progress | None:
        held.append(run)
        return collect(run)

    monkeypatch.setattr(Run, "collect", collected)
    monkeypatch.setattr(run_module, "NewLine", looked_at)

    @jobs.task
    def brief(ctx: Context) -> None:
        ctx.log("something")

    await ran(jobs, "brief")
    assert looked == [True]


async def test_a_heartbeat_that_is_asked_for_comes_at_once(jobs: Jobs) -> None:
    gate = asyncio.Event()

    @jobs.task
    async def careful(ctx: Context) -> None:
        ctx.heartbeat()
        await gate.wait()

    await jobs.start(lease=600)
    made = await jobs.enqueue("careful")
    first = await status_of(jobs, made.id, Status.PROCESSING)

    async def renewed() -> bool:
        job = await jobs.get(made.id)
        assert job.locked_until is not None
        assert first.claimed_at is not None
        return (job.locked_until - first.claimed_at).total_seconds() > 600.0

    await until(renewed)
    gate.set()


async def test_workers_report_themselves(jobs: Jobs) -> None:
    jobs.register("work", nothing)
    await jobs.start(concurrency=3, lease=0.9)
    [first] = await jobs.workers.list()
    assert (first.topics, first.concurrency, first.lease, first.stopping) == (("work",), 3, 0.9, False)

    async def again() -> bool:
        [now] = await jobs.workers.list()
        assert now.seen is not None
        assert first.seen is not None
        return now.seen > first.seen

    await until(again)
    await jobs.stop()
    assert list(await jobs.workers.list()) == []


async def test_a_worker_that_is_not_in_a_hurry_waits_until_it_is_off_the_register(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy database takes a while. A worker that stays on the register looks like a dead worker."""
    jobs.register("work", nothing)
    await jobs.start()
    worker = working(jobs)
    retire = worker._heartbeat_thread._store.retire

    async def slow_retire(names: Sequence[str]) -> int:
        await asyncio.sleep(3 * _GOODBYE)
        return await retire(names)

    monkeypatch.setattr(worker._heartbeat_thread._store, "retire", slow_retire)
    await jobs.stop()
    assert list(await jobs.workers.list()) == []


async def test_a_report_under_way_does_not_put_a_worker_that_has_left_back_on_the_register(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.register("work", nothing)
    await jobs.start(lease=0.9)
    worker = working(jobs)
    store = worker._heartbeat_thread._store
    report, retire = store.report, store.retire
    reporting, retired, written = threading.Event(), asyncio.Event(), threading.Event()

    async def slow_report(info: WorkerInfo) -> datetime:
        """The server has received the report. It may execute it after later statements, even if the worker gave up."""
        reporting.set()
        return await asyncio.shield(asyncio.create_task(late(info)))

    async def late(info: WorkerInfo) -> datetime:
        with suppress(TimeoutError):
            await asyncio.wait_for(retired.wait(), 0.2)
        seen = await report(info)
        written.set()
        return seen

    async def then_report(names: Sequence[str]) -> int:
        gone = await retire(names)
        retired.set()
        return gone

    monkeypatch.setattr(heartbeat, "_GOODBYE", 30.0)
    monkeypatch.setattr(store, "report", slow_report)
    monkeypatch.setattr(store, "retire", then_report)
    await asyncio.to_thread(reporting.wait)
    await asyncio.to_thread(worker.evacuate, 30.0)
    await asyncio.to_thread(written.wait)
    assert list(await jobs.workers.list()) == []


async def test_the_dead_are_rescued_but_not_before_the_living_had_time_to_renew(jobs: Jobs, elsewhere: Store) -> None:
    @jobs.task
    async def work() -> None: ...

    made = await work.enqueue()
    await elsewhere.claim(Claim("a dead worker", (Lane("work"),), 1, 0.05))
    began = time.monotonic()
    await started(jobs, lease=1.5, poll=0.1, maintenance=0.05)
    job = await ended(jobs, made.id)
    assert time.monotonic() - began >= 0.5  # live workers had time for a heartbeat before the rescue
    assert (job.status, job.version, job.retries, job.crashes) == (Status.COMPLETED, 2, 1, 1)
    assert "a dead worker" in (job.last_error or "")


async def test_last_words_wait_for_whoever_has_locked_the_job(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await jobs._store()
    progress, refused = store.progress, 0

    async def locked(reports: Sequence[Progress]) -> list[Hold]:
        nonlocal refused
        if refused == 20:
            return await progress(reports)
        refused += 1
        return [Hold.UNSEEN] * len(reports)

    monkeypatch.setattr(store, "progress", locked)
    monkeypatch.setattr(HeartbeatThread, "said", lambda *_: None)

    @jobs.task
    def brief(ctx: Context) -> None:
        ctx.progress(stage="done")
        ctx.log("last words")

    job = await ran(jobs, "brief")
    assert (job.status, job.stage, refused) == (Status.COMPLETED, "done", 20)
    assert [line.text for line in (await jobs.logs(job.id)).lines] == ["last words"]
