"""Workers follow the settings in the database, unless the program that started them gave other values."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from rowlock.access import settings
from rowlock.core.job import Status
from rowlock.core.moves import Rescue
from rowlock.jobs import Jobs
from rowlock.runtime import worker as worker_module
from rowlock.runtime.settings import WorkerSettings
from rowlock.runtime.slots import Slots
from tests.runtime.running import nothing, working
from tests.waiting import ended, status_of, until


async def change(jobs: Jobs, **changes: Any) -> None:
    await settings.change(await jobs._store(), changes, by="test")


@pytest.fixture(autouse=True)
def quick_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Jobs.make_worker
    monkeypatch.setattr(Jobs, "make_worker", lambda self, **given: made(self, maintenance=0.05, **given))


def followed(jobs: Jobs) -> WorkerSettings:
    return working(jobs).settings


async def test_what_was_never_set_has_its_default(jobs: Jobs) -> None:
    jobs.register("any", nothing)
    await jobs.start()
    assert (followed(jobs).concurrency, followed(jobs).poll, followed(jobs).lease) == (10, 1.0, 30.0)


async def test_a_change_applies_while_it_works_and_can_be_taken_back(jobs: Jobs) -> None:
    jobs.register("any", nothing)
    await jobs.start()
    await change(jobs, worker_pool_size=3, poll_interval=0.5, lock_duration=60)
    await until(lambda: (followed(jobs).concurrency, followed(jobs).poll, followed(jobs).lease) == (3, 0.5, 60.0))
    await change(jobs, worker_pool_size=None, poll_interval=None, lock_duration=None)
    await until(lambda: (followed(jobs).concurrency, followed(jobs).poll, followed(jobs).lease) == (10, 1.0, 30.0))


async def test_an_argument_is_stronger(jobs: Jobs) -> None:
    jobs.register("any", nothing)
    await change(jobs, worker_pool_size=3, lock_duration=60)
    await jobs.start(concurrency=7)
    await until(lambda: followed(jobs).lease == 60)
    assert followed(jobs).concurrency == 7


async def test_so_are_the_environment_and_the_file(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("config")
    (folder / "rowlock.toml").write_text("poll = 0.7\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ROWLOCK_LEASE", "40")
    async with Jobs(url) as jobs:
        jobs.register("any", nothing)
        await change(jobs, worker_pool_size=3, poll_interval=0.5, lock_duration=60)
        await jobs.start()
        await until(lambda: followed(jobs).concurrency == 3)
        assert (followed(jobs).poll, followed(jobs).lease) == (0.7, 40.0)


async def test_more_slots_are_used_at_once(jobs: Jobs) -> None:
    enough = asyncio.Event()

    @jobs.task
    async def slot() -> None:
        await enough.wait()

    await change(jobs, worker_pool_size=1)
    await jobs.start()
    await until(lambda: followed(jobs).concurrency == 1)
    made, worker = [await slot.enqueue() for _ in range(3)], working(jobs)
    await until(lambda: worker.running == 1)
    await change(jobs, worker_pool_size=3)
    await until(lambda: worker.running == 3)
    enough.set()
    for one in made:
        assert (await ended(jobs, one.id)).status is Status.COMPLETED


async def test_more_slots_are_for_what_was_claimed_ahead_too(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    enough = asyncio.Event()
    monkeypatch.setattr(worker_module, "_STALE", 3600.0)
    monkeypatch.setattr(Slots, "lookahead", lambda self: 0 if self.runs else 2)

    @jobs.task
    async def slot() -> None:
        await enough.wait()

    await change(jobs, worker_pool_size=1)
    made = [await slot.enqueue() for _ in range(3)]
    worker = jobs.make_worker()
    worker.settings.concurrency = 1
    await worker.start()
    await until(lambda: len(worker.slots.runs) == 3)
    assert worker.running == 1
    await change(jobs, worker_pool_size=3)
    await until(lambda: worker.running == 3)
    enough.set()
    for one in made:
        assert (await ended(jobs, one.id)).status is Status.COMPLETED
    await worker.stop()


async def test_a_run_with_a_short_lease_keeps_it_while_leases_become_long(jobs: Jobs) -> None:
    enough = asyncio.Event()

    @jobs.task
    async def long() -> None:
        await enough.wait()

    await change(jobs, lock_duration=6)  # seconds; a heartbeat on a slow machine may be two thirds of that late
    await jobs.start()
    await until(lambda: followed(jobs).lease == 6)
    made = await long.enqueue()
    await status_of(jobs, made.id, Status.PROCESSING)
    await change(jobs, lock_duration=600)
    store = await jobs._store()
    while True:  # no rescue may take the job before it has the longer lease
        job = await jobs.get(made.id)
        assert job.status is Status.PROCESSING
        assert job.version == 1
        assert await store.move_due(Rescue(by="test", backoff=[0.0])) == []
        if job.locked_until is not None and job.locked_until - await store.now() > timedelta(seconds=30):
            break
        await asyncio.sleep(0.01)
    enough.set()
    assert (await ended(jobs, made.id)).version == 1
