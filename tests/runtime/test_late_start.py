"""A run whose lease was over before its handler began is given back: others may have it by now."""

import time
from collections.abc import Callable
from typing import Any

from rowlock.core.job import Status
from rowlock.jobs import Jobs
from tests.waiting import ended


async def test_a_handler_does_not_begin_after_its_lease(jobs: Jobs) -> None:
    begun: list[int] = []

    @jobs.task(max_retries=0)
    async def late() -> None:
        begun.append(1)

    await jobs.start(lease=5.0, poll=0.1)
    worker = jobs._worker
    assert worker is not None
    start = worker._executor.start

    def frozen_once(run: object) -> None:
        """As if the process had been stopped for longer than the lease right before the handler, all threads of it."""
        worker._executor.start = start  # type: ignore[method-assign]
        start(run)  # type: ignore[arg-type]
        run.renewed = time.monotonic() - 10.0  # type: ignore[attr-defined]

    worker._executor.start = frozen_once  # type: ignore[method-assign]
    made = await late.enqueue()
    job = await ended(jobs, made.id)
    assert (job.status, job.version, begun) == (Status.COMPLETED, 2, [1])  # given back, at no cost, and run again


async def test_a_handler_in_a_thread_does_not_begin_after_its_lease(jobs: Jobs) -> None:
    begun: list[int] = []

    @jobs.task(max_retries=0)
    def late() -> None:
        begun.append(1)

    await jobs.start(lease=5.0, poll=0.1)
    worker = jobs._worker
    assert worker is not None
    threads = worker._executor._threads
    run_in_thread = threads.run

    async def frozen_once(function: Callable[[], Any]) -> Any:
        """As if the process had been stopped for longer than the lease before the thread had its turn."""
        threads.run = run_in_thread  # type: ignore[method-assign]
        [run] = worker.slots.runs.values()
        run.renewed = time.monotonic() - 10.0
        return await run_in_thread(function)

    threads.run = frozen_once  # type: ignore[method-assign]
    made = await late.enqueue()
    job = await ended(jobs, made.id)
    assert (job.status, job.version, begun) == (Status.COMPLETED, 2, [1])
