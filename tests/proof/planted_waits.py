"""Plants: what must not happen to signals, and to jobs that wait for them."""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import structs

from rowlock.core.waits import MAX_UNREAD, WAIT_TIMED_OUT
from tests.proof.history import Operation, RowChange
from tests.proof.lives import Life, Row, Step
from tests.proof.planting import HOUR, STRANGER, Barren, Garden, breaks, first
from tests.proof.witness import JOBS, NEVER, SIGNALS, STEPS

Where = Callable[[RowChange], Any]


def _all(garden: Garden, table: str, where: Where) -> Iterator[RowChange]:
    return (change for change in garden.history.changes if change.table == table and where(change))


def _find(garden: Garden, table: str, where: Where) -> RowChange:
    return first(_all(garden, table, where), lambda _: True)


def _swap(garden: Garden, change: RowChange, **fields: Any) -> None:
    changes = garden.history.changes
    changes[changes.index(change)] = structs.replace(change, **fields)


def _after(garden: Garden, change: RowChange, *more: RowChange) -> None:
    """Insert changes right after this one, in their own transaction."""
    place = garden.history.changes.index(change) + 1
    garden.history.changes[place:place] = [structs.replace(one, tx=10**9) for one in more]


def _sent(garden: Garden, where: Where = lambda _: True) -> RowChange:
    return _find(garden, SIGNALS, lambda one: one.op == "insert" and where(one))


def _read(garden: Garden, where: Where = lambda _: True) -> RowChange:
    return _find(garden, SIGNALS, lambda one: one.op == "update" and where(one))


def _row(change: RowChange) -> Row:
    assert change.after is not None
    return change.after


def _was(change: RowChange) -> Row:
    assert change.before is not None
    return change.before


def _is_wait(change: RowChange, state: str) -> bool:
    row = change.after
    return row is not None and row["name"].startswith("@signal:") and row["state"] == state


# ── What clients were told ──


@breaks("S22", "was acknowledged")
def a_signal_was_acknowledged_and_never_stored(garden: Garden) -> None:
    one = garden.operation(lambda one: one.verb == "signal")
    detail = (one.detail or {}) | {"data": "nobody has seen it"}
    garden.history.operations.append(structs.replace(one, outcome="ok", answer=None, detail=detail))


@breaks("S22", "0 were acknowledged")
def a_refused_signal_left_a_trace(garden: Garden) -> None:
    row = _row(_sent(garden))

    def is_it(one: Operation) -> bool:
        return one.verb == "signal" and one.ids == (row["job_id"],) and (one.detail or {})["data"] == row["data"]

    for one in [one for one in garden.history.operations if is_it(one)]:
        garden.swap(one, outcome="fail")


@breaks("S22", "was stored 2 times")
def a_signal_was_stored_twice(garden: Garden) -> None:
    one = _sent(garden)
    twin = _sent(garden, lambda other: other is not one and _row(other)["job_id"] == _row(one)["job_id"])
    same = {name: _row(one)[name] for name in ("name", "data")}
    _swap(garden, twin, after=_row(twin) | same)


# ── Stored signals ──


@breaks("S22", "was sent, and")
def a_signal_of_another_name_than_was_sent(garden: Garden) -> None:
    one = _sent(garden)
    _swap(garden, one, after=_row(one) | {"name": "another"})


@breaks("S22", "was sent, and")
def a_signal_that_nobody_stored(garden: Garden) -> None:
    garden.history.changes.remove(_sent(garden))


@breaks("S22", "is number")
def a_signal_with_a_wrong_number(garden: Garden) -> None:
    one = _sent(garden)
    _swap(garden, one, after=_row(one) | {"seq": 77})


@breaks("S22", "counts")
def a_signal_that_was_not_counted(garden: Garden) -> None:
    _, step = garden.step("signal")
    garden.alter(step, after={"signals": step.old["signals"]})


@breaks("S22", "was read before it came")
def a_signal_that_came_as_read(garden: Garden) -> None:
    one = _sent(garden)
    _swap(garden, one, after=_row(one) | {"wait": "@signal:go", "wait_n": 1})


@breaks("S22", "as one before")
def two_signals_with_one_id(garden: Garden) -> None:
    for one in _all(garden, SIGNALS, lambda one: one.op == "insert" and _row(one)["signal_id"]):
        row = _row(one)
        for two in _all(garden, SIGNALS, lambda two, row=row, one=one: two.op == "insert" and two.seq > one.seq):  # type: ignore[misc]
            removed = any(_was(gone) and _was(gone)["seq"] == row["seq"] for gone in _removals(garden, row["job_id"]))
            if _row(two)["job_id"] == row["job_id"] and not removed:
                _swap(garden, two, after=_row(two) | {"signal_id": row["signal_id"]})
                return
    raise Barren


def _removals(garden: Garden, job_id: str) -> list[RowChange]:
    return list(_all(garden, SIGNALS, lambda one: one.op == "delete" and _was(one)["job_id"] == job_id))


@breaks("S22", "unread signals")
def more_unread_signals_than_are_allowed(garden: Garden) -> None:
    one = _sent(garden)
    many = [
        structs.replace(one, after=_row(one) | {"seq": 1000 + n, "signal_id": None, "name": "many"})
        for n in range(MAX_UNREAD + 1)
    ]
    _after(garden, one, *many)


@breaks("S22", "and again")
def a_signal_was_read_twice(garden: Garden) -> None:
    one = _read(garden)
    _after(garden, one, structs.replace(one, before=one.after, after=_row(one) | {"wait_n": 9}))


@breaks("S22", "which is older")
def a_signal_was_read_before_an_older_one(garden: Garden) -> None:
    for one in _all(garden, SIGNALS, lambda one: one.op == "update"):
        row = _was(one)
        for two in _all(garden, SIGNALS, lambda two, one=one: two.op == "insert" and two.seq < one.seq):  # type: ignore[misc]
            younger = _row(two)
            if younger["job_id"] == row["job_id"] and younger["name"] == row["name"] and younger["seq"] > row["seq"]:
                read = {"wait": _row(one)["wait"], "wait_n": _row(one)["wait_n"]}
                _swap(garden, one, before=younger, after=younger | read)
                return
    raise Barren


@breaks("S22", "which did not end with it")
def a_signal_was_read_by_a_wait_that_did_not_end(garden: Garden) -> None:
    one = _read(garden)
    _swap(garden, one, after=_row(one) | {"wait_n": 9})


@breaks("S22", "was read and changed")
def a_signal_was_changed_when_it_was_read(garden: Garden) -> None:
    one = _read(garden)
    _swap(garden, one, after=_row(one) | {"by": "eve"})


@breaks("S22", "and its wait has")
def a_wait_got_other_data_than_its_signal_has(garden: Garden) -> None:
    one = _read(garden)
    wait = _find(garden, STEPS, lambda two: two.tx == one.tx and _is_wait(two, "succeeded"))
    _swap(garden, wait, after=_row(wait) | {"result": "another"})


@breaks("S22", "although nobody held the job")
def a_signal_was_read_for_a_job_that_nobody_held(garden: Garden) -> None:
    one = _read(garden)
    for n, other in enumerate(garden.history.changes):
        if other.table == JOBS and other.after and other.after["id"] == _was(one)["job_id"] and other.seq < one.seq:
            garden.history.changes[n] = structs.replace(other, after=other.after | {"locked_until": None})


@breaks("S22", "and its wait was not")
def an_unread_signal_was_dropped(garden: Garden) -> None:
    one = _sent(garden)
    _after(garden, one, structs.replace(one, op="delete", before=one.after, after=None))


@breaks("S22", "the wait that has read it was removed")
def a_requeue_dropped_a_wait_and_kept_its_signal(garden: Garden) -> None:
    requeues = {step.tx for life in garden.world.lives for step in life.steps if step.move in ("requeue", "update")}
    gone = _find(garden, SIGNALS, lambda one: one.op == "delete" and one.tx in requeues)
    garden.history.changes.remove(gone)


@breaks("S22", "signals behind")
def signals_that_outlived_their_job(garden: Garden) -> None:
    removed = {step.tx for life in garden.world.lives for step in life.steps if step.move in ("delete", "prune")}
    gone = _find(garden, SIGNALS, lambda one: one.op == "delete" and one.tx in removed)
    garden.history.changes.remove(gone)


@breaks("S22", "is not what was witnessed")
def the_final_signal_is_another_than_was_witnessed(garden: Garden) -> None:
    if not garden.history.signals:
        raise Barren
    garden.history.signals[0] = garden.history.signals[0] | {"data": "another"}


# ── Stored waits ──


def _unread(garden: Garden) -> tuple[RowChange, RowChange]:
    """Return a signal that no run had read at once when it came, and a wait for its name."""
    for wait in _all(garden, STEPS, lambda one: one.op == "insert" and _is_wait(one, "running")):
        for one in _all(garden, SIGNALS, lambda one: one.op == "insert"):
            if f"@signal:{_row(one)['name']}" == _row(wait)["name"]:
                return one, wait
    raise Barren


@breaks("S22", "was opened, although signal")
def a_wait_was_opened_beside_its_signal(garden: Garden) -> None:
    one, wait = _unread(garden)
    opened = _row(wait) | {"job_id": _row(one)["job_id"], "n": 9}
    _after(garden, one, structs.replace(wait, after=opened))


@breaks("S22", "has timed out, although signal")
def a_wait_timed_out_beside_its_signal(garden: Garden) -> None:
    one, wait = _unread(garden)
    over = {"job_id": _row(one)["job_id"], "n": 9, "state": "failed", "deadline": 1, "error": WAIT_TIMED_OUT}
    _after(garden, one, structs.replace(wait, after=_row(wait) | over))


def _timed_out(garden: Garden) -> RowChange:
    read = {(one.tx, _row(one)["job_id"]) for one in _all(garden, SIGNALS, lambda one: one.op == "update")}

    def is_it(one: RowChange) -> bool:
        ended = one.after is not None and one.after["name"].startswith("@") and one.after["state"] != "running"
        return ended and not _row(one)["name"].startswith("@callback") and (one.tx, _row(one)["job_id"]) not in read

    return _find(garden, STEPS, is_it)


@breaks("S22", "has ended at")
def a_wait_ended_before_its_time(garden: Garden) -> None:
    one = _timed_out(garden)
    later = {"deadline": one.at + HOUR}
    _swap(garden, one, before=one.before and one.before | later, after=_row(one) | later)


@breaks("S22", "has ended at")
def a_wait_without_an_end_timed_out(garden: Garden) -> None:
    one = _timed_out(garden)
    never = {"deadline": None}
    _swap(garden, one, before=one.before and one.before | never, after=_row(one) | never)


@breaks("S22", "had until")
def the_deadline_of_a_wait_was_moved(garden: Garden) -> None:
    one = _find(garden, STEPS, lambda one: one.op == "update" and _row(one)["name"].startswith("@signal:"))
    _swap(garden, one, after=_row(one) | {"deadline": one.at - HOUR})


@breaks("S22", "has failed with")
def a_wait_failed_for_another_reason(garden: Garden) -> None:
    one = _find(garden, STEPS, lambda one: _is_wait(one, "failed"))
    _swap(garden, one, after=_row(one) | {"error": "no luck"})


@breaks("S22", "is a wait that is")
def a_wait_that_is_cancelled(garden: Garden) -> None:
    one = _find(garden, STEPS, lambda one: _is_wait(one, "running"))
    _swap(garden, one, after=_row(one) | {"state": "cancelled"})


# ── Jobs that wait ──


def _waits(garden: Garden, where: Callable[[Step], Any] = lambda _: True) -> tuple[Life, Step]:
    return garden.step("wait", lambda _, step: step.new["status"] == "waiting" and where(step))


@breaks("S22", "is there, unread")
def a_signal_woke_nobody(garden: Garden) -> None:
    _, step = garden.step("signal", lambda _, step: step.old["status"] == "waiting" != step.new["status"])
    garden.alter(step, after={"status": "waiting", "waits_for": step.old["waits_for"]})


@breaks("S22", "is there, unread")
def a_signal_came_before_the_job_waited(garden: Garden) -> None:
    def is_it(_life: Life, step: Step) -> bool:
        waits_for = str(step.said("waits_for"))
        came = _all(garden, SIGNALS, lambda one: one.op == "insert" and one.seq < step.seq)
        mine = [one for one in came if _row(one)["job_id"] == step.new["id"]]
        last = bool(mine) and f"signal:{_row(mine[-1])['name']}" == waits_for
        return step.new["status"] == "pending" and last

    _, step = garden.step("wait", is_it)
    garden.alter(step, after={"status": "waiting", "waits_for": step.said("waits_for"), "run_at": NEVER})


@breaks("S22", "no such wait is open")
def a_job_waits_for_what_it_has_not_asked_for(garden: Garden) -> None:
    garden.alter(_waits(garden)[1], after={"waits_for": "signal:never heard of"})


@breaks("S22", "although no signal has come")
def a_job_that_did_not_wait_without_a_cause(garden: Garden) -> None:
    def is_it(life: Life, step: Step) -> bool:
        own = [one for one in life.steps if one.move == "signal" and one.version == step.version]
        return step.new["status"] == "waiting" and not [one for one in own if one.seq < step.seq]

    _, step = garden.step("wait", is_it)
    garden.alter(step, after={"status": "pending", "waits_for": None, "ready": True})


@breaks("S22", "had not ended")
def a_job_waits_while_its_run_goes_on(garden: Garden) -> None:
    life, step = _waits(garden)
    for run in life.runs.get(step.version, ()):
        garden.swap(run, ended=None)


@breaks("S22", "before its time")
def a_job_was_resumed_before_its_time(garden: Garden) -> None:
    _, step = garden.step("resume")
    garden.alter(step, before={"run_at": step.at + HOUR})


@breaks("S22", "and is not due before")
def a_resumed_job_that_is_not_ready(garden: Garden) -> None:
    garden.alter(garden.step("resume")[1], after={"ready": False})


@breaks("S22", "and is not due before")
def a_signalled_job_that_is_due_later(garden: Garden) -> None:
    _, step = garden.step("signal", lambda _, step: step.old["status"] == "waiting" != step.new["status"])
    garden.alter(step, after={"run_at": step.at + HOUR})


def _deadline(garden: Garden, step: Step) -> int | None:
    name = f"@{step.new['waits_for']}"
    own = _all(garden, STEPS, lambda one: one.seq < step.seq and (one.after or {}).get("name") == name)
    rows = [_row(one) for one in own if _row(one)["job_id"] == step.new["id"]]
    until: int | None = rows[-1]["deadline"]
    return until


@breaks("S22", "its wait has no end")
def a_wait_without_an_end_that_is_due(garden: Garden) -> None:
    _, step = _waits(garden, lambda step: _deadline(garden, step) is None)
    garden.alter(step, after={"run_at": step.at + HOUR})


@breaks("S22", "and it is due at")
def a_wait_with_an_end_that_never_comes(garden: Garden) -> None:
    _, step = _waits(garden, lambda step: _deadline(garden, step) is not None)
    garden.alter(step, after={"run_at": NEVER})


@breaks("S22", "before this run")
def a_job_waits_again_after_its_time(garden: Garden) -> None:
    _, step = _waits(garden, lambda step: _deadline(garden, step) is not None)
    until = _deadline(garden, step)
    assert until is not None
    garden.alter(step, before={"claimed_at": until + HOUR}, after={"claimed_at": until + HOUR})


# ── Cancels ──


def _cancels(garden: Garden, where: Callable[[Step], Any]) -> Step:
    return garden.step("cancel", lambda _, step: step.old["status"] == "waiting" and where(step))[1]


@breaks("S22", "is to be undone")
def a_cancel_without_the_run_that_undoes(garden: Garden) -> None:
    step = _cancels(garden, lambda step: step.new["ready"])
    garden.alter(step, after={"status": "cancelled", "ready": False, "finished_at": step.at})


@breaks("S22", "was not given the time to stop")
def a_cancel_that_the_outside_never_heard_of(garden: Garden) -> None:
    step = _cancels(garden, lambda step: step.new["status"] == "cancel_requested" and not step.new["ready"])
    garden.alter(step, after={"status": "cancelled", "waits_for": None, "finished_at": step.at})


@breaks("S22", "there is nothing to undo")
def a_cancel_that_undoes_nothing(garden: Garden) -> None:
    step = _cancels(garden, lambda step: step.new["status"] == "cancelled")
    garden.alter(step, after={"status": "cancel_requested", "ready": True, "finished_at": None})


@breaks("S22", "it was to be undone once")
def two_runs_that_undo(garden: Garden) -> None:
    def is_undone(life: Life, step: Step) -> bool:
        anew = any(one.move in ("requeue", "cancel_wait") and one.seq > step.seq for one in life.steps)
        return step.old["status"] == "cancel_requested" and not anew

    garden.repeat(garden.step("claim", is_undone)[1])


# ── Other invariants ──


@breaks("S3", "with locked_until")
def a_waiting_job_with_a_lease(garden: Garden) -> None:
    _, step = _waits(garden)
    garden.alter(step, after={"locked_until": step.at + HOUR})


@breaks("S3", "and waits for")
def a_waiting_job_that_waits_for_nothing(garden: Garden) -> None:
    garden.alter(_waits(garden)[1], after={"waits_for": None})


@breaks("S3", "and waits for")
def a_resumed_job_that_still_waits(garden: Garden) -> None:
    garden.alter(garden.step("resume")[1], after={"waits_for": "sleep"})


@breaks("S6", "although nobody held it")
def a_settle_of_a_cancelled_job_that_nobody_has(garden: Garden) -> None:
    _, step = garden.step("acknowledge_cancel", lambda _, step: step.old["status"] == "cancel_requested")
    garden.alter(step, before={"locked_until": None})
    garden.entry(step, event="wait_cancelled")


@breaks("S10", "although nobody held it")
def a_rescue_of_a_job_without_a_lease(garden: Garden) -> None:
    garden.alter(garden.step("rescue")[1], before={"locked_until": None})


@breaks("S11", "although it had started")
def a_job_that_had_started_expired(garden: Garden) -> None:
    garden.alter(garden.step("expire")[1], before={"started_at": 1}, after={"started_at": 1})


@breaks("S19", "without an entry in the audit")
def a_wait_was_ended_by_an_operator_who_is_not_on_record(garden: Garden) -> None:
    _, step = garden.step("signal", lambda _, step: not str(step.said("id")).startswith("@callback:"))
    garden.history.changes.remove(garden.audit(step.tx))


@breaks("L5", "its time was over")
def a_job_waits_at_rest_and_its_time_is_over(garden: Garden) -> None:
    row = first(garden.history.jobs.values(), lambda row: row["status"] == "waiting")
    garden.history.jobs[row["id"]] = row | {"run_at": 1}
    garden.history.at_rest = True


@breaks("S22", "0 are unknown")
def a_signal_for_a_job_that_nobody_asked_for(garden: Garden) -> None:
    one = _sent(garden)
    _swap(garden, one, after=_row(one) | {"data": STRANGER})
