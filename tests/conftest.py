"""Fixtures for all tests. A server starts when the first test asks for it, one per pytest process."""

import os
import random
import re
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.databases import KINDS, Databases, empty
from tests.servers import PostgresServer

# A process that is started in the background ignores SIGINT, and so do its children. Some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Every run samples the same cases: a commit must not be green today and red tomorrow. Another number chooses others.
SAMPLE = int(os.environ.get("ROWLOCK_TEST_SAMPLE", "0"))
# Tests with these fixtures test code above the stores. The stores have their own tests on each database.
ABOVE_STORES = {"fleet", "jobs", "place", "served", "shell", "world"}
BROWSER = Path(__file__).parent / "ui"


def pytest_report_header() -> str:
    return f"sampled cases: those of ROWLOCK_TEST_SAMPLE={SAMPLE}"


@pytest.hookimpl(tryfirst=True)  # before -m is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave some cases to `make proof`: most cases of `sampled` tests; for each test above the stores, the same case on
    the other database; and all tests in a browser that are not `quick`, because they take seconds each."""
    cases: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        if BROWSER in item.path.parents and not item.get_closest_marker("quick"):
            item.add_marker(pytest.mark.proof)
        if item.get_closest_marker("proof"):
            continue
        if mark := item.get_closest_marker("sampled"):
            cases.setdefault((item.nodeid.partition("[")[0], mark.args[0]), []).append(item)
        elif ABOVE_STORES.intersection(getattr(item, "fixturenames", ())):
            cases.setdefault((re.sub("sqlite|postgres", "database", item.nodeid), 2), []).append(item)
    for (name, parts), some in cases.items():
        random.Random(name).shuffle(some)
        for place, item in enumerate(some if len(some) >= parts else ()):
            item.add_marker(pytest.mark.sampled(parts))
            if place % parts != SAMPLE % parts:
                item.add_marker(pytest.mark.proof)


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    databases = Databases(tmp_path_factory.mktemp("databases"))
    yield databases
    databases.close()


@pytest.fixture(scope="session")
def postgres(databases: Databases) -> PostgresServer:
    """A PostgreSQL server that the tests of this process share. A test that stops a server must start its own."""
    return databases.server


@pytest.fixture
async def postgres_url(databases: Databases) -> AsyncIterator[str]:
    """Yield the URL of an empty PostgreSQL database for this test alone."""
    async with databases.fresh(empty) as url:
        yield url


@pytest.fixture
async def migrated_url(databases: Databases) -> AsyncIterator[str]:
    """Yield the URL of a migrated PostgreSQL database for this test alone."""
    async with databases.fresh() as url:
        yield url


@pytest.fixture(params=KINDS)
async def url(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> AsyncIterator[str]:
    """Yield the URL of a migrated database for this test alone, of each kind in turn."""
    async with databases.at(request.param, tmp_path) as url:
        yield url
