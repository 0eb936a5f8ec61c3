"""Groups of dead letters on PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rowlock.core.fingerprint import fingerprint
from rowlock.stores.failures import (
    MOST_LOOKED_AT,
    TRENDS,
    FailureQuery,
    Failures,
    Grouped,
    make_failures,
    read_cursor,
)
from rowlock.stores.postgres.statements import Statements

_EVER = datetime(1900, 1, 1, tzinfo=UTC)


async def group(connection: Any, sql: Statements, limit: int) -> int:
    """Give fingerprints to dead letters, and return how many. Only jobs that have not changed meanwhile are written, so
    that a crash in between does no harm."""
    found = await connection.fetch(sql.ungrouped, limit)
    if not found:
        return 0
    known = [fingerprint(topic, error) for _, topic, _, error in found]
    await connection.execute(sql.group_failures, [row[0] for row in found], [row[2] for row in found], known)
    return len(found)


async def read(connection: Any, sql: Statements, query: FailureQuery) -> Failures:
    seconds, parts = TRENDS[query.trend]
    found = await connection.fetch(
        sql.failures if query.fingerprint is None else sql.failures_of_one,
        MOST_LOOKED_AT + 1,
        query.since or _EVER,
        list(query.topics) or None,
        query.limit + 1,
        seconds,
        parts,
        query.fingerprint,
        *read_cursor(query.cursor),
    )
    groups = [_grouped(row) for row in found if row["fingerprint"] is not None]
    return make_failures(query, groups, found[0]["looked_at"], found[0]["ungrouped"])


def _grouped(row: Any) -> Grouped:
    parts = dict(zip(row["parts"] or (), row["counts"] or (), strict=True))
    return Grouped(
        row["fingerprint"], row["topic"], row["n"], row["first"], row["last"], row["sample"], row["error"], parts
    )
