"""The partitions of the archive, of the steps and of the signals, one for each day (UTC) of the time in the job's id:
created ahead of time, dropped whole.

A UUIDv7 begins with 48 bits of milliseconds, so a day is a range of ids. Some ids have no partition: a caller's own id,
or the id of a day whose partition was dropped. Such jobs go to the DEFAULT partition `_jobs_archive_rest`, where
`prune` finds them. Their steps go to `_jobs_steps_rest`, and their signals to `_jobs_signals_rest`.

A day of the archive and the same day of steps and signals are dropped together. Steps and signals of jobs of that day
that are not in the archive, such as dead letters, are moved to the DEFAULT partitions.

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
MAX_MOVED = 10_000  # rows that are moved from the DEFAULT partition into a new one, or back, or removed from it
# No new partition is made if the DEFAULT partition is larger: PostgreSQL reads all of it, and locks it meanwhile.
MAX_REST = 256 << 20  # bytes

# The column by which each table is partitioned.
_ID = {"_jobs_archive": "id", "_jobs_steps": "job_id", "_jobs_signals": "job_id"}
# The tables of parts of jobs, and a condition for the jobs in _jobs that have such parts.
_PARTS = {"_jobs_steps": "j.step IS NOT NULL", "_jobs_signals": "j.signals IS NOT NULL"}
_NAME = re.compile(r"_jobs_(?:archive|steps|signals)_(\d{8})\Z")
_DAY = timedelta(days=1)
_BOUNDS = "SET LOCAL lock_timeout = '200ms'; SET LOCAL statement_timeout = '2s'"


class _TooMany(Exception):
    """The transaction would change too many rows."""


_LATER = (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError, asyncpg.CheckViolationError, _TooMany)
# Whether any job has finished after $1, by one search of the index for each topic.
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
    """Make and drop partitions. The report is about the archive's partitions."""
    now = await _now(connection)
    there = {table: await _existing(connection, target, table) for table in _ID}
    created: dict[str, list[date]] = {}
    for table, days in there.items():
        wanted = [day for day in _days(now.date(), ahead) if day not in days]
        created[table] = [day for day in wanted if await _try(connection, target, _make, table, day)]
    dropped: list[date] = []
    if retention.longest is not None:
        since = now - timedelta(seconds=min(retention.longest, MAX_DELAY))
        known = sorted({day for days in there.values() for day in days})
        over = [day for day in known if day + _DAY <= since.date()]
        dropped = [day for day in over[:MAX_DROPS] if await _try(connection, target, _drop, day, since)]
    archive = "_jobs_archive"
    return PartitionReport(
        created=tuple(created[archive]), dropped=tuple(day for day in dropped if day in there[archive])
    )


async def _try(connection: Any, target: Target, act: Any, *arguments: Any) -> bool:
    """Call `act` in a transaction. Return False if another process does this now, or if a lock takes too long."""
    try:
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(_BOUNDS)
            lock = f"rowlock partitions {target.schema}"
            mine = await connection.fetchval("SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))", lock)
            done: bool = bool(mine) and await act(connection, target, *arguments)
            return done
    except _LATER:
        return False


async def _make(connection: Any, target: Target, table: str, day: date) -> bool:
    part, whole, rest = _part(target, table, day), _table(target, table), f"{_table(target, table)}_rest"
    if day in await _existing(connection, target, table):
        return False
    span = _span(_ID[table], day)
    if await connection.fetchval("SELECT pg_relation_size($1::text::regclass)", rest) > MAX_REST:
        return False
    # From here on no row can come into the DEFAULT partition, so that all rows of the day are moved.
    await connection.execute(f"LOCK TABLE {rest} IN ACCESS EXCLUSIVE MODE")
    if await _are_many(connection, f"{rest} WHERE {span}"):
        return False
    await connection.execute(f"CREATE TABLE {part} (LIKE {whole} INCLUDING ALL)")
    await connection.execute(
        f"WITH moved AS (DELETE FROM {rest} WHERE {span} RETURNING *) INSERT INTO {part} SELECT * FROM moved"  # noqa: S608
    )
    await connection.execute(
        f"ALTER TABLE {whole} ATTACH PARTITION {part} FOR VALUES FROM ('{_begin(day)}') TO ('{_begin(day + _DAY)}')"
    )
    return True


async def _drop(connection: Any, target: Target, day: date, since: datetime) -> bool:
    archive = _table(target, "_jobs_archive")
    has_archive = day in await _existing(connection, target, "_jobs_archive")
    if has_archive and await _holds(connection, target, day, since):
        return False
    # The parent tables are locked first, as by every statement. A job may have come in before the lock; none can later.
    tables = ", ".join(f"ONLY {_table(target, table)}" for table in _ID)
    await connection.execute(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE")
    has_archive = day in await _existing(connection, target, "_jobs_archive")
    if has_archive:
        if await _holds(connection, target, day, since):
            return False
        await connection.execute(f"DROP TABLE {_part(target, '_jobs_archive', day)}")
    # A job of the day may be in the DEFAULT partition of the archive.
    if await connection.fetchval(f"SELECT EXISTS (SELECT FROM {archive} WHERE {_span('id', day)})"):  # noqa: S608
        return has_archive
    dropped = [await _drop_part(connection, target, table, day) for table in _PARTS]
    return has_archive or any(dropped)


async def _drop_part(connection: Any, target: Target, table: str, day: date) -> bool:
    """Remove the steps or signals of a day of which the archive has no job any more. Those of jobs outside of the
    archive stay. Raise _TooMany if they are too many at once: then the archive's partition stays, too, and `prune`
    makes it smaller."""
    jobs, whole = _table(target, "_jobs"), _table(target, table)
    rest, part = f"{whole}_rest", _part(target, table, day)
    orphans = f"{rest} s WHERE {_span('s.job_id', day)} AND NOT EXISTS (SELECT FROM {jobs} j WHERE j.id = s.job_id)"
    if await _are_many(connection, orphans):
        raise _TooMany
    await connection.execute(f"DELETE FROM {orphans}")  # noqa: S608 - our own names
    if day not in await _existing(connection, target, table):
        return False
    kept = f"{jobs} j JOIN {part} s ON s.job_id = j.id WHERE {_PARTS[table]} AND {_span('j.id', day)}"
    if await _are_many(connection, kept):
        raise _TooMany
    await connection.execute(f"ALTER TABLE {whole} DETACH PARTITION {part}")
    await connection.execute(f"INSERT INTO {whole} SELECT s.* FROM {kept}")  # noqa: S608 - our own names
    await connection.execute(f"DROP TABLE {part}")
    return True


async def _are_many(connection: Any, rows: str) -> bool:
    """Return True if there are more than MAX_MOVED rows. `rows`: the text behind FROM."""
    found = f"SELECT count(*) FROM (SELECT 1 FROM {rows} LIMIT {MAX_MOVED + 1}) s"  # noqa: S608 - our own
    many: bool = await connection.fetchval(found) > MAX_MOVED
    return many


async def _holds(connection: Any, target: Target, day: date, since: datetime) -> bool:
    """Return True if a job of the partition finished after `since`: it may have been enqueued long before."""
    holds: bool = await connection.fetchval(_KEPT.replace("{part}", _part(target, "_jobs_archive", day)), since)
    return holds


async def _existing(connection: Any, target: Target, table: str) -> list[date]:
    found = await connection.fetch(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
        "WHERE i.inhparent = $1::text::regclass ORDER BY 1",
        _table(target, table),
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


def _span(column: str, day: date) -> str:
    return f"{column} >= '{_begin(day)}' AND {column} < '{_begin(day + _DAY)}'"


def _part(target: Target, table: str, day: date) -> str:
    return f"{_table(target, table)}_{day:%Y%m%d}"


def _table(target: Target, name: str) -> str:
    return f"{target.quoted_schema}.{name}"
