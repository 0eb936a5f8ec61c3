"""The database of a simulated run: real, in memory, with the witness in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from rowlock.stores.sqlite.database import Database
from tests.proof.simulation_handlers import BUSINESS
from tests.proof.witness import TABLES, Witness


class Counting(Database):
    """Tells the witness its transactions apart."""

    begun = 0

    def begin(self) -> None:
        self.begun += 1
        super().begin()


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
    """A coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


class _Kept:
    """One connection serves all runs of a process: compiling every statement anew would take longer than running it."""

    def __init__(self) -> None:
        self.now = Counting(sqlite3.connect(":memory:", isolation_level=None), clock=lambda: 0)
        conn = self.now.conn
        self.now.migrate()
        conn.execute(BUSINESS)
        conn.create_function("witness_clock", 0, lambda: self.now._clock())
        conn.create_function("witness_transaction", 0, lambda: self.now.begun)
        drive(Witness(Tables(conn)).install(clock="witness_clock()", transaction="witness_transaction()"))

    def begin(self, clock: Callable[[], int]) -> Counting:
        conn = self.now.conn
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        for table in (*TABLES, "_jobs_totals", "business", "_witness", "sqlite_sequence"):
            conn.execute(f"DELETE FROM {table}")
        self.now = Counting(conn, clock=clock)
        return self.now


_kept: list[_Kept] = []


def new_database(clock: Callable[[], int]) -> Counting:
    """Empty. The one before is gone."""
    if not _kept:
        _kept.append(_Kept())
    return _kept[0].begin(clock)
