"""A lower bound for the claim's scan of each lane.

Claimed jobs leave dead index entries at the head of their lane until vacuum takes them. While a long transaction pins
the xmin horizon vacuum can't, and every claim walks over all of them again: a minute of it took a prototype from 26k to
2.6k jobs/s. Starting behind the last claimed job keeps the rate level. Draining 30,000 jobs while a snapshot was held
went at 0.9 to 1.2 of the rate without one, and at 0.7 to 1.0 without the bound (three noisy rounds).

The price: a job that arrives before that point (higher priority, retried) is not seen until the bound is dropped,
100 ms later at most. So bounds are kept only by claims of many, where a job claimed ahead waits as long anyway.
"""

from __future__ import annotations

import time

from rowlock.core.job import Job, Lane
from rowlock.stores.base import Claim
from rowlock.stores.postgres.rows import Bound

_TTL = 0.1
_MIN_LIMIT = 50


class LaneHints:
    def __init__(self) -> None:
        self._bounds: dict[Lane, Bound] = {}
        self._since = 0.0

    def forget(self) -> None:
        self._bounds = {}

    def bounds(self, claim: Claim) -> dict[Lane, Bound]:
        if claim.limit < _MIN_LIMIT:
            return {}
        if time.monotonic() - self._since > _TTL:
            self.forget()
        return self._bounds

    def learn(self, claim: Claim, jobs: list[Job]) -> None:
        """From what a claim brought, in its order."""
        if claim.limit < _MIN_LIMIT:
            return
        if len(jobs) < claim.limit:
            self.forget()
            return
        if not self._bounds:
            self._since = time.monotonic()
        bounds = {Lane(job.topic, job.template_version): (-job.priority, job.run_at, job.id) for job in jobs}
        self._bounds = self._bounds | bounds
