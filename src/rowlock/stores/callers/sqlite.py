"""Work on a caller's SQLite connection, in the thread that owns it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from rowlock.errors import ConnectionRefused
from rowlock.stores.base import Home
from rowlock.stores.callers.refusals import another_database, autocommit, causes, closed, deleted_file, read_only
from rowlock.stores.callers.work import ChangeSchedules, Fence, Insert, InsertFlow, Work
from rowlock.stores.sqlite import schedules
from rowlock.stores.sqlite.connection import microseconds
from rowlock.stores.sqlite.fence import fence
from rowlock.stores.sqlite.flows import insert_flow
from rowlock.stores.sqlite.identity import GONE, identity
from rowlock.stores.sqlite.insert import insert
from rowlock.stores.sqlite.rows import sql
from rowlock.stores.sqlite.translate_errors import primary_code

T = TypeVar("T")
LOCK = sql("lock_on_conn")
_BEGIN = "Execute BEGIN first, or use a connection with another isolation_level"


def carry_on(conn: sqlite3.Connection, kind: str, home: Home, work: Work[T]) -> T:
    """Do the work as a whole, under the write lock. The caller's transaction begins as for any other write."""
    with explained(kind), _plain(conn):
        cursor = conn.cursor()
        checked = False
        if not conn.in_transaction:
            if conn.isolation_level is None or getattr(conn, "autocommit", None) is True:
                raise autocommit(kind, _BEGIN)
            # Outside of a transaction a read leaves nothing behind; a refusal must not leave the write lock behind.
            _check_home(cursor, kind, home)
            checked = True
        cursor.execute(LOCK)
        if not conn.in_transaction:
            raise autocommit(kind, _BEGIN)
        if not checked:
            _check_home(cursor, kind, home)
        with _savepoint(cursor):
            answer: T = _do(conn, work)
            return answer


def _do(conn: sqlite3.Connection, work: Work[T]) -> Any:
    if isinstance(work, Insert):
        return insert(conn, microseconds(), work.jobs, repeat=work.repeat)
    if isinstance(work, InsertFlow):
        return insert_flow(conn, microseconds(), work.flow, repeat=work.repeat)
    if isinstance(work, ChangeSchedules):
        return schedules.change(conn, microseconds(), work.which, work.decide)
    assert isinstance(work, Fence)  # noqa: S101 - narrows the type
    return fence(conn, microseconds(), work.guard)


def _check_home(cursor: sqlite3.Cursor, kind: str, home: Home) -> None:
    found = identity(cursor)
    if found != home.identity:
        where = next(file for _, name, file in cursor.execute("PRAGMA database_list") if name == "main")
        ours = f"@{home.identity.rpartition('@')[2]}"
        if found.endswith((GONE, ours)):  # our file is at its path, but it has other tables open
            raise deleted_file(kind, where)
        raise another_database(kind, where or "in memory")


@contextmanager
def _savepoint(cursor: sqlite3.Cursor) -> Iterator[None]:
    """Roll back all statements of a batch if one fails: the caller may go on after an error."""
    cursor.execute("SAVEPOINT rowlock")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):  # after some errors (a full disk) SQLite has rolled back everything by itself
            cursor.execute("ROLLBACK TO rowlock")
            cursor.execute("RELEASE rowlock")
        raise
    cursor.execute("RELEASE rowlock")


@contextmanager
def _plain(conn: sqlite3.Connection) -> Iterator[None]:
    """Use the connection without the caller's factories."""
    text_factory, row_factory = conn.text_factory, conn.row_factory
    conn.text_factory, conn.row_factory = str, None
    try:
        yield
    finally:
        conn.text_factory, conn.row_factory = text_factory, row_factory


@contextmanager
def explained(kind: str) -> Iterator[None]:
    """Raise ConnectionRefused for errors that mean "not on this connection". Other errors pass through."""
    try:
        yield
    except Exception as error:
        for cause in causes(error):
            if isinstance(cause, sqlite3.Error) and (refusal := _refusal(kind, cause)):
                raise refusal from error
        raise


def _refusal(kind: str, error: sqlite3.Error) -> ConnectionRefused | None:
    said = str(error)
    if primary_code(error) == sqlite3.SQLITE_READONLY:
        return read_only(kind)
    if said.startswith("no such table: _jobs"):
        return ConnectionRefused(
            kind,
            "no_tables",
            "this connection leads to a database without rowlock's tables: pass one to the jobs' file, or run "
            "`rowlock migrate` on it",
        )
    if isinstance(error, sqlite3.ProgrammingError) and "closed database" in said:
        return closed(kind)
    return None
