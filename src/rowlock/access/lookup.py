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
        self._waiting: dict[str, list[asyncio.Future[Record | None]]] = {}  # for the next statement
        self._reader: asyncio.Task[None] | None = None

    async def get(self, record_id: str) -> Record | None:
        """As it is after this call began."""
        future: asyncio.Future[Record | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(record_id, []).append(future)  # one each: who is cancelled takes nobody along
        if self._reader is None:
            self._reader = asyncio.create_task(self._read_all())
        return await future

    async def _read_all(self) -> None:
        try:
            while self._waiting:
                batch = {record_id: self._waiting.pop(record_id) for record_id in list(self._waiting)[:_MOST]}
                try:
                    found = {one.id: one for one in await (await self._store()).records(self._kind, list(batch))}
                except BaseException as error:
                    for future in _unheard(batch):
                        if isinstance(error, Exception):
                            future.set_exception(error)
                        else:
                            future.cancel()
                    if not isinstance(error, Exception):
                        raise
                else:
                    for record_id, futures in batch.items():
                        for future in futures:
                            if not future.done():  # else it was cancelled
                                future.set_result(found.get(record_id))
        finally:
            self._reader = None


def _unheard(batch: dict[str, list[asyncio.Future[Record | None]]]) -> list[asyncio.Future[Record | None]]:
    return [future for futures in batch.values() for future in futures if not future.done()]
