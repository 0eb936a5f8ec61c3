"""ctx.sleep, ctx.wait_for and ctx.callback: a run ends, and the job goes on where it waited."""

import asyncio
import random
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from math import nan
from typing import Any

import pytest
from msgspec import Struct

from rowlock import (
    Callback,
    Cancel,
    Cancelled,
    Context,
    Jobs,
    Signal,
    Status,
    StepState,
    SyncContext,
    WaitTimeout,
    step,
)
from rowlock.core.job import Job
from rowlock.core.moves import CancelTimeout, Rescue
from rowlock.core.templates import StepInfo, Template, check_template
from rowlock.errors import InvalidInput, WrongContext
from rowlock.runtime.worker import Worker
from rowlock.stores import reading
from tests.waiting import ended, status_of, until

HOUR = 3600.0
KINDS = ["async", "sync"]


class Decision(Struct):
    ok: bool
    why: str = ""


decision = Signal("decision", Decision)


class Deeds:
    """Record what handlers have done, in order."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def do(self, deed: str) -> str:
        self.all.append(deed)
        return deed


@pytest.fixture
def deeds() -> Deeds:
    return Deeds()


def last_line(text: str | None) -> str:
    return (text or "").strip().rpartition("\n")[2]


async def waits(jobs: Jobs, job_id: str) -> Job:
    return await status_of(jobs, job_id, Status.WAITING)


async def quick(jobs: Jobs, **settings: Any) -> Worker:
    """Start a worker that learns of cancels soon."""
    worker = jobs.make_worker(**{"poll": 0.1, "cancel_grace": 30.0, "notice": 0.1, **settings})
    await jobs._run(worker)
    return worker


def of_both_kinds(jobs: Jobs, kind: str, run: Callable[[SyncContext], Any], **options: Any) -> None:
    """Register a handler that calls `run`. An async one does so in a thread, where ctx.sync may be used."""
    if kind == "sync":

        @jobs.task("work", **options)
        def handle(ctx: SyncContext) -> Any:
            return run(ctx)
    else:

        @jobs.task("work", **options)
        async def handle_async(ctx: Context) -> Any:
            return await asyncio.to_thread(run, ctx.sync)


# ── Sleep ──


@pytest.mark.parametrize("kind", KINDS)
async def test_a_handler_goes_on_where_it_slept(jobs: Jobs, deeds: Deeds, kind: str) -> None:
    def first() -> str:
        return deeds.do("first")

    if kind == "sync":

        @jobs.task("work")
        def handle(ctx: SyncContext) -> str:
            try:
                found = ctx.step(first)
                ctx.sleep(HOUR)
                deeds.do("awake")
                return found
            finally:
                deeds.do("finally")
    else:

        @jobs.task("work")
        async def handle_async(ctx: Context) -> str:
            try:
                found = await ctx.step(first)
                await ctx.sleep(timedelta(hours=1))
                deeds.do("awake")
                return found
            finally:
                deeds.do("finally")

    await jobs.start()
    made = await jobs.enqueue("work")
    job = await waits(jobs, made.id)
    assert (job.waits_for, job.version, job.retries, job.attempts, job.locked_by) == ("sleep", 1, 0, 1, None)
    assert timedelta(minutes=58) < job.run_at - job.updated <= timedelta(hours=1)
    await jobs.wake(made.id)
    job = await ended(jobs, made.id)
    assert (job.status, job.result, job.version, job.retries, job.attempts) == (Status.COMPLETED, "first", 2, 0, 1)
    assert deeds.all == ["first", "finally", "awake", "finally"]
    assert [event.event for event in await jobs.events(made.id)] == [
        "enqueued", "claimed", "step_succeeded", "waited", "resumed", "claimed", "completed",
    ]  # fmt: skip
    assert (await jobs.verify()).findings == []


async def test_a_sleep_ends_by_itself(jobs: Jobs, deeds: Deeds) -> None:
    @jobs.task
    async def work(ctx: Context) -> int:
        deeds.do("run")
        await ctx.sleep(0.05)
        await ctx.sleep(until=datetime.now(UTC) - timedelta(days=1))  # that time is past: the run goes on at once
        await ctx.sleep(0)
        await ctx.sleep(until=ctx.job.created + timedelta(seconds=0.3))
        return ctx.job.version

    await quick(jobs, poll=HOUR, maintenance=HOUR, listen=False)  # only its own timer wakes the worker
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, len(deeds.all)) == (Status.COMPLETED, job.result)
    assert job.result in (2, 3)
    assert job.finished_at is not None
    assert job.finished_at - job.created >= timedelta(seconds=0.3)


async def test_each_sleep_of_a_loop_is_its_own(jobs: Jobs, deeds: Deeds) -> None:
    @jobs.task
    async def work(ctx: Context) -> None:
        for n in range(4):
            await ctx.step(step(deeds.do).using(name=f"step {n}"), f"deed {n}")
            await ctx.sleep(0.01)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, deeds.all) == (Status.COMPLETED, [f"deed {n}" for n in range(4)]), job.last_error


async def test_waiting_counts_towards_no_timeout(jobs: Jobs) -> None:
    @jobs.task(timeout=1, max_retries=0)
    async def work(ctx: Context) -> None:
        await ctx.sleep(1.3)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.retries) == (Status.COMPLETED, 0), job.last_error


# ── Signals ──


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("early", [False, True])
async def test_a_signal_before_or_after_the_wait(jobs: Jobs, kind: str, early: bool) -> None:
    seen: list[Any] = []

    if kind == "sync":

        @jobs.task("work")
        def handle(ctx: SyncContext) -> str:
            got = ctx.wait_for(decision, timeout=HOUR)
            seen.append(got)
            return got.why
    else:

        @jobs.task("work")
        async def handle_async(ctx: Context) -> str:
            got = await ctx.wait_for(decision)
            seen.append(got)
            return got.why

    made = await jobs.enqueue("work")
    if early:
        await jobs.signal(made.id, decision, Decision(True, "yes"))
    await jobs.start()
    if not early:
        job = await waits(jobs, made.id)
        assert job.waits_for == "signal:decision"
        await jobs.signal(made.id, decision, Decision(True, "yes"))
    job = await ended(jobs, made.id)
    assert (job.status, job.result, job.version) == (Status.COMPLETED, "yes", 1 if early else 2), job.last_error
    assert seen == [Decision(True, "yes")]


async def test_signals_are_read_in_order_by_name(jobs: Jobs) -> None:
    @jobs.task
    async def work(ctx: Context) -> list[Any]:
        found = [await ctx.wait_for("a"), await ctx.wait_for("a")]
        return [*found, await ctx.wait_for("b"), await ctx.wait_for("a")]

    made = await work.enqueue()
    await jobs.signal(made.id, "b", 1)
    await jobs.signal(made.id, "a", 2)
    await jobs.signal(made.id, "a", None)
    await jobs.start()
    await waits(jobs, made.id)
    await jobs.signal(made.id, "a", {"n": 3})
    job = await ended(jobs, made.id)
    assert (job.result, job.version) == ([2, None, 1, {"n": 3}], 2), job.last_error


@pytest.mark.parametrize("default", [None, Decision(False, "late"), "later", {"a": [1.5]}])
async def test_past_its_timeout_a_wait_gives_the_default(jobs: Jobs, default: Any) -> None:
    seen: list[Any] = []

    @jobs.task
    async def work(ctx: Context) -> None:
        seen.append(await ctx.wait_for(decision, timeout=0.01, default=default))
        await ctx.sleep(0.01)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert job.status is Status.COMPLETED, job.last_error
    assert len(seen) >= 2
    assert all(one == default and type(one) is type(default) for one in seen)


@pytest.mark.parametrize("kind", KINDS)
async def test_past_its_timeout_a_wait_without_a_default_raises(jobs: Jobs, deeds: Deeds, kind: str) -> None:
    def run(ctx: SyncContext) -> str:
        with suppress(WaitTimeout):
            ctx.wait_for("never", timeout=0)
            deeds.do("never")
        try:
            ctx.wait_for(decision, timeout=0.01)
        except WaitTimeout as error:
            deeds.do(str(error))
            ctx.sleep(0.01)
            return error.signal
        return "never"

    of_both_kinds(jobs, kind, run)
    await jobs.start()
    job = await ended(jobs, (await jobs.enqueue("work")).id)
    assert (job.status, job.result) == (Status.COMPLETED, "decision"), job.last_error
    assert deeds.all[-1] == "the signal decision had not come when the wait ended (its timeout is 0.01 s)"
    states = {one.name: one.state for one in await reading.steps(await jobs._store(), job.id)}
    assert states["@signal:decision"] is StepState.FAILED


async def test_a_wait_timeout_that_leaves_the_handler_is_final(jobs: Jobs) -> None:
    @jobs.task(retry=[0])
    async def work(ctx: Context) -> None:
        await ctx.wait_for(decision, timeout=0.01)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.retries, job.attempts) == (Status.FAILED, 0, 1)
    assert last_line(job.last_error).endswith(
        "WaitTimeout: the signal decision had not come when the wait ended (its timeout is 0.01 s)"
    )


async def test_a_wake_ends_a_wait_without_an_end(jobs: Jobs) -> None:
    @jobs.task
    async def work(ctx: Context) -> Any:
        return await ctx.wait_for("x", default="woken")

    await jobs.start()
    made = await work.enqueue()
    await waits(jobs, made.id)
    await jobs.wake(made.id)
    assert (await ended(jobs, made.id)).result == "woken"


async def test_a_retry_keeps_what_a_wait_has_got(jobs: Jobs) -> None:
    @jobs.task(retry=[0])
    async def work(ctx: Context) -> list[Any]:
        found = [await ctx.wait_for("x"), await ctx.wait_for("x")]
        if ctx.job.retries < 2:
            raise ValueError("again")
        return found

    made = await work.enqueue()
    for n in range(4):
        await jobs.signal(made.id, "x", n)
    await jobs.start()
    job = await ended(jobs, made.id)
    assert (job.status, job.result, job.attempts) == (Status.COMPLETED, [0, 1], 3)


async def test_an_early_signal_that_does_not_fit_is_skipped(jobs: Jobs) -> None:
    @jobs.task
    async def work(ctx: Context) -> list[str]:
        return [(await ctx.wait_for(decision)).why, (await ctx.wait_for(decision)).why]

    made = await work.enqueue()
    for data in ({"ok": "perhaps"}, 5, {"ok": True, "why": "first"}, None):
        await jobs.signal(made.id, "decision", data)
    await jobs.start()
    await waits(jobs, made.id)
    await jobs.signal(made.id, decision, Decision(True, "second"))
    job = await ended(jobs, made.id)
    assert (job.status, job.result, job.version) == (Status.COMPLETED, ["first", "second"], 2), job.last_error
    lines = [line.text for line in (await jobs.logs(made.id)).lines]
    assert len(lines) == 3
    assert all(text.startswith("ctx.wait_for(decision) skips a signal that does not fit: data") for text in lines)


async def test_a_signal_of_another_type_is_refused_in_a_replay(jobs: Jobs) -> None:
    @jobs.task
    async def work(ctx: Context) -> None:
        await ctx.wait_for(Signal("x", str if ctx.job.version == 1 else int))
        await ctx.sleep(0.01)

    made = await work.enqueue()
    await jobs.signal(made.id, "x", "text")
    await jobs.start()
    job = await ended(jobs, made.id)
    assert (job.status, job.version) == (Status.FAILED, 2)
    assert "StepChanged: the step @signal:x has changed: the signal that is stored" in last_line(job.last_error)


async def test_a_job_can_not_signal_itself(jobs: Jobs) -> None:
    @jobs.task(max_retries=0)
    async def work(ctx: Context) -> None:
        await jobs.signal(ctx.job.id, "x", 1)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert "can't signal itself" in last_line(job.last_error)


# ── Callbacks ──


async def test_a_callback_has_the_same_address_after_a_replay(url: str) -> None:
    seen: list[Callback] = []
    async with Jobs(url, public_url="https://jobs.example.com") as jobs:

        @jobs.task
        async def work(ctx: Context) -> list[str]:
            seen.append(await ctx.callback(decision, timeout=HOUR))
            seen.append(await ctx.callback(decision))
            seen.append(await asyncio.to_thread(ctx.sync.callback, "other", timeout=HOUR))
            await ctx.sleep(0.01)
            return [one.url for one in seen]

        await jobs.start()
        job = await ended(jobs, (await work.enqueue()).id)
        assert job.status is Status.COMPLETED, job.last_error
        assert seen[:3] == seen[3:6]
        assert len({one.url for one in seen}) == 3
        assert [one.signal for one in seen[:3]] == ["decision", "decision", "other"]
        assert all(one.url.startswith("https://jobs.example.com/") for one in seen)
        rows = [row for row in await reading.steps(await jobs._store(), job.id) if row.name.startswith("@callback")]
        assert [(row.name, row.n, row.state) for row in rows] == [
            ("@callback:decision", 1, StepState.SUCCEEDED),
            ("@callback:decision", 2, StepState.SUCCEEDED),
            ("@callback:other", 1, StepState.SUCCEEDED),
        ]
        assert [row.deadline is None for row in rows] == [False, True, False]
        assert rows[0].result["timeout"] == HOUR
        await jobs.stop()


async def test_a_callback_needs_a_public_url(jobs: Jobs) -> None:
    @jobs.task(max_retries=0)
    async def work(ctx: Context) -> None:
        await ctx.callback(decision)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert "public_url" in last_line(job.last_error)
    assert await jobs.steps(job.id) == []


# ── Beside steps, and beside each other ──


async def test_steps_beside_a_wait_end_first(jobs: Jobs, deeds: Deeds) -> None:
    """Steps that begin right after those steps also end before the run waits."""
    open_wait, go = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        open_wait.set()
        await go.wait()
        return deeds.do("slow")

    async def branch(ctx: Context) -> None:
        await ctx.step(slow)
        await asyncio.gather(ctx.step(deeds.do, "left"), ctx.step(deeds.do, "right"))
        await ctx.step(deeds.do, "last")

    @jobs.task
    async def work(ctx: Context) -> Any:
        got, _ = await asyncio.gather(ctx.wait_for("x"), branch(ctx))
        return got

    await jobs.start()
    made = await work.enqueue()
    await open_wait.wait()

    async def is_open() -> bool:
        return any(row.name == "@signal:x" for row in await reading.steps(await jobs._store(), made.id))

    await until(is_open)
    assert (await jobs.get(made.id)).status is Status.PROCESSING
    go.set()
    await waits(jobs, made.id)
    assert deeds.all == ["slow", "left", "right", "last"]
    await jobs.signal(made.id, "x", 1)
    job = await ended(jobs, made.id)
    assert (job.result, job.version, len(deeds.all)) == (1, 2, 4), job.last_error


async def test_a_signal_that_comes_while_steps_end_is_read_by_the_same_run(jobs: Jobs) -> None:
    runs, go = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        runs.set()
        await go.wait()

    @jobs.task
    async def work(ctx: Context) -> Any:
        got, _ = await asyncio.gather(ctx.wait_for("x"), ctx.step(slow))
        return got

    await jobs.start()
    made = await work.enqueue()
    await runs.wait()
    await jobs.signal(made.id, "x", 1)
    go.set()
    job = await ended(jobs, made.id)
    assert (job.result, job.version) == (1, 1), job.last_error


async def test_a_step_that_is_tried_again_comes_before_a_wait(jobs: Jobs) -> None:
    tries: list[int] = []

    @step(retry=[0.01])
    async def flaky() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError

    @jobs.task
    async def work(ctx: Context) -> Any:
        return (await asyncio.gather(ctx.wait_for("x"), ctx.step(flaky)))[0]

    await jobs.start()
    made = await work.enqueue()
    await waits(jobs, made.id)
    assert len(tries) == 2
    await jobs.signal(made.id, "x", 1)
    assert (await ended(jobs, made.id)).result == 1


@pytest.mark.parametrize("order", ["ab", "ba"])
async def test_several_waits_at_once(jobs: Jobs, order: str) -> None:
    @jobs.task
    async def work(ctx: Context) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.wait_for(name)) for name in "ab"]
            group.create_task(ctx.sleep(0.01))
        return [task.result() for task in tasks]

    await jobs.start()
    made = await work.enqueue()
    await waits(jobs, made.id)
    for name in order:
        await jobs.signal(made.id, name, name)
    job = await ended(jobs, made.id)
    assert (job.status, job.result) == (Status.COMPLETED, ["a", "b"]), job.last_error


async def test_the_first_time_of_several_waits_counts(jobs: Jobs, deeds: Deeds) -> None:
    async def reminded(ctx: Context) -> None:
        await ctx.sleep(0.05)
        await ctx.step(deeds.do, "remind")

    @jobs.task
    async def work(ctx: Context) -> Any:
        return (await asyncio.gather(ctx.wait_for("x", timeout=HOUR), reminded(ctx)))[0]

    await jobs.start()
    made = await work.enqueue()
    await until(lambda: deeds.all == ["remind"])
    await jobs.signal(made.id, "x", 1)
    assert (await ended(jobs, made.id)).result == 1


# ── Suspend ──


async def swallow_all(ctx: Context) -> None:
    with suppress(BaseException):
        await ctx.sleep(HOUR)


async def swallow_and_step(ctx: Context) -> None:
    for _ in range(2):
        with suppress(BaseException):
            await ctx.wait_for("x")
    with suppress(BaseException):
        await ctx.step(asyncio.sleep, 0)


async def swallow_by_gather(ctx: Context) -> None:
    await asyncio.gather(ctx.sleep(HOUR), return_exceptions=True)


async def swallow_by_group(ctx: Context) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.sleep(HOUR))
            group.create_task(ctx.wait_for("x"))
    except* BaseException:
        pass


async def swallow_by_shield(ctx: Context) -> None:
    with suppress(BaseException):
        await asyncio.shield(ctx.sleep(HOUR))


async def swallow_in_a_task(ctx: Context) -> None:
    task = asyncio.create_task(ctx.sleep(HOUR))
    await asyncio.wait({task})


@pytest.mark.parametrize(
    "how",
    [swallow_all, swallow_and_step, swallow_by_gather, swallow_by_group, swallow_by_shield, swallow_in_a_task],
)
async def test_a_handler_that_swallows_suspend_fails_for_good(jobs: Jobs, how: Callable[[Context], Any]) -> None:
    @jobs.task(retry=[0])
    async def work(ctx: Context) -> None:
        await how(ctx)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.version) == (Status.FAILED, 1)
    assert "the handler has caught Suspend, by which ctx." in last_line(job.last_error)


async def test_a_sync_handler_that_swallows_suspend_fails_for_good(jobs: Jobs) -> None:
    @jobs.task
    def work(ctx: SyncContext) -> None:
        with suppress(BaseException):
            ctx.wait_for("x")

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.version) == (Status.FAILED, 1)
    assert "by which ctx.wait_for(x) ends the run" in last_line(job.last_error)


@pytest.mark.parametrize("kind", KINDS)
async def test_middleware_sees_neither_success_nor_failure_of_a_wait(jobs: Jobs, kind: str) -> None:
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

    of_both_kinds(jobs, kind, lambda ctx: ctx.sleep(0.01))
    await jobs.start()
    job = await ended(jobs, (await jobs.enqueue("work")).id)
    assert (job.status, seen) == (Status.COMPLETED, ["closed", "returned"]), job.last_error


# ── What is refused ──


async def test_a_wait_inside_a_step_or_a_transaction_is_refused(jobs: Jobs, deeds: Deeds) -> None:
    async def sleeper(ctx: Context) -> None:
        with pytest.raises(WrongContext, match=r"ctx\.sleep inside of the step sleeper: only the handler may call it"):
            await ctx.sleep(1)

    def waiter(ctx: SyncContext) -> None:
        with pytest.raises(WrongContext, match=r"ctx\.wait_for inside of the step waiter"):
            ctx.wait_for("x")

    @jobs.task
    async def work(ctx: Context) -> None:
        async def closure() -> None:
            with pytest.raises(WrongContext, match=r"ctx\.callback inside of the step closure"):
                await ctx.callback("x")

        await ctx.step(sleeper)
        await ctx.step(waiter)
        await ctx.step(closure)
        async with ctx.transaction():
            with pytest.raises(WrongContext, match=r"ctx.wait_for inside of ctx.transaction\(\): end the transaction"):
                await ctx.wait_for("x")
        deeds.do("done")

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, deeds.all) == (Status.COMPLETED, ["done"]), job.last_error


async def test_a_wait_after_the_handler_is_refused(jobs: Jobs) -> None:
    left: list[Context] = []

    @jobs.task
    async def work(ctx: Context) -> None:
        left.append(ctx)
        await ctx.sleep(0)

    await jobs.start()
    await ended(jobs, (await work.enqueue()).id)
    with pytest.raises(WrongContext, match=r"ctx.wait_for: the handler has ended"):
        await left[0].wait_for("x")
    with pytest.raises(WrongContext, match=r"ctx.sleep: the handler has ended"):
        await left[0].sleep(1)


async def test_a_sync_handler_needs_a_sync_context(jobs: Jobs, deeds: Deeds) -> None:
    @jobs.task
    def work(ctx: Context) -> None:
        for call in (lambda: ctx.sleep(1), lambda: ctx.wait_for("x"), lambda: ctx.callback("x")):
            with pytest.raises(WrongContext, match="annotate its ctx with SyncContext"):
                call()
        deeds.do("done")

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert deeds.all == ["done"], job.last_error


async def test_times_and_names_must_be_usable(jobs: Jobs, deeds: Deeds) -> None:
    naive = datetime.now()  # noqa: DTZ005 - as handlers write it
    calls: list[tuple[Callable[[Context], Any], str]] = [
        (lambda ctx: ctx.sleep(-1), "seconds: must be 0 to"),
        (lambda ctx: ctx.sleep(nan), "seconds: must be 0 to"),
        (
            lambda ctx: ctx.sleep("1"),  # type: ignore[arg-type]
            "seconds: must be seconds or a timedelta",
        ),
        (lambda ctx: ctx.sleep(timedelta(seconds=-1)), "seconds: must be 0 to"),
        (lambda ctx: ctx.sleep(until=naive), "until: has no time zone"),
        (lambda ctx: ctx.sleep(), "needs either seconds or until="),
        (lambda ctx: ctx.sleep(1, until=datetime.now(UTC)), "needs either seconds or until="),
        (lambda ctx: ctx.wait_for("x", timeout=-1), "timeout: must be 0 to"),
        (lambda ctx: ctx.wait_for("x", timeout=nan), "timeout: must be 0 to"),
        (lambda ctx: ctx.wait_for("x", default=object()), "default: "),
        (lambda ctx: ctx.wait_for("a b"), "signal: 'a b' may only hold"),
        (
            lambda ctx: ctx.wait_for(5),  # type: ignore[call-overload]
            "signal: ",
        ),
        (lambda ctx: ctx.callback("x", timeout=0), "timeout: must be more than 0"),
    ]

    @jobs.task
    async def work(ctx: Context) -> None:
        for call, text in calls:
            with pytest.raises(InvalidInput, match=text):
                await call(ctx)
        deeds.do("done")

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert deeds.all == ["done"], job.last_error


def test_names_of_steps_do_not_begin_like_those_of_waits() -> None:
    with pytest.raises(InvalidInput, match="an @ at its start"):
        step(last_line).using(name="@sleep")
    with pytest.raises(InvalidInput, match="an @ at its start"):
        step(was="@sleep")(last_line)
    with pytest.raises(InvalidInput, match=r"steps\[0\]\.name: '@sleep' has a #"):
        check_template(Template(topic="a", steps=(StepInfo(name="@sleep"),)))


async def test_waits_count_towards_the_most_steps(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rowlock.run_steps.MAX_STEPS", 3)

    @jobs.task
    async def work(ctx: Context) -> None:
        for _ in range(3):
            await ctx.sleep(0)
        await ctx.step(asyncio.sleep, 0)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert "a job may have at most 3 steps, and sleep is one more" in last_line(job.last_error)


# ── Cancel ──


class Undoing:
    """A handler that books something, waits, and undoes it if it is cancelled meanwhile."""

    def __init__(self, jobs: Jobs, deeds: Deeds, kind: str = "async") -> None:
        self.deeds = deeds
        self.go = threading.Event()  # an undo run does not reach its wait before this is set
        self.go.set()
        self.finally_go = threading.Event()
        self.finally_go.set()
        self.errors: list[Cancelled] = []

        @step(cancelable=False)
        def undo(ctx: SyncContext) -> str:
            ctx.check()
            return deeds.do("undo")

        def book() -> str:
            return deeds.do("book")

        if kind == "sync":

            @jobs.task("work")
            def handle(ctx: SyncContext) -> None:
                deeds.do(f"run {ctx.job.version}")
                ctx.step(book)
                if ctx.is_undo:
                    self.go.wait()
                ctx.check()
                try:
                    ctx.wait_for("x")
                except Cancelled as error:
                    self.errors.append(error)
                    with pytest.raises(Cancelled):
                        ctx.step(deeds.do, "never")
                    ctx.step(undo)
                    raise
                finally:
                    self.finally_go.wait()
                deeds.do("never")
        else:

            @jobs.task("work")
            async def handle_async(ctx: Context) -> None:
                deeds.do(f"run {ctx.job.version}")
                await ctx.step(book)
                while ctx.is_undo and not self.go.is_set():
                    await asyncio.sleep(0.01)
                    ctx.check()
                assert not ctx.cancelled
                try:
                    await ctx.wait_for("x")
                except Cancelled as error:
                    self.errors.append(error)
                    with pytest.raises(Cancelled):
                        await ctx.step(deeds.do, "never")
                    await ctx.step(undo)
                    raise
                finally:
                    await asyncio.to_thread(self.finally_go.wait)
                deeds.do("never")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_waiting_job_that_is_cancelled_undoes_its_steps(jobs: Jobs, deeds: Deeds, kind: str) -> None:
    undoing = Undoing(jobs, deeds, kind)
    await quick(jobs)
    made = await jobs.enqueue("work")
    await waits(jobs, made.id)
    await jobs.cancel(made.id, reason="not needed")
    job = await ended(jobs, made.id)
    assert (job.status, job.version, job.cancel_reason) == (Status.CANCELLED, 2, "not needed"), job.last_error
    assert deeds.all == ["run 1", "book", "run 2", "undo"]
    assert [error.reason for error in undoing.errors] == ["not needed"]
    assert (await jobs.verify()).findings == []


@pytest.mark.parametrize("kind", KINDS)
async def test_an_undo_run_is_not_disturbed_before_its_wait(jobs: Jobs, deeds: Deeds, kind: str) -> None:
    undoing = Undoing(jobs, deeds, kind)
    worker = await quick(jobs, lease=1.0)
    made = await jobs.enqueue("work")
    await waits(jobs, made.id)
    undoing.go.clear()
    await jobs.cancel(made.id)
    await until(lambda: "run 2" in deeds.all)
    [run] = worker.slots.runs.values()
    renewed = run.renewed
    await until(lambda: run.renewed > renewed)  # the worker has learned of the cancel by now
    assert run.interruption is None
    undoing.go.set()
    job = await ended(jobs, made.id)
    assert (job.status, deeds.all) == (Status.CANCELLED, ["run 1", "book", "run 2", "undo"]), job.last_error


async def test_a_waiting_job_without_finished_steps_is_cancelled_at_once(jobs: Jobs, deeds: Deeds) -> None:
    @jobs.task
    async def work(ctx: Context) -> None:
        await ctx.sleep(0)
        deeds.do("run")
        await ctx.sleep(HOUR)

    await jobs.start()
    made = await work.enqueue()
    await waits(jobs, made.id)
    job = await jobs.cancel(made.id)
    assert (job.status, job.version, deeds.all) == (Status.CANCELLED, 1, ["run"])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancel_while_a_run_is_about_to_wait(jobs: Jobs, deeds: Deeds, kind: str) -> None:
    """The next run undoes. The cancel does not cut the `finally` block short: a handler that looks at the cancel has
    the whole grace."""
    undoing = Undoing(jobs, deeds, kind)
    undoing.finally_go.clear()
    worker = await quick(jobs)
    made = await jobs.enqueue("work")

    async def is_open() -> bool:
        return any(row.name == "@signal:x" for row in await reading.steps(await jobs._store(), made.id))

    await until(is_open)
    [run] = worker.slots.runs.values()
    await until(lambda: run.looks)  # the wait has suspended the run
    await jobs.cancel(made.id)
    await until(lambda: run.interruption is not None)
    undoing.finally_go.set()
    job = await ended(jobs, made.id)
    assert job.status is Status.CANCELLED, job.last_error
    assert deeds.all == ["run 1", "book", "run 2", "undo"]
    assert "wait_cancelled" in [event.event for event in await jobs.events(made.id)]
    assert (await jobs.verify()).findings == []


async def test_a_cancel_that_comes_before_the_wait_is_raised_there(jobs: Jobs, deeds: Deeds) -> None:
    """The run learns of the cancel from the database, even if the worker does not know of it yet."""

    @jobs.task
    async def work(ctx: Context) -> None:
        await jobs.cancel(ctx.job.id)
        try:
            await ctx.wait_for("x")
        except Cancelled:
            assert ctx.cancelled
            with pytest.raises(Cancelled):
                await ctx.step(deeds.do, "never")
            await ctx.step(step(cancelable=False)(deeds.do), "undo")
            raise

    await quick(jobs, poll=HOUR)
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.version, deeds.all) == (Status.CANCELLED, 1, ["undo"]), job.last_error


async def test_the_grace_bounds_a_handler_that_does_not_end_after_its_wait(jobs: Jobs, deeds: Deeds) -> None:
    @jobs.task(cancel=Cancel(grace=0.2))
    async def work(ctx: Context) -> None:
        await ctx.step(deeds.do, "book")
        try:
            await ctx.wait_for("x")
        except Cancelled:
            try:
                await asyncio.Event().wait()
            finally:
                deeds.do("ended")

    await quick(jobs)
    made = await work.enqueue()
    await waits(jobs, made.id)
    await jobs.cancel(made.id)
    job = await ended(jobs, made.id)
    await until(lambda: deeds.all == ["book", "ended"])
    assert job.status is Status.CANCELLED


async def test_the_grace_bounds_an_undo_run_that_does_not_come_to_its_wait(jobs: Jobs, deeds: Deeds) -> None:
    undoing = Undoing(jobs, deeds)
    worker = await quick(jobs)
    made = await jobs.enqueue("work")
    await waits(jobs, made.id)
    undoing.go.clear()
    await jobs.cancel(made.id)
    await until(lambda: "run 2" in deeds.all)
    store = await jobs._store()
    assert [moved.status for moved in await store.move_due(CancelTimeout(by="test", grace=0.0))] == [Status.CANCELLED]
    await until(lambda: not worker.slots.runs)
    assert deeds.all == ["run 1", "book", "run 2"]
    assert (await jobs.get(made.id)).status is Status.CANCELLED


async def test_a_worker_that_stops_leaves_the_undo_to_another(jobs: Jobs, deeds: Deeds, url: str) -> None:
    undoing = Undoing(jobs, deeds)
    await quick(jobs)
    made = await jobs.enqueue("work")
    await waits(jobs, made.id)
    undoing.go.clear()
    await jobs.cancel(made.id)
    await until(lambda: "run 2" in deeds.all)
    await jobs.stop(grace=0.2)
    job = await jobs.get(made.id)
    assert (job.status, job.locked_by) == (Status.CANCEL_REQUESTED, None)
    async with Jobs(url) as others:
        Undoing(others, deeds)
        await others.start()
        assert (await ended(others, made.id)).status is Status.CANCELLED
        await others.stop()
    assert deeds.all == ["run 1", "book", "run 2", "run 3", "undo"]


async def test_a_worker_that_stops_in_the_middle_of_an_undo_leaves_it_to_another(
    jobs: Jobs, deeds: Deeds, url: str
) -> None:
    hangs = asyncio.Event()

    def register(app: Jobs, *, hang: bool) -> None:
        async def undo() -> str:
            if hang:
                hangs.set()
                await asyncio.sleep(HOUR)
            return deeds.do("undo")

        @app.task("work")
        async def _work(ctx: Context) -> None:
            await ctx.step(step(deeds.do), "book")
            try:
                await ctx.wait_for("go")
            except Cancelled:
                await ctx.step(step(cancelable=False)(undo))
                raise

    register(jobs, hang=True)
    await jobs.start()
    made = await jobs.enqueue("work")
    await waits(jobs, made.id)
    await jobs.cancel(made.id)
    await asyncio.wait_for(hangs.wait(), 30)
    await jobs.stop(grace=0.2)
    job = await jobs.get(made.id)
    assert (job.status, job.locked_by) == (Status.CANCEL_REQUESTED, None)
    async with Jobs(url) as others:
        register(others, hang=False)
        await others.start()
        assert (await ended(others, made.id)).status is Status.CANCELLED
        await others.stop()
    assert deeds.all == ["book", "undo"]


async def test_an_undo_run_ends_at_a_step_that_is_not_stored(jobs: Jobs, deeds: Deeds) -> None:
    """The code has changed: it calls a step that has no stored result."""

    @jobs.task
    async def work(ctx: Context) -> None:
        try:
            await ctx.step(deeds.do, "book")
            if ctx.is_undo:
                await ctx.step(deeds.do, "never")
            await ctx.wait_for("x")
        except Cancelled as error:
            deeds.do(str(error))
            raise

    await jobs.start()
    made = await work.enqueue()
    await waits(jobs, made.id)
    await jobs.cancel(made.id, reason="why not")
    assert (await ended(jobs, made.id)).status is Status.CANCELLED
    assert deeds.all == ["book", "cancelled: why not"]


# ── Workers that stop, die and are replaced ──


async def test_a_stop_keeps_a_wait(jobs: Jobs, deeds: Deeds) -> None:
    """The worker is told to stop while the handler cleans up."""
    cleaning = asyncio.Event()

    @jobs.task
    async def work(ctx: Context) -> None:
        try:
            await ctx.sleep(HOUR)
        finally:
            cleaning.set()
            await until(lambda: ctx.cancelled)
            deeds.do("told")

    await jobs.start()
    made = await work.enqueue()
    await cleaning.wait()
    await jobs.stop(grace=2)
    job = await jobs.get(made.id)
    assert (job.status, deeds.all) == (Status.WAITING, ["told"])


async def test_new_code_goes_on_with_a_waiting_job(jobs: Jobs, deeds: Deeds, url: str) -> None:
    @jobs.task
    async def work(ctx: Context) -> str:
        await ctx.step(deeds.do, "old")
        return str(await ctx.wait_for("x"))

    await jobs.start()
    made = await work.enqueue()
    await waits(jobs, made.id)
    await jobs.stop()
    await jobs.signal(made.id, "x", 1)
    async with Jobs(url) as others:

        @others.task("work")
        async def changed(ctx: Context) -> str:
            await ctx.step(deeds.do, "new")
            got = await ctx.wait_for(Signal("x", int))
            return f"new {got} {await ctx.step(deeds.do, 'more')}"

        await others.start()
        job = await ended(others, made.id)
        await others.stop()
    assert (job.status, job.result) == (Status.COMPLETED, "new 1 more"), job.last_error
    assert deeds.all == ["old", "more"]


async def test_a_run_that_loses_its_job_before_it_waits(jobs: Jobs, deeds: Deeds) -> None:
    """The run loses its job between the look for a signal and the settlement. The next run gets the signal that this
    run has read."""
    cleaning, go = asyncio.Event(), asyncio.Event()

    @jobs.task
    async def work(ctx: Context) -> list[Any]:
        first = await ctx.wait_for("x")
        try:
            return [first, await ctx.wait_for("x")]
        finally:
            if ctx.job.version == 1:
                cleaning.set()
                await go.wait()

    worker = await quick(jobs)
    made = await work.enqueue()
    await jobs.signal(made.id, "x", 1)
    await cleaning.wait()
    store = await jobs._store()
    moved = await store.move_due(Rescue(by="test", backoff=[0.0], workers=[worker.name]))
    assert [one.status for one in moved] == [Status.PENDING]
    await jobs.signal(made.id, "x", 2)
    go.set()
    job = await ended(jobs, made.id)
    assert (job.status, job.result) == (Status.COMPLETED, [1, 2]), job.last_error


async def test_waiting_jobs_hold_no_slots(jobs: Jobs) -> None:
    most = 0

    @jobs.task
    async def work(ctx: Context, n: int) -> int:
        return n + int(await ctx.wait_for(Signal("x", int)))

    @jobs.task
    async def short() -> str:
        return "done"

    worker = await quick(jobs, concurrency=2)
    made = [await work.enqueue(n) for n in range(200)]

    async def all_wait() -> bool:
        nonlocal most
        most = max(most, worker.running)
        return (await jobs.stats()).waiting == len(made)

    await until(all_wait)
    assert most <= 2
    assert (worker.running, worker.slots.runs) == (0, {})
    assert (await ended(jobs, (await short.enqueue()).id)).result == "done"
    for one in made:
        await jobs.signal(one.id, "x", 1000)
    found = [(await ended(jobs, one.id)).result for one in made]
    assert found == [1000 + n for n in range(200)]
    assert (await jobs.verify()).findings == []


async def test_a_signal_that_comes_while_a_run_ends_is_read_at_once(jobs: Jobs) -> None:
    """The doorbell has rung before the run ends, and does not ring again."""
    cleaning, go = asyncio.Event(), asyncio.Event()

    @jobs.task
    async def work(ctx: Context) -> Any:
        try:
            return await ctx.wait_for("x")
        finally:
            cleaning.set()
            await go.wait()

    worker = await quick(jobs, poll=HOUR, maintenance=HOUR, listen=False)
    made = await work.enqueue()
    await cleaning.wait()
    await jobs.signal(made.id, "x", 1)
    await until(lambda: not worker.claim_settle._may_have_work and not worker.claim_settle.under_way)
    go.set()
    job = await ended(jobs, made.id)
    assert (job.result, job.version) == (1, 2), job.last_error
    assert "resumed" not in [event.event for event in await jobs.events(made.id)]  # the job has not waited at all


async def test_no_signal_is_missed(jobs: Jobs) -> None:
    """A job gets every signal, at whatever moment around its wait the signal comes."""
    rounds, signals = 100, 3

    @jobs.task
    async def work(ctx: Context) -> list[int]:
        found = []
        for n in range(signals):
            found.append(await ctx.wait_for(Signal("x", int), timeout=HOUR))
            if n % 2:
                await asyncio.sleep(0)
        return found

    worker = await quick(jobs, poll=HOUR, concurrency=20)  # only the doorbell wakes the worker
    chance = random.Random(7)

    async def one() -> None:
        made = await work.enqueue()
        for n in range(signals):
            await asyncio.sleep(chance.choice([0, 0.001, 0.003, 0.01, 0.03]) * chance.random())
            await jobs.signal(made.id, "x", n)
        job = await ended(jobs, made.id)
        assert (job.status, job.result, job.retries) == (Status.COMPLETED, list(range(signals)), 0), job.last_error

    for _ in range(rounds // 10):
        await asyncio.gather(*(one() for _ in range(10)))
    assert worker.slots.runs == {}
    assert (await jobs.verify()).findings == []
