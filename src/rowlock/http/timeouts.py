"""When runs of remote workers reach their timeout. Runs that were claimed elsewhere are read once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from math import inf

from rowlock.core.job import Job
from rowlock.stores.base import Beat, Store
from rowlock.stores.queries import State

_KEPT = 100_000


class Timeouts:
    """Ends of runs by this process's monotonic clock."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int], float] = {}

    def begin(self, jobs: Iterable[Job]) -> None:
        now = time.monotonic()
        for job in jobs:
            self._remember(job, now + job.timeout)

    def forget(self, job_id: str, version: int) -> None:
        self._ends.pop((job_id, version), None)

    async def overdue(self, store: Store, worker: str, runs: Sequence[Beat]) -> list[float]:
        """Return by how many seconds each run is over its timeout; negative: seconds left."""
        if unknown := {(run.id, run.version) for run in runs if (run.id, run.version) not in self._ends}:
            await self._look_up(store, worker, unknown)
        now = time.monotonic()
        return [now - self._ends.get((run.id, run.version), inf) for run in runs]  # inf: the run is lost

    async def _look_up(self, store: Store, worker: str, unknown: set[tuple[str, int]]) -> None:
        """Read runs that this worker holds. It may name any run, so others are ignored."""
        ids = [run.id for run in await store.held_by([worker]) if (run.id, run.version) in unknown]
        if not ids:
            return
        clock, now = await store.now(), time.monotonic()
        for state in (await store.read(ids, State)).values():
            began = state.started_at or state.claimed_at
            if began is not None:
                self._remember(state, now + state.timeout - (clock - began).total_seconds())

    def _remember(self, job: Job | State, end: float) -> None:
        if len(self._ends) >= _KEPT:
            del self._ends[next(iter(self._ends))]
        self._ends[job.id, job.version] = end
