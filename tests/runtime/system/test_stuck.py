"""Handlers that can't be stopped: the process is replaced. Only the guilty job is charged."""

import pytest

from rowlock import Status
from tests.runtime.system.fleet import Fleet

pytestmark = pytest.mark.timeout(120)

# The lease is long: a job that ends in time was not rescued because its lease ended.
OPTIONS = ("--lease", "10m", "--poll", "200ms", "--grace", "1s")


async def test_a_process_whose_threads_have_leaked_is_replaced(postgres_fleet: Fleet) -> None:
    fleet = postgres_fleet
    worker = await fleet.start(*OPTIONS, "--concurrency", "4")
    [old] = await fleet.working(worker)
    innocent = await fleet.enqueue("nap", {"seconds": 60.0})
    last = await fleet.enqueue("doze", {"seconds": 600.0}, timeout=0.5, max_retries=0)
    again = await fleet.enqueue("doze", {"seconds": 600.0}, timeout=0.5, max_retries=1)
    await fleet.begun(innocent, last, again)
    [new] = await fleet.working(worker, without={old})
    failed, retried = await fleet.jobs.get(last), await fleet.jobs.get(again)
    assert (failed.status, retried.status, retried.retries) == (Status.FAILED, Status.PENDING, 1)
    for job in (failed, retried):
        assert "Timed out" in (job.last_error or "")
    await fleet.begun(innocent, version=2)
    assert {one.pid for one in fleet.runs_of(innocent)} == {old, new}
    job = await fleet.jobs.get(innocent)
    assert (job.retries, job.crashes) == (0, 0)
    assert "released" in await fleet.events(innocent)
    assert "rescued" not in worker.output


@pytest.mark.proof  # slow
async def test_a_process_whose_event_loop_is_blocked_for_too_long_is_replaced(postgres_fleet: Fleet) -> None:
    fleet = postgres_fleet
    worker = await fleet.start(*OPTIONS)
    [old] = await fleet.working(worker)
    others = [await fleet.enqueue(topic, {"seconds": 60.0}) for topic in ("nap", "doze", "toil")]
    await fleet.begun(*others)
    last = await fleet.enqueue("block", {"seconds": 600.0}, timeout=0.5, max_retries=0)
    await fleet.working(worker, without={old})
    job = await fleet.jobs.get(last)
    assert job.status is Status.FAILED
    assert "Timed out" in (job.last_error or "")
    await fleet.begun(*others, version=2)
    for one in others:
        job = await fleet.jobs.get(one)
        assert (job.version, job.retries, job.crashes) == (2, 0, 0)
        assert "released" in await fleet.events(one)


@pytest.mark.proof
async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(sqlite_fleet: Fleet) -> None:
    """The handler blocks for four leases, beside another worker that would rescue the job if its lease ran out."""
    fleet = sqlite_fleet
    await fleet.start()
    await fleet.start()
    blocking = await fleet.enqueue("block", {"seconds": 8.0})
    [job] = await fleet.ended(blocking)
    assert (job.status, job.version) == (Status.COMPLETED, 1)
