"""`store`: each store in turn, with a clock that stands still. `real_store`: with the real clock, for races.

Most of a test's time goes into the first statements of new connections. Files whose tests do nothing to the tables
but fill them say

    store = shared_store

and have one open store of each kind for all their tests, emptied before each.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from tests.servers import Databases, PostgresServer
from tests.stores.harness import TEST_CLOCK, Harness, PostgresHarness, SqliteHarness

KINDS = ["sqlite", "postgres"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "open_store" in getattr(item, "fixturenames", ()):  # its connections are bound to a loop: it is the test's
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


class StoreDatabases(Databases):
    TEMPLATE = "stores_template"


@pytest.fixture(scope="session")
def store_databases(postgres: PostgresServer) -> StoreDatabases:
    """Databases that are migrated already, and that know the test clock."""

    async def make_template(url: str) -> None:
        await postgres.execute(TEST_CLOCK, dbname=StoreDatabases.TEMPLATE)
        harness = PostgresHarness(url, virtual=False)
        await harness.open()
        await harness.close()

    return StoreDatabases(postgres, make_template)


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    async with _harness(request, tmp_path, virtual=True) as harness:
        yield harness


@pytest.fixture(params=KINDS)
async def real_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    async with _harness(request, tmp_path, virtual=False) as harness:
        yield harness


@pytest_asyncio.fixture(params=KINDS, scope="module", loop_scope="module")
async def open_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Harness]:
    async with _harness(request, tmp_path_factory.mktemp("shared"), virtual=True) as harness:
        yield harness


@pytest_asyncio.fixture(loop_scope="module")
async def shared_store(open_store: Harness) -> AsyncIterator[Harness]:
    await open_store.reset()
    yield open_store
    await open_store.close_others()
    await open_store.rows()  # as below


@asynccontextmanager
async def _harness(request: pytest.FixtureRequest, folder: Path, *, virtual: bool) -> AsyncIterator[Harness]:
    if request.param == "sqlite":
        shutil.copyfile(request.getfixturevalue("sqlite_template"), folder / "jobs.db")
        async with opened(SqliteHarness(folder / "jobs.db", virtual=virtual), migrated=True) as harness:
            yield harness
    else:
        databases: StoreDatabases = request.getfixturevalue("store_databases")
        async with databases.fresh() as url, opened(PostgresHarness(url, virtual=virtual), migrated=True) as harness:
            yield harness


@asynccontextmanager
async def opened(harness: Harness, *, migrated: bool = False) -> AsyncIterator[Harness]:
    await harness.open(migrated=migrated)
    try:
        yield harness
        await harness.rows()  # whatever the test did, every row is legal
    finally:
        await harness.close()
