"""`jobs.audit`: what operators did. Also the checks of `by` and `reason`, which every audited verb takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from rowlock.core.codec import check_text
from rowlock.core.ids import check_id
from rowlock.core.job import MAX_TEXT, check_time
from rowlock.stores.base import Store
from rowlock.stores.queries import check_place
from rowlock.stores.records import Audited, AuditFilter

_MAX_REASON = 2000  # characters

Actor = Callable[[str | None], str]  # from the `by` of a call to the name in the audit


def check_by(by: str) -> str:
    return check_text(by, "by", max_chars=MAX_TEXT)


def check_reason(reason: str | None) -> str | None:
    return None if reason is None else check_text(reason, "reason", max_chars=_MAX_REASON)


class Audit:
    """`jobs.audit`."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store

    async def list(
        self,
        *,
        job_id: str | None = None,
        by: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        bulk: str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> Sequence[Audited]:
        """Return the audit's entries that match every argument, newest first.

        `before`: only entries older than the one with this id. A bulk action has an entry for each of its jobs: they
        are listed only with `bulk` or `job_id`.
        """
        wanted = AuditFilter(
            job_id=None if job_id is None else check_id(job_id),
            by=None if by is None else check_by(by),
            action=None if action is None else check_text(action, "action", max_chars=MAX_TEXT),
            since=None if since is None else check_time(since, "since"),
            bulk=None if bulk is None else check_id(bulk),
        )
        store = await self._store()
        return await store.audit(wanted, before=before, limit=check_place(limit, 0, None).limit)
