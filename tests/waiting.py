"""Wait for conditions, never for a fixed time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, TypeVar, overload

from rowlock.core.job import Job, Status
from rowlock.jobs import Jobs

T = TypeVar("T")
PATIENCE = 60.0  # seconds; never reached unless something is wrong
What = str | Callable[[], str]  # the awaited event, or a function that describes the state at the end


@overload
async def until(
    condition: Callable[[], Awaitable[T | None]], what: What = "", *, patience: float = ..., every: float = ...
) -> T: ...
@overload
async def until(
    condition: Callable[[], T | None], what: What = "", *, patience: float = ..., every: float = ...
) -> T: ...
async def until(
    condition: Callable[[], Any], what: What = "", *, patience: float = PATIENCE, every: float = 0.02
) -> Any:
    """Return the answer of `condition` as soon as it is true. An awaitable answer is awaited."""
    end = time.monotonic() + patience
    while True:
        answer = condition()
        if isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        _check(end, condition, what, patience)
        await asyncio.sleep(every)


def wait_until(condition: Callable[[], object], what: What = "", *, patience: float = PATIENCE) -> None:
    """Wait until `condition` is true, in code without an event loop."""
    end = time.monotonic() + patience
    while not condition():
        _check(end, condition, what, patience)
        time.sleep(0.02)


def _check(end: float, condition: Callable[[], object], what: What, patience: float) -> None:
    if time.monotonic() >= end:
        said = what() if callable(what) else what
        raise AssertionError(f"Waited {patience:g} s in vain: {said or getattr(condition, '__qualname__', condition)}")


async def cancelled(task: "asyncio.Task[Any]") -> None:
    """Cancel the task, and wait until it has ended. It must end as cancelled."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def status_of(jobs: Jobs, job_id: str, *statuses: Status) -> Job:
    """Return the job as soon as it has one of the statuses."""

    async def look() -> Job | None:
        job = await jobs.get(job_id)
        return job if job.status in statuses else None

    return await until(look)


async def ended(jobs: Jobs, job_id: str) -> Job:
    return await jobs.wait(job_id, timeout=PATIENCE)
