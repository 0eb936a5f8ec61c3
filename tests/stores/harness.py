"""A store under test. The tests set its clock, and read and change its tables without the store."""

import asyncio
import itertools
import json
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
from msgspec import structs

from rowlock.core.ids import IdMaker
from rowlock.core.job import HELD, Event, Job, Lane, NewJob, Status, new_job
from rowlock.core.lifecycle import (
    Completed,
    Failed,
    GaveUp,
    Outcome,
    Released,
    Settlement,
    Snoozed,
    StepRetry,
    TimedOut,
    Waits,
    decide,
)
from rowlock.core.moves import Cancel, Expire
from rowlock.core.retry import Delays
from rowlock.core.steps import StepMark, StepState, with_step_events
from rowlock.core.waits import Wait, WaitTerms
from rowlock.stores import reading
from rowlock.stores.base import MAX_LOG_LINES, Claim, Claimed, Enqueued, Hold, Moved, Store, WorkerInfo
from rowlock.stores.postgres.claim_bounds import ClaimBounds, Floor
from rowlock.stores.postgres.rows import event
from rowlock.stores.postgres.store import PostgresStore
from rowlock.stores.sqlite.store import SqliteStore
from tests.databases import Databases, migrated, with_test_clock
from tests.stores.rows import Audit, Row, SignalRow, micros, moment, timeline

T = TypeVar("T")

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
LEASE = 30.0
MINUTE = 60.0
NOBODY = "0193fb1e-0000-7000-8000-000000000000"  # no job has this id
KEPT = {"_jobs_migrations", "_jobs_meta", "_jobs_doorbell", "_jobs_limits"}  # what every database has from the start
RETRY_IN_10 = Delays((10.0,))

# Make running jobs pending again, without a trace in their history.
FORGET_CLAIMS = """
UPDATE _jobs SET status = 'pending', ready = true, version = version - 1, locked_by = NULL, locked_until = NULL,
    claimed_at = NULL, started_at = NULL
WHERE locked_by IS NOT NULL
"""

# Jobs that were enqueued into a line, or that wait for other jobs of their flow.
BLOCKED_AT_FIRST = """
SELECT id FROM _jobs WHERE if_live IS NOT NULL UNION ALL SELECT id FROM _jobs_archive WHERE if_live IS NOT NULL
UNION ALL SELECT DISTINCT child FROM _jobs_edges WHERE call IS NULL
"""

_ids = IdMaker(lambda: micros(START) * 1000, os.urandom)


def job(topic: str = "mail", payload: dict[str, Any] | None = None, **fields: Any) -> NewJob:
    return new_job(fields.pop("id", None) or _ids.one(), topic, payload, **fields)


def lanes(*topics: str | tuple[str, int]) -> tuple[Lane, ...]:
    return tuple(Lane(topic) if isinstance(topic, str) else Lane(*topic) for topic in topics)


def claim_by(
    worker: str = "w1",
    *topics: str,
    limit: int = 10,
    lease: float = LEASE,
    start: bool = True,
    size: int | None = None,
) -> Claim:
    return Claim(worker, lanes(*topics or ("mail",)), limit, lease, start, size)


def settlement(claimed: Job, outcome: Outcome, *, ran: float | None = None) -> Settlement:
    """Return the settlement that a worker asks for when it last saw the job as `claimed`."""
    to = decide(claimed, outcome, START, retry=RETRY_IN_10, ran=ran)
    return Settlement(claimed.id, claimed.version, to, claimed.locked_by)


def mark(run: Job, name: str, state: StepState | str, **fields: Any) -> StepMark:
    """Return what the worker of `run` says about a step. The names of steps, a to z, give their positions."""
    usual: dict[str, Any] = {
        "id": run.id,
        "version": run.version,
        "worker": run.locked_by,
        "n": 1,
        "position": ord(name[0]) - ord("a") + 1,
        "function": name,
    }
    return StepMark(name=name, state=StepState(state), **usual | fields)


def wait(run: Job, waits_for: str = "signal:go", **fields: Any) -> Wait:
    """Return the question of the worker that has claimed `run`: must the run wait?"""
    usual: dict[str, Any] = {"id": run.id, "version": run.version, "worker": run.locked_by, "n": 1, "position": 9}
    usual["terms"] = WaitTerms(fields.get("seconds")).text
    return Wait(waits_for=waits_for, **usual | fields)


def info(name: str = "w1", **fields: Any) -> WorkerInfo:
    """Return what a worker reports about itself."""
    usual: dict[str, Any] = {
        "host": "here",
        "pid": 4711,
        "topics": ("mail", "bills"),
        "concurrency": 10,
        "running": 0,
        "lease": LEASE,
        "rowlock": "1.0",
    }
    return WorkerInfo(name=name, **usual | fields)


# One outcome of each kind. Snoozes count from START, and no test's clock is before START.
OUTCOMES: dict[str, Outcome] = {
    "completed": Completed({"ok": True}),
    "retried": Failed("boom"),
    "timed out": TimedOut(600.0),
    "failed": Failed("never", final=True),
    "step retried": StepRetry(20.0, "no answer", "fetch"),
    "snoozed": Snoozed(90.0),
    "released": Released(),
    "gave up": GaveUp("no longer wanted"),
    "waited": Waits("signal:go", 30.0, 0),
}


class Harness(ABC):
    """`store` is open and migrated. With a virtual clock, time stands still until `advance`."""

    kind: str
    tables: str  # the statement that finds the names of all tables
    store: Store
    paired: Any = None  # the Paired that `store` is, if any

    def __init__(self, *, virtual: bool) -> None:
        self.virtual = virtual
        self.now = START
        self._others: list[Store] = []
        self._tables: list[str] = []  # the tables that `reset` empties, jobs first: deleting a job changes counters

    async def open(self, *, migrated: bool = False) -> None:
        self.store = self.new_store()
        if not migrated:
            await self.store.migrate()
        await self.store.open()

    async def close(self) -> None:
        await self.close_others()
        await self.store.close()

    async def close_others(self) -> None:
        while self._others:
            await self._others.pop().close()

    async def another(self) -> Store:
        """Open and return a second store on the same database, as another process would have."""
        store = self.new_store()
        await store.open()
        self._others.append(store)
        return store

    async def advance(self, seconds: float) -> datetime:
        assert self.virtual
        self.now += timedelta(seconds=seconds)
        if self.paired is not None:
            self.paired.reference.now = self.now
        await self._set_clock()
        return self.now

    @abstractmethod
    async def at_rest(self) -> None:
        """Wait until the store writes no more in the background."""

    async def reset(self) -> None:
        """Empty the database and set the clock to START."""
        self.now = START
        await self._set_clock()
        if not self._tables:
            self._tables = sorted({name for (name,) in await self.fetch(self.tables)} - KEPT)
        emptied = " ".join(f"DELETE FROM {table};" for table in self._tables)
        await self.execute(f"BEGIN; {emptied} UPDATE _jobs_limits SET epoch = epoch + 1, turns = '{{}}'; COMMIT")

    @abstractmethod
    def new_store(self) -> Store: ...

    @abstractmethod
    async def _set_clock(self) -> None: ...

    @abstractmethod
    async def fetch(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query that goes to the tables, not through the store."""

    @abstractmethod
    async def execute(self, statement: str) -> None: ...

    # ── Whole rows ──

    async def rows(self) -> dict[str, Row]:
        """Return everything that the store keeps of every job. Check what must hold for any row at any time."""
        kept = await self.fetch(
            "SELECT id, ready, history, history_dropped, log, log_dropped, coalesce(signals, 0) FROM _jobs UNION ALL "
            "SELECT id, false, history, history_dropped, log, log_dropped, 0 FROM _jobs_archive"
        )
        jobs = await self.store.read([str(row[0]) for row in kept], Job)
        assert len(jobs) == len(kept)
        waited = {str(job_id) for (job_id,) in await self.fetch(BLOCKED_AT_FIRST)}
        rows = {}
        for raw_id, ready, history, dropped, log, log_dropped, got in kept:
            entries, lines = tuple(json.loads(history or "[]")), tuple(json.loads(log or "[]"))
            row = Row(
                jobs[str(raw_id)],
                bool(ready),
                entries,
                dropped,
                lines,
                log_dropped,
                got=got,
                waited=str(raw_id) in waited,
            )
            rows[str(raw_id)] = row
            check(row)
        for (raw_id,) in await self.fetch("SELECT DISTINCT job_id FROM _jobs_steps"):
            job_id = str(raw_id)
            assert job_id in rows, "steps of a job that is gone"
            assert rows[job_id].job.step is not None, "steps that nobody would look for"
            rows[job_id] = structs.replace(rows[job_id], steps=tuple(await reading.steps(self.store, job_id)))
        for raw_id, seq, name, signal_id, data, at, by, wait, wait_n in await self.fetch(
            "SELECT job_id, seq, name, signal_id, data, at, by, wait, wait_n FROM _jobs_signals ORDER BY job_id, seq"
        ):
            job_id = str(raw_id)
            assert job_id in rows, "signals of a job that is gone"
            signal = SignalRow(
                seq=seq,
                name=name,
                signal_id=signal_id,
                data=json.loads(data),
                at=moment(at) if isinstance(at, int) else at,
                by=by,
                wait=wait,
                wait_n=wait_n,
            )
            rows[job_id] = structs.replace(rows[job_id], signals=(*rows[job_id].signals, signal))
        return rows

    async def row(self, job_id: str) -> Row:
        return (await self.rows())[job_id]

    async def job(self, job_id: str) -> Job:
        return (await self.store.read([job_id], Job))[job_id]

    async def audit(self) -> list[Audit]:
        """Return the audit, oldest entries first; the entries of one call in the order of their job ids."""
        found = []
        for at, by, action, job_id, topic, reason, data in await self.fetch(
            "SELECT at, by, action, job_id, topic, reason, data FROM _jobs_audit ORDER BY id"
        ):
            details = json.loads(data) if isinstance(data, str) else data or {}
            found.append(
                Audit(
                    at=moment(at) if isinstance(at, int) else at,
                    by=by,
                    action=action,
                    job_id=None if job_id is None else str(job_id),
                    topic=topic,
                    reason=reason,
                    data={name: value for name, value in details.items() if value is not None},
                )
            )
        return found

    async def events(self, job_id: str) -> list[Event]:
        """Return the store's events; check that the row's columns and history tell the same."""
        events = await reading.events(self.store, job_id)
        row = await self.row(job_id)
        assert events == with_step_events(sorted(timeline(row), key=lambda event: event.seq), row.steps)
        return events

    async def story(self, job_id: str) -> list[str]:
        return [event.event for event in await self.events(job_id)]

    async def forget_claims(self) -> None:
        """Undo all claims, as when a standby without the latest commits becomes the database."""
        await self.change(FORGET_CLAIMS)

    async def change(self, statement: str) -> None:
        """Change rows behind the store's back."""
        await self.execute(statement)
        if self.paired is not None:
            await self.paired.adopt()

    # ── Jobs in the state a test wants ──

    async def insert(self, *jobs: NewJob) -> list[Enqueued]:
        return await self.store.insert(jobs)

    async def add(self, topic: str = "mail", payload: dict[str, Any] | None = None, **fields: Any) -> str:
        """Insert a job and return its id."""
        new = job(topic, payload, **fields)
        [inserted] = await self.store.insert([new])
        assert not inserted.existing
        return inserted.id

    async def claim(self, worker: str = "w1", *topics: str, **wishes: Any) -> Claimed:
        return await self.store.claim(claim_by(worker, *topics, **wishes))

    async def claimed(self, worker: str = "w1", topic: str = "mail", *, start: bool = True, **fields: Any) -> Job:
        """Return a new job that `worker` has claimed."""
        job_id = await self.add(topic, **fields)
        [job] = (await self.claim(worker, topic, limit=1, start=start)).jobs
        assert job.id == job_id
        return job

    async def settled(self, outcome: Outcome, **fields: Any) -> Job:
        """Insert, claim and settle a job; return it as it is afterwards."""
        claimed = await self.claimed(**fields)
        await self.store.settle([settlement(claimed, outcome, ran=0.0)])
        return await self.job(claimed.id)

    async def waiting(
        self, waits_for: str = "signal:go", *, timeout: float | None = None, done: Sequence[str] = (), **fields: Any
    ) -> Job:
        """Return a new job that waits, after its run has done these steps."""
        run = await self.claimed(**fields)
        await self.store.checkpoint([mark(run, name, "succeeded") for name in done])
        return await self.waits(run, waits_for, timeout=timeout, undoes=bool(done))

    async def waits(
        self, run: Job, waits_for: str = "signal:go", *, n: int = 1, timeout: float | None = None, undoes: bool = False
    ) -> Job:
        """Let the run ask whether it must wait, and wait; return the job as it is afterwards."""
        answer = await self.store.take_signal(wait(run, waits_for, n=n, seconds=timeout))
        assert (answer.hold, answer.state) == (Hold.KEPT, StepState.RUNNING)
        outcome = Waits(waits_for, answer.left, answer.seen, undoes)
        await self.store.settle([settlement(run, outcome, ran=0.0)])
        return await self.job(run.id)

    async def in_status(self, status: Status, topic: str = "mail") -> Job:
        match status:
            case Status.PENDING:
                return await self.job(await self.add(topic))
            case Status.BLOCKED:  # nothing in this version blocks a job
                job_id = await self.add(topic)
                await self.change(f"UPDATE _jobs SET status = 'blocked', ready = false WHERE id = '{job_id}'")
                return await self.job(job_id)
            case Status.PROCESSING:
                return await self.claimed(topic=topic)
            case Status.WAITING:  # for a signal, without an end
                return await self.settled(Waits("signal:go", None, 0), topic=topic)
            case Status.CANCEL_REQUESTED:
                claimed = await self.claimed(topic=topic)
                await self.store.move([claimed.id], Cancel(by="ann"))
                return await self.job(claimed.id)
            case Status.COMPLETED:
                return await self.settled(Completed(), topic=topic)
            case Status.FAILED:
                return await self.settled(Failed("never", final=True), topic=topic)
            case Status.CANCELLED:
                return await self.settled(GaveUp(), topic=topic)
            case Status.EXPIRED:
                job_id = await self.add(topic, expires_at=self.now)
                await self.store.move_due(Expire(by="m1"))
                return await self.job(job_id)


def check(row: Row) -> None:
    """Check what must hold for any row at any time."""
    job = row.job
    check_lease(job, row.ready)
    held = job.locked_until is not None
    assert (job.locked_by is not None) == (held or job.status is Status.COMPLETED)
    finished = job.status in (Status.COMPLETED, Status.FAILED, Status.EXPIRED, Status.CANCELLED)
    assert (job.finished_at is not None) == finished
    assert job.events_count == 1 + job.version + len(row.history) + row.dropped + (job.status is Status.COMPLETED)
    assert [entry["at"] for entry in row.history] == sorted(entry["at"] for entry in row.history)
    assert len(row.log) == MAX_LOG_LINES if row.log_dropped else len(row.log) <= MAX_LOG_LINES
    for earlier, later in itertools.pairwise(row.history):
        assert earlier["version"] <= later["version"] <= job.version


def check_lease(job: Job, ready: bool) -> None:
    """Check the lease. A cancel_requested job has none only if it waited: it is ready, or still waits."""
    cancelling = job.status is Status.CANCEL_REQUESTED and job.locked_until is None
    assert (job.locked_until is not None) == (job.status in HELD and not cancelling)
    assert not ready or job.status is Status.PENDING or cancelling
    assert (job.waits_for is not None) == (job.status is Status.WAITING or (cancelling and not ready))


class SqliteHarness(Harness):
    kind = "sqlite"
    tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE '\\_jobs%' ESCAPE '\\'"

    def __init__(self, path: Path | None, *, virtual: bool) -> None:
        super().__init__(virtual=virtual)
        self.path = path  # None: the database is in memory

    def new_store(self) -> SqliteStore:
        path = None if self.path is None else str(self.path)
        return SqliteStore(path, clock=lambda: micros(self.now)) if self.virtual else SqliteStore(path)

    async def _set_clock(self) -> None:
        pass

    async def at_rest(self) -> None:
        pass

    async def fetch(self, query: str) -> list[tuple[Any, ...]]:
        return await self._behind(lambda connection: connection.execute(query).fetchall())

    async def execute(self, statement: str) -> None:
        await self._behind(lambda connection: connection.executescript(statement))

    async def _behind(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self.path is None:  # there is no second connection to a database in memory
            store: Any = self.store
            found: T = await store._opened.writer.call(lambda database: work(database.conn))
            return found
        with closing(sqlite3.connect(self.path, timeout=30.0)) as connection, connection:
            return work(connection)


# A function that runs with its owner's rights has its own search path.
SAME_CLOCK = "ALTER FUNCTION _jobs_note_enqueued SET search_path = testclock, pg_catalog, pg_temp"


class PostgresHarness(Harness):
    kind = "postgres"
    tables = (
        "SELECT relname FROM pg_class WHERE relname LIKE '\\_jobs%' AND relkind IN ('r', 'p') AND NOT relispartition"
    )

    def __init__(self, url: str, *, virtual: bool) -> None:
        super().__init__(virtual=virtual)
        self.url = url
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._turn = asyncio.Lock()  # one statement at a time on this connection, also if a test runs many tasks

    def new_store(self) -> PostgresStore:
        return PostgresStore(f"{self.url}?search_path=testclock,pg_catalog" if self.virtual else self.url)

    async def open(self, *, migrated: bool = False) -> None:
        await super().open(migrated=migrated)
        if self.virtual:
            await self.execute(SAME_CLOCK)

    async def close(self) -> None:
        await super().close()
        if self._connection is not None:
            await self._connection.close()

    async def at_rest(self) -> None:
        assert isinstance(self.store, PostgresStore)
        if self.store._advancing is not None:
            await asyncio.wait([self.store._advancing])

    async def reset(self) -> None:
        assert isinstance(self.store, PostgresStore)
        await self.at_rest()  # transactions in the background lock rows in another order
        await super().reset()
        # The clock has gone back to START. The store has learned positions behind dead index entries. New jobs would be
        # before these positions, and claims would miss them.
        self.store._claim_bounds, self.store._due = ClaimBounds(), Floor()

    async def _set_clock(self) -> None:
        await self.execute(f"UPDATE testclock.clock SET at = '{self.now.isoformat()}'")

    async def connection(self) -> "asyncpg.Connection[asyncpg.Record]":
        if self._connection is None:
            self._connection = await asyncpg.connect(self.url)
            await self._connection.execute("SET search_path = public")
        return self._connection

    async def fetch(self, query: str) -> list[tuple[Any, ...]]:
        async with self._turn:
            return [tuple(record) for record in await (await self.connection()).fetch(query)]

    async def execute(self, statement: str) -> None:
        async with self._turn:
            await (await self.connection()).execute(statement)

    async def events(self, job_id: str) -> list[Event]:
        """Return the events; check that the view tells the same."""
        events = await super().events(job_id)
        columns = "job_id, seq, at, event, status, version, by, data"
        view = await self.fetch(f"SELECT {columns} FROM _jobs_events WHERE job_id = '{job_id}' ORDER BY seq")
        row = await self.row(job_id)
        assert with_step_events([event(row) for row in view], row.steps) == events
        return events


def ids(jobs: Sequence[Job | Moved]) -> list[str]:
    return [job.id for job in jobs]


@asynccontextmanager
async def harness_at(
    kind: str, databases: Databases, folder: Path, *, virtual: bool, check: bool = True
) -> AsyncIterator[Any]:
    """Yield a harness on a new database of this kind. Unless `check` is False, all rows must be legal at the end."""
    prepare = migrated if kind == "sqlite" else with_test_clock
    async with databases.at(kind, folder, prepare) as url:
        harness: Harness = PostgresHarness(url, virtual=virtual)
        if kind == "sqlite":
            harness = SqliteHarness(folder / "jobs.db", virtual=virtual)
        async with opened(harness, check=check):
            yield harness


@asynccontextmanager
async def opened(harness: Harness, *, migrated: bool = True, check: bool = True) -> AsyncIterator[Harness]:
    await harness.open(migrated=migrated)
    try:
        yield harness
        if check:
            await harness.rows()
    finally:
        await harness.close()
