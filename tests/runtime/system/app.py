"""The application of these tests. Each test's folder gets a copy: `rowlock worker app:jobs` runs there.

Handlers write a line into runs/<pid> before and after their work.
"""

import asyncio
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

from rowlock import Cancel, Cancelled, Job, Jobs, Signal, SyncContext, step
from rowlock.context import Context
from rowlock.core.retry import Delays
from rowlock.errors import LeaseLost

jobs = Jobs()
RUNS = Path.cwd() / "runs"
decision = Signal("decision", int)


def note(word: str, job: Job) -> None:
    with (RUNS / str(os.getpid())).open("a") as file:
        file.write(f"{word} {job.id} {job.version}\n")


@jobs.task
async def quick(job: Job) -> None:
    note("began", job)


@jobs.task
async def short(job: Job, seconds: float) -> None:
    note("began", job)
    await asyncio.sleep(seconds)


@jobs.task
async def nap(job: Job, seconds: float, again: float | None = None) -> dict[str, Any]:
    """Sleep. `again`: the seconds of every run but the first."""
    note("began", job)
    try:
        await asyncio.sleep(seconds if again is None or job.version == 1 else again)
    except asyncio.CancelledError:
        note("cancelled", job)
        raise
    note("ended", job)
    return {"run": job.version, "pid": os.getpid()}


def asleep(job: Job, seconds: float) -> dict[str, Any]:
    note("began", job)
    time.sleep(seconds)
    note("ended", job)
    return {"run": job.version, "pid": os.getpid()}


@jobs.task
def doze(job: Job, seconds: float) -> dict[str, Any]:
    return asleep(job, seconds)


@jobs.task
def watchful(job: Job, ctx: Context, seconds: float, again: float | None = None) -> dict[str, Any]:
    """Run in a thread and ask all the time whether the run may go on. Write a line if the lease is lost."""
    note("began", job)
    end = time.monotonic() + (seconds if again is None or job.version == 1 else again)
    try:
        while time.monotonic() < end:
            ctx.check()
            time.sleep(0.02)
    except LeaseLost:
        note("lost", job)
        raise
    return {"run": job.version, "pid": os.getpid()}


@jobs.task(retry=Delays((0.1,)))
async def stubborn(job: Job) -> None:
    note("began", job)
    if job.version < 3:
        await asyncio.sleep(600)


@jobs.task(process=True)
def toil(job: Job, seconds: float) -> dict[str, Any]:
    return asleep(job, seconds)


@jobs.task
async def block(job: Job, seconds: float) -> None:
    """Block the event loop, which no handler should do."""
    note("began", job)
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point
    note("ended", job)


@jobs.task
def seize(job: Job, seconds: int) -> None:
    """Run in a thread and hold the GIL, as a C extension may: no other thread of the process gets to run."""
    note("began", job)
    ctypes.PyDLL(None).sleep(seconds)


@jobs.task
async def poison(job: Job, how: str) -> None:
    note("began", job)
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL)


# ── Steps in child processes ──


@step
def plain(ctx: SyncContext, name: str) -> dict[str, Any]:
    note(name, ctx.job)
    return {"name": name, "pid": os.getpid()}


@step
def booked(ctx: SyncContext, n: int) -> int:
    note("booked", ctx.job)
    with ctx.transaction() as conn:
        conn.execute(f"INSERT INTO orders VALUES ({n})")
        ctx.complete(n)
    return -1


@step(retry=[0], max_retries=2)
def flaky(ctx: SyncContext) -> str:
    note("flaky", ctx.job)
    if ctx.job.version < 3:
        raise ValueError(f"run {ctx.job.version}")
    return "at last"


@step(cancelable=False, timeout=60)
def finalize(ctx: SyncContext, until: str) -> str:
    note("finalize", ctx.job)
    while not (RUNS.parent / until).exists():
        ctx.check()
        time.sleep(0.02)
    note("finalized", ctx.job)
    return "done"


@jobs.task(process=True, retry=Delays((0.0,)), steps=[plain, booked, flaky])
def pipeline(ctx: SyncContext) -> list[Any]:
    first = ctx.step(plain, "first")
    found = [ctx.step(booked, 7), ctx.step(flaky)]
    if ctx.job.version == 3:
        raise ValueError("once more")
    return [first["name"], *found]


@jobs.task(process=True, retry=Delays((0.0,)))
async def async_pipeline(ctx: Context) -> list[Any]:
    first, second = await asyncio.gather(ctx.step(plain, "first"), ctx.step(booked, 8))
    return [first["name"], second, await ctx.step(flaky)]


@jobs.task(process=True, max_retries=0)
def swallow(ctx: SyncContext) -> None:
    try:
        ctx.step(flaky)
    except BaseException:
        note("swallowed", ctx.job)


@jobs.task(process=True, cancel=Cancel(grace=0.2, mode="kill"))
def careful(ctx: SyncContext, until: str) -> None:
    ctx.step(finalize, until)
    note("after", ctx.job)
    while True:
        time.sleep(0.02)


@jobs.task(process=True, max_retries=3, retry=Delays((0.0,)))
def mortal(ctx: SyncContext) -> str:
    """Kill the child process after the first step, once."""
    ctx.step(plain, "first")
    if ctx.job.version == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


# ── Waits ──


@step(cancelable=False)
def undo(ctx: SyncContext) -> None:
    ctx.check()
    note("undo", ctx.job)


@jobs.task(process=True)
def approval(ctx: SyncContext) -> list[Any]:
    first = ctx.step(plain, "first")
    try:
        got = ctx.wait_for(decision, timeout=3600)
        ctx.sleep(0.01)
        return [first["name"], got, ctx.wait_for("late", timeout=0, default="no")]
    except Cancelled:
        ctx.step(undo)
        raise
    finally:
        note("finally", ctx.job)


@jobs.task(process=True)
async def async_approval(ctx: Context) -> list[Any]:
    first = await ctx.step(plain, "first")
    try:
        got = await ctx.wait_for(decision, timeout=3600)
        await ctx.sleep(0.01)
        return [first["name"], got, await ctx.wait_for("late", timeout=0, default="no")]
    except Cancelled:
        await ctx.step(undo)
        raise
    finally:
        note("finally", ctx.job)


@jobs.task(process=True, max_retries=0)
def swallow_wait(ctx: SyncContext) -> None:
    try:
        ctx.sleep(3600)
    except BaseException:
        note("swallowed", ctx.job)


@jobs.task(max_retries=3, retry=Delays((0.0,)))
async def mortal_wait(ctx: Context) -> list[int]:
    """Kill the worker, once, when this run has read one signal and is about to wait for the next."""
    first = await ctx.wait_for(decision)
    try:
        return [first, await ctx.wait_for(decision)]
    finally:
        if not ctx.job.crashes:
            note("dies", ctx.job)
            os.kill(os.getpid(), signal.SIGKILL)
