"""Compare PostgreSQL drivers on rowlock's hot statements: python benchmarks/drivers.py URL

Needs: asyncpg, psycopg[binary], uvloop, msgspec, and a PostgreSQL that may be written to. Everything
happens in a schema of its own, which is dropped at the end. Prints Markdown tables.

Every variant runs once per round, in an order that rotates from round to round, on fresh connections
and freshly loaded tables. A table shows the median over the rounds, and the median of each round's
ratio to the table's first row. Absolute figures change with the load of the machine; ratios within a
round change less. Client CPU is this process's own CPU time for each job; the least of all rounds is
the steadiest figure.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import platform
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import asyncpg
import msgspec
import psycopg
import uvloop
from psycopg.types.array import ListBinaryDumper

SCHEMA = "rowlock_bench_drivers"
TOPICS = ["mail.send", "report.build", "image.resize", "index.update"]
WARM_UP_CALLS = 8  # past the five custom plans that plan_cache_mode=auto tries first
DAY_MS = 86_400_000

decode_json = msgspec.json.decode
encode_json = msgspec.json.encode


# --- schema -------------------------------------------------------------------------------------

JOBS = """
CREATE TABLE _jobs (
  id uuid PRIMARY KEY, topic text NOT NULL, template_version int NOT NULL DEFAULT 0,
  status text NOT NULL, ready bool NOT NULL, priority int NOT NULL, run_at timestamptz NOT NULL,
  expires_at timestamptz, key text, scope text, scope_id text, step text,
  progress smallint NOT NULL DEFAULT 0, stage text, message text,
  payload {payload} NOT NULL, result json, last_error text,
  version int NOT NULL DEFAULT 0, retries int NOT NULL DEFAULT 0, max_retries int NOT NULL,
  crashes int NOT NULL DEFAULT 0, timeout_s float8 NOT NULL,
  locked_by text, locked_until timestamptz, cancel_requested_at timestamptz, cancel_reason text,
  flow_id uuid, schedule_id text, fire_at timestamptz, tags json, trace text,
  created timestamptz NOT NULL DEFAULT clock_timestamp(), updated timestamptz,
  claimed_at timestamptz, started_at timestamptz, finished_at timestamptz, history jsonb,
  CHECK (NOT ready OR status = 'pending')
) WITH (fillfactor = 80, autovacuum_enabled = false);
CREATE INDEX claim ON _jobs (topic, template_version, (-priority), run_at, id) WHERE ready;
CREATE INDEX due   ON _jobs (run_at) WHERE status = 'pending' AND NOT ready;
CREATE INDEX lease ON _jobs (locked_until) WHERE locked_until IS NOT NULL;
CREATE INDEX dead  ON _jobs (finished_at) WHERE finished_at IS NOT NULL;
CREATE UNIQUE INDEX live_key ON _jobs (topic, key) WHERE key IS NOT NULL
  AND status IN ('pending', 'processing', 'waiting', 'cancel_requested');
CREATE TABLE _jobs_topics (topic text PRIMARY KEY, paused_at timestamptz, paused_until timestamptz);
"""

KEPT = (  # the columns that the archive takes over unchanged
    "id, topic, template_version, priority, run_at, expires_at, key, scope, scope_id, step, payload, "
    "version, retries, max_retries, crashes, timeout_s, flow_id, schedule_id, fire_at, tags, trace, "
    "created, claimed_at, started_at, history"
)

ARCHIVE = """
CREATE TABLE _jobs_archive (
  id uuid PRIMARY KEY, topic text NOT NULL, template_version int NOT NULL, priority int NOT NULL,
  run_at timestamptz NOT NULL, expires_at timestamptz, key text, scope text, scope_id text, step text,
  payload {payload} NOT NULL, version int NOT NULL, retries int NOT NULL, max_retries int NOT NULL,
  crashes int NOT NULL, timeout_s float8 NOT NULL, flow_id uuid, schedule_id text, fire_at timestamptz,
  tags json, trace text, created timestamptz NOT NULL, claimed_at timestamptz, started_at timestamptz,
  history jsonb, worker text, result json, finished_at timestamptz NOT NULL
) {partition_by}
"""


def day_bound(ms: int) -> str:
    """Return the smallest UUIDv7 of a moment."""
    return str(uuid.UUID(int=ms << 80))


def schema_sql(payload: str, archive: str) -> str:
    partitioned = archive != "plain"
    sql = f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA}; SET search_path = {SCHEMA};"
    sql += JOBS.format(payload=payload)
    sql += ARCHIVE.format(payload=payload, partition_by="PARTITION BY RANGE (id)" if partitioned else "") + ";"
    if partitioned:
        sql += "CREATE TABLE _jobs_archive_rest PARTITION OF _jobs_archive DEFAULT;"
    if archive == "10 days":
        today = int(time.time() * 1000) // DAY_MS
        for day in range(today - 7, today + 3):
            sql += (
                f"CREATE TABLE _jobs_archive_{day} PARTITION OF _jobs_archive FOR VALUES "
                f"FROM ('{day_bound(day * DAY_MS)}') TO ('{day_bound((day + 1) * DAY_MS)}');"
            )
    return sql


# Loads n due jobs in all lanes, without a client. Every fourth job has a key.
LOAD = """
INSERT INTO _jobs (id, topic, status, ready, priority, run_at, key, scope, scope_id, payload, max_retries, timeout_s,
                   trace)
SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::int8), 12, '0') || '7'
          || substr(md5(random()::text), 1, 3) || '8' || substr(md5(random()::text), 1, 15))::uuid,
       (ARRAY{topics})[1 + g % {lanes}], 'pending', true, 100, clock_timestamp(),
       CASE WHEN g % 4 = 0 THEN 'key-' || g END, 'tenant', (g % 50)::text,
       json_build_object('order', g, 'customer', 'customer-' || g, 'lines', ARRAY[g, g + 1, g + 2],
         'address', json_build_object('street', 'Long Street 17', 'city', 'Somewhere', 'zip', '12345'),
         'note', 'please ring twice', 'express', g % 2 = 0)::{payload},
       3, 600, '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
FROM generate_series(1, {n}) g
"""


# --- statements ---------------------------------------------------------------------------------

NEW = [  # the 14 fields of a new job
    ("id", "uuid"), ("topic", "text"), ("template_version", "int"), ("priority", "int"),
    ("run_at", "timestamptz"), ("payload", "{payload}"), ("key", "text"), ("scope", "text"),
    ("scope_id", "text"), ("max_retries", "int"), ("timeout_s", "float8"),
    ("expires_at", "timestamptz"), ("tags", "json"), ("trace", "text"),
]  # fmt: skip
NEW_NAMES = ", ".join(name for name, _ in NEW)
NEW_VALUES = NEW_NAMES.replace("run_at", "coalesce(run_at, clock)")


def insert_sql(payload: str, many: bool) -> str:
    kinds = [kind.format(payload=payload) for _, kind in NEW]
    if many:
        source = "unnest(" + ", ".join(f"${i}::{kind}[]" for i, kind in enumerate(kinds, 1)) + ")"
    else:
        source = "(VALUES (" + ", ".join(f"${i}::{kind}" for i, kind in enumerate(kinds, 1)) + "))"
    return (
        f"INSERT INTO _jobs ({NEW_NAMES}, status, ready) "
        f"SELECT {NEW_VALUES}, 'pending', coalesce(run_at <= clock, true) "
        f"FROM {source} AS new ({NEW_NAMES}), (SELECT clock_timestamp()) AS c (clock)"
    )


CLAIMED = [  # what a claim tells the worker about a job, in the order of Job's fields
    "id", "topic", "template_version", "priority", "run_at", "expires_at", "key", "scope", "scope_id",
    "step", "payload", "version", "retries", "max_retries", "crashes", "timeout_s", "flow_id",
    "schedule_id", "fire_at", "tags", "trace", "created", "claimed_at", "locked_until",
]  # fmt: skip

MERGED = """
WITH s AS MATERIALIZED (
  SELECT * FROM unnest($1::uuid[], $2::int[], $3::text[], $4::float8[], $5::text[], $6::text[], $7::text[])
    AS s (id, v, goal, delay, res, err, entry) ORDER BY id),
held AS MATERIALIZED (SELECT s.*, h.* FROM s CROSS JOIN LATERAL
  (SELECT ctid AS tid, status AS cur, version AS curv FROM _jobs j WHERE j.id = s.id FOR NO KEY UPDATE) h),
ok AS MATERIALIZED (SELECT * FROM held WHERE curv = v AND
  (cur = 'processing' OR cur = 'cancel_requested' AND goal IN ('completed', 'cancelled'))),
gone AS (DELETE FROM _jobs WHERE ctid = ANY(ARRAY(SELECT tid FROM ok WHERE goal = 'completed')) RETURNING *),
arch AS (INSERT INTO _jobs_archive ({kept}, worker, result, finished_at)
  SELECT {kept_gone}, gone.locked_by, ok.res::json, clock_timestamp() FROM gone JOIN ok USING (id)),
upd AS (UPDATE _jobs j SET status = goal, ready = (goal = 'pending' AND delay = 0),
    run_at = CASE WHEN goal = 'pending' THEN clock_timestamp() + make_interval(secs => delay) ELSE run_at END,
    finished_at = CASE WHEN goal <> 'pending' THEN clock_timestamp() END,
    retries = retries + 1, last_error = err, locked_by = NULL, locked_until = NULL, updated = clock_timestamp(),
    history = coalesce(history, '[]') || entry::jsonb
  FROM ok WHERE j.ctid = ANY(ARRAY(SELECT tid FROM ok WHERE goal <> 'completed')) AND j.id = ok.id
  RETURNING j.id),
lane AS MATERIALIZED (
  SELECT l.* FROM unnest($8::text[], $9::int[]) AS l (topic, tv) LEFT JOIN _jobs_topics p USING (topic)
  WHERE p.paused_at IS NULL OR p.paused_until <= (SELECT clock_timestamp())),
take AS MATERIALIZED (SELECT topic, tv, count(*)::int AS n FROM (
    SELECT l.*, h.* FROM lane l CROSS JOIN LATERAL (
      SELECT -priority AS r, run_at, id FROM _jobs WHERE ready AND topic = l.topic AND template_version = l.tv
      ORDER BY -priority, run_at, id LIMIT $10::int) h
    ORDER BY r, run_at, id LIMIT $10::int) m GROUP BY 1, 2),
picked AS MATERIALIZED (SELECT h.ctid FROM take t CROSS JOIN LATERAL (
    SELECT ctid FROM _jobs WHERE ready AND topic = t.topic AND template_version = t.tv
    ORDER BY -priority, run_at, id LIMIT t.n FOR UPDATE SKIP LOCKED) h),
c AS (UPDATE _jobs SET ready = false, status = 'processing', version = version + 1, locked_by = $11::text,
    locked_until = clock_timestamp() + make_interval(secs => $12::float8), claimed_at = clock_timestamp()
  WHERE ctid = ANY(ARRAY(SELECT ctid FROM picked)) RETURNING {claimed})
SELECT NULL::text[] AS refused, NULL::int AS taken, NULL::timestamptz AS due, c.* FROM c
UNION ALL
SELECT ARRAY(SELECT id::text FROM s WHERE id NOT IN (SELECT id FROM gone UNION ALL SELECT id FROM upd)),
  (SELECT coalesce(sum(n), 0)::int FROM take),
  (SELECT min(run_at) FROM _jobs WHERE status = 'pending' AND NOT ready), {nulls}
"""


def merged_sql(id_out: str) -> str:
    expression = {"id": id_out, "payload": "payload::text", "tags": "tags::text"}
    return MERGED.format(
        kept=KEPT,
        kept_gone=", ".join(f"gone.{name}" for name in KEPT.split(", ")),
        claimed=", ".join(f"{expression.get(name, name)} AS {name}" for name in CLAIMED),
        nulls=", ".join(["NULL"] * len(CLAIMED)),
    )


class Job(msgspec.Struct, frozen=True, gc=False):
    id: Any
    topic: str
    template_version: int
    priority: int
    run_at: datetime
    expires_at: datetime | None
    key: str | None
    scope: str | None
    scope_id: str | None
    step: str | None
    payload: Any
    version: int
    retries: int
    max_retries: int
    crashes: int
    timeout_s: float
    flow_id: Any
    schedule_id: str | None
    fire_at: datetime | None
    tags: Any
    trace: str | None
    created: datetime
    claimed_at: datetime
    locked_until: datetime


# --- drivers ------------------------------------------------------------------------------------

Run = Callable[..., Awaitable[list[Any]]]  # run(sql, *args) -> rows
Close = Callable[[], Awaitable[None]]


async def connect_asyncpg(url: str, options: dict[str, Any], codec: bool) -> tuple[Run, Close]:
    conn = await asyncpg.connect(url, **options)
    if codec:
        await conn.set_type_codec("uuid", schema="pg_catalog", encoder=str, decoder=str, format="text")
    return conn.fetch, conn.close


async def connect_psycopg(url: str, options: dict[str, Any], codec: bool) -> tuple[Run, Close]:
    conn = await psycopg.AsyncConnection.connect(
        url, autocommit=True, prepare_threshold=0, cursor_factory=psycopg.AsyncRawCursor, **options
    )
    # By default, psycopg sends a list as text. It prefers the dumper that was registered last.
    conn.adapters.register_dumper(list, ListBinaryDumper)
    cursor = conn.cursor(binary=True)

    async def run(sql: str, *args: Any) -> list[Any]:
        await cursor.execute(sql, args, prepare=True, binary=True)
        return await cursor.fetchall() if cursor.description else []

    return run, conn.close


CONNECT = {"asyncpg": connect_asyncpg, "psycopg": connect_psycopg}


@dataclass(frozen=True)
class Variant:
    name: str
    driver: str = "asyncpg"
    loop: str = "uvloop"
    settings: tuple[str, ...] = ("jit = off", "plan_cache_mode = force_generic_plan")
    options: tuple[tuple[str, Any], ...] = ()
    payload: str = "json"
    archive: str = "plain"
    ids: str = "str"  # str: str in, id::text out · UUID: objects both ways · codec: str by a text codec
    batch: int = 500
    connections: int = 1
    lanes: int = len(TOPICS)
    pool: str = ""

    async def connect(self, url: str) -> tuple[Run, Close]:
        run, close = await CONNECT[self.driver](url, dict(self.options), self.ids == "codec")
        await run(f"SET search_path = {SCHEMA}")
        for setting in self.settings:
            await run(f"SET {setting}")
        return run, close


@dataclass(frozen=True)
class Result:
    rate: float  # jobs or calls per second of wall time
    cpu_us: float  # this process's CPU time for each job or call, in microseconds


class Stopwatch:
    def __init__(self) -> None:
        gc.collect()
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def stop(self, n: int) -> Result:
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        return Result(n / wall, cpu / n * 1e6)


# --- measurements -------------------------------------------------------------------------------


def new_ids(n: int, ids: str) -> list[Any]:
    """Return n UUIDv7. They are cheap: one read of the clock and one of the random source for all."""
    prefix, noise = f"{int(time.time() * 1000):012x}", os.urandom(10 * n).hex()
    texts = [
        f"{prefix[:8]}-{prefix[8:]}-7{noise[i : i + 3]}-8{noise[i + 3 : i + 6]}-{noise[i + 6 : i + 18]}"
        for i in range(0, 20 * n, 20)
    ]
    return [uuid.UUID(text) for text in texts] if ids == "UUID" else texts


def new_job(i: int, id: Any) -> tuple[Any, ...]:
    payload = {
        "order": i, "customer": f"customer-{i}", "lines": [i, i + 1, i + 2],
        "address": {"street": "Long Street 17", "city": "Somewhere", "zip": "12345"},
        "note": "please ring twice", "express": i % 2 == 0,
    }  # fmt: skip
    return (
        id, TOPICS[i % len(TOPICS)], 0, 100, None, encode_json(payload).decode(),
        None if i % 4 else f"key-{id}", "tenant", str(i % 50), 3, 600.0, None, None,
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    )  # fmt: skip


async def insert_one_by_one(url: str, v: Variant, n: int = 1200) -> Result:
    sql = insert_sql(v.payload, many=False)
    run, close = await v.connect(url)
    jobs = [new_job(i, id) for i, id in enumerate(new_ids(n + WARM_UP_CALLS, v.ids))]
    for job in jobs[n:]:
        await run(sql, *job)
    watch = Stopwatch()
    for job in jobs[:n]:
        await run(sql, *job)
    result = watch.stop(n)
    await close()
    return result


async def insert_through_pool(url: str, v: Variant, n: int = 1200) -> Result:
    if not v.pool:
        return await insert_one_by_one(url, v, n)

    async def no_reset(conn: Any) -> None:
        pass

    sql = insert_sql(v.payload, many=False)
    options = {"server_settings": {"search_path": SCHEMA, "jit": "off", "plan_cache_mode": "force_generic_plan"}}
    if v.pool == "no reset":
        options["reset"] = no_reset
    jobs = [new_job(i, id) for i, id in enumerate(new_ids(n + WARM_UP_CALLS, v.ids))]
    async with asyncpg.create_pool(url, min_size=1, max_size=1, **options) as pool:
        for job in jobs[n:]:
            await pool.execute(sql, *job)
        watch = Stopwatch()
        for job in jobs[:n]:
            async with pool.acquire() as conn:
                await conn.fetch(sql, *job)
        return watch.stop(n)


async def insert_thousands(url: str, v: Variant, calls: int = 20, size: int = 1000) -> Result:
    sql = insert_sql(v.payload, many=True)
    run, close = await v.connect(url)

    async def call(i: int) -> None:
        jobs = map(new_job, range(i * size, (i + 1) * size), new_ids(size, v.ids))
        await run(sql, *map(list, zip(*jobs, strict=False)))

    for i in range(2):
        await call(i)
    watch = Stopwatch()
    for i in range(calls):
        await call(i + 2)
    result = watch.stop(calls * size)
    await close()
    return result


ENTRY = '[{"at": "2026-01-01T00:00:00Z", "move": "retry", "by": "worker-1"}]'


class Drainer:
    """One connection that settles its last batch and claims the next one."""

    def __init__(self, run: Run, v: Variant, worker: str) -> None:
        self.run, self.worker, self.n = run, worker, v.batch
        self.sql = merged_sql("id" if v.ids != "str" else "id::text")
        self.topics = TOPICS[: v.lanes]
        self.jobs: list[Job] = []
        self.settled = self.calls = 0

    async def step(self) -> bool:
        jobs = self.jobs
        # One job in fifty is retried later, so that every branch of the statement has work to do.
        goals = ["completed"] * len(jobs)
        goals[::50] = ["pending"] * len(goals[::50])
        retry = [goal == "pending" for goal in goals]
        rows = await self.run(
            self.sql,
            [job.id for job in jobs],
            [job.version for job in jobs],
            goals,
            [3600.0 if r else 0.0 for r in retry],
            [None if r else '{"ok":true}' for r in retry],
            ["boom" if r else None for r in retry],
            [ENTRY if r else None for r in retry],
            self.topics, [0] * len(self.topics), self.n, self.worker, 60.0,
        )  # fmt: skip
        refused, taken, _due = rows.pop()[:3]
        if refused:
            raise RuntimeError(f"refused: {refused[:3]}")
        self.settled += len(jobs)
        self.calls += 1
        self.jobs = [Job(*row[3:13], decode_json(row[13]), *row[14:]) for row in rows]
        return bool(taken or self.jobs)

    async def drain(self) -> None:
        while await self.step():
            pass


async def drain(url: str, v: Variant, calls: int = 40) -> Result:
    n = calls * max(v.batch, 250)  # 20,000 in batches of 500, 10,000 in smaller ones
    opened = [await v.connect(url) for _ in range(v.connections)]
    drainers = [Drainer(run, v, f"worker-{i}") for i, (run, _) in enumerate(opened)]
    load = LOAD.format(n=n + v.connections * WARM_UP_CALLS * v.batch, payload=v.payload, topics=TOPICS, lanes=v.lanes)
    run = opened[0][0]
    await run(load)
    await run("ANALYZE _jobs")
    for drainer in drainers:
        for _ in range(WARM_UP_CALLS):
            await drainer.step()
    before = sum(drainer.settled for drainer in drainers)
    watch = Stopwatch()
    await asyncio.gather(*(drainer.drain() for drainer in drainers))
    result = watch.stop(sum(drainer.settled for drainer in drainers) - before)
    for _, close in opened:
        await close()
    return result


async def ask_in_vain(url: str, v: Variant, calls: int = 150) -> Result:
    """Measure a call with nothing to settle and nothing to claim: the fixed cost of a call."""
    run, close = await v.connect(url)
    drainer = Drainer(run, v, "worker")
    for _ in range(WARM_UP_CALLS):
        await drainer.step()
    watch = Stopwatch()
    for _ in range(calls):
        await drainer.step()
    result = watch.stop(calls)
    await close()
    return result


# --- the tables ---------------------------------------------------------------------------------

Measure = Callable[[str, Variant], Coroutine[Any, Any, Result]]
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


def measure_once(url: str, measure: Measure, v: Variant) -> Result:
    async def prepare() -> None:
        conn = await asyncpg.connect(url)
        await conn.execute("SET client_min_messages = warning;" + schema_sql(v.payload, v.archive))
        await conn.close()

    with asyncio.Runner(loop_factory=LOOPS[v.loop]) as runner:
        runner.run(prepare())
        return runner.run(measure(url, v))


def table(url: str, title: str, unit: str, measure: Measure, variants: list[Variant], rounds: int) -> None:
    results: dict[str, list[Result]] = {v.name: [] for v in variants}
    for i in range(rounds):
        shift = i % len(variants)
        for v in variants[shift:] + variants[:shift]:
            results[v.name].append(measure_once(url, measure, v))
    base = results[variants[0].name]
    print(f"\n### {title}\n\n| variant | {unit} | min–max | ratio | client CPU µs | least |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, got in results.items():
        rates = [r.rate for r in got]
        ratio = statistics.median(r.rate / b.rate for r, b in zip(got, base, strict=True))
        cpus = [r.cpu_us for r in got]
        print(
            f"| {name} | {statistics.median(rates):,.0f} | {min(rates):,.0f}–{max(rates):,.0f} "
            f"| {ratio:.2f} | {statistics.median(cpus):.1f} | {min(cpus):.1f} |",
            flush=True,
        )


def four_ways(**fields: Any) -> list[Variant]:
    return [
        Variant(f"{driver}, {loop}", driver=driver, loop=loop, **fields)
        for driver in ("asyncpg", "psycopg")
        for loop in ("uvloop", "asyncio")
    ]


def plans() -> list[Variant]:
    base = Variant("force_generic_plan")
    return [
        base,
        replace(base, name="auto", settings=("jit = off", "plan_cache_mode = auto")),
        replace(base, name="force_custom_plan", settings=("jit = off", "plan_cache_mode = force_custom_plan")),
        replace(base, name="force_generic_plan, jit on", settings=("jit = on", "plan_cache_mode = force_generic_plan")),
        replace(base, name="server defaults (auto, jit on)", settings=()),
        replace(base, name="generic, statement_cache_size=0", options=(("statement_cache_size", 0),)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare PostgreSQL drivers on rowlock's hot statements.")
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="abcdefg", help="which measurements, by letter")
    args = parser.parse_args()
    url, rounds = args.url, args.rounds

    async def server() -> str:
        conn = await asyncpg.connect(url)
        names = ["server_version", "fsync", "synchronous_commit", "shared_buffers", "max_wal_size"]
        settings = [f"{name}={await conn.fetchval(f'SHOW {name}')}" for name in names]
        await conn.close()
        return ", ".join(settings)

    print(
        f"Python {platform.python_version()}, asyncpg {asyncpg.__version__}, psycopg {psycopg.__version__} "
        f"({psycopg.pq.__impl__}), uvloop {uvloop.__version__}, msgspec {msgspec.__version__}, {os.cpu_count()} cores; "
        f"{asyncio.run(server())}; {rounds} rounds; settle+claim is {len(merged_sql('id::text')):,} characters"
    )
    base = Variant("")
    if "a" in args.only:
        table(url, "a. INSERT one by one", "jobs/s", insert_one_by_one, four_ways(), rounds)
    if "b" in args.only:
        table(url, "b. INSERT of 1,000 by unnest", "jobs/s", insert_thousands, four_ways(), rounds)
    if "c" in args.only:
        for batch in (100, 500):
            for connections in (1, 2):
                title = f"c. settle+claim, batch {batch}, {connections} connection(s)"
                table(url, title, "jobs/s", drain, four_ways(batch=batch, connections=connections), rounds)
    if "d" in args.only:
        for batch in (100, 500):
            table(url, f"d. plans, batch {batch}", "jobs/s", drain, [replace(v, batch=batch) for v in plans()], rounds)
        table(url, "d. plans, a call with nothing to do", "calls/s", ask_in_vain, plans(), rounds)
    if "e" in args.only:
        pools = [
            replace(base, name="bare connection"),
            replace(base, name="Pool.acquire, reset does nothing", pool="no reset"),
            replace(base, name="Pool.acquire, default reset", pool="reset"),
        ]
        table(url, "e. pool, INSERT one by one", "jobs/s", insert_through_pool, pools, rounds)
    if "f" in args.only:
        kinds = [replace(base, name=f"payload {kind}", payload=kind) for kind in ("json", "text", "jsonb")]
        table(url, "f. payload type, INSERT of 1,000", "jobs/s", insert_thousands, kinds, rounds)
        table(url, "f. payload type, settle+claim 500", "jobs/s", drain, kinds, rounds)
        ids = [
            replace(base, name="ids str in, id::text out"),
            replace(base, name="UUID objects both ways", ids="UUID"),
            replace(base, name="str by a uuid text codec", ids="codec"),
        ]
        table(url, "f. ids, INSERT of 1,000", "jobs/s", insert_thousands, ids, rounds)
        table(url, "f. ids, settle+claim 500", "jobs/s", drain, ids, rounds)
    if "g" in args.only:
        archives = [
            replace(base, name="plain table"),
            replace(base, name="partitioned, DEFAULT only", archive="default"),
            replace(base, name="partitioned, 10 days + DEFAULT", archive="10 days"),
        ]
        for batch in (100, 500):
            variants = [replace(v, batch=batch) for v in archives]
            table(url, f"g. archive, settle+claim {batch}", "jobs/s", drain, variants, rounds)

    async def clean() -> None:
        conn = await asyncpg.connect(url)
        await conn.execute(f"SET client_min_messages = warning; DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        await conn.close()

    asyncio.run(clean())


if __name__ == "__main__":
    sys.exit(main())
