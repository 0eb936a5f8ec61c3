"""Many processes, one queue: every job is done, and recorded once."""

import pytest

from tests.runtime.system.fleet import SHORT, Fleet

pytestmark = pytest.mark.timeout(240)


async def check_drained(fleet: Fleet, ids: set[str]) -> None:
    await fleet.drained()
    archived = await fleet.fetch("SELECT id FROM _jobs_archive")
    assert len(archived) == len(ids)
    assert {str(one) for (one,) in archived} == ids
    assert await fleet.fetch("SELECT id FROM _jobs") == []
    executions = fleet.executions()
    assert set(executions) == ids
    assert max(executions.values()) == 1  # no worker died, so each job ran exactly once


async def test_ten_processes_drain_ten_thousand_jobs_from_postgres(postgres_fleet: Fleet) -> None:
    ids = await postgres_fleet.enqueue_many(10_000, "quick")
    await postgres_fleet.start("--concurrency", "10", "--poll", "200ms", processes=10)
    await check_drained(postgres_fleet, ids)


async def test_four_processes_drain_one_sqlite_file(sqlite_fleet: Fleet) -> None:
    ids = await sqlite_fleet.enqueue_many(2000, "quick")
    await sqlite_fleet.start("--concurrency", "10", "--poll", "200ms", processes=4)
    ids |= await sqlite_fleet.enqueue_many(2000, "quick")
    await check_drained(sqlite_fleet, ids)


async def test_workers_of_two_versions_of_an_application_do_what_they_know(fleet: Fleet) -> None:
    """During a deploy, the old version of the application lacks a topic. It leaves the jobs of that topic to the new
    version."""
    source = (fleet.folder / "app.py").read_text()
    old, _, _ = source.partition("@jobs.task\nasync def nap")
    (fleet.folder / "older.py").write_text(old)
    known = await fleet.enqueue_many(200, "quick")
    await fleet.start(app="older:jobs")
    new = await fleet.enqueue_many(20, "nap", {"seconds": 0.01})
    await fleet.ended(*known)
    await fleet.start(*SHORT)
    known |= await fleet.enqueue_many(200, "quick")
    await fleet.drained()
    rows = await fleet.fetch("SELECT id, retries, version FROM _jobs_archive")
    assert {(str(one), retries, version) for one, retries, version in rows} == {(one, 0, 1) for one in known | new}
