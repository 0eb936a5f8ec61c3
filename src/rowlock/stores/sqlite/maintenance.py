"""Maintenance: promote, rescue, expire, cancel_timeout, prune. Each call does at most `limit`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from sqlite3 import Connection

from rowlock.core.codec import decode
from rowlock.core.job import Status
from rowlock.core.lifecycle import MOVES
from rowlock.core.moves import CancelTimeout, Expire, Rescue
from rowlock.core.times import micros
from rowlock.stores.base import Rescued, Retention, rescued
from rowlock.stores.sqlite import moves
from rowlock.stores.sqlite.rows import json_text, span, sql


def promote(conn: Connection, now: int, limit: int) -> int:
    return conn.execute(sql("promote"), (now, max(limit, 0))).rowcount


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
    order = Rescue(by=by, backoff=backoff, tables=_tables(conn), seen=workers is not None, detail=detail)
    if workers is None:
        expired = now if before is None else min(now, micros(before))
        rows = moves.lock_due(conn, order, "rescue_expired", limit, now=expired)
    else:
        rows = moves.lock_due(conn, order, "rescue_workers", limit, workers=json_text(list(workers)))
    return rescued(moves.apply(conn, now, order, rows))


def expire(conn: Connection, now: int, *, by: str, limit: int) -> list[str]:
    order = Expire(by=by)
    rows = moves.lock_due(conn, order, "expire_due", limit, now=now)
    return [row.id for row, _ in moves.apply(conn, now, order, rows)]


def cancel_timeout(conn: Connection, now: int, *, by: str, grace: float, limit: int) -> list[str]:
    order = CancelTimeout(by=by)
    rows = moves.lock_due(conn, order, "cancel_timeout_due", limit, since=now - span(grace))
    return [row.id for row, _ in moves.apply(conn, now, order, rows)]


def set_backoff(conn: Connection, tables: Mapping[str, Sequence[float] | None]) -> None:
    conn.execute(sql("set_backoff"), {"tables": json_text(dict(tables))})


def _tables(conn: Connection) -> dict[str, Sequence[float]]:
    """Return the backoff tables of the topics that have one of their own."""
    return {topic: decode(table) for topic, table in conn.execute(sql("rescue_backoff"))}


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
    """Yield the topics that have such jobs. It leaps along the index from topic to topic, whatever they keep."""
    statement = sql("prune_archive_topic" if status is Status.COMPLETED else "prune_topic")
    topic = ""
    while found := conn.execute(statement, {"status": status, "topic": topic}).fetchone():
        (topic,) = found
        yield topic
