"""list, stats and prune read a bounded part of the tables, whatever their size and whatever the statistics say.

PostgreSQL counts blocks, SQLite counts steps of its virtual machine, in a crowd that the statistics do not know of. No
plan reads a table of jobs from end to end.
"""

import re
import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rowlock.core.conditions import Compared, Listed, Some
from rowlock.core.job import Status
from rowlock.core.lifecycle import MOVES
from rowlock.stores import listing
from rowlock.stores.base import Retention
from rowlock.stores.listing import Seen, WalkPart, plan
from rowlock.stores.postgres.listing import BEGIN, PostgresPart, seen
from rowlock.stores.postgres.statements import Statements
from rowlock.stores.postgres.store import PostgresStore
from rowlock.stores.queries import MAX_LIVE, Filter, TopicRetention, check_place
from rowlock.stores.sqlite import maintenance, queries
from rowlock.stores.sqlite.connection import SqliteConnection, microseconds
from rowlock.stores.sqlite.listing import SqlitePart
from rowlock.stores.sqlite.rows import sql
from tests.closing import opening
from tests.stores.harness import Harness, SqliteHarness, job
from tests.stores.test_postgres_plans import FETCHED
from tests.stores.test_postgres_plans import NOISE as POSTGRES_NOISE
from tests.stores.test_sqlite_plans import NOISE, lessened, migrated_database, shares

# The ids of that noise are not UUIDs, but pages need UUIDs.
SQLITE_NOISE = [
    re.sub(r"'\w+ ' \|\| n", f"printf('{digit}%07x-0000-4000-8000-000000000000', n)", statement)
    for digit, statement in enumerate(NOISE)
]
RECENT = datetime(2026, 1, 1, tzinfo=UTC)
FILTERS: dict[str, Filter] = {
    "all": Filter(),
    "topic": Filter(topics=["bills"]),
    "topics": Filter(topics=["bills", "mail", "foreign_1"]),
    "status": Filter(statuses=["failed", "expired"]),
    "running": Filter(statuses=["processing"]),
    "waiting": Filter(statuses=["waiting", "blocked"]),
    "completed": Filter(statuses=["completed"]),
    "completed of a topic": Filter(statuses=["completed"], topics=["bills"]),
    "key": Filter(keys=["k1"]),
    "key of a topic": Filter(keys=["k1"], topics=["mail"]),
    "scope_id": Filter(scope_id="u1"),
    "scope_ids of a rule": Filter(where=Listed("scope_id", "=", ("u1", "u2", "u3"), True)),
    "scope_ids of a rule, finished": Filter(
        where=Some((Compared("scope_id", "=", "u1"), Compared("scope_id", "=", "u2"))),
        statuses=["completed", "failed"],
    ),
    "scope": Filter(scope="user"),
    "rare scope of a topic": Filter(scope="nobody", topics=["mail"], statuses=["completed"]),
    "ids": Filter(ids=["0193fb1e-0000-7000-8000-000000000001"]),
    "created": Filter(created_from=RECENT, created_until=RECENT + timedelta(hours=1)),
    "created, of a topic": Filter(created_from=RECENT, created_until=RECENT + timedelta(hours=1), topics=["bills"]),
    "created, pending": Filter(created_from=RECENT, created_until=RECENT + timedelta(hours=1), statuses=["pending"]),
    "finished": Filter(finished_from=RECENT, finished_until=RECENT + timedelta(hours=1)),
    "flow": Filter(flow_id="0193fb1e-0000-7000-8000-000000000001", statuses=["completed"]),
    "tags": Filter(tags=["red"]),
    "payload": Filter(payload={"a.b": 1}),
    "error": Filter(error="boom", statuses=["failed"]),
    "fingerprint": Filter(fingerprint="0" * 16),
}
RETENTION = Retention(failed=1e9, topics={"mail": TopicRetention(completed=None, failed=None)})


def every_walk() -> list[tuple[str, Filter, listing.Walk]]:
    return [
        (f"{name}: {'archive' if walk.archived else 'live'} by {walk.by}", filter, walk)
        for name, filter in FILTERS.items()
        for group in plan(filter)
        for walk in (*group.walks, *group.spare, *group.hope)
    ]


def test_each_kind_of_walk_is_among_them() -> None:
    seen = {(walk.archived, walk.by) for _, _, walk in every_walk()}
    assert {by for _, by in seen} == set(listing.By.__args__)  # type: ignore[attr-defined]


# ── SQLite ──

database = migrated_database


def steps(conn: sqlite3.Connection, read: Any) -> int:
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    conn.set_progress_handler(count, 1)
    read()
    conn.set_progress_handler(None, 1)
    if conn.in_transaction:
        conn.execute("ROLLBACK")
    return counted


def measure(database: SqliteConnection) -> dict[str, int]:
    conn = database.conn
    place = check_place(20, 0, None)
    taken = {
        name: steps(conn, lambda filter=filter: queries.list_jobs(conn, filter, place))
        for name, filter in FILTERS.items()
    }
    taken["stats"] = steps(conn, lambda: queries.stats(conn, microseconds(), None))
    taken["stats of a topic"] = steps(conn, lambda: queries.stats(conn, microseconds(), "bills"))
    taken["prune"] = steps(conn, lambda: maintenance.prune(conn, microseconds(), RETENTION, 10))
    return taken


# How many rows a read may look at. A row costs SQLite up to 35 steps, and PostgreSQL two blocks.
ROWS = dict.fromkeys(FILTERS, 30_000) | {
    "topic": 130_000,  # no index of live jobs has topics in the order of ids: up to BUDGET rows
    "topics": 150_000,
    "created": 50,
    "created, of a topic": 50,
    "created, pending": 50,
    "scope": 130_000,
    "status": 15_000,
    "ids": 50,
    "waiting": 11_000,
    "running": 50,
    "completed": 11_000,
    "completed of a topic": 50,
    "flow": 50,
    "scope_id": 50,
    "scope_ids of a rule": 100,
    "scope_ids of a rule, finished": 100,
    "rare scope of a topic": 50,
    "fingerprint": 50,
    "stats": 310_000,
    "stats of a topic": 110_000,
    "prune": 60,
}
MANY = 1000  # a bound of at least this many rows follows from a budget


@pytest.fixture
def bounds(share: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return the bounds of ROWS, with all budgets cut down like the crowd."""
    for name in ("MAX_TOTAL", "WINDOW", "BUDGET"):
        monkeypatch.setattr(listing, name, getattr(listing, name) // share)
    monkeypatch.setattr(queries, "BOUND", MAX_LIVE // share + 1)
    return {name: rows if rows < MANY else rows // share for name, rows in ROWS.items()}


@pytest.mark.timeout(300)
@shares
def test_sqlite_looks_at_a_bounded_part(database: SqliteConnection, share: int, bounds: dict[str, int]) -> None:
    database.conn.execute("ANALYZE")  # the tables are empty: the planner will think so from now on
    with database.transaction():
        for statement in lessened(SQLITE_NOISE, share):
            database.conn.execute(statement)
    taken = measure(database)
    assert {name: (count, bounds[name]) for name, count in taken.items() if count > 35 * bounds[name] + 1000} == {}


def test_sqlite_reads_no_table_from_end_to_end(database: SqliteConnection) -> None:
    for name, filter, walk in every_walk():
        for after in (None, "0193fb1e-0000-7000-8000-000000000001"):
            render = SqlitePart(filter, WalkPart(walk, after, 100, 100))
            lines = [row[3] for row in database.conn.execute(f"EXPLAIN QUERY PLAN {render.render()}", render.values)]
            assert not [line for line in lines if line == "SCAN j"], (name, lines)
            if walk.by not in listing.AT_ONCE | {"ids"}:
                assert not [line for line in lines if "TEMP B-TREE FOR ORDER BY" in line], (name, lines)


# ── PostgreSQL ──


@pytest.fixture(
    params=[
        "enable_seqscan=off",
        pytest.param("enable_seqscan=on&jit=on&plan_cache_mode=auto", marks=pytest.mark.proof),
    ]
)
async def store(request: pytest.FixtureRequest, migrated_url: str) -> AsyncIterator[PostgresStore]:
    """Yield a store with the sessions that it opens itself, and with those that PgBouncer would give it."""
    async with opening(PostgresStore(f"{migrated_url}?pool_size=2&{request.param}")) as store:
        yield store


async def blocks(connection: Any, read: Any) -> int:
    before: int = await connection.fetchval(FETCHED)
    await read()
    after: int = await connection.fetchval(FETCHED)
    return after - before


async def search(connection: Any, filter: Filter) -> None:
    """Search as the store does, on this connection."""
    steps = listing.find(filter, check_place(20, 0, None))
    answer: Seen | None = None
    while True:
        try:
            step = next(steps) if answer is None else steps.send(answer)
        except StopIteration:
            return
        render = PostgresPart('"public"', filter, step)
        answer = seen(await connection.fetchrow(render.render(), *render.values))


@pytest.mark.timeout(300)
@shares
async def test_postgres_looks_at_a_bounded_part(store: PostgresStore, share: int, bounds: dict[str, int]) -> None:
    """A row costs at most two blocks, one of an index and one of the table. A leap costs a few blocks."""
    sql = store._sql
    async with store._connections.acquire() as connection:
        tables = await connection.fetch(
            "SELECT oid::regclass::text FROM pg_class WHERE relname LIKE '\\_jobs%' AND relkind = 'r'"
        )
        for (table,) in tables:
            await connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        await connection.execute("ANALYZE")  # the tables are empty: the planner will think so from now on
        for statement in lessened(POSTGRES_NOISE, share):
            await connection.execute(statement)
        taken: dict[str, int] = {}
        for name, filter in FILTERS.items():
            await connection.execute(BEGIN)
            taken[name] = await blocks(connection, lambda filter=filter: search(connection, filter))
            await connection.execute("ROLLBACK")
        statuses = sorted(MOVES["prune"].sources)
        keep = [RETENTION.of(status) for status in statuses]
        bound = MAX_LIVE // share + 1
        own = [[Status.COMPLETED, Status.FAILED], ["mail", "mail"], [None, None]]
        verbs: dict[str, tuple[Any, ...]] = {
            "stats": (sql.stats, bound, 1002),
            "stats of a topic": (sql.stats_of_topic, bound, 1002, "bills"),
            "prune": (sql.prune, 10, statuses, keep, *own),
        }
        for name, verb in verbs.items():
            await connection.execute("BEGIN")
            taken[name] = await blocks(connection, lambda verb=verb: connection.fetch(*verb))
            await connection.execute("ROLLBACK")
    assert {name: (count, bounds[name]) for name, count in taken.items() if count > 2.2 * bounds[name] + 300} == {}


async def test_postgres_reads_no_table_from_end_to_end(store: PostgresStore) -> None:
    async with store._connections.acquire() as connection:
        await connection.execute("ANALYZE")
        for statement in POSTGRES_NOISE[1:3]:
            await connection.execute(statement)
        await store.insert([job() for _ in range(10)])
        await connection.execute(BEGIN)
        for name, filter, walk in every_walk():
            render = PostgresPart('"public"', filter, WalkPart(walk, None, 100, 20))
            lines = [row[0] for row in await connection.fetch(f"EXPLAIN {render.render()}", *render.values)]
            assert not [line for line in lines if "Seq Scan on _jobs" in line], (name, lines)
        await connection.execute("ROLLBACK")


async def test_stats_count_ready_jobs_in_their_index_alone(real_store: Harness) -> None:
    """The store reads table rows only for jobs whose run_at was past when they were enqueued."""
    if isinstance(real_store, SqliteHarness):
        text = sql("stats").replace("{of_topic}", "")
        found = await real_store.fetch(f"EXPLAIN QUERY PLAN {re.sub(r':[a-z]+', '1', text)}")
        scan, least = "USING COVERING INDEX _jobs_claim", 3  # 2 ways to count, 1 to choose the way
    else:
        text = Statements("public").stats.replace("$1::int", "100").replace("$2::int", "100")
        await real_store.insert(*(job() for _ in range(5000)))
        for statement in ("VACUUM ANALYZE _jobs", "SET enable_seqscan = off"):
            await real_store.execute(statement)
        found = await real_store.fetch(f"EXPLAIN (COSTS OFF) {text}")
        scan, least = "Index Only Scan using _jobs_claim", 1
    assert sum(scan in str(line) for line in found) == least, found
