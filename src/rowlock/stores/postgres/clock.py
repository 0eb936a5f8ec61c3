"""Until when may a statement be carried out? As long as its client waits for the reply, and no longer.

A request can lie in a network's buffer, or before a frozen server process, until its client has given up and has asked
again elsewhere. So inserts and claims carry a time, by the database's clock, after which they do nothing.

No promise depends on our idea of that clock. If it is wrong, a client that still waits is told that it was too late.
That very reply says what time it is, and the client asks again.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta

JUMPED = "the database's clock has jumped"
_FRESH = 30.0  # seconds after which any reply is better than what we know: clocks drift


class Clock:
    """The earliest time that the database's clock can show. A reply that carries it was sent after the clock was read,
    and time goes on at the same pace here and there. Of several replies, the one that took least says most."""

    def __init__(self, patience: float) -> None:
        self._patience = patience  # seconds that a client waits for a reply
        self._said: datetime | None = None
        self._heard = 0.0  # when, by time.monotonic()

    def not_after(self) -> datetime | None:
        """The time that a statement carries which is sent now; None if the database's clock is not known."""
        if self._said is None:
            return None
        return self._said + timedelta(seconds=time.monotonic() - self._heard + self._patience)

    def set(self, now: datetime) -> None:
        """Forget what was known: there is a new connection, perhaps to another server, or the clock has jumped."""
        self._said, self._heard = now, time.monotonic()

    def learn(self, now: datetime) -> None:
        """From a reply."""
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
