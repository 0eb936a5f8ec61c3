"""sqlite3 and aiosqlite. A commit is seen by every store that watches the file, so there is nothing to notify."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from rowlock.stores.callers.base import AsyncCaller, SyncCaller
from rowlock.stores.callers.refusals import closed
from rowlock.stores.callers.sqlite import carry_on
from rowlock.stores.callers.work import Work
from rowlock.stores.sqlite.fenced import FencedConnection

T = TypeVar("T")


class SqliteCaller(SyncCaller):
    @property
    def never_waits(self) -> bool:
        """Return True for the connection of ctx.transaction(), which holds the write lock already."""
        return isinstance(self.conn, FencedConnection)

    def carry(self, work: Work[T]) -> T:
        return carry_on(self.conn, self.kind, self.home, work)


class AiosqliteCaller(AsyncCaller):
    async def carry(self, work: Work[T]) -> T:
        try:
            raw = self.conn._conn
        except ValueError:  # no connection: closed, or not yet awaited
            raise closed(self.kind) from None
        # One call on the connection's own thread, so no other task's commit comes in between.
        answer: T = await self.conn._execute(partial(carry_on, raw, self.kind, self.home, work))
        return answer
