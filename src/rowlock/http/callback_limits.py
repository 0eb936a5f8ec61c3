"""Limits of the routes of callbacks, which have no other access control than their tokens. In this process's memory:
each server counts for itself."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from math import ceil

from msgspec import Struct

from rowlock.http.login_attempts import Bound, Failures
from rowlock.http.problems import Problem

_KEPT = 10_000  # addresses, and callbacks, that are remembered


class Rate(Struct, frozen=True):
    """`burst` requests at once, and `per_second` for a longer time."""

    burst: float
    per_second: float


# An address may be the proxy of a whole company, or a service that answers thousands of jobs.
ADDRESS = Rate(1000, 200.0)
CALLBACK = Rate(60, 10.0)
# Unknown tokens. They can't be guessed: this limits only what a scanner costs. A right token is not counted.
UNKNOWN = Bound(100, 10.0)


class Rates:
    """Requests with the same rate, by key."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what was left, and when

    def take(self, key: str, now: float) -> float:
        """Count a request. Return 0 if it is allowed, else the seconds until the next one is."""
        left, since = self._left.pop(key, (self._rate.burst, now))
        left = min(self._rate.burst, left + (now - since) * self._rate.per_second)
        allowed = left >= 1.0
        self._left[key] = (left - 1.0 if allowed else left, now)
        while len(self._left) > _KEPT:
            self._left.popitem(last=False)
        return 0.0 if allowed else (1.0 - left) / self._rate.per_second


class CallbackLimits:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._addresses, self._callbacks = Rates(ADDRESS), Rates(CALLBACK)
        self._unknown = Failures(UNKNOWN)

    def take(self, address: str) -> None:
        """Count a request, whatever its token is. Raise a 429 if the address sends too many."""
        _demand(self._addresses.take(address, self._clock()))

    def take_callback(self, name: str) -> None:
        """Count a request with a right token. Raise a 429 if there are too many about this callback."""
        _demand(self._callbacks.take(name, self._clock()))

    def unknown(self, address: str) -> None:
        """Count a token that is not ours. Raise a 429 if the address has sent too many."""
        now = self._clock()
        _demand(self._unknown.wait(address, now))
        self._unknown.add(address, now)


def _demand(wait: float) -> None:
    if wait > 0:
        text = f"too many requests: try again in {ceil(wait)} s"
        raise Problem("too_many_calls", text, headers={"retry-after": str(ceil(wait))})
