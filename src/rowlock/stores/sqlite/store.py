"""SqliteStore: every verb is one transaction, or one statement that reads. One thread writes, two read, and one watches
for commits of other processes.

The functions behind the verbs take a connection that is inside a transaction, and its time; `insert` is used that way
on connections of the application as well.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from rowlock.core.flows import FlowRow, NewChildren, NewFlow
from rowlock.core.job import Lane, LiveKey, NewJob, Status
from rowlock.core.lifecycle import Settlement
from rowlock.core.moves import Due, Order
from rowlock.core.schedules import Fired, Schedule
from rowlock.core.steps import StepMark
from rowlock.core.verify import StepOwner, StoredRow
from rowlock.core.waits import Wait
from rowlock.errors import ConnectionRefused, StoreClosed
from rowlock.stores.base import (
    MOST_COUNTED,
    Awaited,
    Beat,
    Changed,
    Chore,
    Claim,
    Claimed,
    Enqueued,
    Guard,
    Hold,
    Home,
    Moved,
    Part,
    Pause,
    Progress,
    Retention,
    Settled,
    TopicSteering,
    Traits,
    WorkerInfo,
)
from rowlock.stores.bulk import BATCH, Bulk, BulkItem, NewBulk, Steering
from rowlock.stores.callers.refusals import IN_MEMORY
from rowlock.stores.failures import FailureQuery, Failures
from rowlock.stores.flows import FlowGraph
from rowlock.stores.limits import NewShare, Usage
from rowlock.stores.migrations import Migration, Pending, require_none
from rowlock.stores.queries import Filter, Page, Stats, check_place
from rowlock.stores.records import ALL_LINES, Audited, AuditFilter, Entry, Record, Refused, Write
from rowlock.stores.schedules import Decide, Decided, ScheduleFilter, Which
from rowlock.stores.series import Series, Window
from rowlock.stores.sqlite import bulk as bulks
from rowlock.stores.sqlite import (
    connect,
    failures,
    flows,
    forks,
    limits,
    maintenance,
    moves,
    queries,
    records,
    registers,
    rollups,
    schedules,
    settle,
    steps,
    transactions,
    waits,
)
from rowlock.stores.sqlite.claim import claim as claim_
from rowlock.stores.sqlite.connection import SqliteConnection, microseconds
from rowlock.stores.sqlite.doorbell import Doorbell, Look, Watcher
from rowlock.stores.sqlite.fenced import FencedConnection
from rowlock.stores.sqlite.files import inode
from rowlock.stores.sqlite.identity import tag
from rowlock.stores.sqlite.insert import insert
from rowlock.stores.sqlite.migrate import script
from rowlock.stores.sqlite.opener import Opener
from rowlock.stores.sqlite.rows import micros, moment, sql
from rowlock.stores.sqlite.threads import Worker

T = TypeVar("T")

_READERS = 2


class FileHome(Home, frozen=True):
    path: str

    def is_current(self) -> bool:
        found = inode(self.path)
        return found is not None and self.identity.endswith(tag(found))


class _Side(Struct):
    """A connection and its thread."""

    worker: Worker
    connection: SqliteConnection

    async def call(self, function: Callable[[SqliteConnection], T]) -> T:
        def run() -> T:
            self.connection.use()
            return function(self.connection)

        return await self.worker.call(run)

    def shut(self, *, checkpoint: bool) -> None:
        """After the queued calls, empty the WAL into the file, close the connection, and end the thread."""
        self.connection.hurry = True
        if checkpoint:
            self.worker.submit(self.connection.checkpoint)
        self.worker.submit(self.connection.close)
        self.worker.stop()


class _Opened(Struct):
    writer: _Side
    readers: list[_Side]  # in memory: the writer again
    watcher: Watcher | None

    @property
    def reader(self) -> _Side:
        """Return the reader that has less to do: a quick read doesn't wait behind a count of all jobs."""
        return min(self.readers, key=lambda side: side.worker.backlog)

    def shut(self) -> None:
        """Close all connections, the writer last: the last connection that is closed removes the WAL."""
        if self.watcher is not None:
            self.watcher.stop()
            for reader in self.readers:
                reader.shut(checkpoint=False)  # a checkpoint would wait for a writer, up to the whole busy timeout
        self.writer.shut(checkpoint=True)


class SqliteStore:
    """`path` None is a database in memory, which lives until close(). See stores.base.Store for the verbs."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        synchronous: connect.Synchronous = "full",
        busy_timeout: float = 30.0,
        force_network_fs: bool = False,
        clock: Callable[[], int] = microseconds,
    ) -> None:
        self._path = None if path is None or path == ":memory:" else str(Path(path).absolute())
        self._where = self._path if self._path is not None else "the database in memory"
        self._file = (
            None
            if self._path is None
            else Opener(
                self._path,
                synchronous=synchronous,
                busy_timeout=busy_timeout,
                force_network_fs=force_network_fs,
                clock=clock,
            )
        )
        self._clock = clock
        self._pid: int | None = None
        self._opened: _Opened | None = None
        self._memory: _Side | None = None
        self._opening = asyncio.Lock()
        self._doorbell = Doorbell()
        self._traits = Traits(any_loop=True, is_private=self._path is None, watches_commits=True)

    def __repr__(self) -> str:
        return f"<SqliteStore {self._where}>"

    @property
    def traits(self) -> Traits:
        return self._traits

    @property
    def owes_ring(self) -> bool:
        return False

    # ── Life of the store ──

    async def open(self) -> None:
        self._check_process()
        async with self._opening:
            if self._opened is not None:
                return
            self._doorbell = Doorbell()
            if self._file is None:
                side = self._memory_side()
                require_none(await side.call(SqliteConnection.pending_migrations), self._where)
                self._opened = _Opened(side, [side], None)
            else:
                self._opened = await self._open_file(self._file)
                self._file.writer = self._opened.writer.connection
            self._pid = os.getpid()

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        memory, self._memory = self._memory, None
        if self._file is not None:
            self._file.writer = None
        if self._pid is not None and self._pid != os.getpid():
            return  # the parent's connections: not ours to close
        self._pid = None
        self._doorbell.close(StoreClosed(f"{self._where} was closed while waiting for work"))
        if opened is not None:
            # In a thread, which goes on to the end even if the caller of close() is cancelled.
            await asyncio.to_thread(opened.shut)
        elif memory is not None:
            await asyncio.to_thread(memory.shut, checkpoint=False)

    async def migrate(self, *, create: bool = True) -> list[Migration]:
        self._check_process()
        if self._file is None:
            return await self._memory_side().call(SqliteConnection.migrate)
        return await asyncio.to_thread(self._file.migrate, create)

    async def pending_migrations(self, *, whole: bool = False) -> Pending:
        self._check_process()
        if self._file is None:
            found = await self._memory_side().call(lambda connection: connection.pending_migrations(whole=whole))
        else:
            found = await asyncio.to_thread(self._file.pending_migrations, whole)
        return Pending(found, script(found) if found else "")

    async def now(self) -> datetime:
        self._use()
        return moment(self._clock())

    async def home(self) -> Home:
        opened = self._use()
        if await opened.reader.call(SqliteConnection.is_copy):
            await opened.writer.call(SqliteConnection.mark_file)  # the writer marks a file when it opens it
        identity = await opened.reader.call(SqliteConnection.identity)
        return Home("sqlite", identity, None) if self._path is None else FileHome("sqlite", identity, None, self._path)

    # ── Clients ──

    async def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued]:
        writer = self._use().writer
        if not jobs:
            return []

        def insert_and_ring() -> list[Enqueued]:
            answers = writer.connection.write(lambda conn, now: insert(conn, now, jobs, repeat=repeat))
            self._doorbell.ring()  # in the writer's thread: the caller may be cancelled by now
            return answers

        return await writer.worker.call(insert_and_ring)

    # ── Workers ──

    async def claim(self, claim: Claim) -> Claimed:
        return await self._write(lambda conn, now: claim_(conn, now, claim))

    async def settle(self, settlements: Sequence[Settlement], claim: Claim | None = None) -> Settled:
        return await self._write(lambda conn, now: settle.settle(conn, now, settlements, claim))

    async def heartbeat(self, beats: Sequence[Beat], lease: float) -> list[Hold]:
        return await self._write(lambda conn, now: settle.heartbeat(conn, now, beats, lease))

    async def progress(self, reports: Sequence[Progress]) -> list[Hold]:
        return await self._write(lambda conn, now: settle.progress(conn, now, reports))

    async def checkpoint(self, marks: Sequence[StepMark]) -> list[Hold]:
        return await self._write(lambda conn, now: steps.checkpoint(conn, now, marks)) if marks else []

    async def take_signal(self, wait: Wait) -> Awaited:
        return await self._write(lambda conn, now: waits.take_signal(conn, now, wait))

    async def look(self, runs: Sequence[Beat]) -> list[Hold]:
        return await self._read(lambda conn: settle.look(conn, runs))

    async def held_by(self, workers: Sequence[str], limit: int | None = None) -> list[Beat]:
        return await self._read(lambda conn: queries.held_by(conn, workers, limit))

    # ── Workers' register ──

    async def report(self, worker: WorkerInfo) -> datetime:
        return await self._write(lambda conn, now: registers.report(conn, now, worker))

    async def retire(self, names: Sequence[str]) -> int:
        return await self._write(lambda conn, now: registers.retire(conn, names))

    async def workers(self) -> list[WorkerInfo]:
        return await self._read(registers.workers)

    async def set_backoff(self, tables: Mapping[str, Sequence[float] | None]) -> None:
        await self._write(lambda conn, now: registers.set_backoff(conn, tables))

    # ── Transactions of the application ──

    def transaction(self, guard: Guard, *, longest: float) -> AbstractAsyncContextManager[FencedConnection]:
        return transactions.transaction(self._open_fenced, self._guarded(guard), longest)

    def sync_transaction(self, guard: Guard, *, longest: float) -> AbstractContextManager[FencedConnection]:
        return transactions.sync_transaction(self._open_fenced, self._guarded(guard), longest)

    # ── Maintenance ──

    async def promote(self, limit: int = 1000) -> int:
        return await self._write(lambda conn, now: maintenance.promote(conn, now, limit))

    async def move_due(self, order: Due, limit: int = 500) -> list[Moved]:
        return await self._write(lambda conn, now: moves.move_due(conn, now, order, limit))

    async def prune(self, retention: Retention, limit: int = 1000) -> int:
        return await self._write(lambda conn, now: maintenance.prune(conn, now, retention, limit))

    async def tidy(self, chore: Chore, limit: int) -> int:
        # A look first: a write would wake all processes that watch the file. The totals were already updated with each
        # event.
        if chore == "fold_counts" and not await self._read(rollups.is_waiting):
            return 0
        return await self._write(lambda conn, now: _CHORES[chore](conn, now, max(limit, 0)))

    # ── Operators ──

    async def move(self, ids: Sequence[str], order: Order) -> list[Changed]:
        return await self._write(lambda conn, now: moves.move(conn, now, order, ids))

    async def limit_usage(self) -> Usage:
        return await self._read(lambda conn: limits.usage(conn, self._clock()))

    async def set_shares(self, shares: Sequence[NewShare]) -> None:
        if shares:
            await self._write(lambda conn, now: limits.set_shares(conn, shares))

    async def steer_topic(
        self, topic: str, to: TopicSteering, *, by: str, reason: str | None = None, until: datetime | None = None
    ) -> bool:
        return await self._write(lambda conn, now: registers.steer_topic(conn, now, topic, to, by, reason, until))

    async def paused(self) -> list[Pause]:
        return await self._read(lambda conn: registers.paused(conn, self._clock()))

    # ── Reading ──

    async def read(self, ids: Sequence[str], shape: type[T]) -> dict[str, T]:
        return await self._read(lambda conn: queries.read(conn, ids, shape))

    async def holders(self, keys: Sequence[LiveKey]) -> list[str]:
        return await self._read(lambda conn: list(moves.holders(conn, keys).values()))

    async def debounced(self, lines: Sequence[str]) -> list[str]:
        return await self._read(lambda conn: list(moves.holders(conn, lines).values()))

    async def count_ready(self, lanes: Sequence[Lane], limit: int = MOST_COUNTED) -> list[int]:
        return await self._read(lambda conn: queries.count_ready(conn, lanes, limit))

    async def newest(self, filters: Sequence[Filter], limit: int) -> list[list[str]]:
        return await self._read(lambda conn: [queries.newest(conn, filter, limit) for filter in filters])

    async def newest_of_scopes(self, filters: Sequence[Filter], limit: int) -> list[list[str] | None]:
        return await self._read(lambda conn: [queries.newest_of_scope(conn, filter, limit) for filter in filters])

    async def mark(self) -> str:
        return await self._use().readers[-1].call(SqliteConnection.mark)  # each connection has its own

    async def failures(self, query: FailureQuery) -> Failures:
        return await self._read(lambda conn: failures.read(conn, self._clock(), query))

    async def stored_rows(self, part: Part, *, before: str | None, limit: int) -> list[StoredRow] | list[StepOwner]:
        return await self._read(lambda conn: queries.stored_rows(conn, part, before, limit))

    async def end_counts(self, limit: int) -> dict[Status, tuple[int, int]]:
        return await self._read(lambda conn: queries.end_counts(conn, limit))

    # ── Records ──

    async def records(
        self, kind: str, ids: Sequence[str] | None = None, *, after: str | None = None, limit: int | None = None
    ) -> list[Record]:
        return await self._read(lambda conn: records.read(conn, self._clock(), kind, ids, after, limit))

    async def write_records(self, writes: Sequence[Write], *entries: Entry) -> bool:
        try:
            await self._write(lambda conn, now: records.write(conn, now, writes, *entries))
        except Refused:
            return False
        return True

    async def audit(
        self, filter: AuditFilter = ALL_LINES, *, before: int | None = None, limit: int = 50
    ) -> list[Audited]:
        return await self._read(lambda conn: records.audit(conn, filter, before, max(limit, 0)))

    # ── Schedules ──

    async def change_schedules(
        self, which: Which, decide: Decide, unreadable: Callable[[str], None] = lambda schedule_id: None
    ) -> list[Decided]:
        # Mostly no schedule is due. No process needs the write lock to learn that.
        if which.due and ((seconds := await self.next_fire(skip=which.skip)) is None or seconds > 0):
            return []
        return await self._write(lambda conn, now: schedules.change(conn, now, which, decide, unreadable))

    async def next_fire(self, *, skip: Sequence[str] = (), later: bool = False) -> float | None:
        return await self._read(lambda conn: schedules.next_fire(conn, self._clock(), skip, later=later))

    async def schedules(
        self, filter: ScheduleFilter, *, after: tuple[str, str] | None = None, limit: int = 50
    ) -> list[Schedule]:
        return await self._read(lambda conn: schedules.read(conn, filter, after, limit))

    async def fires(
        self, ids: Sequence[str], *, before: datetime | None = None, limit: int = 50
    ) -> dict[str, list[Fired]]:
        below = None if before is None else micros(before)
        return await self._read(lambda conn: schedules.fires(conn, ids, below, limit))

    # ── Flows ──

    async def insert_flow(self, flow: NewFlow, *, repeat: bool = False) -> list[Enqueued]:
        answers = await self._write(lambda conn, now: flows.insert_flow(conn, now, flow, repeat=repeat))
        self._doorbell.ring()
        return answers

    async def start_children(self, children: NewChildren) -> tuple[Hold, list[Enqueued]]:
        return await self._write(lambda conn, now: flows.start_children(conn, now, children))

    async def flows(
        self,
        ids: Sequence[str] | None = None,
        *,
        before: str | None = None,
        limit: int = 50,
        name: str | None = None,
    ) -> list[FlowRow]:
        return await self._read(lambda conn: flows.flows(conn, ids, before, max(limit, 0), name))

    async def flow_graph(self, flow_id: str) -> FlowGraph | None:
        return await self._read(lambda conn: flows.graph(conn, flow_id))

    async def drop_flow(self, flow_id: str) -> None:
        await self._write(lambda conn, now: flows.drop_flow(conn, flow_id))

    # ── Bulk actions ──

    async def create_bulk(self, bulk: NewBulk, filter: Filter) -> Bulk:
        return await self._write(lambda conn, now: bulks.create(conn, now, bulk, filter))

    async def steer_bulk(self, bulk_id: str, to: Steering, *, by: str, reason: str | None = None) -> bool:
        steer = bulks.start if to == "start" else bulks.stop
        return await self._write(lambda conn, now: steer(conn, now, bulk_id, by, reason))

    async def run_bulk(self, bulk_id: str | None = None, limit: int = BATCH) -> Bulk | None:
        # Mostly there is no bulk action to run. No process needs the write lock to learn that.
        if not await self._read(lambda conn: conn.execute(sql("bulk_take"), {"id": bulk_id}).fetchone()):
            return None
        return await self._write(lambda conn, now: bulks.run(conn, now, bulk_id, limit))

    async def bulks(
        self, ids: Sequence[str] | None = None, *, before: str | None = None, limit: int = 50
    ) -> list[Bulk]:
        return await self._read(lambda conn: bulks.find(conn, ids, before, limit))

    async def bulk_items(
        self, bulk_id: str, *, outcome: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[BulkItem]:
        return await self._read(lambda conn: bulks.items(conn, bulk_id, outcome, after, limit))

    # ── Wake-up ──

    async def ring(self) -> None:
        self._use()
        self._doorbell.ring()
        if self._path is not None:  # other processes watch for commits, so commit something
            await self._write(lambda conn, now: conn.execute(sql("ring")))

    async def wait_for_work(self, timeout: float) -> bool:
        await self._require_file()
        rang = await self._doorbell.wait(timeout)
        await self._require_file()
        return rang

    # ── Inside ──

    async def _read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        side = self._use().reader
        return await side.worker.call(partial(side.connection.read, function))

    async def _write(self, function: Callable[[sqlite3.Connection, int], T]) -> T:
        side = self._use().writer
        return await side.worker.call(partial(side.connection.write, function))

    def _use(self) -> _Opened:
        self._check_process()
        if self._opened is None:
            raise StoreClosed(f"{self._where} is not open: call open() first")
        return self._opened

    def _check_process(self) -> None:
        if self._pid is not None and self._pid != os.getpid():
            raise forks.refusal(self._where)

    async def _require_file(self) -> None:
        side = self._use().readers[-1]
        files = side.connection.files
        if files is not None and not files.is_current():
            await side.call(lambda _: None)  # raises an error, or goes on with another file

    def _guarded(self, guard: Guard) -> Guard:
        if self._file is None:
            raise ConnectionRefused("sqlite3 Connection", "in_memory", IN_MEMORY)
        return guard

    def _open_fenced(self) -> SqliteConnection:
        self._check_process()
        assert self._file is not None  # noqa: S101 - narrows the type
        return self._file.open_fenced()

    async def _open_file(self, file: Opener) -> _Opened:
        sides: list[_Side] = []
        try:
            sides.append(await _open_side("write", file.open_writer))
            for _ in range(_READERS):
                sides.append(await _open_side("read", file.open_reader))
            watching = await _open_side("watch", file.open_reader)
            watching.worker.submit_stop()  # the watcher has a thread of its own
            connection = watching.connection
            watcher = Watcher(self._doorbell, partial(_look, connection), connection.close, f"{file.path}-wal")
            return _Opened(sides[0], sides[1:], watcher)
        except BaseException:
            for side in reversed(sides):
                side.worker.submit(side.connection.close)
                side.worker.submit_stop()
            raise

    def _memory_side(self) -> _Side:
        if self._memory is None:
            self._pid = os.getpid()
            connection = SqliteConnection(connect.connect_memory(), self._where, clock=self._clock)
            self._memory = _Side(Worker("rowlock-sqlite-memory"), connection)
        return self._memory

    # ── Lists and numbers. Last, because from here on `list` is a verb ──

    async def stats(self, topic: str | None = None) -> Stats:
        return await self._read(lambda conn: queries.stats(conn, self._clock(), topic))

    async def series(self, topic: str | None, window: Window) -> Series:
        return await self._read(lambda conn: rollups.series(conn, topic, window))

    async def list(self, filter: Filter, *, limit: int = 20, offset: int = 0, cursor: str | None = None) -> Page:
        place = check_place(limit, offset, cursor)
        return await self._read(lambda conn: queries.list_jobs(conn, filter, place))


async def _open_side(name: str, make: Callable[[], SqliteConnection]) -> _Side:
    worker = Worker(f"rowlock-sqlite-{name}")
    try:
        return _Side(worker, await worker.call(make))
    except BaseException:
        worker.submit_stop()
        raise


_CHORES: dict[Chore, Callable[[sqlite3.Connection, int, int], int]] = {
    "fold_counts": lambda conn, now, limit: rollups.fold(conn, limit),
    "group_failures": lambda conn, now, limit: failures.group(conn, limit),
    "sweep_records": records.sweep,
    "sweep_rollups": rollups.sweep,
    "prune_bulks": bulks.prune,
    "prune_fires": schedules.prune,
    "prune_starts": limits.prune_starts,
    "prune_flows": flows.prune_flows,
    "prune_throttles": maintenance.prune_throttles,
}


def _look(connection: SqliteConnection) -> Look:
    connection.use()
    return Look(connection.reopened, connection.data_version())
