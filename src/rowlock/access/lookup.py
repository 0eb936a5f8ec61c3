"""Records by their ids: what is asked for at the same moment is read by one statement.

Nothing is remembered, so that what was revoked is refused by the next request, in whichever process. A thousand
requests that come at once cost a few statements all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rowlock.stores.base import Store
from rowlock.stores.records import Record

_MOST = 500  # ids in one statement


class Lookup:
    """For one event loop."""

    def __init__(self, store: Callable[[], Awaitable[Store]], kind: str) -> None:
        self._store = store
        self._kind = kind
        self._waiting: dict[str, asyncio.Future[Record | None]] = {}  # for the next statement
        self._reader: asyncio.Task[None] | None = None

    async def get(self, record_id: str) -> Record | None:
        """As it is after this call began."""
        future = self._waiting.get(record_id)
        if future is None:
            future = self._waiting[record_id] = asyncio.get_running_loop().create_future()
            if self._reader is None:
                self._reader = asyncio.create_task(self._read_all())
        return await asyncio.shield(future)

    async def _read_all(self) -> None:
        try:
            while self._waiting:
                batch = dict(list(self._waiting.items())[:_MOST])
                for record_id in batch:
                    del self._waiting[record_id]
                try:
                    found = {one.id: one for one in await (await self._store()).records(self._kind, list(batch))}
                except BaseException as error:
                    for future in batch.values():
                        future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
                        future.exception()  # whoever asked may be gone
                    if not isinstance(error, Exception):
                        raise
                else:
                    for record_id, future in batch.items():
                        future.set_result(found.get(record_id))
        finally:
            self._reader = None
