"""Stores keep the jobs. A URL names the store, and only the driver of that store is imported."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from rowlock.errors import InvalidInput, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from rowlock.stores.base import Store

SCHEMES = "sqlite:///path, postgresql://…"


def open_store(url: str, listen_url: str | None = None) -> Store:
    """Return the store behind a URL, not yet opened.

    sqlite:///relative.db, sqlite:////absolute.db, sqlite:// (in memory, for tests);
    postgresql://user:password@host/database?schema=…

    `listen_url`: for PostgreSQL behind a pooler in transaction mode, where LISTEN does not work. The store sends its
    LISTEN to this URL.
    """
    if "://" not in url:
        raise InvalidInput("url", "bad_url", f"must be one of {SCHEMES}")
    scheme = url.split("://", 1)[0]
    if scheme == "sqlite":
        return _sqlite(url)
    if scheme in ("postgresql", "postgres"):
        return _postgres(url, listen_url)
    raise InvalidInput("url", "unknown_scheme", f"{scheme}:// is not supported; use {SCHEMES}")


def _sqlite(url: str) -> Store:
    from rowlock.stores.sqlite.store import SqliteStore

    parts = urlsplit(url)
    if parts.netloc:
        raise InvalidInput(
            "url",
            "bad_url",
            "needs a third slash: sqlite:///relative.db or sqlite:////absolute.db",
        )
    options = dict(parse_qsl(parts.query))
    synchronous = options.pop("synchronous", "full").lower()
    if synchronous not in ("full", "normal"):
        raise InvalidInput("url", "bad_synchronous", f"synchronous must be full or normal, not {synchronous!r}")
    force = options.pop("force_network_fs", "0").lower()
    if options:
        raise InvalidInput("url", "unknown_option", f"{', '.join(options)}: SQLite takes synchronous, force_network_fs")
    path = unquote(parts.path.removeprefix("/"))
    return SqliteStore(
        None if path in ("", ":memory:") else path,
        synchronous=cast(Literal["full", "normal"], synchronous),
        force_network_fs=force in ("1", "true", "yes"),
    )


async def check_listener(store: Store) -> None:
    """Raise InvalidInput if the store's `listen_url` leads to another database. An unreachable server is no error: the
    store polls until the server is back."""
    check = getattr(store, "check_listener", None)  # a store that needs no wake-up call has none
    if check is not None:
        with suppress(StoreUnavailable):
            await check()


def _postgres(url: str, listen_url: str | None) -> Store:
    try:
        from rowlock.stores.postgres.store import PostgresStore
    except ModuleNotFoundError as missing:
        if missing.name != "asyncpg":
            raise
        raise StoreError("PostgreSQL needs its driver: pip install 'rowlock[postgres]'") from missing
    return PostgresStore(url, listen_url)
