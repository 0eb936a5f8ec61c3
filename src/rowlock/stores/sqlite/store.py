"""SqliteStore: the verbs of Database for asyncio. One thread writes, two read, one watches for other processes."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from rowlock.core.job import Event, Job, LiveKey, Log, NewJob, Status
from rowlock.core.lifecycle import Settlement
from rowlock.core.verify import Kept
from rowlock.errors import ConnectionRefused, StoreClosed, StoreError, StoreUnavailable
from rowlock.stores.base import (
    Beat,
    Changed,
    Claim,
    Claimed,
    Edit,
    Enqueued,
    Guard,
    Hold,
    Home,
    Pause,
    Progress,
    Rescued,
    Retention,
    Settled,
    WorkerInfo,
)
from rowlock.stores.bulk import BATCH, Bulk, BulkItem, NewBulk
from rowlock.stores.callers.refusals import IN_MEMORY
from rowlock.stores.failures import FailureQuery, Failures
from rowlock.stores.migrations import Migration, require_none
from rowlock.stores.reading import Filter, Page, PartitionReport, State, Stats, check_place
from rowlock.stores.records import Audited, AuditFilter, Entry, Record, Write
from rowlock.stores.series import Series, Window
from rowlock.stores.sqlite import connect, forks, transactions
from rowlock.stores.sqlite.database import Database, microseconds
from rowlock.stores.sqlite.doorbell import Doorbell, Look, Watcher
from rowlock.stores.sqlite.fenced import FencedConnection
from rowlock.stores.sqlite.files import Files, gone, inode, new_file
from rowlock.stores.sqlite.identity import tag
from rowlock.stores.sqlite.migrate import known, script
from rowlock.stores.sqlite.threads import Answer, Worker, deliver

T = TypeVar("T")

log = logging.getLogger("rowlock")

_READERS = 2
_TRIES = 3  # to open a file that is being replaced
_LARGEST_GROUP = 10_000  # jobs of waiting inserts that share a transaction; nobody should wait for more than that


class _Side(Struct):
    """A connection and its thread."""

    worker: Worker
    database: Database

    async def call(self, verb: Callable[[Database], T]) -> T:
        return await self.worker.call(partial(self._use, verb))

    def _use(self, verb: Callable[[Database], T]) -> T:
        self.database.use()
        return verb(self.database)

    def shut(self, *, checkpoint: bool) -> None:
        """After what is queued: empty the WAL into the file, let go of it, end the thread."""
        self.database.hurry = True
        if checkpoint:
            self.worker.submit(self.database.checkpoint)
        self.worker.submit(self.database.close)
        self.worker.stop()


class _Opened(Struct):
    writer: _Side
    readers: list[_Side]  # in memory: the writer again
    watcher: Watcher | None

    @property
    def reader(self) -> _Side:
        """Whichever has less to do: what is quick doesn't wait behind a count of all jobs."""
        return min(self.readers, key=lambda side: side.worker.backlog)

    def shut(self) -> None:
        """The writer last: whoever closes the last connection removes the WAL."""
        if self.watcher is not None:
            self.watcher.stop()
            for reader in self.readers:
                reader.shut(checkpoint=False)  # it would wait for a writer as long as it may wait at all
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
        self._synchronous = synchronous
        self._busy_timeout = busy_timeout
        self._force_network_fs = force_network_fs
        self._clock = clock
        self._pid: int | None = None
        self._opened: _Opened | None = None
        self._memory: _Side | None = None
        self._opening = asyncio.Lock()
        self._doorbell = Doorbell()
        self._inserts: deque[tuple[Sequence[NewJob], bool, asyncio.Future[list[Enqueued]]]] = deque()

    @property
    def any_loop(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<SqliteStore {self._where}>"

    @property
    def is_private(self) -> bool:
        return self._path is None

    @property
    def owes_ring(self) -> bool:
        return False

    @property
    def watches_commits(self) -> bool:
        return True

    # ── Life of the store ──

    async def open(self) -> None:
        self._check_process()
        async with self._opening:
            if self._opened is not None:
                return
            self._doorbell = Doorbell()
            if self._path is None:
                side = self._memory_side()
                require_none(await side.call(Database.pending_migrations), self._where)
                self._opened = _Opened(side, [side], None)
            else:
                self._opened = await self._open_file()
            self._pid = os.getpid()

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        memory, self._memory = self._memory, None
        if self._pid is not None and self._pid != os.getpid():
            return  # the parent's connections: not ours to close
        self._pid = None
        self._doorbell.close(StoreClosed(f"{self._where} was closed while waiting for work"))
        if opened is not None:
            # In one thread to the end, also if whoever closes is cancelled.
            await asyncio.to_thread(opened.shut)
        elif memory is not None:
            await asyncio.to_thread(memory.shut, checkpoint=False)

    async def migrate(self, *, create: bool = True) -> list[Migration]:
        self._check_process()
        if self._path is None:
            return await self._memory_side().call(Database.migrate)
        return await asyncio.to_thread(self._migrate_file, create)

    async def pending_migrations(self) -> list[Migration]:
        self._check_process()
        if self._path is None:
            return await self._memory_side().call(Database.pending_migrations)
        return await asyncio.to_thread(self._pending_in_file)

    async def check_schema(self) -> None:
        self._check_process()
        if self._path is None:
            await self._memory_side().call(Database.check_schema)
        else:
            await asyncio.to_thread(self._check_file)

    def migration_sql(self, migrations: Sequence[Migration]) -> str:
        return script(migrations)

    async def now(self) -> datetime:
        return self._use().reader.database.now()

    async def identity(self) -> str:
        if await self._read(Database.is_copy):
            await self._write(Database.mark_file)  # it is done when the writer opens the file, maybe only now
        return await self._read(Database.identity)

    async def home(self) -> Home:
        return Home("sqlite", await self.identity(), None)

    def is_home(self, home: Home) -> bool:
        found = None if self._path is None else inode(self._path)
        return self._path is None or (found is not None and home.identity.endswith(tag(found)))

    # ── Clients ──

    async def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued]:
        writer = self._use().writer
        if not jobs:
            return []
        future: asyncio.Future[list[Enqueued]] = asyncio.get_running_loop().create_future()
        self._inserts.append((jobs, repeat, future))
        # Whichever of these comes first takes all that wait; the others find nothing to do.
        writer.worker.submit(partial(self._insert_waiting, writer.database))
        return await future

    # ── Workers ──

    async def claim(self, claim: Claim) -> Claimed:
        return await self._write(lambda db: db.claim(claim))

    async def settle(self, settlements: Sequence[Settlement], claim: Claim | None = None) -> Settled:
        return await self._write(lambda db: db.settle(settlements, claim))

    async def heartbeat(self, beats: Sequence[Beat], lease: float) -> list[Hold]:
        return await self._write(lambda db: db.heartbeat(beats, lease))

    async def progress(self, reports: Sequence[Progress]) -> list[Hold]:
        return await self._write(lambda db: db.progress(reports))

    async def look(self, runs: Sequence[Beat]) -> list[Hold]:
        return await self._read(lambda db: db.look(runs))

    async def held_by(self, worker: str) -> list[Beat]:
        return await self._read(lambda db: db.held_by(worker))

    async def held_by_any(self, workers: Sequence[str], limit: int) -> list[Beat]:
        return await self._read(lambda db: db.held_by_any(workers, limit))

    # ── Workers' register ──

    async def report(self, worker: WorkerInfo) -> datetime:
        return await self._write(lambda db: db.report(worker))

    async def retire(self, names: Sequence[str]) -> int:
        return await self._write(lambda db: db.retire(names))

    async def workers(self) -> list[WorkerInfo]:
        return await self._read(Database.workers)

    # ── Transactions of the application's own ──

    def transaction(self, guard: Guard, *, longest: float) -> AbstractAsyncContextManager[FencedConnection]:
        self._refuse_memory()
        return transactions.transaction(self._open_fenced, guard, longest)

    def sync_transaction(self, guard: Guard, *, longest: float) -> AbstractContextManager[FencedConnection]:
        self._refuse_memory()
        return transactions.sync_transaction(self._open_fenced, guard, longest)

    async def set_backoff(self, tables: Mapping[str, Sequence[float] | None]) -> None:
        await self._write(lambda db: db.set_backoff(tables))

    # ── Maintenance ──

    async def promote(self, limit: int = 1000) -> int:
        return await self._write(lambda db: db.promote(limit))

    async def rescue(
        self,
        *,
        by: str,
        backoff: Sequence[float],
        limit: int = 500,
        workers: Sequence[str] | None = None,
        detail: str | None = None,
        before: datetime | None = None,
    ) -> list[Rescued]:
        return await self._write(
            lambda db: db.rescue(by=by, backoff=backoff, limit=limit, workers=workers, detail=detail, before=before)
        )

    async def expire(self, *, by: str, limit: int = 500) -> list[str]:
        return await self._write(lambda db: db.expire(by=by, limit=limit))

    async def cancel_timeout(self, *, by: str, grace: float = 30.0, limit: int = 500) -> list[str]:
        return await self._write(lambda db: db.cancel_timeout(by=by, grace=grace, limit=limit))

    async def prune(self, retention: Retention, limit: int = 1000) -> int:
        return await self._write(lambda db: db.prune(retention, limit))

    async def fold_counts(self, limit: int = 10_000) -> int:
        # A look first: a write would wake all who watch the file. The totals have been added to at once.
        if not await self._read(Database.has_notes):
            return 0
        return await self._write(lambda db: db.fold_counts(limit))

    async def sweep_rollups(self, limit: int = 10_000) -> int:
        return await self._write(lambda db: db.sweep_rollups(limit))

    async def group_failures(self, limit: int = 200) -> int:
        return await self._write(lambda db: db.group_failures(limit))

    async def keep_partitions(self, retention: Retention, *, ahead: int = 3) -> PartitionReport:
        return PartitionReport()  # the archive is one table

    # ── Operators ──

    async def cancel(self, ids: Sequence[str], *, by: str, reason: str | None = None) -> list[Changed]:
        return await self._write(lambda db: db.cancel(ids, by=by, reason=reason))

    async def requeue(
        self,
        ids: Sequence[str],
        edit: Edit = Edit(),  # noqa: B008 - it is frozen
        *,
        version: int | None = None,
        by: str,
        reason: str | None = None,
    ) -> list[Changed]:
        return await self._write(lambda db: db.requeue(ids, edit, version=version, by=by, reason=reason))

    async def update(self, ids: Sequence[str], edit: Edit, *, by: str, reason: str | None = None) -> list[Changed]:
        return await self._write(lambda db: db.update(ids, edit, by=by, reason=reason))

    async def delete(self, ids: Sequence[str], *, by: str, reason: str | None = None) -> list[Changed]:
        return await self._write(lambda db: db.delete(ids, by=by, reason=reason))

    async def pause(self, topic: str, *, by: str, reason: str | None = None, until: datetime | None = None) -> None:
        await self._write(lambda db: db.pause(topic, by=by, reason=reason, until=until))

    async def resume(self, topic: str, *, by: str, reason: str | None = None) -> bool:
        return await self._write(lambda db: db.resume(topic, by=by, reason=reason))

    async def paused(self) -> list[Pause]:
        return await self._read(Database.paused)

    # ── Reading ──

    async def get(self, ids: Sequence[str]) -> dict[str, Job]:
        return await self._read(lambda db: db.get(ids))

    async def holders(self, keys: Sequence[LiveKey]) -> list[str]:
        return await self._read(lambda db: db.holders(keys))

    async def statuses(self, ids: Sequence[str]) -> dict[str, Status]:
        return await self._read(lambda db: db.statuses(ids))

    async def states(self, ids: Sequence[str]) -> dict[str, State]:
        return await self._read(lambda db: db.states(ids))

    async def newest(self, filters: Sequence[Filter], limit: int) -> list[list[str]]:
        return await self._read(lambda db: db.newest(filters, limit))

    async def newest_of_scopes(self, filters: Sequence[Filter], limit: int) -> list[list[str] | None]:
        return await self._read(lambda db: db.newest_of_scopes(filters, limit))

    async def mark(self) -> str:
        return await self._use().readers[-1].call(Database.mark)  # each connection has its own

    async def events(self, job_id: str) -> list[Event]:
        return await self._read(lambda db: db.events(job_id))

    async def logs(self, job_id: str) -> Log:
        return await self._read(lambda db: db.logs(job_id))

    async def records(
        self, kind: str, ids: Sequence[str] | None = None, *, after: str | None = None, limit: int | None = None
    ) -> list[Record]:
        return await self._read(lambda db: db.records(kind, ids, after, limit))

    async def write_records(self, writes: Sequence[Write], entry: Entry | None = None) -> bool:
        return await self._write(lambda db: db.write_records(writes, entry))

    async def sweep_records(self, limit: int) -> int:
        return await self._write(lambda db: db.sweep_records(limit))

    async def audit(
        self,
        filter: AuditFilter | None = None,
        *,
        before: int | None = None,
        limit: int = 50,
        bulk: str | None = None,
    ) -> list[Audited]:
        return await self._read(lambda db: db.audit(filter or AuditFilter(bulk=bulk), before, limit))

    async def failures(self, query: FailureQuery) -> Failures:
        return await self._read(lambda db: db.failures(query))

    async def kept(self, *, archived: bool, before: str | None, limit: int) -> list[Kept]:
        return await self._read(lambda db: db.kept(archived=archived, before=before, limit=limit))

    async def kept_counts(self, limit: int) -> dict[Status, tuple[int, int]]:
        return await self._read(lambda db: db.kept_counts(limit))

    # ── Bulk actions ──

    async def create_bulk(self, bulk: NewBulk, filter: Filter) -> Bulk:
        return await self._write(lambda db: db.create_bulk(bulk, filter))

    async def start_bulk(self, bulk_id: str, *, by: str, reason: str | None = None) -> bool:
        return await self._write(lambda db: db.start_bulk(bulk_id, by=by, reason=reason))

    async def stop_bulk(self, bulk_id: str, *, by: str, reason: str | None = None) -> bool:
        return await self._write(lambda db: db.stop_bulk(bulk_id, by=by, reason=reason))

    async def run_bulk(self, bulk_id: str | None = None, limit: int = BATCH) -> Bulk | None:
        return await self._write(lambda db: db.run_bulk(bulk_id, limit))

    async def bulks(
        self, ids: Sequence[str] | None = None, *, before: str | None = None, limit: int = 50
    ) -> list[Bulk]:
        return await self._read(lambda db: db.bulks(ids, before, limit))

    async def bulk_items(
        self, bulk_id: str, *, outcome: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[BulkItem]:
        return await self._read(lambda db: db.bulk_items(bulk_id, outcome, after, limit))

    async def prune_bulks(self, limit: int = 10_000) -> int:
        return await self._write(lambda db: db.prune_bulks(limit))

    # ── Wake-up ──

    async def ring(self) -> None:
        self._use()
        self._doorbell.ring()
        if self._path is not None:
            await self._write(Database.ring)

    async def wait_for_work(self, timeout: float) -> bool:
        await self._require_file()
        rang = await self._doorbell.wait(timeout)
        await self._require_file()
        return rang

    # ── Inside ──

    async def _require_file(self) -> None:
        side = self._use().readers[-1]
        files = side.database.files
        if files is not None and not files.is_current():
            await side.call(lambda _: None)  # says what is wrong, or goes on with another file

    async def _read(self, verb: Callable[[Database], T]) -> T:
        return await self._use().reader.call(verb)

    async def _write(self, verb: Callable[[Database], T]) -> T:
        return await self._use().writer.call(verb)

    def _use(self) -> _Opened:
        self._check_process()
        if self._opened is None:
            raise StoreClosed(f"{self._where} is not open: call open() first")
        return self._opened

    def _check_process(self) -> None:
        if self._pid is not None and self._pid != os.getpid():
            raise forks.refusal(self._where)

    def _insert_waiting(self, database: Database) -> None:
        """On the writer's thread: all inserts that came in during the last transaction share the next."""
        calls, total = [], 0
        while self._inserts and total < _LARGEST_GROUP:
            call = self._inserts.popleft()
            if not call[2].cancelled():
                calls.append(call)
                total += len(call[0])
        answers: list[Answer] = []
        try:
            if calls:
                database.use()
                inserted = database.insert_all([(jobs, repeat) for jobs, repeat, _ in calls])
                answers = [(call[2], one, None) for call, one in zip(calls, inserted, strict=True)]
        except BaseException as error:
            if isinstance(error, StoreError) and type(error) is not StoreError:  # busy, full, …: the same for all
                answers = [(call[2], None, error) for call in calls]
            else:  # something about one of the calls: nothing was written, so each alone
                answers = [_insert_alone(database, *call) for call in calls]
        if answers:
            self._doorbell.ring()
            deliver(answers)

    async def _open_file(self) -> _Opened:
        sides: list[_Side] = []
        try:
            sides.append(await self._open_side("write", self._open_writer))
            for _ in range(_READERS):
                sides.append(await self._open_side("read", self._open_reader))
            watching = await self._open_side("watch", self._open_reader)
            watching.worker.submit_stop()  # the watcher has a thread of its own
            database = watching.database
            watcher = Watcher(self._doorbell, partial(_look, database), database.close, f"{self._path}-wal")
            return _Opened(sides[0], sides[1:], watcher)
        except BaseException:
            for side in reversed(sides):
                side.worker.submit(side.database.close)
                side.worker.submit_stop()
            raise

    async def _open_side(self, name: str, make: Callable[[], Database]) -> _Side:
        worker = Worker(f"rowlock-sqlite-{name}")
        try:
            return _Side(worker, await worker.call(make))
        except BaseException:
            worker.submit_stop()
            raise

    def _open_writer(self) -> Database:
        database = self._migrated(self._writing)
        try:
            database.mark_file()
        except BaseException:
            database.close()
            raise
        return database

    def _open_reader(self) -> Database:
        return self._migrated(self._reading)

    def _open_fenced(self) -> Database:
        """A new connection for each transaction. If it leads to the file that the store has open, its tables have been
        checked."""
        self._check_process()
        assert self._path is not None  # noqa: S101 - narrows the type
        checked = None if self._opened is None else self._opened.writer.database.files
        if checked is None or not checked.is_current():
            return self._migrated(partial(self._writing, FencedConnection))
        return self._at_path(partial(self._writing, FencedConnection))

    def _migrated(self, connect_: Callable[[], Database]) -> Database:
        """A database on the file at the path, if that has our tables."""
        assert self._path is not None  # noqa: S101 - narrows the type
        if self._opened is None:
            return self._checked(connect_)
        if inode(self._path) is None:
            raise gone(self._path)
        try:
            return self._checked(connect_)
        except StoreError as error:
            if type(error) is not StoreError:
                raise
            # No database, or a damaged one. It doesn't refuse this or that write: our database is not there.
            raise StoreUnavailable(str(error)) from error

    def _checked(self, connect_: Callable[[], Database]) -> Database:
        assert self._path is not None  # noqa: S101 - narrows the type
        if not connect.check_path(self._path, force_network_fs=self._force_network_fs):
            require_none(list(known()), self._where)  # no file is made for nothing
        database = self._at_path(connect_)
        try:
            require_none(database.pending_migrations(), self._where)
        except BaseException:
            database.close()
            raise
        return database

    def _at_path(self, connect_: Callable[[], Database]) -> Database:
        """A database that knows which files it has open: those that were at the path before and after."""
        assert self._path is not None  # noqa: S101 - narrows the type
        for _ in range(_TRIES):
            before = inode(self._path)
            database = connect_()
            try:
                database.data_version()  # SQLite opens the log when it first reads
                database.files = Files.opened(self._path)
            except BaseException:
                database.close()
                raise
            if database.files is not None and database.files.main == before:
                return database
            database.close()
        raise StoreUnavailable(f"{self._path} was replaced while it was being opened: try again")

    def _reading(self) -> Database:
        assert self._path is not None  # noqa: S101 - narrows the type
        conn = connect.connect_reader(self._path, busy_timeout=self._busy_timeout)
        return Database(conn, self._where, clock=self._clock, reopen=self._open_reader)

    def _refuse_memory(self) -> None:
        if self._path is None:
            raise ConnectionRefused("sqlite3 Connection", "in_memory", IN_MEMORY)

    def _writing(self, factory: type[sqlite3.Connection] = sqlite3.Connection, *, create: bool = False) -> Database:
        assert self._path is not None  # noqa: S101 - narrows the type
        conn = connect.connect_writer(
            self._path, synchronous=self._synchronous, busy_timeout=self._busy_timeout, factory=factory, create=create
        )
        return Database(
            conn, self._where, clock=self._clock, busy_timeout=self._busy_timeout, reopen=self._reopen_writer
        )

    def _reopen_writer(self) -> Database:
        database = self._open_writer()
        log.warning("%s was replaced by another file: going on with that one", self._where)
        return database

    def _migrate_file(self, create: bool) -> list[Migration]:
        assert self._path is not None  # noqa: S101 - narrows the type
        if connect.check_path(self._path, force_network_fs=self._force_network_fs):
            database = self._writing()
        elif not create:
            raise gone(self._path)
        else:
            with new_file(self._path):
                database = self._writing(create=True)
        try:
            return database.migrate()
        finally:
            database.close()

    def _pending_in_file(self) -> list[Migration]:
        assert self._path is not None  # noqa: S101 - narrows the type
        if not connect.check_path(self._path, force_network_fs=self._force_network_fs):
            return list(known())
        database = self._reading()
        try:
            return database.pending_migrations()
        finally:
            database.close()

    def _check_file(self) -> None:
        assert self._path is not None  # noqa: S101 - narrows the type
        if connect.check_path(self._path, force_network_fs=self._force_network_fs):
            database = self._reading()
            try:
                database.check_schema()
            finally:
                database.close()

    def _memory_side(self) -> _Side:
        if self._memory is None:
            self._pid = os.getpid()
            database = Database(connect.connect_memory(), self._where, clock=self._clock)
            self._memory = _Side(Worker("rowlock-sqlite-memory"), database)
        return self._memory

    # ── Lists and numbers. Last, because from here on `list` is a verb ──

    async def stats(self, topic: str | None = None) -> Stats:
        return await self._read(lambda db: db.stats(topic))

    async def series(self, topic: str | None, window: Window) -> Series:
        return await self._read(lambda db: db.series(topic, window))

    async def list(self, filter: Filter, *, limit: int = 20, offset: int = 0, cursor: str | None = None) -> Page:
        place = check_place(limit, offset, cursor)
        return await self._read(lambda db: db.list(filter, place))


def _look(database: Database) -> Look:
    database.use()
    return Look(database.reopened, database.data_version())


def _insert_alone(
    database: Database, jobs: Sequence[NewJob], repeat: bool, future: asyncio.Future[list[Enqueued]]
) -> Answer:
    try:
        return future, database.insert(jobs, repeat=repeat), None
    except BaseException as error:
        return future, None, error
