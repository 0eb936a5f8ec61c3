"""Ghosts: statements that the server gets after their client has given up. Nobody knows of them, so nothing may come
of them: a job that a repeated insert has made, and that is completed by now, would be made anew; a claim would hold a
job for a worker that does not work on it."""

from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from rowlock.core.job import Job, NewJob, Status
from rowlock.core.lifecycle import Completed
from rowlock.errors import OutcomeUnknown
from rowlock.stores.base import Store
from rowlock.stores.postgres.store import PostgresStore
from tests.faults.wire import Statement, Trap, Wire, claims, enqueues
from tests.servers import PostgresServer
from tests.stores.conftest import real_postgres_store
from tests.stores.harness import PostgresHarness, claim_by, job, settlement
from tests.stores.processes import real_job

harness = real_postgres_store


class Line:
    """A store that gives up after a second, on a line that can hold a statement back."""

    def __init__(self, store: Store, wire: Wire) -> None:
        self.store = store
        self._wire = wire

    async def haunt(self, work: Awaitable[Any], on: Statement) -> Trap:
        """The client gives up. The ghost waits to be released."""
        trap = Trap("hold", on)
        self._wire.traps.append(trap)
        with pytest.raises(OutcomeUnknown):
            await work
        assert trap.sprung.is_set()
        return trap


@pytest.fixture
async def line(harness: PostgresHarness, postgres: PostgresServer) -> AsyncIterator[Line]:
    async with Wire(postgres.host, postgres.port) as wire:
        store = PostgresStore(wire.through(harness.url) + "?command_timeout=1&listen=off")
        await store.open()
        yield Line(store, wire)
        await store.close()


async def arrived(ghost: Trap) -> None:
    ghost.release.set()
    await ghost.answered.wait()


@pytest.mark.parametrize(
    "wanted",
    [lambda: [real_job(), real_job()], lambda: [real_job(), real_job(priority=7)], lambda: [real_job(key="a")]],
    ids=["alike", "mixed", "keyed"],
)
async def test_an_insert_that_comes_too_late_makes_no_job(harness: PostgresHarness, line: Line, wanted: Any) -> None:
    """The client has asked again meanwhile, and the jobs are completed."""
    jobs: list[NewJob] = wanted()
    ghost = await line.haunt(line.store.insert(jobs), enqueues)
    await line.store.insert(jobs, repeat=True)
    runs = (await line.store.claim(claim_by())).jobs
    await line.store.settle([settlement(run, Completed(), ran=0.0) for run in runs])
    await arrived(ghost)
    assert {row.job.status for row in (await harness.rows()).values()} == {Status.COMPLETED}
    assert await harness.fetch("SELECT count(*) FROM _jobs") == [(0,)]
    assert await harness.fetch("SELECT sum(enqueued) FROM _jobs_counts") == [(len(jobs),)]


async def test_a_claim_that_comes_too_late_takes_nothing(harness: PostgresHarness, line: Line) -> None:
    job_id = await harness.add()
    ghost = await line.haunt(line.store.claim(claim_by()), claims)
    await arrived(ghost)
    assert await pending(harness, job_id)


@pytest.mark.parametrize("workers", [["w1", "w1"], ["w1", "w2"]], ids=["complete", "mixed"])
async def test_a_settle_that_comes_too_late_settles_and_claims_nothing(
    harness: PostgresHarness, line: Line, workers: list[str]
) -> None:
    """What it settles is guarded by the version: it may come whenever it likes."""
    runs = [await harness.claimed(worker, fresh_topic(n)) for n, worker in enumerate(workers)]
    waiting = await harness.add()
    done = [settlement(run, Completed(), ran=0.0) for run in runs]
    ghost = await line.haunt(line.store.settle(done, claim_by()), claims)
    await arrived(ghost)
    assert {(await harness.job(run.id)).status for run in runs} == {Status.COMPLETED}
    assert await pending(harness, waiting)


def fresh_topic(n: int) -> str:
    return f"topic_{n}"


async def pending(harness: PostgresHarness, job_id: str) -> bool:
    found: Job = await harness.job(job_id)
    return (found.status, found.version) == (Status.PENDING, 0)


# ── Whoever is still there ──


async def test_a_clock_that_jumps_costs_a_retry_and_no_job(postgres_store: PostgresHarness) -> None:
    """By the store's idea of the database's clock, each is far too late, or has all the time in the world."""
    harness = postgres_store
    held: Job | None = None
    for jump in (3600.0, 86_400.0, -7200.0, 90.0, -400 * 86_400.0, 1.0, 800 * 86_400.0):
        await harness.advance(jump)
        made = {one.id for one in await harness.insert(job("a"), job("b"))}
        await harness.advance(jump)
        [mixed] = await harness.insert(job("a", key=str(jump)))
        await harness.advance(abs(jump) + 3600.0)
        if held is None:
            claimed = await harness.claim("w1", "a", "b", limit=2)
        else:
            done = [settlement(held, Completed(), ran=0.0)]
            settled = await harness.store.settle(done, claim_by("w1", "a", "b", limit=2))
            assert settled.claimed is not None
            claimed = settled.claimed
        assert {one.id for one in claimed.jobs} <= {*made, mixed.id}
        assert len(claimed.jobs) == 2
        held = claimed.jobs[0]
        [rest] = (await harness.claim("w1", "a", "b")).jobs
        assert {one.id for one in (*claimed.jobs, rest)} == {*made, mixed.id}
        await harness.store.settle([settlement(one, Completed(), ran=0.0) for one in (claimed.jobs[1], rest)])
