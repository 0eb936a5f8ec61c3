"""ctx.step: a step that is done is not done again, however the run ends."""

import asyncio
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from msgspec import Struct

from rowlock import (
    Cancelled,
    Context,
    Final,
    Jobs,
    Snooze,
    Status,
    StepFailed,
    StepState,
    SyncContext,
    step,
)
from rowlock.context import Interruption
from rowlock.core.moves import CancelTimeout
from rowlock.errors import Interrupted, InvalidInput, WrongContext
from tests.waiting import ended, until


class Deeds:
    """Record what steps have done, in order."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def do(self, deed: str) -> str:
        self.all.append(deed)
        return deed


@pytest.fixture
def deeds() -> Deeds:
    return Deeds()


class Point(Struct):
    x: int
    y: int


def last_line(text: str | None) -> str:
    return (text or "").strip().rpartition("\n")[2]


# ── Replay ──


async def test_steps_that_are_done_are_not_done_again(jobs: Jobs, deeds: Deeds) -> None:
    async def first(n: int) -> Point:
        deeds.do("first")
        return Point(n, n)

    def second(ctx: SyncContext, point: Point) -> list[Point]:
        deeds.do("second")
        return [point]

    @jobs.task(retry=[0])
    async def work(ctx: Context) -> int:
        point = await ctx.step(first, 3)
        assert isinstance(point, Point)
        [again] = await ctx.step(second, point)
        assert again == Point(3, 3)
        deeds.do("handler")
        if ctx.job.version < 3:
            raise ValueError("not yet")
        return again.x

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.result, job.retries) == (Status.COMPLETED, 3, 2)
    assert deeds.all == ["first", "second", "handler", "handler", "handler"]
    assert [(one.name, one.n, one.position, one.state, one.result) for one in await jobs.steps(job.id)] == [
        ("first", 1, 1, StepState.SUCCEEDED, {"x": 3, "y": 3}),
        ("second", 1, 2, StepState.SUCCEEDED, [{"x": 3, "y": 3}]),
    ]
    assert job.step == "second"


async def test_sync_handlers_have_steps_too(jobs: Jobs, deeds: Deeds) -> None:
    def first(n: int) -> Point:
        deeds.do("first")
        return Point(n, n)

    def second(ctx: SyncContext, point: Point) -> int:
        assert ctx.job.topic == "work"
        deeds.do("second")
        return point.x

    @jobs.task(retry=[0])
    def work(ctx: SyncContext) -> int:
        found = ctx.step(second, ctx.step(first, 3))
        deeds.do("handler")
        if ctx.job.version < 2:
            raise ValueError("not yet")
        return found

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.result) == (Status.COMPLETED, 3), job.last_error
    assert deeds.all == ["first", "second", "handler", "handler"]


async def test_the_order_of_calls_counts_not_the_order_of_ends(jobs: Jobs, deeds: Deeds) -> None:
    async def slow(name: str, turns: int) -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        return deeds.do(name)

    @jobs.task(retry=[0])
    async def work(ctx: Context) -> list[str]:
        turns = [30, 0, 10] if ctx.job.version == 1 else [0, 30, 10]
        found = await asyncio.gather(*(ctx.step(slow, name, n) for name, n in zip("abc", turns, strict=True)))
        if ctx.job.version == 1:
            raise ValueError("again")
        return found

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert job.result == ["a", "b", "c"]
    assert sorted(deeds.all) == ["a", "b", "c"]
    assert [(one.n, one.position) for one in await jobs.steps(job.id)] == [(1, 1), (2, 2), (3, 3)]


async def test_the_first_run_sees_what_a_replay_sees(jobs: Jobs) -> None:
    def loose() -> Any:
        return (1, {"a": (2,)})

    def strict() -> tuple[int, str]:
        return (1, "x")

    seen: list[Any] = []

    @jobs.task(retry=[0])
    async def work(ctx: Context) -> None:
        seen.append((await ctx.step(loose), await ctx.step(strict)))
        if ctx.job.version == 1:
            raise ValueError("again")

    await jobs.start()
    await ended(jobs, (await work.enqueue()).id)
    assert seen == [([1, {"a": [2]}], (1, "x"))] * 2


async def test_a_step_without_a_policy_fails_the_run(jobs: Jobs, deeds: Deeds) -> None:
    async def broken() -> None:
        deeds.do("broken")
        raise ValueError("no luck")

    @jobs.task(retry=[0], max_retries=1)
    async def work(ctx: Context) -> None:
        await ctx.step(broken)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.retries) == (Status.FAILED, 1)
    assert last_line(job.last_error) == "ValueError: no luck"
    assert "run_steps.py" not in (job.last_error or "")
    assert deeds.all == ["broken", "broken"]
    [found] = await jobs.steps(job.id)
    assert (found.state, found.retries, last_line(found.error)) == (StepState.FAILED, 0, "ValueError: no luck")


async def test_a_running_step_is_seen(jobs: Jobs) -> None:
    go = asyncio.Event()

    async def patient() -> None:
        await go.wait()

    @jobs.task
    async def work(ctx: Context) -> None:
        await ctx.step(patient)

    await jobs.start(poll=0.1)
    made = await work.enqueue()

    async def runs() -> bool:
        return [(one.name, one.state) for one in await jobs.steps(made.id)] == [("patient", StepState.RUNNING)]

    await until(runs)
    assert (await jobs.get(made.id)).step == "patient"
    go.set()
    assert (await ended(jobs, made.id)).status is Status.COMPLETED
    assert [one.state for one in await jobs.steps(made.id)] == [StepState.SUCCEEDED]


# ── Own retries ──


@pytest.mark.parametrize("sync", [False, True])
async def test_a_step_counts_its_own_retries(jobs: Jobs, deeds: Deeds, sync: bool) -> None:
    @step(retry=[0], max_retries=2)
    def flaky() -> str:
        deeds.do("flaky")
        if len(deeds.all) < 3:
            raise ValueError(f"try {len(deeds.all)}")
        return "done"

    if sync:

        @jobs.task("work", max_retries=0)
        def handle(ctx: SyncContext) -> str:
            return ctx.step(flaky)
    else:

        @jobs.task("work", max_retries=0)
        async def handle_async(ctx: Context) -> str:
            return await ctx.step(flaky)

    await jobs.start()
    job = await ended(jobs, (await jobs.enqueue("work")).id)
    assert (job.status, job.result, job.retries, job.version) == (Status.COMPLETED, "done", 0, 3), job.last_error
    assert deeds.all == ["flaky"] * 3
    events = [event for event in await jobs.events(job.id) if event.event == "step_retried"]
    assert [(event.data["reason"], last_line(event.data["error"])) for event in events] == [
        ("flaky", "ValueError: try 1"),
        ("flaky", "ValueError: try 2"),
    ]


async def test_after_its_last_try_the_handler_may_undo(jobs: Jobs, deeds: Deeds) -> None:
    async def reserve() -> None:
        deeds.do("reserve")

    async def charge() -> None:
        deeds.do("charge")

    @step(retry=[0], max_retries=1)
    async def ship() -> None:
        deeds.do("ship")
        raise ValueError("no truck")

    async def undo(what: str) -> None:
        deeds.do(f"undo {what}")

    crashes = [True]

    @jobs.task(retry=[0])
    async def sell(ctx: Context) -> None:
        await ctx.step(reserve)
        await ctx.step(charge)
        try:
            await ctx.step(ship)
        except StepFailed as failed:
            deeds.do(f"{failed.step}: {last_line(failed.error)}")
            await ctx.step(undo, "charge")
            if crashes:
                crashes.pop()
                raise OSError("in the middle of it") from None
            await ctx.step(undo, "reserve")
            raise

    await jobs.start()
    job = await ended(jobs, (await sell.enqueue()).id)
    again = "ship: ValueError: no truck"  # the failure is stored
    assert deeds.all == ["reserve", "charge", "ship", "ship", again, "undo charge", again, "undo reserve"]
    assert (job.status, job.retries) == (Status.FAILED, 1)
    assert "the step ship has failed for good: ValueError: no truck" in last_line(job.last_error)
    assert [(one.name, one.n, one.state, one.retries) for one in await jobs.steps(job.id)] == [
        ("reserve", 1, StepState.SUCCEEDED, 0),
        ("charge", 1, StepState.SUCCEEDED, 0),
        ("ship", 1, StepState.FAILED, 1),
        ("undo", 1, StepState.SUCCEEDED, 0),
        ("undo", 2, StepState.SUCCEEDED, 0),
    ]


@pytest.mark.parametrize("how", [Final("never"), InvalidInput("x", "y", "z")])
async def test_a_final_error_ends_a_step_at_once(jobs: Jobs, deeds: Deeds, how: Exception) -> None:
    @step(retry=[0], max_retries=1)
    async def broken() -> None:
        deeds.do("broken")
        raise how

    @jobs.task
    async def work(ctx: Context) -> str:
        try:
            await ctx.step(broken)
        except StepFailed as failed:
            return failed.step
        return "?"

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.result) == (Status.COMPLETED, "broken")
    assert deeds.all == ["broken"] * (1 if isinstance(how, Final) else 2)


async def test_the_failure_of_a_group_names_it(jobs: Jobs) -> None:
    @step(retry=[0], max_retries=0)
    async def broken() -> None:
        raise ExceptionGroup("both", [ValueError("one"), OSError("two")])

    @jobs.task
    async def work(ctx: Context) -> None:
        await ctx.step(broken)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    failed = "the step broken has failed for good: ExceptionGroup: both (2 sub-exceptions)"
    assert failed in last_line(job.last_error)


async def test_the_backoff_of_a_step_is_its_own(jobs: Jobs) -> None:
    @step(retry=[1000, 3000])
    async def broken() -> None:
        raise ValueError

    @jobs.task(retry=[7])
    async def work(ctx: Context) -> None:
        await ctx.step(broken)

    await jobs.start()
    made = await work.enqueue()

    async def waits() -> Any:
        job = await jobs.get(made.id)
        return job if job.status is Status.PENDING and job.version == 1 else None

    job = await until(waits)
    assert 900 < (job.run_at - job.updated).total_seconds() <= 1000
    [found] = await jobs.steps(made.id)
    assert (found.state, found.retries) == (StepState.PENDING, 1)


async def test_steps_beside_a_suspended_one_end_first(jobs: Jobs, deeds: Deeds) -> None:
    failed = asyncio.Event()

    @step(retry=[0], max_retries=1)
    async def flaky() -> None:
        deeds.do("flaky")
        if not failed.is_set():
            failed.set()
            raise ValueError

    async def patient() -> None:
        await failed.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        deeds.do("patient")

    @jobs.task(max_retries=0)
    async def work(ctx: Context) -> None:
        await asyncio.gather(ctx.step(flaky), ctx.step(patient))

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.version) == (Status.COMPLETED, 2), job.last_error
    assert deeds.all == ["flaky", "patient", "flaky"]


async def test_snooze_and_cancel_are_no_failures_of_a_step(jobs: Jobs, deeds: Deeds) -> None:
    @step(retry=[0], max_retries=0)
    async def later() -> None:
        if deeds.do("later") and len(deeds.all) == 1:
            raise Snooze(0)

    @jobs.task(max_retries=0)
    async def work(ctx: Context) -> None:
        await ctx.step(later)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.version, deeds.all) == (Status.COMPLETED, 2, ["later", "later"])


# ── Suspend ──


@pytest.mark.parametrize("sync", [False, True])
async def test_a_handler_that_swallows_suspend_fails_for_good(jobs: Jobs, sync: bool) -> None:
    @step(retry=[0])
    def broken() -> None:
        raise ValueError

    if sync:

        @jobs.task("work")
        def swallow(ctx: SyncContext) -> None:
            with suppress(BaseException):
                ctx.step(broken)
    else:

        @jobs.task("work")
        async def swallow_async(ctx: Context) -> None:
            with suppress(BaseException):
                await ctx.step(broken)

    await jobs.start()
    job = await ended(jobs, (await jobs.enqueue("work")).id)
    assert (job.status, job.version) == (Status.FAILED, 1)
    assert "the handler has caught Suspend" in last_line(job.last_error)
    assert "return_exceptions=True" in last_line(job.last_error)


@pytest.mark.parametrize("sync", [False, True])
async def test_middleware_sees_neither_success_nor_failure_of_a_suspended_run(jobs: Jobs, sync: bool) -> None:
    seen: list[str] = []

    @jobs.on_run
    def around(ctx: Context) -> Generator[None, Any, None]:
        try:
            yield
        except GeneratorExit:
            seen.append("closed")
            raise
        except BaseException as error:
            seen.append(type(error).__name__)
        else:
            seen.append("returned")

    @step(retry=[0])
    def flaky() -> None:
        if not seen:
            raise ValueError

    if sync:

        @jobs.task("work")
        def handle(ctx: SyncContext) -> None:
            ctx.step(flaky)
    else:

        @jobs.task("work")
        async def handle_async(ctx: Context) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.step(flaky))

    await jobs.start()
    job = await ended(jobs, (await jobs.enqueue("work")).id)
    assert (job.status, job.version) == (Status.COMPLETED, 2), job.last_error
    assert seen == ["closed", "returned"]


# ── Code that changes ──


async def test_another_function_under_a_stored_name_is_refused(jobs: Jobs, deeds: Deeds) -> None:
    async def old() -> int:
        return 1

    async def new() -> int:
        deeds.do("new")
        return 2

    @jobs.task(retry=[0])
    async def work(ctx: Context) -> None:
        await ctx.step(step(old if ctx.job.version == 1 else new).using(name="it"))
        raise ValueError

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.version, deeds.all) == (Status.FAILED, 2, [])
    text = last_line(job.last_error)
    assert "rowlock.errors.StepChanged: the step it has changed: a result of the function old is stored" in text
    assert "@step(was='old')" in text
    assert "keep_steps=False" in text


async def test_a_renamed_step_keeps_its_results(jobs: Jobs, deeds: Deeds) -> None:
    async def old() -> int:
        return 1

    @step(was=["older", "old"])
    async def new() -> int:
        deeds.do("new")
        return 2

    @jobs.task(retry=[0])
    async def work(ctx: Context) -> list[int]:
        if ctx.job.version == 1:
            await ctx.step(old)
            await ctx.step(step(old).using(name="named"))
            raise ValueError
        return [await ctx.step(new), await ctx.step(new.using(name="named")), await ctx.step(new)]

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.result, deeds.all) == ([1, 1, 2], ["new"]), job.last_error


async def test_a_stored_result_is_not_given_to_two_steps(jobs: Jobs, deeds: Deeds) -> None:
    async def old() -> int:
        return 1

    @step(was="old")
    async def new() -> int:
        deeds.do("new")
        return 2

    @step(was="old")
    async def newer() -> int:
        deeds.do("newer")
        return 3

    @jobs.task(retry=[0])
    async def work(ctx: Context) -> None:
        if ctx.job.version == 1:
            await ctx.step(old)
            raise ValueError
        await ctx.step(new)
        await ctx.step(newer)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, deeds.all) == (Status.FAILED, [])
    text = last_line(job.last_error)
    assert "the step newer has changed: by was=, it would get the stored result of old, which the step new has" in text


async def test_a_handler_that_swallows_a_changed_step_fails_for_good(jobs: Jobs) -> None:
    def old() -> int:
        return 1

    def new() -> None: ...

    new.__name__ = "old"

    @jobs.task(retry=[0])
    async def work(ctx: Context) -> str:
        if ctx.job.version == 1:
            await ctx.step(old)
            raise ValueError
        with suppress(Exception):
            await ctx.step(new)
        return "fine"

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.version) == (Status.FAILED, 2)
    assert "StepChanged: the step old has changed" in last_line(job.last_error)
    assert "must be null, not a whole number" in last_line(job.last_error)


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("own", [False, True])
async def test_a_handler_that_swallows_a_limit_fails_for_good(jobs: Jobs, sync: bool, own: bool) -> None:
    def large() -> str:
        return "x" * (1 << 20)

    limited = step(retry=[0], max_retries=1)(large) if own else step(large)
    if sync:

        @jobs.task("work")
        def handle(ctx: SyncContext) -> None:
            with suppress(Exception):
                ctx.step(limited)
    else:

        @jobs.task("work")
        async def handle_async(ctx: Context) -> None:
            await asyncio.gather(ctx.step(limited), return_exceptions=True)

    await jobs.start()
    job = await ended(jobs, (await jobs.enqueue("work")).id)
    assert (job.status, job.retries) == (Status.FAILED, 0)
    assert "the result of the step large can't be stored" in last_line(job.last_error)


async def test_a_result_of_another_type_is_refused(jobs: Jobs) -> None:
    def old() -> str:
        return "text"

    def new() -> Point:
        return Point(1, 1)

    new.__name__ = "old"

    @jobs.task(retry=[0])
    async def work(ctx: Context) -> None:
        await ctx.step(old if ctx.job.version == 1 else new)
        raise ValueError

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.version) == (Status.FAILED, 2)
    assert "its stored result does not fit the annotation of old" in last_line(job.last_error)


# ── Timeouts ──


@pytest.mark.parametrize("kind", ["async", "sync in async", "sync"])
async def test_a_step_past_its_timeout_fails(jobs: Jobs, kind: str) -> None:
    @step(timeout=0.05)
    async def endless() -> None:
        await asyncio.Event().wait()

    @step(timeout=0.05)
    def looks(ctx: SyncContext) -> None:
        while not ctx.cancelled:
            time.sleep(0.01)
        ctx.check()

    if kind == "sync":

        @jobs.task("work", max_retries=0)
        def handle(ctx: SyncContext) -> None:
            ctx.step(looks)
    else:

        @jobs.task("work", max_retries=0)
        async def handle_async(ctx: Context) -> None:
            if kind == "async":
                await ctx.step(endless)
            else:
                await ctx.step(looks)

    await jobs.start()
    job = await ended(jobs, (await jobs.enqueue("work")).id)
    name = "endless" if kind == "async" else "looks"
    assert last_line(job.last_error) == f"TimeoutError: the step {name} has taken longer than its timeout of 0.05 s"


async def test_a_late_return_fails_too(jobs: Jobs) -> None:
    @step(timeout=0.01)
    def late() -> str:
        time.sleep(0.05)
        return "late"

    @jobs.task(max_retries=0)
    def work(ctx: SyncContext) -> str:
        return ctx.step(late)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert "the step late has taken longer" in last_line(job.last_error)


# ── Cancel ──


async def test_a_cancel_ends_a_cancelable_step_and_the_handler_may_undo(jobs: Jobs, deeds: Deeds) -> None:
    runs = asyncio.Event()

    async def patient() -> None:
        runs.set()
        await asyncio.Event().wait()

    @step(cancelable=False)
    async def undo() -> None:
        deeds.do("undo")
        await asyncio.sleep(0.2)
        deeds.do("undone")

    @jobs.task
    async def work(ctx: Context) -> None:
        try:
            await ctx.step(patient)
        except BaseException as error:
            deeds.do(type(error).__name__)
            with pytest.raises(BaseException, match="cancelled"):
                await ctx.step(patient)
            await ctx.step(undo)
            raise

    worker = jobs.make_worker(poll=0.1, cancel_grace=0.1, notice=0.1)
    await jobs._run(worker)
    made = await work.enqueue()
    await runs.wait()
    await jobs.cancel(made.id)
    job = await ended(jobs, made.id)
    assert (job.status, deeds.all) == (Status.CANCELLED, ["Cancelled", "undo", "undone"])
    assert {one.name: one.state for one in await jobs.steps(made.id)}["undo"] is StepState.SUCCEEDED


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_step_that_is_not_cancelable_ends_first(jobs: Jobs, deeds: Deeds, kind: str) -> None:
    """The step goes on after the grace, and after the cancel timeout of maintenance."""
    runs, go = threading.Event(), threading.Event()

    @step(cancelable=False)
    def finalize(ctx: SyncContext) -> None:
        runs.set()
        while not go.wait(0.01):
            ctx.check()
            assert not ctx.cancelled
        deeds.do("finalized")

    def after() -> None:
        deeds.do("never")

    if kind == "async":

        @jobs.task("work")
        async def handle_async(ctx: Context) -> None:
            await ctx.step(finalize)
            await ctx.step(after)
    else:

        @jobs.task("work")
        def handle(ctx: SyncContext) -> None:
            ctx.step(finalize)
            ctx.step(after)

    worker = jobs.make_worker(poll=0.1, cancel_grace=0.05, notice=0.05)
    await jobs._run(worker)
    made = await jobs.enqueue("work")
    await until(runs.is_set)
    await jobs.cancel(made.id)
    [run] = worker.slots.runs.values()
    await until(lambda: run._when_open is not None)  # the grace is over
    store = await jobs._store()
    assert await store.move_due(CancelTimeout(by="test", grace=0.0)) == []
    assert (await jobs.get(made.id)).status is Status.CANCEL_REQUESTED
    go.set()
    job = await ended(jobs, made.id)
    assert (job.status, deeds.all) == (Status.CANCELLED, ["finalized"])
    assert [(one.name, one.state) for one in await jobs.steps(made.id)] == [("finalize", StepState.SUCCEEDED)]


async def test_the_jobs_timeout_ends_a_step_that_is_not_cancelable(jobs: Jobs, deeds: Deeds) -> None:
    runs = asyncio.Event()

    @step(cancelable=False)
    async def endless() -> None:
        runs.set()
        await asyncio.Event().wait()

    @jobs.task(timeout=1)
    async def work(ctx: Context) -> None:
        await ctx.step(endless)

    worker = jobs.make_worker(poll=0.1, cancel_grace=0.05, notice=0.05)
    await jobs._run(worker)
    made = await work.enqueue()
    await runs.wait()
    await jobs.cancel(made.id)
    assert (await ended(jobs, made.id)).status is Status.CANCELLED


async def test_a_stop_does_not_wait_for_a_step_that_is_not_cancelable(jobs: Jobs) -> None:
    runs = asyncio.Event()

    @step(cancelable=False)
    async def endless() -> None:
        runs.set()
        await asyncio.Event().wait()

    @jobs.task
    async def work(ctx: Context) -> None:
        await ctx.step(endless)

    await jobs.start()
    made = await work.enqueue()
    await runs.wait()
    await jobs.stop(grace=0.2)
    job = await jobs.get(made.id)
    assert (job.status, job.retries) == (Status.PENDING, 0)
    assert [one.state for one in await jobs.steps(made.id)] == [StepState.PENDING]


@pytest.mark.parametrize("why", [Interruption.STOPPING, Interruption.TIMED_OUT, Interruption.LOST])
@pytest.mark.parametrize("sync", [False, True])
async def test_the_end_of_a_run_is_no_failure_of_its_step(jobs: Jobs, why: Interruption, sync: bool) -> None:
    """The step's error is neither stored nor counted, although the step has its own retry policy and raises another
    error."""
    seen: list[BaseException] = []

    @step(retry=[0], max_retries=0)
    def wrapped(ctx: SyncContext) -> None:
        [run] = worker.slots.runs.values()
        run.interrupt(why)
        try:
            ctx.check()
        except Interrupted:
            raise OSError("the connection was closed") from None

    if sync:

        @jobs.task("work")
        def handle(ctx: SyncContext) -> None:
            try:
                ctx.step(wrapped)
            except BaseException as error:
                seen.append(error)
                raise
    else:

        @jobs.task("work")
        async def handle_async(ctx: Context) -> None:
            try:
                await ctx.step(wrapped)
            except BaseException as error:
                seen.append(error)
                raise

    worker = jobs.make_worker(poll=0.1)
    await jobs._run(worker)
    made = await jobs.enqueue("work")
    await until(lambda: seen)
    await jobs.stop(grace=0)
    error = seen[0]
    assert isinstance(error, Interrupted)
    assert isinstance(error.__cause__, OSError)
    assert [(one.state, one.retries) for one in await jobs.steps(made.id)] in ([], [(StepState.PENDING, 0)])


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("kind", ["turned", "failed", "sync"])
async def test_a_step_that_fails_after_a_cancel_raises_cancelled(
    jobs: Jobs, deeds: Deeds, own: bool, kind: str
) -> None:
    runs = threading.Event()
    policy: dict[str, Any] = {"retry": [0], "max_retries": 5} if own else {}

    @step(**policy)
    async def turned() -> None:
        runs.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("turned") from None

    @step(**policy)
    def failed(ctx: SyncContext) -> None:
        runs.set()
        while not ctx.cancelled:
            time.sleep(0.01)
        raise OSError("failed")

    @step(cancelable=False)
    def undo() -> None:
        deeds.do("undo")

    if kind == "sync":

        @jobs.task("work")
        def handle(ctx: SyncContext) -> None:
            try:
                ctx.step(failed)
            except Cancelled as error:
                deeds.do(repr(error.__cause__))
                ctx.step(undo)
                raise
    else:

        @jobs.task("work")
        async def handle_async(ctx: Context) -> None:
            try:
                await (ctx.step(turned) if kind == "turned" else ctx.step(failed))
            except Cancelled as error:
                deeds.do(repr(error.__cause__))
                async with asyncio.timeout(60):  # it would raise CancelledError if the cancel were still in force
                    await ctx.step(undo)
                raise

    await jobs._run(jobs.make_worker(poll=0.1, cancel_grace=0.05))
    made = await jobs.enqueue("work")
    await until(runs.is_set)
    await jobs.cancel(made.id)
    job = await ended(jobs, made.id)
    assert job.status is Status.CANCELLED, job.last_error
    assert deeds.all == [f"OSError('{'turned' if kind == 'turned' else 'failed'}')", "undo"]


async def test_a_step_that_is_not_cancelable_keeps_its_policy_after_a_cancel(jobs: Jobs, deeds: Deeds) -> None:
    runs, go = asyncio.Event(), asyncio.Event()

    @step(cancelable=False, retry=[0], max_retries=0)
    async def broken() -> None:
        runs.set()
        await go.wait()
        raise OSError

    @jobs.task
    async def work(ctx: Context) -> None:
        try:
            await ctx.step(broken)
        except StepFailed as error:
            deeds.do(error.step)
            raise

    worker = jobs.make_worker(poll=0.1)
    await jobs._run(worker)
    made = await work.enqueue()
    await runs.wait()
    await jobs.cancel(made.id)
    [run] = worker.slots.runs.values()
    await until(lambda: run.interruption is Interruption.CANCELLED)
    go.set()
    await ended(jobs, made.id)
    assert deeds.all == ["broken"]


# ── Progress ──


async def test_progress_follows_the_weights_of_declared_steps(jobs: Jobs) -> None:
    @step(title="Prepare it", weight=1)
    async def prepare() -> None: ...

    halfway, go = asyncio.Event(), asyncio.Event()

    @step(weight=3, timeout=60)
    async def execute(ctx: Context) -> None:
        ctx.progress(50, stage="half")
        halfway.set()
        await go.wait()

    @step(weight=1, cancelable=False, retry=[1], max_retries=7)
    async def rarely() -> None: ...

    @jobs.task(version=1, steps=[prepare, execute, rarely])
    async def work(ctx: Context) -> None:
        await ctx.step(prepare)
        await ctx.step(execute)

    await jobs.start(poll=0.1)
    made = await work.enqueue()
    await halfway.wait()

    async def half() -> bool:
        return (await jobs.get(made.id)).progress == 50.0

    await until(half)
    found = await jobs.steps(made.id)
    assert [(one.name, one.title, one.weight, one.state) for one in found if one.name != "execute"] == [
        ("prepare", "Prepare it", 1.0, StepState.SUCCEEDED),
        ("rarely", None, 1.0, StepState.PENDING),
    ]
    go.set()
    job = await ended(jobs, made.id)
    assert job.progress == 100
    assert [(one.name, one.state, one.max_retries) for one in await jobs.steps(made.id)] == [
        ("prepare", StepState.SUCCEEDED, None),
        ("execute", StepState.SUCCEEDED, None),
        ("rarely", StepState.SKIPPED, 7),
    ]
    [stored] = await jobs.templates.list("work")
    assert [(one.name, one.timeout, one.cancelable) for one in stored.template.steps] == [
        ("prepare", None, True),
        ("execute", 60.0, True),
        ("rarely", None, False),
    ]


async def test_progress_of_a_failed_run_stays(jobs: Jobs) -> None:
    async def one() -> None: ...

    async def two() -> None:
        raise ValueError

    @jobs.task(steps=[one, two], max_retries=0)
    async def work(ctx: Context) -> None:
        await ctx.step(one)
        await ctx.step(two)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert job.progress == 50
    await jobs.stop()
    job = await jobs.requeue(job.id)
    assert (job.progress, job.step) == (50, "one")


# ── Requeue ──


async def test_requeue_from_a_step(jobs: Jobs, deeds: Deeds) -> None:
    async def do(what: str) -> None:
        deeds.do(what)

    @jobs.task(max_retries=0)
    async def work(ctx: Context) -> None:
        for what in "abc":
            await ctx.step(do, what)
        raise ValueError

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)

    async def again(**options: Any) -> list[str]:
        deeds.all.clear()
        await jobs.requeue(job.id, **options)
        await ended(jobs, job.id)
        return deeds.all

    assert await again() == []
    assert await again(from_step="do#2") == ["b", "c"]
    assert await again(from_step="do") == ["a", "b", "c"]
    assert await again(keep_steps=False) == ["a", "b", "c"]
    with pytest.raises(
        InvalidInput, match=r"from_step: 'nonsense' is no stored step of the job; there are: do, do#2, do#3"
    ):
        await jobs.requeue(job.id, from_step="nonsense")
    with pytest.raises(InvalidInput, match="not both"):
        await jobs.requeue(job.id, from_step="do", keep_steps=False)
    with pytest.raises(InvalidInput, match="another payload drops the results of all steps"):
        await jobs.requeue(job.id, from_step="do", payload={})
    with pytest.raises(InvalidInput, match=r"^keep_steps: must be True or False"):
        await jobs.requeue(job.id, keep_steps="no")  # type: ignore[arg-type]
    await jobs.stop()
    again_sync = await asyncio.to_thread(lambda: jobs.sync.requeue(job.id, from_step="do#3"))
    assert again_sync.status is Status.PENDING
    assert len(await asyncio.to_thread(lambda: jobs.sync.steps(job.id))) == 2


# ── What is refused ──


async def refused(jobs: Jobs, topic: str, kind: type[Exception]) -> str:
    job = await ended(jobs, (await jobs.enqueue(topic, max_retries=0)).id)
    assert job.status is Status.FAILED
    line = last_line(job.last_error)
    assert f"{kind.__module__}.{kind.__qualname__}: " in line
    return line.partition(": ")[2]


async def test_a_step_inside_a_step_is_refused(jobs: Jobs) -> None:
    async def inner() -> None: ...

    async def outer(bound: Context) -> None:
        await bound.step(inner)

    @jobs.task
    async def bound(ctx: Context) -> None:
        await ctx.step(outer)

    @jobs.task
    async def captured(ctx: Context) -> None:
        async def closure() -> None:
            await asyncio.gather(ctx.step(inner))

        await ctx.step(closure)

    @jobs.task
    def sync(ctx: SyncContext) -> None:
        def closure() -> None:
            ctx.step(lambda: None)

        ctx.step(closure)

    await jobs.start()
    for topic, name in (("bound", "outer"), ("captured", "closure"), ("sync", "closure")):
        text = await refused(jobs, topic, WrongContext)
        assert text == f"ctx.step inside of the step {name}: only the handler may call it"


async def test_a_step_inside_a_transaction_is_refused(jobs: Jobs) -> None:
    @jobs.task
    async def work(ctx: Context) -> None:
        async with ctx.transaction():
            await ctx.step(lambda: None)

    await jobs.start()
    assert "inside of ctx.transaction()" in await refused(jobs, "work", WrongContext)


async def test_a_step_after_the_handler_is_refused(jobs: Jobs, deeds: Deeds) -> None:
    kept: list[Any] = []

    async def one() -> None:
        deeds.do("one")

    @jobs.task
    async def after_a_step(ctx: Context) -> None:
        await ctx.step(one)
        kept.append(ctx)

    @jobs.task
    async def without_one(ctx: Context) -> None:
        kept.append(ctx)

    @jobs.task
    async def called_before(ctx: Context) -> None:
        kept.append(ctx.step(one))

    await jobs.start()
    await ended(jobs, (await after_a_step.enqueue()).id)
    await ended(jobs, (await without_one.enqueue()).id)
    await ended(jobs, (await called_before.enqueue()).id)
    deeds.all.clear()
    for ctx in kept[:2]:
        with pytest.raises(WrongContext, match="the handler has ended"):
            await ctx.step(one)
    with pytest.raises(WrongContext, match="the handler has ended"):
        await kept[2]
    assert deeds.all == []


async def test_a_step_after_the_completion_is_refused(jobs: Jobs, deeds: Deeds) -> None:
    @jobs.task
    async def work(ctx: Context) -> None:
        async with ctx.transaction():
            ctx.complete("done")
        with pytest.raises(WrongContext, match="has completed the job"):
            await ctx.step(deeds.do, "late")
        deeds.do("refused")

    @jobs.task
    def sync(ctx: SyncContext) -> None:
        with ctx.transaction():
            ctx.complete("done")
        with pytest.raises(WrongContext, match="has completed the job"):
            ctx.step(deeds.do, "late")
        deeds.do("refused")

    await jobs.start()
    for task in (work, sync):
        deeds.all.clear()
        made = await task.enqueue()
        await until(lambda: deeds.all)
        assert deeds.all == ["refused"]
        assert (await ended(jobs, made.id)).result == "done"


NAMED = "Give each call a name of its own: ctx.step(embed.using(name="


async def test_pipelines_beside_each_other_must_name_their_steps(jobs: Jobs, deeds: Deeds) -> None:
    """Otherwise the number of a call would depend on timing, and a retry could mix up the results."""

    async def fetch(x: str) -> str:
        return x

    @step
    async def embed(x: str) -> str:
        return deeds.do(f"embed {x}")

    async def one(ctx: Context, x: str, *, named: bool) -> str:
        found = await ctx.step(step(fetch).using(name=f"fetch {x}"), x)
        return await ctx.step(embed.using(name=f"embed {x}") if named else embed, found)

    @jobs.task
    async def mixed(ctx: Context) -> None:
        await asyncio.gather(one(ctx, "a", named=False), one(ctx, "b", named=False))

    @jobs.task(retry=[0])
    async def named(ctx: Context) -> list[str]:
        ways = [one(ctx, x, named=True) for x in ("ab" if ctx.job.version == 1 else "ba")]
        found = await asyncio.gather(*ways)
        if ctx.job.version == 1:
            raise ValueError("again")
        return found

    await jobs.start()
    assert NAMED in await refused(jobs, "mixed", WrongContext)
    assert len(deeds.all) == 1
    job = await ended(jobs, (await named.enqueue()).id)
    assert job.result == ["embed b", "embed a"], job.last_error


async def test_tasks_that_overlapped_conflict_after_the_end_of_one(jobs: Jobs, deeds: Deeds) -> None:
    async def begin() -> None: ...

    @step
    async def embed(x: str) -> None:
        deeds.do(x)

    @jobs.task
    async def children(ctx: Context) -> None:
        both = asyncio.Event()

        async def second() -> None:
            await ctx.step(step(begin).using(name="second"))
            both.set()
            await first_task
            await ctx.step(embed, "second")

        async def first() -> None:
            await ctx.step(step(begin).using(name="first"))
            await both.wait()
            await ctx.step(embed, "first")

        first_task = asyncio.create_task(first())
        await asyncio.gather(second())

    @jobs.task
    async def handler_second(ctx: Context) -> None:
        async def child() -> None:
            await ctx.step(embed, "child")
            await asyncio.Event().wait()

        task = asyncio.create_task(child())
        await until(lambda: deeds.all == ["child"])
        try:
            await ctx.step(embed, "handler")
        finally:
            task.cancel()

    @jobs.task
    async def handler_first(ctx: Context) -> None:
        begun, called = asyncio.Event(), asyncio.Event()

        async def child() -> None:
            await ctx.step(begin)
            begun.set()
            await called.wait()
            await ctx.step(embed, "child")

        task = asyncio.create_task(child())
        await begun.wait()
        await ctx.step(embed, "handler")
        called.set()
        await task

    await jobs.start()
    for topic, done in (("children", "first"), ("handler_second", "child"), ("handler_first", "handler")):
        deeds.all.clear()
        assert NAMED in await refused(jobs, topic, WrongContext)
        assert deeds.all == [done]


async def test_threads_beside_each_other_must_name_their_steps(jobs: Jobs) -> None:
    @step
    def embed(x: int) -> int:
        return x

    @jobs.task
    def work(ctx: SyncContext) -> None:
        meeting = threading.Barrier(2)

        def one(x: int) -> None:
            meeting.wait(60)
            ctx.step(embed, x)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(one, range(2)))

    @jobs.task
    def alone(ctx: SyncContext) -> list[int]:
        with ThreadPoolExecutor(1) as pool:
            return [ctx.step(embed, 1), *pool.map(lambda x: ctx.step(embed, x), (2, 3))]

    await jobs.start()
    assert NAMED in await refused(jobs, "work", WrongContext)
    assert (await ended(jobs, (await alone.enqueue()).id)).result == [1, 2, 3]


async def test_calls_that_the_handler_orders_need_no_names(jobs: Jobs) -> None:
    @step
    async def embed(x: int) -> int:
        return x

    @jobs.task(max_retries=0)
    async def work(ctx: Context) -> list[int]:
        async def helper(x: int) -> int:
            return await ctx.step(embed, x)

        found = list(await asyncio.gather(ctx.step(embed, 1), ctx.step(embed, 2)))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.step(embed, x)) for x in (3, 4)]
        found += [task.result() for task in tasks]
        for x in (5, 6):  # an asyncio task for each call, one after the other
            found.append(await asyncio.create_task(helper(x)))
        return [*found, await ctx.step(embed, 7)]

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert job.result == [1, 2, 3, 4, 5, 6, 7], job.last_error


async def test_the_wrong_colour_is_refused(jobs: Jobs) -> None:
    async def asynchronous() -> None: ...

    async def confused(ctx: SyncContext) -> None: ...

    @jobs.task
    def one(ctx: SyncContext) -> None:
        ctx.step(asynchronous)  # type: ignore[unused-coroutine]

    @jobs.task
    def two(ctx: Context) -> None:
        ctx.step(asynchronous)  # type: ignore[unused-coroutine]

    @jobs.task
    async def three(ctx: Context) -> None:
        ctx.sync.step(lambda: None)

    @jobs.task
    async def four(ctx: Context) -> None:
        await (await ctx.step(confused))  # SyncContext types the step as a sync function that returns a coroutine

    @jobs.task
    async def five(ctx: Context) -> None:
        await ctx.step(bound, ctx)

    def bound(ctx: Context) -> None: ...

    await jobs.start()
    assert "the step asynchronous is async, and this handler is not" in await refused(jobs, "one", WrongContext)
    assert "annotate its ctx with SyncContext" in await refused(jobs, "two", WrongContext)
    assert "would block the event loop" in await refused(jobs, "three", WrongContext)
    assert "annotate its ctx with Context, not SyncContext" in await refused(jobs, "four", WrongContext)
    assert "leave it out of the arguments" in await refused(jobs, "five", WrongContext)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (object(), "result: is a object, which is not a JSON value"),
        ("x" * (1 << 20), "at most 1,048,576 are allowed"),
        (float("nan"), "JSON can't express"),
    ],
    ids=["object", "large", "nan"],
)
async def test_a_result_that_can_not_be_stored_is_final(jobs: Jobs, value: Any, text: str) -> None:
    def give() -> Any:
        return value

    @jobs.task(max_retries=5)
    async def work(ctx: Context) -> None:
        await ctx.step(give)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.retries) == (Status.FAILED, 0)
    assert "the result of the step give can't be stored: " in last_line(job.last_error)
    assert text in last_line(job.last_error)


async def test_a_result_that_does_not_fit_its_annotation_is_final(jobs: Jobs) -> None:
    def give() -> int:
        return "text"  # type: ignore[return-value]

    @jobs.task(max_retries=5)
    async def work(ctx: Context) -> None:
        await ctx.step(give)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.retries) == (Status.FAILED, 0)
    assert "the step give returned a value that does not fit its annotation" in last_line(job.last_error)
    assert await jobs.steps(job.id) == [] or (await jobs.steps(job.id))[0].state is StepState.FAILED


async def test_a_job_has_at_most_a_thousand_steps_and_16_mib(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rowlock.run_steps.MAX_STEPS", 5)
    monkeypatch.setattr("rowlock.run_steps.MAX_STEP_BYTES", 100)

    def give(size: int) -> str:
        return "x" * size

    @jobs.task(retry=[0], max_retries=1)
    async def many(ctx: Context) -> None:
        for n in range(4 if ctx.job.version == 1 else 6):
            await ctx.step(give, n)
        raise ValueError

    @jobs.task(retry=[0], max_retries=1)
    async def large(ctx: Context) -> None:
        await ctx.step(give, 60)
        if ctx.job.version == 1:
            raise ValueError
        await ctx.step(give, 60)

    await jobs.start()
    job = await ended(jobs, (await many.enqueue()).id)
    assert "a job may have at most 5 steps, and give#6 is one more" in last_line(job.last_error)
    job = await ended(jobs, (await large.enqueue()).id)
    assert "the result of the step give#2 is too much" in last_line(job.last_error)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\0b", "a#2", "a\nb", "@a"])
def test_a_name_must_be_usable(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"^name: "):
        step(lambda: None).using(name=name)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"weight": -1}, "weight"),
        ({"timeout": 0}, "timeout"),
        ({"retry": [-1]}, r"retry\[0\]"),
        ({"max_retries": -1}, "max_retries"),
        ({"was": ""}, "was"),
        ({"was": 5}, "was"),
        ({"was": [5]}, "was"),
        ({"cancelable": "no"}, "cancelable"),
        ({"title": 5}, "title"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_a_policy_must_be_usable(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^{field}: "):
        step(**options)(lambda: None)


def test_only_functions_are_steps() -> None:
    with pytest.raises(InvalidInput, match="3 is no function"):
        step(3)  # type: ignore[call-overload]


async def test_a_context_that_is_not_filled_in_is_explained(jobs: Jobs) -> None:
    async def unannotated(ctx, n: int) -> None: ...  # type: ignore[no-untyped-def]

    async def second(n: int, ctx: Context) -> None: ...

    @jobs.task
    async def one(ctx: Context) -> None:
        await ctx.step(unannotated, 1)

    @jobs.task
    async def two(ctx: Context) -> None:
        await ctx.step(second, 1)  # type: ignore[call-overload]

    await jobs.start()
    for topic in ("one", "two"):
        job = await ended(jobs, (await jobs.enqueue(topic, max_retries=0)).id)
        assert "ctx.step fills in the Context if it is the first parameter, and is annotated" in (job.last_error or "")


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    @step
    async def sell(self, what: str) -> str:
        return f"{self.name}: {what}"

    @step(retry=[0])
    def book(self, ctx: SyncContext, what: str) -> str:
        return f"{self.name} {ctx.job.topic}: {what}"


async def test_a_method_is_a_step(jobs: Jobs) -> None:
    @jobs.task(max_retries=0)
    async def work(ctx: Context) -> list[str]:
        shop = Shop("mine")
        return [
            await ctx.step(shop.sell, "tea"),
            await ctx.step(shop.book, "tea"),
            await ctx.step(Shop.sell, shop, "x"),
        ]

    assert Shop.sell.name == "sell"
    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert job.result == ["mine: tea", "mine work: tea", "mine: x"], job.last_error


async def test_jobs_without_steps_never_touch_the_table(jobs: Jobs) -> None:
    @jobs.task
    async def work(ctx: Context) -> None:
        ctx.check()

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.step, await jobs.steps(job.id)) == (None, [])


async def test_a_step_that_the_handler_left_behind_ends_before_the_run(jobs: Jobs, deeds: Deeds) -> None:
    failed = asyncio.Event()

    async def broken() -> None:
        failed.set()
        raise ValueError

    async def patient() -> None:
        await failed.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        deeds.do("patient")

    @jobs.task(retry=[0], max_retries=1)
    async def work(ctx: Context) -> None:
        await asyncio.gather(ctx.step(broken), ctx.step(patient))

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.version, deeds.all) == (Status.FAILED, 2, ["patient"])


async def test_steps_left_behind_end_with_the_jobs_timeout(jobs: Jobs, deeds: Deeds) -> None:
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            deeds.do("cancelled")

    kept: list[Any] = []

    @jobs.task(timeout=0.3, max_retries=0)
    async def work(ctx: Context) -> None:
        kept.append(asyncio.create_task(ctx.step(endless)))
        await asyncio.sleep(0)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert "Timed out" in (job.last_error or "")
    await until(lambda: deeds.all == ["cancelled"])


async def test_a_cancel_waits_for_a_sync_step_in_its_thread(jobs: Jobs, deeds: Deeds) -> None:
    """The handler must not undo anything while the step still runs. The result of the step is stored."""
    runs, go = threading.Event(), threading.Event()

    def blind() -> str:
        runs.set()
        go.wait(60)
        return deeds.do("done")

    @step(cancelable=False)
    async def undo() -> None:
        deeds.do("undone")

    async def never() -> None:
        deeds.do("never")

    @jobs.task
    async def work(ctx: Context) -> None:
        try:
            await ctx.step(blind)
            await ctx.step(never)
        except Cancelled:
            await ctx.step(undo)
            raise

    worker = jobs.make_worker(poll=0.1, cancel_grace=0.05, notice=60)
    await jobs._run(worker)
    made = await work.enqueue()
    await until(runs.is_set)
    await jobs.cancel(made.id)
    [run] = worker.slots.runs.values()
    await until(lambda: run.fiber is not None and run.fiber.cancelling())
    go.set()
    job = await ended(jobs, made.id)
    assert (job.status, deeds.all) == (Status.CANCELLED, ["done", "undone"])
    assert [(one.name, one.state) for one in await jobs.steps(made.id)] == [
        ("blind", StepState.SUCCEEDED),
        ("undo", StepState.SUCCEEDED),
    ]


async def test_a_cancel_of_gathered_steps_can_be_undone(jobs: Jobs, deeds: Deeds) -> None:
    runs = asyncio.Event()

    async def patient() -> None:
        runs.set()
        await asyncio.Event().wait()

    @step(cancelable=False)
    async def undo(n: int) -> None:
        await asyncio.sleep(0.15)
        deeds.do(f"undo {n}")

    @jobs.task
    async def work(ctx: Context) -> None:
        try:
            await asyncio.gather(ctx.step(patient), ctx.step(patient))
        except Cancelled:
            await ctx.step(undo, 1)
            await ctx.step(undo, 2)
            raise

    await jobs._run(jobs.make_worker(poll=0.1, cancel_grace=0.05, notice=0.05))
    made = await work.enqueue()
    await runs.wait()
    await jobs.cancel(made.id)
    assert (await ended(jobs, made.id)).status is Status.CANCELLED
    assert deeds.all == ["undo 1", "undo 2"]


async def test_the_longest_backoff_of_suspended_steps_counts(jobs: Jobs) -> None:
    failed = asyncio.Event()

    @step(retry=[1000])
    async def quick() -> None:
        failed.set()
        raise ValueError

    @step(retry=[3000])
    async def slow() -> None:
        await failed.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        raise ValueError

    @jobs.task
    async def work(ctx: Context) -> None:
        await asyncio.gather(ctx.step(quick), ctx.step(slow))

    await jobs.start()
    made = await work.enqueue()

    async def waits() -> Any:
        job = await jobs.get(made.id)
        return job if job.status is Status.PENDING and job.version == 1 else None

    job = await until(waits)
    assert 2900 < (job.run_at - job.updated).total_seconds() <= 3000
    assert {one.name: one.retries for one in await jobs.steps(made.id)} == {"quick": 1, "slow": 1}
