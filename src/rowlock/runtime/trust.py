"""When may a worker take jobs from others? Not right after the database, or this process, was away.

A database that was away for longer than a lease comes back with every lease expired. Whoever rescued at once would rob
live workers, which need a moment to renew. So does a clock that jumps ahead. Pure: times come in as arguments.
"""

from __future__ import annotations

from datetime import datetime

_JUMP = 1.0  # seconds that the database's clock may gain on ours between two contacts


class Trust:
    """`interval`: seconds between our own contacts with the database."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._since: float | None = None
        self._last: tuple[float, float, datetime] | None = None  # asked, answered, the clock

    def contact(self, asked: float, answered: float, clock: datetime) -> None:
        """A heartbeat succeeded: between these monotonic times, the database's clock said `clock`. A slow answer is no
        jump (what counts is what the clock must have gained at least), but a very slow one is a gap."""
        if self._last is None:
            self._since = asked
        else:
            last_asked, last_answered, last_clock = self._last
            gained = (clock - last_clock).total_seconds() - (answered - last_asked)
            if answered - last_answered > 2 * self.interval or gained > _JUMP:
                self._since = answered
        self._last = (asked, answered, clock)

    def broken(self) -> None:
        """A heartbeat failed."""
        self._since = self._last = None

    def wait(self, at: float, others: float) -> float:
        """Seconds until our heartbeats have gone through for so long that everyone alive has had the time for one; 0 or
        less: we may rescue. `others`: the longest interval of the other workers."""
        needed = max(self.interval, others)
        if self._since is None or self._last is None or at - self._last[1] > 2 * self.interval:
            return needed
        return self._since + needed - at
