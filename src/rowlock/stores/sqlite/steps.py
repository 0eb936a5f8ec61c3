"""Steps of jobs: the marks of runs are written under the write lock."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection

from rowlock.core.steps import StepMark, marks_by_run
from rowlock.stores.base import Beat, Hold
from rowlock.stores.sqlite.rows import span, sql
from rowlock.stores.sqlite.settle import look


def checkpoint(conn: Connection, now: int, marks: Sequence[StepMark]) -> list[Hold]:
    runs = marks_by_run(marks)
    holds = dict(zip(runs, look(conn, [Beat(run.id, run.version, worker=run.worker) for run in runs]), strict=True))
    for run, said in runs.items():
        if holds[run] is not Hold.LOST:
            job = {"id": run.id, "step": said.step, "percent": said.percent, "now": now}
            conn.execute(sql("checkpoint_job"), job)
            conn.executemany(sql("checkpoint"), [_values(mark, now) for mark in said.marks])
    return [holds[mark.run] for mark in marks]


def _values(mark: StepMark, now: int) -> dict[str, object]:
    return {
        "id": mark.id,
        "name": mark.name,
        "n": mark.n,
        "position": mark.position,
        "function": mark.function,
        "state": mark.state.value,
        "retries": mark.retries,
        "cancelable": mark.cancelable,
        "version": mark.version,
        "now": now,
        "age": span(mark.age),
        "result": mark.result,
        "error": mark.error,
        "lasts": None if mark.lasts is None else span(mark.lasts),
    }
