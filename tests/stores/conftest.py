"""`store`: each store in turn, with a clock that stands still. `real_store`: with the real clock, for races."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.servers import Databases, PostgresServer
from tests.stores.harness import TEST_CLOCK, Harness, PostgresHarness, SqliteHarness

KINDS = ["sqlite", "postgres"]


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


@asynccontextmanager
async def _harness(request: pytest.FixtureRequest, tmp_path: Path, *, virtual: bool) -> AsyncIterator[Harness]:
    if request.param == "sqlite":
        async with opened(SqliteHarness(tmp_path / "jobs.db", virtual=virtual)) as harness:
            yield harness
    else:
        databases: StoreDatabases = request.getfixturevalue("store_databases")
        async with databases.fresh() as url, opened(PostgresHarness(url, virtual=virtual)) as harness:
            yield harness


@asynccontextmanager
async def opened(harness: Harness) -> AsyncIterator[Harness]:
    await harness.open()
    try:
        yield harness
        await harness.rows()  # whatever the test did, every row is legal
    finally:
        await harness.close()
