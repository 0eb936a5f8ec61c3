"""`jobs`: Jobs on each store in turn, stopped at the end."""

from collections.abc import AsyncIterator

import pytest

from rowlock.jobs import Jobs


@pytest.fixture
async def jobs(url: str) -> AsyncIterator[Jobs]:
    async with Jobs(url) as jobs:
        yield jobs
        await jobs.stop(grace=0)
