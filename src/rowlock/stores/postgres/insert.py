"""enqueue: new rows, unless the job is there already."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from rowlock.core.job import NewJob, Status
from rowlock.stores.base import Enqueued
from rowlock.stores.postgres import rows
from rowlock.stores.postgres.connections import Conflict
from rowlock.stores.postgres.statements import Statements


async def insert(
    connection: Any, sql: Statements, jobs: Sequence[NewJob], *, keyed: bool, repeat: bool
) -> list[Enqueued]:
    """On a connection; in a transaction, if it may have to be undone. Raises Conflict to be run again."""
    now, fresh = await _insert_new(connection, sql, list(jobs), keyed, repeat)
    answers: dict[int, Enqueued] = {}
    taken: list[int] = []
    for n, job in enumerate(jobs):
        if job.id in fresh:
            fresh.remove(job.id)  # the same id again in this batch is answered by the first
            run_at = job.run_at or now + timedelta(seconds=job.delay)
            answers[n] = Enqueued(job.id, False, Status.PENDING, run_at, now)
        else:
            taken.append(n)
    if taken:
        answers |= await _existing(connection, sql, jobs, taken)
    if len(answers) < len(jobs):
        # Whoever held a key ended between our INSERT and our look. From the beginning: to insert only what is left,
        # while we hold the keys that we got, would take keys out of order.
        raise Conflict("a key was taken, and freed at once")
    return [answers[n] for n in range(len(jobs))]


async def _insert_new(
    connection: Any, sql: Statements, jobs: list[NewJob], keyed: bool, repeat: bool
) -> tuple[datetime, set[str]]:
    """The ids that are new."""
    statement = sql.insert_keyed if keyed else sql.insert
    now, count, ids = await connection.fetchrow(statement, *rows.insert_arrays(jobs))
    everything = ids is None and count == len(jobs)
    fresh = {job.id for job in jobs} if everything else {str(job_id) for job_id in ids or ()}
    if repeat and fresh:
        fresh -= {str(row[0]) for row in await connection.fetch(sql.insert_undo, list(fresh))}
    return now, fresh


async def _existing(connection: Any, sql: Statements, jobs: Sequence[NewJob], taken: list[int]) -> dict[int, Enqueued]:
    found = await connection.fetch(
        sql.existing,
        [jobs[n].id for n in taken],
        [jobs[n].topic for n in taken],
        [jobs[n].key for n in taken],
    )
    return {
        taken[n - 1]: Enqueued(str(job_id), True, rows.STATUS[status], run_at, created)
        for n, job_id, status, run_at, created in found
    }
