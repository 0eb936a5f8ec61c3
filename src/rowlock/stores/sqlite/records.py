"""Records and the audit."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection

from msgspec import structs

from rowlock.core import codec
from rowlock.stores.records import (
    Audited,
    AuditFilter,
    Entry,
    Record,
    Refused,
    Write,
    limited_topics,
    read_audited,
    read_record,
)
from rowlock.stores.sqlite.rows import Times, json_text, micros, moment, sql


def read(
    conn: Connection, now: int, kind: str, ids: Sequence[str] | None, after: str | None, limit: int | None
) -> list[Record]:
    asked = {"kind": kind, "now": now, "ids": None if ids is None else json_text(list(ids))}
    asked |= {"after": after or "", "limit": -1 if limit is None else limit}
    time = Times().__getitem__
    return [read_record(kind, row, time) for row in conn.execute(sql("records"), asked).fetchall()]


def write(conn: Connection, now: int, writes: Sequence[Write], *entries: Entry) -> None:
    for one in writes:
        values = {
            "kind": one.kind,
            "id": one.id,
            "now": now,
            "data": None if one.data is None else codec.encode(one.data, "data"),
            "expires_at": None if one.expires_at is None else micros(one.expires_at),
            "revision": one.revision,
            "new": one.revision == 0,
        }
        name = "record_delete" if one.data is None else "record_replace" if one.revision else "record_put"
        if conn.execute(sql(name), values).fetchone() is None:
            raise Refused
    if (limited := limited_topics(writes)) is not None:
        conn.executemany(sql("set_limited"), limited.items())
        conn.execute(sql("limits_turn"), (None,))
    for entry in entries:
        conn.execute(
            'INSERT INTO _jobs_audit (at, "by", action, topic, reason, data, job_id) VALUES (?, ?, ?, ?, ?, ?, ?)',
            (now, entry.by, entry.action, entry.topic, entry.reason, codec.encode(entry.data, "data"), entry.job_id),
        )


def sweep(conn: Connection, now: int, limit: int) -> int:
    return len(conn.execute(sql("record_sweep"), {"now": now, "limit": limit}).fetchall())


def audit(conn: Connection, filter: AuditFilter, before: int | None, limit: int) -> list[Audited]:
    # The condition is written again, without a NULL: each form has an index of its own.
    whose = "bulk IS NULL" if filter.bulk is None else "bulk = :bulk"
    if filter.job_id is not None:
        whose = "job_id = :job_id"
    asked = structs.asdict(filter) | {"since": None if filter.since is None else micros(filter.since)}
    text = sql("audited").replace("{whose}", whose)
    found = conn.execute(text, asked | {"before": before, "limit": limit}).fetchall()
    return [read_audited(row, moment) for row in found]
