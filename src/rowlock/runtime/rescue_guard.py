"""RescueGuard: decides when a worker may rescue the jobs of other workers. Not right after the database, or this
process, was away.

If the database was away for longer than a lease, every lease has expired when it comes back. Live workers need a moment
to renew theirs; a rescue at that moment would take their jobs. The same holds if the database's clock jumps ahead.
Pure: times come in as arguments.
"""

from __future__ import annotations

from datetime import datetime

_JUMP = 1.0  # seconds that the database's clock may gain on this machine's between two contacts


class RescueGuard:
    """`interval`: seconds between two contacts of this process with the database."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._since: float | None = None
        self._last: tuple[float, float, datetime] | None = None  # asked, answered, the clock

    def contact(self, asked: float, answered: float, clock: datetime) -> None:
        """Record a heartbeat that succeeded: between these monotonic times the database's clock showed `clock`. A slow
        answer is no jump, because only the least possible gain counts. A very slow answer is a gap."""
        if self._last is None:
            self._since = asked
        else:
            last_asked, last_answered, last_clock = self._last
            gained = (clock - last_clock).total_seconds() - (answered - last_asked)
            if answered - last_answered > 2 * self.interval or gained > _JUMP:
                self._since = answered
        self._last = (asked, answered, clock)

    def broken(self) -> None:
        """Record a heartbeat that failed."""
        self._since = self._last = None

    def wait(self, at: float, others: float) -> float:
        """Return the seconds until a rescue is allowed; 0 or less: now. By then this process's heartbeats have
        succeeded for so long that every live worker has had time for one. `others`: the longest interval of the other
        workers."""
        needed = max(self.interval, others)
        if self._since is None or self._last is None or at - self._last[1] > 2 * self.interval:
            return needed
        return self._since + needed - at
