"""What operators do to topics: pause, resume. Each also writes the audit."""

from __future__ import annotations

from datetime import datetime
from sqlite3 import Connection

from rowlock.stores.records import Entry
from rowlock.stores.sqlite import records
from rowlock.stores.sqlite.rows import micros, sql


def pause(conn: Connection, now: int, topic: str, by: str, reason: str | None, until: datetime | None) -> None:
    end = None if until is None else micros(until)
    conn.execute(sql("pause"), {"topic": topic, "now": now, "until": end, "reason": reason, "by": by})
    records.write(conn, now, [], Entry(by, "pause", topic, reason, {} if end is None else {"until": end}))


def resume(conn: Connection, now: int, topic: str, by: str, reason: str | None) -> bool:
    if conn.execute(sql("resume"), {"topic": topic, "now": now}).rowcount == 0:
        return False
    records.write(conn, now, [], Entry(by, "resume", topic, reason))
    return True
