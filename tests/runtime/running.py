"""Helpers to start a worker in this process and to run jobs in it."""

from collections.abc import Sequence
from typing import Any

from rowlock.core.job import Job, Lane
from rowlock.core.moves import Rescue
from rowlock.jobs import Jobs
from rowlock.runtime.worker import Worker
from rowlock.stores.base import Claim, Store
from rowlock.tasks import Task
from tests.waiting import ended, until


async def nothing() -> None:
    """A handler for jobs that don't crash: a suspect runs in a child process, which would not find its task here."""


async def started(jobs: Jobs, **settings: Any) -> Worker:
    """Start a worker, also with settings that `jobs.start` does not take."""
    jobs._worker = worker = jobs.make_worker(**settings)
    await worker.start()
    return worker


def working(jobs: Jobs) -> Worker:
    """Return the worker that was started."""
    assert jobs._worker is not None
    return jobs._worker


async def steal(store: Store, job_id: str, worker: Worker, topic: str = "work") -> None:
    """Take the job away from the worker: another worker claims it."""
    await store.move_due(Rescue(by="test", backoff=[0.0], workers=[worker.name]))

    async def claimed() -> Sequence[Job]:  # the worker's claim under way may take the job and give it back
        return (await store.claim(Claim("someone else", (Lane(topic),), 1, 600.0))).jobs

    assert [job.id for job in await until(claimed)] == [job_id]


async def ran(jobs: Jobs, task: Task[..., Any] | str, *arguments: Any, **more: Any) -> Job:
    """Enqueue a job, start a worker unless one works already, and return the job at its end."""
    made = await (jobs.enqueue(task, *arguments, **more) if isinstance(task, str) else task.enqueue(*arguments, **more))
    if jobs._worker is None:
        await jobs.start()
    return await ended(jobs, made.id)
