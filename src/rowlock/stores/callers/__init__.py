"""The caller's transaction: jobs that commit or roll back with the application's own data, on its own connection.

`caller_for` recognises the connection by the names of its classes, so no driver is imported that isn't loaded already.
"""

from __future__ import annotations

from importlib import import_module

from rowlock.errors import ConnectionRefused, InvalidInput
from rowlock.stores.base import MEMORY, Home
from rowlock.stores.callers.base import AsyncCaller, SyncCaller
from rowlock.stores.callers.dialects import DIALECTS, refuse_dialect
from rowlock.stores.callers.refusals import IN_MEMORY

__all__ = ["AsyncCaller", "Home", "SyncCaller", "caller_for"]

# Connections of frameworks, which may lead to any of the dialects: (package, class): (module here, its class)
_FRAMEWORKS = {
    ("sqlalchemy", "Connection"): ("on_sqlalchemy", "SqlalchemyCaller"),
    ("sqlalchemy", "Session"): ("on_sqlalchemy", "SqlalchemyCaller"),
    ("sqlalchemy", "scoped_session"): ("on_sqlalchemy", "SqlalchemyCaller"),
    ("sqlalchemy", "AsyncConnection"): ("on_sqlalchemy", "AsyncSqlalchemyCaller"),
    ("sqlalchemy", "AsyncSession"): ("on_sqlalchemy", "AsyncSqlalchemyCaller"),
    ("sqlalchemy", "async_scoped_session"): ("on_sqlalchemy", "AsyncSqlalchemyCaller"),
    ("django", "BaseDatabaseWrapper"): ("on_django", "DjangoCaller"),
    ("django", "ConnectionProxy"): ("on_django", "DjangoCaller"),
}
# (package, class): (module, its class, the dialect if there is only one)
_KINDS: dict[tuple[str, str], tuple[str, str, str | None]] = {
    **{
        driver: (dialect.adapters, caller, name)
        for name, dialect in DIALECTS.items()
        for driver, caller in dialect.drivers.items()
    },
    **{kind: (f"{__name__}.{module}", caller, None) for kind, (module, caller) in _FRAMEWORKS.items()},
}
ACCEPTED = ", ".join(
    [
        *(dialect.accepted for dialect in DIALECTS.values()),
        "SQLAlchemy Session, Connection, AsyncSession and AsyncConnection",
        "Django's django.db.connection",
    ]
)

# Objects that applications pass by mistake, and the ones that they should pass.
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
    """Return the caller that writes to `home` on this connection. Raise ConnectionRefused if that is wrong without
    asking the database; the first use checks the rest. Raise InvalidInput if it is no connection at all."""
    names = [(cls.__module__.partition(".")[0], cls.__name__) for cls in type(conn).__mro__]
    for name in names:
        if name in _KINDS:
            module, cls, dialect = _KINDS[name]
            kind = f"{name[0]} {name[1]}"
            if home.identity.endswith(MEMORY):
                raise ConnectionRefused(kind, "in_memory", IN_MEMORY)
            if dialect is not None:
                refuse_dialect(kind, dialect, home)
            caller = getattr(import_module(module), cls)(conn, kind, home)
            assert isinstance(caller, SyncCaller | AsyncCaller)  # noqa: S101 - narrows the type
            return caller
    what = type(conn).__name__
    hint = next((f"{what} {_ALMOST[name]}. " for _, name in names if name in _ALMOST), "")
    raise InvalidInput("conn", "not_a_connection", f"{hint}{type(conn).__module__}.{what} is none of: {ACCEPTED}")
