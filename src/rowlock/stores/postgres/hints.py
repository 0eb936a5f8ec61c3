"""What a claim need not read again: dead entries of the index that it scans.

Claimed jobs leave dead entries at the head of their lane until vacuum takes them. While a transaction holds an old
snapshot vacuum can't, and every claim walks over all of them: 80 seconds at 600 jobs/s took a claim from 5 to 45 ms.

Each claim tells how many dead entries it has read. Once two in a row have read many (if nothing holds them, the first
one makes PostgreSQL mark them, and later ones pass over them), claims begin behind what has been read: for each
priority that was claimed there is a position, a little before the time of the last claim, and what lies before it is
left out. Other priorities are read whole, so a job of a higher priority is found at once.

What may hide before a position is a job that came there late: it was released or rescued into its old place, its topic
was resumed, or its transaction took long to commit. So claims also read a piece of what is left out, each the next
piece, as much as costs about a twentieth of the time. When a tour through all of it has met no dead entries, the old
snapshot is gone, and claims read everything again.

Work is counted, not timed: a busy machine is no reason to leave anything out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from rowlock.core.job import Job, Lane

MANY = 2000  # dead entries that one statement reads, beyond which they are left out
SLACK = timedelta(seconds=0.5)  # by which commits come out of order, and promotions late
NIL = "00000000-0000-0000-0000-000000000000"
_FEW = 500  # dead entries on a whole tour: they are gone
_RANKS = 16  # priorities whose positions are kept
_LANES = 64  # sets of lanes that are known: a worker has one, a server has one for each kind of remote worker
_RATE = 100_000.0  # entries read again per second: half a microsecond each
_LEAST, _MOST = 1000.0, 50_000.0  # entries of one piece
_EMPTY = 50  # entries of a piece that is as good as empty
_EMPTY_PIECES = 3  # after so many of them, all that is older is one piece
_WIDEST = timedelta(days=7)  # of a piece; beyond it, too
_OLDEST = 1970  # a year; before it, too
_WHOLE_RATE = 20_000.0  # entries per second that passes over a whole index may read

Position = tuple[datetime, str]  # run_at and id, within a priority
Part = tuple[int | None, datetime | None, str | None, int | None, datetime | None]  # the columns of `part` in claim.sql

_WHOLE: tuple[list[None], ...] = ([None],) * 5


class Piece(NamedTuple):
    """Of what is left out, by run_at."""

    begin: datetime | None  # None: all that is older
    end: datetime
    begins: bool  # a tour


class Plan(NamedTuple):
    """What a claim reads. `lanes` and `parts` are its parameters."""

    lanes: tuple[str, str | None]
    parts: tuple[Sequence[object], ...]
    piece: Piece | None
    generation: int

    @property
    def is_whole(self) -> bool:
        return self.parts is _WHOLE


class LaneHints:
    """Of all claims of a store."""

    def __init__(self) -> None:
        self._known: dict[tuple[Lane, ...], Lanes] = {}
        self._last: tuple[tuple[Lane, ...], Lanes] | None = None

    def of(self, lanes: tuple[Lane, ...]) -> Lanes:
        if self._last is not None and self._last[0] is lanes:  # to hash 500 of them takes a while
            return self._last[1]
        found = self._known.get(lanes)
        if found is None:
            if len(self._known) >= _LANES:
                del self._known[next(iter(self._known))]
            found = self._known[lanes] = Lanes(lanes)
        self._last = lanes, found
        return found

    def forget(self) -> None:
        """A job may have come to any place."""
        for lanes in self._known.values():
            lanes.forget()

    def reach(self, run_at: datetime) -> None:
        """Jobs have come that are due since `run_at`, or later."""
        for lanes in self._known.values():
            lanes.reach(run_at)


class Lanes:
    """Of the claims of the same lanes."""

    def __init__(self, lanes: tuple[Lane, ...]) -> None:
        lanes = tuple(dict.fromkeys(lanes))  # twice the same would count each of its jobs twice
        versions = " ".join(str(lane.template_version or 0) for lane in lanes)
        numbered = any(lane.template_version for lane in lanes)
        self._texts = " ".join(lane.topic for lane in lanes), versions if numbered else None
        self._read: dict[int, Position] = {}  # by rank, which is -priority; the one that was claimed last comes last
        self._generation = 0
        self._walked = 0  # claims in a row that have read many dead entries
        self._tour = Tour()

    def forget(self) -> None:
        self._read = {}
        self._generation += 1

    def reach(self, run_at: datetime) -> None:
        behind = {rank: (run_at, NIL) for rank, at in self._read.items() if at > (run_at, NIL)}
        if behind:
            self._read |= behind
            self._generation += 1

    def plan(self) -> Plan:
        if not self._read:
            return Plan(self._texts, _WHOLE, None, self._generation)
        piece = self._tour.next(max(self._read.values())[0])
        columns = list(zip(*self._parts(piece), strict=True))
        return Plan(self._texts, tuple(map(list, columns)), piece, self._generation)

    def _parts(self, piece: Piece | None) -> list[Part]:
        ranks = sorted(self._read)
        parts: list[Part] = [(None, None, None, ranks[0] - 1, None)]
        for rank, following in zip(ranks, [*ranks[1:], None], strict=True):
            parts.append((rank, *self._read[rank], None if following is None else following - 1, None))
        if piece is not None:
            for rank in ranks:
                end = min(piece.end, self._read[rank][0])
                if piece.begin is None or piece.begin < end:
                    parts.append((rank, piece.begin, None, rank, end))
        return parts

    def learn(self, plan: Plan, limit: int, jobs: list[Job], dead: int, at: datetime) -> None:
        """From what a claim brought, in its order, how many dead entries it read, and a moment before it did."""
        if plan.is_whole:
            # At full speed, claims of hundreds come before what the last ones left could be marked.
            self._walked = self._walked + 1 if dead >= MANY + 5 * limit else 0
            if self._walked < 2:
                return
        if plan.generation != self._generation:
            return
        if not plan.is_whole and self._tour.learn(plan.piece, dead):
            self.forget()
        else:
            self._advance(jobs, limit, at)

    def _advance(self, jobs: list[Job], limit: int, at: datetime) -> None:
        recent = at - SLACK, NIL
        for rank in {-job.priority: None for job in jobs}:
            self._read[rank] = self._read.pop(rank, (datetime.min.replace(tzinfo=UTC), NIL))
        while len(self._read) > _RANKS:
            del self._read[next(iter(self._read))]
        last = jobs[-1] if len(jobs) == limit else None  # what comes after it was not looked at
        for rank, position in self._read.items():
            if last is None or rank < -last.priority:
                reached = recent
            elif rank == -last.priority:
                reached = min(recent, (last.run_at, last.id))
            else:
                continue
            self._read[rank] = max(position, reached)


class Tour:
    """Reads again what is left out, piece by piece, from the newest to the oldest, and begins again."""

    def __init__(self) -> None:
        self._end: datetime | None = None  # of the next piece; None: a tour begins
        self._density = self._newest = 1000.0  # entries per second of run_at: where we are, and where a tour begins
        self._empty = 0  # pieces in a row that were as good as empty: the next one is longer
        self._met = self._met_last = 0  # entries on this tour, and in the last piece
        self._asked = self._since = time.monotonic()  # the last claim, and the last one that read a piece
        self._paused = False  # every other claim reads none, which tells what it reads anyway
        self._usual = 0

    def next(self, newest: datetime) -> Piece | None:
        now = time.monotonic()
        size = min(max(2 * (now - self._asked) * _RATE, _LEAST), _MOST)  # where claims are frequent, pieces are short
        self._asked = now
        self._paused = not self._paused
        if self._paused or (now - self._since) * _RATE < max(_LEAST, self._met_last):
            return None
        self._since = now
        begins = self._end is None
        if begins:
            self._density, self._empty = self._newest, 0
        end = newest if self._end is None else self._end
        width = timedelta(seconds=size / self._density * 4**self._empty)
        if self._empty >= _EMPTY_PIECES or width > _WIDEST or end.year < _OLDEST:
            self._end = None
            return Piece(None, end, begins)
        self._end = end - width
        return Piece(self._end, end, begins)

    def learn(self, piece: Piece | None, dead: int) -> bool:
        """True: a whole tour has met nothing."""
        if piece is None:
            self._usual = dead
            return False
        self._met_last = met = max(0, dead - self._usual)
        self._met += met
        if piece.begin is None:
            over, self._met = self._met < _FEW, 0
            return over
        if met < _EMPTY:
            self._empty += 1
            return False
        self._empty = 0
        self._density = max(1.0, met / max((piece.end - piece.begin).total_seconds(), 1e-6))
        if piece.begins:
            self._newest = self._density
        return False


class Floor:
    """Where a pass over an index that is ordered by time may begin: what lies before has been dealt with, and only dead
    entries are left, or something that came late. So as often as their number allows, a pass begins at the beginning.
    """

    def __init__(self) -> None:
        self._after: datetime | None = None
        self._next_whole = 0.0

    @property
    def after(self) -> datetime | None:
        """None: from the beginning, because there is little to walk over."""
        return self._after

    @property
    def after_now_and_then(self) -> datetime | None:
        """The same, but None also when it is time to look at everything."""
        return None if time.monotonic() >= self._next_whole else self._after

    def learn(self, after: datetime | None, dead: int, at: datetime, *, done: bool) -> None:
        """From a pass that began there, the dead entries that it met, and a moment before it. `done`: nothing that was
        due is left."""
        if after is None:
            self._next_whole = time.monotonic() + dead / _WHOLE_RATE
            if dead < MANY:
                self._after = None
                return
        if done:
            reached = at - SLACK
            self._after = reached if self._after is None else max(self._after, reached)
