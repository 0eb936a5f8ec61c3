"""Slow down password guessing, without locking a user out because of other people's guesses.

Failures of one account from one address have the lowest limit. An address alone may be the proxy of a whole company,
and an account alone may be the target of strangers, so these have far higher limits. These do not apply to an account
from an address where it has logged in before.
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

AT_ONCE = 2  # password checks: each takes a core for a while
MOST_WAITING, MOST_OF_ONE = 50, 10  # for a check: in all, and from one address
_KEPT = 10_000  # accounts, addresses, and pairs of them that are remembered


class Bound(Struct, frozen=True):
    """`free` failures have no effect. Each further one doubles the wait before the next try, up to `seconds`. One
    failure is forgotten every `seconds`."""

    free: int
    seconds: float


PAIR = Bound(5, 300.0)  # an account from one address
ACCOUNT = Bound(100, 60.0)  # an account from all addresses
ADDRESS = Bound(500, 10.0)  # all accounts from one address


class Failures:
    """Failures with the same bound, by key."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        # The count, the time until which failures were forgotten, and the time of the next allowed try.
        self._failed: OrderedDict[str, tuple[int, float, float]] = OrderedDict()

    def wait(self, key: str, now: float) -> float:
        """Return the seconds until the next allowed try; 0 or less: now."""
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
        """Take one failure back: the try has succeeded."""
        if key in self._failed:
            count, since, until = self._failed[key]
            self._failed[key] = (max(count - 1, 0), since, until)

    def forget(self, key: str) -> None:
        self._failed.pop(key, None)

    def __len__(self) -> int:
        return len(self._failed)


class Attempts:
    """Failed logins, in this process's memory: each server counts for itself. `email` None: a try without an
    account."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pairs, self._accounts, self._addresses = Failures(PAIR), Failures(ACCOUNT), Failures(ADDRESS)
        self._known: OrderedDict[str, None] = OrderedDict()  # pairs that have logged in before

    def begin(self, address: str, email: str | None = None) -> None:
        """Count a try as failed until `succeeded`, so that concurrent tries count as well. Raise a 429 if it is too
        soon."""
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
        """Reset only the pair of account and address: else an attacker could reset the limits with an account of their
        own."""
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
    """Limits how many password checks wait in one event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._of: Counter[str] = Counter()

    def check(self, address: str) -> None:
        """Raise a 429 if too many are waiting already."""
        if self._of.total() >= MOST_WAITING or self._of[address] >= MOST_OF_ONE:
            text = "too many logins at this moment: try again in 2 s"
            raise Problem("too_many_logins", text, headers={"retry-after": "2"})

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        self._of[address] += 1
        try:
            async with self._turn:
                yield
        finally:
            self._of -= Counter([address])  # forgets the address at 0
