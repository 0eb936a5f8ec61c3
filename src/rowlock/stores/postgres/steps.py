"""Steps of jobs. One statement stores the marks of runs, on any driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from rowlock.core.codec import decode
from rowlock.core.steps import MarkingRun, RunMarks
from rowlock.stores.driver_neutral import Query
from rowlock.stores.postgres.statements import Statements

_MARK = ("name", "n", "position", "function", "state", "retries", "cancelable", "age", "result", "error", "lasts")


class Marked(NamedTuple):
    """A job's row as `checkpoint` has locked it. `written`: the marks are stored; else the statement must be repeated,
    if the guard holds."""

    status: str
    version: int
    worker: str | None
    written: bool


def checkpoint(sql: Statements, runs: Mapping[MarkingRun, RunMarks]) -> Query:
    """Return the statement that stores these marks, of runs of different jobs. `read_marked` reads the answer."""
    asked = [
        {
            "id": run.id,
            "run": run.version,
            "worker": run.worker,
            "step": said.step,
            "percent": said.percent,
            "marks": [{name: getattr(mark, name) for name in _MARK} for mark in said.marks],
        }
        for run, said in runs.items()
    ]
    return Query(sql.checkpoint, msgspec.json.encode(asked).decode())


def read_marked(answer: str) -> dict[str, Marked]:
    return {job_id: Marked(*row) for job_id, *row in decode(answer)}
