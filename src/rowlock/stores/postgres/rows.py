"""From PostgreSQL's rows to rowlock's values. On the hot path: positional, no loops."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import astuple

from rowlock.core.codec import decode, encode
from rowlock.core.job import Event, Job, NewJob, Status
from rowlock.core.lifecycle import Settlement
from rowlock.core.verify import Kept
from rowlock.stores.base import Edit, NewLine, WorkerInfo
from rowlock.stores.reading import State
from rowlock.stores.times import span

STATUS = {status.value: status for status in Status}
LARGEST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"

_encode = msgspec.json.Encoder().encode
_OPTIONS, _VERSION, _TAGS = map(NewJob.__struct_fields__.index, ("priority", "template_version", "tags"))

# In the order of Job's fields, of a row called j.
COLUMNS = """j.id, j.topic, j.template_version, j.payload, j.status, j.priority, j.run_at, j.expires_at, j.key, j.scope,
    j.scope_id, j.tags, j.trace, j.step, j.progress, j.stage, j.message, j.result, j.last_error, j.retries,
    j.max_retries, j.crashes, j.timeout, j.version, j.locked_by, j.locked_until, j.cancel_requested_at,
    j.cancel_reason, j.flow_id, j.schedule_id, j.fire_at, j.created, j.updated, j.claimed_at, j.started_at,
    j.finished_at"""
# Of a job that was claimed this moment: what the claim did not just write. With the types, for the row without a job.
CLAIMED = {
    "j.id": "uuid",
    "j.topic": "text",
    "j.template_version": "int",
    "j.payload": "json",
    "j.priority": "int",
    "j.run_at": "timestamptz",
    "j.expires_at": "timestamptz",
    "j.key": "text",
    "j.scope": "text",
    "j.scope_id": "text",
    "j.tags": "jsonb",
    "j.trace": "text",
    "j.step": "text",
    "j.result": "json",
    "j.last_error": "text",
    "j.retries": "int",
    "j.max_retries": "int",
    "j.crashes": "int",
    "j.timeout": "float8",
    "j.version": "int",
    "j.cancel_requested_at": "timestamptz",
    "j.cancel_reason": "text",
    "j.flow_id": "uuid",
    "j.schedule_id": "uuid",
    "j.fire_at": "timestamptz",
    "j.created": "timestamptz",
    "1 + j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped": "int",
}
CLAIMED_JOB = 5  # where the job begins in an answer of claim
CLAIMED_PAYLOAD = CLAIMED_JOB + list(CLAIMED).index("j.payload")
CLAIMED_COLUMNS = ", ".join(CLAIMED)
CLAIMED_NULLS = ", ".join(f"NULL::{kind}" for kind in CLAIMED.values())


def job(row: Any) -> Job:
    (
        job_id, topic, template_version, payload, status, priority, run_at, expires_at, key, scope, scope_id, tags,
        trace, step, progress, stage, message, result, last_error, retries, max_retries, crashes, timeout, version,
        locked_by, locked_until, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, updated,
        claimed_at, started_at, finished_at, events_count,
    ) = row  # fmt: skip
    return Job(
        str(job_id), topic, template_version or None, decode(payload), STATUS[status], priority, run_at, expires_at,
        key, scope, scope_id, () if tags is None else tuple(decode(tags)), trace, step, progress, stage, message,
        None if result is None else decode(result), last_error, retries, max_retries, crashes, timeout, version,
        locked_by, locked_until, cancel_requested_at, cancel_reason, None if flow_id is None else str(flow_id),
        None if schedule_id is None else str(schedule_id), fire_at, created, updated, claimed_at, started_at,
        finished_at, events_count,
    )  # fmt: skip


def state(row: Any) -> State:
    """A row whose columns are State's fields, in their order."""
    job_id, topic, status, version, progress, stage, message, step, key, scope, scope_id, flow_id, *same = row
    flow = None if flow_id is None else str(flow_id)
    return State(
        str(job_id), topic, STATUS[status], version, progress, stage, message, step, key, scope, scope_id, flow, *same
    )


def claimed_job(row: Any, worker: str, now: datetime, until: datetime, started: datetime | None) -> Job:
    (
        _, _, _, _, _, job_id, topic, template_version, payload, priority, run_at, expires_at, key, scope, scope_id,
        tags, trace, step, result, last_error, retries, max_retries, crashes, timeout, version, cancel_requested_at,
        cancel_reason, flow_id, schedule_id, fire_at, created, events_count,
    ) = row  # fmt: skip
    return Job(
        str(job_id), topic, template_version or None, decode(payload), Status.PROCESSING, priority, run_at, expires_at,
        key, scope, scope_id, () if tags is None else tuple(decode(tags)), trace, step, 0.0, None, None,
        None if result is None else decode(result), last_error, retries, max_retries, crashes, timeout, version,
        worker, until, cancel_requested_at, cancel_reason, None if flow_id is None else str(flow_id),
        None if schedule_id is None else str(schedule_id), fire_at, created, now, now, started, None, events_count,
    )  # fmt: skip


def turn(job: Job) -> tuple[int, datetime, str]:
    """The order in which jobs are claimed."""
    return -job.priority, job.run_at, job.id


def kept(row: Any) -> Kept:
    return Kept(
        id=str(row[0]),
        topic=row[1],
        status=STATUS[row[2]],
        ready=row[3],
        version=row[4],
        retries=row[5],
        max_retries=row[6],
        key=row[7],
        locked_by=row[8],
        locked_until=row[9],
        finished_at=row[10],
        scope=row[11],
        scope_id=row[12],
        history=decode(row[13]) if row[13] else (),
        dropped=row[14],
        twice=row[15],
    )


def event(row: Any) -> Event:
    job_id, seq, at, name, status, version, by, data = row
    return Event(
        job_id=str(job_id),
        seq=seq,
        at=at,
        event=name,
        status=STATUS.get(status),
        version=version,
        by=by,
        data=decode(data),
    )


def insert_arrays(jobs: Sequence[NewJob]) -> tuple[Sequence[Any], ...]:
    """A column per field, in their order."""
    columns: list[Sequence[Any]] = list(zip(*map(astuple, jobs), strict=True))
    columns[_VERSION] = [version or 0 for version in columns[_VERSION]]
    columns[_TAGS] = [tags_text(tags) for tags in columns[_TAGS]]
    return tuple(columns)


def insert_alike(jobs: Sequence[NewJob]) -> tuple[Any, ...] | None:
    """What the jobs have in common, if they differ in id, topic and payload only, and have no more than every job has:
    the last parameters of insert_alike.sql."""
    same = astuple(jobs[0])[_OPTIONS:]
    priority, run_at, delay, expires_at, key, scope, scope_id, version, max_retries, timeout, tags, trace = same
    if run_at or expires_at or key or scope or scope_id or tags or trace:
        return None
    if len(jobs) > 1 and any(astuple(job)[_OPTIONS:] != same for job in jobs):
        return None
    return priority, delay, version or 0, max_retries, timeout


def completions(settlements: list[Settlement]) -> tuple[Any, ...]:
    """All of the same version and worker."""
    return (
        [settlement.id for settlement in settlements],
        settlements[0].version,
        [settlement.transition.result for settlement in settlements],
        [settlement.transition.ran for settlement in settlements],
        settlements[0].worker,
    )


def settle_arrays(settlements: list[Settlement], *, mixed: bool = False) -> tuple[Any, ...]:
    """`mixed`: of several workers."""
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
    )


def tags_text(tags: tuple[str, ...]) -> str | None:
    return encode(list(tags), "tags") if tags else None


def edit(given: Edit) -> tuple[Any, ...]:
    """The parameters of update.sql and requeue.sql that say what to change."""
    values = [getattr(given, name) for name in ("priority", "run_at", "delay", "payload")]
    tags = None if given.tags is UNSET else tags_text(given.tags)
    return *(None if value is UNSET else value for value in values), given.tags is not UNSET, tags, given.changed


def lines_text(lines: tuple[NewLine, ...]) -> str | None:
    """Of any length: they are cut where they are kept."""
    return _encode([(span(line.age), line.level, line.text) for line in lines]).decode() if lines else None


def worker_values(worker: WorkerInfo) -> tuple[Any, ...]:
    return (
        worker.name,
        worker.host,
        worker.pid,
        list(worker.topics),
        worker.concurrency,
        worker.running,
        worker.lease,
        worker.stopping,
        worker.rowlock,
    )


def worker(row: Any) -> WorkerInfo:
    known = dict(row)
    return WorkerInfo(**known | {"topics": tuple(known["topics"])})


def entry_text(settlement: Settlement) -> str:
    return encode(settlement.transition.entry(settlement.version), "history")
