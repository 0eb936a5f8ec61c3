"""Bulk actions. A preview is one INSERT … SELECT. A batch is one transaction: it locks the bulk action's row and the
jobs, and leaves out jobs that have moved. It applies the operators' own order to the rest, and notes the outcome of
each job."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg

from rowlock.core.job import Status
from rowlock.stores.bulk import (
    MAX_ITEMS,
    Bulk,
    BulkItem,
    Listed,
    NewBulk,
    Told,
    new_row,
    read_bulk,
    tell,
    too_broad,
    too_many,
    unmoved,
    walks,
)
from rowlock.stores.listing import Walk, WalkPart
from rowlock.stores.postgres import moves, rows
from rowlock.stores.postgres.listing import PostgresPart
from rowlock.stores.postgres.statements import Statements
from rowlock.stores.queries import Filter

# How many jobs at once, and how many milliseconds to wait for another transaction's lock. A batch that meets such a
# lock gives way long before the server looks for a deadlock and ends a transaction, ours or the application's. A single
# job holds no other key while it waits, so it can't be part of a deadlock, and may wait longer.
TRIES = ((500, "100"), (50, "100"), (5, "100"), (1, "1000"))
_ATTEMPTS = 8  # tries for a single job, if other transactions take and free its key

LONGEST_LOOK = 50.0  # seconds that a preview may take to list its jobs: the driver hangs up after 60
# The search may read every job: plan it for these values, and allow a sequential scan.
_LOOK = (
    "SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL enable_seqscan = on; "
    f"SET LOCAL statement_timeout = '{LONGEST_LOOK:g}s'"
)
_CREATED = ("id", "total", "action", "by", "reason", "arguments", "filter", "unfit")  # as bulk_create.sql takes them
_COLUMNS = "j.created, j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped AS events"


class Contended(Exception):
    """Another transaction holds a job of the batch, or the key of a job. Nothing was done; try again with fewer
    jobs."""


# ── The preview ──


async def create(connection: Any, sql: Statements, schema: str, bulk: NewBulk, filter: Filter | None) -> Bulk:
    """Make a preview, in a transaction of its own. `filter` None: no job can meet it. A bulk action with this id was
    made by an earlier try."""
    if there := await connection.fetchrow(sql.bulks, [bulk.id], rows.LARGEST_ID, 1):
        return read(there)
    total = 0
    if bulk.undoes is not None:
        total = rows.count(await connection.execute(sql.bulk_undo, bulk.id, bulk.undoes))
    elif filter is not None:
        statement, values = _listing(schema, bulk.id, filter)
        await connection.execute(_LOOK)
        try:
            total = rows.count(await connection.execute(statement, *values))
        except asyncpg.QueryCanceledError:
            raise too_broad(LONGEST_LOOK) from None
    if total > MAX_ITEMS:
        raise too_many()
    new = new_row(bulk, total)
    return read(await connection.fetchrow(sql.bulk_create, *(new[name] for name in _CREATED)))


def _listing(schema: str, bulk_id: str, filter: Filter) -> tuple[str, list[Any]]:
    """Return the statement that lists the jobs. It lists one more than is allowed if there are too many."""
    render = PostgresPart(schema, filter, WalkPart(Walk(False, "id"), None, 0, 0))
    parts = []
    for walk in walks(filter):
        status = "'completed'" if walk.archived else "j.status"
        source = f"{render.table(walk)} j WHERE {render.where(walk)}"
        parts.append(f"SELECT j.id, {status} AS status, {_COLUMNS} FROM {source}")  # noqa: S608 - see Renderer
    statement = (
        f"INSERT INTO {schema}._jobs_bulk_items (bulk_id, job_id, status, created, events) "  # noqa: S608 - see Renderer
        f"SELECT {render.bind(bulk_id, 'uuid')}, f.* FROM ({' UNION ALL '.join(parts)}) f LIMIT {MAX_ITEMS + 1} "
        "ON CONFLICT DO NOTHING"  # an id that was used twice is in both tables
    )
    return statement, render.values


# ── A batch ──


async def run(connection: Any, sql: Statements, bulk_id: str | None, limit: int, patience: str) -> Bulk | None:
    """Run a batch, in a transaction of its own. Return the bulk action; None: no bulk action is left to run."""
    taken = await connection.fetchrow(sql.bulk_take, bulk_id, patience)
    if taken is None:
        return None
    bulk, reached = read(taken), taken["reached"]
    told = None
    for _ in range(1 if limit > 1 else _ATTEMPTS):
        try:
            async with connection.transaction():
                told = await _act(connection, sql, bulk, reached, limit)
            break
        except asyncpg.UniqueViolationError as error:  # another job has just got the key: the next try sees that job
            if not str(error.constraint_name).startswith("_jobs"):
                raise
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            break
    if told is None:
        if limit > 1:
            raise Contended
        [(job_id, *_)] = await connection.fetch(sql.bulk_items, bulk.id, behind(reached), None, 1)
        told = [Told(str(job_id), "locked")]
    row = await connection.fetchrow(
        sql.bulk_note, bulk.id, [one.job_id for one in told], [one.outcome for one in told],
        [one.holder for one in told],
    )  # fmt: skip
    return read(row)


async def _act(connection: Any, sql: Statements, bulk: Bulk, reached: UUID | None, limit: int) -> list[Told]:
    items = [Listed(*row) for row in await connection.fetch(sql.bulk_next, bulk.id, behind(reached), limit)]
    order = bulk.order
    now, found = await moves.lock(connection, sql, order, [item.job_id for item in items])
    decided = await moves.apply(connection, sql, order, now, unmoved(items, found))
    return tell(items, found, decided)


# ── Rows ──


def read(row: Any) -> Bulk:
    return read_bulk(row, lambda at: at)


def item(row: Any) -> BulkItem:
    job_id, status, outcome, holder = row
    return BulkItem(str(job_id), Status(status), outcome, None if holder is None else str(holder))


def behind(at: UUID | str | None) -> str:
    """Return the first id behind this one: an index can read a range that begins there."""
    return str(UUID(int=0 if at is None else min(UUID(str(at)).int + 1, (1 << 128) - 1)))
