"""A worker in this process: it finds jobs, runs them, settles them, and stops politely."""

import asyncio
import threading
import time
from collections.abc import Generator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest

import rowlock.runtime.worker
from rowlock.context import Context
from rowlock.core.job import Job, Lane, Status
from rowlock.core.retry import Delays
from rowlock.errors import Cancelled, Final, InvalidInput, NotMigrated, Snooze, StoreUnavailable, WrongContext
from rowlock.jobs import Jobs
from rowlock.stores.base import Claim, Store
from tests.runtime.running import nothing, ran, started, working
from tests.waiting import ended, status_of, until

AT_ONCE = Delays((0.0,))


async def events(jobs: Jobs, job_id: str) -> list[str]:
    return [event.event for event in await jobs.events(job_id)]


# ── What handlers may be and do ──


async def test_async_functions_run_in_the_event_loop(jobs: Jobs) -> None:
    loop = asyncio.get_running_loop()

    @jobs.task
    async def add(a: int, b: int) -> dict[str, object]:
        return {"sum": a + b, "here": asyncio.get_running_loop() is loop}

    job = await ran(jobs, add, 1, b=2)
    assert (job.status, job.result, job.version) == (Status.COMPLETED, {"sum": 3, "here": True}, 1)
    assert job.started_at is not None
    assert job.finished_at is not None
    assert await events(jobs, job.id) == ["enqueued", "claimed", "completed"]


async def test_sync_functions_run_in_threads_side_by_side(jobs: Jobs) -> None:
    together = threading.Barrier(3)

    @jobs.task
    def meet() -> str:
        together.wait(60)
        return threading.current_thread().name

    await jobs.start(concurrency=3)
    made = [(await meet.enqueue()).id for _ in range(3)]
    assert {(await ended(jobs, job_id)).result for job_id in made} == {"rowlock-handler"}


async def test_an_object_with_an_async_call_is_a_handler(jobs: Jobs) -> None:
    class Double:
        async def __call__(self, n: int) -> int:
            return 2 * n

    jobs.register("double", Double())
    assert (await ran(jobs, "double", {"n": 21})).result == 42


async def test_job_and_context_are_filled_in_wherever_they_stand(jobs: Jobs) -> None:
    @jobs.task
    async def seen(n: int, job: Job, ctx: Context) -> list[object]:
        return [n, job.id, ctx.job.id, job.payload]

    await jobs.start()
    made = await jobs.enqueue("seen", {"n": 7})
    assert (await ended(jobs, made.id)).result == [7, made.id, made.id, {"n": 7}]


async def test_a_failure_is_retried_and_keeps_its_traceback_without_our_frames(jobs: Jobs) -> None:
    @jobs.task(max_retries=1, retry=AT_ONCE)
    async def broken() -> None:
        raise ValueError("no such customer")

    job = await ran(jobs, broken)
    assert (job.status, job.retries, job.version) == (Status.FAILED, 1, 2)
    assert job.last_error is not None
    assert job.last_error.startswith("Max retries exceeded: Traceback (most recent call last):")
    assert job.last_error.endswith("ValueError: no such customer")
    assert "in broken" in job.last_error
    assert "rowlock/runtime" not in job.last_error
    assert await events(jobs, job.id) == ["enqueued", "claimed", "retried", "claimed", "failed"]


async def test_final_fails_at_once(jobs: Jobs) -> None:
    @jobs.task(max_retries=5)
    def hopeless() -> None:
        raise Final("the account is closed")

    job = await ran(jobs, hopeless)
    assert (job.status, job.version) == (Status.FAILED, 1)
    assert "the account is closed" in (job.last_error or "")


async def test_a_retry_callable_sees_the_exception(jobs: Jobs) -> None:
    seen: list[BaseException | str] = []

    def policy(job: Job, error: BaseException | str) -> float:
        seen.append(error)
        return 0.0

    @jobs.task(max_retries=1, retry=policy)
    async def broken() -> None:
        raise KeyError("x")

    await ran(jobs, broken)
    assert [type(error) for error in seen] == [KeyError]


async def test_snooze_runs_later_and_costs_no_retry(jobs: Jobs) -> None:
    @jobs.task(max_retries=0)
    async def patient(job: Job) -> int:
        if job.version == 1:
            raise Snooze(0.2)
        if job.version == 2:
            raise Snooze(datetime.now(UTC) + timedelta(seconds=0.2))
        return job.version

    job = await ran(jobs, "patient")
    assert (job.status, job.result, job.retries) == (Status.COMPLETED, 3, 0)
    assert await events(jobs, job.id) == [
        "enqueued", "claimed", "snoozed", "claimed", "snoozed", "claimed", "completed",
    ]  # fmt: skip


async def test_a_snooze_until_a_time_when_the_clock_is_set(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is that of the database's clock, even if the machine's clock was set since the worker compared them."""

    class Behind(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) - timedelta(hours=1)

    @jobs.task
    async def patient(job: Job) -> int:
        if job.version == 1:
            monkeypatch.setattr(rowlock.runtime.slots, "datetime", Behind)
            raise Snooze(job.created + timedelta(seconds=0.2))
        return job.version

    job = await ran(jobs, "patient")  # the job does not run an hour late
    assert (job.status, job.result) == (Status.COMPLETED, 2)


async def test_a_handler_may_cancel_its_own_job(jobs: Jobs) -> None:
    @jobs.task
    async def moot() -> None:
        raise Cancelled("the order was withdrawn")

    job = await ran(jobs, moot)
    assert (job.status, job.cancel_reason) == (Status.CANCELLED, "the order was withdrawn")


async def test_a_payload_that_does_not_fit_is_retried(jobs: Jobs, url: str) -> None:
    """A worker with another version of the code may accept the payload."""
    other = Jobs(url)  # checks no payload, because the task is not published yet

    @jobs.task(max_retries=1, retry=AT_ONCE)
    async def strict(n: int) -> None: ...

    made = await other.enqueue("strict", {"n": "seven"}, max_retries=1)
    await jobs.start()
    job = await ended(jobs, made.id)
    assert (job.status, job.retries) == (Status.FAILED, 1)
    assert "can't be called with this payload" in (job.last_error or "")
    assert "payload.n" in (job.last_error or "")
    await other.close()


# ── Middleware ──


async def test_middleware_stands_around_every_kind_of_handler(jobs: Jobs) -> None:
    seen: list[str] = []

    @jobs.on_run
    def outer(ctx: Context) -> Generator[None, Any, None]:
        seen.append(f"before {ctx.job.topic}")
        result = yield
        seen.append(f"after {ctx.job.topic}: {result}")

    @jobs.on_run
    def inner(ctx: Context) -> None:
        seen.append(f"inner {ctx.job.topic}")

    @jobs.task
    async def one() -> int:
        return 1

    @jobs.task
    def two() -> int:
        return 2

    for task in (one, two):
        await ran(jobs, task)
    assert seen == ["before one", "inner one", "after one: 1", "before two", "inner two", "after two: 2"]


async def test_middleware_may_replace_an_error_but_not_hide_it(jobs: Jobs) -> None:
    @jobs.on_run
    def translate(ctx: Context) -> Generator[None, Any, None]:
        try:
            yield
        except LookupError as error:
            raise Final(f"not found: {error}") from error
        except ValueError:
            pass

    @jobs.task(max_retries=3)
    async def lookup() -> None:
        raise LookupError("customer")

    @jobs.task(max_retries=0)
    async def swallowed() -> None:
        raise ValueError("still an error")

    job = await ran(jobs, lookup)
    assert (job.status, job.version) == (Status.FAILED, 1)
    assert "not found: " in (job.last_error or "")
    job = await ran(jobs, swallowed)
    assert job.status is Status.FAILED
    assert "still an error" in (job.last_error or "")


# ── Timeouts ──


async def test_an_async_handler_that_takes_too_long_is_cancelled(jobs: Jobs) -> None:
    cleaned_up = asyncio.Event()

    @jobs.task(timeout=0.2, max_retries=0)
    async def slow() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            cleaned_up.set()

    job = await ran(jobs, slow)
    assert job.status is Status.FAILED
    assert "Timed out: the handler ran for more than 0.2 s" in (job.last_error or "")
    assert cleaned_up.is_set()


async def test_a_thread_hears_of_its_timeout_by_check(jobs: Jobs) -> None:
    @jobs.task(timeout=0.2, max_retries=0)
    def slow(ctx: Context) -> None:
        while True:
            ctx.check()
            time.sleep(0.01)

    job = await ran(jobs, slow)
    assert "Timed out" in (job.last_error or "")
    assert jobs._worker is not None
    assert jobs._worker.slots.leaked == 0


async def test_what_can_not_be_stopped_is_settled_and_counted(jobs: Jobs) -> None:
    """The slot of the handler stays lost until the handler ends. The worker goes on with its other slots, and drops the
    late result."""
    go_on, stubborn_is_done = threading.Event(), asyncio.Event()

    @jobs.task(timeout=0.1, max_retries=0)
    def deaf() -> str:
        go_on.wait(60)
        return "late"

    @jobs.task(timeout=0.1, max_retries=0)
    async def stubborn() -> str:
        while not go_on.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        stubborn_is_done.set()
        return "late"

    @jobs.task
    async def fine() -> str:
        return "fine"

    worker = await started(jobs, concurrency=5, notice=0.1)
    made = [(await task.enqueue()).id for task in (deaf, stubborn)]
    for job_id in made:
        job = await ended(jobs, job_id)
        assert job.status is Status.FAILED
        assert "Timed out" in (job.last_error or "")
    assert worker.slots.leaked == 2
    assert (await ran(jobs, fine)).result == "fine"
    go_on.set()
    await asyncio.wait_for(stubborn_is_done.wait(), 60)
    await until(lambda: worker.slots.leaked == 0)
    assert [(await jobs.get(job_id)).result for job_id in made] == [None, None]


# ── Cancel ──


async def test_a_cancel_reaches_running_handlers_by_check(jobs: Jobs) -> None:
    raised: list[str] = []

    @jobs.task
    async def looping(ctx: Context) -> None:
        try:
            while True:
                ctx.check()
                await asyncio.sleep(0.01)
        except Cancelled:
            raised.append("async")
            raise

    @jobs.task
    def spinning(ctx: Context) -> None:
        while not ctx.cancelled:
            time.sleep(0.01)
        raised.append("thread")

    await jobs.start()
    made = [(await task.enqueue()).id for task in (looping, spinning)]
    for job_id in made:
        await status_of(jobs, job_id, Status.PROCESSING)
    for job_id in made:
        await jobs.cancel(job_id, reason="enough")
    first, second = [await ended(jobs, job_id) for job_id in made]
    assert (first.status, first.cancel_reason) == (Status.CANCELLED, "enough")
    assert second.status is Status.COMPLETED  # the handler returned before its cancel became final
    assert sorted(raised) == ["async", "thread"]


async def test_an_async_handler_that_never_asks_is_cancelled_by_asyncio(jobs: Jobs) -> None:
    @jobs.task
    async def asleep() -> None:
        await asyncio.sleep(600)

    await jobs.start()
    made = await asleep.enqueue()
    await status_of(jobs, made.id, Status.PROCESSING)
    await jobs.cancel(made.id)
    assert (await ended(jobs, made.id)).status is Status.CANCELLED


async def test_who_ignores_a_cancel_past_the_grace_ends_cancelled_and_its_result_is_refused(jobs: Jobs) -> None:
    go_on = threading.Event()

    @jobs.task
    def deaf() -> str:
        go_on.wait(60)
        return "late"

    worker = await started(jobs, concurrency=3, cancel_grace=0.2, maintenance=0.1)
    made = await deaf.enqueue()
    await status_of(jobs, made.id, Status.PROCESSING)
    await jobs.cancel(made.id)
    job = await ended(jobs, made.id)
    assert job.status is Status.CANCELLED
    go_on.set()
    await until(lambda: worker.slots.leaked == 0 and not worker.slots.runs)
    job = await jobs.get(made.id)
    assert (job.status, job.result) == (Status.CANCELLED, None)


# ── Claiming ──


async def test_highest_priority_first(jobs: Jobs) -> None:
    order: list[int] = []

    @jobs.task
    async def note(n: int) -> None:
        order.append(n)

    for n in (1, 5, 3, 4, 2):
        await note.using(priority=n).enqueue(n)
    await jobs.start(concurrency=1)
    await until(lambda: len(order) == 5)
    assert order == [5, 4, 3, 2, 1]


async def test_a_delayed_job_is_picked_up_when_its_time_has_come(jobs: Jobs) -> None:
    later = jobs.register("later", nothing)
    await jobs.start(poll=30)  # so that polling is not what finds the job
    made = await later.using(delay=0.5).enqueue()
    job = await ended(jobs, made.id)
    assert job.claimed_at is not None
    assert job.claimed_at >= job.run_at
    assert job.claimed_at - job.run_at < timedelta(seconds=20)


async def test_only_the_topics_that_were_asked_for(jobs: Jobs) -> None:
    mine = jobs.register("mine", nothing)
    theirs = jobs.register("theirs", nothing)
    await jobs.start(topics=["mine"])
    other, own = await theirs.enqueue(), await mine.enqueue()
    await ended(jobs, own.id)
    assert (await jobs.get(other.id)).version == 0


async def test_a_paused_topic_is_left_alone_until_it_is_resumed(jobs: Jobs) -> None:
    work = jobs.register("work", nothing)
    other = jobs.register("other", nothing)
    await jobs.start()
    await jobs.topics.pause("work")
    made = await work.enqueue()
    await ran(jobs, other)
    assert (await jobs.get(made.id)).status is Status.PENDING
    await jobs.topics.resume("work")
    assert (await ended(jobs, made.id)).status is Status.COMPLETED


async def test_short_jobs_are_claimed_ahead_and_given_back_when_their_topic_is_paused(jobs: Jobs) -> None:
    gate = asyncio.Event()
    running = 0

    @jobs.task
    async def quick(hold: bool = False) -> None:
        nonlocal running
        if hold:
            running += 1
            await gate.wait()

    await jobs.enqueue_many([quick.draft() for _ in range(200)])
    worker = await started(jobs, concurrency=2, ahead=60.0)
    await until(lambda: worker.slots.lookahead() > 100)
    # While both slots are held, the worker claims the next jobs ahead and can't start them.
    holding = [(await quick.enqueue(hold=True)).id for _ in range(2)]
    await until(lambda: running == 2)
    waiting = [answer.id for answer in await jobs.enqueue_many([quick.draft() for _ in range(50)])]
    await until(lambda: any((job_id, 1) in worker.slots.runs for job_id in waiting))
    await jobs.topics.pause("quick", reason="test")

    async def given_back() -> bool:
        found = [await jobs.get(job_id) for job_id in waiting]
        return all(job.status is Status.PENDING and job.retries == 0 for job in found)

    await until(given_back)
    released = [job_id for job_id in waiting if "released" in await events(jobs, job_id)]
    assert released
    gate.set()
    for job_id in holding:
        assert (await ended(jobs, job_id)).status is Status.COMPLETED
    await jobs.topics.resume("quick")
    for job_id in waiting:
        assert (await ended(jobs, job_id)).status is Status.COMPLETED


async def test_long_jobs_are_not_claimed_ahead(jobs: Jobs) -> None:
    @jobs.task
    async def long() -> None:
        await asyncio.sleep(0.15)

    made = [answer.id for answer in await jobs.enqueue_many([long.draft() for _ in range(8)])]
    await jobs.start(concurrency=2)
    worker = working(jobs)
    most = 0
    while (await jobs.get(made[-1])).is_live:
        most = max(most, len([run for run in worker.slots.runs.values() if not run.concluded]))
        await asyncio.sleep(0.01)
    assert most == 2


async def test_jobs_of_a_claim_whose_reply_was_lost_are_given_back(jobs: Jobs, elsewhere: Store) -> None:
    """The claim is in the database, but the worker doesn't know. The jobs must not wait until their lease ends."""
    work = jobs.register("work", nothing)
    made = await work.enqueue()
    jobs._worker = worker = jobs.make_worker(concurrency=2, lease=600.0)
    claimed = await elsewhere.claim(Claim(worker.name, (Lane("work"),), 10, 600.0))
    assert [job.id for job in claimed.jobs] == [made.id]
    await worker.start()
    worker.claim_settle.claim_lost = True
    job = await ended(jobs, made.id)
    assert (job.status, job.version, job.retries) == (Status.COMPLETED, 2, 0)
    assert "released" in await events(jobs, made.id)


# ── Life ──


async def test_stop_lets_jobs_finish_and_claims_no_more(jobs: Jobs) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()
    ran = []

    @jobs.task
    async def work(job: Job) -> str:
        ran.append(job.id)
        begun.set()
        await gate.wait()
        return "finished"

    await jobs.start()
    made = await work.enqueue()
    await begun.wait()
    stopping = asyncio.create_task(jobs.stop(grace=60))
    await until(lambda: jobs._worker is not None and jobs._worker.slots.stopping)
    late = await work.enqueue()
    gate.set()
    await stopping
    assert (await jobs.get(made.id)).result == "finished"
    left = await jobs.get(late.id)
    # A claim that was under way at the stop may have taken this job. Then the worker has given it back at once.
    assert (left.status, left.retries, ran) == (Status.PENDING, 0, [made.id])
    assert list(await jobs.workers.list()) == []


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_stop_gives_back_what_does_not_finish_at_no_cost(jobs: Jobs, kind: str) -> None:
    begun, end = threading.Event(), threading.Event()

    async def sleeping() -> None:
        begun.set()
        await asyncio.sleep(600)

    def blocking() -> None:
        begun.set()
        end.wait(60)

    jobs.register("work", sleeping if kind == "async" else blocking)
    await jobs.start()
    made = await jobs.enqueue("work")
    await until(begun.is_set)
    await jobs.stop(grace=0.1)
    job = await jobs.get(made.id)
    assert (job.status, job.retries, job.locked_by) == (Status.PENDING, 0, None)
    assert await events(jobs, made.id) == ["enqueued", "claimed", "released"]
    end.set()


async def test_it_may_be_started_again(jobs: Jobs) -> None:
    work = jobs.register("work", nothing)
    for _ in range(2):
        await jobs.start()
        assert (await ran(jobs, work)).status is Status.COMPLETED
        await jobs.stop()
        await jobs.stop()  # a second stop does nothing


async def test_it_can_not_be_started_twice(jobs: Jobs) -> None:
    jobs.register("work", nothing)
    await jobs.start()
    with pytest.raises(WrongContext, match="have a running worker already"):
        await jobs.start()


async def test_it_refuses_what_makes_no_sense(jobs: Jobs) -> None:
    with pytest.raises(InvalidInput, match=r"@jobs\.task"):
        await jobs.start()

    work = jobs.register("work", nothing)
    with pytest.raises(InvalidInput, match="no handler for mail; there are handlers for: work"):
        await jobs.start(topics=["mail"])
    for name, value in {"concurrency": 0, "lease": 0, "poll": 0, "grace": -1}.items():
        with pytest.raises(InvalidInput, match=name):
            await jobs.start(**{name: value})  # type: ignore[arg-type]
    await jobs.start()  # the refused calls have left nothing behind
    assert (await ran(jobs, work)).status is Status.COMPLETED


async def test_it_says_at_once_that_the_database_is_wrong(postgres_url: str) -> None:
    unmigrated = Jobs(postgres_url)
    unmigrated.register("work", lambda: None)
    with pytest.raises(NotMigrated, match="rowlock migrate"):
        await unmigrated.start()
    nobody = Jobs("postgresql://127.0.0.1:1/nothing")
    nobody.register("work", lambda: None)
    with pytest.raises(StoreUnavailable):
        await nobody.start()


def test_code_without_an_event_loop_may_work_too(tmp_path: object) -> None:
    jobs = Jobs(f"sqlite:///{tmp_path}/jobs.db")

    @jobs.task
    def double(n: int) -> int:
        return 2 * n

    jobs.sync.start()
    made = double.sync.enqueue(21)
    assert jobs.sync.wait(made.id, timeout=60).result == 42
    jobs.sync.close()


async def test_workers_with_different_code_leave_each_other_s_jobs_alone(jobs: Jobs, url: str) -> None:
    @jobs.task
    async def old() -> str:
        return "old code"

    newer = Jobs(url)

    @newer.task
    async def new() -> str:
        return "new code"

    await jobs.start()
    await newer.start()
    made = [(await jobs.enqueue(topic)).id for topic in ("old", "new") * 20]
    results = [await ended(jobs, job_id) for job_id in made]
    assert [job.result for job in results] == ["old code", "new code"] * 20
    assert {job.version for job in results} == {1}
    await newer.close()
