"""`jobs.workers`: the workers that use this database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from rowlock.stores.base import Store, WorkerInfo


class Workers:
    """`jobs.workers`."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store

    async def list(self) -> Sequence[WorkerInfo]:
        """Return the registered workers by name, with those that died without signing off: see their `seen`."""
        return await (await self._store()).workers()
