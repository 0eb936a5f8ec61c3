"""The SQL functions touch their own jobs only, whatever else is in the tables, in a session that sets nothing."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest

from tests.stores.sql_client import SqlClient
from tests.stores.test_postgres_plans import FETCHED

JOBS = 10
OLD = "0193fb1e-0000-7000-8000-000000000000"  # the id of an archived job, among many
TOPICS = ("mail", "bills", "nobody_enqueues_this")
CROWD = [
    """INSERT INTO _jobs (id, topic, status, ready, priority, run_at, created, updated, max_retries, timeout, payload)
       SELECT gen_random_uuid(), (ARRAY['mail', 'bills', 'foreign'])[1 + n % 3], 'pending', true, n % 50, now(), now(),
              now(), 3, 600, '{}'
       FROM generate_series(1, {many}) n""",
    """INSERT INTO _jobs (id, topic, status, ready, priority, run_at, created, updated, max_retries, timeout, payload)
       SELECT gen_random_uuid(), 'mail', 'pending', false, 500, now() + interval '1 day', now(), now(), 3, 600, '{}'
       FROM generate_series(1, {many} / 5) n""",
    """INSERT INTO _jobs_archive (id, topic, template_version, priority, run_at, created, updated, finished_at, version,
                                  retries, max_retries, crashes, history_dropped, timeout, payload)
       SELECT lpad(to_hex(n), 32, '0')::uuid, 'mail', 0, 100, now(), now(), now(), now(), 1, 0, 3, 0, 0, 600, '{}'
       FROM generate_series(1, {many} / 2) n""",
]


@pytest.fixture
async def sql(migrated_url: str) -> AsyncIterator[SqlClient]:
    client = await SqlClient.connect(migrated_url)
    yield client
    await client.close()


async def blocks(sql: SqlClient, call: Callable[[], Awaitable[object]]) -> int:
    """Return how many blocks the call fetches; undo the call."""
    transaction = sql.connection.transaction()
    await transaction.start()
    before: int = await sql.connection.fetchval(FETCHED)
    assert await call()
    after: int = await sql.connection.fetchval(FETCHED)
    await transaction.rollback()
    return after - before


async def measure(sql: SqlClient) -> dict[str, int]:
    for topic in TOPICS[:2]:
        for _ in range(JOBS):
            await sql.enqueue(topic, priority=1000)
    found = {
        "claim": await blocks(sql, lambda: sql.claim("w1", *TOPICS, n=JOBS)),
        "claim of one topic": await blocks(sql, lambda: sql.claim("w1", "mail", n=JOBS)),
        "enqueue": await blocks(sql, lambda: sql.enqueue(id=OLD, key="k")),
    }
    run, *others = await sql.claim("w1", *TOPICS, n=JOBS)
    found["heartbeat"] = await blocks(sql, lambda: sql.heartbeat(run))
    found["complete"] = await blocks(sql, lambda: sql.complete(run))
    found["fail"] = await blocks(sql, lambda: sql.fail(run))
    found["release"] = await blocks(sql, lambda: sql.release(run))
    found["lost"] = await blocks(sql, lambda: sql.complete(run._replace(version=0)))
    found["lost for long"] = await blocks(sql, lambda: sql.fail(run._replace(id=OLD)))
    await sql.connection.execute(
        "UPDATE _jobs SET locked_until = now() - interval '1 s' WHERE locked_until > '-infinity'"
    )
    found["rescue"] = await blocks(sql, sql.rescue)
    for one in (run, *others):
        assert await sql.complete(one) == "applied"
    return found


@pytest.mark.parametrize("many", [20_000, pytest.param(100_000, marks=pytest.mark.proof)])
async def test_what_a_function_touches_does_not_grow_with_the_tables(sql: SqlClient, many: int) -> None:
    for table in ("_jobs", "_jobs_archive_rest"):
        await sql.connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
    await sql.connection.execute("ANALYZE")  # the tables are empty: the planner will think so from now on
    alone = await measure(sql)
    for statement in CROWD:
        await sql.connection.execute(statement.replace("{many}", str(many)))
    crowded = await measure(sql)
    # PostgreSQL reads a table of a few blocks whole. In a larger table it passes some blocks on the way to each job.
    allowed = {name: 2 * count + JOBS for name, count in alone.items()}
    assert {name: count for name, count in crowded.items() if count > allowed[name]} == {}, (alone, crowded)


async def test_a_claim_never_takes_more_than_it_was_asked_for(sql: SqlClient) -> None:
    await sql.connection.execute("ANALYZE")
    await sql.connection.execute(CROWD[0].replace("{many}", "3000"))
    for n in (1, 7, 100):
        assert len(await sql.claim("w1", *TOPICS, n=n, lease=timedelta(hours=1))) == n
    assert await sql.connection.fetchval("SELECT count(*) FROM _jobs WHERE status = 'processing'") == 108
