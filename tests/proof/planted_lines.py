"""Plants: what must not happen in a line, and to a key that counts once."""

from typing import Any

from msgspec import structs

from tests.proof.history import RowChange
from tests.proof.lives import LIVE, Life, Row, Step
from tests.proof.planting import STRANGER, Barren, Garden, breaks


def _alter_all(garden: Garden, job_id: str, **columns: Any) -> None:
    """Change columns in every row of this job."""

    def altered(row: Row | None) -> Row | None:
        return row | columns if row is not None and row.get("id") == job_id and "line_seq" in row else row

    garden.history.changes = [
        structs.replace(one, before=altered(one.before), after=altered(one.after)) for one in garden.history.changes
    ]


def _second(garden: Garden) -> tuple[Life, Step]:
    """Return a job that was unblocked in a later transaction than its insert, because another job led its line."""
    return garden.step("unblock", lambda life, step: step.tx != life.steps[0].tx and step is life.steps[1])


def _changes_of(garden: Garden, step: Step) -> list[RowChange]:
    return [one for one in garden.history.changes if one.seq in (step.first, step.seq)]


@breaks("S15")
def two_jobs_led_one_line(garden: Garden) -> None:
    life, step = _second(garden)
    mine = _changes_of(garden, step)
    rest = [one for one in garden.history.changes if one not in mine]
    place = next(n for n, one in enumerate(rest) if one.seq == life.steps[0].seq) + 1
    garden.history.changes = [*rest[:place], *mine, *rest[place:]]


@breaks("S15")
def a_job_overtook_another(garden: Garden) -> None:
    """A job leads its line while a job in front of it is still blocked."""
    for life in garden.world.lives:
        for step in life.steps:
            if step.move != "unblock" or step.before is None or life.steps[0].after is None:
                continue
            for other in garden.world.lives:
                came = other.steps[0]
                after = came.after
                blocked = after is not None and after["line"] == step.before["line"] and len(other.steps) > 1
                if blocked and other is not life and came.seq < step.first < other.steps[1].first:
                    _alter_all(garden, other.id, line_seq=-1)
                    mine = [one for one in garden.history.changes if one.seq == came.seq]
                    rest = [one for one in garden.history.changes if one.seq != came.seq]
                    first = next(n for n, one in enumerate(rest) if one.seq == life.steps[0].seq)
                    garden.history.changes = [
                        structs.replace(one, seq=n + 1) for n, one in enumerate([*rest[:first], *mine, *rest[first:]])
                    ]
                    return
    raise Barren


@breaks("S15")
def a_job_came_into_its_line_and_led_at_once(garden: Garden) -> None:
    _, step = garden.step("enqueue", lambda _, step: (step.after or {})["line"] is not None)
    garden.alter(step, after={"status": "pending"})


@breaks("S15")
def a_requeued_job_kept_its_place(garden: Garden) -> None:
    _, step = garden.step("requeue", lambda _, step: (step.before or {})["line"] is not None)
    assert step.before is not None
    garden.alter(step, after={"line_seq": step.before["line_seq"]})


@breaks("S15")
def a_job_was_replaced_by_an_older_one(garden: Garden) -> None:
    life, step = garden.step("replace")
    assert step.before is not None
    line, place = step.before["line"], step.before["line_seq"]
    older = garden.life(
        lambda one: (
            one.id != life.id
            and (one.steps[0].after or {})["line"] == line
            and all(x.after is None or x.after.get("line_seq", -1) < place for x in one.steps)
        )
    )
    garden.entry(step, reason=f"replaced by {older.id}")


@breaks("S15")
def a_job_was_replaced_by_nobody(garden: Garden) -> None:
    _, step = garden.step("replace")
    garden.entry(step, reason=f"replaced by {STRANGER}")


@breaks("S15")
def a_key_counted_twice(garden: Garden) -> None:
    first, second = _two_with_keys_that_count_once(garden)
    made = first.steps[0].after
    assert made is not None
    for one in [one for one in garden.history.operations if second.id in one.ids]:
        garden.swap(one, detail=(one.detail or {}) | {name: made[name] for name in ("topic", "scope_id", "key")})
    garden.alter(second.steps[0], after={name: made[name] for name in ("topic", "scope_id", "key")})


def _two_with_keys_that_count_once(garden: Garden) -> tuple[Life, Life]:
    ids = {one.ids[0] for one in garden.history.operations if (one.detail or {}).get("once") and one.outcome == "ok"}
    lives = [life for life in garden.world.lives if life.id in ids and life.last.move != "delete"]
    if len(lives) < 2:
        raise Barren
    return lives[0], lives[1]


@breaks("L5")
def a_job_was_blocked_for_ever(garden: Garden) -> None:
    rows = garden.history.jobs
    led = {row["line"] for row in rows.values() if row["status"] in LIVE}
    for job_id, row in rows.items():
        if row["line"] is not None and row["line"] not in led:
            rows[job_id] = row | {"status": "blocked"}
            return
    raise Barren
