"""Between SQLite's values and rowlock's: times are integer microseconds, JSON is text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache
from sqlite3 import Connection
from typing import Any, TypeVar

import msgspec

from rowlock.core.codec import decode
from rowlock.core.job import Event, Job, Log, Status
from rowlock.core.lifecycle import MAX_HISTORY
from rowlock.core.steps import StoredStep
from rowlock.core.times import micros as micros
from rowlock.core.times import moment as moment
from rowlock.core.times import span as span
from rowlock.core.verify import StoredRow
from rowlock.stores import columns
from rowlock.stores import sql as files
from rowlock.stores.columns import STATUS as STATUS
from rowlock.stores.queries import State
from rowlock.stores.schedules import COLUMNS as SCHEDULE_COLUMNS
from rowlock.stores.worker_reports import read_log

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


def sql(name: str) -> str:
    """Return the text of sql/<name>.sql, with its columns filled in."""
    text = files.load("rowlock.stores.sqlite", name)
    return _filled(text, _PARTS[name]) if name in _PARTS else text


@cache
def _filled(text: str, parts: tuple[tuple[str, str], ...]) -> str:
    for name, part in parts:
        text = text.replace(f"{{{name}}}", part)
    return text


def read_sql(shape: type) -> str:
    """Return the statement that reads jobs in this shape, by their ids."""
    return _filled(sql("read"), _READ_PARTS[shape])


def stored_rows_sql(*, archived: bool) -> str:
    return _filled(sql("stored_rows"), _STORED_PARTS[archived])


def json_text(value: Any) -> str:
    """Return JSON of values that rowlock made itself. Values from callers go through core.codec."""
    return _encode(value).decode()


class Times(dict[int | None, Any]):
    """Remembers conversions: within a batch, most times are the same few."""

    def __init__(self) -> None:
        self[None] = None

    def __missing__(self, at: int) -> datetime:
        self[at] = time = moment(at)
        return time


RULES = {
    "time": "times[{}]", "status": "STATUS[{}]", "bool": "bool({})",
    "json": "decode({})", "json?": "None if {} is None else decode({})", "tags": "tuple(decode({})) if {} else ()",
    "history": "decode({}) if {} else ()",
}  # fmt: skip
_SCOPE = {"decode": decode, "STATUS": STATUS}

_EVENTS = "j.version + coalesce(json_array_length(j.history), 0) + j.history_dropped"
LIVE_VALUES = {"events_count": f"1 + {_EVENTS}"}
ARCHIVED_VALUES = {**columns.ARCHIVED, "events_count": f"2 + {_EVENTS}"}

# Most jobs don't use the columns that may be NULL: a claim reads those as one column.
RARE = [column.name for column in columns.CLAIMED if column.name == "tags" or column.optional]
COMMON = [c.name for c in columns.CLAIMED if c.name not in (*RARE, "payload", "events_count")]
_COMMON_VALUES = {
    "timeout": "CASE WHEN j.timeout = CAST(j.timeout AS INTEGER) THEN CAST(j.timeout AS INTEGER) END",
    "version": "j.version + 1",
    # As a text with all its digits. A job that has stored steps keeps its progress.
    "progress": "CASE WHEN j.step IS NULL THEN 0 ELSE printf('%!.17g', j.progress) END",
}
_RARE_VALUES = {
    "tags": "json(j.tags)",
    "result": "json(j.result)",
    "entries": "coalesce(json_array_length(j.history), 0) + j.history_dropped",
}
# The run is in a step that is not cancelable, and its lease is live.
_SHIELDED = (
    "j.locked_until >= :now AND EXISTS (SELECT 1 FROM _jobs_steps s WHERE s.job_id = j.id AND s.state = 'running' "
    "AND NOT s.cancelable AND s.version = j.version)"
)
_PARTS: dict[str, tuple[tuple[str, str], ...]] = {
    "cancel_timeout_due": (("shielded", _SHIELDED),),
    "shielded": (("shielded", _SHIELDED),),
    "claim_rows": (
        ("common", columns.listed(COMMON, "j.", _COMMON_VALUES)),
        ("rare", columns.listed(RARE, "j.")),
        ("rare_values", columns.listed([*RARE, "entries"], "j.", _RARE_VALUES)),
    ),
    "settle_archive": (
        ("copied", columns.listed(columns.COPIED)),
        ("values", columns.listed(columns.COPIED, "j.")),
    ),
}
_SCHEDULE = ("schedule_columns", ", ".join(SCHEDULE_COLUMNS))
_PARTS |= {
    "schedules": (_SCHEDULE,),
    "schedule_named": (_SCHEDULE,),
    "schedules_due": (_SCHEDULE,),
    "schedule_put": (
        _SCHEDULE,
        ("schedule_values", ", ".join(f":{name}" for name in SCHEDULE_COLUMNS)),
        ("schedule_changes", ", ".join(f"{name} = excluded.{name}" for name in SCHEDULE_COLUMNS[1:])),
    ),
}
_READ_PARTS = {
    shape: (
        ("columns", columns.listed(names, "j.", LIVE_VALUES)),
        ("archived", columns.listed(names, "j.", ARCHIVED_VALUES)),
    )
    for shape, names in columns.SHAPES.items()
}
_STORED_PARTS = {
    False: (("columns", columns.listed(columns.STORED, "j.")), ("table", "_jobs"), ("other", "_jobs_archive")),
    True: (
        ("columns", columns.listed(columns.STORED, "j.", ARCHIVED_VALUES)),
        ("table", "_jobs_archive"),
        ("other", "_jobs"),
    ),
}

Reader = Callable[[tuple[Any, ...], Times], T]
job: Reader[Job] = columns.compile_reader(Job, RULES, _SCOPE, "times")
state: Reader[State] = columns.compile_reader(State, RULES, _SCOPE, "times")
stored_row: Reader[StoredRow] = columns.compile_reader(StoredRow, RULES, _SCOPE, "times")
READERS: dict[type, Reader[Any]] = {
    Job: job,
    State: state,
    Status: lambda row, times: STATUS[row[1]],
    Log: lambda row, times: read_log(row[1], row[2]),
}


def event(row: tuple[Any, ...]) -> Event:
    return columns.read_event(row, moment)


def step(row: tuple[Any, ...]) -> StoredStep:
    return columns.read_step(row, moment)


def append_history(conn: Connection, entries: Iterable[tuple[int, dict[str, Any]]]) -> None:
    """Add entries to the histories of rows, by n."""
    text = f"UPDATE _jobs SET {sql('history')} WHERE n = :n"  # noqa: S608 - our own text
    conn.executemany(text, [{"n": n, "most": MAX_HISTORY, "entry": json_text(entry)} for n, entry in entries])
