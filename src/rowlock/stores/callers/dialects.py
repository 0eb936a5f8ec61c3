"""The database systems that a caller's connection may lead to. A new system needs an entry here, and the modules that
the entry names.

`store` has either `carry`, for systems that are asked by driver_neutral.Query, on any driver; or, as SQLite's,
`carry_on`, which works on the driver's own connection in the thread that owns it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from msgspec import Struct

from rowlock.errors import ConnectionRefused
from rowlock.stores.base import Home


class Dialect(Struct, frozen=True):
    """`aliases`: its names in SQLAlchemy and Django. `drivers`: the class in `adapters` by the package and the class of
    a driver's connection. `accepted`: the connections that messages name."""

    title: str
    aliases: tuple[str, ...]
    store: str
    adapters: str
    drivers: dict[tuple[str, str], str]
    accepted: str


DIALECTS = {
    "postgres": Dialect(
        title="PostgreSQL",
        aliases=("postgres", "postgresql"),
        store="rowlock.stores.callers.postgres",
        adapters="rowlock.stores.callers.on_postgres",
        drivers={
            ("psycopg", "Connection"): "PsycopgCaller",
            ("psycopg", "AsyncConnection"): "AsyncPsycopgCaller",
            ("psycopg2", "connection"): "Psycopg2Caller",
            ("asyncpg", "Connection"): "AsyncpgCaller",
            ("asyncpg", "PoolConnectionProxy"): "AsyncpgCaller",
        },
        accepted="psycopg Connection and AsyncConnection, psycopg2 connection, asyncpg Connection",
    ),
    "sqlite": Dialect(
        title="SQLite",
        aliases=("sqlite", "sqlite3"),
        store="rowlock.stores.callers.sqlite",
        adapters="rowlock.stores.callers.on_sqlite",
        drivers={("sqlite3", "Connection"): "SqliteCaller", ("aiosqlite", "Connection"): "AiosqliteCaller"},
        accepted="sqlite3 Connection, aiosqlite Connection",
    ),
}


def driver_neutral(home: Home) -> Any:
    """Return the module's `carry`, or None if this system needs the driver's own connection."""
    return getattr(import_module(DIALECTS[home.dialect].store), "carry", None)


def refuse_dialect(kind: str, alias: str, home: Home) -> None:
    """Raise ConnectionRefused if a connection to the system with this name can't lead to `home`."""
    ours = DIALECTS[home.dialect]
    if alias not in ours.aliases:
        theirs = next((one.title for one in DIALECTS.values() if alias in one.aliases), alias)
        raise ConnectionRefused(
            kind,
            "wrong_dialect",
            f"it leads to {theirs}, but the jobs are kept in {ours.title}. "
            "Pass a connection to that database, or leave out conn=",
        )
