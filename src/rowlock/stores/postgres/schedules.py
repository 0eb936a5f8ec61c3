"""Schedules on any driver's connection, in a transaction that is open. See stores/schedules.py for the steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

import msgspec
from msgspec import structs

from rowlock.core.times import moment
from rowlock.stores.driver_neutral import Queries, Query
from rowlock.stores.postgres import insert_on_conn
from rowlock.stores.postgres.statements import Statements, statements_on_conn
from rowlock.stores.schedules import (
    Decide,
    Decided,
    InsertJobs,
    Lock,
    Look,
    Seen,
    Step,
    Which,
    WriteSchedules,
    changing,
    fire_row,
    row_of,
    schedules_of,
)

_decode = msgspec.json.Decoder().decode


def change(
    schema: str, which: Which, decide: Decide, unreadable: Callable[[str], None] = lambda schedule_id: None
) -> Queries[list[Decided]]:
    texts = statements_on_conn(schema)
    steps = changing(which, decide, unreadable)
    try:
        step = next(steps)
        while True:
            step = steps.send((yield from _answer(schema, texts, step)))
    except StopIteration as end:
        answer: list[Decided] = end.value
        return answer


def _answer(schema: str, texts: Statements, step: Step) -> Queries[Any]:
    match step:
        case Lock(which):
            locked = _decode((yield _lock(texts, which)))
            return moment(locked["now"]), schedules_of(locked["rows"])
        case Look(times, lines):
            asked = {"times": [{"schedule_id": one, "fire_at": at} for one, at in times], "lines": lines}
            seen = _decode((yield Query(texts.schedules_look_on_conn, _text(asked))))
            return Seen({(one, at) for one, at in seen["fired"]}, seen["live"])
        case InsertJobs(jobs):
            return (yield from insert_on_conn.insert(schema, jobs, repeat=False))
        case WriteSchedules():
            return _decode((yield Query(texts.schedules_write_on_conn, _text(_written(step)))))
        case _:
            assert_never(step)


def _lock(texts: Statements, which: Which) -> Query:
    if which.ids is not None:
        return Query(texts.schedules_by_id, _text({"ids": which.ids}))
    if which.name is not None:
        return Query(texts.schedule_by_name, _text(structs.asdict(which.name)))
    return Query(texts.schedules_due, _text({"due": which.due, "skip": which.skip}))


def _written(step: WriteSchedules) -> dict[str, Any]:
    rows = [(True, one) for one in step.new] + [(False, one) for one in step.old]
    return {
        "rows": [
            row | {"is_new": is_new, "definition": msgspec.Raw(row["definition"].encode())}
            for is_new, one in rows
            for row in [row_of(one)]
        ],
        "gone": step.gone,
        "fires": [fire_row(schedule_id, fired) for schedule_id, fired in step.fires],
        "entries": [structs.asdict(entry) for entry in step.entries],
    }


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
