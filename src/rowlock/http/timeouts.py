"""When is the time of a run over? Of runs that were claimed here it is known; of others it is looked up once, because
a look brings the whole job along."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from math import inf

from rowlock.core.job import Job
from rowlock.stores.base import Beat, Store

_KEPT = 100_000


class Timeouts:
    """By the monotonic clock of this process: a run that is looked up gets what is left by the database's."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int], float] = {}

    def begin(self, jobs: Iterable[Job]) -> None:
        now = time.monotonic()
        for job in jobs:
            self._remember(job, now + job.timeout)

    def forget(self, job_id: str, version: int) -> None:
        self._ends.pop((job_id, version), None)

    async def overdue(self, store: Store, runs: Sequence[Beat]) -> list[float]:
        """For how many seconds the time of each is over; negative: what is left."""
        if unknown := [run.id for run in runs if (run.id, run.version) not in self._ends]:
            clock, now = await store.now(), time.monotonic()
            for job in (await store.get(unknown)).values():
                began = job.started_at or job.claimed_at
                if began is not None:
                    self._remember(job, now + job.timeout - (clock - began).total_seconds())
        now = time.monotonic()
        return [now - self._ends.get((run.id, run.version), inf) for run in runs]  # inf: it is lost

    def _remember(self, job: Job, end: float) -> None:
        if len(self._ends) >= _KEPT:
            del self._ends[next(iter(self._ends))]
        self._ends[job.id, job.version] = end
