"""If the lease of a run was over before its handler began, the worker gives the run back: another worker may have the
job by now."""

import time
from typing import Any

import pytest

from rowlock.core.job import Status
from rowlock.jobs import Jobs
from rowlock.runtime.processes import TOO_LATE
from tests.runtime.running import ran, working


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_handler_does_not_begin_after_its_lease(
    jobs: Jobs, threaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def late() -> None:
        begun.append(1)

    async def late_too() -> None:
        begun.append(1)

    jobs.register("late", late if threaded else late_too, max_retries=0)
    await jobs.start(lease=5.0, poll=0.1)
    worker = working(jobs)
    where, name = (worker._executor._threads, "run") if threaded else (worker._executor, "start")
    begin = getattr(where, name)

    def frozen_once(argument: Any) -> Any:
        """Act as if the whole process had been stopped for longer than the lease, right before the handler."""
        monkeypatch.setattr(where, name, begin)
        begins = begin(argument)
        [run] = worker.slots.runs.values()
        run.renewed = time.monotonic() - 10.0
        return begins

    slots: list[Any] = []  # on the running board: a run with a slot is charged if the process dies before it is settled
    conclude = worker.claim_settle.conclude

    def concluded(run: Any, outcome: Any) -> None:
        if outcome is TOO_LATE:
            slots.append(run.slot)
        conclude(run, outcome)

    monkeypatch.setattr(worker.claim_settle, "conclude", concluded)
    monkeypatch.setattr(where, name, frozen_once)
    job = await ran(jobs, "late")
    assert (job.status, job.version, begun) == (Status.COMPLETED, 2, [1])  # given back without a charge, and run again
    assert slots == [None]
