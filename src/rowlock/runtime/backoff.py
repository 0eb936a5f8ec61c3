"""Backoff: pauses between tries while the database fails. The first failure is logged, and each pause is longer."""

from __future__ import annotations

import logging
import random

log = logging.getLogger("rowlock")

FIRST = 0.05


class Backoff:
    """`what`: what fails, for the log. `longest`: the longest pause, in seconds."""

    def __init__(self, what: str, longest: float) -> None:
        self._what = what
        self.longest = longest
        self._failures = 0

    @property
    def in_trouble(self) -> bool:
        return self._failures > 0

    def failed(self, error: BaseException) -> float:
        """Return the seconds to wait, with jitter: a fleet of workers must not come back at the same moment."""
        if not self._failures:
            log.warning("%s: %s; trying again until it works", self._what, error)
        self._failures += 1
        span = min(self.longest, FIRST * 2.0 ** min(self._failures - 1, 30))
        return span * random.uniform(0.5, 1.0)  # noqa: S311 - spreads workers, no secret

    def worked(self) -> None:
        if self._failures:
            log.warning("%s: the database is back after %d failed tries", self._what, self._failures)
            self._failures = 0
