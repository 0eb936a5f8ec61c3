"""Fixtures. `store`: each store in turn, with a clock that stands still. `real_store`: with the real clock, for races.

Most of a test's time goes into the first statements of new connections. A test file that only fills the tables, and
changes nothing else about them, can say

    store = shared_store

Then one open store of each kind serves all tests of the file, and is emptied before each. `paired_store` is the same,
but it is compared with the reference after each verb (paired.py).
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.databases import KINDS, Databases
from tests.stores.harness import Harness, harness_at
from tests.stores.paired import paired


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "open_store" in getattr(item, "fixturenames", ()):  # the test must use the loop of its connections
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> AsyncIterator[Harness]:
    async with harness_at(request.param, databases, tmp_path, virtual=True) as harness:
        yield harness


@pytest.fixture(params=KINDS)
async def real_store(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> AsyncIterator[Harness]:
    async with harness_at(request.param, databases, tmp_path, virtual=False) as harness:
        yield harness


@pytest.fixture
async def postgres_store(databases: Databases, tmp_path: Path) -> AsyncIterator[Harness]:
    """Yield a PostgreSQL store with the test clock."""
    async with harness_at("postgres", databases, tmp_path, virtual=True) as harness:
        yield harness


@pytest.fixture
async def real_postgres_store(databases: Databases, tmp_path: Path) -> AsyncIterator[Harness]:
    """Yield a PostgreSQL store with the real clock."""
    async with harness_at("postgres", databases, tmp_path, virtual=False) as harness:
        yield harness


@pytest_asyncio.fixture(params=KINDS, scope="module", loop_scope="module")
async def open_store(
    request: pytest.FixtureRequest, databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Harness]:
    async with harness_at(request.param, databases, tmp_path_factory.mktemp("shared"), virtual=True) as harness:
        yield harness


@pytest_asyncio.fixture(loop_scope="module")
async def shared_store(open_store: Harness) -> AsyncIterator[Harness]:
    await open_store.reset()
    yield open_store
    await open_store.close_others()
    await open_store.rows()  # checks that every row is legal


@pytest_asyncio.fixture(loop_scope="module")
async def paired_store(shared_store: Harness) -> AsyncIterator[Harness]:
    """Yield a shared store that is compared with the reference after each verb."""
    async with paired(shared_store):
        yield shared_store
