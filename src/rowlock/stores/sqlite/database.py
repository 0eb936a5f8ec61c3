"""All verbs, synchronously, on one connection: no asyncio, no threads. Each is one transaction.

The functions behind them take a connection that is inside a transaction, and its time; `insert` is used that way on
connections of the application as well.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime

from rowlock.core.job import Event, Job, LiveKey, Log, NewJob, Status
from rowlock.core.lifecycle import Settlement
from rowlock.core.verify import Kept
from rowlock.errors import OutcomeUnknown, StoreBusy, StoreError, StoreUnavailable
from rowlock.stores import base
from rowlock.stores.bulk import BATCH, Bulk, BulkItem, NewBulk
from rowlock.stores.failures import FailureQuery, Failures
from rowlock.stores.migrations import Migration
from rowlock.stores.reading import Filter, Page, Place, State, Stats
from rowlock.stores.records import Audited, AuditFilter, Entry, Record, Write
from rowlock.stores.reports import read_log
from rowlock.stores.series import Series, Window
from rowlock.stores.sqlite import (
    bulk,
    grouping,
    migrate,
    operators,
    reading,
    records,
    register,
    rollups,
    rows,
    settle,
    upkeep,
)
from rowlock.stores.sqlite.claim import claim as claim_
from rowlock.stores.sqlite.connect import disconnect
from rowlock.stores.sqlite.failures import primary_code, translate, translated
from rowlock.stores.sqlite.fence import fence
from rowlock.stores.sqlite.files import Files, gone, inode
from rowlock.stores.sqlite.identity import identity as identity_
from rowlock.stores.sqlite.identity import mark, mark_of, own_identity, tag
from rowlock.stores.sqlite.insert import insert_all as insert_all_
from rowlock.stores.sqlite.operators import Order

_PAUSE = 0.002  # seconds between tries to get the write lock
_HURRY = 1.0  # seconds to wait for it at most, once the store is being closed
# A look at a file takes some microseconds. After every commit we look at the database; we don't look again before the
# next transaction if that begins so many seconds later, and at the write-ahead log only so often.
_JUST_SEEN, _LOG_LOOK = 0.01, 0.1


def microseconds() -> int:
    """The machine's clock, which is SQLite's."""
    return time.time_ns() // 1000


class _Refused(Exception):
    """A record has another revision than was wanted: nothing is written."""


class Database:
    """`where` names the database in messages. `reopen` makes another one, on the file that is at the path now."""

    files: Files | None = None  # that the connection has open; None: in memory, or it doesn't matter
    reopened = 0  # how often another file has taken the place of the one that was open

    def __init__(
        self,
        conn: sqlite3.Connection,
        where: str = "the database in memory",
        *,
        clock: Callable[[], int] = microseconds,
        busy_timeout: float = 30.0,
        reopen: Callable[[], Database] | None = None,
    ) -> None:
        self.conn = conn
        self.where = where
        self.hurry = False
        self._clock = clock
        self._busy_timeout = busy_timeout
        self._reopen = reopen
        self._in_doubt = False  # at the last look, not all files were there
        self._seen = self._log_seen = 0.0  # when they were

    def close(self) -> None:
        disconnect(self.conn)

    # ── Is it the file at the path? ──

    def use(self) -> None:
        """Call this before every use. If another file is at the path, go on with that one. Raise StoreUnavailable if
        there is none, or none that can be used; then the old one stays open, because it may come back."""
        files = self.files
        if files is None or time.monotonic() - self._seen < _JUST_SEEN:
            return
        if self._in_doubt or not files.is_current():
            self._follow(files)

    def _follow(self, files: Files) -> None:
        at_path = inode(files.path)
        if at_path is None:
            raise gone(files.path)
        if at_path == files.main:
            files.require_log()
        elif self._reopen is not None:
            self._move_to(self._reopen, files)
        self._in_doubt = False

    def _move_to(self, reopen: Callable[[], Database], files: Files) -> None:
        self._rollback()  # one may have failed
        files.abandon(complete=self._copy_log())
        new = reopen()
        self.close()
        self.conn, self.files = new.conn, new.files
        self.reopened += 1

    def _copy_log(self) -> bool:
        """True if all of the write-ahead log is in the file now."""
        try:
            busy, frames, copied = self.conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error:
            return False
        return not busy and bool(frames == copied)

    def _require_files(self) -> None:
        """Nothing has been committed yet."""
        if self.files is not None and not self.files.is_whole():
            if inode(self.files.path) is None:
                raise gone(self.files.path)
            self.files.require_log()
            raise StoreUnavailable(
                f"{self.where} was replaced during this transaction, which is rolled back: try again"
            )

    def _acknowledge(self) -> None:
        """After every COMMIT: what is in a file that others can't find is not there."""
        if self.files is None:
            return
        now = time.monotonic()
        log_is_due = now - self._log_seen >= _LOG_LOOK
        if self.files.is_current() and (not log_is_due or self.files.has_log()):
            self._seen = now
            if log_is_due:
                self._log_seen = now
            return
        self._seen, self._in_doubt = 0.0, True
        raise OutcomeUnknown(
            f"{self.where} or its -wal file was deleted, moved or replaced just before or during a commit. "
            "What was committed is lost, unless the same file comes back. Try again"
        )

    # ── Transactions ──

    @contextmanager
    def transaction(self) -> Iterator[int]:
        """All or nothing. Answers the time, read once the write lock is held: a wait for it ages nothing."""
        committing = False
        try:
            self.begin()
            yield self._clock()
            committing = True
            self.conn.execute("COMMIT")
            self._acknowledge()
        except sqlite3.Error as error:  # not by `translated`, which would take longer than the look at the file
            self._rollback()
            raise translate(error, self.where, committing=committing) from error
        except BaseException:
            self._rollback()
            raise

    def begin(self) -> None:
        """With the write lock, however long that takes; StoreBusy after the busy timeout."""
        if self.conn.in_transaction:  # a ROLLBACK failed
            self._rollback()
        since = None
        while True:
            try:
                self.conn.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                if primary_code(error) != sqlite3.SQLITE_BUSY:
                    raise translate(error, self.where) from error
                since = since or time.monotonic()
                patience = min(self._busy_timeout, _HURRY) if self.hurry else self._busy_timeout
                if time.monotonic() - since >= patience:
                    raise StoreBusy(f"{self.where} was locked by others for more than {patience:g} s") from error
                # SQLite's own waiting grows to 100 ms between tries, and loses against whoever writes without a pause.
                time.sleep(_PAUSE)
            else:
                return

    def commit(self, guard: base.Guard) -> None:
        """End a transaction of the application's: fence and COMMIT, or LeaseLost."""
        with translated(self.where):
            fence(self.conn, self._clock(), guard)
        self._require_files()
        with translated(self.where, committing=True):
            self.conn.execute("COMMIT")
        self._acknowledge()

    def _rollback(self) -> None:
        while self.conn.in_transaction:
            try:
                self.conn.execute("ROLLBACK")
            except sqlite3.Error:
                return
            except MemoryError:  # a handler ate it all; until we are done, nobody else can write
                time.sleep(_PAUSE)

    # ── Schema ──

    def migrate(self) -> list[Migration]:
        applied: list[Migration] = []
        while self.pending_migrations():  # asked before the lock is taken: mostly there is nothing to do
            with self.transaction() as now:
                migration = migrate.apply_next(self.conn, now, self.where)
            if migration is not None:
                applied.append(migration)
        return applied

    def pending_migrations(self) -> list[Migration]:
        with translated(self.where):
            return migrate.missing(self.conn, self.where)

    def check_schema(self) -> None:
        with translated(self.where):
            migrate.check_schema(self.conn, self.where)

    def now(self) -> datetime:
        return rows.moment(self._clock())

    def identity(self) -> str:
        cursor = self.conn.cursor()
        with translated(self.where):
            return identity_(cursor) if self.files is None else own_identity(cursor, self.files.main)

    def mark_file(self) -> None:
        """Let the tables know which file they are in; see identity.py."""
        if self.files is None or (known := self._mark()) == tag(self.files.main):
            return
        hurry, self.hurry = self.hurry, self.hurry or known is None
        try:
            with self.transaction():
                mark(self.conn, self.files.main)
        except StoreBusy:
            if known is not None:  # a copy must not go by the original's identity
                raise
            # Else it is marked another time. The lock may belong to the transaction in which this store is opened.
        finally:
            self.hurry = hurry

    def is_copy(self) -> bool:
        """True if the tables were in another file before."""
        return self.files is not None and self._mark() not in (None, tag(self.files.main))

    def _mark(self) -> str | None:
        with translated(self.where):
            return mark_of(self.conn)

    # ── Clients ──

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[base.Enqueued]:
        return self.insert_all([(jobs, repeat)])[0]

    def insert_all(self, calls: Sequence[tuple[Sequence[NewJob], bool]]) -> list[list[base.Enqueued]]:
        """Several calls of insert in one transaction: one fsync for all."""
        with self.transaction() as now:
            return insert_all_(self.conn, now, calls)

    # ── Workers ──

    def claim(self, claim: base.Claim) -> base.Claimed:
        with self.transaction() as now:
            return claim_(self.conn, now, claim)

    def settle(self, settlements: Sequence[Settlement], claim: base.Claim | None = None) -> base.Settled:
        with self.transaction() as now:
            return settle.settle(self.conn, now, settlements, claim)

    def heartbeat(self, beats: Sequence[base.Beat], lease: float) -> list[base.Hold]:
        with self.transaction() as now:
            return settle.heartbeat(self.conn, now, beats, lease)

    def progress(self, reports: Sequence[base.Progress]) -> list[base.Hold]:
        with self.transaction() as now:
            return settle.progress(self.conn, now, reports)

    def look(self, runs: Sequence[base.Beat]) -> list[base.Hold]:
        with translated(self.where):
            return settle.look(self.conn, runs)

    def held_by(self, worker: str) -> list[base.Beat]:
        with translated(self.where):
            found = self.conn.execute(rows.sql("held_by"), (worker,)).fetchall()
        return [base.Beat(job_id, version, bool(started), worker) for job_id, version, started in found]

    def held_by_any(self, workers: Sequence[str], limit: int) -> list[base.Beat]:
        with translated(self.where):
            asked = (rows.json_text(list(workers)), max(limit, 0))
            found = self.conn.execute(rows.sql("held_by_any"), asked).fetchall()
        return [base.Beat(job_id, version, bool(started), worker) for job_id, version, started, worker in found]

    # ── Workers' register ──

    def report(self, worker: base.WorkerInfo) -> datetime:
        with self.transaction() as now:
            register.report(self.conn, now, worker)
        return rows.moment(now)

    def retire(self, names: Sequence[str]) -> int:
        with self.transaction():
            return register.retire(self.conn, names)

    def workers(self) -> list[base.WorkerInfo]:
        with translated(self.where):
            return register.workers(self.conn)

    def set_backoff(self, tables: Mapping[str, Sequence[float] | None]) -> None:
        with self.transaction():
            upkeep.set_backoff(self.conn, tables)

    # ── Maintenance ──

    def promote(self, limit: int = 1000) -> int:
        with self.transaction() as now:
            return upkeep.promote(self.conn, now, limit)

    def rescue(
        self,
        *,
        by: str,
        backoff: Sequence[float],
        limit: int = 500,
        workers: Sequence[str] | None = None,
        detail: str | None = None,
        before: datetime | None = None,
    ) -> list[base.Rescued]:
        with self.transaction() as now:
            return upkeep.rescue(
                self.conn, now, by=by, backoff=backoff, limit=limit, workers=workers, detail=detail, before=before
            )

    def expire(self, *, by: str, limit: int = 500) -> list[str]:
        with self.transaction() as now:
            return upkeep.expire(self.conn, now, by=by, limit=limit)

    def cancel_timeout(self, *, by: str, grace: float = 30.0, limit: int = 500) -> list[str]:
        with self.transaction() as now:
            return upkeep.cancel_timeout(self.conn, now, by=by, grace=grace, limit=limit)

    def prune(self, retention: base.Retention, limit: int = 1000) -> int:
        with self.transaction() as now:
            return upkeep.prune(self.conn, now, retention, limit)

    def group_failures(self, limit: int = 200) -> int:
        with self.transaction():
            return grouping.group(self.conn, limit)

    def fold_counts(self, limit: int) -> int:
        with self.transaction():
            return rollups.fold(self.conn, limit)

    def has_notes(self) -> bool:
        with translated(self.where):
            return rollups.is_waiting(self.conn)

    def sweep_rollups(self, limit: int) -> int:
        with self.transaction() as now:
            return rollups.sweep(self.conn, now, limit)

    # ── Operators ──

    def cancel(self, ids: Sequence[str], *, by: str, reason: str | None = None) -> list[base.Changed]:
        with self.transaction() as now:
            return operators.cancel(self.conn, Order("cancel", now, by, reason), ids)

    def requeue(
        self,
        ids: Sequence[str],
        edit: base.Edit = base.Edit(),  # noqa: B008 - it is frozen
        *,
        version: int | None = None,
        by: str,
        reason: str | None = None,
    ) -> list[base.Changed]:
        with self.transaction() as now:
            return operators.requeue(self.conn, Order("requeue", now, by, reason), ids, edit, version)

    def update(self, ids: Sequence[str], edit: base.Edit, *, by: str, reason: str | None = None) -> list[base.Changed]:
        with self.transaction() as now:
            return operators.update(self.conn, Order("update", now, by, reason), ids, edit)

    def delete(self, ids: Sequence[str], *, by: str, reason: str | None = None) -> list[base.Changed]:
        with self.transaction() as now:
            return operators.delete(self.conn, Order("delete", now, by, reason), ids)

    def pause(self, topic: str, *, by: str, reason: str | None = None, until: datetime | None = None) -> None:
        with self.transaction() as now:
            operators.pause(self.conn, Order("pause", now, by, reason), topic, until)

    def resume(self, topic: str, *, by: str, reason: str | None = None) -> bool:
        with self.transaction() as now:
            return operators.resume(self.conn, Order("resume", now, by, reason), topic)

    # ── Reading: one statement each, so one snapshot, and no transaction that would keep the WAL from shrinking ──

    def paused(self) -> list[base.Pause]:
        with translated(self.where):
            found = self.conn.execute(rows.sql("paused"), (self._clock(),)).fetchall()
        times = rows.Times()
        return [base.Pause(topic, times[at], times[until], reason, by) for topic, at, until, reason, by in found]

    def get(self, ids: Sequence[str]) -> dict[str, Job]:
        with translated(self.where):
            found = self.conn.execute(rows.sql("get"), {"ids": rows.json_text(list(set(ids)))}).fetchall()
        times = rows.Times()
        return {row[0]: rows.job(row, times) for row in found}

    def holders(self, keys: Sequence[LiveKey]) -> list[str]:
        with translated(self.where):
            found = [self.conn.execute(rows.sql("insert_same_key"), key).fetchone() for key in keys]
        return [row[0] for row in found if row is not None]

    def statuses(self, ids: Sequence[str]) -> dict[str, Status]:
        with translated(self.where):
            found = self.conn.execute(rows.sql("statuses"), {"ids": rows.json_text(list(set(ids)))}).fetchall()
        return {job_id: Status(status) for job_id, status in found}

    def states(self, ids: Sequence[str]) -> dict[str, State]:
        with translated(self.where):
            found = self.conn.execute(rows.sql("states"), {"ids": rows.json_text(list(set(ids)))}).fetchall()
        times = rows.Times()
        return {row[0]: rows.state(row, times) for row in found}

    def newest(self, filters: Sequence[Filter], limit: int) -> list[list[str]]:
        with translated(self.where):
            return [reading.newest(self.conn, filter, limit) for filter in filters]

    def newest_of_scopes(self, filters: Sequence[Filter], limit: int) -> list[list[str] | None]:
        with translated(self.where):
            return [reading.newest_of_scope(self.conn, filter, limit) for filter in filters]

    def mark(self) -> str:
        """With our own writes, should this connection have any."""
        return f"{self.reopened} {self.data_version()} {self.conn.total_changes}"

    def events(self, job_id: str) -> list[Event]:
        with translated(self.where):
            return [rows.event(row) for row in self.conn.execute(rows.sql("events"), (job_id,)).fetchall()]

    def logs(self, job_id: str) -> Log:
        with translated(self.where):
            found = self.conn.execute(rows.sql("logs"), {"id": job_id}).fetchone()
        return Log([]) if found is None else read_log(*found)

    def records(
        self, kind: str, ids: Sequence[str] | None, after: str | None = None, limit: int | None = None
    ) -> list[Record]:
        with translated(self.where):
            return records.read(self.conn, self._clock(), kind, ids, after, limit)

    def write_records(self, writes: Sequence[Write], entry: Entry | None) -> bool:
        try:
            with self.transaction() as now:
                if not records.write(self.conn, now, writes, entry):
                    raise _Refused
        except _Refused:
            return False
        return True

    def sweep_records(self, limit: int) -> int:
        with self.transaction() as now:
            return len(self.conn.execute(rows.sql("record_sweep"), {"now": now, "limit": max(limit, 0)}).fetchall())

    def audit(self, filter: AuditFilter, before: int | None, limit: int) -> list[Audited]:
        with translated(self.where):
            return records.audit(self.conn, filter, before, max(limit, 0))

    def failures(self, query: FailureQuery) -> Failures:
        with translated(self.where):
            return grouping.read(self.conn, self._clock(), query)

    def kept(self, *, archived: bool, before: str | None, limit: int) -> list[Kept]:
        with translated(self.where):
            return reading.kept(self.conn, archived, before, limit)

    def kept_counts(self, limit: int) -> dict[Status, tuple[int, int]]:
        with translated(self.where):
            return reading.kept_counts(self.conn, limit)

    # ── Bulk actions ──

    def create_bulk(self, new: NewBulk, filter: Filter) -> Bulk:
        with self.transaction() as now:
            return bulk.create(self.conn, now, new, filter)

    def start_bulk(self, bulk_id: str, *, by: str, reason: str | None) -> bool:
        with self.transaction() as now:
            return bulk.start(self.conn, now, bulk_id, by, reason)

    def stop_bulk(self, bulk_id: str, *, by: str, reason: str | None = None) -> bool:
        with self.transaction() as now:
            return bulk.stop(self.conn, now, bulk_id, by, reason)

    def run_bulk(self, bulk_id: str | None = None, limit: int = BATCH) -> Bulk | None:
        with translated(self.where):  # mostly there is none: nobody need wait for a lock to learn that
            if self.conn.execute(rows.sql("bulk_take"), {"id": bulk_id}).fetchone() is None:
                return None
        with self.transaction() as now:
            return bulk.run(self.conn, now, bulk_id, limit)

    def bulks(self, ids: Sequence[str] | None, before: str | None, limit: int) -> list[Bulk]:
        with translated(self.where):
            return bulk.find(self.conn, ids, before, limit)

    def bulk_items(self, bulk_id: str, outcome: str | None, after: str | None, limit: int) -> list[BulkItem]:
        with translated(self.where):
            return bulk.items(self.conn, bulk_id, outcome, after, limit)

    def prune_bulks(self, limit: int = 10_000) -> int:
        with self.transaction() as now:
            return bulk.prune(self.conn, now, limit)

    # ── Wake-up ──

    def ring(self) -> None:
        """For other processes: they watch for commits, so this is one."""
        with self.transaction():
            self.conn.execute(rows.sql("ring"))

    def data_version(self) -> int:
        """Changes when another connection has committed something."""
        with translated(self.where):
            (version,) = self.conn.execute("PRAGMA data_version").fetchone()
        assert isinstance(version, int)  # noqa: S101 - narrows the type
        return version

    def checkpoint(self) -> None:
        """Copy the WAL into the file and empty it, if nobody is in the way."""
        with suppress(StoreError), translated(self.where):
            self.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    # ── Lists and numbers. Last, because from here on `list` is a verb ──

    def stats(self, topic: str | None = None) -> Stats:
        with translated(self.where):
            return reading.stats(self.conn, self._clock(), topic)

    def series(self, topic: str | None, window: Window) -> Series:
        with translated(self.where):
            return rollups.series(self.conn, topic, window)

    def list(self, filter: Filter, place: Place) -> Page:
        try:
            with translated(self.where):
                self.conn.execute("BEGIN")
                return reading.list_jobs(self.conn, filter, place)
        finally:
            self._rollback()  # there is nothing to commit
