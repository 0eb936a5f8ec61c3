"""Read records by their ids: requests that come at the same moment share one statement.

Nothing is cached, so that the next request refuses what was revoked, in every process. A thousand requests that come at
once still cost a few statements only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from rowlock.stores.base import Store
from rowlock.stores.group import Group
from rowlock.stores.records import Record

_MOST = 500  # ids in one statement


class RecordBatches:
    """Reads records for one event loop."""

    def __init__(self, store: Callable[[], Awaitable[Store]], kind: str) -> None:
        self._store = store
        self._kind = kind
        self._group = Group(self._read, largest=_MOST, one_by_one=False)

    async def get(self, record_id: str) -> Record | None:
        """Return the record as it is after this call began."""
        return await self._group.call(record_id)

    async def _read(self, ids: Sequence[str]) -> list[Record | None]:
        found = {one.id: one for one in await (await self._store()).records(self._kind, list(dict.fromkeys(ids)))}
        return [found.get(record_id) for record_id in ids]
