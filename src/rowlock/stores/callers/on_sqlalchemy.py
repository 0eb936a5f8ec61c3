"""SQLAlchemy's Session and Connection, and their async twins.

SQLAlchemy begins lazily. A statement on the driver's connection before that would be committed at once, whatever
becomes of the session (asyncpg). So rowlock sends all statements to PostgreSQL through SQLAlchemy's own execution. On
SQLite it sends the lock that way, which is the first statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy.engine import Connection
from sqlalchemy.exc import InvalidRequestError, PendingRollbackError, ResourceClosedError
from sqlalchemy.orm import Session, scoped_session

from rowlock.errors import ConnectionRefused
from rowlock.stores.callers.base import AsyncCaller, Ring, SyncCaller
from rowlock.stores.callers.commits import ring_after_commit
from rowlock.stores.callers.dialects import driver_neutral, refuse_dialect
from rowlock.stores.callers.refusals import autocommit, closed, failed
from rowlock.stores.callers.sqlite import LOCK, carry_on, explained
from rowlock.stores.callers.work import Work
from rowlock.stores.driver_neutral import Query, drive

T = TypeVar("T")

# A server-side cursor can only SELECT. The caller may have set server-side cursors for the whole connection.
_OPTIONS = {"stream_results": False, "yield_per": None, "max_row_buffer": 1}


class SqlalchemyCaller(SyncCaller):
    def carry(self, work: Work[T]) -> T:
        with _refused(self.kind):
            conn = _begun(self.conn, self)
            if driver_neutral(self.home):
                return _ask(self, conn, work)
            return carry_on(_locked(self, conn), self.kind, self.home, work)

    def on_commit(self, ring: Ring) -> bool:
        return ring_after_commit(_connection(self.conn), ring)


class AsyncSqlalchemyCaller(AsyncCaller):
    async def carry(self, work: Work[T]) -> T:
        with _refused(self.kind):
            return await self._carry(work)

    async def _carry(self, work: Work[T]) -> T:
        target = self.conn() if callable(self.conn) else self.conn  # async_scoped_session
        answer: T
        if driver_neutral(self.home):
            answer = await target.run_sync(lambda conn: _ask(self, _begun(conn, self), work))
        else:
            aio = await target.run_sync(lambda conn: _locked(self, _begun(conn, self)))
            answer = await aio._execute(partial(carry_on, aio._conn, self.kind, self.home, work))
        return answer

    def on_commit(self, ring: Ring) -> bool:
        target = self.conn() if callable(self.conn) else self.conn
        return ring_after_commit(_connection(getattr(target, "sync_session", None) or target.sync_connection), ring)


def _ask(caller: SyncCaller | AsyncCaller, conn: Connection, work: Work[T]) -> T:
    raw = conn.connection.driver_connection  # only to remember it by
    answer: T = drive(driver_neutral(caller.home)(caller.kind, caller.home, raw, work), partial(_run, conn))
    return answer


def _run(conn: Connection, query: Query) -> str:
    text = query.text if conn.dialect.paramstyle.startswith("numeric") else query.percent
    answer: str = conn.exec_driver_sql(text, (query.parameter,), execution_options=_OPTIONS).scalar_one()
    return answer


def _locked(caller: SyncCaller | AsyncCaller, conn: Connection) -> Any:
    """Return the driver's SQLite connection, inside the transaction that SQLAlchemy has begun, with the write lock."""
    with explained(caller.kind):
        conn.exec_driver_sql(LOCK, execution_options=_OPTIONS)
    return conn.connection.driver_connection


def _begun(target: Any, caller: SyncCaller | AsyncCaller) -> Connection:
    """Return the Connection behind a session or connection. Raise ConnectionRefused if it can't be used."""
    if sqlalchemy.__version__.startswith("1."):
        raise ConnectionRefused(caller.kind, "too_old", f"SQLAlchemy {sqlalchemy.__version__} is too old: 2.0 or newer")
    conn = _connection(target)
    if conn.closed:
        raise closed(caller.kind)
    refuse_dialect(caller.kind, conn.dialect.name, caller.home)
    # Ask the driver: SQLAlchemy has many ways to set autocommit.
    if driver_neutral(caller.home) and getattr(conn.connection.dbapi_connection, "autocommit", False) is True:
        raise autocommit(caller.kind, "Choose another isolation_level than AUTOCOMMIT")
    return conn


def _connection(target: Any) -> Connection:
    conn: Connection = target.connection() if isinstance(target, Session | scoped_session) else target
    return conn


@contextmanager
def _refused(kind: str) -> Iterator[None]:
    """Translate SQLAlchemy's errors about a session or connection that can't be used in its current state."""
    try:
        yield
    except PendingRollbackError as error:
        raise failed(kind, f"Roll it back first. SQLAlchemy said: {error}") from error
    except ResourceClosedError as error:
        raise closed(kind) from error
    except InvalidRequestError as error:
        raise ConnectionRefused(
            kind, "no_transaction", f"it can't be used now, or not without more arguments. SQLAlchemy said: {error}"
        ) from error
