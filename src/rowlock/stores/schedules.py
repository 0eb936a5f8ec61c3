"""Schedules and their fires: how a store changes them. Every change is one transaction, the same on every store: lock
the schedules, decide, insert the jobs, write the schedules, the fires and the audit.

The steps of such a transaction are yielded by `changing`; a store answers them. So the order and every check are here,
once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from msgspec import Struct, structs

from rowlock.core import codec
from rowlock.core.job import NewJob
from rowlock.core.schedules import (
    DEFINED,
    Fire,
    Fired,
    Schedule,
    ScheduleName,
    State,
    definition_data,
    read_definition,
)
from rowlock.core.times import micros, moment
from rowlock.errors import InvalidInput, StoreBusy
from rowlock.stores.base import Enqueued
from rowlock.stores.records import Entry

log = logging.getLogger("rowlock")

_CASED = 0x1F000  # no letter from here on has capitals; to look through all of Unicode would take ten times as long
FIRES_KEPT = 90 * 86_400.0  # seconds for which a fire without a job is kept

TIMES = ("paused_at", "resumed_at", "upto", "next_run_at", "last_run_at", "created", "updated")
COLUMNS = (
    "id", "name", "scope", "scope_id", "topic", "definition", "revision", "owner", "absent", "paused_at", "resumed_at",
    "paused_by", "pause_reason", "upto", "next_run_at", "last_run_at", "last_job_id", "zone_data", "created", "updated",
)  # fmt: skip
_OWN = tuple(name for name in Schedule.__struct_fields__ if name not in DEFINED)  # the fields that have columns


class UnreadableSchedule(Struct, frozen=True, kw_only=True):
    """A schedule that this release can't read, because a newer release has written it. `definition`: as it is
    stored."""

    id: str
    name: str
    scope: str | None
    scope_id: str | None
    topic: str
    owner: str | None
    absent: bool
    definition: str


# Return the audit of deleting a schedule that this release can't read, or raise why it must stay.
DeleteUnreadable = Callable[[UnreadableSchedule], Entry]


class Which(Struct, frozen=True):
    """The schedules to lock: those with these ids, the one with this name, or at most `due` schedules of which a time
    has come. Due schedules are left out if another transaction has locked them, or if they are in `skip`. Locked
    schedules that this release can't read stay as they are, unless `delete_unreadable` is given."""

    ids: tuple[str, ...] | None = None
    name: ScheduleName | None = None
    due: int = 0
    skip: tuple[str, ...] = ()
    delete_unreadable: DeleteUnreadable | None = None


class ScheduleChange(Struct, frozen=True):
    """`schedule`: the new state; None: delete the schedule and its fires."""

    schedule: Schedule | None
    fires: Sequence[Fire] = ()
    entries: Sequence[Entry] = ()


class Decided(Struct, frozen=True):
    """`schedule` after the change; None: it is gone. `fired`: the outcome of its times, without the times that had a
    job before."""

    schedule: Schedule | None
    fired: list[Fired]


class Read(NamedTuple):
    schedules: list[Schedule]
    unreadable: list[UnreadableSchedule]


# Return the change of a locked schedule; None: no change. The argument is None if there is no schedule with the name.
# It is called inside the transaction: it may raise, and must not wait.
Decide = Callable[[Schedule | None, datetime], ScheduleChange | None]


class ScheduleFilter(Struct, frozen=True, kw_only=True):
    """`pattern`: a regular expression for a part of the name, by `in_any_case`. `absent`: declared by code that has
    gone. `zone_data`: its next time was found by older time zone data than this version."""

    ids: tuple[str, ...] | None = None
    name: str | None = None
    topic: str | None = None
    scope: str | None = None
    scope_id: str | None = None
    state: State | None = None
    pattern: str | None = None
    owner: str | None = None
    absent: bool | None = None
    zone_data: str | None = None


def in_any_case(text: str) -> str:
    """Return a regular expression that finds the text, in capitals or not. PostgreSQL and Python read it alike.

    Neither database can fold the case of all letters: SQLite knows A to Z only, PostgreSQL only the letters of its
    collation. So each letter becomes the list of its forms. A letter that folds to two (ß, to ss) stays one letter."""
    return "".join(_any_form(letter) for letter in text)


def _any_form(letter: str) -> str:
    forms = _forms().get(_folded(letter), letter)
    if len(forms) > 1:
        return f"[{forms}]"
    return f"\\{letter}" if letter.isascii() and not letter.isalnum() else letter


@cache
def _forms() -> dict[str, str]:
    """Return the letters that differ in their case only, by their folded form."""
    found: dict[str, list[str]] = {}
    for letter in map(chr, range(_CASED)):
        if letter != (folded := _folded(letter)):
            found.setdefault(folded, [folded]).append(letter)
    return {folded: "".join(letters) for folded, letters in found.items()}


def _folded(letter: str) -> str:
    folded = letter.casefold()
    return folded if len(folded) == 1 else min(letter.lower(), letter, key=len)


# ── The steps of a change ──


class Lock(NamedTuple):
    """Answered by the time, and a Read."""

    which: Which


class Look(NamedTuple):
    """Answered by the times (schedule, microseconds) that have a job. And by the number of live jobs in each line,
    counted up to three."""

    times: list[tuple[str, int]]
    lines: list[str]


class Seen(NamedTuple):
    fired: set[tuple[str, int]]
    live: dict[str, int]


class InsertJobs(NamedTuple):
    """Answered as Store.insert. A line is not advanced before the commit."""

    jobs: list[NewJob]


class WriteSchedules(NamedTuple):
    """`new`: schedules without a row; `old`: schedules that have one. Answered by the number of new rows, and by the
    number of fires with a job that were written."""

    new: list[Schedule]
    old: list[Schedule]
    gone: list[str]
    fires: list[tuple[str, Fired]]
    entries: list[Entry]


Step = Lock | Look | InsertJobs | WriteSchedules
Steps = Generator[Step, Any, list[Decided]]


def changing(which: Which, decide: Decide, unreadable: Callable[[str], None] = lambda schedule_id: None) -> Steps:
    """Yield the steps of a change, and return its outcome. `unreadable`: called with the ids of locked schedules that
    this release can't read, and that stay."""
    now, (found, strange) = yield Lock(which)
    if strange and which.delete_unreadable is not None:
        entries = [which.delete_unreadable(one) for one in strange]
        yield WriteSchedules([], [], [one.id for one in strange], [], entries)
        return [Decided(None, []) for _ in strange]
    if strange and which.name is not None:
        problem = (
            "is that of a schedule which this release can't read: delete it, use the release that wrote it, or take "
            "another name"
        )
        raise InvalidInput("name", "unreadable", problem)
    for one in strange:
        unreadable(one.id)
    asked: Sequence[Schedule | None] = found or ([None] if which.name is not None else [])
    decided = [(old, change) for old in asked if (change := decide(old, now)) is not None]
    if not decided:
        return []
    fired = yield from _fire(now, [change for _, change in decided])
    after = [
        None if change.schedule is None else _noted(change.schedule, made)
        for (_, change), made in zip(decided, fired, strict=True)
    ]
    pairs = list(zip(decided, after, fired, strict=True))
    fires = [(new.id, one) for _, new, made in pairs for one in made if new is not None]
    new, jobs = yield WriteSchedules(
        [one for (old, _), one, _ in pairs if old is None and one is not None],
        [one for (old, _), one, _ in pairs if old is not None and one is not None],
        [old.id for (old, _), one, _ in pairs if old is not None and one is None],
        fires,
        [entry for _, change in decided for entry in change.entries],
    )
    if new != sum(1 for (old, _), one, _ in pairs if old is None and one is not None):
        raise StoreBusy("another transaction has just put a schedule with the same name: try again")
    if jobs != sum(one.job_id is not None for _, one in fires):
        raise StoreBusy("another transaction has just made a job for the same time of a schedule: try again")
    return [Decided(one, made) for one, made in zip(after, fired, strict=True)]


def _fire(now: datetime, changes: Sequence[ScheduleChange]) -> Generator[Step, Any, list[list[Fired]]]:
    """Insert the jobs. Return the outcome of the times of each schedule."""
    fires = [
        (n, change.schedule.id, fire)
        for n, change in enumerate(changes)
        if change.schedule is not None
        for fire in change.fires
    ]
    times = [(schedule, micros(fire.fire_at)) for _, schedule, fire in fires if fire.job is not None]
    lines = sorted({fire.job.line for _, _, fire in fires if fire.job and fire.job.line and fire.room is not None})
    seen: Seen = (yield Look(times, lines)) if times else Seen(set(), {})
    fires = [one for one in fires if (one[1], micros(one[2].fire_at)) not in seen.fired]
    making = [fire for _, _, fire in fires if _has_room(fire, seen.live)]
    answers: list[Enqueued] = (yield InsertJobs([one.job for one in making if one.job])) if making else []
    made = {id(fire): answer for fire, answer in zip(making, answers, strict=True)}
    fired: list[list[Fired]] = [[] for _ in changes]
    for n, _, fire in fires:
        fired[n].append(_fired(now, fire, made.get(id(fire))))
    return fired


def _has_room(fire: Fire, live: dict[str, int]) -> bool:
    """Return True if the time makes a job. Then count the job in its line, for the times that follow."""
    if fire.job is None:
        return False
    if fire.room is None or fire.job.line is None:
        return True
    there = live.get(fire.job.line, 0)
    live[fire.job.line] = there + 1
    return there < fire.room


def _fired(now: datetime, fire: Fire, answer: Enqueued | None) -> Fired:
    same: Any = {"fire_at": fire.fire_at, "at": now, "kind": fire.kind}
    if fire.job is None:
        return Fired(reason=fire.reason, detail=fire.detail, **same)
    if answer is None:
        detail = "the last job is not over" if fire.room == 1 else "a job of this schedule waits for its turn already"
        return Fired(reason="live", detail=detail, **same)
    if answer.existing:
        return Fired(reason="live", detail=f"job {answer.id} is not over", **same)
    return Fired(job_id=answer.id, **same)


def _noted(schedule: Schedule, fired: Sequence[Fired]) -> Schedule:
    """Return the schedule with its newest run."""
    made = [one for one in fired if one.job_id is not None and one.kind != "backfill"]
    if not made:
        return schedule
    newest = max(made, key=lambda one: one.fire_at)
    if schedule.last_run_at is not None and newest.fire_at < schedule.last_run_at:
        return schedule
    return structs.replace(schedule, last_run_at=newest.fire_at, last_job_id=newest.job_id)


# ── Rows ──


def row_of(schedule: Schedule) -> dict[str, Any]:
    """Return the columns, times as microseconds."""
    row = {name: getattr(schedule, name) for name in COLUMNS if name != "definition"}
    row |= {name: None if row[name] is None else micros(row[name]) for name in TIMES}
    return row | {"definition": codec.encode(definition_data(schedule), "definition")}


def schedules_of(rows: Iterable[Mapping[str, Any]]) -> Read:
    """Return the schedules of rows, which have times as microseconds and definitions as text. A schedule that this
    release can't read does no harm to the others."""
    found = Read([], [])
    for row in rows:
        try:
            found.schedules.append(_schedule_of(row))
        except (InvalidInput, TypeError, KeyError, ValueError, RecursionError) as error:
            log.error("the schedule %s (%s) can't be read: %s", row["name"], row["id"], error)
            found.unreadable.append(_unreadable_of(row))
    return found


def _unreadable_of(row: Mapping[str, Any]) -> UnreadableSchedule:
    known = {name: row[name] for name in ("id", "name", "scope", "scope_id", "topic", "owner", "definition")}
    return UnreadableSchedule(**known, absent=bool(row["absent"]))


def _schedule_of(row: Mapping[str, Any]) -> Schedule:
    own = {name: row[name] for name in _OWN} | {"absent": bool(row["absent"])}
    own |= {name: None if own[name] is None else moment(own[name]) for name in TIMES}
    definition = read_definition(codec.decode(row["definition"]))
    return Schedule(**own, **{name: getattr(definition, name) for name in DEFINED})


def fire_row(schedule_id: str, fired: Fired) -> dict[str, Any]:
    row = {"schedule_id": schedule_id, "fire_at": micros(fired.fire_at), "at": micros(fired.at)}
    return row | {name: getattr(fired, name) for name in ("kind", "job_id", "reason", "detail")}


def fired_of(row: Mapping[str, Any]) -> Fired:
    rest = {name: row[name] for name in ("kind", "job_id", "reason", "detail")}
    return Fired(fire_at=moment(row["fire_at"]), at=moment(row["at"]), **rest)
