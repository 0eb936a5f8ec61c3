"""A claim of topics that have limits: the questions of `claiming`, in their order. A store answers them.

Nothing is locked while they are asked. The last one, `Take`, claims the jobs only if no other claim of limited topics
was made since the first: such a claim, and a change of limits, adds one to `epoch`. In between, the number of jobs that
workers hold can only fall. So limits are exact, and a worker that stops in the middle delays no other worker.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, structs

from rowlock.core.job import Job, Lane
from rowlock.core.limits import (
    SECOND,
    Asked,
    Candidate,
    Counting,
    Fair,
    Limited,
    Put,
    Queue,
    Ring,
    Room,
    Row,
    Rule,
    Start,
    Turn,
    choose,
    fields_of,
    rules_of,
)
from rowlock.core.templates import read_lane
from rowlock.stores.base import Claimed

_SHARES = 250  # shares that one statement looks at
_LOOKS = 4  # such statements in one claim: a claim looks at a thousand shares at most, and the next one goes on
_SPARE = 2  # jobs read, as a multiple of the room: some shares have fewer jobs than others
_TRIES = 3
MOST_STARTS = 100_000  # starts that `limit_usage` reads at most


class Limits(Struct, frozen=True):
    """The stored limits. `turns`: by lane, the share that had the last turn. `paused`: topics that are not claimed."""

    epoch: int
    now: int
    turns: Mapping[str, Turn]
    limited: Mapping[str, Limited]
    puts: Sequence[Put]
    paused: frozenset[str]

    def rules(self) -> dict[str, tuple[Rule, ...]]:
        return {topic: rules_of(topic, one, self.puts) for topic, one in self.limited.items()}


class ReadLimits(Struct, frozen=True):
    """→ Limits."""


class ReadHeld(Struct, frozen=True):
    """→ topic, share and number of jobs that workers hold."""

    topics: Sequence[str]


class ReadStarts(Struct, frozen=True):
    """→ Start: the stored starts of these rates."""

    asked: Sequence[Asked]


class ReadRows(Struct, frozen=True):
    """→ for each lane, Candidate: its first jobs, at most as many as its limit."""

    lanes: Sequence[Lane]
    limits: Sequence[int]


class ReadShares(Struct, frozen=True):
    """→ the shares behind `after` that have jobs to start, in their order. The empty text stands for jobs without a
    share, and comes first; it is looked for only if `after` is None."""

    lane: Lane
    after: str | None
    limit: int


class ReadJobs(Struct, frozen=True):
    """→ by share, Candidate: its first jobs."""

    lane: Lane
    shares: Sequence[str]
    limit: int


class ReadOthers(Struct, frozen=True):
    """→ Candidate: the first jobs of all these lanes together, which have no limits."""

    lanes: Sequence[Lane]
    limit: int


class Take(Struct, frozen=True):
    """→ jobs, and the bytes of their payloads; None: another claim came first. `shares`: a job is only taken if it
    still has this share; the empty text: no share; None: its share doesn't matter. `starts`: what to store of rates."""

    epoch: int
    ids: Sequence[str]
    shares: Sequence[str | None]
    starts: Sequence[Counting]
    turns: Mapping[str, Turn]


Ask = ReadLimits | ReadHeld | ReadStarts | ReadRows | ReadShares | ReadJobs | ReadOthers | Take


class Taken(Struct, frozen=True):
    """`next_start`: seconds until a rate lets a job start. `again`: it pays to claim again at once: another claim came
    first, or there are more shares than were looked at. `more`: other workers may start jobs, too. `limited`: some of
    the lanes have limits."""

    jobs: list[Job] = []
    size: int = 0
    next_start: float | None = None
    again: bool = False
    more: bool = False
    limited: bool = True


def claiming(lanes: Sequence[Lane], limit: int) -> Generator[Ask, Any, Taken]:
    """Claim at most `limit` jobs of those lanes that have limits."""
    for _ in range(_TRIES):
        taken = yield from _claiming(lanes, limit)
        if taken is not None:
            return taken
    return Taken(again=True)


def _claiming(lanes: Sequence[Lane], limit: int) -> Generator[Ask, Any, Taken | None]:
    stored: Limits = yield ReadLimits()
    rules = stored.rules()
    mine = [lane for lane in lanes if lane.topic in rules and lane.topic not in stored.paused]
    if not mine:
        return Taken(limited=any(lane.topic in rules for lane in lanes))
    names = {rule.name for lane in mine for rule in rules[lane.topic]}
    related = sorted(topic for topic, known in rules.items() if any(rule.name in names for rule in known))
    room = Room(rules, (yield ReadHeld(related)), stored.now)
    turns = {key: turn for key, turn in stored.turns.items() if read_lane(key).topic in rules}
    queues: list[Queue] = []
    rings: dict[str, Ring] = {}
    again = False
    rows: dict[Lane, int] = {}
    # Many topics may share a limit: one statement asks for all of them.
    yield from _know(room, dict.fromkeys(lane.topic for lane in mine), [None], fields=False)
    for lane in mine:
        if room.free(lane.topic, None, fields=False) <= 0:
            continue
        if fields_of(rules[lane.topic]):
            ring, more = yield from _ring(room, lane, rules[lane.topic], turns.get(str(lane), Turn()), limit)
            again = again or more
            if ring is not None:
                queues.append(ring)
                rings[str(lane)] = ring
        else:
            rows[lane] = min(limit, room.free(lane.topic, None))
    if rows:
        found_rows = yield ReadRows(list(rows), list(rows.values()))
        queues += [Row(room, lane.topic, jobs) for lane, jobs in zip(rows, found_rows, strict=True)]
    others: list[Candidate] = []
    plain = [lane for lane in lanes if lane.topic not in rules]
    if any(queue.peek() is not None for queue in queues) and plain:
        others = yield ReadOthers(plain, limit)
    picks = choose(room, queues, others, limit)
    for topic, share in {(pick.topic, pick.share) for pick in picks}:
        room.free(topic, share)  # notes in room.next_at when a rate that these have used up lets the next job start
    turns |= {key: ring.turn for key, ring in rings.items()}
    next_start = None if room.next_at is None else max(0, room.next_at - stored.now) / SECOND
    if not picks:
        if turns != stored.turns:  # the next claim looks at the shares behind these
            yield Take(stored.epoch, [], [], [], turns)
        return Taken(next_start=next_start, again=again)
    ringed = {read_lane(key).topic for key in rings}
    shares = [pick.share or "" if pick.topic in ringed else None for pick in picks]
    found: tuple[list[Job], int] | None = yield Take(
        stored.epoch, [pick.job.id for pick in picks], shares, room.counted(picks), turns
    )
    if found is None:
        return None
    jobs, size = found
    again = again or len(jobs) < len(picks)  # other connections have locked or changed the rest
    return Taken(jobs, size, next_start, again, any(queue.peek() is not None for queue in queues))


def _know(
    room: Room, topics: Iterable[str], shares: Sequence[str | None], *, fields: bool = True
) -> Generator[Ask, Any, None]:
    if asked := sorted({one for topic in topics for one in room.unknown(topic, shares, fields=fields)}):
        room.learn(asked, (yield ReadStarts(asked)))


def _ring(
    room: Room, lane: Lane, rules: Sequence[Rule], turn: Turn, limit: int
) -> Generator[Ask, Any, tuple[Ring | None, bool]]:
    """Return the shares that may start jobs, in the order of their turns, and whether some shares were not looked
    at."""
    fair = next((rule.limit for rule in rules if isinstance(rule.limit, Fair)), None)
    free: list[str] = []
    # The share whose turn it was may have some more jobs to start; else it comes last.
    behind = turn.share
    if turn.left > 0 and turn.share is not None:
        free = yield from _free(room, lane, [turn.share])
    wrapped = behind is None
    looked = turn.share
    unlooked = False
    for _ in range(_LOOKS):
        found: list[str] = yield ReadShares(lane, behind, _SHARES)
        if wrapped and turn.share is not None:
            found = [share for share in found if share <= turn.share]
        free += [share for share in (yield from _free(room, lane, found)) if share not in free]
        looked = found[-1] if found else looked
        if len(free) >= limit:
            break
        if len(found) >= _SHARES:  # one share more if some jobs have no share
            behind = found[-1]
        elif wrapped:
            break
        else:
            wrapped, behind = True, None
    else:
        unlooked = True
    if not free:
        return (Ring(room, lane.topic, [], Turn(looked), fair), True) if unlooked else (None, False)
    chosen = free[: limit + 1]  # one share more: the share whose turn it was may have no job
    weight = max([1, *fair.weights.values()]) if fair is not None else 1
    most = min(limit, max(weight, _SPARE * limit // len(chosen) + 1))
    jobs: Mapping[str, Sequence[Candidate]] = yield ReadJobs(lane, chosen, most)
    full = any(len(jobs.get(share, ())) == most for share in chosen) and most < limit
    return Ring(room, lane.topic, [(share, jobs.get(share, ())) for share in chosen], turn, fair), full or unlooked


def _free(room: Room, lane: Lane, shares: Sequence[str]) -> Generator[Ask, Any, list[str]]:
    yield from _know(room, [lane.topic], [share or None for share in shares])
    return [share for share in shares if room.free(lane.topic, share or None) > 0]


def add_limited(taken: Taken, claimed: Claimed) -> Claimed:
    """Return a claim together with the jobs of limited topics that came before or after it."""
    return structs.replace(
        claimed,
        jobs=sorted([*taken.jobs, *claimed.jobs], key=lambda job: (-job.priority, job.run_at, job.id)),
        contended=claimed.contended or taken.again,
        size=claimed.size + taken.size,
        start=True if taken.jobs else None,
        limited=taken.limited,
        next_start=taken.next_start,
    )


class NewShare(NamedTuple):
    """The new share of a job that has not changed since `updated`."""

    id: str
    updated: datetime
    share: str | None


class Usage(Struct, frozen=True):
    """The use of all limits: `held`: jobs that workers hold, by topic and share; `starts`: the newest starts of rates;
    `waiting`: jobs of limited topics that are due, counted up to a bound."""

    stored: Limits
    held: Sequence[tuple[str, str | None, int]]
    starts: Sequence[Start]
    waiting: Sequence[tuple[str, int]]


# ── Stored form ──

_decode_limited = msgspec.json.Decoder(Limited).decode
_decode_put = msgspec.json.Decoder(Put).decode


def read_limits(
    epoch: int, now: int, turns: str, limited: Mapping[str, str], puts: Sequence[str], paused: Sequence[str]
) -> Limits:
    """Return the limits from stored texts, which are JSON."""
    return Limits(
        epoch,
        now,
        msgspec.json.decode(turns, type=dict[str, Turn]),
        {topic: _decode_limited(data) for topic, data in limited.items()},
        [_decode_put(data) for data in puts],
        frozenset(paused),
    )


def turns_text(turns: Mapping[str, Turn]) -> str:
    """Return the turns as JSON, without the empty ones."""
    return msgspec.json.encode({key: turn for key, turn in turns.items() if turn != Turn()}).decode()
