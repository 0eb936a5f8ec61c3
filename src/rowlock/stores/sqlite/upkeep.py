"""Maintenance: promote, rescue, expire, cancel_timeout, prune. Each call does at most `limit`.

To SQLite a negative LIMIT is none at all, hence the max(limit, 0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from sqlite3 import Connection
from typing import Any, NamedTuple

from rowlock.core.codec import decode
from rowlock.core.job import Status
from rowlock.core.lifecycle import CRASH_ERROR, EXPIRED_ERROR, MOVES
from rowlock.stores.base import Rescued, Retention
from rowlock.stores.reports import death
from rowlock.stores.sqlite.counts import count
from rowlock.stores.sqlite.rows import append_history, entry, json_text, span, sql
from rowlock.stores.times import micros


def promote(conn: Connection, now: int, limit: int) -> int:
    return conn.execute(sql("promote"), (now, max(limit, 0))).rowcount


class _Lost(NamedTuple):
    n: int
    id: str
    topic: str
    status: str
    version: int
    retries: int
    max_retries: int
    crashes: int
    locked_by: str | None
    claimed_at: int
    started_at: int | None


def rescue(
    conn: Connection,
    now: int,
    *,
    by: str,
    backoff: Sequence[float],
    limit: int,
    workers: Sequence[str] | None,
    detail: str | None,
    before: datetime | None,
) -> list[Rescued]:
    if workers is None:
        expired = now if before is None else min(now, micros(before))
        found = conn.execute(sql("rescue_expired"), {"now": expired, "limit": max(limit, 0)})
    else:
        found = conn.execute(sql("rescue_workers"), {"workers": json_text(list(workers)), "limit": max(limit, 0)})
    lost = [_Lost._make(row) for row in found.fetchall()]
    own = _tables(conn) if lost else {}
    how = death(detail, seen=workers is not None)
    rescued, changes, entries = [], [], []
    for row in lost:
        change, delay = _rescue(row, now, own.get(row.topic, backoff), how)
        change["crashed"] = workers is None or row.started_at is not None
        status = change["status"]
        run = {"worker": row.locked_by, "claimed_at": row.claimed_at, "started_at": row.started_at}
        note = entry(now, "rescued", status, row.version, by=by, **run, delay=delay or None, error=change["error"])
        changes.append(change)
        entries.append((row.n, note))
        rescued.append(Rescued(row.id, row.topic, row.version, status, bool(change["charged"])))
    conn.executemany(sql("rescue"), changes)
    append_history(conn, entries)
    count(
        conn,
        now,
        [(one.topic, one.status, None) for one in rescued],
        retried=[one.topic for one in rescued if one.charged],
        lost=[one.topic for one in rescued],
    )
    return rescued


def set_backoff(conn: Connection, tables: Mapping[str, Sequence[float] | None]) -> None:
    conn.execute(sql("set_backoff"), {"tables": json_text(dict(tables))})


def _tables(conn: Connection) -> dict[str, Sequence[float]]:
    """The backoff tables of the topics that have one of their own."""
    return {topic: decode(table) for topic, table in conn.execute(sql("rescue_backoff"))}


def _rescue(row: _Lost, now: int, backoff: Sequence[float], how: str) -> tuple[dict[str, Any], float]:
    """What becomes of the job, and how long it has to wait."""
    status, delay, charged, error, run_at = Status.PENDING, 0.0, False, None, None
    if row.status == "cancel_requested":
        status = Status.CANCELLED
    elif row.started_at is not None:
        error = f"{CRASH_ERROR}: worker {row.locked_by}{how}"
        if row.retries >= row.max_retries:
            status = Status.EXPIRED
        else:
            charged = True
            if row.crashes:  # the first crash is ready at once, in its old place
                delay = backoff[min(row.retries + 1, len(backoff)) - 1]
                run_at = now + span(delay)
    ended = status is not Status.PENDING
    change = {
        "n": row.n,
        "now": now,
        "status": status,
        "ready": not ended and not delay,
        "run_at": run_at,
        "charged": charged,
        "error": error,
        "finished_at": now if ended else None,
    }
    return change, delay


def expire(conn: Connection, now: int, *, by: str, limit: int) -> list[str]:
    rows = conn.execute(sql("expire_due"), (now, max(limit, 0))).fetchall()
    conn.executemany(sql("expire"), [{"n": n, "now": now, "error": EXPIRED_ERROR} for n, *_ in rows])
    append_history(conn, [(n, entry(now, "expired", Status.EXPIRED, version, by=by)) for n, _, version, _ in rows])
    count(conn, now, [(topic, Status.EXPIRED, None) for *_, topic in rows])
    return [row[1] for row in rows]


def cancel_timeout(conn: Connection, now: int, *, by: str, grace: float, limit: int) -> list[str]:
    rows = conn.execute(sql("cancel_timeout_due"), (now - span(grace), max(limit, 0))).fetchall()
    entries = []
    for n, _, version, worker, claimed_at, started_at, _ in rows:
        run = {"worker": worker, "claimed_at": claimed_at, "started_at": started_at}
        entries.append((n, entry(now, "cancel_timed_out", Status.CANCELLED, version, by=by, **run)))
    conn.executemany(sql("cancel_timeout"), [{"n": row[0], "now": now} for row in rows])
    append_history(conn, entries)
    count(conn, now, [(topic, Status.CANCELLED, None) for *_, topic in rows])
    return [row[1] for row in rows]


def prune(conn: Connection, now: int, retention: Retention, limit: int) -> int:
    pruned = 0
    for status in sorted(MOVES["prune"].sources):
        for topic in _topics(conn, status):
            kept = retention.of(status, topic)
            if kept is not None and pruned < limit:
                old = {"status": status, "topic": topic, "since": now - span(kept), "limit": limit - pruned}
                statement = "prune_archive" if status is Status.COMPLETED else "prune"
                pruned += conn.execute(sql(statement), old).rowcount
    return pruned


def _topics(conn: Connection, status: Status) -> Iterator[str]:
    """The topics that have such jobs, by leaps along the index: nobody walks over what another topic keeps."""
    statement = sql("prune_archive_topic" if status is Status.COMPLETED else "prune_topic")
    topic = ""
    while found := conn.execute(statement, {"status": status, "topic": topic}).fetchone():
        (topic,) = found
        yield topic
