"""Long polls for the end of jobs. One statement reads the statuses of all jobs that clients wait for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from rowlock.core.job import LIVE, Status
from rowlock.runtime.periodic import Loop
from rowlock.stores.base import Store

_FIRST, _LAST = 0.05, 0.25  # seconds between two looks: short after a new long poll, then longer
_AT_ONCE = 500  # jobs in one statement
MOST, MOST_OF_ONE = 1000, 100  # long polls at once: in this process, and of one identity


class WaitForEnd:
    """The long polls of one event loop."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._of: Counter[str] = Counter()  # identity → its long polls
        self._loop = Loop("waiting for jobs to end", self._look, longest=_LAST)
        self._pause = _FIRST
        self.stopping = False

    def is_full(self, who: str) -> bool:
        """True if this process, or this identity, has as many long polls as it may have."""
        return sum(self._of.values()) >= MOST or self._of[who] >= MOST_OF_ONE

    def expect(self, job_id: str, who: str) -> asyncio.Future[None]:
        """Return a future that is done when the job has ended or was deleted, or the server stops. It may be
        cancelled."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.stopping:
            future.set_result(None)
            return future
        futures = self._waiting.setdefault(job_id, set())
        futures.add(future)
        self._of[who] += 1
        future.add_done_callback(lambda _: self._forget(job_id, future, who))
        self._pause = _FIRST
        self._loop.start(delay=_FIRST)
        return future

    def stop(self) -> None:
        """End all long polls now."""
        self.stopping = True
        for job_id in list(self._waiting):
            self._tell(job_id)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _forget(self, job_id: str, future: asyncio.Future[None], who: str) -> None:
        self._of -= Counter([who])  # forgets the name at 0
        futures = self._waiting.get(job_id, set())
        futures.discard(future)
        if not futures:
            self._waiting.pop(job_id, None)

    def _tell(self, job_id: str) -> None:
        for future in list(self._waiting.get(job_id, ())):
            if not future.done():
                future.set_result(None)

    async def _look(self) -> float | None:
        ids = list(self._waiting)
        for n in range(0, len(ids), _AT_ONCE):
            some = ids[n : n + _AT_ONCE]
            found = await (await self._store()).read(some, Status)
            for job_id in some:
                if found.get(job_id) not in LIVE:
                    self._tell(job_id)
        self._pause = min(self._pause * 1.5, _LAST)
        return self._pause if self._waiting else None
