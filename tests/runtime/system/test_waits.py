"""Waits of handlers in child processes, and workers that die beside a wait."""

import pytest

from rowlock import Status
from tests.runtime.system.fleet import Fleet
from tests.waiting import status_of

pytestmark = pytest.mark.timeout(180)


def versions(fleet: Fleet, job_id: str, word: str) -> list[int]:
    return [one.version for one in fleet.runs_of(job_id, word)]


@pytest.mark.parametrize("topic", ["approval", "async_approval"])
async def test_waits_in_a_child_process(fleet: Fleet, topic: str) -> None:
    await fleet.start()
    job_id = await fleet.enqueue(topic)
    job = await status_of(fleet.jobs, job_id, Status.WAITING)
    assert (job.waits_for, job.locked_by) == ("signal:decision", None)
    await fleet.jobs.signal(job_id, "decision", 5)
    [job] = await fleet.ended(job_id)
    assert (job.status, job.result, job.version, job.retries) == (Status.COMPLETED, ["first", 5, "no"], 3, 0)
    assert versions(fleet, job_id, "first") == [1]
    assert sorted(versions(fleet, job_id, "finally")) == [1, 2, 3]


@pytest.mark.parametrize("topic", ["approval", "async_approval"])
async def test_a_child_undoes_what_a_cancelled_job_has_done(fleet: Fleet, topic: str) -> None:
    await fleet.start()
    job_id = await fleet.enqueue(topic)
    await status_of(fleet.jobs, job_id, Status.WAITING)
    await fleet.jobs.cancel(job_id)
    [job] = await fleet.ended(job_id)
    assert (job.status, job.version) == (Status.CANCELLED, 2), job.last_error
    assert versions(fleet, job_id, "undo") == [2]


async def test_a_child_that_swallows_the_suspend_of_a_wait_fails_for_good(fleet: Fleet) -> None:
    await fleet.start()
    [job] = await fleet.ended(await fleet.enqueue("swallow_wait"))
    assert (job.status, job.version) == (Status.FAILED, 1)
    assert "the handler has caught Suspend, by which ctx.sleep ends the run" in (job.last_error or "")


async def test_a_worker_is_killed_between_a_signal_and_the_wait(fleet: Fleet) -> None:
    """The next run gets the signal that the dead run has read, and waits for the other signal."""
    await fleet.start()
    job_id = await fleet.enqueue("mortal_wait")
    await fleet.jobs.signal(job_id, "decision", 1)
    await fleet.until(lambda: fleet.runs_of(job_id, "dies"), what="the worker to die")
    job = await status_of(fleet.jobs, job_id, Status.WAITING)
    assert (job.retries, job.crashes) == (1, 1)
    await fleet.jobs.signal(job_id, "decision", 2)
    [job] = await fleet.ended(job_id)
    assert (job.status, job.result) == (Status.COMPLETED, [1, 2]), job.last_error
