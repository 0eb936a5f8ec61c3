"""An outage of the jobs' own database is not the fault of the handler that used it through its Context."""

import asyncio
from typing import Any

import pytest

from rowlock import Context
from rowlock.core import lifecycle
from rowlock.core.job import Status
from rowlock.jobs import Jobs
from rowlock.runtime import outcomes
from tests.runtime.running import ran

HANG_UP = "SELECT pg_terminate_backend(pg_backend_pid())"
FILL_UP = ("PRAGMA max_page_count = 1", "CREATE TABLE filler AS SELECT zeroblob(1000000) AS bytes")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "OUTAGE_DELAY", 0.01)


async def lose_the_database(conn: Any) -> None:
    """Make the server hang up (PostgreSQL), or let the disk be full (SQLite)."""
    for statement in (HANG_UP,) if hasattr(conn, "fetchval") else FILL_UP:
        done = conn.execute(statement)
        if asyncio.iscoroutine(done):
            await done


def lose_the_database_sync(conn: Any) -> None:
    for statement in (HANG_UP,) if type(conn).__module__.startswith("psycopg") else FILL_UP:
        conn.execute(statement)


async def test_a_handler_that_was_cut_off_runs_again_and_is_not_charged(jobs: Jobs) -> None:
    @jobs.task(max_retries=0)
    async def owning(ctx: Context) -> int:
        async with ctx.transaction() as conn:
            if ctx.job.version < 3:
                await lose_the_database(conn)
        return ctx.job.version

    job = await ran(jobs, owning)
    assert (job.status, job.result, job.retries) == (Status.COMPLETED, 3, 0)
    events = await jobs.events(job.id)
    reasons = [event.data["reason"] for event in events if event.event == "released"]
    assert len(reasons) == 2
    assert all(reason.startswith("The database was away: ") for reason in reasons)


async def test_sync_handlers_and_errors_that_name_their_cause(jobs: Jobs) -> None:
    class Unsaved(Exception):
        pass

    @jobs.task(max_retries=0)
    def owning(ctx: Context) -> int:
        try:
            with ctx.transaction() as conn:
                if ctx.job.version == 1:
                    lose_the_database_sync(conn)
        except Exception as error:
            raise Unsaved("the order is not saved") from error
        return ctx.job.version

    job = await ran(jobs, owning)
    assert (job.status, job.result, job.retries) == (Status.COMPLETED, 2, 0)


async def test_an_error_after_the_outage_is_the_handlers_own(jobs: Jobs) -> None:
    @jobs.task(max_retries=0)
    async def owning(ctx: Context) -> None:
        try:
            async with ctx.transaction() as conn:
                await lose_the_database(conn)
        except Exception:
            pass
        raise ValueError("mine")

    job = await ran(jobs, owning)
    assert (job.status, job.version) == (Status.FAILED, 1)
    assert "ValueError: mine" in (job.last_error or "")


async def test_a_handler_that_takes_the_database_down_each_time_is_charged_in_the_end(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "_FREE_OUTAGES", 2)

    @jobs.task(max_retries=0)
    async def owning(ctx: Context) -> None:
        async with ctx.transaction() as conn:
            await lose_the_database(conn)

    job = await ran(jobs, owning)
    assert (job.status, job.version) == (Status.FAILED, 3)
    assert "The database was away 3 times" in (job.last_error or "")
