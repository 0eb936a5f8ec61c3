"""Between SQLite's values and rowlock's: times are integer microseconds, JSON is text."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from sqlite3 import Connection
from typing import Any

import msgspec

from rowlock.core.codec import decode
from rowlock.core.job import Event, Job, Status
from rowlock.core.lifecycle import MAX_HISTORY
from rowlock.stores import sql as files
from rowlock.stores.reading import State
from rowlock.stores.times import micros as micros
from rowlock.stores.times import moment as moment

STATUS: dict[str, Status] = {status.value: status for status in Status}

_encode = msgspec.json.Encoder().encode


def sql(name: str) -> str:
    return files.load("rowlock.stores.sqlite", name)


def json_text(value: Any) -> str:
    """For values that rowlock made itself; what callers made goes through core.codec."""
    return _encode(value).decode()


def span(seconds: float) -> int:
    """Seconds as microseconds, rounded just as datetime does it (halves to even, apart from whole seconds), in a third
    of its time."""
    whole = int(seconds)
    return whole * 1_000_000 + round((seconds - whole) * 1e6)


class Times(dict[int | None, Any]):
    """Remembers conversions: within a batch, most times are the same few."""

    def __init__(self) -> None:
        self[None] = None

    def __missing__(self, at: int) -> datetime:
        self[at] = time = moment(at)
        return time


def job(row: tuple[Any, ...], times: Times) -> Job:
    """A row whose columns are Job's fields, in their order. On the hot path: positional, no loops."""
    (
        job_id, topic, template_version, payload, status, priority, run_at, expires_at, key, scope, scope_id, tags,
        trace, step, progress, stage, message, result, last_error, retries, max_retries, crashes, timeout, version,
        locked_by, locked_until, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, updated,
        claimed_at, started_at, finished_at, events_count,
    ) = row  # fmt: skip
    return Job(
        job_id, topic, template_version or None, decode(payload), STATUS[status], priority, times[run_at],
        times[expires_at], key, scope, scope_id, tuple(decode(tags)) if tags else (), trace, step, progress, stage,
        message, None if result is None else decode(result), last_error, retries, max_retries, crashes, timeout,
        version, locked_by, times[locked_until], times[cancel_requested_at], cancel_reason, flow_id, schedule_id,
        times[fire_at], times[created], times[updated], times[claimed_at], times[started_at],
        times[finished_at], events_count,
    )  # fmt: skip


def state(row: tuple[Any, ...], times: Times) -> State:
    """A row whose columns are State's fields, in their order."""
    (
        job_id, topic, status, version, progress, stage, message, step, key, scope, scope_id, flow_id, locked_by,
        priority, retries, max_retries, crashes, timeout, created, updated, run_at, expires_at, started_at, finished_at,
        claimed_at,
    ) = row  # fmt: skip
    return State(
        job_id, topic, STATUS[status], version, progress, stage, message, step, key, scope, scope_id, flow_id,
        locked_by, priority, retries, max_retries, crashes, timeout, times[created], times[updated], times[run_at],
        times[expires_at], times[started_at], times[finished_at], times[claimed_at],
    )  # fmt: skip


def event(row: tuple[Any, ...]) -> Event:
    job_id, seq, at, name, status, version, by, data = row
    return Event(
        job_id=job_id,
        seq=seq,
        at=moment(at),
        event=name,
        status=STATUS.get(status),
        version=version,
        by=by,
        data=decode(data),
    )


def entry(now: int, event: str, status: Status, version: int, **rest: Any) -> dict[str, Any]:
    """A history entry. Nothing that is not known stands in it."""
    known = {name: value for name, value in rest.items() if value is not None}
    return {"at": now, "event": event, "status": status, "version": version, **known}


def append_history(conn: Connection, entries: Iterable[tuple[int, dict[str, Any]]]) -> None:
    """Entries for rows, by n."""
    conn.executemany(sql("history"), [{"n": n, "most": MAX_HISTORY, "entry": json_text(entry)} for n, entry in entries])
