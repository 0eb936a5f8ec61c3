"""Bulk actions. A preview is one INSERT … SELECT; a batch is one write transaction, with the operators' own orders."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from sqlite3 import Connection
from typing import Any

from rowlock.core.job import Status
from rowlock.stores.bulk import (
    KEPT,
    MAX_ITEMS,
    PREVIEW_LIFE,
    Bulk,
    BulkItem,
    Listed,
    NewBulk,
    Told,
    fitting,
    new_row,
    read_bulk,
    tell,
    too_broad,
    too_many,
    unmoved,
    walks,
)
from rowlock.stores.listing import Walk, WalkPart
from rowlock.stores.queries import Filter
from rowlock.stores.records import Entry
from rowlock.stores.sqlite import moves, records
from rowlock.stores.sqlite.listing import SqlitePart, same_json, table
from rowlock.stores.sqlite.rows import Times, json_text, span, sql

_COLUMNS = "j.created, j.version + coalesce(json_array_length(j.history), 0) + j.history_dropped AS events"
LONGEST_LOOK = 20.0  # seconds that a preview may take to list its jobs: it keeps all other writers waiting
_STEPS = 100_000  # steps of SQLite's virtual machine between two looks at the time

# ── The preview ──


def create(conn: Connection, now: int, bulk: NewBulk, filter: Filter) -> Bulk:
    """Make a preview in a transaction, which must be rolled back if this raises. An existing bulk action was made by an
    earlier try."""
    if there := find(conn, [bulk.id], None, 1):
        return there[0]
    wanted = fitting(bulk.action, filter)
    if bulk.undoes is not None:
        total = conn.execute(sql("bulk_undo"), {"id": bulk.id, "undoes": bulk.undoes}).rowcount
    else:
        total = 0 if wanted is None else _list(conn, bulk.id, wanted)
    if total > MAX_ITEMS:
        raise too_many()
    conn.execute(sql("bulk_create"), new_row(bulk, total) | {"now": now})
    return get(conn, bulk.id)


def _list(conn: Connection, bulk_id: str, filter: Filter) -> int:
    statement, values = _listing(bulk_id, filter)
    same_json(conn, statement)
    end = time.monotonic() + LONGEST_LOOK
    conn.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
    try:
        return conn.execute(statement, values).rowcount
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            raise too_broad(LONGEST_LOOK) from None
        raise
    finally:
        conn.set_progress_handler(None, 0)


def _listing(bulk_id: str, filter: Filter) -> tuple[str, list[Any]]:
    """Return the statement that lists the jobs. It lists one more than is allowed if there are too many."""
    render = SqlitePart(filter, WalkPart(Walk(False, "id"), None, 0, 0))
    parts = []
    for walk in walks(filter):
        status = "'completed'" if walk.archived else "j.status"
        parts.append(f"SELECT j.id, {status} AS status, {_COLUMNS} FROM {table(walk)} WHERE {render.where(walk)}")  # noqa: S608 - see Renderer
    statement = (
        f"INSERT OR IGNORE INTO _jobs_bulk_items (bulk_id, job_id, status, created, events) "  # noqa: S608 - see Renderer
        f"SELECT {render.bind(bulk_id, 'uuid')}, * FROM ({' UNION ALL '.join(parts)}) LIMIT {MAX_ITEMS + 1}"
    )
    return statement, render.values


# ── Its life ──


def start(conn: Connection, now: int, bulk_id: str, by: str, reason: str | None) -> bool:
    ages = {"preview": now - span(PREVIEW_LIFE), "ended": now - span(KEPT)}
    if conn.execute(sql("bulk_start"), {"id": bulk_id, "now": now, "by": by, "reason": reason, **ages}).rowcount == 0:
        return False
    bulk = get(conn, bulk_id)
    data = {"bulk": bulk.id, "action": bulk.action, "arguments": bulk.arguments, "filter": bulk.filter}
    records.write(conn, now, [], Entry(by, "bulk_start", reason=bulk.reason, data=data | {"count": bulk.total}))
    return True


def stop(conn: Connection, now: int, bulk_id: str, by: str, reason: str | None) -> bool:
    if conn.execute(sql("bulk_stop"), {"id": bulk_id, "now": now}).rowcount == 0:
        return False
    bulk = get(conn, bulk_id)
    data = {"bulk": bulk.id, "done": bulk.done, "left": bulk.left}
    records.write(conn, now, [], Entry(by, "bulk_stop", reason=reason, data=data))
    return True


def run(conn: Connection, now: int, bulk_id: str | None, limit: int) -> Bulk | None:
    taken = conn.execute(sql("bulk_take"), {"id": bulk_id}).fetchone()
    if taken is None:
        return None
    bulk, after = get(conn, taken[0]), taken[1]
    told = _act(conn, now, bulk, after or "", limit)
    conn.executemany(
        sql("bulk_note"),
        [{"id": bulk.id, "job_id": one.job_id, "outcome": one.outcome, "holder": one.holder} for one in told],
    )
    counts = Counter(one.outcome for one in told)
    known = {name: counts[name] for name in ("done", "changed", "gone", "key_taken")}
    reached = told[-1].job_id if told else None
    conn.execute(sql("bulk_count"), {"id": bulk.id, "now": now, "reached": reached, "every": len(told), **known})
    return get(conn, bulk.id)


def _act(conn: Connection, now: int, bulk: Bulk, after: str, limit: int) -> list[Told]:
    where = {"id": bulk.id, "after": after, "limit": max(limit, 1)}
    items = [Listed(*row) for row in conn.execute(sql("bulk_next"), where).fetchall()]
    order = bulk.order
    found = moves.lock(conn, order, [item.job_id for item in items])
    decided = moves.apply(conn, now, order, unmoved(items, found))
    return tell(items, found, decided)


def prune(conn: Connection, now: int, limit: int) -> int:
    """Delete old bulk actions, each after its items."""
    pruned = 0
    for (bulk_id,) in conn.execute(
        sql("bulk_old"), {"preview": now - span(PREVIEW_LIFE), "ended": now - span(KEPT)}
    ).fetchall():
        rest = {"id": bulk_id, "limit": max(limit - pruned, 0)}
        pruned += conn.execute(sql("bulk_prune"), rest).rowcount
        if pruned >= limit:
            break
        pruned += conn.execute("DELETE FROM _jobs_bulk WHERE id = ?", (bulk_id,)).rowcount
    return pruned


# ── Looking ──


def get(conn: Connection, bulk_id: str) -> Bulk:
    [bulk] = find(conn, [bulk_id], None, 1)
    return bulk


def find(conn: Connection, ids: Sequence[str] | None, before: str | None, limit: int) -> list[Bulk]:
    # g: behind every hexadecimal id
    where = {"ids": None if ids is None else json_text(list(ids)), "before": before or "g", "limit": max(limit, 0)}
    time = Times().__getitem__
    return [read_bulk(row, time) for row in conn.execute(sql("bulks"), where).fetchall()]


def items(conn: Connection, bulk_id: str, outcome: str | None, after: str | None, limit: int) -> list[BulkItem]:
    where = {"id": bulk_id, "outcome": outcome, "after": after or "", "limit": max(limit, 0)}
    found = conn.execute(sql("bulk_items"), where).fetchall()
    return [BulkItem(job_id, Status(status), told, holder) for job_id, status, told, holder in found]
