"""enqueue: new rows, unless the job is there already. Also runs on a caller's own connection, in its transaction."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection, Cursor
from typing import Any

from rowlock.core.job import NewJob, Status
from rowlock.stores.base import Inserted
from rowlock.stores.sqlite.rows import STATUS, Times, json_text, micros, span, sql


def insert(conn: Connection, now: int, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Inserted]:
    cursor = conn.cursor()
    cursor.row_factory = None  # a caller's connection may have one
    times = Times()
    answers = []
    statement = sql("insert")
    for new in jobs:
        # An id that was archived is in no index of _jobs: ask before, and only if it can be.
        found = _first(cursor, "insert_archived", new.id) if repeat else None
        if found is None:
            run_at, row = _row(new, now)
            cursor.execute(statement, row)
            if cursor.rowcount == 1:
                answers.append(Inserted(new.id, False, Status.PENDING, times[run_at], times[now]))
                continue
            found = _first(cursor, "insert_same_id", new.id) or _first(cursor, "insert_same_key", new.topic, new.key)
        job_id, status, run_at, created = found
        answers.append(Inserted(job_id, True, STATUS[status], times[run_at], times[created]))
    return answers


def _row(new: NewJob, now: int) -> tuple[int, tuple[Any, ...]]:
    run_at = now + span(new.delay) if new.run_at is None else micros(new.run_at)
    return run_at, (
        new.id,
        new.topic,
        new.template_version or 0,
        1 if run_at <= now else 0,  # not a bool: those take the slow way into SQLite
        new.priority,
        new.max_retries,
        new.timeout,
        now,
        now,
        run_at,
        None if new.expires_at is None else micros(new.expires_at),
        new.key,
        new.scope,
        new.scope_id,
        new.trace,
        json_text(new.tags) if new.tags else None,
        new.payload,
    )


def _first(cursor: Cursor, statement: str, *values: str | None) -> Any:
    return cursor.execute(sql(statement), values).fetchone()
