"""A lower bound for the claim's scan of each lane.

Claimed jobs leave dead index entries at the head of their lane until vacuum takes them. While a long transaction pins
the xmin horizon vacuum can't, and every claim walks over all of them again: a minute of it took a prototype from 26k to
2.6k jobs/s. Starting behind the last claimed job keeps the rate level. Draining 30,000 jobs while a snapshot was held
went at 0.9 to 1.2 of the rate without one, and at 0.7 to 1.0 without the bound (three noisy rounds).

The price: a job that arrives before that point (higher priority, retried) is not seen until the bound is dropped,
100 ms later. So bounds are kept only by claims of many, where a job claimed ahead waits as long anyway. And a claim
without a bound walks over all the dead entries: the longer that takes, the rarer it is, up to a second. Over a minute,
without a snapshot 19.0k jobs/s, with one 16.9k, and 12.9k when it was every 100 ms (one run each).
"""

from __future__ import annotations

import time

from rowlock.core.job import Job, Lane
from rowlock.stores.base import Claim
from rowlock.stores.postgres.rows import Bound

_LEAST, _MOST = 0.1, 1.0  # seconds for which a bound is kept
_SHARE = 0.1  # of the time at most is for claims without one
_MIN_LIMIT = 50


class LaneHints:
    def __init__(self) -> None:
        self._bounds: dict[Lane, Bound] = {}
        self._since = 0.0
        self._keep = _LEAST
        self._usual: float | None = None  # seconds that a claim with a bound takes

    def forget(self) -> None:
        self._bounds = {}

    def bounds(self, claim: Claim) -> dict[Lane, Bound]:
        if claim.limit < _MIN_LIMIT:
            return {}
        if time.monotonic() - self._since > self._keep:
            self.forget()
        return self._bounds

    def learn(self, claim: Claim, jobs: list[Job], *, bounded: bool, seconds: float) -> None:
        """From what a claim brought, in its order, and how long it took."""
        if claim.limit < _MIN_LIMIT:
            return
        if len(jobs) < claim.limit:
            self.forget()
            return
        if bounded:
            self._usual = seconds if self._usual is None else 0.9 * self._usual + 0.1 * seconds
        elif self._usual is not None:
            self._keep = min(_MOST, max(_LEAST, (seconds - self._usual) / _SHARE))
        if not self._bounds:
            self._since = time.monotonic()
        bounds = {Lane(job.topic, job.template_version): (-job.priority, job.run_at, job.id) for job in jobs}
        self._bounds = self._bounds | bounds
