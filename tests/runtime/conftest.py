"""`jobs`: Jobs on each store in turn, stopped at the end."""

from collections.abc import AsyncIterator

import pytest

from rowlock.jobs import Jobs
from rowlock.stores import open_store
from rowlock.stores.base import Store
from tests.runtime.apps import deeds
from tests.runtime.children import Runner, children


@pytest.fixture
async def jobs(url: str) -> AsyncIterator[Jobs]:
    async with Jobs(url) as jobs:
        yield jobs
        await jobs.stop(grace=0)


@pytest.fixture
async def runner() -> AsyncIterator[Runner]:
    async with children(deeds.jobs) as runner:
        yield runner


@pytest.fixture
async def elsewhere(url: str) -> AsyncIterator[Store]:
    """Yield a second store on the database of `jobs`, as another process would have it."""
    store = open_store(url)
    await store.open()
    yield store
    await store.close()
