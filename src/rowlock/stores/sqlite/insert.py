"""enqueue: inserts jobs, unless they exist already. Also runs on a caller's own connection, in its transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from sqlite3 import Connection, Cursor
from typing import Any

from msgspec.structs import replace

from rowlock.core.debounce import Slot, Throttle, held_by
from rowlock.core.ids import STRAY, first_id_of
from rowlock.core.job import NewJob, Status
from rowlock.core.moves import Debounced
from rowlock.errors import OnceTaken
from rowlock.stores.base import Enqueued
from rowlock.stores.sqlite import moves
from rowlock.stores.sqlite.lines import advance_lines
from rowlock.stores.sqlite.rollups import note_enqueued
from rowlock.stores.sqlite.rows import STATUS, Times, json_text, micros, span, sql
from rowlock.stores.windows import by_line

_HOUR = int(STRAY * 1000)  # milliseconds
PENDING, BLOCKED = Status.PENDING, Status.BLOCKED  # an attribute of an enum takes its time
_SIZES = (64, 8, 1)  # rows per statement; few sizes, so that the prepared statements stay in Python's cache


def insert(conn: Connection, now: int, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued]:
    if _are_plain(jobs):
        return _insert_counted(conn, now, jobs, repeat)
    factory, conn.row_factory = conn.row_factory, None  # a caller's connection may have one
    conn.execute("SAVEPOINT rowlock_insert")  # a caller may go on with its transaction after OnceTaken
    try:
        if any(job.debounce or job.throttle for job in jobs):
            answers = _insert_in_windows(conn, now, jobs, repeat)
        else:
            answers = _place(conn, now, jobs, _insert_counted(conn, now, jobs, repeat))
    except BaseException:
        conn.execute("ROLLBACK TO rowlock_insert")
        raise
    finally:
        conn.execute("RELEASE rowlock_insert")
        conn.row_factory = factory
    return answers


def _insert_counted(conn: Connection, now: int, jobs: Sequence[NewJob], repeat: bool) -> list[Enqueued]:
    answers = _insert_jobs(conn, now, jobs, repeat)
    topics: dict[str, int] = {}
    for job, one in zip(jobs, answers, strict=True):
        if not one.existing:
            topics[job.topic] = topics.get(job.topic, 0) + 1
    note_enqueued(conn, now, topics)
    return answers


def _are_plain(jobs: Sequence[NewJob]) -> bool:
    """Return True if no job stands in a line, counts once, has a flow or is throttled."""

    return not any([job.line or job.once or job.flow_id or job.throttle for job in jobs])  # noqa: C419


def _insert_in_windows(conn: Connection, now: int, jobs: Sequence[NewJob], repeat: bool) -> list[Enqueued]:
    answers = {n: _insert_in_window(conn, now, job, repeat) for n, job in enumerate(jobs) if job.debounce is None}
    todo = [n for n, job in enumerate(jobs) if job.debounce is not None]
    if repeat:  # a job that exists is not replaced by itself
        there = {n: _there(conn.cursor(), jobs[n].id) for n in todo}
        answers |= {n: one for n, one in there.items() if one is not None}
    for group in by_line(jobs, [n for n in todo if n not in answers]):
        answer = _debounce(conn, now, group.job) or _insert_in_window(conn, now, group.job, repeat)
        answers |= group.answers(answer)
    return [answers[n] for n in range(len(jobs))]


def _insert_in_window(conn: Connection, now: int, job: NewJob, repeat: bool) -> Enqueued:
    """Insert a job, unless its throttle lets another job answer."""
    throttle = job.throttle
    if throttle is not None and (slot := _slot(conn, throttle)) is not None:
        holder = held_by(slot, throttle, job.id, now)
        if holder is not None:
            conn.execute(sql("throttle_keep"), {"line": throttle.line, "span": span(throttle.seconds)})
            return _there(conn.cursor(), holder) or _gone(holder, slot.at)
    [answer] = _place(conn, now, [job], _insert_counted(conn, now, [job], repeat))
    if throttle is not None and answer.id == job.id:
        at = micros(answer.created)
        conn.execute(sql("throttle_put"), (throttle.line, job.id, at, at + span(throttle.seconds)))
    return answer


def _debounce(conn: Connection, now: int, job: NewJob) -> Enqueued | None:
    """Replace the payload of the job that waits in the line, and return the answer. None: no job waits, so the job is
    to be inserted."""
    rows = moves.lock_open(conn, job.line or "")
    if not rows:
        return None
    moves.apply(conn, now, Debounced(job=job), rows)
    return _there(conn.cursor(), rows[0].id)


def _slot(conn: Connection, throttle: Throttle) -> Slot | None:
    found = conn.execute(sql("throttle"), (throttle.line,)).fetchone()
    return None if found is None else Slot(*found)


def _there(cursor: Cursor, job_id: str) -> Enqueued | None:
    found = _first(cursor, "insert_same_id", job_id) or _first(cursor, "insert_archived", job_id)
    if found is None:
        return None
    job_id, status, run_at, created = found
    times = Times()
    return Enqueued(job_id, True, STATUS[status], times[run_at], times[created])


def _gone(job_id: str, at: int) -> Enqueued:
    """Return the answer of a job that was pruned or deleted."""
    made = Times()[at]
    return Enqueued(job_id, True, Status.COMPLETED, made, made)


def _place(conn: Connection, now: int, jobs: Sequence[NewJob], answers: list[Enqueued]) -> list[Enqueued]:
    """Note the keys that count once, and give each line its head. Return the answers."""
    for job, answer in zip(jobs, answers, strict=True):
        if job.once is None:
            continue
        if answer.id == job.id:
            conn.execute(sql("once"), (job.once, job.id, now))
            first = _first(conn.cursor(), "once_held", job.once)[0]
        else:
            first = answer.id
        if first != job.id:
            raise OnceTaken(job.topic, job.key or "", first)
    heads = advance_lines(conn, now, sorted({job.line for job in jobs if job.line is not None and job.if_live}))
    return [replace(one, status=Status.PENDING) if one.id in heads else one for one in answers]


def _insert_jobs(conn: Connection, now: int, jobs: Sequence[NewJob], repeat: bool) -> list[Enqueued]:
    if len({job.id for job in jobs}) < len(jobs):  # an id twice in one batch: then step by step
        return [_insert_jobs(conn, now, [job], repeat)[0] for job in jobs]
    cursor = conn.cursor()
    cursor.row_factory = None  # a caller's connection may have one
    # An id in the archive is no conflict that SQLite sees: look before, and only if it can be there.
    archived = {job.id for job in jobs if _first(cursor, "insert_archived", job.id)} if repeat else set()
    wanted = [job for job in jobs if job.id not in archived] if archived else jobs
    new = _insert(cursor, now, wanted)
    times = Times()
    born = times[now]
    if new is None and not archived:  # the usual case, in short
        return [
            Enqueued(job.id, False, BLOCKED if job.is_blocked else PENDING, times[_run_at(job, now)], born)
            for job in jobs
        ]
    return [
        Enqueued(job.id, False, BLOCKED if job.is_blocked else PENDING, times[_run_at(job, now)], born)
        if (job.id not in archived if new is None else job.id in new)
        else _existing(cursor, job, job.id in archived, times)
        for job in jobs
    ]


def _insert(cursor: Cursor, now: int, jobs: Sequence[NewJob]) -> set[str] | None:
    """Insert jobs. Return the ids that were inserted; None if all of them."""
    (before,) = cursor.execute(sql("insert_before")).fetchone()
    low, high = first_id_of(now // 1000 - _HOUR), first_id_of(now // 1000 + _HOUR)
    lined = [job for job in jobs if _has_more(job)]
    inserted = sum(_insert_lined(cursor, job, now, not low <= job.id < high) for job in lined)
    for part in _parts([job for job in jobs if not _has_more(job)] if lined else jobs):
        values: list[Any] = []
        plain = all(low <= job.id < high and _is_plain(job) for job in part)
        for job in part:
            values += _plain_row(job, now) if plain else _row(job, now, not low <= job.id < high)
        inserted += cursor.execute(_statement("insert_plain" if plain else "insert", len(part)), values).rowcount
    if inserted == len(jobs):
        return None
    ids = json_text([job.id for job in jobs])
    return {job_id for (job_id,) in cursor.execute(sql("insert_new"), {"ids": ids, "before": before}).fetchall()}


def _has_more(job: NewJob) -> bool:
    """Return True if it has values for columns that few jobs use."""
    return job.line is not None or job.flow_id is not None or job.share is not None


def _insert_lined(cursor: Cursor, job: NewJob, now: int, stray: bool) -> int:
    job_id, topic, version, ready, *rest = _row(job, now, stray)
    place = cursor.execute(sql("line_seq")).fetchone()[0] if job.if_live is not None else None
    status = BLOCKED if job.is_blocked else PENDING
    ready = 0 if job.is_blocked else ready
    values = (job_id, topic, version, ready, *rest, job.if_live, job.line, place, job.flow_id, status.value, job.share)
    return cursor.execute(sql("insert_lined"), values).rowcount


def _parts(jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    at = 0
    for size in _SIZES:
        while len(jobs) - at >= size:
            yield jobs[at : at + size]
            at += size


@cache
def _statement(name: str, rows: int) -> str:
    """Return the statement for so many rows. With many rows in one statement, SQLite opens the table and its indexes
    once."""
    head, values, rest = sql(name).partition("VALUES\n")
    row, _, tail = rest.partition("\n")
    return head + values + ",\n".join([row] * rows) + "\n" + tail


def _run_at(job: NewJob, now: int) -> int:
    if job.run_at is None:
        return now + span(job.delay) if job.delay else now
    return micros(job.run_at)


def _is_plain(job: NewJob) -> bool:
    return (
        job.key is None
        and job.expires_at is None
        and job.scope is None
        and job.scope_id is None
        and job.trace is None
        and not job.tags
    )


def _plain_row(job: NewJob, now: int) -> tuple[Any, ...]:
    run_at = _run_at(job, now)
    ready = 1 if run_at <= now else 0  # not a bool: Python passes bools to SQLite more slowly
    return (
        job.id, job.topic, job.template_version, ready, job.priority, job.max_retries, job.timeout, now, now,
        run_at, job.payload,
    )  # fmt: skip


def _row(job: NewJob, now: int, stray: bool) -> tuple[Any, ...]:
    expires_at = None if job.expires_at is None else micros(job.expires_at)
    tags = json_text(job.tags) if job.tags else None
    return *_plain_row(job, now), expires_at, job.key, job.scope, job.scope_id, job.trace, tags, int(stray)


def _existing(cursor: Cursor, job: NewJob, archived: bool, times: Times) -> Enqueued:
    """Return the job that prevents the insert: the job with this id, or else the live job with this key."""
    same_id = _first(cursor, "insert_archived" if archived else "insert_same_id", job.id)
    job_id, status, run_at, created = same_id or _first(
        cursor, "insert_same_key", job.topic, job.scope, job.scope_id, job.key
    )
    return Enqueued(job_id, True, STATUS[status], times[run_at], times[created])


def _first(cursor: Cursor, statement: str, *values: str | None) -> Any:
    return cursor.execute(sql(statement), values).fetchone()
