"""A run's transactions on psycopg, for code without an event loop. Each has a connection of its own, so any thread may
begin one, also on a store that was never opened."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from rowlock import errors
from rowlock.stores.base import Guard
from rowlock.stores.driver_neutral import drive
from rowlock.stores.postgres.connections import Target
from rowlock.stores.postgres.end_transaction import MARK, last_statements
from rowlock.stores.postgres.keepalive import for_libpq

_KIND = "psycopg Connection"


@contextmanager
def sync_transaction(target: Target, guard: Guard) -> Iterator[Any]:
    with closing(_connect(target)) as connection:
        # The driver's own block: inside of it, the driver itself refuses commit() and rollback().
        transaction = connection.transaction()
        with _lost(connection, target, errors.StoreUnavailable, "at the BEGIN"):
            transaction.__enter__()
            if _mark(connection) != connection.info.backend_pid:  # a pooler, whose servers may know other statements
                connection.prepare_threshold = None
        try:
            yield connection
            with _lost(connection, target, errors.StoreUnavailable, "before the COMMIT, so nothing was written"):
                _check(connection, target, guard)
        except BaseException as error:
            guard.outage = connection.closed
            transaction.__exit__(type(error), error, error.__traceback__)
            raise
        with _lost(connection, target, errors.OutcomeUnknown, "at the COMMIT, which may have been carried out or not"):
            transaction.__exit__(None, None, None)


def _mark(connection: Any) -> int:
    """Mark the transaction, and return the server process's id. A pooler tells its clients other numbers."""
    cursor = connection.execute(f"{MARK}; SELECT pg_backend_pid()")
    cursor.nextset()
    pid: int = cursor.fetchone()[0]
    return pid


def _check(connection: Any, target: Target, guard: Guard) -> None:
    from rowlock.stores.callers.on_postgres import run_on_psycopg

    drive(last_statements(_KIND, target.schema, guard), lambda query: run_on_psycopg(connection, query))


def _connect(target: Target) -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise errors.StoreError(
            "a transaction in a sync handler needs psycopg: pip install 'psycopg[binary]'. Or use a connection of your "
            "own and ctx.sync.fence(conn)"
        ) from error
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    dsn, settings = _libpq(target.dsn, known)
    alive = {name: value for name, value in for_libpq(target.tcp_timeout).items() if name in known - target.settings}
    try:
        connection = psycopg.connect(
            dsn,
            options=settings or None,
            connect_timeout=math.ceil(target.connect_timeout),
            application_name="rowlock",
            **alive,
            prepare_threshold=5 if target.statement_cache_size else None,
        )
    except psycopg.Error as error:
        raise errors.StoreUnavailable(f"{target.label} can't be reached: {error}") from error
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return connection


def _libpq(dsn: str, known: set[str]) -> tuple[str, str]:
    """Return the URL and the options for libpq. It takes server settings as options, and prefers the rest of a URL to
    its query."""
    parts = urlsplit(dsn)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if "database" in query:
        query.setdefault("dbname", query.pop("database"))
    hosts = parts.netloc.rpartition("@")[2]
    said = {
        "host": hosts,
        "port": hosts if "," in hosts else parts.port,
        "user": parts.username,
        "password": parts.password,
        "dbname": parts.path.strip("/"),
    }
    own = {name: value for name, value in query.items() if name in known and not said.get(name)}
    settings = [f"-c {name}={_escaped(value)}" for name, value in query.items() if name not in known]
    if "options" in own:
        settings.insert(0, own.pop("options"))
    return urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(own, quote_via=quote), "")), " ".join(settings)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


@contextmanager
def _lost(connection: Any, target: Target, error: type[errors.StoreUnavailable], when: str) -> Iterator[None]:
    """Translate the error of a broken connection. All other errors of the server are for the application."""
    import psycopg

    try:
        yield
    except psycopg.Error as cause:
        if connection.closed:
            raise error(f"{target.label} hung up {when}: {cause}") from cause
        raise
