"""Fills a database as after a week of use: live, failed and completed jobs, with totals, charts, groups of failures,
the audit, and dead workers."""

import asyncio
import sqlite3
from datetime import UTC, datetime, timedelta

from benchmarks.reading import DAYS, fill_postgres, fill_sqlite
from rowlock.core.ids import first_id
from rowlock.core.sketch import Sketch
from rowlock.stores import open_store
from rowlock.stores.queries import Filter
from rowlock.stores.rollups import KEPT, MINUTE, SPANS

AUDITED = 20_000
DEAD_WORKERS = 60
_SOME_TOPICS = ("", "mail", "bills", "rare_9")  # the topics that have charts by the minute
_SKETCH = Sketch.of([1000 * 3**n for n in range(12) for _ in range(5)]).pack().hex()

TOTALS = """
INSERT INTO _jobs_totals (topic, completed, failed, expired, cancelled, executions, execution_us, retried, lost)
SELECT topic, sum(completed), sum(failed), 0, sum(cancelled), sum(completed), 90000 * sum(completed), sum(failed), 0
FROM (
    SELECT topic, count(*) AS completed, 0 AS failed, 0 AS cancelled FROM _jobs_archive GROUP BY topic
    UNION ALL
    SELECT topic, 0, sum(CASE WHEN status = 'failed' THEN 1 ELSE 0 END),
           sum(CASE WHEN status = 'cancelled' THEN 1 ELSE 0 END)
    FROM _jobs GROUP BY topic
) s GROUP BY topic"""
ALL_TOTALS = """
INSERT INTO _jobs_totals (topic, completed, failed, expired, cancelled, executions, execution_us, retried, lost)
SELECT '', sum(completed), sum(failed), 0, sum(cancelled), sum(executions), sum(execution_us), sum(retried), 0
FROM _jobs_totals"""
ROLLUPS = """
INSERT INTO _jobs_rollups (span, topic, at, enqueued, completed, failed, expired, cancelled, retried, lost, waits, runs)
SELECT {span}, t.topic, {at}, {span} * 2, {span} * 2 - n % 7, n % 3, 0, n % 2, n % 5, 0, {sketch}, {sketch}
FROM n CROSS JOIN (SELECT topic FROM _jobs_totals WHERE {topics}) t"""
AUDIT = """
INSERT INTO _jobs_audit (at, "by", action, job_id, topic, reason, data)
SELECT {at}, 'ops@example.com', CASE WHEN n % 3 = 0 THEN 'cancel' ELSE 'requeue' END, j.id, j.topic, 'as agreed', '{{}}'
FROM (SELECT n, {id} AS id, 'mail' AS topic FROM n) j"""
WORKERS = """
INSERT INTO _jobs_workers (name, host, pid, topics, concurrency, running, lease, stopping, rowlock, started, seen)
SELECT 'w' || n, 'host-' || n % 8, n, {topics}, 100, 100, 30, {no}, '0.1', {at}, {at} FROM n"""
HOLDERS = f"UPDATE _jobs SET locked_by = 'w' || (1 + {{number}} % {DEAD_WORKERS}) WHERE locked_until IS NOT NULL"


def series(first: int, last: int) -> str:
    return f"WITH RECURSIVE n (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM n WHERE n < {last})"


def with_series(count: int, statement: str) -> str:
    """Put a series before the INSERT, the only place that both SQLite and PostgreSQL accept."""
    insert, select = statement.strip().split("\n", 1)
    return f"{insert}\n{series(1, count)}\n{select}"


def _rollups(now: datetime, at: str, sketch: str) -> list[str]:
    """Return the statements that fill the rollups. `at`: the SQL of a start time, given `second`."""
    statements = []
    for span in SPANS:
        last = int(now.timestamp()) // span * span
        some = ", ".join(f"'{topic}'" for topic in _SOME_TOPICS)
        topics = f"topic IN ({some})" if span == MINUTE else "true"
        text = ROLLUPS.format(span=span, at=at.format(second=f"({last} - n * {span})"), sketch=sketch, topics=topics)
        statements.append(with_series(int(KEPT[span]) // span - 1, text))
    return statements


def note_sqlite(path: str, now: datetime) -> None:
    at = f"({int(now.timestamp())} - 60 * n) * 1000000"
    connection = sqlite3.connect(path)
    connection.execute(TOTALS)
    connection.execute(ALL_TOTALS)
    for statement in _rollups(now, "{second} * 1000000", f"x'{_SKETCH}'"):
        connection.execute(statement)
    an_id = "printf('0193fb1e-0000-7000-8000-%012x', n)"
    connection.execute(with_series(AUDITED, AUDIT.format(at=at, id=an_id)))
    connection.execute(with_series(DEAD_WORKERS, WORKERS.format(at=at, topics="""'["mail","bills"]'""", no="0")))
    connection.execute(HOLDERS.format(number="n"))
    connection.commit()
    connection.close()


async def note_postgres(url: str, now: datetime) -> None:
    import asyncpg

    at = f"to_timestamp({int(now.timestamp())} - 60 * n)"
    connection = await asyncpg.connect(url)
    await connection.execute(TOTALS)
    await connection.execute(ALL_TOTALS)
    for statement in _rollups(now, "to_timestamp({second})", f"'\\x{_SKETCH}'::bytea"):
        await connection.execute(statement)
    an_id = "lpad(to_hex(n), 32, '0')::uuid"
    await connection.execute(with_series(AUDITED, AUDIT.format(at=at, id=an_id).replace("'{}'", "'{}'::json")))
    topics = "ARRAY['mail', 'bills']"
    await connection.execute(with_series(DEAD_WORKERS, WORKERS.format(at=at, topics=topics, no="false")))
    await connection.execute(HOLDERS.format(number="('x' || substr(id::text, 16, 3))::bit(12)::int"))
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


async def make_parts(url: str, now: datetime) -> None:
    """Create the partitions of the days over which the archive is spread."""
    import asyncpg

    connection = await asyncpg.connect(url)
    for ago in range(1, DAYS + 1):
        day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=ago)
        await connection.execute(
            f"CREATE TABLE IF NOT EXISTS _jobs_archive_{day:%Y%m%d} PARTITION OF _jobs_archive "
            f"FOR VALUES FROM ('{first_id(day)}') TO ('{first_id(day + timedelta(days=1))}')"
        )
    await connection.close()


async def fill(url: str, archived: int, live: int) -> None:
    """Fill the database, unless it has jobs already."""
    store = open_store(url)
    await store.migrate()
    await store.open()
    try:
        if (await store.list(Filter(), limit=1)).items:
            return
        now = datetime.now(UTC)
        now_ms = int(now.timestamp() * 1000)
        if url.startswith("sqlite"):
            path = url.removeprefix("sqlite:///")
            await asyncio.to_thread(fill_sqlite, path, archived, live, now_ms)
            await asyncio.to_thread(note_sqlite, path, now)
        else:
            await make_parts(url, now)
            await fill_postgres(url, archived, live, now_ms)
            await note_postgres(url, now)
        while await store.tidy("group_failures", 1000):
            pass
    finally:
        await store.close()
