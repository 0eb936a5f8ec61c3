"""Every kind of connection that `conn=` takes, behind one interface: open it, write on it, commit, roll back."""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from inspect import isawaitable
from operator import methodcaller
from typing import Any, ClassVar

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import sqlalchemy
from sqlalchemy import event
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from rowlock.core.job import NewJob
from rowlock.stores.base import Enqueued, Guard, Home, Store
from rowlock.stores.callers import AsyncCaller, SyncCaller, caller_for
from rowlock.stores.postgres.store import PostgresStore
from tests.stores.harness import KEPT, PostgresHarness, SqliteHarness


def emptying(tables: Iterable[Any], schema: str = "") -> str:
    names = ["orders", *sorted({name for (name,) in tables} - KEPT)]
    return f"BEGIN; {' '.join(f'DELETE FROM {schema}{name};' for name in names)} COMMIT"


class Place:
    """A database with rowlock's tables and one of the application's own, called orders."""

    def __init__(self, store: Store, home: Home, address: str) -> None:
        self.store = store
        self.home = home
        self.address = address  # a URL, or a path

    @property
    def dialect(self) -> str:
        return self.home.dialect

    async def committed(self) -> tuple[list[int], list[str]]:
        """Return what other connections see: the orders, and the ids of all jobs, sorted by topic, key and id."""
        orders, jobs = "SELECT n FROM {}orders ORDER BY n", "SELECT id FROM {}_jobs ORDER BY topic, key, id"
        return [row[0] for row in await self._fetch(orders)], [str(row[0]) for row in await self._fetch(jobs)]

    async def empty(self) -> None:
        if self.dialect == "sqlite":
            with closing(sqlite3.connect(self.address, timeout=30.0)) as other:
                other.executescript(emptying(other.execute(SqliteHarness.tables)))
            return
        assert isinstance(self.store, PostgresStore)
        async with self.store._connections.acquire() as conn:
            await conn.execute("SET rowlock.folds = 'requeues'")  # else notes would be kept: see 0012_requeues.sql
            await conn.execute(emptying(await conn.fetch(PostgresHarness.tables), "public."))
            await conn.execute("RESET rowlock.folds")

    async def _fetch(self, query: str) -> list[Any]:
        """Fetch rows on another connection. On PostgreSQL it comes from the store's pool: to open a new connection each
        time would take longer than most tests."""
        if self.dialect == "sqlite":
            with closing(sqlite3.connect(self.address)) as other:
                return other.execute(query.format("")).fetchall()
        assert isinstance(self.store, PostgresStore)
        async with self.store._connections.acquire() as conn:
            found: list[Any] = await conn.fetch(query.format("public."))
            return found


class Kind(ABC):
    """A connection of the application. `conn` is the object that the application passes to rowlock."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.conn: Any = None

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[None]: ...

    @abstractmethod
    async def execute(self, statement: str) -> None: ...

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[None]:
        """Return the driver's own context manager, which commits at its end and rolls back on an exception."""

    @abstractmethod
    def savepoint(self) -> AbstractAsyncContextManager[None]: ...

    async def order(self, n: int) -> None:
        await self.execute(f"INSERT INTO orders (n) VALUES ({n})")

    def caller(self) -> SyncCaller | AsyncCaller:
        return caller_for(self.conn, self.place.home)

    async def insert(self, *jobs: NewJob, repeat: bool = False, notify: bool = False) -> list[Enqueued]:
        return await insert(self.caller(), jobs, repeat=repeat, notify=notify)

    async def fence(self, guard: Guard) -> None:
        await fence(self.caller(), guard)


async def done(answer: Any) -> Any:
    """Return the answer, awaited if need be."""
    return await answer if isawaitable(answer) else answer


async def insert(
    caller: SyncCaller | AsyncCaller, jobs: Sequence[NewJob], *, repeat: bool = False, notify: bool = False
) -> list[Enqueued]:
    found: list[Enqueued] = await done(caller.insert(jobs, repeat=repeat, notify=notify))
    return found


async def fence(caller: SyncCaller | AsyncCaller, guard: Guard) -> None:
    await done(caller.fence(guard))


@asynccontextmanager
async def entered(manager: Any) -> AsyncIterator[None]:
    """Enter a context manager, sync or async."""
    if hasattr(manager, "__aenter__"):
        async with manager:
            yield
    else:
        with manager:
            yield


@asynccontextmanager
async def by_hand(run: Callable[[str], Awaitable[None]], begin: str, commit: str, rollback: str) -> AsyncIterator[None]:
    await run(begin)
    try:
        yield
    except BaseException:
        await run(rollback)
        raise
    await run(commit)


class PlainSavepoints(Kind):
    """A driver without an API for savepoints."""

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        async with by_hand(self.execute, "SAVEPOINT mine", "RELEASE SAVEPOINT mine", "ROLLBACK TO SAVEPOINT mine"):
            yield


# ── PostgreSQL's drivers ──


class Driver(Kind):
    """A driver whose connection has `execute`, `close` and, mostly, `transaction`: sync or async."""

    connect: Callable[..., Any]
    options: ClassVar[dict[str, Any]] = {}

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        self.conn = await done(type(self).connect(self.place.address, **self.options))
        try:
            yield
        finally:
            await done(self.conn.close())

    async def execute(self, statement: str) -> None:
        await done(self.conn.execute(statement))

    def transaction(self) -> AbstractAsyncContextManager[None]:
        return entered(self.conn.transaction())

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return self.transaction()


class Psycopg(Driver):
    connect = psycopg.connect


class AsyncPsycopg(Driver):
    connect = psycopg.AsyncConnection.connect


class Psycopg2(PlainSavepoints, Driver):
    connect = psycopg2.connect

    async def execute(self, statement: str) -> None:
        with self.conn.cursor() as cursor:
            cursor.execute(statement)

    def transaction(self) -> AbstractAsyncContextManager[None]:
        return entered(self.conn)


class Asyncpg(Driver):
    connect = asyncpg.connect


class AsyncpgPool(Asyncpg):
    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        async with asyncpg.create_pool(self.place.address, min_size=1) as pool, pool.acquire() as self.conn:
            yield


# ── SQLite's drivers ──


class Sqlite(PlainSavepoints, Driver):
    connect = sqlite3.connect

    def transaction(self) -> AbstractAsyncContextManager[None]:
        return entered(self.conn)


class SqliteImmediate(Sqlite):
    options: ClassVar[dict[str, Any]] = {"isolation_level": "IMMEDIATE"}


class SqliteByHand(Sqlite):
    """The application sends BEGIN itself, which takes no lock yet."""

    options: ClassVar[dict[str, Any]] = {"isolation_level": None}

    def transaction(self) -> AbstractAsyncContextManager[None]:
        return by_hand(self.execute, "BEGIN", "COMMIT", "ROLLBACK")


class SqliteNeverAutocommit(Sqlite):
    """A connection with autocommit=False, which Python 3.12 recommends."""

    options: ClassVar[dict[str, Any]] = {"autocommit": False}


class Aiosqlite(PlainSavepoints, Driver):
    connect = aiosqlite.connect

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            await self.conn.rollback()
            raise
        await self.conn.commit()


# ── SQLAlchemy ──


def engine_url(place: Place, driver: str) -> str:
    if place.dialect == "sqlite":
        return f"sqlite+{driver}:///{place.address}"
    return place.address.replace("postgresql://", f"postgresql+{driver}://")


@asynccontextmanager
async def async_engine(place: Place, driver: str, **options: Any) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(engine_url(place, driver), **options)
    try:
        yield engine
    finally:
        await engine.dispose()


@contextmanager
def sync_engine(place: Place, driver: str, **options: Any) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(engine_url(place, driver), **options)
    try:
        yield engine
    finally:
        engine.dispose()


class Sqlalchemy(Kind):
    driver = ""
    options: ClassVar[dict[str, Any]] = {}

    make: Callable[[Any], Any] = staticmethod(methodcaller("connect"))  # makes `conn` from an engine

    def prepare(self, engine: sqlalchemy.Engine) -> None:
        pass

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        with sync_engine(self.place, self.driver, **self.options) as engine:
            self.prepare(engine)
            with closing(self.make(engine)) as self.conn:
                yield

    async def execute(self, statement: str) -> None:
        self.conn.execute(sqlalchemy.text(statement))

    def transaction(self) -> AbstractAsyncContextManager[None]:
        return entered(self.conn.begin())

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return entered(self.conn.begin_nested())


class ConnectionPsycopg(Sqlalchemy):
    driver = "psycopg"


class ConnectionPsycopg2(Sqlalchemy):
    driver = "psycopg2"


class ConnectionSqlite(Sqlalchemy):
    driver = "pysqlite"


class ConnectionSqliteNeverAutocommit(ConnectionSqlite):
    options: ClassVar[dict[str, Any]] = {"connect_args": {"autocommit": False}}


class ConnectionSqliteBegin(ConnectionSqlite):
    """SQLAlchemy's recipe that replaces pysqlite's handling of transactions: it sends BEGIN itself."""

    def prepare(self, engine: sqlalchemy.Engine) -> None:
        @event.listens_for(engine, "connect")
        def leave_it_to_us(dbapi_connection: Any, _record: Any) -> None:
            dbapi_connection.isolation_level = None

        @event.listens_for(engine, "begin")
        def begin(conn: sqlalchemy.Connection) -> None:
            conn.exec_driver_sql("BEGIN")


class SessionPsycopg(ConnectionPsycopg):
    make = Session


class SessionPsycopg2(ConnectionPsycopg2):
    make = Session


class ScopedSessionPsycopg(ConnectionPsycopg):
    make = staticmethod(lambda engine: scoped_session(sessionmaker(engine)))


class SessionSqlite(ConnectionSqlite):
    make = Session


class AsyncSqlalchemy(Sqlalchemy):
    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        async with async_engine(self.place, self.driver, poolclass=NullPool) as engine:
            self.conn = await done(self.make(engine))
            try:
                yield
            finally:
                await self.conn.close()

    async def execute(self, statement: str) -> None:
        await self.conn.execute(sqlalchemy.text(statement))


class AsyncConnectionAsyncpg(AsyncSqlalchemy):
    driver = "asyncpg"


class AsyncConnectionPsycopg(AsyncSqlalchemy):
    driver = "psycopg"


class AsyncConnectionAiosqlite(AsyncSqlalchemy):
    driver = "aiosqlite"


class AsyncSessionAsyncpg(AsyncConnectionAsyncpg):
    make = AsyncSession


class AsyncSessionPsycopg(AsyncConnectionPsycopg):
    make = AsyncSession


class AsyncSessionAiosqlite(AsyncConnectionAiosqlite):
    make = AsyncSession


class AsyncScopedSessionAsyncpg(AsyncConnectionAsyncpg):
    make = staticmethod(lambda engine: async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1))


# ── Django ──


class Django(Kind):
    """`django.db.connection`, which stands for the thread's connection to the default database."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        import django.db
        from django.conf import settings

        if not settings.configured:
            settings.configure(DATABASES={}, USE_TZ=True, LOGGING_CONFIG=None)
            django.setup()
        connections = django.db.connections
        connections.settings["default"] = connections.configure_settings({"default": self._config()})["default"]
        wrapper = connections["default"]  # made here, or each asyncio task would make its own
        self.conn = self.pick(connections)
        try:
            yield
        finally:
            wrapper.close()
            del connections["default"]

    def pick(self, connections: Any) -> Any:
        import django.db

        return django.db.connection

    def _config(self) -> dict[str, Any]:
        if self.place.dialect == "sqlite":
            return {"ENGINE": "django.db.backends.sqlite3", "NAME": self.place.address}
        parts = psycopg.conninfo.conninfo_to_dict(self.place.address)
        names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
        return {"ENGINE": "django.db.backends.postgresql"} | {names[key]: value for key, value in parts.items()}

    async def execute(self, statement: str) -> None:
        with self.conn.cursor() as cursor:
            cursor.execute(statement)

    def transaction(self) -> AbstractAsyncContextManager[None]:
        from django.db import transaction

        return entered(transaction.atomic())

    savepoint = transaction


class DjangoWrapper(Django):
    """A connection from `django.db.connections`."""

    def pick(self, connections: Any) -> Any:
        return connections["default"]


POSTGRES: list[type[Kind]] = [
    Psycopg, AsyncPsycopg, Psycopg2, Asyncpg, AsyncpgPool, Django, DjangoWrapper,
    ConnectionPsycopg, ConnectionPsycopg2, SessionPsycopg, SessionPsycopg2, ScopedSessionPsycopg,
    AsyncConnectionAsyncpg, AsyncConnectionPsycopg, AsyncSessionAsyncpg, AsyncSessionPsycopg, AsyncScopedSessionAsyncpg,
]  # fmt: skip
SQLITE: list[type[Kind]] = [
    Sqlite, SqliteImmediate, SqliteByHand, Aiosqlite, Django, DjangoWrapper,
    ConnectionSqlite, ConnectionSqliteBegin, SessionSqlite, AsyncConnectionAiosqlite, AsyncSessionAiosqlite,
]  # fmt: skip
if hasattr(sqlite3, "LEGACY_TRANSACTION_CONTROL"):  # Python 3.12
    SQLITE += [SqliteNeverAutocommit, ConnectionSqliteNeverAutocommit]

KINDS = [("postgres", kind) for kind in POSTGRES] + [("sqlite", kind) for kind in SQLITE]
HOOKED = [param for param in KINDS if issubclass(param[1], Sqlalchemy | Django)]
UNHOOKED = [param for param in KINDS if param not in HOOKED]


def name_of(param: tuple[str, type[Kind]]) -> str:
    return f"{param[1].__name__}-{param[0]}"
