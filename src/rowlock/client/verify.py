"""Check a database in use for contradictions (`rowlock verify`). It only reads, page by page, within bounds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import get_args

from msgspec import Struct

from rowlock.core.job import Job, LiveKey, Status
from rowlock.core.verify import Finding, StoredRow, examine
from rowlock.stores.base import Part, Store
from rowlock.stores.limits import Usage

PAGE = 500
PATIENCE = 300.0  # seconds after a lease has expired: enough for many maintenance passes, also after an outage
MAX_FINDINGS = 1000


class Report(Struct, frozen=True):
    """`checked`: how many jobs were checked, the newest first. `partial`: there are more jobs, or more findings.
    `silent`: workers that did not report within their lease and did not sign off. They are no finding."""

    findings: list[Finding]
    checked: int
    partial: bool
    silent: list[str]


async def verify(store: Store, *, limit: int, seconds: float) -> Report:
    """Check at most `limit` jobs of each table. Read no new page after `seconds`."""
    now = await store.now()
    search = _Search(store, now, time.monotonic() + seconds)
    for part in get_args(Part):
        await search.look_through(part, limit)
    await search.compare_counts(limit)
    await search.compare_limits()
    silent = [
        worker.name
        for worker in await store.workers()
        if worker.seen is not None and worker.seen + timedelta(seconds=worker.lease) < now
    ]
    partial = search.partial or len(search.findings) > MAX_FINDINGS
    return Report(search.findings[:MAX_FINDINGS], search.checked, partial, silent)


class _Search:
    def __init__(self, store: Store, now: datetime, until: float) -> None:
        self.findings: list[Finding] = []
        self.checked = 0
        self.partial = False
        self._store = store
        self._now = now
        self._until = until
        self._holders: dict[tuple[LiveKey, bool], str] = {}

    async def look_through(self, part: Part, limit: int) -> None:
        before: str | None = None
        left = limit
        while left > 0 and time.monotonic() <= self._until and len(self.findings) <= MAX_FINDINGS:
            page = await self._store.stored_rows(part, before=before, limit=min(PAGE, left))
            if not page:
                return
            for row in page:
                self.findings += examine(row, self._now, PATIENCE)
                if isinstance(row, StoredRow):
                    self.checked += 1
                    await self._compare_key(row)
            left -= PAGE
            before = page[-1].id
        self.partial = self.partial or bool(await self._store.stored_rows(part, before=before, limit=1))

    async def _compare_key(self, row: StoredRow) -> None:
        """Find two live jobs with one key. A line may have one job that is not blocked; jobs that stand in no line
        don't count there."""
        if row.key is None or row.finished_at is not None or row.status is Status.BLOCKED:
            return
        key = LiveKey(row.topic, row.scope, row.scope_id, row.key)
        holder = self._holders.setdefault((key, row.if_live is not None), row.id)
        if holder != row.id and await self._both_live(holder, row.id):
            self.findings.append(
                Finding("key", row.id, f"is live with the key {row.key!r} of {row.topic}, and so is {holder}")
            )

    async def _both_live(self, *ids: str) -> bool:
        """Return True if both are still live. They are read in one snapshot: between two pages, the key may have passed
        to the other job."""
        found = await self._store.read(ids, Job)
        return len(found) == len(ids) and all(
            job.is_live and job.status is not Status.BLOCKED for job in found.values()
        )

    async def compare_counts(self, limit: int) -> None:
        for status, (there, counted) in (await self._store.end_counts(limit)).items():
            if there > counted:
                text = f"at least {there} jobs are {status}, but the counters say {counted}"
                self.findings.append(Finding("counts", None, text))

    async def compare_limits(self) -> None:
        """Find wrong limits. Look twice: between two statements of the first look, limits may be put or cleared."""
        first, second = [set(_wrong_limits(await self._store.limit_usage())) for _ in range(2)]
        self.findings += [Finding("limits", None, text) for text in sorted(first & second)]


def _wrong_limits(usage: Usage) -> Iterator[str]:
    """Yield the contradictions about limits. `usage.waiting` counts the topics that plain claims leave out."""
    limited, left_out = set(usage.stored.limited), {topic for topic, _ in usage.waiting}
    for topic in limited - left_out:
        yield f"{topic} has limits, but it is not marked as limited, so claims don't obey them"
    for topic in left_out - limited:
        yield f"{topic} is marked as limited, but no limits are stored for it, so its jobs are not claimed"
    for start in usage.starts:
        if start.n < 1:
            yield f"the rate {start.rule} counts {start.n} starts at once for {start.value or 'all jobs'}"
