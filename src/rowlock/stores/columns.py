"""A job's columns. Every statement that lists them and every function that reads a row is made from here.

`Job` in core/job.py declares the columns: their names, their order and, by its annotations, their types. This module
adds what annotations can't say. So a new column is a field of Job, and a migration for each store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from msgspec import Struct

from rowlock.core.codec import decode
from rowlock.core.job import Event, Job, Log, Status
from rowlock.core.steps import StepState, StoredStep
from rowlock.core.verify import StoredRow
from rowlock.stores.queries import State

T = TypeVar("T", bound=Struct)

STATUS: dict[str, Status] = {status.value: status for status in Status}

_KINDS: dict[object, str] = {str: "text", int: "int", float: "float", datetime: "time", bool: "bool", Status: "status"}
# Columns whose annotation doesn't tell how they are stored.
_SPECIAL = {
    "id": "id", "flow_id": "id", "schedule_id": "id", "payload": "json", "result": "json", "tags": "tags",
    "history": "history",
}  # fmt: skip

# A claim sets these columns. The names stand for the claim's own values; the worker needs no answer for them.
CLAIM_SETS = {
    "status": "PROCESSING if cancel_requested_at is None else CANCEL_REQUESTED", "waits_for": "None",
    "stage": "None", "message": "None", "locked_by": "worker",
    "locked_until": "until", "updated": "now", "claimed_at": "now", "started_at": "started", "finished_at": "None",
}  # fmt: skip

# The archive lacks these columns, because it holds completed jobs only.
ARCHIVED = {
    "status": "'completed'", "ready": "false", "progress": "100.0", "locked_until": "NULL", "waits_for": "NULL",
}  # fmt: skip

# Columns of both tables that Job doesn't show.
_UNSHOWN = ("history", "history_dropped", "stray", "log", "log_dropped")
_COMPLETION_SETS = ("updated", "started_at", "finished_at", "result")


class Column(Struct, frozen=True):
    """`kind`: how it is stored. Each store says how to read each kind."""

    name: str
    kind: str
    optional: bool


def columns_of(struct: type[Struct]) -> list[Column]:
    """Return the columns that are the fields of `struct`, in their order."""
    hints = get_type_hints(struct)
    return [_column(name, hints[name]) for name in struct.__struct_fields__]


def _column(name: str, hint: Any) -> Column:
    options = get_args(hint) if NoneType in get_args(hint) else (hint, NoneType) if hint is Any else (hint,)
    kind = _SPECIAL.get(name) or _KINDS[options[0]]
    return Column(name, kind, NoneType in options)


JOB = columns_of(Job)
CLAIMED = [column for column in JOB if column.name not in CLAIM_SETS]
# The shapes in which `Store.read` answers, and the columns of each. The id comes first.
SHAPES: dict[type, Sequence[str]] = {
    Job: Job.__struct_fields__,
    State: State.__struct_fields__,
    Status: ("id", "status"),
    Log: ("id", "log", "log_dropped"),
}
STORED = [name for name in StoredRow.__struct_fields__ if name not in ("twice", "has_steps")]  # not columns
# The columns that `complete` copies unchanged from _jobs to the archive.
COPIED = [
    name
    for name in (*(column.name for column in JOB), *_UNSHOWN)
    if name not in ARCHIVED and name not in _COMPLETION_SETS and name != "events_count"
]


def read_event(row: Sequence[Any], time: Callable[[Any], datetime]) -> Event:
    """Return the event in a row. `time`: makes a time of a column."""
    known = dict(zip(Event.__struct_fields__, row, strict=True))
    at, status = time(known["at"]), STATUS.get(known["status"])
    return Event(**known | {"job_id": str(known["job_id"]), "at": at, "status": status, "data": decode(known["data"])})


def read_step(row: Sequence[Any], time: Callable[[Any], datetime]) -> StoredStep:
    """Return the step in a row, whose columns are the fields, in their order. `time`: makes a time of a column."""
    known = dict(zip(StoredStep.__struct_fields__, row, strict=True))
    result, finished_at, deadline = known["result"], known["finished_at"], known["deadline"]
    return StoredStep(
        **known
        | {
            "job_id": str(known["job_id"]),
            "state": StepState(known["state"]),
            "result": None if result is None else decode(result),
            "cancelable": bool(known["cancelable"]),
            "started_at": time(known["started_at"]),
            "finished_at": None if finished_at is None else time(finished_at),
            "deadline": None if deadline is None else time(deadline),
        }
    )


def listed(names: Iterable[str], of: str = "", instead: Mapping[str, str] | None = None) -> str:
    """Return a list of columns for SQL. `of`: a prefix such as `j.`. `instead`: expressions in place of columns."""
    known = instead or {}
    return ", ".join(known.get(name) or f"{of}{name}" for name in names)


def compile_reader(
    struct: type[T], rules: Mapping[str, str], scope: Mapping[str, Any], *arguments: str
) -> Callable[..., T]:
    """Return a function that makes a `struct` of a row whose columns are its fields, in their order.

    `rules` has a Python expression by kind, in which {} is the column. A kind with a question mark is for columns that
    may be NULL. `scope`: the names that these expressions use. The function takes the row and `arguments`.

    It is compiled as if it were written by hand: a loop over the columns takes three times as long.
    """
    columns = columns_of(struct)
    names = ", ".join(column.name for column in columns)
    return compile_function(
        f"def read({', '.join(('row', *arguments))}):\n"
        f"    ({names},) = row\n"
        f"    return {struct.__name__}({values_of(columns, rules)})\n",
        {struct.__name__: struct, **scope},
    )


def values_of(columns: Iterable[Column], rules: Mapping[str, str], given: Mapping[str, str] | None = None) -> str:
    """Return the arguments for a struct, as Python. `given`: expressions for columns that the row doesn't have."""
    known = given or {}
    return ", ".join(known.get(column.name) or _rule(column, rules).replace("{}", column.name) for column in columns)


def _rule(column: Column, rules: Mapping[str, str]) -> str:
    return (rules.get(f"{column.kind}?") if column.optional else None) or rules.get(column.kind, "{}")


def compile_function(text: str, scope: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the one function that `text` defines."""
    names: dict[str, Any] = {}
    exec(text, dict(scope), names)  # noqa: S102 - our own text, made at import
    (function,) = names.values()
    found: Callable[..., Any] = function
    return found
