"""Shares of jobs that were enqueued before a limit by a field came."""

from __future__ import annotations

from collections.abc import Sequence

from rowlock.core.job import Status
from rowlock.core.limits import share_of
from rowlock.stores.base import Store
from rowlock.stores.limits import NewShare
from rowlock.stores.queries import Filter

_PAGE = 200  # the most that `list` gives
_IDLE = (Status.PENDING, Status.BLOCKED, Status.WAITING)


async def give_shares(store: Store, topic: str, fields: Sequence[str]) -> None:
    """Give the jobs of a topic that no worker holds their shares, by these fields. For a second, other processes may
    enqueue jobs that have no share: they don't know of the limit yet."""
    cursor: str | None = None
    while fields:
        page = await store.list(Filter(topics=[topic], statuses=_IDLE), limit=_PAGE, cursor=cursor)
        await store.set_shares(
            [NewShare(job.id, job.updated, share_of(fields, job, job.payload)) for job in page.items]
        )
        cursor = page.next
        if cursor is None:
            break
