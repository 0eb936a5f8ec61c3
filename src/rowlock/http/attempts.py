"""Logins that have failed: guessing gets slower and slower, and nobody is locked out because somebody else guesses.

An account and an address together are what waits first. An address alone may be a proxy with a whole company behind it,
and an account alone is what others may guess at, so these have far higher bounds. They don't hold for an account from
an address where it has logged in before.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import ceil

from msgspec import Struct

from rowlock.http.problems import Problem

AT_ONCE = 2  # checks of passwords: each takes a core for a while
MOST_WAITING, MOST_OF_ONE = 50, 10  # for such a check: in all, and from one address
_KEPT = 10_000  # accounts, addresses, and pairs of them that are remembered


class Bound(Struct, frozen=True):
    """So many failures are `free`. Each further one makes the next try wait, twice as long each time, but not longer
    than `seconds`. After so many seconds a failure is forgotten."""

    free: int
    seconds: float


PAIR = Bound(5, 300.0)  # an account from one address
ACCOUNT = Bound(100, 60.0)  # an account from wherever
ADDRESS = Bound(500, 10.0)  # whatever account from one address


class Failures:
    """Of whatever has one bound."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        # How many, until when some of them were forgotten, and when the next try may be.
        self._failed: OrderedDict[str, tuple[int, float, float]] = OrderedDict()

    def wait(self, key: str, now: float) -> float:
        """Seconds until the next try; not more than 0: now."""
        return self._failed[key][2] - now if key in self._failed else 0.0

    def add(self, key: str, now: float) -> None:
        count, since, _ = self._failed.pop(key, (0, now, now))
        forgotten = min(count, int((now - since) / self._bound.seconds))
        count += 1 - forgotten
        since = now if count == 1 else since + forgotten * self._bound.seconds
        beyond = count - self._bound.free
        pause = min(self._bound.seconds, 2.0 ** min(beyond, 20)) if beyond >= 0 else 0.0
        self._failed[key] = (count, since, now + pause)
        while len(self._failed) > _KEPT:
            self._failed.popitem(last=False)

    def take_back(self, key: str) -> None:
        """One of them was none."""
        if key in self._failed:
            count, since, until = self._failed[key]
            self._failed[key] = (max(count - 1, 0), since, until)

    def forget(self, key: str) -> None:
        self._failed.pop(key, None)

    def __len__(self) -> int:
        return len(self._failed)


class Attempts:
    """`email` None: it is about no account. In this process's memory: each server counts for itself."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pairs, self._accounts, self._addresses = Failures(PAIR), Failures(ACCOUNT), Failures(ADDRESS)
        self._known: OrderedDict[str, None] = OrderedDict()  # pairs that have logged in

    def begin(self, address: str, email: str | None = None) -> None:
        """Counts as failed until `succeeded`, so that those that come at the same moment count as well. A 429 if it is
        too soon."""
        now, keys = self._clock(), self._keys(address, email)
        pair = keys.get(self._pairs)
        judged = keys if pair is None or pair not in self._known else {self._pairs: pair}
        wait = max(failures.wait(key, now) for failures, key in judged.items())
        if wait > 0:
            text = f"too many failed logins: try again in {ceil(wait)} s"
            raise Problem("too_many_logins", text, headers={"retry-after": str(ceil(wait))})
        for failures, key in keys.items():
            failures.add(key, now)

    def succeeded(self, address: str, email: str | None = None) -> None:
        """Only the pair begins anew: else one's own account would be a way to guess at others' without end."""
        keys = self._keys(address, email)
        pair = keys.pop(self._pairs, None)
        for failures, key in keys.items():
            failures.take_back(key)
        if pair is not None:
            self._pairs.forget(pair)
            self._known[pair] = None
            self._known.move_to_end(pair)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)

    def _keys(self, address: str, email: str | None) -> dict[Failures, str]:
        if email is None:
            return {self._addresses: address}
        account = email.lower()[:250]
        return {self._pairs: f"{account} {address}", self._accounts: account, self._addresses: address}


class Hashing:
    """Who waits for the check of a password. For one event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._of: Counter[str] = Counter()

    def check(self, address: str) -> None:
        """A 429 if too many wait already."""
        if self._of.total() >= MOST_WAITING or self._of[address] >= MOST_OF_ONE:
            text = "too many log in at this moment: try again in 2 s"
            raise Problem("too_many_logins", text, headers={"retry-after": "2"})

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        self._of[address] += 1
        try:
            async with self._turn:
                yield
        finally:
            self._of[address] -= 1
            if not self._of[address]:
                del self._of[address]
