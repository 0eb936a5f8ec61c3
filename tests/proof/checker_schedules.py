"""S14: schedules and their nominal times, by brute force (tests/core/cron_oracle.py)."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from tests.core.cron_oracle import Fields, Walk
from tests.proof.lives import Row, World
from tests.proof.witness import FIRES, SCHEDULES

Found = Iterator[tuple[str | None, str]]
_KEPT = 90 * 86_400 * 1_000_000  # microseconds for which the record of a time without a job is kept
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def s14_one_job_per_time_and_every_time_is_on_record(world: World) -> Found:
    yield from _one_job(world)
    yield from _both_ways(world)
    yield from _kept(world)
    yield from _on_record(world)


def _one_job(world: World) -> Found:
    """A nominal time made at most one job, counting deleted schedules and removed jobs."""
    made: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for life in world.lives:
        row = life.steps[0].after or {}
        if row.get("schedule_id") is not None:
            made[row["schedule_id"], row["fire_at"]].append(life.id)
    for (schedule_id, at), ids in made.items():
        if len(ids) > 1:
            yield ids[1], f"is the second job of {schedule_id} at {_text(at)}, after {ids[0]}"


def _both_ways(world: World) -> Found:
    """Each fire names its job, and each job names its schedule and time."""
    fires: dict[tuple[str, int], Row] = {}
    for fire in world.history.fires:
        key = fire["schedule_id"], fire["fire_at"]
        if key in fires:
            yield None, f"{key[0]} has two records of {_text(key[1])}"
        fires[key] = fire
        if (fire["job_id"] is None) == (fire["reason"] is None):
            yield fire["job_id"], f"{key[0]} at {_text(key[1])} has neither a job nor a reason, or both"
        if fire["job_id"] is not None:
            lives = world.by_id.get(fire["job_id"], [])
            if not lives:
                yield fire["job_id"], f"is named by {key[0]} at {_text(key[1])}, and never was"
            elif all((_row(life.steps[0].after)) != key for life in lives):
                yield fire["job_id"], f"does not know that {key[0]} has made it at {_text(key[1])}"
    there = {row["id"] for row in world.history.schedules}
    for life in world.lives:
        key_ = _row(life.steps[0].after)
        if key_[0] in there and fires.get(key_, {}).get("job_id") != life.id:
            yield life.id, f"was made by {key_[0]} at {_text(key_[1])}, and no record says so"
    for key in fires:
        if key[0] not in there:
            yield None, f"{key[0]} is gone, and its record of {_text(key[1])} is not"


def _row(row: Row | None) -> tuple[str, int]:
    return (row or {}).get("schedule_id") or "", (row or {}).get("fire_at") or 0


def _kept(world: World) -> Found:
    """A nominal time that has a job keeps that job."""
    for change in world.history.changes:
        if change.table != FIRES or change.before is None or change.before["job_id"] is None:
            continue
        if change.after is not None and change.after["job_id"] != change.before["job_id"]:
            yield change.before["job_id"], f"has lost its time to {change.after['job_id']} (#{change.seq})"
        gone = change.before["schedule_id"] not in {row["id"] for row in world.history.schedules}
        if change.after is None and not gone:
            yield change.before["job_id"], f"has lost its time (#{change.seq})"


def _on_record(world: World) -> Found:
    """Each nominal time that `upto` has passed is on record. The times are those of the definition before `upto`
    moved."""
    now = world.history.settings.get("now")
    there = {row["id"] for row in world.history.schedules}
    known = {(fire["schedule_id"], fire["fire_at"]) for fire in world.history.fires}
    summed_up = [  # after a long outage, the oldest record also stands for all earlier times
        (fire["schedule_id"], fire["fire_at"])
        for fire in world.history.fires
        if (fire["detail"] or "").startswith("so were all earlier ones")
    ]
    for change in world.history.changes:
        before, after = change.before, change.after
        if change.table != FIRES or after is not None or before is None or now is None:
            continue
        if now - before["at"] >= _KEPT and before["job_id"] is None:  # pruned
            known.add((before["schedule_id"], before["fire_at"]))
    for change in world.history.changes:
        before, after = change.before, change.after
        if change.table != SCHEDULES or before is None or after is None or before["id"] not in there:
            continue
        first = min((at for one, at in summed_up if one == before["id"] and at > before["upto"]), default=0)
        for at in nominal(before["definition"], before["upto"], after["upto"]):
            if (before["id"], at) not in known and at > first:
                yield None, f"{before['id']} has no record of {_text(at)}, and says that it is decided (#{change.seq})"


def nominal(definition: Row, after: int, until: int) -> list[int]:
    """Return the nominal times after `after` and not after `until`, in microseconds."""
    if until <= after:
        return []
    when = definition["when"]
    if "every" in when:
        step = round(when["every"] * 1_000_000)
        anchor = _micros(when["anchor"]) if when.get("anchor") else 0
        first = anchor - (anchor - after) // step * step
        found = list(range(first, until + 1, step))
    else:
        start, end = (_EPOCH + timedelta(microseconds=one) for one in (after, until + 1))
        walk = Walk(ZoneInfo(when["zone"]), start, end)
        found = [_micros(at) for at in walk.expect(Fields(when["cron"]), when["gap"], when["overlap"]).fires]
    low = _micros(definition["start"]) if definition.get("start") else after
    high = _micros(definition["end"]) if definition.get("end") else until
    return [at for at in found if after < at <= until and low <= at <= high]


def _micros(at: datetime | str) -> int:
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _text(at: int) -> str:
    return (_EPOCH + timedelta(microseconds=at)).isoformat()
