"""From PostgreSQL's rows to rowlock's values. On the hot path: positional, no loops."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from rowlock.core.codec import decode, encode
from rowlock.core.job import Event, Job, Lane, NewJob, Status
from rowlock.core.lifecycle import Settlement
from rowlock.core.verify import Kept
from rowlock.stores.base import NewLine, WorkerInfo
from rowlock.stores.times import span

STATUS = {status.value: status for status in Status}
LARGEST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"

_encode = msgspec.json.Encoder().encode

# In the order of Job's fields, of a row called j.
COLUMNS = """j.id, j.topic, j.template_version, j.payload, j.status, j.priority, j.run_at, j.expires_at, j.key, j.scope,
    j.scope_id, j.tags, j.trace, j.step, j.progress, j.stage, j.message, j.result, j.last_error, j.retries,
    j.max_retries, j.crashes, j.timeout, j.version, j.locked_by, j.locked_until, j.cancel_requested_at,
    j.cancel_reason, j.flow_id, j.schedule_id, j.fire_at, j.created, j.updated, j.claimed_at, j.started_at,
    j.finished_at"""
LIVE_COLUMNS = (
    f"{COLUMNS}, 1 + j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped AS events_count"
)


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
        history=decode(row[11]) if row[11] else (),
        dropped=row[12],
        twice=row[13],
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


def insert_arrays(jobs: list[NewJob]) -> tuple[list[Any], ...]:
    return (
        [job.id for job in jobs],
        [job.topic for job in jobs],
        [job.payload for job in jobs],
        [job.priority for job in jobs],
        [job.run_at for job in jobs],
        [job.delay for job in jobs],
        [job.expires_at for job in jobs],
        [job.key for job in jobs],
        [job.scope for job in jobs],
        [job.scope_id for job in jobs],
        [job.template_version or 0 for job in jobs],
        [job.max_retries for job in jobs],
        [job.timeout for job in jobs],
        [tags_text(job.tags) for job in jobs],
        [job.trace for job in jobs],
    )


def settle_arrays(settlements: list[Settlement]) -> tuple[list[Any], ...]:
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
    )


Bound = tuple[int, datetime, str]


def lane_arrays(lanes: tuple[Lane, ...], bounds: dict[Lane, Bound]) -> tuple[list[Any], ...]:
    none = (None, None, None)
    after = [bounds.get(lane, none) for lane in lanes]
    return (
        [lane.topic for lane in lanes],
        [lane.template_version or 0 for lane in lanes],
        [rank for rank, _, _ in after],
        [run_at for _, run_at, _ in after],
        [job_id for _, _, job_id in after],
    )


def tags_text(tags: tuple[str, ...]) -> str | None:
    return encode(list(tags), "tags") if tags else None


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
