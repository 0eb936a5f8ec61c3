"""Count jobs by status once for all concurrent requests, as long as nothing has changed.

On a large database this is the most expensive question of the page, and streams, lists of topics and Prometheus ask it
again and again. An answer is never older than its request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from msgspec import Struct

from rowlock.errors import StoreError
from rowlock.stores.base import Store
from rowlock.stores.queries import Stats

_FRESH = 1.0  # seconds; waiting times grow though nothing is written


class _Count(Struct, frozen=True):
    """`mark`: the store's, before the count. `answer`: the numbers, or the error."""

    began: float
    mark: str
    answer: Stats | StoreError


class Counting:
    """Counts for one event loop, one count at a time: requests that come meanwhile share the next one."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._counts: dict[str | None, _Count] = {}

    async def stats(self, topic: str | None = None) -> Stats:
        asked = time.monotonic()
        async with self._lock:
            count = self._counts.get(topic)
            if count is None or count.began < asked:
                count = await self._count(topic, count)
        if isinstance(count.answer, StoreError):
            raise count.answer
        return count.answer

    async def _count(self, topic: str | None, last: _Count | None) -> _Count:
        began = time.monotonic()
        try:
            store = await self._store()
            mark = await store.mark()
            if last is not None and last.mark == mark and began - last.began < _FRESH:
                return last
            count = _Count(began, mark, await store.stats(topic))
        except StoreError as error:  # all waiting requests get the error: else each would wait as long again
            count = _Count(began, "", error)
        self._counts = {name: one for name, one in self._counts.items() if began - one.began < _FRESH} | {topic: count}
        return count
