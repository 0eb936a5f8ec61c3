"""`jobs`: Jobs on each store in turn. `quick`: Jobs in memory, for tests that do not depend on the store."""

import threading
from collections.abc import AsyncIterator

import pytest

from rowlock.jobs import Jobs
from rowlock.wasm import watch
from tests.waiting import until


def own_threads() -> list[str]:
    """Return the names of the threads that run handlers or watch them."""
    return [one.name for one in threading.enumerate() if one.name in ("rowlock-handler", "rowlock-wasm-watch")]


@pytest.fixture
async def jobs(url: str) -> AsyncIterator[Jobs]:
    async with Jobs(url) as jobs:
        yield jobs
        await jobs.stop(grace=0)


@pytest.fixture
async def quick(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Jobs]:
    """Yield Jobs in memory. After the test, no thread may be left behind."""
    monkeypatch.setattr(watch, "_LINGER", 0.05)
    async with Jobs("sqlite:///:memory:") as jobs:
        yield jobs
        await jobs.stop(grace=0)
    await until(lambda: not own_threads(), lambda: f"these threads are left: {own_threads()}", patience=10)
