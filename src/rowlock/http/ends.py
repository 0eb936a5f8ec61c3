"""Long polls: jobs whose end somebody waits for, looked at together, by their statuses alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from rowlock.core.job import LIVE
from rowlock.errors import StoreError
from rowlock.stores.base import Store

_FIRST, _LAST = 0.05, 0.25  # seconds between looks: soon after somebody came, then less often
_AT_ONCE = 500  # jobs in one look
MOST, MOST_OF_ONE = 1000, 100  # who may wait at once: in this process, and by one identity


class Ends:
    """For one event loop."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._of: Counter[str] = Counter()  # how many places who has
        self._watcher: asyncio.Task[None] | None = None
        self._pause = _FIRST
        self.stopping = False

    def is_full(self, who: str) -> bool:
        """Are all places taken, or all that one may have?"""
        return sum(self._of.values()) >= MOST or self._of[who] >= MOST_OF_ONE

    def expect(self, job_id: str, who: str) -> asyncio.Future[None]:
        """Done when the job has ended or is gone, or when everything stops. Cancel it to leave."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.stopping:
            future.set_result(None)
            return future
        futures = self._waiting.setdefault(job_id, set())
        futures.add(future)
        self._of[who] += 1
        future.add_done_callback(lambda _: self._forget(job_id, future, who))
        self._pause = _FIRST
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())
        return future

    def stop(self) -> None:
        """Everyone is told how it stands, now."""
        self.stopping = True
        for job_id in list(self._waiting):
            self._tell(job_id)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _forget(self, job_id: str, future: asyncio.Future[None], who: str) -> None:
        self._of[who] -= 1
        if not self._of[who]:
            del self._of[who]
        futures = self._waiting.get(job_id, set())
        futures.discard(future)
        if not futures:
            self._waiting.pop(job_id, None)

    def _tell(self, job_id: str) -> None:
        for future in list(self._waiting.get(job_id, ())):
            if not future.done():
                future.set_result(None)

    async def _watch(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(self._pause)
                self._pause = min(self._pause * 1.5, _LAST)
                ids = list(self._waiting)
                for n in range(0, len(ids), _AT_ONCE):
                    await self._look(ids[n : n + _AT_ONCE])
        finally:
            self._watcher = None

    async def _look(self, ids: list[str]) -> None:
        try:
            found = await (await self._store()).statuses(ids)
        except StoreError:
            return  # it may be back at the next look
        for job_id in ids:
            if found.get(job_id) not in LIVE:
                self._tell(job_id)
