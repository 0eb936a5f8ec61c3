"""Records and the audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowlock.core import codec
from rowlock.stores.postgres.statements import Statements
from rowlock.stores.records import Audited, Entry, Record, Write


class Refused(Exception):
    """The record has another revision than the write expects: nothing is written."""


async def write(connection: Any, sql: Statements, writes: Sequence[Write], entry: Entry | None) -> None:
    """Write records, in a transaction that the caller has begun. They are sorted, so that two calls can't deadlock."""
    for one in sorted(writes, key=lambda one: (one.kind, one.id)):
        if one.data is None:
            done = await connection.fetchrow(sql.record_delete, one.kind, one.id, one.revision)
        else:
            data = codec.encode(one.data, "data")
            if one.revision:
                done = await connection.fetchrow(
                    sql.record_replace, one.kind, one.id, data, one.expires_at, one.revision
                )
            else:
                done = await connection.fetchrow(
                    sql.record_put, one.kind, one.id, data, one.expires_at, one.revision == 0
                )
        if done is None:
            raise Refused
    if entry is not None:
        data = codec.encode(entry.data, "data")
        told = (entry.by, entry.action, entry.topic, entry.reason, data, entry.job_id)
        await connection.execute(sql.audit_entry, *told)


def record(kind: str, row: Any) -> Record:
    id_, revision, created, updated, expires_at, data = row
    return Record(kind, id_, revision, created, updated, expires_at, codec.decode(data))


def audited(row: Any) -> Audited:
    number, at, by, action, job_id, topic, reason, data, bulk = row
    return Audited(number, at, by, action, job_id, topic, reason, {} if data is None else codec.decode(data), bulk)
