"""The archive's partitions, one for each day (UTC) of the time in the id: created ahead of time, dropped whole.

A UUIDv7 begins with 48 bits of milliseconds, so a day is a range of ids. Jobs whose id has no partition (a caller's own
id, or a day whose partition was dropped) go to the DEFAULT partition `_jobs_archive_rest`, where `prune` finds them.

Many processes may call this at once: an advisory lock lets one of them work. It waits for a table's lock only for a
short time, because other transactions queue behind it. The next pass repeats what has failed.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import asyncpg

from rowlock.core.ids import first_id
from rowlock.core.job import MAX_DELAY
from rowlock.stores.postgres.connections import Target
from rowlock.stores.queries import PartitionReport, Retention

MAX_DROPS = 30  # in one call
MAX_MOVED = 10_000  # rows that are moved from the DEFAULT partition into a new one
# For a new partition, PostgreSQL reads the whole DEFAULT partition, which is locked meanwhile.
MAX_REST = 256 << 20  # bytes

_NAME = re.compile(r"_jobs_archive_(\d{8})\Z")
_DAY = timedelta(days=1)
_BOUNDS = "SET LOCAL lock_timeout = '200ms'; SET LOCAL statement_timeout = '2s'"
_LATER = (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError, asyncpg.CheckViolationError)
# Has any job finished after $1? One search of the index for each topic.
_KEPT = """
WITH RECURSIVE t (topic) AS (
    SELECT ''
    UNION ALL
    SELECT (SELECT p.topic FROM {part} p WHERE p.topic > t.topic ORDER BY p.topic LIMIT 1) FROM t
    WHERE t.topic IS NOT NULL
)
SELECT EXISTS (SELECT 1 FROM t WHERE EXISTS (
    SELECT 1 FROM {part} p WHERE p.topic = t.topic AND p.finished_at > $1::timestamptz))"""


async def keep(connection: Any, target: Target, retention: Retention, ahead: int) -> PartitionReport:
    now = await _now(connection)
    there = await _existing(connection, target)
    wanted = [day for day in _days(now.date(), ahead) if day not in there]
    created = [day for day in wanted if await _try(connection, target, _make, day)]
    dropped: list[date] = []
    if retention.longest is not None:
        since = now - timedelta(seconds=min(retention.longest, MAX_DELAY))
        over = [day for day in there if day + _DAY <= since.date()]
        dropped = [day for day in over[:MAX_DROPS] if await _try(connection, target, _drop, day, since)]
    return PartitionReport(created=tuple(created), dropped=tuple(dropped))


async def _try(connection: Any, target: Target, act: Any, *arguments: Any) -> bool:
    """Call `act` in a transaction. Return False if another process is at it, or if a lock takes too long."""
    try:
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(_BOUNDS)
            lock = f"rowlock partitions {target.schema}"
            mine = await connection.fetchval("SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))", lock)
            done: bool = bool(mine) and await act(connection, target, *arguments)
            return done
    except _LATER:
        return False


async def _make(connection: Any, target: Target, day: date) -> bool:
    part, table, rest = _part(target, day), _table(target), f"{_table(target)}_rest"
    if day in await _existing(connection, target):
        return False
    span = f"id >= '{_begin(day)}' AND id < '{_begin(day + _DAY)}'"
    if await connection.fetchval("SELECT pg_relation_size($1::text::regclass)", rest) > MAX_REST:
        return False
    # From here on no job can come into the DEFAULT partition, so that all jobs of the day are moved.
    await connection.execute(f"LOCK TABLE {rest} IN ACCESS EXCLUSIVE MODE")
    found = f"SELECT count(*) FROM (SELECT 1 FROM {rest} WHERE {span} LIMIT {MAX_MOVED + 1}) s"  # noqa: S608 - our own
    if await connection.fetchval(found) > MAX_MOVED:
        return False
    await connection.execute(f"CREATE TABLE {part} (LIKE {table} INCLUDING DEFAULTS INCLUDING INDEXES)")
    await connection.execute(
        f"WITH moved AS (DELETE FROM {rest} WHERE {span} RETURNING *) INSERT INTO {part} SELECT * FROM moved"  # noqa: S608
    )
    await connection.execute(
        f"ALTER TABLE {table} ATTACH PARTITION {part} FOR VALUES FROM ('{_begin(day)}') TO ('{_begin(day + _DAY)}')"
    )
    return True


async def _drop(connection: Any, target: Target, day: date, since: datetime) -> bool:
    if day not in await _existing(connection, target) or await _holds(connection, target, day, since):
        return False
    # The parent table is locked first, as by every statement. A job may have come in before the lock; none can later.
    await connection.execute(f"LOCK TABLE ONLY {_table(target)} IN ACCESS EXCLUSIVE MODE")
    if await _holds(connection, target, day, since):
        return False
    await connection.execute(f"DROP TABLE {_part(target, day)}")
    return True


async def _holds(connection: Any, target: Target, day: date, since: datetime) -> bool:
    """True if a job of the partition finished after `since`: it may have been enqueued long before."""
    holds: bool = await connection.fetchval(_KEPT.replace("{part}", _part(target, day)), since)
    return holds


async def _existing(connection: Any, target: Target) -> list[date]:
    found = await connection.fetch(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
        "WHERE i.inhparent = $1::text::regclass ORDER BY 1",
        _table(target),
    )
    names = [match[1] for row in found if (match := _NAME.match(row[0]))]
    return [date.fromisoformat(name) for name in names]


async def _now(connection: Any) -> datetime:
    now: datetime = await connection.fetchval("SELECT clock_timestamp()")
    return now.astimezone(UTC)


def _begin(day: date) -> str:
    """Return the smallest id of the day."""
    return first_id(datetime(day.year, day.month, day.day, tzinfo=UTC))


def _days(first: date, ahead: int) -> list[date]:
    return [first + n * _DAY for n in range(ahead + 1)]


def _part(target: Target, day: date) -> str:
    return f"{_table(target)}_{day:%Y%m%d}"


def _table(target: Target) -> str:
    return f"{target.quoted_schema}._jobs_archive"
