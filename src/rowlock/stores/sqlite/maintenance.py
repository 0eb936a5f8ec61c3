"""Maintenance: promote and prune."""

from __future__ import annotations

from collections.abc import Iterator
from sqlite3 import Connection

from rowlock.core.job import Status
from rowlock.core.lifecycle import MOVES
from rowlock.stores.base import Retention
from rowlock.stores.sqlite.moves import drop_steps
from rowlock.stores.sqlite.rows import span, sql


def promote(conn: Connection, now: int, limit: int) -> int:
    return conn.execute(sql("promote"), (now, max(limit, 0))).rowcount


def prune(conn: Connection, now: int, retention: Retention, limit: int) -> int:
    pruned = 0
    for status in sorted(MOVES["prune"].sources):
        for topic in _topics(conn, status):
            kept = retention.of(status, topic)
            if kept is not None and pruned < limit:
                old = {"status": status, "topic": topic, "since": now - span(kept), "limit": limit - pruned}
                statement = "prune_archive" if status is Status.COMPLETED else "prune"
                gone = conn.execute(sql(statement), old).fetchall()
                pruned += len(gone)
                if stepped := [job_id for (job_id,) in gone if job_id is not None]:
                    drop_steps(conn, stepped)
    return pruned


def _topics(conn: Connection, status: Status) -> Iterator[str]:
    """Yield the topics that have such jobs. It leaps along the index from topic to topic, whatever they keep."""
    statement = sql("prune_archive_topic" if status is Status.COMPLETED else "prune_topic")
    topic = ""
    while found := conn.execute(statement, {"status": status, "topic": topic}).fetchone():
        (topic,) = found
        yield topic
