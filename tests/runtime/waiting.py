"""Wait on conditions, never on sleeps."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rowlock.core.job import Job, Status
from rowlock.jobs import Jobs

T = TypeVar("T")
PATIENCE = 60.0  # never reached unless something is wrong


async def until(condition: Callable[[], Awaitable[T | None]], *, every: float = 0.02) -> T:
    """What the condition answers, once that is true."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if answer := await condition():
                return answer
            await asyncio.sleep(every)


async def until_true(condition: Callable[[], bool], *, every: float = 0.01) -> None:
    async def ask() -> bool:
        return condition()

    await until(ask, every=every)


async def status_of(jobs: Jobs, job_id: str, *statuses: Status) -> Job:
    """The job, once it stands there."""

    async def look() -> Job | None:
        job = await jobs.get(job_id)
        return job if job.status in statuses else None

    return await until(look)


async def ended(jobs: Jobs, job_id: str) -> Job:
    return await jobs.wait(job_id, timeout=PATIENCE)
