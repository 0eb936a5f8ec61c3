"""The registers of workers (their reports) and of topics (pauses and backoff tables)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from sqlite3 import Connection

from msgspec import structs

from rowlock.core.codec import decode
from rowlock.stores.base import Pause, TopicSteering, WorkerInfo
from rowlock.stores.records import Entry
from rowlock.stores.sqlite import records
from rowlock.stores.sqlite.rows import Times, json_text, micros, moment, sql

# ── Workers ──


def report(conn: Connection, now: int, worker: WorkerInfo) -> datetime:
    conn.execute(sql("report"), structs.asdict(worker) | {"topics": json_text(worker.topics), "now": now})
    return moment(now)


def workers(conn: Connection) -> list[WorkerInfo]:
    found = []
    for row in conn.execute(sql("workers")).fetchall():
        known = dict(zip(WorkerInfo.__struct_fields__, row, strict=True))
        known |= {"topics": tuple(decode(known["topics"])), "stopping": bool(known["stopping"])}
        found.append(WorkerInfo(**known | {"started": moment(known["started"]), "seen": moment(known["seen"])}))
    return found


def retire(conn: Connection, names: Sequence[str]) -> int:
    return conn.execute(sql("retire"), (json_text(list(names)),)).rowcount


# ── Topics: pause and resume also write the audit ──


def steer_topic(
    conn: Connection, now: int, topic: str, to: TopicSteering, by: str, reason: str | None, until: datetime | None
) -> bool:
    end = None if until is None else micros(until)
    asked = {"topic": topic, "now": now, "until": end, "reason": reason, "by": by}
    if conn.execute(sql(to), asked).rowcount == 0:
        return False
    records.write(conn, now, [], Entry(by, to, topic, reason, {} if end is None else {"until": end}))
    return True


def paused(conn: Connection, now: int) -> list[Pause]:
    times = Times()
    found = conn.execute(sql("paused"), (now,)).fetchall()
    return [Pause(topic, times[at], times[until], reason, by) for topic, at, until, reason, by in found]


def set_backoff(conn: Connection, tables: Mapping[str, Sequence[float] | None]) -> None:
    conn.execute(sql("set_backoff"), {"tables": json_text(dict(tables))})
