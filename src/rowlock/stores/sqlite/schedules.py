"""Schedules and their fires. See stores/schedules.py for the steps of a change."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from sqlite3 import Connection
from typing import Any, assert_never

from msgspec import structs

from rowlock.core.schedules import Fired, Schedule
from rowlock.stores.schedules import (
    COLUMNS,
    FIRES_KEPT,
    Decide,
    Decided,
    InsertJobs,
    Lock,
    Look,
    Read,
    ScheduleFilter,
    Seen,
    Step,
    Which,
    WriteSchedules,
    changing,
    fire_row,
    fired_of,
    row_of,
    schedules_of,
)
from rowlock.stores.sqlite import records
from rowlock.stores.sqlite.insert import insert
from rowlock.stores.sqlite.rows import json_text, moment, span, sql

_FIRED = ("fire_at", "at", "kind", "job_id", "reason", "detail")
_ANY_TIME = (1 << 63) - 1


def change(
    conn: Connection,
    now: int,
    which: Which,
    decide: Decide,
    unreadable: Callable[[str], None] = lambda schedule_id: None,
) -> list[Decided]:
    steps = changing(which, decide, unreadable)
    try:
        step = next(steps)
        while True:
            step = steps.send(_answer(conn, now, step))
    except StopIteration as end:
        answer: list[Decided] = end.value
        return answer


def _answer(conn: Connection, now: int, step: Step) -> Any:
    match step:
        case Lock(which):
            return moment(now), _lock(conn, now, which)
        case Look(times, lines):
            fired = {one for one in times if conn.execute(sql("schedule_fired"), one).fetchone()}
            return Seen(fired, {line: conn.execute(sql("line_waits"), (line,)).fetchone()[0] for line in lines})
        case InsertJobs(jobs):
            return insert(conn, now, jobs)
        case WriteSchedules():
            return _write(conn, now, step)
        case _:
            assert_never(step)


def _lock(conn: Connection, now: int, which: Which) -> Read:
    """Read the schedules to change. The write lock guards all of them."""
    if which.ids is not None:
        return _find(conn, ScheduleFilter(ids=which.ids), None, len(which.ids))
    if which.name is not None:
        return _read(conn, "schedule_named", structs.asdict(which.name))
    return _read(conn, "schedules_due", {"now": now, "limit": which.due, "skip": json_text(which.skip)})


def _write(conn: Connection, now: int, step: WriteSchedules) -> tuple[int, int]:
    for schedule_id in step.gone:
        conn.execute("DELETE FROM _jobs_schedules WHERE id = ?", (schedule_id,))
        conn.execute("DELETE FROM _jobs_fires WHERE schedule_id = ?", (schedule_id,))
    for one in (*step.new, *step.old):
        conn.execute(sql("schedule_put"), row_of(one))
    made = 0
    for schedule_id, fired in step.fires:
        row = fire_row(schedule_id, fired)
        written = conn.execute(sql("schedule_fire"), row).rowcount
        if fired.job_id is not None:
            made += written
            conn.execute("UPDATE _jobs SET schedule_id = :schedule_id, fire_at = :fire_at WHERE id = :job_id", row)
    records.write(conn, now, [], *step.entries)
    return len(step.new), made


def next_fire(conn: Connection, now: int, skip: Sequence[str] = (), *, later: bool = False) -> float | None:
    asked = {"skip": json_text(skip), "after": now if later else -_ANY_TIME}
    found = conn.execute(sql("next_fire"), asked).fetchone()
    return None if found is None else (found[0] - now) / 1e6


def read(conn: Connection, filter: ScheduleFilter, after: tuple[str, str] | None, limit: int) -> list[Schedule]:
    return _find(conn, filter, after, limit).schedules


def _find(conn: Connection, filter: ScheduleFilter, after: tuple[str, str] | None, limit: int) -> Read:
    asked = structs.asdict(filter) | {"ids": None if filter.ids is None else json_text(filter.ids), "limit": limit}
    name, schedule_id = after or (None, None)
    conn.create_function("_jobs_finds", 2, _finds, deterministic=True)
    return _read(conn, "schedules", asked | {"after_name": name, "after_id": schedule_id})


def _finds(pattern: str, name: str) -> bool:
    return re.search(pattern, name) is not None


def _read(conn: Connection, statement: str, asked: dict[str, Any]) -> Read:
    found = conn.execute(sql(statement), asked).fetchall()
    return schedules_of(dict(zip(COLUMNS, row, strict=True)) for row in found)


def fires(conn: Connection, ids: Sequence[str], before: int | None, limit: int) -> dict[str, list[Fired]]:
    asked = {"before": _ANY_TIME if before is None else before, "limit": limit}
    return {
        schedule_id: [
            fired_of(dict(zip(_FIRED, row, strict=True)))
            for row in conn.execute(sql("fires"), asked | {"id": schedule_id}).fetchall()
        ]
        for schedule_id in ids
    }


def prune(conn: Connection, now: int, limit: int) -> int:
    return conn.execute(sql("prune_fires"), {"before": now - span(FIRES_KEPT), "limit": limit}).rowcount
