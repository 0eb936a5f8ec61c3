"""Records and the audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowlock.core import codec
from rowlock.stores.postgres.statements import Statements
from rowlock.stores.records import Entry, Refused, Write, limited_topics


async def write(connection: Any, sql: Statements, writes: Sequence[Write], *entries: Entry) -> None:
    """Write records, in a transaction that the caller has begun. They are sorted, so that two calls can't deadlock."""
    for one in sorted(writes, key=lambda one: (one.kind, one.id)):
        if one.data is None:
            done = await connection.fetchrow(sql.record_delete, one.kind, one.id, one.revision)
        else:
            new = one.kind, one.id, codec.encode(one.data, "data"), one.expires_at
            if one.revision:
                done = await connection.fetchrow(sql.record_replace, *new, one.revision)
            else:
                done = await connection.fetchrow(sql.record_put, *new, one.revision == 0)
        if done is None:
            raise Refused
    if (limited := limited_topics(writes)) is not None:
        await connection.execute(sql.set_limited, list(limited), list(limited.values()))
    for entry in entries:
        data = codec.encode(entry.data, "data")
        told = (entry.by, entry.action, entry.topic, entry.reason, data, entry.job_id)
        await connection.execute(sql.audit_entry, *told)
