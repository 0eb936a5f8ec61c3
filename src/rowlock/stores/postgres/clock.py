"""The time after which a statement may not be carried out: when its client stops waiting for the reply.

A request can stay in a network's buffer, or wait for a frozen server process. Meanwhile its client may give up and ask
again elsewhere. So inserts and claims carry a time, by the database's clock, after which they do nothing. A claim's
time is when its client stops waiting. An insert's time is a few seconds away: if its connection breaks, the insert is
repeated, and the repeat waits until this time is over.

No promise depends on our estimate of that clock. If it is wrong, the statement does nothing although its client still
waits. The reply has the right time, and the client sends the statement again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

from rowlock.core.job import NewJob

JUMPED = "the database's clock has jumped"
LATE = "too late by"  # the error text of an insert that takes itself back
INSERTS = 3.0  # seconds that an insert has to reach the server: a repeat waits as long
_KEPT = timedelta(minutes=10)  # longer than any caller repeats an insert
_TICK = 0.001  # seconds: beyond the time, not at it
_FRESH = 30.0  # seconds after which any reply is better than the old estimate: clocks drift


class Clock:
    """The earliest time that the database's clock can show. A reply is sent after that clock was read, and both clocks
    run at the same pace. The fastest of several replies gives the best estimate."""

    def __init__(self, patience: float) -> None:
        self._patience = patience  # seconds that a client waits for a reply
        self._said: datetime | None = None
        self._heard = 0.0  # when, by time.monotonic()

    def not_after(self, patience: float | None = None) -> datetime | None:
        """Return the time for a statement that is sent now; None if the database's clock is not known. `patience`:
        seconds, if they are fewer than a client waits."""
        if self._said is None:
            return None
        seconds = self._patience if patience is None or patience > self._patience else patience
        return self._said + timedelta(seconds=time.monotonic() - self._heard + seconds)

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
        """Learn from a reply to a statement. Return True if the statement came too late and must be sent again."""
        if not_after is not None and now > not_after:
            self.set(now)
            return True
        self.learn(now)
        return False

    def give_more(self) -> None:
        """Do nothing, unlike Deadlines: a client's patience does not grow."""


class Deadlines:
    """The times of the tries of one insert. `newest`: the time of the latest try."""

    __slots__ = ("_clock", "_patience", "newest")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._patience = INSERTS
        self.newest: datetime | None = None

    def not_after(self) -> datetime | None:
        self.newest = self._clock.not_after(self._patience)
        return self.newest

    def was_late(self, now: datetime, not_after: datetime | None) -> bool:
        """Return the same as Clock.was_late. If True, the next try gets more time: the network may be slow, or the jobs
        large."""
        if self._clock.was_late(now, not_after):
            self.give_more()
            return True
        return False

    def give_more(self) -> None:
        self._patience *= 2


class Ghosts:
    """Inserts whose outcome is unknown, by the ids of their jobs: the server may carry them out until their time is
    over. Without a wait, a repeat could make the job, and the job could complete and be archived before the first
    insert arrives. Then the first insert would make the job again."""

    def __init__(self) -> None:
        self._over: dict[str, datetime] = {}

    def note(self, jobs: Sequence[NewJob], not_after: datetime | None) -> None:
        if not_after is not None:
            # Forget the jobs whose insert was not repeated in time.
            self._over = {job_id: over for job_id, over in self._over.items() if over > not_after - _KEPT}
            self._over |= {job.id: not_after for job in jobs}

    async def outlast(self, jobs: Sequence[NewJob], now: Callable[[], Awaitable[datetime]]) -> None:
        """Wait until no earlier insert of these jobs can be carried out any more. `now` reads the database's clock: an
        estimate would not do."""
        ghosts = [job.id for job in jobs if job.id in self._over] if self._over else []
        if not ghosts:
            return
        over = max(self._over[job_id] for job_id in ghosts)
        while (at := await now()) <= over:  # noqa: ASYNC110 - a clock gives no signal
            await asyncio.sleep((over - at).total_seconds() + _TICK)
        for job_id in ghosts:
            self._over.pop(job_id, None)
