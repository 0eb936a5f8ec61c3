"""Debounce and throttle, on any driver's connection, in a transaction that is open. See insert_on_conn.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from rowlock.core.debounce import Slot, held_by
from rowlock.core.job import NewJob, Status
from rowlock.core.moves import Debounced, Row, move_all, patches
from rowlock.core.times import micros, moment, span
from rowlock.stores.base import Enqueued
from rowlock.stores.driver_neutral import Queries, Query
from rowlock.stores.postgres.rows import STATUS
from rowlock.stores.postgres.statements import Statements
from rowlock.stores.windows import Group

_encode = msgspec.json.Encoder().encode
_slots = msgspec.json.Decoder(list[tuple[str, str | None, int, int]]).decode
_rows = msgspec.json.Decoder(list[tuple[int, dict[str, Any]]]).decode


def gone(slot: Slot) -> Enqueued:
    """Return the answer of a job that was pruned or deleted."""
    made = moment(slot.at)
    return Enqueued(slot.job_id or "", True, Status.COMPLETED, made, made)


# ── Throttle ──


class Throttled(Struct, frozen=True):
    """The jobs of a batch that are not inserted. `held`: another job answers. `behind`: an earlier job of the batch
    answers."""

    held: dict[int, Slot] = {}
    behind: dict[int, int] = {}

    @property
    def passed(self) -> set[int]:
        return self.held.keys() | self.behind.keys()


def lock_throttles(texts: Statements, jobs: Sequence[NewJob]) -> Queries[Throttled]:
    """Lock the throttled keys of a batch until the transaction ends, and decide which jobs may be made."""
    seconds: dict[str, float] = {}
    for job in jobs:
        if job.throttle is not None:
            seconds[job.throttle.line] = max(job.throttle.seconds, seconds.get(job.throttle.line, 0.0))
    if not seconds:
        return Throttled()
    found = _slots((yield Query(texts.throttle_lock_on_conn, _text(list(seconds.items())))))
    slots = {line: (Slot(job_id, at), now) for line, job_id, at, now in found}
    throttled = Throttled({}, {})
    first: dict[str, int] = {}
    for n, job in enumerate(jobs):
        if job.throttle is None:
            continue
        slot, now = slots[job.throttle.line]
        if held_by(slot, job.throttle, job.id, now) is not None:
            throttled.held[n] = slot
        elif first.setdefault(job.throttle.line, n) != n:
            throttled.behind[n] = first[job.throttle.line]
    return throttled


def write_throttles(texts: Statements, jobs: Sequence[NewJob], answers: Mapping[int, Enqueued]) -> Queries[None]:
    """Note the jobs that were made. `lock_throttles` has locked their keys."""
    made = [
        (job.throttle.line, answer.id, micros(answer.created), micros(answer.created) + span(job.throttle.seconds))
        for n, answer in answers.items()
        if (job := jobs[n]).throttle is not None and answer.id == job.id
    ]
    if made:
        yield Query(texts.throttle_write_on_conn, _text(made))


# ── Debounce ──


def replace_waiting(texts: Statements, groups: Sequence[Group]) -> Queries[dict[int, Enqueued]]:
    """Replace the payloads of jobs that no worker has claimed; they are locked until the transaction ends. Return the
    answers, by number. Lines in which no job waits have no answer."""
    lines = {group.job.line: group for group in groups}
    found = _rows((yield Query(texts.debounce_lock_on_conn, _text(list(lines)))))
    now = max((at for at, _ in found), default=0)
    answers: dict[int, Enqueued] = {}
    written: list[dict[str, Any]] = []
    for row in [_row(one) for _, one in found]:
        group = lines[row.line]
        for _, patch in patches(move_all([row], Debounced(job=group.job), now)):
            written.append(_change(row, patch.columns, patch.entry))
            run_at, created = moment(patch.columns.get("run_at", row.run_at)), moment(row.created)
            answers |= {n: Enqueued(row.id, True, row.status, run_at, created) for n in group.numbers}
    if written:
        yield Query(texts.debounce_write_on_conn, _text(written))
    return answers


def _row(found: dict[str, Any]) -> Row:
    return Row(**found | {"status": STATUS[found["status"]]})


def _change(row: Row, columns: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    raw = {name: msgspec.Raw(columns[name].encode()) for name in ("payload", "tags") if columns[name] is not None}
    return {**columns, **raw, "place": row.place, "entry": entry}


def _text(value: object) -> str:
    return _encode(value).decode()
