"""Long polls: jobs whose end somebody waits for, looked at together. A thousand who wait cost as much as one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rowlock.errors import StoreError
from rowlock.stores.base import Store

_FIRST, _LAST = 0.05, 0.25  # seconds between looks: soon after somebody came, then less often
_AT_ONCE = 500  # jobs in one look


class Ends:
    """For one event loop."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._pause = _FIRST
        self.stopping = False

    def expect(self, job_id: str) -> asyncio.Future[None]:
        """Done when the job has ended or is gone, or when everything stops. Cancel it to leave."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.stopping:
            future.set_result(None)
            return future
        futures = self._waiting.setdefault(job_id, set())
        futures.add(future)
        future.add_done_callback(lambda _: self._forget(job_id, future))
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

    def _forget(self, job_id: str, future: asyncio.Future[None]) -> None:
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
            found = await (await self._store()).get(ids)
        except StoreError:
            return  # it may be back at the next look
        for job_id in ids:
            if job_id not in found or not found[job_id].is_live:
                self._tell(job_id)
