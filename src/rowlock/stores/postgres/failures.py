"""Groups of dead letters on PostgreSQL."""

from __future__ import annotations

from typing import Any

from rowlock.core.fingerprint import fingerprint
from rowlock.stores.failures import FailureQuery, Failures, Grouped, asked, make_failures
from rowlock.stores.postgres.statements import Statements


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
    statement = sql.failures if query.fingerprint is None else sql.failures_of_one
    found = await connection.fetch(statement, *asked(query).values())
    groups = [_grouped(row) for row in found if row["fingerprint"] is not None]
    return make_failures(query, groups, found[0]["looked_at"], found[0]["ungrouped"])


def _grouped(row: Any) -> Grouped:
    parts = dict(zip(row["parts"] or (), row["counts"] or (), strict=True))
    return Grouped(
        row["fingerprint"], row["topic"], row["n"], row["first"], row["last"], row["sample"], row["error"], parts
    )
