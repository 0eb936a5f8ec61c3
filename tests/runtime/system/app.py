"""The application of these tests. Each test's folder gets a copy: `rowlock worker app:jobs` runs there.

Whatever a handler does is written down in runs/<pid>, one line each, before and after.
"""

import asyncio
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

from rowlock import Job, Jobs
from rowlock.context import Context
from rowlock.core.retry import Delays
from rowlock.errors import LeaseLost

jobs = Jobs()
RUNS = Path.cwd() / "runs"


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
    """`again`: seconds of every run but the first."""
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
    """In a thread; asks whether it may go on, and writes down why not."""
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
    """Blocks the event loop, as nobody should."""
    note("began", job)
    time.sleep(seconds)  # noqa: ASYNC251 - that is the point
    note("ended", job)


@jobs.task
def seize(job: Job, seconds: int) -> None:
    """In a thread, and yet no other thread of the process gets to run: a C extension that keeps the interpreter."""
    note("began", job)
    ctypes.PyDLL(None).sleep(seconds)


@jobs.task
async def poison(job: Job, how: str) -> None:
    note("began", job)
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL)
