"""Transactions of the application's own that belong to a run: BEGIN IMMEDIATE, its statements, the fence, COMMIT."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from rowlock.errors import StoreFull, StoreUnavailable
from rowlock.stores.base import Guard
from rowlock.stores.sqlite.connection import SqliteConnection
from rowlock.stores.sqlite.fenced import FencedConnection
from rowlock.stores.sqlite.threads import Worker
from rowlock.stores.sqlite.translate_errors import translate

Connect = Callable[[], SqliteConnection]  # opens one on a FencedConnection


class _Transaction:
    """A transaction of the application. Its methods may wait for the write lock, or for the disk."""

    def __init__(self, connect: Connect, guard: Guard, longest: float) -> None:
        self._connect = connect
        self._guard = guard
        self._longest = longest
        self._connection: SqliteConnection | None = None
        self._unwanted = False

    def begin(self) -> FencedConnection:
        self._connection = self._connect()
        self._connection.hurry = self._unwanted
        self._connection.begin()
        conn = _fenced(self._connection)
        conn.watch(self._longest)
        return conn

    def commit(self) -> None:
        assert self._connection is not None  # noqa: S101 - narrows the type
        connection = self._connection
        _fenced(connection).finish(lambda: connection.commit(self._guard))

    @contextmanager
    def noticing_outages(self) -> Iterator[None]:
        """Note an outage in the guard if a statement of the application fails because the disk is full, or gone."""
        try:
            yield
        except sqlite3.Error as error:
            self._guard.outage = isinstance(translate(error, "SQLite"), StoreUnavailable | StoreFull)
            raise

    def hurry(self) -> None:
        """Note that no task waits for it any more."""
        self._unwanted = True
        if self._connection is not None:
            self._connection.hurry = True

    def end(self) -> None:
        if self._connection is not None:
            _fenced(self._connection).end()


def _fenced(connection: SqliteConnection) -> FencedConnection:
    conn = connection.conn
    assert isinstance(conn, FencedConnection)  # noqa: S101 - narrows the type
    return conn


@contextmanager
def sync_transaction(connect: Connect, guard: Guard, longest: float) -> Iterator[FencedConnection]:
    transaction = _Transaction(connect, guard, longest)
    try:
        conn = transaction.begin()
        with conn.explained(), transaction.noticing_outages():
            yield conn
        transaction.commit()
    finally:
        transaction.end()


@asynccontextmanager
async def transaction(connect: Connect, guard: Guard, longest: float) -> AsyncIterator[FencedConnection]:
    """Run the transaction on a thread of its own. In a pool, transactions that wait for the lock would keep its holder
    from committing."""
    transaction = _Transaction(connect, guard, longest)
    worker = Worker("rowlock-sqlite-transaction")
    try:
        conn = await worker.call(transaction.begin)
        with conn.explained(), transaction.noticing_outages():
            yield conn
        await worker.call(transaction.commit)
    except (Exception, asyncio.CancelledError):
        transaction.hurry()
        await worker.call(transaction.end)  # the lock is free when the exception arrives
        raise
    finally:
        worker.submit(transaction.end)  # also if that call was cancelled
        worker.submit_stop()
