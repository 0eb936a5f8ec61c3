"""Fixtures for all tests. A server starts when the first test asks for it, one per pytest process."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rowlock.stores.sqlite.store import SqliteStore
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


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database, to be copied: that takes a third of a migration's time."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    # In a loop and a thread of its own: the one that asks for it may be in a loop already.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, SqliteStore(path).migrate()).result()
    return path
