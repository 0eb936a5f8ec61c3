"""The database of a simulated run: real, in memory, with the witness in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from rowlock.core.job import NewJob
from rowlock.stores.base import Enqueued
from rowlock.stores.sqlite.connection import SqliteConnection
from rowlock.stores.sqlite.insert import insert
from rowlock.stores.sqlite.rows import moment
from rowlock.stores.sqlite.store import SqliteStore
from tests.proof.simulation_handlers import BUSINESS, PAID
from tests.proof.witness import TABLES, Witness

T = TypeVar("T")


class Counting(SqliteConnection):
    """Counts its transactions, so that the witness can tell them apart."""

    begun = 0

    def begin(self) -> None:
        self.begun += 1
        super().begin()


class _AtOnce(SqliteStore):
    """The verbs of an SQLite store, on one connection and without threads, so that no verb waits."""

    def __init__(self, connection: SqliteConnection, clock: Callable[[], int]) -> None:
        super().__init__(None, clock=clock)
        self._connection = connection

    async def now(self) -> datetime:
        return moment(self._clock())

    async def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued]:
        return await self._write(lambda conn, now: insert(conn, now, jobs, repeat=repeat))

    async def _read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        return self._connection.read(function)

    async def _write(self, function: Callable[[sqlite3.Connection, int], T]) -> T:
        return self._connection.write(function)


class SimulatedDatabase:
    """Has the verbs of a store, but without await."""

    def __init__(self, conn: sqlite3.Connection, clock: Callable[[], int]) -> None:
        self.conn = conn
        self.clock = clock
        self.connection = Counting(conn, clock=clock)
        self._store = _AtOnce(self.connection, clock)

    def __getattr__(self, verb: str) -> Any:
        ask = getattr(self._store, verb)
        return lambda *args, **kwargs: drive(ask(*args, **kwargs))


class Tables:
    """The witness's own way to the tables."""

    kind = "sqlite"

    def __init__(self, conn: sqlite3.Connection) -> None:
        self._conn = conn

    async def fetch(self, query: str) -> list[tuple[Any, ...]]:
        return self._conn.execute(query).fetchall()

    async def execute(self, statement: str) -> None:
        self._conn.execute(statement)


def drive(work: Any) -> Any:
    """Run a coroutine that never waits, and return its result."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


class _Kept:
    """The one connection for all runs of a process. Compiling each statement anew would take longer than running it."""

    def __init__(self) -> None:
        conn = sqlite3.connect(":memory:", isolation_level=None)
        self.now = SimulatedDatabase(conn, lambda: 0)
        self.now.connection.migrate()
        conn.execute(BUSINESS)
        conn.execute(PAID)
        conn.create_function("witness_clock", 0, lambda: self.now.clock())
        conn.create_function("witness_transaction", 0, lambda: self.now.connection.begun)
        drive(Witness(Tables(conn)).install(clock="witness_clock()", transaction="witness_transaction()"))

    def begin(self, clock: Callable[[], int]) -> SimulatedDatabase:
        conn = self.now.conn
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        for table in (*TABLES, "_jobs_totals", "business", "paid", "_witness", "sqlite_sequence"):
            conn.execute(f"DELETE FROM {table}")
        self.now = SimulatedDatabase(conn, clock)
        return self.now


_kept: list[_Kept] = []


def new_database(clock: Callable[[], int]) -> SimulatedDatabase:
    """Return an empty database. The database of the previous run is gone then."""
    if not _kept:
        _kept.append(_Kept())
    return _kept[0].begin(clock)
