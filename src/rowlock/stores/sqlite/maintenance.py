"""Maintenance: promote and prune."""

from __future__ import annotations

from collections.abc import Iterator
from sqlite3 import Connection

from rowlock.core.job import Status
from rowlock.core.lifecycle import MOVES
from rowlock.core.moves import Resume
from rowlock.stores.base import PROMOTER, Retention
from rowlock.stores.sqlite.moves import drop_signals, drop_steps, move_due
from rowlock.stores.sqlite.rows import span, sql


def promote(conn: Connection, now: int, limit: int) -> int:
    most = max(limit, 0)
    promoted = conn.execute(sql("promote"), (now, most)).rowcount
    return promoted + len(move_due(conn, now, Resume(by=PROMOTER), most - promoted))


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
                if stepped := [job_id for job_id, has_steps in gone if has_steps]:
                    drop_steps(conn, stepped)
                if gone:  # the archive does not know which jobs have got signals
                    drop_signals(conn, [job_id for job_id, _ in gone])
    return pruned


def prune_throttles(conn: Connection, now: int, limit: int) -> int:
    return conn.execute(sql("prune_throttles"), {"now": now, "limit": limit}).rowcount


def _topics(conn: Connection, status: Status) -> Iterator[str]:
    """Yield the topics that have such jobs. It leaps along the index from topic to topic, whatever they keep."""
    statement = sql("prune_archive_topic" if status is Status.COMPLETED else "prune_topic")
    topic = ""
    while found := conn.execute(statement, {"status": status, "topic": topic}).fetchone():
        (topic,) = found
        yield topic
