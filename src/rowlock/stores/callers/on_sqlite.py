"""sqlite3 and aiosqlite. A commit is seen by every store that watches the file, so there is nothing to notify."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rowlock.core.job import NewJob
from rowlock.stores.base import Enqueued
from rowlock.stores.callers.base import AsyncCaller, SyncCaller, closed
from rowlock.stores.callers.sqlite import insert_on


class SqliteCaller(SyncCaller):
    def insert(self, jobs: Sequence[NewJob], *, repeat: bool, notify: bool) -> list[Enqueued]:
        return insert_on(self.conn, self.kind, self.home, jobs, repeat=repeat) if jobs else []


class AiosqliteCaller(AsyncCaller):
    async def insert(self, jobs: Sequence[NewJob], *, repeat: bool, notify: bool) -> list[Enqueued]:
        if not jobs:
            return []
        try:
            raw = self.conn._conn
        except ValueError:  # it has none: closed, or not yet awaited
            raise closed(self.kind) from None
        # In one go on the connection's own thread: nobody's commit comes in between.
        work = partial(insert_on, raw, self.kind, self.home, jobs, repeat=repeat)
        answers: list[Enqueued] = await self.conn._execute(work)
        return answers
