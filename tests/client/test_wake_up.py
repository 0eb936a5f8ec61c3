"""Commits wake the workers that wait for work: rowlock's own, those of SQLAlchemy and Django by their hooks, and those
of other drivers by notify=True."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from rowlock.jobs import Jobs
from rowlock.stores import open_store
from rowlock.stores.base import Store


@pytest.fixture
def url(migrated_url: str) -> str:
    return migrated_url


@pytest.fixture
async def jobs(url: str) -> AsyncIterator[Jobs]:
    async with Jobs(url) as jobs:
        yield jobs


@pytest.fixture
async def listener(url: str) -> AsyncIterator[Store]:
    """Yield a store as another process has it, which listens already."""
    store = open_store(url)
    await store.open()
    while not await store.wait_for_work(1.0):  # the start of the store rings once
        pass
    while await store.wait_for_work(0.05):
        pass
    yield store
    await store.close()


async def test_our_own_commit(jobs: Jobs, listener: Store) -> None:
    await jobs.enqueue("mail")
    assert await listener.wait_for_work(30.0)


async def test_a_commit_of_sqlalchemy(jobs: Jobs, listener: Store, url: str) -> None:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    async with AsyncSession(engine) as session:
        await jobs.enqueue("mail", conn=session)
        await session.rollback()
        await jobs.enqueue("mail", conn=session)
        assert not await listener.wait_for_work(0.05)  # nothing has been committed yet
        await session.commit()
    assert await listener.wait_for_work(30.0)
    await engine.dispose()


async def test_notify_in_the_transaction(jobs: Jobs, listener: Store, url: str) -> None:
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await jobs.enqueue("mail", conn=connection, notify=True)
        assert not await listener.wait_for_work(0.05)
    assert await listener.wait_for_work(30.0)
    await connection.close()


async def test_on_sqlite_every_commit_is_noticed(tmp_path: Path) -> None:
    async with Jobs(f"sqlite:///{tmp_path}/jobs.db") as jobs:
        other = open_store(jobs.settings.url)
        await other.open()
        while await other.wait_for_work(0.05):
            pass
        waiting = asyncio.ensure_future(other.wait_for_work(30.0))
        await jobs.enqueue("mail")
        assert await waiting
        await other.close()
