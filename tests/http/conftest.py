"""`place`: a migrated database of each kind in turn. `world`: an application over it, and all kinds of callers."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg
import pytest

from rowlock import Jobs
from rowlock.access import passwords
from rowlock.stores.postgres.store import PostgresStore
from tests.databases import KINDS
from tests.http.harness import Place, Template, World, cheap_hasher, world_at
from tests.servers import PostgresServer


class HttpDatabase:
    """One database for all tests of this process, emptied for each test: a new one takes longer than most tests."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._url: str | None = None

    async def emptied(self) -> str:
        if self._url is None:
            with suppress(asyncpg.DuplicateDatabaseError):  # the tests of the page use the same database
                await self._server.execute("CREATE DATABASE http")
            self._url = self._server.url("http")
            await PostgresStore(self._url).migrate()
        await self._server.execute(EMPTY, dbname="http")
        return self._url


# A connection that an earlier test left behind must not write into this test's tables.
EMPTY = """
DO $$
DECLARE name text;
BEGIN
    PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'http' AND pid <> pg_backend_pid();
    FOR name IN
        SELECT relname FROM pg_class
        WHERE relname LIKE '\\_jobs%' AND relname NOT IN ('_jobs_migrations', '_jobs_meta', '_jobs_limits')
            AND relkind IN ('r', 'p') AND NOT relispartition
    LOOP
        EXECUTE format('DELETE FROM %I', name);
    END LOOP;
END $$
"""


@pytest.fixture(scope="session")
def http_database(postgres: PostgresServer) -> HttpDatabase:
    return HttpDatabase(postgres)


@pytest.fixture(autouse=True)
def quick_passwords() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "_hasher", cheap_hasher)
        yield


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return Template(tmp_path_factory.mktemp("http"))


@asynccontextmanager
async def place_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    if kind == "sqlite":
        place = Place(kind, f"sqlite:///{tmp_path / 'jobs.db'}")
        async with Jobs(place.url):  # migrates
            pass
    else:
        database: HttpDatabase = request.getfixturevalue("http_database")
        place = Place(kind, await database.emptied())
    try:
        yield place
    finally:
        await place.close()


@asynccontextmanager
async def world_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    if kind == "sqlite":
        template: Template = request.getfixturevalue("template")
        async with template.copied(tmp_path / "jobs.db") as world:
            yield world
    else:
        async with place_of(kind, request, tmp_path) as place, world_at(place) as world:
            yield world


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """Yield a migrated and empty database, without any account."""
    async with place_of(request.param, request, tmp_path) as found:
        yield found


@pytest.fixture
async def sqlite_place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with place_of("sqlite", request, tmp_path) as found:
        yield found


@pytest.fixture(params=KINDS)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(request.param, request, tmp_path) as found:
        yield found


@pytest.fixture
async def sqlite_world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """Yield a world on SQLite, for tests that have nothing to do with the database."""
    async with world_of("sqlite", request, tmp_path) as found:
        yield found


@pytest.fixture
async def postgres_world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of("postgres", request, tmp_path) as found:
        yield found
