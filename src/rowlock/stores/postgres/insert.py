"""enqueue: inserts jobs, unless they exist already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import asyncpg

from rowlock.core.job import NewJob, Status
from rowlock.stores.base import Enqueued
from rowlock.stores.postgres import rows
from rowlock.stores.postgres.clock import JUMPED, LATE, Clock, Deadlines
from rowlock.stores.postgres.connections import Conflict
from rowlock.stores.postgres.statements import Statements


async def insert_new(
    connection: Any, sql: Statements, deadlines: Deadlines, jobs: Sequence[NewJob], ring: tuple[bool, str, int, int]
) -> tuple[list[Enqueued], bool | None]:
    """Insert jobs without keys whose ids are new. One statement needs no round trips for BEGIN and COMMIT.

    `ring`: whether to ring, the channel, the key of the lock that waiting workers hold, and that of the ringing lock.
    The second answer says whether it rang; None if another process was ringing. Raise Conflict: call it again."""
    same = rows.insert_alike(jobs)
    parameters: tuple[Any, ...]
    if same is None:
        statement, parameters = sql.insert_new, rows.insert_arrays(jobs)
    else:
        columns = [job.id for job in jobs], [job.topic for job in jobs], [job.payload for job in jobs]
        topics = Counter(columns[1])
        statement, parameters = sql.insert_alike, (*columns, *same, *ring, list(topics), list(topics.values()))
    not_after = deadlines.not_after()
    try:
        row = await connection.fetchrow(statement, *parameters, not_after)
    except asyncpg.UniqueViolationError as error:
        if not str(error.constraint_name).startswith("_jobs"):  # an index that the user has made
            raise
        row = None  # an id exists, or is twice in this batch: nothing was written
    except asyncpg.InvalidTextRepresentationError as error:
        raise _refusal(error, deadlines) from error
    if row is not None and deadlines.was_late(row[0], not_after):
        raise Conflict(JUMPED)
    if row is None or row[1] < len(jobs):
        return await insert(connection, sql, deadlines, jobs, keyed=False, repeat=False), False
    now = row[0]
    if same is None:
        return [Enqueued(job.id, False, Status.PENDING, _run_at(job, now), now) for job in jobs], False
    run_at = _run_at(jobs[0], now)
    return [Enqueued(job.id, False, Status.PENDING, run_at, now) for job in jobs], row[2]


async def insert(
    connection: Any, sql: Statements, deadlines: Clock | Deadlines, jobs: Sequence[NewJob], *, keyed: bool, repeat: bool
) -> list[Enqueued]:
    """Insert jobs. The caller begins a transaction if the insert may have to be undone. Then `deadlines` is the clock:
    an insert that is never committed makes no job, however late it arrives. Raise Conflict: call it again."""
    now, fresh = await _insert_absent(connection, sql, deadlines, jobs, keyed, repeat)
    answers: dict[int, Enqueued] = {}
    taken: list[int] = []
    for n, job in enumerate(jobs):
        if job.id in fresh:
            fresh.remove(job.id)  # the same id again in this batch is the same job
            answers[n] = Enqueued(job.id, False, Status.PENDING, _run_at(job, now), now)
        else:
            taken.append(n)
    if taken:
        answers |= await _existing(connection, sql, jobs, taken)
    if len(answers) < len(jobs):
        # A job that held a key ended between our INSERT and our search. All jobs are inserted again: to insert only the
        # rest, while we hold other keys, would take keys out of order.
        raise Conflict("a key was taken, and freed at once")
    return [answers[n] for n in range(len(jobs))]


async def _insert_absent(
    connection: Any, sql: Statements, deadlines: Clock | Deadlines, jobs: Sequence[NewJob], keyed: bool, repeat: bool
) -> tuple[datetime, set[str]]:
    """Return the database's time, and the ids that are new."""
    statement = sql.insert_keyed if keyed else sql.insert
    not_after = deadlines.not_after()
    try:
        now, count, ids = await connection.fetchrow(statement, *rows.insert_arrays(jobs), not_after)
    except asyncpg.InvalidTextRepresentationError as error:
        raise _refusal(error, deadlines) from error
    if deadlines.was_late(now, not_after):
        raise Conflict(JUMPED)
    everything = ids is None and count == len(jobs)
    fresh = {job.id for job in jobs} if everything else {str(job_id) for job_id in ids or ()}
    if repeat and fresh:
        fresh -= {str(row[0]) for row in await connection.fetch(sql.insert_undo, list(fresh))}
    return now, fresh


def _refusal(error: asyncpg.PostgresError, deadlines: Clock | Deadlines) -> Exception:
    """Return a Conflict if the insert took itself back: it began in time, and waited for too long."""
    if LATE not in str(error):
        return error
    deadlines.give_more()
    return Conflict(str(error))


def _run_at(job: NewJob, now: datetime) -> datetime:
    return job.run_at or now + timedelta(seconds=job.delay)


async def _existing(connection: Any, sql: Statements, jobs: Sequence[NewJob], taken: list[int]) -> dict[int, Enqueued]:
    found = await connection.fetch(
        sql.existing,
        [jobs[n].id for n in taken],
        [jobs[n].topic for n in taken],
        [jobs[n].scope for n in taken],
        [jobs[n].scope_id for n in taken],
        [jobs[n].key for n in taken],
    )
    return {
        taken[n - 1]: Enqueued(str(job_id), True, rows.STATUS[status], run_at, created)
        for n, job_id, status, run_at, created in found
    }
