"""Ghosts: statements that reach the server after their client has given up. They must have no effect. A late insert
would make a job anew that a repeated insert has made, and that is completed by now. A late claim would hold a job for
a worker that does not know of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from rowlock.core.job import Job, NewJob, Status
from rowlock.core.lifecycle import Completed
from rowlock.errors import OutcomeUnknown
from rowlock.stores.base import Store
from rowlock.stores.postgres import clock
from rowlock.stores.postgres.store import PostgresStore
from tests.faults.wire import Statement, Trap, Wire, claims, enqueues
from tests.stores.conftest import real_postgres_store
from tests.stores.harness import Harness, PostgresHarness, claim_by, job, settlement
from tests.stores.processes import real_job
from tests.stores.test_lines import lined, once
from tests.waiting import until

harness = real_postgres_store


class Line:
    """A store whose network line can hold a statement back."""

    def __init__(self, store: Store, wire: Wire) -> None:
        self.store = store
        self._wire = wire

    async def haunt(self, work: Awaitable[Any], on: Statement, how: str = "hold") -> Trap:
        """Do the work until the client gives up. Return the trap that holds the ghost until a test releases it."""
        trap = Trap(how, on)
        self._wire.traps.append(trap)
        with pytest.raises(OutcomeUnknown):
            await work
        assert trap.sprung.is_set()
        return trap


@asynccontextmanager
async def opened_line(url: str, options: str = "") -> AsyncIterator[Line]:
    at = urlsplit(url)
    async with Wire(at.hostname or "localhost", at.port or 5432) as wire:
        store = PostgresStore(f"{wire.through(url)}?listen=off{options}")
        await store.open()
        try:
            yield Line(store, wire)
        finally:
            await store.close()


@pytest.fixture
async def line(harness: PostgresHarness) -> AsyncIterator[Line]:
    """Yield a line whose client gives up after a second."""
    async with opened_line(harness.url, "&command_timeout=1") as line:
        yield line


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a repeat wait for only half a second."""
    monkeypatch.setattr(clock, "INSERTS", 0.5)


async def arrived(ghost: Trap) -> None:
    ghost.release.set()
    await ghost.answered.wait()


@pytest.mark.parametrize(
    "wanted",
    [lambda: [real_job(), real_job()], lambda: [real_job(), real_job(priority=7)], lambda: [real_job(key="a")]],
    ids=["alike", "mixed", "keyed"],
)
async def test_an_insert_that_comes_too_late_makes_no_job(harness: PostgresHarness, line: Line, wanted: Any) -> None:
    """Meanwhile the client has repeated the insert, and the jobs are completed."""
    jobs: list[NewJob] = wanted()
    ghost = await line.haunt(line.store.insert(jobs), enqueues)
    await line.store.insert(jobs, repeat=True)
    runs = (await line.store.claim(claim_by())).jobs
    await line.store.settle([settlement(run, Completed(), ran=0.0) for run in runs])
    await arrived(ghost)
    assert {row.job.status for row in (await harness.rows()).values()} == {Status.COMPLETED}
    assert await harness.fetch("SELECT count(*) FROM _jobs") == [(0,)]
    assert await harness.fetch("SELECT sum(enqueued) FROM _jobs_counts") == [(len(jobs),)]


# ── A connection that breaks while an insert is on its way ──

KINDS: dict[str, Callable[[], list[NewJob]]] = {
    "alike": lambda: [real_job(), real_job()],
    "mixed": lambda: [real_job(), real_job(priority=7)],
    "keyed": lambda: [real_job(key="a")],
    "keys": lambda: [real_job(key="a"), real_job(key="b")],
    "line": lambda: [lined()],
    "once": lambda: [once()],
}


async def made_once(harness: Harness, jobs: list[NewJob]) -> None:
    """The connection breaks, the repeat makes the jobs, they are completed, and then the first insert arrives."""
    assert isinstance(harness, PostgresHarness)
    async with opened_line(harness.url) as line:
        store = line.store
        ghost = await line.haunt(store.insert(jobs), enqueues, "part")
        await store.insert(jobs, repeat=True)
        runs = (await store.claim(claim_by())).jobs
        assert len(runs) == len(jobs)
        await store.settle([settlement(run, Completed(), ran=0.0) for run in runs])
        await arrived(ghost)
    assert await harness.fetch("SELECT count(*) FROM _jobs") == [(0,)]
    assert await harness.fetch("SELECT sum(enqueued) FROM _jobs_counts") == [(len(jobs),)]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_repeat_waits_until_the_first_insert_does_nothing(
    harness: PostgresHarness, kind: str, short: None
) -> None:
    await made_once(harness, KINDS[kind]())


@pytest.mark.parametrize("kind", ["alike", "mixed", "keyed"])
async def test_the_first_insert_comes_while_its_repeat_waits(harness: PostgresHarness, kind: str) -> None:
    jobs = KINDS[kind]()
    async with opened_line(harness.url) as line:
        ghost = await line.haunt(line.store.insert(jobs), enqueues, "part")
        again = asyncio.create_task(line.store.insert(jobs, repeat=True))
        await arrived(ghost)
        assert [one.existing for one in await again] == [True] * len(jobs)
    assert await harness.fetch("SELECT sum(enqueued) FROM _jobs_counts") == [(len(jobs),)]


@pytest.mark.parametrize("kind", ["keys", "line", "once"])
async def test_a_repeat_waits_for_a_commit_that_is_on_its_way(harness: PostgresHarness, kind: str) -> None:
    jobs = KINDS[kind]()
    async with opened_line(harness.url) as line:
        ghost = await line.haunt(line.store.insert(jobs), commits, "part")
        again = asyncio.create_task(line.store.insert(jobs, repeat=True))
        await waiting(harness)
        await arrived(ghost)
        assert [one.existing for one in await again] == [True] * len(jobs)


def commits(text: str) -> bool:
    return text.startswith("COMMIT")


async def waiting(harness: PostgresHarness, count: int = 1) -> None:
    """Return once this many statements wait for a lock."""
    statement = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

    async def wait() -> bool:
        [(found,)] = await harness.fetch(statement)
        return bool(found >= count)

    await until(wait)


async def taken_back(harness: Harness) -> None:
    """An insert reaches the server in time, waits there for a key, and gets it when its time is over."""
    assert isinstance(harness, PostgresHarness)
    other = await asyncpg.connect(harness.url)
    try:
        async with opened_line(harness.url) as line:
            rival = other.transaction()
            await rival.start()
            await other.execute(OTHERS_JOB, real_job().id)
            ghost = await line.haunt(line.store.insert([real_job(key="a")]), enqueues, "part")
            ghost.release.set()
            await waiting(harness)
            begun = await line.store.now()

            async def too_late() -> bool:
                return (await line.store.now() - begun).total_seconds() > clock.INSERTS

            await until(too_late)
            await rival.rollback()
            await ghost.answered.wait()
    finally:
        await other.close()
    assert await harness.fetch("SELECT count(*) FROM _jobs") == [(0,)]


OTHERS_JOB = """INSERT INTO _jobs (id, topic, payload, status, priority, run_at, ready, key, max_retries, timeout,
    created, updated)
    VALUES ($1, 'mail', '{}', 'pending', 0, now(), true, 'a', 3, 60, now(), now())"""


async def test_an_insert_that_waited_for_a_key_too_long_takes_itself_back(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "INSERTS", 5.0)  # on a busy machine the insert may need some time to reach the server
    await taken_back(harness)


async def test_a_client_that_waits_for_a_key_gets_it_however_long_it_takes(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each late insert undoes itself, and the store sends it again."""
    monkeypatch.setattr(clock, "INSERTS", 0.05)
    other = await asyncpg.connect(harness.url)
    try:
        async with opened_line(harness.url) as line:
            rival = other.transaction()
            await rival.start()
            await other.execute(OTHERS_JOB, real_job().id)
            asked = asyncio.create_task(line.store.insert([real_job(key="a")]))
            await waiting(harness)
            begun = await line.store.now()
            while (await line.store.now() - begun).total_seconds() <= 0.5:
                pass  # each query is a round trip, so no sleep is needed
            await rival.rollback()
            [answer] = await asked
            assert not answer.existing
    finally:
        await other.close()


# ── Claims ──


async def test_a_claim_that_comes_too_late_takes_nothing(harness: PostgresHarness, line: Line) -> None:
    job_id = await harness.add()
    ghost = await line.haunt(line.store.claim(claim_by()), claims)
    await arrived(ghost)
    assert await pending(harness, job_id)


@pytest.mark.parametrize("workers", [["w1", "w1"], ["w1", "w2"]], ids=["complete", "mixed"])
async def test_a_settle_that_comes_too_late_settles_and_claims_nothing(
    harness: PostgresHarness, line: Line, workers: list[str]
) -> None:
    """The version guards the settlements, so they may come late. The claim may not."""
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


# ── Clients that still wait ──


async def test_a_clock_that_jumps_costs_a_retry_and_no_job(postgres_store: PostgresHarness) -> None:
    """After each jump, the store's estimate of the clock is wrong: statements seem far too late, or never too late."""
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
