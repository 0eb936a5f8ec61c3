"""Trouble with the database: say it once, wait a little longer each time, never give up."""

from __future__ import annotations

import logging
import random

log = logging.getLogger("rowlock")

FIRST = 0.05


class Patience:
    """`longest`: seconds between tries at most. `what`: who is waiting, for the log."""

    def __init__(self, what: str, longest: float) -> None:
        self._what = what
        self.longest = longest
        self._failures = 0

    @property
    def in_trouble(self) -> bool:
        return self._failures > 0

    def failed(self, error: BaseException) -> float:
        """How many seconds to wait. Jittered, so that a fleet doesn't come back all at once."""
        if not self._failures:
            log.warning("%s: %s; trying again until it works", self._what, error)
        self._failures += 1
        span = min(self.longest, FIRST * 2.0 ** min(self._failures - 1, 30))
        return span * random.uniform(0.5, 1.0)  # noqa: S311 - spreads workers, no secret

    def worked(self) -> None:
        if self._failures:
            log.warning("%s: the database is back after %d failed tries", self._what, self._failures)
            self._failures = 0
