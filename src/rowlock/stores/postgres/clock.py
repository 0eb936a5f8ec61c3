"""Until when may a statement be carried out? Only as long as its client waits for the reply.

A request can stay in a network's buffer, or wait for a frozen server process, until its client has given up and has
asked again elsewhere. So inserts and claims carry a time, by the database's clock, after which they do nothing.

No promise depends on our estimate of that clock. If it is wrong, the statement does nothing although its client still
waits. The reply has the right time, and the client sends the statement again.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta

JUMPED = "the database's clock has jumped"
_FRESH = 30.0  # seconds after which any reply is better than the old estimate: clocks drift


class Clock:
    """The earliest time that the database's clock can show. A reply is sent after that clock was read, and both clocks
    run at the same pace. The fastest of several replies gives the best estimate."""

    def __init__(self, patience: float) -> None:
        self._patience = patience  # seconds that a client waits for a reply
        self._said: datetime | None = None
        self._heard = 0.0  # when, by time.monotonic()

    def not_after(self) -> datetime | None:
        """Return the time that a statement sent now carries; None if the database's clock is not known."""
        if self._said is None:
            return None
        return self._said + timedelta(seconds=time.monotonic() - self._heard + self._patience)

    def set(self, now: datetime) -> None:
        """Begin anew: the connection is new, perhaps to another server, or the clock has jumped."""
        self._said, self._heard = now, time.monotonic()

    def learn(self, now: datetime) -> None:
        """Improve the estimate by the time of a reply."""
        heard = time.monotonic()
        passed = heard - self._heard
        if self._said is None or passed > _FRESH or now - self._said > timedelta(seconds=passed):
            self._said, self._heard = now, heard

    def was_late(self, now: datetime, not_after: datetime | None) -> bool:
        """Learn from a reply to a statement. True if the statement came too late, so that it must be sent again."""
        if not_after is not None and now > not_after:
            self.set(now)
            return True
        self.learn(now)
        return False
