"""The handlers of the simulation. A job's payload says what each run does; further runs repeat the last entry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any, Protocol

from rowlock.context import Context
from rowlock.core.job import Job
from rowlock.core.retry import Delays
from rowlock.errors import Cancelled, Final, LeaseLost, Snooze, WaitTimeout
from rowlock.steps import step
from rowlock.tasks import Policy, Task
from tests.proof.simulation_loop import CURRENT, Lane

TOPICS = ("calls", "mails", "sums")
BUSINESS = "CREATE TABLE business (job_id TEXT NOT NULL, version INTEGER NOT NULL)"

PAID = "CREATE TABLE paid (job_id TEXT NOT NULL, version INTEGER NOT NULL)"
STEPPED = 5  # one of so many seeds has jobs that take durable steps; the other seeds stay as they were

WAITING = 7  # one of so many seeds has jobs that wait

_STEPS = ("work", "fail", "final", "snooze", "give_up", "hang", "deaf", "block", "polite", "commit", "enqueue", "beat")
_PARTS = 4
_CHANCES = (40, 12, 2, 8, 2, 3, 2, 3, 8, 10, 4, 3)


def steps(chance: Random, tempo: float, only: str | None = None) -> list[str]:
    """Return what the runs of a job will do. `tempo`: the seconds that a run takes, roughly. `only`: the kind of all
    runs."""
    planned = chance.choices(_STEPS, _CHANCES, k=chance.choice((1, 1, 2, 3)))
    if planned[-1] not in ("work", "commit"):
        planned.append(chance.choice(("work", "commit")))
    return [f"{only or kind} {tempo * chance.random() ** 2 * 3:.4f}" for kind in planned]


def stepped(run: str) -> str:
    """Return the same run, with durable steps."""
    kind, seconds = run.split()
    return f"{ {'work': 'steps', 'fail': 'step_fail', 'commit': 'pay'}.get(kind, kind) } {seconds}"


_WAITS = ("wait", "endless", "nap", "undo", "callback")


def waiting(run: str) -> str:
    """Return the same run, with waits. Every run of a job replays the same handler."""
    kind, seconds = run.split()
    return f"{_WAITS[_STEPS.index(kind) % len(_WAITS)]} {seconds}"


class Stage(Protocol):
    """The world in which handlers run. It records what they do."""

    over: bool

    def begins(self, worker: str, job: Job) -> int: ...

    def ends(self, n: int, ctx: Context, result: Any, error: BaseException | None) -> None: ...

    def step_begins(self, job: Job, name: str) -> None: ...

    def step_returned(self, job: Job, name: str, value: Any) -> None: ...

    def wait_returned(self, job: Job, signal: str, value: Any) -> None: ...

    def calls(self, job: Job, signal: str, n: int) -> None: ...


def make_tasks(host: Any) -> dict[str, Task[..., Any]]:
    # The function is local, so no child process can import it. So suspects run here, too.
    async def run(job: Job, ctx: Context, steps: list[str], talks: bool = False) -> Any:
        lane = CURRENT.get()
        assert lane is not None
        stage: Stage = lane.owner.stage
        n = stage.begins(lane.owner.name, job)
        kind, seconds = steps[min(job.version, len(steps)) - 1].split()
        try:
            async with _talking(ctx, talks):
                result = await _perform(kind, float(seconds), job, ctx, lane)
        except BaseException as error:
            stage.ends(n, ctx, None, error)
            raise
        stage.ends(n, ctx, result, None)
        return result

    policy = Policy(retry=Delays((0.2, 1.0)))
    return {topic: Task(host, topic, run, policy) for topic in TOPICS}


@asynccontextmanager
async def _talking(ctx: Context, talks: bool) -> AsyncIterator[None]:
    if talks:
        ctx.progress(10, stage="begun")
        ctx.log(f"begun {ctx.job.version}")
    yield
    if talks:
        ctx.progress(100, message="done")
        ctx.log(f"done {ctx.job.version}")


# ── Durable steps ──


async def _work(ctx: Context, name: str, seconds: float) -> list[Any]:
    lane = CURRENT.get()
    assert lane is not None
    lane.owner.stage.step_begins(ctx.job, name)
    for _ in range(_PARTS):
        await asyncio.sleep(seconds / _PARTS / 3)
    return [ctx.job.id, ctx.job.version]


@step
async def fetch(ctx: Context, seconds: float) -> list[Any]:
    return await _work(ctx, "fetch", seconds)


@step(retry=[0.2, 1.0], max_retries=2)
async def check(ctx: Context, seconds: float, fails: bool) -> list[Any]:
    done = await _work(ctx, "check", seconds)
    if fails:
        raise ValueError("as planned")
    return done


@step(cancelable=False)
async def send(ctx: Context, seconds: float) -> list[Any]:
    return await _work(ctx, "send", seconds)


@step
async def pay(ctx: Context, seconds: float) -> list[Any]:
    """Pay exactly once in the database."""
    done = await _work(ctx, "pay", seconds)
    async with ctx.transaction() as conn:
        conn.execute("INSERT INTO paid VALUES (?, ?)", (ctx.job.id, ctx.job.version))
        ctx.complete(done)
    return done


async def _take_steps(kind: str, seconds: float, job: Job, ctx: Context, lane: Lane) -> Any:
    stage: Stage = lane.owner.stage
    stage.step_returned(job, "fetch", await ctx.step(fetch, seconds))
    stage.step_returned(job, "check", await ctx.step(check, seconds, kind == "step_fail"))
    if kind == "pay":
        stage.step_returned(job, "pay", await ctx.step(pay, seconds))
    stage.step_returned(job, "send", await ctx.step(send, seconds))
    return [job.id, job.version]


# ── Waits ──

NOTHING = "nothing"  # the result of a wait that has timed out


async def _wait(kind: str, seconds: float, job: Job, ctx: Context, lane: Lane) -> Any:
    """Wait as the kind says. Signals come before the wait, during it, at the same moment, or never."""
    stage: Stage = lane.owner.stage
    soon = 0.3 + 8 * seconds
    match kind:
        case "endless":
            stage.wait_returned(job, "go", await ctx.wait_for("go"))
            stage.wait_returned(job, "go", await ctx.wait_for("go", timeout=soon, default=NOTHING))
        case "nap":
            await ctx.sleep(soon)
            stage.wait_returned(job, "go", await ctx.wait_for("go", timeout=soon, default=NOTHING))
        case "undo":
            stage.step_returned(job, "fetch", await ctx.step(fetch, seconds))
            await asyncio.sleep(min(2 * seconds, 0.9))  # the run that undoes must reach the wait in spite of this
            try:
                stage.wait_returned(job, "go", await ctx.wait_for("go", timeout=4 * soon))
            except Cancelled:
                stage.step_returned(job, "send", await ctx.step(send, seconds / 8))
                raise
            except WaitTimeout:
                pass
        case "callback":
            await ctx.callback("go", timeout=2 * soon)
            stage.calls(job, "go", 1)
            stage.wait_returned(job, "go", await ctx.wait_for("go", timeout=soon, default=NOTHING))
        case _:
            stage.wait_returned(job, "go", await ctx.wait_for("go", timeout=soon, default=NOTHING))
            await asyncio.sleep(seconds / 4)
    return [job.id, job.version]


async def _perform(kind: str, seconds: float, job: Job, ctx: Context, lane: Lane) -> Any:
    if kind in ("steps", "step_fail", "pay"):
        return await _take_steps(kind, seconds, job, ctx, lane)
    if kind in _WAITS:
        return await _wait(kind, seconds, job, ctx, lane)
    match kind:
        case "block":  # like time.sleep(): nothing else of this thread runs meanwhile
            lane.hold(10 * seconds)
            await asyncio.sleep(0)
        case "hang":
            await asyncio.sleep(1000)
        case "deaf":
            await _ignore_cancels(10 * seconds, lane)
        case "polite":
            for _ in range(10):
                ctx.check()
                await asyncio.sleep(seconds / 4)
        case _:  # in parts: while the process is frozen, only one part can pass
            for _ in range(_PARTS):
                await asyncio.sleep(seconds / _PARTS)
    match kind:
        case "fail":
            raise ValueError("as planned")
        case "final":
            raise Final("as planned")
        case "snooze":
            raise Snooze(5 * seconds)
        case "give_up":
            raise Cancelled("as planned")
        case "enqueue":
            await ctx.enqueue("mails", {"steps": ["work 0.1"]})
        case "beat":
            ctx.heartbeat()
            await asyncio.sleep(seconds)
        case "commit":
            return await _commit(job, ctx)
        case _:
            pass
    return [job.id, job.version]


async def _ignore_cancels(seconds: float, lane: Lane) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while (left := until - loop.time()) > 0 and not lane.owner.stage.over:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(left)


async def _commit(job: Job, ctx: Context) -> Any:
    with suppress(LeaseLost):
        async with ctx.transaction() as conn:
            conn.execute("INSERT INTO business VALUES (?, ?)", (job.id, job.version))
            ctx.complete([job.id, job.version])
    return [job.id, job.version]
