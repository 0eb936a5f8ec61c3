"""Makes rowlock's values of PostgreSQL's rows, and parameters of values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import astuple

from rowlock.core.codec import decode, encode
from rowlock.core.job import Event, Job, Log, NewJob, Status
from rowlock.core.lifecycle import Settlement
from rowlock.core.steps import StoredStep
from rowlock.core.times import span
from rowlock.core.verify import StoredRow
from rowlock.stores import columns
from rowlock.stores.base import NewLine
from rowlock.stores.columns import STATUS as STATUS
from rowlock.stores.queries import State
from rowlock.stores.worker_reports import read_log

LARGEST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"

_encode = msgspec.json.Encoder().encode
_OPTIONS, _TAGS, _IF_LIVE = map(NewJob.__struct_fields__.index, ("priority", "tags", "if_live"))

_RULES = {
    "id": "str({})", "id?": "None if {} is None else str({})", "status": "STATUS[{}]",
    "json": "decode({})", "json?": "None if {} is None else decode({})", "history": "decode({}) if {} else ()",
    "tags": "() if {} is None else tuple(decode({}))",
}  # fmt: skip
_SCOPE = {"decode": decode, "STATUS": STATUS, "Job": Job} | {
    status.name: status for status in (Status.PROCESSING, Status.CANCEL_REQUESTED)
}
_TYPES = {
    "id": "uuid", "float": "float8", "time": "timestamptz", "tags": "jsonb",
}  # fmt: skip

_EVENTS = "j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped"
LIVE_VALUES = {"events_count": f"1 + {_EVENTS}"}
ARCHIVED_VALUES = {**columns.ARCHIVED, "events_count": f"2 + {_EVENTS}"}

# What claim.sql returns of a job, and the types of these columns, for the row of its answer that has no job.
_CLAIMED_NAMES = [column.name for column in columns.CLAIMED]
CLAIMED_JOB = 5  # where the job begins in an answer of claim
CLAIMED_PAYLOAD = CLAIMED_JOB + _CLAIMED_NAMES.index("payload")
CLAIMED_COLUMNS = columns.listed(_CLAIMED_NAMES, "j.", LIVE_VALUES)
CLAIMED_NULLS = ", ".join(f"NULL::{_TYPES.get(column.kind, column.kind)}" for column in columns.CLAIMED)

job = columns.compile_reader(Job, _RULES, _SCOPE)
state = columns.compile_reader(State, _RULES, _SCOPE)
stored_row = columns.compile_reader(StoredRow, _RULES, _SCOPE)
claimed_job: Callable[[Any, str, datetime, datetime, datetime | None], Job] = columns.compile_function(
    "def claimed_job(row, worker, now, until, started):\n"
    f"    ({'_, ' * CLAIMED_JOB}{', '.join(_CLAIMED_NAMES)},) = row\n"
    f"    return Job({columns.values_of(columns.JOB, _RULES, columns.CLAIM_SETS)})\n",
    _SCOPE,
)
READERS: dict[type, Callable[[Any], Any]] = {
    Job: job,
    State: state,
    Status: lambda row: STATUS[row[1]],
    Log: lambda row: read_log(row[1], row[2]),
}


def turn(job: Job) -> tuple[int, datetime, str]:
    """Return the sort key that gives the order in which jobs are claimed."""
    return -job.priority, job.run_at, job.id


def event(row: Any) -> Event:
    return columns.read_event(row, lambda at: at)


def step(row: Any) -> StoredStep:
    return columns.read_step(row, lambda at: at)


def insert_arrays(jobs: Sequence[NewJob]) -> tuple[Sequence[Any], ...]:
    """Return a column per field, in their order, without the last fields, which insert_on_conn.py sends."""
    fields: list[Sequence[Any]] = list(zip(*map(astuple, jobs), strict=True))
    columns = fields[:_IF_LIVE]
    columns[_TAGS] = [tags_text(tags) for tags in columns[_TAGS]]
    return tuple(columns)


def insert_alike(jobs: Sequence[NewJob]) -> tuple[Any, ...] | None:
    """Return the values that the jobs have in common: the last parameters of insert_alike.sql. None if the jobs differ
    in more than id, topic and payload, or have values that few jobs have."""
    same = astuple(jobs[0])[_OPTIONS:]
    priority, run_at, delay, expires_at, key, scope, scope_id, version, max_retries, timeout, tags, trace, *_ = same
    if run_at or expires_at or key or scope or scope_id or tags or trace:
        return None
    if len(jobs) > 1 and any(astuple(job)[_OPTIONS:] != same for job in jobs):
        return None
    return priority, delay, version, max_retries, timeout


def completions(settlements: list[Settlement]) -> tuple[Any, ...]:
    """Return the parameters of completions that all have the same version and worker."""
    return (
        [settlement.id for settlement in settlements],
        settlements[0].version,
        [settlement.transition.result for settlement in settlements],
        [settlement.transition.ran for settlement in settlements],
        settlements[0].worker,
    )


def settle_arrays(settlements: list[Settlement], *, mixed: bool = False) -> tuple[Any, ...]:
    """Return the parameters of settlements. `mixed`: they are of several workers."""
    moves = [settlement.transition for settlement in settlements]
    return (
        [settlement.id for settlement in settlements],
        [settlement.version for settlement in settlements],
        [move.status for move in moves],
        [move.delay for move in moves],
        [move.retries for move in moves],
        [move.error for move in moves],
        [move.result for move in moves],
        [move.ran for move in moves],
        [move.reason for move in moves],
        [
            None if move.status is Status.COMPLETED else entry_text(settlement)
            for settlement, move in zip(settlements, moves, strict=True)
        ],
        [settlement.worker for settlement in settlements] if mixed else settlements[0].worker,
        [move.fingerprint for move in moves],
        [move.waits_for for move in moves],
        [move.seen for move in moves],
    )


def tags_text(tags: tuple[str, ...]) -> str | None:
    return encode(list(tags), "tags") if tags else None


def lines_text(lines: tuple[NewLine, ...]) -> str | None:
    """Return log lines as JSON, in full length: the statement that stores them cuts them."""
    return _encode([(span(line.age), line.level, line.text) for line in lines]).decode() if lines else None


def entry_text(settlement: Settlement) -> str:
    return encode(settlement.transition.entry(settlement.version), "history")


def count(tag: str) -> int:
    """Return the number of rows in a command tag such as UPDATE 5."""
    return int(tag.rsplit(" ", 1)[1])
