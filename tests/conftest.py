"""Fixtures for all tests. A server starts when the first test asks for it, one per pytest process."""

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.databases import KINDS, Databases, empty
from tests.servers import PostgresServer

# Started in the background, we and all that we start would be deaf to it; some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    databases = Databases(tmp_path_factory.mktemp("databases"))
    yield databases
    databases.close()


@pytest.fixture(scope="session")
def postgres(databases: Databases) -> PostgresServer:
    """A PostgreSQL shared by the tests of this process: do not stop it, start your own."""
    return databases.server


@pytest.fixture
async def postgres_url(databases: Databases) -> AsyncIterator[str]:
    """The URL of an empty database of the test's own."""
    async with databases.fresh(empty) as url:
        yield url


@pytest.fixture
async def migrated_url(databases: Databases) -> AsyncIterator[str]:
    """The URL of a migrated PostgreSQL database of the test's own."""
    async with databases.fresh() as url:
        yield url


@pytest.fixture(params=KINDS)
async def url(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> AsyncIterator[str]:
    """The URL of a migrated database of the test's own, of each kind in turn."""
    async with databases.at(request.param, tmp_path) as url:
        yield url
