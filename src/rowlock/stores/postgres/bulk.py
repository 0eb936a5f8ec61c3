"""Bulk actions. A preview is one INSERT … SELECT. A batch is one transaction that holds the object's row, locks the
jobs, leaves out those that have moved, does the verb's own statement to the rest, and notes what became of each."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from rowlock.core import codec
from rowlock.core.job import LiveKey, Status
from rowlock.stores.base import Edit
from rowlock.stores.bulk import (
    MAX_ITEMS,
    VERBS,
    Bulk,
    BulkItem,
    NewBulk,
    Told,
    Unfit,
    too_broad,
    too_many,
    walks,
    without_rivals,
)
from rowlock.stores.listing import Step, Walk
from rowlock.stores.postgres.listing import PostgresStep
from rowlock.stores.postgres.rows import LARGEST_ID, edit
from rowlock.stores.postgres.statements import Statements
from rowlock.stores.reading import Filter

# How many jobs at once, and for how many milliseconds another transaction's lock is waited for. A batch that meets one
# gives way long before the server would look for a deadlock and end someone's transaction, ours or the application's. A
# job alone holds no other key while it waits, so it can't be part of a circle, and may wait longer.
TRIES = ((500, "100"), (50, "100"), (5, "100"), (1, "1000"))
_ATTEMPTS = 8  # of a job alone, whose key comes and goes

LONGEST_LOOK = 50.0  # seconds in which a preview must have listed its jobs: the driver hangs up after 60
# Of everything that meets the filter, by a plan for these values: it may well be a sequential scan.
_LOOK = (
    "SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL enable_seqscan = on; "
    f"SET LOCAL statement_timeout = '{LONGEST_LOOK:g}s'"
)
_COLUMNS = "j.created, j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped AS events"


class Contended(Exception):
    """Another transaction holds a job of the batch, or the key of one: nothing was done. Fewer may fare better."""


# ── The preview ──


async def create(connection: Any, sql: Statements, schema: str, bulk: NewBulk, filter: Filter | None) -> Bulk:
    """In a transaction of its own. `filter` None: no job can meet it. What is there already, was made by an earlier
    try."""
    if there := await connection.fetchrow(sql.bulks, [bulk.id], LARGEST_ID, 1):
        return read(there)
    total = 0
    if bulk.undoes is not None:
        total = _count(await connection.execute(sql.bulk_undo, bulk.id, bulk.undoes))
    elif filter is not None:
        statement, values = _listing(schema, bulk.id, filter)
        await connection.execute(_LOOK)
        try:
            total = _count(await connection.execute(statement, *values))
        except asyncpg.QueryCanceledError:
            raise too_broad(LONGEST_LOOK) from None
    if total > MAX_ITEMS:
        raise too_many()
    row = await connection.fetchrow(
        sql.bulk_create, bulk.id, total, bulk.action, bulk.by, bulk.reason,
        codec.encode(bulk.arguments, "arguments"), codec.encode(bulk.filter, "filter"),
        msgspec.json.encode(bulk.unfit).decode(),
    )  # fmt: skip
    return read(row)


def _count(told: str) -> int:
    """From "INSERT 0 n"."""
    return int(told.rsplit(" ", 1)[1])


def _listing(schema: str, bulk_id: str, filter: Filter) -> tuple[str, list[Any]]:
    """The statement that lists them. One more than is allowed tells that there are too many."""
    render = PostgresStep(schema, filter, Step(Walk(False, "id"), None, 0, 0))
    parts = []
    for walk in walks(filter):
        status = "'completed'" if walk.archived else "j.status"
        source = f"{render.table(walk)} j WHERE {render.where(walk)}"
        parts.append(f"SELECT j.id, {status} AS status, {_COLUMNS} FROM {source}")  # noqa: S608 - see Renderer
    statement = (
        f"INSERT INTO {schema}._jobs_bulk_items (bulk_id, job_id, status, created, events) "  # noqa: S608 - see Renderer
        f"SELECT {render.id(bulk_id)}, f.* FROM ({' UNION ALL '.join(parts)}) f LIMIT {MAX_ITEMS + 1} "
        "ON CONFLICT DO NOTHING"  # an id that was used twice, and stands in both tables
    )
    return statement, render.values


# ── A batch ──


async def run(connection: Any, sql: Statements, bulk_id: str | None, limit: int, patience: str) -> Bulk | None:
    """In a transaction of its own."""
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
        except asyncpg.UniqueViolationError as error:  # someone took its key this moment: seen at the next look
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
    found = await connection.fetch(sql.bulk_next, bulk.id, behind(reached), limit)
    live = [(str(row["job_id"]), _key(row)) for row in found if row["live"] and row["same"]]
    away = [str(row["job_id"]) for row in found if not row["live"]]
    archived = dict(await connection.fetch(sql.bulk_archived, bulk.id, away)) if away else {}
    fit, rivals = without_rivals(live) if bulk.action == "requeue" else ([one[0] for one in live], {})
    fit += [str(job_id) for job_id, same in archived.items() if same]
    holders: dict[str, str | None] = {}  # of those that are done, for which it is None, and those whose key is taken
    for job_id, _, is_done, holder in await connection.fetch(*_verb(sql, bulk, fit)) if fit else []:
        if is_done or holder is not None:
            holders[str(job_id)] = None if is_done else str(holder)
    told = []
    for row in found:
        job_id = str(row["job_id"])
        if job_id in rivals:
            told.append(Told(job_id, "key_taken", holders.get(rivals[job_id]) or rivals[job_id]))
        elif job_id in holders:
            told.append(Told(job_id, "key_taken" if holders[job_id] else "done", holders[job_id]))
        else:  # what is fit and has no answer was pruned from the archive this moment
            told.append(Told(job_id, "changed" if row["live"] or archived.get(row["job_id"]) is False else "gone"))
    return told


def _key(row: Any) -> LiveKey:
    return LiveKey(row["topic"], row["scope"], row["scope_id"], row["key"])


def _verb(sql: Statements, bulk: Bulk, ids: list[str]) -> tuple[Any, ...]:
    """The statement of the operators' verb, and its parameters."""
    whom = (ids, bulk.started_by or bulk.by, bulk.note)
    match VERBS[bulk.action]:
        case "requeue":
            return (sql.requeue, *whom, True, None, *edit(Edit()), bulk.undoes is not None)
        case "cancel":
            return (sql.cancel, *whom)
        case "delete":
            return (sql.delete, *whom)
        case _:
            return (sql.update, *whom, *edit(bulk.edit))


# ── Rows ──


def read(row: Any) -> Bulk:
    known = {name: row[name] for name in Bulk.__struct_fields__}
    texts = {name: codec.decode(known[name]) for name in ("arguments", "filter")}
    unfit = msgspec.json.decode(known["unfit"], type=dict[str, Unfit])
    return Bulk(**known | texts | {"id": str(known["id"]), "unfit": unfit})


def item(row: Any) -> BulkItem:
    job_id, status, outcome, holder = row
    return BulkItem(str(job_id), Status(status), outcome, None if holder is None else str(holder))


def behind(at: UUID | str | None) -> str:
    """The first id behind this one: a range from here on is what an index knows."""
    return str(UUID(int=0 if at is None else min(UUID(str(at)).int + 1, (1 << 128) - 1)))
