"""Counts of jobs by status: one count serves all callers that ask together, and is never older than the question."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from rowlock import Jobs
from rowlock.errors import StoreUnavailable
from rowlock.http.counting import Counting
from rowlock.stores.base import Store
from rowlock.stores.queries import Stats
from tests.http.harness import Place


class Counted:
    """The calls of a store's `stats`. Each of them waits for `may_end`, and raises `error` if there is one."""

    def __init__(self, store: Store, patch: pytest.MonkeyPatch) -> None:
        self.times = 0
        self.has_begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.error: Exception | None = None
        self._stats = store.stats
        patch.setattr(store, "stats", self.stats)

    async def stats(self, topic: str | None = None) -> Stats:
        self.times += 1
        self.has_begun.set()
        found = await self._stats(topic)
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return found


@pytest.fixture
async def jobs(place: Place) -> AsyncIterator[Jobs]:
    async with Jobs(place.url) as opened:
        yield opened


async def until_counting(counted: Counted, asked: list["asyncio.Task[Stats]"]) -> None:
    """Wait until one task counts. All tasks have asked by then."""
    await counted.has_begun.wait()
    assert not any(task.done() for task in asked)


async def test_whoever_asks_while_nothing_changes_shares_one_count(
    place: Place, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await jobs.enqueue("mail", {})
    counted = Counted(await jobs._store(), monkeypatch)
    counting = Counting(jobs._store)
    asked = [asyncio.create_task(counting.stats()) for _ in range(10)]
    await until_counting(counted, asked)
    counted.may_end.set()
    assert [one.pending for one in await asyncio.gather(*asked)] == [1] * 10
    # In PostgreSQL, a write to any other database of the same server counts as a change, too.
    assert counted.times == 1 or (place.kind == "postgres" and counted.times == 2)


async def test_whoever_asks_after_a_change_is_told_of_it_by_one_more_count_for_all(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await jobs.enqueue("mail", {})
    counted = Counted(await jobs._store(), monkeypatch)
    counting = Counting(jobs._store)
    before = [asyncio.create_task(counting.stats())]
    await until_counting(counted, before)
    await jobs.enqueue("mail", {})
    after = [asyncio.create_task(counting.stats()) for _ in range(10)]
    await asyncio.sleep(0)  # now the tasks have asked
    counted.may_end.set()
    assert [one.pending for one in await asyncio.gather(*after)] == [2] * 10
    assert counted.times == 2
    await jobs.enqueue("mail", {})
    assert (await counting.stats()).pending == 3


async def test_topics_are_counted_apart(jobs: Jobs) -> None:
    await jobs.enqueue("mail", {})
    await jobs.enqueue("bills", {})
    counting = Counting(jobs._store)
    assert [(await counting.stats(topic)).pending for topic in (None, "mail", "bills", "none")] == [2, 1, 1, 0]


async def test_whoever_waits_hears_at_once_that_the_database_is_away(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(await jobs._store(), monkeypatch)
    counted.error = StoreUnavailable("away")
    counting = Counting(jobs._store)
    asked = [asyncio.create_task(counting.stats()) for _ in range(10)]
    await until_counting(counted, asked)
    counted.may_end.set()
    assert [type(one) for one in await asyncio.gather(*asked, return_exceptions=True)] == [StoreUnavailable] * 10
    assert counted.times <= 2  # one for the first task, and one for the tasks that asked during it
    counted.error = None
    assert (await counting.stats()).pending == 0


async def test_who_hangs_up_takes_nothing_from_those_who_wait(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(await jobs._store(), monkeypatch)
    counting = Counting(jobs._store)
    first, second = (asyncio.create_task(counting.stats()) for _ in range(2))
    await until_counting(counted, [first, second])
    first.cancel()
    counted.may_end.set()
    assert (await second).pending == 0
