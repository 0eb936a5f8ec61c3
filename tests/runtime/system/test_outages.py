"""The database goes away and comes back: workers carry on by themselves, and no worker loses its jobs to another."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rowlock import Jobs, Status
from rowlock.errors import StoreError
from rowlock.stores.postgres.store import PostgresStore
from tests.guard import processes
from tests.runtime.system.fleet import SHORT, SLACK, Fleet, health, opened
from tests.servers import PostgresServer, _free_port

pytestmark = pytest.mark.timeout(180)

LEASE = 2.0


@pytest.fixture(scope="module")
def mortal() -> Iterator[PostgresServer]:
    """A PostgreSQL server with durable commits, which the tests kill."""
    with PostgresServer(durable=True) as server:
        yield server


@pytest.fixture
async def mortal_fleet(mortal: PostgresServer, tmp_path: Path) -> AsyncIterator[Fleet]:
    name = f"outage_{tmp_path.name}".replace("-", "_").lower()[:60]
    await mortal.execute(f'CREATE DATABASE "{name}"')
    await PostgresStore(mortal.url(name)).migrate()
    async with opened(mortal.url(name), tmp_path) as fleet:
        yield fleet


async def enqueue_for_ever(jobs: Jobs, acknowledged: set[str]) -> None:
    while True:
        try:
            answers = await jobs.enqueue_many([("short", {"seconds": 0.01})] * 20)
        except StoreError:
            await asyncio.sleep(0.05)
        else:
            acknowledged |= {one.id for one in answers}


async def more_run(fleet: Fleet) -> None:
    before = len(fleet.noted())
    await fleet.until(lambda: len(fleet.noted()) > before + 100, what="some jobs to run")


async def test_a_server_that_is_killed_under_load_again_and_again(mortal: PostgresServer, mortal_fleet: Fleet) -> None:
    fleet = mortal_fleet
    worker = await fleet.start(*SHORT, processes=2)
    pids = await fleet.working(worker, 2)
    acknowledged: set[str] = set()
    producer = asyncio.create_task(enqueue_for_ever(fleet.jobs, acknowledged))
    for _ in range(3):
        await more_run(fleet)
        await asyncio.to_thread(mortal.kill9)
        await asyncio.to_thread(mortal.start)
    done = len(acknowledged)
    await fleet.until(lambda: len(acknowledged) > done, what="enqueues to work again")
    producer.cancel()
    await asyncio.wait([producer])
    await fleet.drained()
    assert worker.children() == pids
    archived = {str(one) for (one,) in await fleet.fetch("SELECT id FROM _jobs_archive")}
    assert acknowledged <= archived
    assert await fleet.fetch("SELECT id, status, last_error FROM _jobs") == []
    assert acknowledged <= set(fleet.executions())
    charged = await fleet.fetch("SELECT id FROM _jobs_archive WHERE retries > 0 OR crashes > 0")
    assert charged == []  # no worker died
    assert await worker.stopped() == 0


async def test_a_worker_that_is_started_before_its_server_waits_for_it(
    mortal: PostgresServer, mortal_fleet: Fleet
) -> None:
    fleet, port = mortal_fleet, _free_port()
    job_id = await fleet.enqueue("quick")
    await asyncio.to_thread(mortal.stop)
    try:
        worker = fleet.launch(*SHORT, "--processes", "2", "--health-port", str(port))
        await fleet.until(lambda: "the database is not there yet" in worker.output, what="it to say that it waits")
        assert await health(port) == 503
        [waiting] = worker.children()
    finally:
        await asyncio.to_thread(mortal.start)
    await fleet.ended(job_id)
    await fleet.healthy(port)
    assert waiting in await fleet.working(worker, 2)
    assert await worker.stopped() == 0


async def test_running_jobs_outlast_a_database_that_is_away_for_longer_than_their_lease(
    mortal: PostgresServer, mortal_fleet: Fleet
) -> None:
    """Every lease has run out when the database comes back. Each worker must let the others renew before it rescues.
    During the outage the workers count as alive, because a restart would not help."""
    fleet = mortal_fleet
    ports = [_free_port(), _free_port()]
    workers = [
        await fleet.start(*SHORT, "--concurrency", "3", "--health-port", str(port), processes=2) for port in ports
    ]
    pids = [await fleet.working(worker, 2) for worker in workers]
    ids = [
        await fleet.enqueue(topic, {"seconds": seconds})
        for topic in ("nap", "doze", "toil", "watchful")
        for seconds in (LEASE, 2 * LEASE, 5 * LEASE)  # two end while the database is away
    ]
    await fleet.begun(*ids)
    for port in ports:
        await fleet.healthy(port)
    await asyncio.to_thread(mortal.kill9)
    away = time.monotonic()
    while time.monotonic() - away < 2.2 * LEASE:  # by then every lease has run out
        assert [await health(port) for port in ports] == [200, 200]
        await asyncio.sleep(0.1)
    await asyncio.to_thread(mortal.start)
    jobs = await fleet.ended(*ids)
    assert {(job.status, job.version, job.retries) for job in jobs} == {(Status.COMPLETED, 1, 0)}
    assert max(fleet.executions().values()) == 1
    assert [worker.children() for worker in workers] == pids


async def test_a_worker_is_stopped_while_the_database_is_away(mortal: PostgresServer, mortal_fleet: Fleet) -> None:
    """The worker ends in time, although it can't give its jobs back: their leases will run out."""
    fleet = mortal_fleet
    worker = await fleet.start()
    ids = [await fleet.enqueue(topic, {"seconds": 60.0}) for topic in ("nap", "doze", "toil")]
    await fleet.begun(*ids)
    await asyncio.to_thread(mortal.kill9)
    asked = time.monotonic()
    code = await worker.stopped()
    took = time.monotonic() - asked
    await asyncio.to_thread(mortal.start)
    assert code == 0, worker.output
    assert took < 1.0 + 1.0 + SLACK, worker.output  # grace, promised second
    await fleet.nobody_left()
    for one in ids:
        job = await fleet.jobs.get(one)
        assert (job.status, job.version) == (Status.PROCESSING, 1)


async def test_a_process_that_dies_while_the_database_is_away_is_replaced_when_it_is_back(
    mortal: PostgresServer, mortal_fleet: Fleet
) -> None:
    fleet = mortal_fleet
    worker = await fleet.start()
    [victim] = await fleet.working(worker)
    job = await fleet.enqueue("short", {"seconds": 1.0})
    await fleet.begun(job)
    await asyncio.to_thread(mortal.kill9)
    os.kill(victim, signal.SIGKILL)
    await fleet.until(lambda: "trying again" in worker.output, what="the next one to find nobody there")
    await asyncio.to_thread(mortal.start)
    await fleet.working(worker, without={victim})
    [ended] = await fleet.ended(job)
    assert ended.status is Status.COMPLETED


async def test_a_worker_is_stopped_while_the_database_hangs(mortal: PostgresServer, mortal_fleet: Fleet) -> None:
    """The database sends neither an error nor an answer: the worker must not wait for one."""
    fleet = mortal_fleet
    worker = await fleet.start()
    ids = [await fleet.enqueue(topic, {"seconds": 60.0}) for topic in ("nap", "doze", "toil")]
    await fleet.begun(*ids)
    postmaster = mortal.pid
    assert postmaster is not None
    server = [postmaster, *(pid for pid, parent, _ in processes() if parent == postmaster)]
    for pid in server:
        os.kill(pid, signal.SIGSTOP)
    try:
        asked = time.monotonic()
        code = await worker.stopped()
        took = time.monotonic() - asked
    finally:
        for pid in server:
            os.kill(pid, signal.SIGCONT)
    assert code == 0, worker.output
    assert took < 1.0 + 1.0 + 3.0 + SLACK, worker.output  # grace, promised second, a last try to give jobs back
