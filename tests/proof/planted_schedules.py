"""Plants: what must not happen to schedules and their nominal times. See S14."""

from collections.abc import Callable
from typing import Any

from msgspec import structs

from tests.proof.history import RowChange
from tests.proof.lives import Life, Row
from tests.proof.planting import HOUR, STRANGER, Garden, breaks, first
from tests.proof.witness import FIRES, SCHEDULES


def _life(garden: Garden, where: Callable[[Life, Row], Any] = lambda life, row: True) -> tuple[Life, Row]:
    """Return a job that an existing schedule has made, and its fire."""
    for fire in garden.history.fires:
        for life in garden.world.by_id.get(fire["job_id"], ()):
            if where(life, fire):
                return life, fire
    return first((), lambda _: True)  # Barren


def _alter(garden: Garden, where: Callable[[RowChange], Any], **columns: Any) -> None:
    garden.history.changes = [
        structs.replace(one, before=one.before and one.before | columns, after=one.after and one.after | columns)
        if where(one)
        else one
        for one in garden.history.changes
    ]


def _of_job(life: Life) -> Callable[[RowChange], bool]:
    return lambda change: (change.after or change.before or {}).get("id") == life.id


def _swap_fire(garden: Garden, fire: Row, **columns: Any) -> None:
    fires = garden.history.fires
    fires[fires.index(fire)] = fire | columns


@breaks("S14", "second job")
def two_jobs_were_made_for_one_time(garden: Garden) -> None:
    life, fire = _life(garden)
    other, _ = _life(garden, lambda one, row: one is not life and row is not fire)
    _alter(garden, _of_job(other), schedule_id=fire["schedule_id"], fire_at=fire["fire_at"])


@breaks("S14", "second job")
def a_schedule_that_is_gone_had_made_two_jobs_for_one_time(garden: Garden) -> None:
    life, _ = _life(garden)
    other, _ = _life(garden, lambda one, _: one is not life)
    _alter(garden, lambda one: _of_job(life)(one) or _of_job(other)(one), schedule_id=STRANGER, fire_at=HOUR)


@breaks("S14", "two records")
def a_time_has_two_records(garden: Garden) -> None:
    garden.history.fires.append(first(garden.history.fires, lambda _: True))


@breaks("S14", "neither a job nor a reason")
def a_time_has_neither_job_nor_reason(garden: Garden) -> None:
    fire = first(garden.history.fires, lambda one: one["job_id"] is None)
    _swap_fire(garden, fire, reason=None)


@breaks("S14", "never was")
def a_time_names_a_job_that_never_was(garden: Garden) -> None:
    fire = first(garden.history.fires, lambda one: one["job_id"] is None)
    _swap_fire(garden, fire, reason=None, job_id=STRANGER)


@breaks("S14", "does not know")
def a_job_does_not_know_its_time(garden: Garden) -> None:
    life, _ = _life(garden)
    _alter(garden, _of_job(life), fire_at=HOUR)


@breaks("S14", "no record says so")
def a_job_of_a_schedule_that_no_record_knows(garden: Garden) -> None:
    _, fire = _life(garden)
    _swap_fire(garden, fire, job_id=None, reason="missed")


@breaks("S14", "is gone, and its record")
def a_record_outlived_its_schedule(garden: Garden) -> None:
    fire = first(garden.history.fires, lambda one: one["job_id"] is None)
    garden.history.schedules = [one for one in garden.history.schedules if one["id"] != fire["schedule_id"]]


@breaks("S14", "has lost its time to")
def a_time_was_given_to_another_job(garden: Garden) -> None:
    _, fire = _life(garden)
    key = fire["schedule_id"], fire["fire_at"]
    made = first(
        garden.history.changes,
        lambda one: one.table == FIRES and one.after and (one.after["schedule_id"], one.after["fire_at"]) == key,
    )
    assert made.after is not None
    before = made.after | {"job_id": STRANGER, "reason": None}
    changes, last = garden.history.changes, garden.history.changes[-1]
    changes.append(structs.replace(made, seq=last.seq + 1, op="update", before=before))


@breaks("S14", "has no record")
def a_time_was_decided_and_not_recorded(garden: Garden) -> None:
    fire = first(garden.history.fires, lambda one: one["kind"] == "schedule" and one["job_id"] is None)
    garden.history.fires.remove(fire)


@breaks("S14", "has no record")
def a_schedule_moved_on_too_far(garden: Garden) -> None:
    """`upto` passed a nominal time that had not come yet."""
    there = {one["id"] for one in garden.history.schedules}
    change = first(
        garden.history.changes,
        lambda one: one.table == SCHEDULES and one.before and one.after and one.before["id"] in there,
    )
    assert change.after is not None
    changes = garden.history.changes
    later = change.after | {"upto": change.after["upto"] + 400 * 24 * HOUR}
    if "cron" in later["definition"]["when"]:
        later |= {"upto": change.after["upto"] + 60 * 24 * HOUR}
    changes[changes.index(change)] = structs.replace(change, after=later)
