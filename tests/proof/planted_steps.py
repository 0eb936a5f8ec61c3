"""Plants: what must not happen to the stored steps."""

from collections.abc import Callable
from typing import Any

from msgspec import structs

from tests.proof.history import RowChange, StepRun
from tests.proof.planting import HOUR, Barren, Garden, breaks
from tests.proof.witness import JOBS, STEPS

Where = Callable[[RowChange], Any]


def _find(garden: Garden, where: Where) -> RowChange:
    for change in garden.history.changes:
        if change.table == STEPS and where(change):
            return change
    raise Barren


def _swap(garden: Garden, change: RowChange, **fields: Any) -> None:
    changes = garden.history.changes
    changes[changes.index(change)] = structs.replace(change, **fields)


def _state(row: dict[str, Any] | None) -> str | None:
    return None if row is None else str(row["state"])


def _ended(change: RowChange) -> bool:
    return change.after is not None and change.after["state"] == "succeeded"


@breaks("S21")
def a_stored_result_was_written_again(garden: Garden) -> None:
    change = _find(garden, lambda one: one.before is not None and _ended(one))
    assert change.before is not None
    _swap(garden, change, before=change.before | {"state": "succeeded"})


@breaks("S21")
def a_step_was_marked_as_running_after_its_end(garden: Garden) -> None:
    change = _find(garden, _ended)
    assert change.after is not None
    again = structs.replace(change, op="update", before=change.after, after=change.after | {"state": "running"})
    changes = garden.history.changes
    changes.insert(changes.index(change) + 1, again)


@breaks("S21")
def a_result_vanished(garden: Garden) -> None:
    change = _find(garden, _ended)
    assert change.after is not None
    last = garden.history.changes[-1]
    gone = structs.replace(
        last, seq=last.seq + 1, tx=last.tx + 1, table=STEPS, op="delete", before=change.after, after=None
    )
    garden.history.changes.append(gone)


@breaks("S21")
def a_step_of_an_older_run(garden: Garden) -> None:
    change = _find(garden, lambda one: one.after is not None and one.after["version"] > 1)
    assert change.after is not None
    _swap(garden, change, after=change.after | {"version": change.after["version"] - 1})


@breaks("S21")
def a_step_of_a_job_that_nobody_held(garden: Garden) -> None:
    change = _find(garden, lambda one: one.after is not None)
    assert change.after is not None
    for n, one in enumerate(garden.history.changes):
        if one.table == JOBS and one.after and one.after["id"] == change.after["job_id"] and one.seq < change.seq:
            garden.history.changes[n] = structs.replace(one, after=one.after | {"status": "pending"})


@breaks("S21")
def a_step_that_did_not_mark_its_job(garden: Garden) -> None:
    change = _find(garden, lambda one: one.after is not None)
    _swap(garden, change, tx=10**9)


@breaks("S21")
def a_requeue_kept_a_step_that_failed(garden: Garden) -> None:
    requeues = {step.tx for life in garden.world.lives for step in life.steps if step.move == "requeue"}
    gone = _find(garden, lambda one: one.op == "delete" and one.tx in requeues and _state(one.before) != "succeeded")
    garden.history.changes.remove(gone)


@breaks("S21")
def a_requeue_dropped_a_result_that_it_should_keep(garden: Garden) -> None:
    requeues = {step.tx: step for life in garden.world.lives for step in life.steps if step.move == "requeue"}
    gone = _find(garden, lambda one: one.op == "delete" and one.tx in requeues and _state(one.before) == "succeeded")
    step = requeues[gone.tx]
    assert step.before is not None
    entry = {name: value for name, value in step.entries[0].items() if name not in ("from_step", "keep_steps")}
    assert step.after is not None
    history = [*step.after["history"][:-1], entry]
    garden._replace(step.seq, after=step.after | {"history": history})
    for seq in {step.first, step.seq}:
        change = next(one for one in garden.history.changes if one.seq == seq)
        same = {"payload": step.before["payload"]}
        garden._replace(seq, before=(change.before or {}) | same, after=(change.after or {}) | same)


@breaks("S21")
def steps_that_outlived_their_job(garden: Garden) -> None:
    removed = {step.tx for life in garden.world.lives for step in life.steps if step.move in ("delete", "prune")}
    garden.history.changes.remove(_find(garden, lambda one: one.op == "delete" and one.tx in removed))


@breaks("S21")
def steps_of_which_their_job_knows_nothing(garden: Garden) -> None:
    change = _find(garden, lambda one: one.op == "insert")
    assert change.after is not None
    for n, one in enumerate(garden.history.changes):
        if one.table == JOBS and one.after and (one.tx, one.after["id"]) == (change.tx, change.after["job_id"]):
            garden.history.changes[n] = structs.replace(one, after=one.after | {"step": None})


@breaks("S21")
def a_finished_step_began_again(garden: Garden) -> None:
    change = _find(garden, _ended)
    assert change.after is not None
    row = change.after
    removed = [
        one.at
        for one in garden.history.changes
        if one.table == STEPS and one.after is None and one.before and one.seq > change.seq
        if one.before["job_id"] == row["job_id"]
    ]
    begun = change.at + (min(removed, default=change.at + HOUR) - change.at) // 2
    if begun - change.at < 10_000:
        raise Barren
    garden.history.step_runs.append(StepRun(row["job_id"], row["version"] + 1, row["name"], row["n"], begun))


@breaks("S21")
def a_cancel_timed_out_during_a_step_that_is_not_cancelable(garden: Garden) -> None:
    def marked(one: RowChange) -> bool:
        lives = garden.world.by_id.get((one.after or {}).get("job_id", ""), ())
        steps = [step for life in lives for step in life.steps if step.move == "cancel_timeout"]
        return any(
            one.after is not None and step.version == one.after["version"] and step.seq > one.seq for step in steps
        )

    change = _find(garden, lambda one: marked(one) and _state(one.after) not in ("succeeded", "failed"))
    assert change.after is not None
    key = (change.after["job_id"], change.after["name"])
    shield = {"state": "running", "cancelable": False}
    for n, one in enumerate(garden.history.changes):
        row = one.after or {}
        if one.table == STEPS and one.seq >= change.seq and (row.get("job_id"), row.get("name")) == key:
            before = one.before if one.seq == change.seq else {**(one.before or {}), **shield}
            garden.history.changes[n] = structs.replace(one, before=before, after=row | shield)
    for life in garden.world.by_id[change.after["job_id"]]:
        for step in life.steps:
            if step.move == "cancel_timeout":
                garden.alter(step, before={"locked_until": step.at + HOUR})


@breaks("S21")
def the_final_step_is_another_than_was_witnessed(garden: Garden) -> None:
    if not garden.history.steps:
        raise Barren
    garden.history.steps[0] = garden.history.steps[0] | {"result": "another"}
