"""Fixtures for all tests. A server starts when the first test asks for it, one per pytest process."""

import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.servers import Databases, PostgresServer

# Started in the background, we and all that we start would be deaf to it; some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL shared by the tests of this process: do not stop it, start your own."""
    with PostgresServer() as server:
        yield server


async def make_template(url: str) -> None:
    """Fill the database that every `postgres_url` is a copy of."""


@pytest.fixture(scope="session")
def postgres_databases(postgres: PostgresServer) -> Databases:
    return Databases(postgres, make_template)


@pytest.fixture
async def postgres_url(postgres_databases: Databases) -> AsyncIterator[str]:
    """The URL of a database of the test's own."""
    async with postgres_databases.fresh() as url:
        yield url
