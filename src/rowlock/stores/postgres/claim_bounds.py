"""The bounds of a claim: it leaves out index entries that are known to be dead.

Claimed jobs leave dead entries at the head of their lane until vacuum removes them. While a transaction holds an old
snapshot, vacuum can't remove them, and every claim reads them all. After 80 seconds at 600 jobs/s, a claim took 45 ms
instead of 5.

Each claim tells how many dead entries it has read. If two in a row have read many, the next claims begin later.
(Without an old snapshot, the first claim makes PostgreSQL mark dead entries, and the second one skips them.) Each
priority that was claimed has a position, a little before the time of the last claim; entries before it are left out.
Other priorities are read whole, so a job of a higher priority is found at once.

A job may come to a place before a position: it was released or rescued into its old place, its topic was resumed, or
its transaction took long to commit. So claims also read the left-out entries, piece by piece, which costs about a
twentieth of their time. When a tour through all pieces has met no dead entries, the old snapshot is gone, and claims
read everything again.

Entries are counted, not seconds: claims on a busy machine leave out no more than others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from rowlock.core.job import Job, Lane

MANY = 2000  # dead entries: if a statement reads more, they are left out
SLACK = timedelta(seconds=0.5)  # commits may be out of order, and promotions late, by so much
NIL = "00000000-0000-0000-0000-000000000000"
_FEW = 500  # if a whole tour meets fewer dead entries, they are gone
_RANKS = 16  # priorities whose positions are kept
_LANES = 64  # sets of lanes: a worker has one, a server has one for each kind of remote worker
_RATE = 100_000.0  # entries read again per second: half a microsecond each
_LEAST, _MOST = 1000.0, 50_000.0  # entries of one piece
_EMPTY = 50  # a piece with fewer entries counts as empty
_EMPTY_PIECES = 3  # after so many empty pieces in a row, everything older is one piece
_WIDEST = timedelta(days=7)  # of a piece; if it would be wider, everything older is one piece, too
_OLDEST = 1970  # a year; everything before it is one piece, too
_WHOLE_RATE = 20_000.0  # entries per second that may be read by passes over a whole index

Position = tuple[datetime, str]  # run_at and id, within a priority
Part = tuple[int | None, datetime | None, str | None, int | None, datetime | None]  # the columns of `part` in claim.sql

_WHOLE: tuple[list[None], ...] = ([None],) * 5


class Piece(NamedTuple):
    """A range of run_at among the entries that are left out."""

    begin: datetime | None  # None: everything older
    end: datetime
    begins: bool  # the first piece of a tour


class Plan(NamedTuple):
    """The reading plan of a claim. `lanes` and `parts` are the claim's parameters."""

    lanes: tuple[str, str | None]
    parts: tuple[Sequence[object], ...]
    piece: Piece | None
    generation: int

    @property
    def is_whole(self) -> bool:
        return self.parts is _WHOLE


class ClaimBounds:
    """The bounds of all claims of a store."""

    def __init__(self) -> None:
        self._known: dict[tuple[Lane, ...], Lanes] = {}
        self._last: tuple[tuple[Lane, ...], Lanes] | None = None

    def of(self, lanes: tuple[Lane, ...]) -> Lanes:
        if self._last is not None and self._last[0] is lanes:  # hashing 500 lanes takes a while
            return self._last[1]
        found = self._known.get(lanes)
        if found is None:
            if len(self._known) >= _LANES:
                del self._known[next(iter(self._known))]
            found = self._known[lanes] = Lanes(lanes)
        self._last = lanes, found
        return found

    def forget(self) -> None:
        """Read everything again: a job may have come to any place."""
        for lanes in self._known.values():
            lanes.forget()

    def reach(self, run_at: datetime) -> None:
        """Read everything from `run_at` on again: jobs have come there."""
        for lanes in self._known.values():
            lanes.reach(run_at)


class Lanes:
    """The bounds of the claims of the same lanes."""

    def __init__(self, lanes: tuple[Lane, ...]) -> None:
        lanes = tuple(dict.fromkeys(lanes))  # a lane that is there twice would count its jobs twice
        versions = " ".join(str(lane.template_version) for lane in lanes)
        numbered = any(lane.template_version for lane in lanes)
        self._texts = " ".join(lane.topic for lane in lanes), versions if numbered else None
        self._read: dict[int, Position] = {}  # by rank, which is -priority; the latest claimed rank comes last
        self._generation = 0
        self._walked = 0  # claims in a row that have read many dead entries
        self._tour = Tour()
        self.limited = False  # some of the topics have limits, as the last claim has seen

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
        """Learn from a claim: its jobs in their order, the dead entries that it read, and a time before it began."""
        if plan.is_whole:
            # At full speed, large claims come before PostgreSQL has marked the dead entries of the last ones.
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
        last = jobs[-1] if len(jobs) == limit else None  # the claim did not read beyond it
        for rank, position in self._read.items():
            if last is None or rank < -last.priority:
                reached = recent
            elif rank == -last.priority:
                reached = min(recent, (last.run_at, last.id))
            else:
                continue
            self._read[rank] = max(position, reached)


class Tour:
    """Reads the left-out entries piece by piece, from the newest to the oldest, then begins again."""

    def __init__(self) -> None:
        self._end: datetime | None = None  # the end of the next piece; None: a tour begins
        self._density = self._newest = 1000.0  # entries per second of run_at, here and where a tour begins
        self._empty = 0  # pieces in a row that counted as empty: the next one is longer
        self._met = self._met_last = 0  # dead entries on this tour, and in the last piece
        self._asked = self._since = time.monotonic()  # times of the last claim, and of the last one that read a piece
        self._paused = False  # every other claim reads no piece: it tells how many dead entries a claim reads anyway
        self._usual = 0

    def next(self, newest: datetime) -> Piece | None:
        now = time.monotonic()
        size = min(max(2 * (now - self._asked) * _RATE, _LEAST), _MOST)  # frequent claims read short pieces
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
        """Return True if a whole tour has met no dead entries."""
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
    """The time at which a pass over an index in order of time may begin. Before it there are only dead entries, and
    jobs that came late. For these, some passes read the whole index: the more often, the fewer dead entries there are.
    """

    def __init__(self) -> None:
        self._after: datetime | None = None
        self._next_whole = 0.0

    @property
    def after(self) -> datetime | None:
        """Return the time at which to begin. None: read the whole index, which has few dead entries."""
        return self._after

    @property
    def after_now_and_then(self) -> datetime | None:
        """Return the same, but None also when it is time to read the whole index."""
        return None if time.monotonic() >= self._next_whole else self._after

    def learn(self, after: datetime | None, dead: int, at: datetime, *, done: bool) -> None:
        """Learn from a pass: where it began, the dead entries that it met, and a time before it. `done`: no job that is
        due is left."""
        if after is None:
            self._next_whole = time.monotonic() + dead / _WHOLE_RATE
            if dead < MANY:
                self._after = None
                return
        if done:
            reached = at - SLACK
            self._after = reached if self._after is None else max(self._after, reached)
