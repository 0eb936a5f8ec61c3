"""A connection to an SQLite database: its transactions, its clock and its files. No asyncio, no threads."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from rowlock.errors import OutcomeUnknown, StoreBusy, StoreError, StoreUnavailable
from rowlock.stores.base import Guard
from rowlock.stores.migrations import Migration
from rowlock.stores.sqlite import migrate
from rowlock.stores.sqlite.connect import disconnect
from rowlock.stores.sqlite.fence import fence
from rowlock.stores.sqlite.files import Files, gone, inode
from rowlock.stores.sqlite.identity import identity as identity_
from rowlock.stores.sqlite.identity import mark, mark_of, own_identity, tag
from rowlock.stores.sqlite.translate_errors import primary_code, translate, translated

T = TypeVar("T")

_PAUSE = 0.002  # seconds between tries to get the write lock
_HURRY = 1.0  # seconds to wait for it at most, once the store is being closed
# A look at a file takes some microseconds. After every commit we look at the database file; we don't look again before
# the next transaction if that begins within _JUST_SEEN seconds. We look at the log every _LOG_LOOK seconds.
_JUST_SEEN, _LOG_LOOK = 0.01, 0.1


def microseconds() -> int:
    """Return the time of the machine's clock, which is SQLite's."""
    return time.time_ns() // 1000


class SqliteConnection:
    """`where` names the database in messages. `reopen` makes another connection, on the file that is at the path
    now."""

    files: Files | None = None  # the files that the connection has open; None: in memory, or unimportant
    reopened = 0  # how often another file has taken the place of the one that was open

    def __init__(
        self,
        conn: sqlite3.Connection,
        where: str = "the database in memory",
        *,
        clock: Callable[[], int] = microseconds,
        busy_timeout: float = 30.0,
        reopen: Callable[[], SqliteConnection] | None = None,
    ) -> None:
        self.conn = conn
        self.where = where
        self.hurry = False
        self._clock = clock
        self._busy_timeout = busy_timeout
        self._reopen = reopen
        self._in_doubt = False  # at the last look, not all files were there
        self._seen = self._log_seen = 0.0  # times at which all were there

    def close(self) -> None:
        disconnect(self.conn)

    # ── Is it the file at the path? ──

    def use(self) -> None:
        """Call this before every use. If another file is at the path, go on with that one. Raise StoreUnavailable if
        there is none, or none that can be used; then the old file stays open, because it may come back."""
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

    def _move_to(self, reopen: Callable[[], SqliteConnection], files: Files) -> None:
        rollback(self.conn)  # an earlier ROLLBACK may have failed
        files.abandon(complete=self._copy_log())
        new = reopen()
        self.close()
        self.conn, self.files = new.conn, new.files
        self.reopened += 1

    def _copy_log(self) -> bool:
        """Copy the write-ahead log into the file. Return True if all of it is in the file now."""
        try:
            busy, frames, copied = self.conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error:
            return False
        return not busy and bool(frames == copied)

    def _require_files(self) -> None:
        """Raise StoreUnavailable if a file is gone. Nothing has been committed yet."""
        if self.files is not None and not self.files.is_whole():
            if inode(self.files.path) is None:
                raise gone(self.files.path)
            self.files.require_log()
            raise StoreUnavailable(
                f"{self.where} was replaced during this transaction, which is rolled back: try again"
            )

    def _acknowledge(self) -> None:
        """Call this after every COMMIT. Raise OutcomeUnknown if other processes can't find the file that it went to."""
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

    def write(self, function: Callable[[sqlite3.Connection, int], T]) -> T:
        """Call the function in a transaction, with the time of this transaction in microseconds."""
        self.use()
        with self.transaction() as now:
            return function(self.conn, now)

    def read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Call the function without a transaction. It should read by one statement: that is one snapshot, and keeps
        the WAL from shrinking for as long as the statement takes, no longer."""
        self.use()
        with translated(self.where):
            return function(self.conn)

    @contextmanager
    def transaction(self) -> Iterator[int]:
        """Run the block in a transaction: all or nothing. Yield the time, which is read once the write lock is held."""
        committing = False
        try:
            self.begin()
            yield self._clock()
            committing = True
            self.conn.execute("COMMIT")
            self._acknowledge()
        except sqlite3.Error as error:  # not by `translated`, which would take longer than the look at the file
            rollback(self.conn)
            raise translate(error, self.where, committing=committing) from error
        except BaseException:
            rollback(self.conn)
            raise

    def begin(self) -> None:
        """Begin a transaction with the write lock. Raise StoreBusy if other connections hold the lock for the busy
        timeout."""
        if self.conn.in_transaction:  # a ROLLBACK failed
            rollback(self.conn)
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
                # SQLite's own waiting grows to 100 ms between tries, and loses against a writer that makes no pause.
                time.sleep(_PAUSE)
            else:
                return

    def commit(self, guard: Guard) -> None:
        """End a transaction of the application: fence and COMMIT, or raise LeaseLost."""
        with translated(self.where):
            fence(self.conn, self._clock(), guard)
        self._require_files()
        with translated(self.where, committing=True):
            self.conn.execute("COMMIT")
        self._acknowledge()

    # ── Schema ──

    def migrate(self) -> list[Migration]:
        applied: list[Migration] = []
        while self.pending_migrations():  # checked before the lock is taken: mostly there is nothing to do
            with self.transaction() as now:
                migration = migrate.apply_next(self.conn, now, self.where)
            if migration is not None:
                applied.append(migration)
        return applied

    def pending_migrations(self, *, whole: bool = False) -> list[Migration]:
        """Return the migrations that are still to be applied. `whole`: also raise SchemaDamaged if something is gone
        that migrations have made."""
        with translated(self.where):
            found = migrate.missing(self.conn, self.where)
            if whole:
                migrate.check_schema(self.conn, self.where)
            return found

    def identity(self) -> str:
        cursor = self.conn.cursor()
        with translated(self.where):
            return identity_(cursor) if self.files is None else own_identity(cursor, self.files.main)

    def mark_file(self) -> None:
        """Write into the tables which file they are in; see identity.py."""
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
        """Return True if the tables were in another file before."""
        return self.files is not None and self._mark() not in (None, tag(self.files.main))

    def _mark(self) -> str | None:
        with translated(self.where):
            return mark_of(self.conn)

    # ── Commits of other connections ──

    def mark(self) -> str:
        """Return a text that changes with every commit, also with those of this connection."""
        return f"{self.reopened} {self.data_version()} {self.conn.total_changes}"

    def data_version(self) -> int:
        """Return a number that changes when another connection has committed something."""
        with translated(self.where):
            (version,) = self.conn.execute("PRAGMA data_version").fetchone()
        assert isinstance(version, int)  # noqa: S101 - narrows the type
        return version

    def checkpoint(self) -> None:
        """Copy the WAL into the file and empty it, if no other connection is in the way."""
        with suppress(StoreError), translated(self.where):
            self.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def rollback(conn: sqlite3.Connection) -> None:
    while conn.in_transaction:
        try:
            conn.execute("ROLLBACK")
        except sqlite3.Error:
            return
        except MemoryError:  # a handler has taken all memory; until the ROLLBACK, no other connection can write
            time.sleep(_PAUSE)
