"""SIGTERM: no job is lost, no job is charged, and the worker ends in time."""

import os
import signal
import time

import asyncpg
import pytest

from rowlock import Status
from tests.guard import running
from tests.runtime.system.fleet import SLACK, Fleet

pytestmark = pytest.mark.timeout(120)

GRACE = 1.0
PROMISE = GRACE + 1.0
LONG = {"seconds": 60.0}  # a worker that waits for this job stops too late


async def check_given_back(fleet: Fleet, *ids: str) -> None:
    for one in ids:
        job = await fleet.jobs.get(one)
        assert (job.status, job.retries, job.locked_by, job.locked_until) == (Status.PENDING, 0, None, None)
        assert job.crashes == 0
        assert (await fleet.events(one))[-1] == "released"
    assert await fleet.jobs.workers.list() == []


async def test_long_jobs_of_every_kind_are_given_back_within_the_grace(fleet: Fleet) -> None:
    worker = await fleet.start()
    ids = [await fleet.enqueue(topic, LONG) for topic in ("nap", "doze", "watchful", "toil")]
    await fleet.begun(*ids)
    asked = time.monotonic()
    assert await worker.stopped() == 0, worker.output
    assert time.monotonic() - asked < PROMISE + SLACK
    await check_given_back(fleet, *ids)
    await fleet.nobody_left()


async def test_a_blocked_event_loop_does_not_keep_the_worker_from_stopping(fleet: Fleet) -> None:
    """The heartbeat thread gives the jobs back: it does not need the event loop."""
    worker = await fleet.start()
    napping = await fleet.enqueue("nap", LONG)
    await fleet.begun(napping)
    blocking = await fleet.enqueue("block", LONG)
    await fleet.begun(blocking)
    asked = time.monotonic()
    assert await worker.stopped() == 0, worker.output
    assert time.monotonic() - asked < PROMISE + SLACK
    await check_given_back(fleet, napping, blocking)


async def test_a_process_that_does_not_obey_is_killed_and_its_jobs_are_given_back(postgres_fleet: Fleet) -> None:
    fleet = postgres_fleet
    worker = await fleet.start("--lease", "10m", "--poll", "200ms", "--grace", "1s")
    napping = await fleet.enqueue("nap", LONG)
    await fleet.begun(napping)
    seizing = await fleet.enqueue("seize", {"seconds": 60})
    await fleet.begun(seizing)
    await worker.stopped()
    assert "did not stop in time" in worker.output
    await fleet.until(lambda: "took back" in worker.output, what="the rescue, which the supervisor does not wait for")
    await check_given_back(fleet, napping, seizing)


async def test_what_could_not_be_given_back_in_time_is_given_back_by_the_supervisor(postgres_fleet: Fleet) -> None:
    fleet = postgres_fleet
    worker = await fleet.start("--lease", "10m", "--poll", "200ms", "--grace", "0.5s")
    [child] = worker.children()
    job = await fleet.enqueue("nap", LONG)
    await fleet.begun(job)
    locked = await asyncpg.connect(fleet.url)
    await locked.execute("BEGIN")
    await locked.execute("SELECT FROM _jobs FOR UPDATE")  # the settlement of the job has to wait for this lock
    worker.signal(signal.SIGTERM)
    await fleet.until(lambda: not running({child}), what="the process to give up")
    await locked.close()
    assert await worker.ended() == 0, worker.output
    await fleet.until(lambda: "took back" in worker.output, what="the rescue, which the supervisor does not wait for")
    await check_given_back(fleet, job)


async def test_a_worker_that_is_stopped_while_it_starts_ends(sqlite_fleet: Fleet) -> None:
    fleet = sqlite_fleet
    worker = fleet.launch("--processes", "3")
    await fleet.until(worker.children, what="the first process")
    assert await worker.stopped() == 0, worker.output
    await fleet.nobody_left()


async def test_jobs_that_finish_within_the_grace_complete(sqlite_fleet: Fleet) -> None:
    fleet = sqlite_fleet
    worker = await fleet.start("--lease", "2s", "--poll", "200ms", "--grace", "30s")
    ids = [await fleet.enqueue(topic, {"seconds": 1.5}) for topic in ("nap", "doze", "toil")]
    await fleet.begun(*ids)
    late = await fleet.enqueue("nap", LONG, delay=1.0)
    assert await worker.stopped() == 0
    assert [job.status for job in await fleet.ended(*ids)] == [Status.COMPLETED] * 3
    assert (await fleet.jobs.get(late)).version == 0
    assert await fleet.jobs.workers.list() == []


async def test_a_second_signal_ends_it_at_once(fleet: Fleet) -> None:
    """The supervisor gives the running jobs back, because it knows that no process runs them any more."""
    worker = await fleet.start("--lease", "60s", "--poll", "200ms", "--grace", "600s")
    ids = [await fleet.enqueue(topic, LONG) for topic in ("nap", "toil")]
    await fleet.begun(*ids)
    worker.signal(signal.SIGTERM)
    await fleet.until(lambda: "stopping" in worker.output, what="the first signal to be heard")
    worker.signal(signal.SIGINT)
    await worker.ended()
    await fleet.nobody_left()
    await check_given_back(fleet, *ids)


async def test_a_signal_and_its_echo_are_one(postgres_fleet: Fleet) -> None:
    """`timeout` and some init systems signal both the process and its group: the worker gets the signal twice."""
    fleet = postgres_fleet
    worker = await fleet.start("--lease", "60s", "--poll", "200ms", "--grace", "60s")
    [job_id] = [await fleet.enqueue("nap", {"seconds": 1.0})]
    await fleet.begun(job_id)
    worker.signal(signal.SIGTERM)
    worker.signal(signal.SIGTERM)
    await worker.ended()
    assert (await fleet.jobs.get(job_id)).status == "completed"


async def test_several_processes_all_stop(postgres_fleet: Fleet) -> None:
    fleet = postgres_fleet
    worker = await fleet.start("--concurrency", "2", "--poll", "200ms", "--grace", "1s", processes=3)
    ids = await fleet.enqueue_many(6, "nap", LONG)
    await fleet.begun(*ids)
    assert len({one.pid for one in fleet.noted()}) == 3
    asked = time.monotonic()
    assert await worker.stopped() == 0
    assert time.monotonic() - asked < 1.0 + 1.0 + SLACK
    await check_given_back(fleet, *ids)


async def test_a_worker_that_is_stopped_under_load_leaves_no_lease(fleet: Fleet) -> None:
    """Claims, settles and releases are under way at the stop. Another worker runs the jobs that were given back,
    without a charge."""
    ids = await fleet.enqueue_many(3000, "quick")
    worker = await fleet.start("--lease", "60s", "--poll", "200ms", "--grace", "5s", processes=2)
    await fleet.until(lambda: len(fleet.noted()) > 50, what="some jobs to run")
    assert await worker.stopped() == 0
    held = await fleet.fetch("SELECT count(*) FROM _jobs WHERE locked_by IS NOT NULL OR status = 'processing'")
    assert held == [(0,)], worker.output
    await fleet.start("--lease", "60s", "--poll", "200ms", processes=1)
    await fleet.drained()
    rows = await fleet.fetch("SELECT id, retries, crashes FROM _jobs_archive")
    assert {(str(one), retries, crashes) for one, retries, crashes in rows} == {(one, 0, 0) for one in ids}


async def test_a_signal_to_every_process_at_once_is_a_polite_stop_too(fleet: Fleet) -> None:
    """By default, systemd stops a service in this way."""
    worker = await fleet.start()
    ids = [await fleet.enqueue(topic, LONG) for topic in ("nap", "doze", "toil")]
    await fleet.begun(*ids)
    for pid in fleet.marked():
        os.kill(pid, signal.SIGTERM)
    assert await worker.ended() == 0, worker.output
    await check_given_back(fleet, *ids)
