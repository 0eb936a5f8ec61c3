"""Measures whether completed jobs make a drain slower."""

from __future__ import annotations

from dataclasses import replace

from benchmarks import programs
from benchmarks.bench import Bench
from benchmarks.drain import drained, jobs_for
from benchmarks.programs import Task
from benchmarks.rounds import Cell, Results, interleave, say
from benchmarks.systems.base import System

DAYS = 7  # over which the archive is spread, until now
SEED = 2_000  # jobs that are really completed, and copied

# Creates a partition for each past day, like those of the migration.
PARTS = """
DO $$
DECLARE
    day timestamp := date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC') - interval '1 day' * {days};
BEGIN
    FOR n IN 1..{days} LOOP
        EXECUTE format('CREATE TABLE public.%I PARTITION OF public._jobs_archive FOR VALUES FROM (%L) TO (%L)',
            '_jobs_archive_' || to_char(day, 'YYYYMMDD'), public._jobs_first_id(day AT TIME ZONE 'UTC'),
            public._jobs_first_id((day + interval '1 day') AT TIME ZONE 'UTC'));
        day := day + interval '1 day';
    END LOOP;
END $$"""

# Copies the seed. Each copy has an id (UUIDv7) and times of its own, spread evenly until a minute ago.
COPY = """
INSERT INTO _jobs_archive ({columns})
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(n % 4096), 3, '0') || '8'
        || substr(md5(n::text), 1, 15))::uuid,
    at, at, at, at, at, at + interval '3 milliseconds', {others}
FROM (SELECT s.*, n, clock_timestamp() - interval '1 minute' - (1 - n / {count}::float8) * interval '{days} days' AS at
      FROM generate_series(1, {count}) n JOIN seed s ON s.nr = n % {seed}) copies"""
TIMES = ("id", "created", "updated", "run_at", "claimed_at", "started_at", "finished_at")
COUNTED = """
INSERT INTO _jobs_counts (topic, completed, executions, execution_us)
SELECT 'noop', {count}, {count}, {count} * 3000::bigint"""


def measure(bench: Bench, name: str) -> None:
    rowlock = next(iter(bench.named("rowlock")), None)
    if rowlock is None:
        return
    # The same system, once for each size, so that the sizes take turns.
    systems = [replace(rowlock, name=label(count)) for count in bench.scale.archived]
    archived = {label(count): count for count in bench.scale.archived}
    n = jobs_for(rowlock, bench.scale.drain_seconds)
    templates = {label(count): fill(bench, rowlock, count, n) for count in bench.scale.archived}

    def act(system: System, cell: Cell) -> float:
        cell.facts["jobs"] = n
        with bench.servers.copy(templates[system.name], large=True) as url:
            return n / drained(bench.servers, Task(rowlock, url, n), 1, before=archived[system.name])

    interleave(bench.results, name, systems, bench.scale.rounds, act)


def label(count: int) -> str:
    return f"{count:,} completed"


def loss(results: Results) -> float | None:
    """Return the cost of the largest archive: 0.05 means 5 % fewer jobs per second than beside an empty one."""
    medians = list(results.medians("archive").values())
    return round(1 - medians[-1] / medians[0], 3) if len(medians) > 1 else None


def fill(bench: Bench, rowlock: System, count: int, n: int) -> str:
    """Return the name of a database with so many completed jobs, and n pending ones."""
    name = f"archive_{count}"
    servers = bench.servers
    servers.wait(servers.postgres.execute(f"CREATE DATABASE {name}"))
    url = servers.postgres.url(name)
    programs.run(Task(rowlock, url), "setup")
    if count:
        say(f"archive: filling in {count:,} completed jobs")
        programs.run(Task(rowlock, url, SEED), "enqueue_bulk")
        drained(servers, Task(rowlock, url, SEED), 1)
        servers.wait(_multiply(url, count))
    programs.run(Task(rowlock, url, n), "enqueue_bulk")
    return name


async def _multiply(url: str, count: int) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    columns = (await connection.prepare("SELECT * FROM _jobs_archive")).get_attributes()
    others = [column.name for column in columns if column.name not in TIMES]
    await connection.execute(PARTS.format(days=DAYS))
    await connection.execute(
        "CREATE TEMP TABLE seed AS SELECT *, row_number() OVER () - 1 AS nr FROM _jobs_archive;"
        "ANALYZE seed; TRUNCATE _jobs_archive, _jobs_counts, _jobs_totals"
    )
    listed = ", ".join(others)
    await connection.execute(
        COPY.format(columns=", ".join((*TIMES, *others)), others=listed, count=count, seed=SEED, days=DAYS)
    )
    await connection.execute(COUNTED.format(count=count))
    assert await connection.fetchval("SELECT count(*) FROM _jobs_archive") == count
    assert not await connection.fetchval("SELECT count(*) FROM _jobs_archive_rest")
    await connection.execute("VACUUM ANALYZE")
    await connection.close()
