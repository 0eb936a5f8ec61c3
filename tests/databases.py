"""Databases of both kinds for tests. Each is a copy of a template, which is prepared once in this process."""

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path

from rowlock.stores import open_store
from tests.closing import connected
from tests.servers import PostgresServer

KINDS = ["sqlite", "postgres"]
Prepare = Callable[[str], Awaitable[None]]  # fills the database with this URL

# rowlock calls clock_timestamp() without a schema. If the schema `testclock` is searched before pg_catalog, its
# function replaces PostgreSQL's own. So rowlock needs no switch for tests.
TEST_CLOCK = """
CREATE SCHEMA testclock;
CREATE TABLE testclock.clock (at timestamptz NOT NULL);
INSERT INTO testclock.clock VALUES ('2026-01-01 12:00:00+00');
CREATE FUNCTION testclock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT at FROM testclock.clock';
"""


async def empty(url: str) -> None:
    """Prepare a database without any table: do nothing."""


async def migrated(url: str) -> None:
    await open_store(url).migrate()


async def with_test_clock(url: str) -> None:
    """Prepare a migrated PostgreSQL database that also has the test clock."""
    await execute(url, TEST_CLOCK)
    await migrated(url)


async def execute(url: str, *statements: str) -> None:
    """Run statements in a PostgreSQL database, each in its own transaction."""

    async with connected(url) as connection:
        for statement in statements:
            await connection.execute(statement)


class Databases:
    """Fresh databases for the tests of this process. The PostgreSQL server starts when a test first needs it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder  # for SQLite templates
        self._templates: dict[tuple[str, Prepare], str] = {}
        self._numbers = itertools.count(1)

    @cached_property
    def server(self) -> PostgresServer:
        server = PostgresServer()
        server.__enter__()
        return server

    def close(self) -> None:
        if "server" in self.__dict__:
            self.server.close()

    @asynccontextmanager
    async def at(self, kind: str, folder: Path, prepare: Prepare = migrated) -> AsyncIterator[str]:
        """Yield the URL of a new database of this kind. A new SQLite file is `folder`/jobs.db."""
        if kind == "sqlite":
            yield f"sqlite:///{self.file(folder / 'jobs.db', prepare)}"
        else:
            async with self.fresh(prepare) as url:
                yield url

    def file(self, path: Path, prepare: Prepare = migrated) -> Path:
        """Make a new SQLite file with this path. Return the path."""
        path.parent.mkdir(exist_ok=True)
        shutil.copyfile(self.template_file(prepare), path)
        return path

    def template_file(self, prepare: Prepare = migrated) -> Path:
        if ("sqlite", prepare) not in self._templates:
            path = self._folder / f"template_{len(self._templates)}.db"
            # Use a thread with its own event loop, because the caller may already run in a loop.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(asyncio.run, prepare(f"sqlite:///{path}")).result()  # type: ignore[arg-type]
            self._templates["sqlite", prepare] = str(path)
        return Path(self._templates["sqlite", prepare])

    @asynccontextmanager
    async def fresh(self, prepare: Prepare = migrated) -> AsyncIterator[str]:
        """Yield the URL of a new PostgreSQL database. Drop it afterwards, along with any connection still open to
        it."""
        server = self.server
        if ("postgres", prepare) not in self._templates:
            template = f"template_{len(self._templates)}_{prepare.__name__}"
            server.administer(f"CREATE DATABASE {template}")
            await prepare(server.url(template))
            self._templates["postgres", prepare] = template
        name = f"test_{next(self._numbers)}"
        template = self._templates["postgres", prepare]
        server.administer(f"CREATE DATABASE {name} TEMPLATE {template} {server.quick_copy}")
        try:
            yield server.url(name)
        finally:
            server.administer(f"DROP DATABASE {name} WITH (FORCE)")
