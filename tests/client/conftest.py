"""`place`: a migrated database with a table of the application. `kind`: each kind of connection to it, in turn."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from rowlock.stores.postgres.store import PostgresStore
from rowlock.stores.sqlite.store import SqliteStore
from tests.client.conn_kinds import KINDS, Kind, Place, name_of
from tests.closing import opening
from tests.databases import Databases, execute, migrated

ORDERS = "CREATE TABLE orders (n integer PRIMARY KEY)"


async def with_orders(url: str) -> None:
    """Migrate a PostgreSQL database, and create the application's table."""
    await migrated(url)
    await execute(url, ORDERS)


@asynccontextmanager
async def postgres_at(url: str, *, schema: str = "public") -> AsyncIterator[Place]:
    async with opening(PostgresStore(f"{url}?schema={schema}")) as store:
        yield Place(store, await store.home(), url)


@asynccontextmanager
async def sqlite_at(path: Path) -> AsyncIterator[Place]:
    async with opening(SqliteStore(path)) as store:
        assert store._opened
        await store._opened.writer.call(lambda database: database.conn.execute(ORDERS))
        yield Place(store, await store.home(), str(path))


@pytest.fixture
async def postgres_place(databases: Databases) -> AsyncIterator[Place]:
    async with databases.fresh(with_orders) as url, postgres_at(url) as place:
        yield place


@pytest.fixture
async def sqlite_place(tmp_path: Path, databases: Databases) -> AsyncIterator[Place]:
    async with sqlite_at(databases.file(tmp_path / "app.db")) as place:
        yield place


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def open_places(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Callable[[str], Awaitable[Place]]]:
    """Yield a function that returns the place of a dialect. All tests of a file share it, but not the connections."""
    places: dict[str, Place] = {}
    async with AsyncExitStack() as stack:

        async def place(dialect: str) -> Place:
            if dialect not in places and dialect == "sqlite":
                path = databases.file(tmp_path_factory.mktemp("places") / "app.db")
                places[dialect] = await stack.enter_async_context(sqlite_at(path))
            elif dialect not in places:
                url = await stack.enter_async_context(databases.fresh(with_orders))
                places[dialect] = await stack.enter_async_context(postgres_at(url))
            return places[dialect]

        yield place


@pytest_asyncio.fixture(params=KINDS, ids=name_of, loop_scope="module")
async def kind(
    request: pytest.FixtureRequest,
    open_places: Callable[[str], Awaitable[Place]],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Kind]:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")  # sync connections are used in these async tests too
    dialect, cls = request.param
    place = await open_places(dialect)
    await place.empty()
    opened: Kind = cls(place)
    async with opened.opened():
        yield opened


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "open_places" in getattr(item, "fixturenames", ()):  # places are bound to a loop: the test must use it
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)
