"""Migrations run twice, from several stores at once, or from an older schema: the final schema is the same."""

import asyncio
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from rowlock.core.lifecycle import Failed
from rowlock.core.moves import Rescue
from rowlock.errors import NotMigrated, SchemaDamaged
from rowlock.stores import reading
from rowlock.stores.base import Store
from rowlock.stores.migrations import Migration, load, made_by
from rowlock.stores.postgres.functions import functions
from rowlock.stores.postgres.store import PostgresStore
from rowlock.stores.sqlite.migrate import statements
from rowlock.stores.sqlite.store import SqliteStore
from tests.closing import connected
from tests.databases import Databases, with_test_clock
from tests.stores.harness import Harness, PostgresHarness, SqliteHarness, job, settlement
from tests.stores.processes import real_job
from tests.stores.sql_client import SqlClient


async def schema_of_sqlite(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY 1, 2").fetchall()


async def schema_of_postgres(url: str) -> list[Any]:
    async with connected(url) as connection:
        columns = await connection.fetch(
            "SELECT table_name, ordinal_position, column_name, data_type, is_nullable, column_default "
            "FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2"
        )
        indexes = await connection.fetch(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"
        )
        checks = await connection.fetch(
            "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE connamespace = 'public'::regnamespace ORDER BY 1"
        )
        views = await connection.fetch(
            "SELECT viewname, definition FROM pg_views WHERE schemaname = 'public' ORDER BY 1"
        )
        return [*map(tuple, columns), *map(tuple, indexes), *map(tuple, checks), *map(tuple, views)]


async def migrate_at_once(make: Callable[[], Store]) -> None:
    todo = (await make().pending_migrations()).migrations
    assert todo != []
    applied: list[list[Migration]] = await asyncio.gather(*(make().migrate() for _ in range(8)))
    numbers = [migration.number for answer in applied for migration in answer]
    assert sorted(numbers) == sorted(migration.number for migration in todo)
    assert await make().migrate() == []
    assert (await make().pending_migrations()).migrations == []
    store = make()
    await store.open()
    await store.insert([real_job()])
    await store.close()


async def test_migrations_at_once_on_sqlite(tmp_path: Path) -> None:
    shared, alone = tmp_path / "shared.db", tmp_path / "alone.db"
    await migrate_at_once(lambda: SqliteStore(str(shared)))
    await SqliteStore(str(alone)).migrate()
    await SqliteStore(str(alone)).migrate()
    assert await schema_of_sqlite(shared) == await schema_of_sqlite(alone) != []


async def test_migrations_at_once_on_postgres(postgres_url: str, databases: Databases) -> None:
    await migrate_at_once(lambda: PostgresStore(postgres_url))
    async with databases.fresh(with_test_clock) as migrated_url:  # migrated by one store alone
        assert await schema_of_postgres(postgres_url) == await schema_of_postgres(migrated_url) != []


async def test_what_the_migrations_make_is_known(real_store: Harness) -> None:
    """`made_by` reads tables and columns from the text of the migrations, to check that a schema is complete. If this
    test fails, `made_by` does not understand how a new migration is written."""
    there: dict[str, set[str]] = {}
    for name, column in await real_store.fetch(COLUMNS[real_store.kind]):
        there.setdefault(name, set()).add(column)
    made = made_by(load(f"rowlock.stores.{real_store.kind}"))
    assert {name for name in there if not re.search(r"_migrations$|_(archive|steps|signals)_\d+$", name)} == made.keys()
    for name, columns in made.items():
        assert columns in (there[name], set()), name  # `made_by` lists no columns of views and partitions
    assert {"_jobs", "_jobs_topics"} <= {name for name, columns in made.items() if columns}


COLUMNS = {
    "sqlite": "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.name LIKE '_jobs%'",
    "postgres": "SELECT table_name, column_name FROM information_schema.columns WHERE table_name LIKE '_jobs%'",
}
DAMAGE = {  # the damage, and what the error says is gone
    "a table": ("DROP TABLE _jobs_topics", "_jobs_topics"),
    "a view": ("DROP VIEW _jobs_events", "_jobs_events"),
    "a column": ("ALTER TABLE _jobs_topics DROP COLUMN backoff", "_jobs_topics.backoff"),
    "the record": ("DROP TABLE _jobs_migrations", "_jobs_migrations"),
}


@pytest.mark.parametrize("what", DAMAGE)
async def test_a_damaged_schema_is_told_by_all(real_store: Harness, what: str) -> None:
    """Verbs that need the missing part report the damage, and so does a migration. Other verbs go on."""
    statement, missing = DAMAGE[what]
    if what == "a column" and real_store.kind == "sqlite" and sqlite3.sqlite_version_info < (3, 35):
        pytest.skip("this SQLite can't drop a column")
    await real_store.store.pending_migrations(whole=True)
    await real_store.execute(statement)
    with pytest.raises(SchemaDamaged, match=rf"gone: {missing}\. Restore it from a backup"):
        await real_store.store.pending_migrations(whole=True)
    job_id = await real_store.add()
    if what == "the record":
        with pytest.raises(SchemaDamaged, match=missing):
            await real_store.new_store().migrate()
        return
    assert await real_store.store.migrate() == []
    if what == "a view" and real_store.kind == "postgres":
        return  # on PostgreSQL no verb reads the view, because its plan may be bad
    store = real_store.store
    verb = reading.events(store, job_id) if what == "a view" else store.set_backoff({"mail": [1.0]})
    with pytest.raises(SchemaDamaged, match=rf"{missing.rpartition('.')[2]}.*schema is damaged.*`rowlock migrate`"):
        await verb


async def test_functions_are_applied_again_when_they_have_changed(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The functions are replaced while clients call them, from several stores at once. Older workers carry on."""
    await PostgresStore(postgres_url).migrate()
    before = functions()
    after = structs.replace(before, sql=before.sql.replace("IN ('processing',", "IN ( 'processing',"), revision=99)
    worker, sql = PostgresStore(postgres_url), await SqlClient.connect(postgres_url)
    await worker.open()
    called, migrated = asyncio.Event(), asyncio.Event()

    async def call() -> None:
        while not migrated.is_set():
            assert await sql.complete(await sql.claimed()) == "applied"
            assert await sql.fail(await sql.claimed(), final=True) == "applied"
            called.set()

    async def source() -> str:
        return str(await sql.connection.fetchval("SELECT prosrc FROM pg_proc WHERE proname = 'heartbeat_job'"))

    client = asyncio.create_task(call())
    await called.wait()
    with monkeypatch.context() as newer:
        newer.setattr("rowlock.stores.postgres.migrate.functions", lambda: after)
        with pytest.raises(NotMigrated, match=r"functions, revision 99.*run `rowlock migrate`"):
            await PostgresStore(postgres_url).open()
        pending = await worker.pending_migrations()
        assert pending.migrations == [after]
        by_hand = pending.script
        done = await asyncio.gather(*(PostgresStore(postgres_url).migrate() for _ in range(4)))
        assert sorted(map(len, done)) == [0, 0, 0, 1]
        assert await PostgresStore(postgres_url).migrate() == []
    migrated.set()
    await client
    assert "IN ( 'processing'," in await source()
    assert (
        await PostgresStore(postgres_url).pending_migrations()
    ).migrations == []  # an older release does not replace newer functions
    assert await PostgresStore(postgres_url).migrate() == []
    assert "IN ( 'processing'," in await source()
    await worker.insert([real_job()])
    for _ in range(2):
        await sql.connection.execute(by_hand)
    await worker.close()
    await sql.close()


# The counters of a database from before runs were counted too.
COUNTED = {
    "sqlite": ["INSERT INTO _jobs_totals VALUES ('', 7, 2, 1, 0, 4, 8000), ('mail', 7, 2, 1, 0, 4, 8000)"],
    "postgres": [
        "INSERT INTO _jobs_totals VALUES ('', 5, 2, 1, 0, 3, 6000), ('mail', 5, 2, 1, 0, 3, 6000)",
        "INSERT INTO _jobs_counts VALUES ('mail', 2, 0, 0, 0, 1, 2000)",
    ],
}


# The insert of the first release; its values: id, topic, whether the job is due, and the seconds until it is.
ENQUEUED = {
    "sqlite": (
        "INSERT INTO _jobs (id, topic, ready, priority, max_retries, timeout, created, updated, run_at, payload) "
        "SELECT '{}', '{}', {}, 100, 3, 600.0, now, now, now + {} * 1000000, '{{}}' "
        "FROM (SELECT unixepoch() * 1000000 AS now)"
    ),
    "postgres": (
        "INSERT INTO _jobs (id, topic, ready, priority, max_retries, timeout, created, updated, run_at, payload, "
        "status) VALUES "
        "('{}', '{}', {}, 100, 3, 600.0, now(), now(), now() + {} * interval '1 second', '{{}}', 'pending')"
    ),
}


async def upgrade(make: Callable[[], Harness], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the upgrade from the tables of the first release, with jobs and counters in them."""
    harness = make()
    module = f"rowlock.stores.{harness.kind}.migrate"
    known: tuple[Migration, ...] = load(f"rowlock.stores.{harness.kind}")
    with monkeypatch.context() as old:
        old.setattr(f"{module}.known", lambda: known[:1])
        await harness.open()
        held = job().id
        for topic, delay in (("mail", 0), ("bills", 60), ("zoo", 0)):
            ready = "false" if delay else "true"
            new_id = held if topic == "zoo" else job().id
            await harness.execute(ENQUEUED[harness.kind].format(new_id, topic, ready, delay))
        for statement in COUNTED[harness.kind]:
            await harness.execute(statement)
        # The claim of that release.
        await harness.execute(
            "UPDATE _jobs SET status = 'processing', ready = false, version = 1, locked_by = 'w1', "
            f"locked_until = run_at, claimed_at = created, started_at = created WHERE id = '{held}'"
        )
        await harness.close()
    harness = make()
    await harness.open()  # `open` migrates
    running = await harness.job(held)
    stats = await harness.store.stats()
    assert (stats.completed, stats.failed, stats.expired, stats.cancelled) == (7, 2, 1, 0)
    assert (stats.executions, stats.avg_execution_time, stats.retried, stats.lost) == (4, 2.0, 0, 0)
    assert (stats.pending, stats.processing, sorted(stats.topics)) == (2, 1, ["bills", "mail", "zoo"])
    await harness.store.settle([settlement(running, Failed("boom"), ran=0.0)])
    assert len((await harness.claim()).jobs) == 1
    assert len(await harness.store.move_due(Rescue(by="m1", backoff=[1.0], workers=["w1"]))) == 1
    for _ in range(2):
        stats = await harness.store.stats()
        assert (stats.completed, stats.retried, stats.lost) == (7, 2, 1)
        assert (stats.topics["mail"].retried, stats.topics["mail"].lost, stats.topics["zoo"].retried) == (1, 1, 1)
        await harness.store.tidy("fold_counts", 10_000)
    await harness.close()


async def test_an_old_database_is_upgraded_on_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await upgrade(lambda: SqliteHarness(tmp_path / "jobs.db", virtual=False), monkeypatch)


async def test_an_old_database_is_upgraded_on_postgres(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await upgrade(lambda: PostgresHarness(postgres_url, virtual=False), monkeypatch)


# How an older release enqueues with a key, and how it finds the job that has a key.
KEYED = {
    "sqlite": (
        "INSERT INTO _jobs (id, topic, ready, priority, max_retries, timeout, created, updated, run_at, payload, key, "
        "scope_id) VALUES ('{}', 'mail', 1, 100, 3, 600.0, 1, 1, 1, '{{}}', '{}', {}) ON CONFLICT DO NOTHING"
    ),
    "postgres": (
        "INSERT INTO _jobs (id, topic, ready, priority, max_retries, timeout, created, updated, run_at, payload, key, "
        "scope_id, status) VALUES "
        "('{}', 'mail', true, 100, 3, 600.0, now(), now(), now(), '{{}}', '{}', {}, 'pending') ON CONFLICT DO NOTHING"
    ),
}
HOLDER = {
    "sqlite": (
        "SELECT id FROM _jobs INDEXED BY _jobs_live_key WHERE topic = 'mail' AND key = '{}' AND key IS NOT NULL "
        "AND finished_at IS NULL"
    ),
    "postgres": "SELECT id::text FROM _jobs WHERE topic = 'mail' AND key = '{}' AND status = 'pending'",
}


async def change_keys(make: Callable[[], Harness], monkeypatch: pytest.MonkeyPatch) -> None:
    """Migrate while older clients enqueue a few keys again and again. No key is ever taken twice in its scope, and no
    client gets an error."""
    harness = make()
    known: tuple[Migration, ...] = load(f"rowlock.stores.{harness.kind}")
    with monkeypatch.context() as old:
        old.setattr(f"rowlock.stores.{harness.kind}.migrate.known", lambda: known[:10])
        await harness.open()
    ran, migrated = asyncio.Event(), asyncio.Event()

    async def enqueue(scope_id: str) -> None:
        last = False
        while not last:
            last = migrated.is_set()
            for key in ("k0", "k1", "k2"):
                await harness.execute(KEYED[harness.kind].format(real_job().id, key, scope_id))
                assert await harness.fetch(HOLDER[harness.kind].format(key))
            ran.set()
            await asyncio.sleep(0)

    clients = [asyncio.create_task(enqueue(scope_id)) for scope_id in ("NULL", "'a'", "'b'", "'b'")]
    await ran.wait()
    assert len(await harness.fetch("SELECT id FROM _jobs")) == 3  # each key belongs to the scope that came first
    migrator = harness.new_store()
    applied = [migration.number for migration in await migrator.migrate() if migration.number]
    assert applied == [one.number for one in known[10:]]
    migrated.set()
    await asyncio.gather(*clients)
    counted = await harness.fetch("SELECT key, scope_id, count(*) FROM _jobs GROUP BY key, scope_id")
    assert sorted(map(str, counted)) == sorted(
        str((key, scope_id, 1)) for key in ("k0", "k1", "k2") for scope_id in (None, "a", "b")
    )
    await migrator.close()
    await harness.close()


async def test_keys_change_under_running_clients_on_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await change_keys(lambda: SqliteHarness(tmp_path / "jobs.db", virtual=False), monkeypatch)


async def test_keys_change_under_running_clients_on_postgres(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await change_keys(lambda: PostgresHarness(postgres_url, virtual=False), monkeypatch)


def test_who_is_older_than_the_counters_still_counts(tmp_path: Path) -> None:
    """A worker that started before the migration still counts after it."""
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        for migration in load("rowlock.stores.sqlite"):
            connection.executescript(migration.sql)
        connection.execute(
            "INSERT INTO _jobs_totals (topic, completed, failed, expired, cancelled, executions, execution_us) "
            "VALUES ('mail', 1, 0, 0, 0, 1, 5)"
        )
        assert connection.execute("SELECT retried, lost FROM _jobs_totals").fetchall() == [(0, 0)]


def test_the_table_that_is_made_anew_has_all_that_it_had(tmp_path: Path) -> None:
    """Migration 16 of SQLite copies the jobs. The application may have views on the tables, and may read them."""
    path = tmp_path / "jobs.db"
    before = [migration for migration in load("rowlock.stores.sqlite") if migration.number < 16]
    [waits] = [migration for migration in load("rowlock.stores.sqlite") if migration.number == 16]
    with closing(sqlite3.connect(path, isolation_level=None)) as conn, closing(sqlite3.connect(path)) as reader:
        for migration in before:
            for statement in statements(migration.sql):
                conn.execute(statement)
        conn.execute("CREATE VIEW own AS SELECT a.id, e.event FROM _jobs_all a JOIN _jobs_events e ON e.job_id = a.id")
        names = [name for _, name, *_ in conn.execute("PRAGMA table_info(_jobs)")]
        fixed = {"status": "'pending'", "ready": "n % 2", "locked_until": "NULL", "finished_at": "NULL"}
        fixed |= {"history": "'[]'", "line": "NULL"}
        values = ", ".join(fixed.get(name, "n" if name == "n" else f"n || '{name}'") for name in names)
        rows = "WITH k (n) AS (VALUES (7), (9), (1000))"
        conn.execute(f"INSERT INTO _jobs ({', '.join(names)}) {rows} SELECT {values} FROM k")
        asked = f"SELECT {', '.join(names)} FROM _jobs ORDER BY n"
        jobs, seen = conn.execute(asked).fetchall(), reader.execute("SELECT * FROM own ORDER BY 1").fetchall()
        indexes = "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = '_jobs' ORDER BY 1"
        made = conn.execute(indexes).fetchall()

        conn.execute("BEGIN IMMEDIATE")
        for statement in statements(waits.sql):
            conn.execute(statement)
        conn.execute("COMMIT")

        assert len(jobs) == 3
        assert conn.execute(asked).fetchall() == jobs
        assert conn.execute("SELECT count(waits_for), count(signals) FROM _jobs").fetchone() == (0, 0)
        assert conn.execute(indexes).fetchall() == made
        assert reader.execute("SELECT * FROM own ORDER BY 1").fetchall() == seen
        assert conn.execute("PRAGMA legacy_alter_table").fetchone() == (0,)
        assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
