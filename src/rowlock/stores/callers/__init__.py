"""The caller's transaction: jobs that commit or roll back with the application's own data, on its own connection.

`caller_for` recognises the connection by the names of its classes, so no driver is imported that isn't loaded already.
"""

from __future__ import annotations

from importlib import import_module
from typing import Literal

from rowlock.errors import ConnectionRefused, InvalidInput
from rowlock.stores.base import MEMORY, Home
from rowlock.stores.callers.base import AsyncCaller, SyncCaller
from rowlock.stores.callers.refusals import IN_MEMORY, refuse_dialect

__all__ = ["AsyncCaller", "Home", "SyncCaller", "caller_for"]

ACCEPTED = (
    "psycopg Connection and AsyncConnection, psycopg2 connection, asyncpg Connection, sqlite3 Connection, "
    "aiosqlite Connection, SQLAlchemy Session, Connection, AsyncSession and AsyncConnection, "
    "Django's django.db.connection"
)

# (package, class): (module here, its class, the dialect if there is but one)
_KINDS: dict[tuple[str, str], tuple[str, str, Literal["sqlite", "postgres"] | None]] = {
    ("psycopg", "Connection"): ("on_postgres", "PsycopgCaller", "postgres"),
    ("psycopg", "AsyncConnection"): ("on_postgres", "AsyncPsycopgCaller", "postgres"),
    ("psycopg2", "connection"): ("on_postgres", "Psycopg2Caller", "postgres"),
    ("asyncpg", "Connection"): ("on_postgres", "AsyncpgCaller", "postgres"),
    ("asyncpg", "PoolConnectionProxy"): ("on_postgres", "AsyncpgCaller", "postgres"),
    ("sqlite3", "Connection"): ("on_sqlite", "SqliteCaller", "sqlite"),
    ("aiosqlite", "Connection"): ("on_sqlite", "AiosqliteCaller", "sqlite"),
    ("sqlalchemy", "Connection"): ("on_sqlalchemy", "SqlalchemyCaller", None),
    ("sqlalchemy", "Session"): ("on_sqlalchemy", "SqlalchemyCaller", None),
    ("sqlalchemy", "scoped_session"): ("on_sqlalchemy", "SqlalchemyCaller", None),
    ("sqlalchemy", "AsyncConnection"): ("on_sqlalchemy", "AsyncSqlalchemyCaller", None),
    ("sqlalchemy", "AsyncSession"): ("on_sqlalchemy", "AsyncSqlalchemyCaller", None),
    ("sqlalchemy", "async_scoped_session"): ("on_sqlalchemy", "AsyncSqlalchemyCaller", None),
    ("django", "BaseDatabaseWrapper"): ("on_django", "DjangoCaller", None),
    ("django", "ConnectionProxy"): ("on_django", "DjangoCaller", None),
}

# What people pass by mistake, and what they meant.
_ALMOST = {
    "Engine": "is where connections come from: with engine.begin() as conn: … conn=conn",
    "AsyncEngine": "is where connections come from: async with engine.begin() as conn: … conn=conn",
    "sessionmaker": "makes sessions: with Session.begin() as session: … conn=session",
    "async_sessionmaker": "makes sessions: async with Session.begin() as session: … conn=session",
    "Pool": "is a pool: async with pool.acquire() as conn, conn.transaction(): … conn=conn",
    "ConnectionPool": "is a pool: with pool.connection() as conn: … conn=conn",
    "AsyncConnectionPool": "is a pool: async with pool.connection() as conn: … conn=conn",
    "Cursor": "is a cursor: pass its connection",
    "AsyncCursor": "is a cursor: pass its connection",
    "cursor": "is a cursor: pass its connection",
    "str": "is text: pass an open connection",
    "_ConnectionFairy": "is a raw connection out of a pool: pass SQLAlchemy's own Connection or Session",
}


def caller_for(conn: object, home: Home) -> SyncCaller | AsyncCaller:
    """How to write to `home` on this connection. What can be known without asking the database is refused here, the
    rest when it is used: ConnectionRefused, or InvalidInput if it is no connection at all."""
    names = [(cls.__module__.partition(".")[0], cls.__name__) for cls in type(conn).__mro__]
    for name in names:
        if name in _KINDS:
            module, cls, dialect = _KINDS[name]
            kind = f"{name[0]} {name[1]}"
            if home.identity.endswith(MEMORY):
                raise ConnectionRefused(kind, "in_memory", IN_MEMORY)
            if dialect is not None:
                refuse_dialect(kind, dialect, home)
            caller = getattr(import_module(f"{__name__}.{module}"), cls)(conn, kind, home)
            assert isinstance(caller, SyncCaller | AsyncCaller)  # noqa: S101 - narrows the type
            return caller
    what = type(conn).__name__
    hint = next((f"{what} {_ALMOST[name]}. " for _, name in names if name in _ALMOST), "")
    raise InvalidInput("conn", "not_a_connection", f"{hint}{type(conn).__module__}.{what} is none of: {ACCEPTED}")
