"""The hot statements touch their own jobs only, whatever else is in the tables and however old the statistics are.

PostgreSQL itself counts the blocks, per relation and transaction, of prepared statements as the store runs them.
"""

import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import astuple

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Completed, Failed, Waits
from rowlock.core.moves import (
    Cancel,
    CancelTimeout,
    Delete,
    Due,
    Order,
    ReportCallback,
    Requeue,
    Rescue,
    Resume,
    Signal,
    SignalSent,
    Wake,
)
from rowlock.core.steps import marks_by_run
from rowlock.stores.base import Claim
from rowlock.stores.postgres import moves, rows, waits
from rowlock.stores.postgres.statements import Statements
from rowlock.stores.postgres.steps import checkpoint
from rowlock.stores.postgres.store import PostgresStore
from tests.closing import opening
from tests.stores.flow_maker import made, node
from tests.stores.harness import info, job, lanes, mark, settlement, wait
from tests.stores.test_sqlite_plans import lessened, shares

JOBS = 20
LANES = lanes("mail", "bills", "nobody_enqueues_this")
CLAIM = Claim("w1", LANES, JOBS, 30.0)
NOT_AFTER = datetime(2200, 1, 1, tzinfo=UTC)

FETCHED = """
    SELECT coalesce(sum(pg_stat_get_xact_blocks_fetched(oid)), 0)::int FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relname LIKE '\\_jobs%'"""

# As many rows as the promise names, of kinds that tempt the planner to a bad plan.
NOISE = [
    """INSERT INTO _jobs (id, topic, status, ready, priority, run_at, created, updated, max_retries, timeout, payload)
       SELECT gen_random_uuid(), 'foreign_' || n % 5, 'pending', true, 500, now(), now(), now(), 3, 600, '{}'
       FROM generate_series(1, 200000) n""",
    """INSERT INTO _jobs (id, topic, status, ready, priority, run_at, created, updated, max_retries, timeout, payload)
       SELECT gen_random_uuid(), 'mail', 'pending', false, 500, now() + interval '1 day', now(), now(), 3, 600, '{}'
       FROM generate_series(1, 100000) n""",
    """INSERT INTO _jobs (id, topic, status, ready, priority, run_at, created, updated, max_retries, timeout, payload,
                          finished_at)
       SELECT gen_random_uuid(), 'mail', 'failed', false, 500, now(), now(), now(), 3, 600, '{}', now()
       FROM generate_series(1, 20000) n""",
    """INSERT INTO _jobs_archive (id, topic, template_version, priority, run_at, created, updated, finished_at, version,
                                  retries, max_retries, crashes, history_dropped, timeout, payload)
       SELECT lpad(to_hex(n), 32, '0')::uuid, 'mail', 0, 100, now(), now(), now(), now(), 1, 0, 3, 0, 0, 600, '{}'
       FROM generate_series(1, 1000000) n""",
    """INSERT INTO _jobs_steps (job_id, name, n, position, function, state, retries, cancelable, version, started_at)
       SELECT lpad(to_hex(n / 10), 32, '0')::uuid, 'a', n % 10, 1, 'a', 'running', 0, false, 1, now()
       FROM generate_series(1, 1000000) n""",
    """INSERT INTO _jobs (id, topic, status, ready, priority, run_at, created, updated, max_retries, timeout, payload,
                          waits_for, signals, version, started_at, claimed_at)
       SELECT gen_random_uuid(), 'mail', 'waiting', false, 500,
              CASE WHEN n % 2 = 0 THEN timestamptz '9999-12-31 23:59:59.999999+00' ELSE now() + interval '1 day' END,
              now(), now(), 3, 600, '{}', 'signal:go', 1, 1, now(), now()
       FROM generate_series(1, 100000) n""",
    """INSERT INTO _jobs_signals (job_id, seq, name, data, at)
       SELECT lpad(to_hex(n / 10), 32, '0')::uuid, n % 10, 'go', '1', now() FROM generate_series(1, 200000) n""",
]

CHANGED = {
    Status.FAILED: "UPDATE _jobs SET status = 'failed', locked_by = NULL, locked_until = NULL, finished_at = now() "
    "WHERE id = ANY ($1::uuid[])",
    Status.WAITING: "UPDATE _jobs SET status = 'waiting', locked_by = NULL, locked_until = NULL, "
    "waits_for = 'signal:go', run_at = now() - interval '1 s' WHERE id = ANY ($1::uuid[])",
    Status.CANCEL_REQUESTED: "UPDATE _jobs SET status = 'cancel_requested', "
    "cancel_requested_at = now() - interval '1 h' WHERE id = ANY ($1::uuid[])",
}

KEYED = """
    INSERT INTO _jobs (id, topic, key, scope_id, status, ready, priority, run_at, created, updated, max_retries,
                       timeout, payload)
    SELECT gen_random_uuid(), 'mail', 'k', n::text, 'pending', true, 100, now(), now(), now(), 3, 600, '{}'
    FROM generate_series(1, 5000) n"""


@pytest.fixture(
    params=[
        "plan_cache_mode=force_generic_plan",
        pytest.param("plan_cache_mode=force_custom_plan&enable_seqscan=on&jit=on", marks=pytest.mark.proof),
    ]
)
async def store(request: pytest.FixtureRequest, migrated_url: str) -> AsyncIterator[PostgresStore]:
    """Yield a store: with plans made once on empty tables, or with a new plan for each call, as behind PgBouncer."""
    async with opening(PostgresStore(f"{migrated_url}?pool_size=2&{request.param}")) as store:
        yield store


def _checkpoint(sql: Statements, runs: Sequence[Job]) -> str:
    marks = [mark(run, name, "running") for run in runs for name in ("a", "b")]
    return checkpoint(sql, marks_by_run(marks)).parameter


class Meter:
    """Counts the blocks that each hot statement fetches, on one connection of the store."""

    def __init__(self, store: PostgresStore, connection: Any) -> None:
        self._store = store
        self._connection = connection

    async def blocks(self, statement: str, *parameters: Any) -> int:
        transaction = self._connection.transaction()
        await transaction.start()
        before: int = await self._connection.fetchval(FETCHED)
        found = await self._connection.fetch(statement, *parameters)
        after: int = await self._connection.fetchval(FETCHED)
        await transaction.rollback()
        assert found
        return after - before

    async def moved(self, order: Order, ids: Sequence[str] = (), *, as_if: Status | None = None) -> int:
        """Return the blocks that locking and writing fetch together. `as_if`: give the jobs this status first."""
        transaction = self._connection.transaction()
        await transaction.start()
        if as_if is not None:
            await self._connection.execute(CHANGED[as_if], ids)
        before: int = await self._connection.fetchval(FETCHED)
        if isinstance(order, Due) and not isinstance(order, Wake):
            await moves.move_due(self._connection, self._store._sql, order, 500)
        else:
            await moves.move(self._connection, self._store._sql, order, ids)
        after: int = await self._connection.fetchval(FETCHED)
        await transaction.rollback()
        return after - before

    async def pruned(self, ids: Sequence[str]) -> int:
        transaction = self._connection.transaction()
        await transaction.start()
        await self._connection.execute(CHANGED[Status.FAILED], ids)
        await self._connection.execute("UPDATE _jobs SET topic = 'old' WHERE id = ANY ($1::uuid[])", ids)
        before: int = await self._connection.fetchval(FETCHED)
        rules = (["failed"], [None], ["failed"], ["old"], [0.0])
        assert await self._connection.fetchval(self._store._sql.prune, 500, *rules) == len(ids)
        after: int = await self._connection.fetchval(FETCHED)
        await transaction.rollback()
        return after - before

    async def waits(self, blocks: dict[str, int], runs: Sequence[Job]) -> None:
        """Count blocks for jobs with steps that wait for a signal. `take_signal` finds no signal, and then one."""
        store, sql, ids = self._store, self._store._sql, [run.id for run in runs]
        told = [settlement(run, Waits("signal:go", None, 0), ran=0.1) for run in runs]
        blocks["settle to wait"] = await self.blocks(sql.settle, *rows.settle_arrays(told))
        blocks["promote"] = await self.blocks(sql.promote, 1000, None)
        asked = [waits.asked(wait(run)) for run in runs]
        blocks["take signal: none"] = sum([await self.blocks(sql.take_signal, one) for one in asked])
        await store.checkpoint([mark(run, "@callback:go", "succeeded", position=3) for run in runs])
        for run in runs:
            await store.take_signal(wait(run))
        sent = Signal(by="ann", sent=SignalSent("go", "1", "id"))
        report = ReportCallback(by="x", signal="go", number=1, timeout=5.0)
        for order in (Resume(by="m1"), Wake(by="ann"), sent, report, Cancel(by="ann")):
            blocks[f"{order.verb} of waiting jobs"] = await self.moved(order, ids, as_if=Status.WAITING)
        await store.move(ids, sent)
        blocks["take signal: one"] = sum([await self.blocks(sql.take_signal, one) for one in asked])

    async def all(self) -> dict[str, int]:
        """Return the blocks of each statement. Each has its own jobs, which are as before afterwards."""
        store, sql = self._store, self._store._sql
        claim = (*store._ask(CLAIM).parameters, NOT_AFTER, CLAIM.size)
        blocks = {"claim": await self.blocks(sql.claim, *claim)}
        claimed = (await store.claim(CLAIM)).jobs
        assert len(claimed) == JOBS
        settlements = [
            settlement(one, Completed() if n % 2 else Failed("no"), ran=0.1) for n, one in enumerate(claimed)
        ]
        settle = rows.settle_arrays(settlements)
        mixed = rows.settle_arrays(settlements, mixed=True)
        complete = rows.completions([settlement(one, Completed(), ran=0.1) for one in claimed])
        ids, versions = [one.id for one in claimed], [one.version for one in claimed]
        workers = [one.locked_by for one in claimed]
        blocks["settle"] = await self.blocks(sql.settle, *settle)
        blocks["settle of several workers"] = await self.blocks(sql.settle_mixed, *mixed)
        blocks["complete"] = await self.blocks(sql.complete, *complete)
        blocks["settle and claim"] = await self.blocks(sql.settle_and_claim, *settle, *claim)
        blocks["heartbeat"] = await self.blocks(sql.heartbeat, ids, versions, workers, [True] * JOBS, 30.0)
        said = [[5.0] * JOBS, ["stage"] * JOBS, ["message"] * JOBS, ['[[0,"info","hi"]]'] * JOBS]
        blocks["progress"] = await self.blocks(sql.progress, ids, versions, workers, *said, 200)
        blocks["checkpoint"] = await self.blocks(sql.checkpoint, _checkpoint(sql, claimed))
        blocks["look"] = await self.blocks(sql.look, ids)
        blocks["held_by"] = await self.blocks(sql.held_by, [CLAIM.worker], None)
        blocks["rescue of the dead"] = await self.blocks(sql.rescue_workers, 500, [CLAIM.worker])
        blocks["cancel"] = await self.moved(Cancel(by="ann"), ids)
        blocks["delete"] = await self.moved(Delete(by="ann"), ids)
        await store.checkpoint([mark(one, name, "succeeded") for one in claimed for name in ("a", "b")])
        blocks["checkpoint again"] = await self.blocks(sql.checkpoint, _checkpoint(sql, claimed))
        blocks["steps"] = await self.blocks(sql.steps, ids[:1])
        blocks["step events"] = await self.blocks(sql.ended_steps, ids[0])
        blocks["steps of many"] = await self.blocks(sql.step_places, ids)
        for status, order in ((Status.FAILED, Requeue(by="ann", from_step="b")), (Status.FAILED, Delete(by="ann"))):
            blocks[f"{order.verb} with steps"] = await self.moved(order, ids, as_if=status)
        blocks["cancel timeout"] = await self.moved(
            CancelTimeout(by="m1", grace=0.0), ids, as_if=Status.CANCEL_REQUESTED
        )
        blocks["prune with steps"] = await self.pruned(ids)
        await self.waits(blocks, claimed)
        blocks["written rescue"] = await self.moved(Rescue(by="m1", backoff=[60.0], workers=[CLAIM.worker]))
        await self._connection.execute(
            "UPDATE _jobs SET locked_until = now() - interval '1 s' WHERE locked_until > now()"
        )
        blocks["rescue"] = await self.blocks(sql.rescue_expired, 500, None)
        await store.move([one.id for one in claimed], Delete(by="test"))
        await self._connection.execute("DELETE FROM _jobs WHERE locked_by = 'w1'")
        return blocks


@pytest.mark.timeout(300)
@shares
async def test_what_a_statement_touches_does_not_grow_with_the_tables(store: PostgresStore, share: int) -> None:
    async with store._connections.acquire() as connection:
        for table in ("_jobs", "_jobs_archive_rest", "_jobs_steps_rest", "_jobs_signals_rest"):
            await connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        await connection.execute("ANALYZE")  # the tables are empty: the planner will think so from now on
        meter = Meter(store, connection)
        await store.insert([job(topic, priority=n) for n in range(JOBS) for topic in ("mail", "bills")])
        alone = await meter.all()
        for statement in lessened(NOISE, share):
            await connection.execute(statement)
        await store.insert([job(topic, priority=n) for n in range(JOBS) for topic in ("mail", "bills")])
        crowded = await meter.all()
    # PostgreSQL reads a table of a few blocks whole. In a larger table it passes some blocks on the way to each job.
    allowed = {name: 2 * count + 3 * JOBS for name, count in alone.items()}
    assert {name: count for name, count in crowded.items() if count > allowed[name]} == {}, (alone, crowded)


async def test_what_workers_say_again_and_again_reaches_no_index(store: PostgresStore) -> None:
    """These are HOT updates: the next version of the row is on the same page."""
    await store.insert([job()])
    [run] = (await store.claim(CLAIM)).jobs
    line = '[[0,"info","so far, so good"]]'
    async with store._connections.acquire() as connection:
        await connection.execute("VACUUM _jobs")
        await connection.execute("BEGIN")
        for percent in (10.0, 20.0, 30.0):
            said = [[run.id], [1], ["w1"], [percent], ["stage"], ["message"], [line], 200]
            await connection.fetch(store._sql.progress, *said)
            await connection.fetch(store._sql.report, *astuple(info())[:-2])
        hot = {
            table: await connection.fetchval(f"SELECT pg_stat_get_xact_tuples_hot_updated('{table}'::regclass)")
            for table in ("_jobs", "_jobs_workers")
        }
        await connection.execute("COMMIT")
    assert hot == {"_jobs": 3, "_jobs_workers": 2}  # a worker's first report is no update


async def test_a_claim_never_takes_more_than_its_limit_whatever_the_plan(store: PostgresStore) -> None:
    """SKIP LOCKED under a LIMIT overruns it when the planner joins instead of materialising."""
    async with store._connections.acquire() as connection:
        await connection.execute("ANALYZE")
    await store.insert([job(topic) for _ in range(3000) for topic in ("mail", "bills")])
    for limit in (1, 7, 100):
        claimed = await store.claim(Claim("w1", LANES, limit, 30.0))
        assert len(claimed.jobs) == limit
    async with store._connections.acquire() as connection:
        assert await connection.fetchval("SELECT count(*) FROM _jobs WHERE status = 'processing'") == 108


def test_the_driver_keeps_every_statement_prepared() -> None:
    """asyncpg silently plans statements of more than 15 KiB anew at every call."""
    statements = vars(Statements('"a_schema_of_a_rather_long_name_that_someone_might_choose"'))
    assert len(statements) > 20
    assert {name: len(text) for name, text in statements.items() if len(text) >= 15 * 1024} == {}


@pytest.mark.parametrize(("name", "parameters"), [("settle", 14), ("settle_mixed", 14), ("complete", 5)])
async def test_a_plan_made_for_an_empty_queue_still_archives_a_batch_in_one_pass(
    store: PostgresStore, name: str, parameters: int
) -> None:
    """Most sessions plan while there are no jobs. Then a nested loop over 500 × 500 rows costs a third of the rate."""
    async with store._connections.acquire() as connection:
        await connection.execute("ANALYZE")
        await connection.execute(f"PREPARE settle AS {getattr(store._sql, name)}")
        nothing = ", ".join(["NULL"] * parameters)
        lines = [row[0] for row in await connection.fetch(f"EXPLAIN (COSTS OFF) EXECUTE settle({nothing})")]
        await connection.execute("DEALLOCATE settle")
    begin = next(n for n, line in enumerate(lines) if line.strip() == "CTE archived")
    end = next(n for n, line in enumerate(lines) if n > begin and line.strip().startswith("CTE "))
    plan = "\n".join(lines[begin:end])
    assert "Full Join" in plan, plan
    assert "Nested Loop" not in plan, plan


BY_ID = {
    **dict.fromkeys(("read_jobs", "read_states", "read_statuses", "read_logs", "standing", "insert_undo"), "NULL"),
    "existing": "NULL, NULL, NULL, NULL, NULL",
    "lock_jobs": "NULL, NULL, NULL",
    "write_moves": ", ".join(["NULL"] * 11),
    "events": "'0193fb1e-0000-7000-8000-000000000001'",
    "prune": "NULL, NULL, NULL, NULL, NULL, NULL",
}


@pytest.mark.parametrize("name", BY_ID)
async def test_a_plan_made_for_an_empty_archive_still_finds_jobs_by_their_primary_key(
    migrated_url: str, name: str
) -> None:
    """While a new part is empty, the index on (topic, id) looks as good as any. A day later, the same plan would read
    the index from end to end."""
    async with opening(PostgresStore(migrated_url)) as store, store._connections.acquire() as connection:
        await connection.execute("ANALYZE")
        await connection.execute(f"PREPARE asked AS {getattr(store._sql, name)}")
        found = await connection.fetch(f"EXPLAIN (COSTS OFF) EXECUTE asked({BY_ID[name]})")
        await connection.execute("DEALLOCATE asked")
    lines = [row[0] for row in found if " Scan " in row[0] and " on _jobs_archive" in row[0]]
    assert lines
    fine = ("_pkey on ", "Tid Scan on ", "_topic_finished_at_idx on ")  # prune looks by topic and time
    assert [line for line in lines if not any(way in line for way in fine)] == [], lines


async def test_a_key_is_looked_up_in_its_scope(store: PostgresStore) -> None:
    """The lookup uses all columns of the unique index: many scopes may use the same key. A kept plan was made on empty
    tables; a plan that is made anew for every call sees the jobs."""
    nothing = ", ".join(["NULL"] * 5)
    async with store._connections.acquire() as connection:
        await connection.execute("ANALYZE")
        await connection.execute(f"PREPARE asked AS {store._sql.existing}")
        await connection.execute(f"EXECUTE asked({nothing})")
        await connection.execute(KEYED)
        lines = [row[0].strip() for row in await connection.fetch(f"EXPLAIN (COSTS OFF) EXECUTE asked({nothing})")]
        await connection.execute("DEALLOCATE asked")
    [n] = [n for n, line in enumerate(lines) if "_jobs_live_key" in line]
    wanted = [f"{column} = " for column in ("(key", "(topic", "_jobs_short(scope)", "_jobs_short(scope_id)")]
    assert [part for part in wanted if part not in lines[n + 1].replace("_1.", "")] == [], lines[n : n + 2]


SCHEDULED = [
    """INSERT INTO _jobs_schedules (id, name, topic, definition, revision, upto, next_run_at, zone_data, created,
                                    updated)
       SELECT gen_random_uuid(), 's' || n, 'mail', '{"topic": "mail", "when": {"every": 60}}', 1, now(),
              CASE WHEN n % 3 = 0 THEN NULL ELSE now() + interval '1 day' END, '', now(), now()
       FROM generate_series(1, 20000) n""",
    """INSERT INTO _jobs_fires (schedule_id, fire_at, at, kind, job_id, reason)
       SELECT id, now() - n * interval '1 minute', now(), 'schedule', CASE WHEN n % 2 = 0 THEN gen_random_uuid() END,
              CASE WHEN n % 2 = 1 THEN 'missed' END
       FROM (SELECT id FROM _jobs_schedules LIMIT 1000) s, generate_series(1, 50) n""",
    """INSERT INTO _jobs (id, topic, status, ready, priority, run_at, created, updated, max_retries, timeout, payload,
                          line, line_seq, key)
       SELECT gen_random_uuid(), 'mail', CASE WHEN n % 2 = 0 THEN 'pending' ELSE 'blocked' END, n % 2 = 0, 100, now(),
              now(), now(), 3, 600, '{}', 'line ' || n / 2, n, 'k' || n
       FROM generate_series(2, 40001) n""",
]


async def test_looking_for_due_schedules_does_not_grow_with_the_tables(store: PostgresStore) -> None:
    """Every worker looks for due schedules every second. 20,000 schedules are not due, and 20,000 lines have a head."""
    sql, times = store._sql, [{"schedule_id": "0193fb1e-0000-7000-8000-000000000001", "fire_at": 1}]
    looked = json.dumps({"times": times, "lines": ["line 7", "line 8"]})
    async with store._connections.acquire() as connection:
        for table in ("_jobs", "_jobs_schedules", "_jobs_fires"):
            await connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        await connection.execute("ANALYZE")
        meter = Meter(store, connection)

        async def measured() -> dict[str, int]:
            await connection.execute(
                "INSERT INTO _jobs_schedules (id, name, topic, definition, revision, upto, next_run_at, zone_data,"
                " created, updated)"
                " SELECT gen_random_uuid(), name, 'mail', '{}', 1, now(), now() + after, '', now(), now()"
                " FROM (VALUES ('due', interval '0'), ('later', interval '1 minute')) AS s (name, after)"
            )
            blocks = {
                "due": await meter.blocks(sql.schedules_due, '{"due": 100, "skip": []}'),
                "next": await meter.blocks(sql.next_fire, []),
                "next later": await meter.blocks(sql.next_fire_later, []),
                "look": await meter.blocks(sql.schedules_look_on_conn, looked),
                "by name": await meter.blocks(sql.schedule_by_name, '{"name": "due"}'),
            }
            await connection.execute("DELETE FROM _jobs_schedules WHERE name IN ('due', 'later')")
            return blocks

        alone = await measured()
        for statement in SCHEDULED:
            await connection.execute(statement)
        crowded = await measured()
    assert {name: count for name, count in crowded.items() if count > 2 * alone[name] + 20} == {}, (alone, crowded)


async def test_the_ends_of_many_parents_are_found_without_comparing_each_edge_with_each_of_them(
    store: PostgresStore,
) -> None:
    """Before a join, 500 leaves end together. In a nested loop, 500 × 500 comparisons cost 180 µs per leaf."""
    async with store._connections.acquire() as connection:
        await connection.execute("ANALYZE")
        await connection.execute(f"PREPARE asked AS {store._sql.flow_children}")
        found = await connection.fetch("EXPLAIN (COSTS OFF) EXECUTE asked(NULL, NULL, NULL, NULL)")
        await connection.execute("DEALLOCATE asked")
    plan = "\n".join(row[0] for row in found)
    assert "hashed SubPlan" in plan, plan
    assert "Nested Loop" not in plan, plan


async def test_an_edge_is_written_for_the_second_time_without_its_indexes(store: PostgresStore) -> None:
    flow = await made(store, {"a": node(), **{f"b{n}": node("a") for n in range(200)}})
    await flow.run("a")
    async with store._connections.acquire() as connection:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        updated, hot = await connection.fetchrow(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = '_jobs_edges'"
        )
    assert (updated, hot) == (200, 200)
