"""psycopg, psycopg2 and asyncpg. Each statement goes out on a plain cursor, whatever factories the caller has set."""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeVar

from rowlock.stores.callers import postgres
from rowlock.stores.callers.base import AsyncCaller, SyncCaller
from rowlock.stores.callers.refusals import autocommit, closed, failed
from rowlock.stores.callers.work import Work
from rowlock.stores.driver_neutral import Query, drive, drive_async

T = TypeVar("T")
_IDLE, _INERROR, _UNKNOWN = 0, 3, 4  # libpq's PGTransactionStatusType


class PsycopgCaller(SyncCaller):
    def carry(self, work: Work[T]) -> T:
        _check_libpq(self.conn, self.kind, "Use `with conn.transaction():`, or a connection without autocommit")
        return drive(postgres.carry(self.kind, self.home, self.conn, work), self._run)

    def _run(self, query: Query) -> str:
        return run_on_psycopg(self.conn, query)


class Psycopg2Caller(SyncCaller):
    def carry(self, work: Work[T]) -> T:
        _check_libpq(self.conn, self.kind, "Set conn.autocommit = False")
        return drive(postgres.carry(self.kind, self.home, self.conn, work), self._run)

    def _run(self, query: Query) -> str:
        plain = import_module("psycopg2.extensions").cursor
        with self.conn.cursor(cursor_factory=plain) as cursor:
            cursor.execute(query.percent, (query.parameter,))
            return _first(cursor.fetchone())


class AsyncPsycopgCaller(AsyncCaller):
    async def carry(self, work: Work[T]) -> T:
        _check_libpq(self.conn, self.kind, "Use `async with conn.transaction():`, or a connection without autocommit")
        return await drive_async(postgres.carry(self.kind, self.home, self.conn, work), self._run)

    async def _run(self, query: Query) -> str:
        from psycopg import AsyncCursor
        from psycopg.rows import tuple_row

        async with AsyncCursor(self.conn, row_factory=tuple_row) as cursor:
            await cursor.execute(query.percent, (query.parameter,))
            return _first(await cursor.fetchone())


class AsyncpgCaller(AsyncCaller):
    async def carry(self, work: Work[T]) -> T:
        raw = getattr(self.conn, "_con", self.conn)  # a pool hands out proxies; a proxy given back has no connection
        if raw is None or raw.is_closed():
            raise closed(self.kind)
        if not raw.is_in_transaction():
            raise autocommit(self.kind, "Use `async with conn.transaction():`")
        return await drive_async(postgres.carry(self.kind, self.home, raw, work), self._run)

    async def _run(self, query: Query) -> str:
        answer: str = await self.conn.fetchval(query.text, query.parameter)
        return answer


def run_on_psycopg(conn: Any, query: Query) -> str:
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    with Cursor(conn, row_factory=tuple_row) as cursor:
        return _first(cursor.execute(query.percent, (query.parameter,)).fetchone())


def _check_libpq(conn: Any, kind: str, way_out: str) -> None:
    if conn.closed or conn.info.transaction_status == _UNKNOWN:
        raise closed(kind)
    if conn.info.transaction_status == _INERROR:
        raise failed(kind)
    # In a pipeline the status is old: a BEGIN may be on its way.
    begun = getattr(conn.info, "pipeline_status", 0) and getattr(conn, "_num_transactions", 0)
    if conn.autocommit and conn.info.transaction_status == _IDLE and not begun:
        raise autocommit(kind, way_out)


def _first(row: Any) -> str:
    answer: str = row[0]
    return answer
