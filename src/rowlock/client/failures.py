"""`jobs.failures`: dead letters in groups that failed alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Literal

from rowlock.stores.base import Store
from rowlock.stores.failures import FailureQuery, Failures


class FailureGroups:
    """`jobs.failures`."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store

    async def list(
        self,
        *,
        topics: Sequence[str] = (),
        since: datetime | None = None,
        fingerprint: str | None = None,
        trend: Literal["hour", "day"] = "hour",
        limit: int = 50,
        cursor: str | None = None,
    ) -> Failures:
        """Return groups of dead letters that failed alike, the largest group first.

        `fingerprint`: only this group; `jobs.list(Filter(fingerprint=…))` lists its jobs. `trend`: counts per hour of
        the last 24 hours, or per day of the last 30 days. `cursor`: the `next` of the page before.
        """
        query = FailureQuery(
            topics=topics, since=since, fingerprint=fingerprint, trend=trend, limit=limit, cursor=cursor
        )
        return await (await self._store()).failures(query)
