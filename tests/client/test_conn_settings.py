"""rowlock works with all settings that the application has made on its connection, and changes none of them."""

import asyncio
import json
import sqlite3
import sys
import threading
from contextlib import closing, suppress
from datetime import datetime
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import psycopg2.extras
import pytest
import sqlalchemy
from psycopg.rows import dict_row, namedtuple_row
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock.core.job import Job, NewJob
from rowlock.errors import StoreBusy
from rowlock.stores.base import Enqueued
from rowlock.stores.callers import caller_for
from rowlock.stores.postgres import insert_on_conn
from tests.client.conn_kinds import Place, Psycopg, async_engine, insert, sync_engine
from tests.closing import connected
from tests.stores.harness import claim_by, job


async def works(conn: Any, place: Place) -> list[NewJob]:
    """Insert a new job, one whose key is taken and a repeat. Check the answers and return the new jobs."""
    jobs = [job(payload={"n": 1}), job(key="k")]
    caller = caller_for(conn, place.home)
    answers = await insert(caller, jobs, repeat=True, notify=True)
    answers += await insert(caller, [job(key="k"), jobs[0]], repeat=True)
    assert [(answer.id, answer.existing) for answer in answers] == [
        (jobs[0].id, False), (jobs[1].id, False), (jobs[1].id, True), (jobs[0].id, True),
    ]  # fmt: skip
    assert all(isinstance(answer.created, datetime) for answer in answers)
    return jobs


# ── The trap: SQLAlchemy on asyncpg begins a transaction only with its own first statement ──


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_rollback_takes_the_job_although_sqlalchemy_had_executed_nothing(
    postgres_place: Place, driver: str
) -> None:
    async with async_engine(postgres_place, driver) as engine:
        async with AsyncSession(engine) as session:
            await works(session, postgres_place)
            await session.rollback()
        assert await postgres_place.committed() == ([], [])
        async with engine.connect() as conn:
            await works(conn, postgres_place)
            await conn.rollback()
        assert await postgres_place.committed() == ([], [])
        async with AsyncSession(engine) as session:  # neither committed nor rolled back
            await works(session, postgres_place)
        assert await postgres_place.committed() == ([], [])
        async with AsyncSession(engine) as session:
            jobs = await works(session, postgres_place)
            await session.commit()
        assert sorted((await postgres_place.committed())[1]) == sorted(new.id for new in jobs)


async def test_the_trap_is_real(postgres_place: Place) -> None:
    """An insert on the driver's connection is not rolled back. If this test fails one day, the detour can go."""
    async with async_engine(postgres_place, "asyncpg") as engine:
        async with AsyncSession(engine) as session:
            raw: Any = await (await session.connection()).get_raw_connection()
            await raw.driver_connection.execute("INSERT INTO orders VALUES (1)")
            await session.rollback()
        assert await postgres_place.committed() == ([1], [])


@pytest.mark.parametrize("driver", ["pysqlite", "aiosqlite"])
async def test_the_same_on_sqlite(sqlite_place: Place, driver: str) -> None:
    if driver == "pysqlite":
        with sync_engine(sqlite_place, driver) as engine, engine.connect() as conn:
            await works(conn, sqlite_place)
            conn.rollback()
    else:
        async with async_engine(sqlite_place, driver) as aio, AsyncSession(aio) as session:
            await works(session, sqlite_place)
            await session.rollback()
    assert await sqlite_place.committed() == ([], [])


# ── Rows, types, cursors ──


@pytest.mark.parametrize("factory", [dict_row, namedtuple_row])
async def test_psycopg_row_factories(postgres_place: Place, factory: Any) -> None:
    with psycopg.connect(postgres_place.address, row_factory=factory) as conn:
        await works(conn, postgres_place)
    async with await psycopg.AsyncConnection.connect(postgres_place.address, row_factory=factory) as aconn:
        await insert(caller_for(aconn, postgres_place.home), [job()])
    assert len((await postgres_place.committed())[1]) == 3


@pytest.mark.parametrize("cursor", [psycopg.ClientCursor, psycopg.RawCursor])
async def test_psycopg_cursor_factories(postgres_place: Place, cursor: Any) -> None:
    with psycopg.connect(postgres_place.address, cursor_factory=cursor, prepare_threshold=None) as conn:
        await works(conn, postgres_place)
    assert len((await postgres_place.committed())[1]) == 2


async def test_psycopg_pipeline(postgres_place: Place) -> None:
    with psycopg.connect(postgres_place.address) as conn, conn.pipeline():
        conn.execute("INSERT INTO orders VALUES (1)")
        await works(conn, postgres_place)
    assert len((await postgres_place.committed())[1]) == 2


async def test_psycopg2_cursor_factories(postgres_place: Place) -> None:
    options = {"cursor_factory": psycopg2.extras.RealDictCursor}
    with closing(psycopg2.connect(postgres_place.address, **options)) as conn, conn:
        await works(conn, postgres_place)
    assert len((await postgres_place.committed())[1]) == 2


async def test_asyncpg_codecs_and_records(postgres_place: Place) -> None:
    class Mine(asyncpg.Record):
        pass

    async with connected(postgres_place.address, record_class=Mine, statement_cache_size=0) as conn:
        for name in ("json", "jsonb"):
            await conn.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        await conn.set_type_codec("timestamptz", encoder=str, decoder=str, schema="pg_catalog")
        async with conn.transaction():
            await works(conn, postgres_place)
    assert len((await postgres_place.committed())[1]) == 2


async def test_session_settings_of_postgresql(postgres_place: Place) -> None:
    with psycopg.connect(postgres_place.address) as conn:
        conn.execute("CREATE SCHEMA app")
        conn.execute("SET search_path = app")
        conn.execute("SET timezone = 'Asia/Kathmandu'")
        conn.execute("SET datestyle = 'SQL, DMY'")
        conn.execute("SET intervalstyle = 'sql_standard'")
        jobs = await works(conn, postgres_place)
    [stored, _] = (await postgres_place.store.read([new.id for new in jobs], Job)).values()
    assert abs((stored.created - await postgres_place.store.now()).total_seconds()) < 60


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_stricter_isolation(postgres_place: Place, level: str) -> None:
    with psycopg.connect(postgres_place.address) as conn:
        conn.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        await works(conn, postgres_place)
    assert len((await postgres_place.committed())[1]) == 2


async def test_sqlalchemy_execution_options(postgres_place: Place) -> None:
    options: list[dict[str, Any]] = [
        {"stream_results": True},
        {"yield_per": 10},
        {"schema_translate_map": {None: "x"}},
        {"isolation_level": "SERIALIZABLE"},
    ]
    with sync_engine(postgres_place, "psycopg") as engine:
        for n, option in enumerate(options):
            with engine.connect().execution_options(**option) as conn, conn.begin():
                await insert(caller_for(conn, postgres_place.home), [job(key=f"k{n}"), job(key=f"k{n}")], repeat=True)
    assert len((await postgres_place.committed())[1]) == len(options)


async def test_sqlite_factories(sqlite_place: Place) -> None:
    with closing(sqlite3.connect(sqlite_place.address)) as conn, conn:
        conn.row_factory = lambda cursor, row: {"row": row}
        conn.text_factory = bytes
        await works(conn, sqlite_place)
        assert conn.text_factory is bytes
        [row] = conn.execute("SELECT 'x'").fetchall()
        assert row == {"row": (b"x",)}
    async with aiosqlite.connect(sqlite_place.address) as aconn:
        aconn.row_factory = sqlite3.Row
        await insert(caller_for(aconn, sqlite_place.home), [job()])
        await aconn.commit()
    assert len((await sqlite_place.committed())[1]) == 3


async def test_sqlite_while_the_caller_reads(sqlite_place: Place) -> None:
    with closing(sqlite3.connect(sqlite_place.address)) as conn, conn:
        conn.executemany("INSERT INTO orders VALUES (?)", [(n,) for n in range(3)])
        seen = []
        for (n,) in conn.execute("SELECT n FROM orders ORDER BY n"):
            seen.append(n)
            _insert_sync(conn, sqlite_place, [job()])
        assert seen == [0, 1, 2]
    assert len((await sqlite_place.committed())[1]) == 3


async def test_psycopg_pipeline_with_autocommit(postgres_place: Place) -> None:
    with psycopg.connect(postgres_place.address, autocommit=True) as conn, conn.pipeline():
        with suppress(ZeroDivisionError), conn.transaction():
            await works(conn, postgres_place)
            raise ZeroDivisionError
        assert await postgres_place.committed() == ([], [])
        with conn.transaction():
            await works(conn, postgres_place)
    assert len((await postgres_place.committed())[1]) == 2


async def test_a_connection_is_asked_only_once_where_it_leads(postgres_place: Place) -> None:
    counts = []
    with sync_engine(postgres_place, "psycopg") as engine:
        for _ in range(2):
            with engine.begin() as conn:
                statements: list[str] = []
                sqlalchemy.event.listen(conn, "before_cursor_execute", lambda *args, to=statements: to.append(args[2]))
                await insert(caller_for(conn, postgres_place.home), [job()])
                await insert(caller_for(conn, postgres_place.home), [job()])
                counts.append(len(statements))
    assert counts == [4, 2]


async def test_no_driver_is_imported_that_is_not_there() -> None:
    script = (
        "import sqlite3, sys\n"
        "from rowlock.stores.callers import Home, caller_for\n"
        "caller_for(sqlite3.connect(':memory:'), Home('sqlite', 'x@1.2', None))\n"
        "drivers = {'aiosqlite', 'asyncpg', 'django', 'psycopg', 'psycopg2', 'sqlalchemy'}\n"
        "sys.exit(', '.join(drivers & set(sys.modules)) or 0)"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    assert await process.wait() == 0


# ── Locks ──


async def somebody_waits(place: Place) -> None:
    """Wait until a session of this database waits for a lock."""
    async with asyncio.timeout(60):
        async with connected(place.address) as conn:
            while not await conn.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ):
                pass


async def test_sqlite_waits_for_the_write_lock(sqlite_place: Place) -> None:
    """The insert waits for the lock before it reads. A transaction that has read first could never get the lock."""
    with (
        closing(sqlite3.connect(sqlite_place.address, check_same_thread=False, timeout=30)) as conn,
        closing(sqlite3.connect(sqlite_place.address, isolation_level=None)) as other,
    ):
        conn.isolation_level = None
        conn.execute("BEGIN")
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO orders VALUES (1)")
        trying = threading.Event()
        conn.set_trace_callback(lambda statement: trying.set())
        waiting = asyncio.create_task(asyncio.to_thread(_insert_sync, conn, sqlite_place, [new := job()]))
        assert await asyncio.to_thread(trying.wait, 10)
        assert not waiting.done()
        other.execute("COMMIT")
        [answer] = await waiting
        conn.execute("COMMIT")
    stored = (await sqlite_place.store.read([new.id], Job))[new.id]
    assert answer.created == stored.created


async def test_sqlite_that_stays_locked_says_so_in_its_own_words(sqlite_place: Place) -> None:
    with (
        closing(sqlite3.connect(sqlite_place.address, timeout=0)) as conn,
        closing(sqlite3.connect(sqlite_place.address, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            _insert_sync(conn, sqlite_place, [job()])
        other.execute("ROLLBACK")


async def test_sqlite_keeps_nothing_of_a_batch_that_failed(sqlite_place: Place) -> None:
    good, bad = job(), job()
    with closing(sqlite3.connect(sqlite_place.address)) as conn, conn:
        conn.execute("INSERT INTO orders VALUES (1)")
        conn.execute(
            f"CREATE TEMP TRIGGER no BEFORE INSERT ON _jobs WHEN new.id = '{bad.id}' "
            "BEGIN SELECT raise(ABORT, 'not this one'); END"
        )
        with pytest.raises(sqlite3.IntegrityError, match="not this one"):
            _insert_sync(conn, sqlite_place, [*(job() for _ in range(64)), bad])
        _insert_sync(conn, sqlite_place, [good])
    assert await sqlite_place.committed() == ([1], [good.id])


def _insert_sync(conn: Any, place: Place, jobs: list[NewJob]) -> list[Enqueued]:
    answers = caller_for(conn, place.home).insert(jobs, repeat=False, notify=False)
    assert isinstance(answers, list)
    return answers


async def test_a_key_in_an_open_transaction_is_waited_for(postgres_place: Place) -> None:
    """The transaction that commits first has the key. The other transaction is told the id of the holder."""
    with psycopg.connect(postgres_place.address) as first, psycopg.connect(postgres_place.address) as second:
        [winner] = _insert_sync(first, postgres_place, [job(key="k")])
        waiting = asyncio.create_task(asyncio.to_thread(_insert_sync, second, postgres_place, [job(key="k")]))
        await somebody_waits(postgres_place)
        first.commit()
        [answer] = await waiting
        assert (answer.id, answer.existing) == (winner.id, True)


async def test_a_key_that_comes_and_goes(postgres_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder ends between the INSERT and the look for it. Then the insert tries again, but not for ever."""
    await postgres_place.store.insert([job(key="k")])
    kind = Psycopg(postgres_place)
    async with kind.opened():
        looks = 0
        find = insert_on_conn._existing

        def nobody(text: str) -> Any:
            nonlocal looks
            looks += 1
            return [] if looks < 3 else find(text)

        monkeypatch.setattr(insert_on_conn, "_existing", nobody)
        [answer] = await kind.insert(job(key="k"))
        assert answer.existing
        assert looks == 3
        monkeypatch.setattr(insert_on_conn, "_existing", lambda text: [])
        with pytest.raises(StoreBusy, match="'k' was taken and freed 8 times"):
            await kind.insert(job(key="k"))


# ── Much at once ──


async def test_jobs_too_large_for_one_statement(postgres_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insert_on_conn, "LARGEST", 2000)
    big = [job(payload={"n": n, "text": "x" * 900}, key=f"k{n % 5}" if n % 2 else None) for n in range(20)]
    with psycopg.connect(postgres_place.address) as conn:
        answers = _insert_sync(conn, postgres_place, big)
    assert [answer.existing for answer in answers] == [bool(n % 2) and n >= 10 for n in range(20)]
    assert len((await postgres_place.committed())[1]) == 15


async def test_ten_thousand(postgres_place: Place) -> None:
    jobs = [job(payload={"n": n}) for n in range(10_000)]
    with psycopg.connect(postgres_place.address) as conn:
        assert len(_insert_sync(conn, postgres_place, jobs)) == 10_000
    assert len((await postgres_place.committed())[1]) == 10_000


# ── Waking workers ──


async def test_notify_rings_at_the_commit(postgres_place: Place) -> None:
    async with connected(postgres_place.address) as listener:
        rang = asyncio.Event()
        await listener.add_listener("rowlock_public", lambda *_: rang.set())
        with psycopg.connect(postgres_place.address) as conn:
            caller = caller_for(conn, postgres_place.home)
            await insert(caller, [job(key="k")], notify=False)
            await insert(caller, [job(key="k")], notify=True)  # the key is taken: no new job
            conn.commit()
            await listener.execute("SELECT 1")
            assert not rang.is_set()
            await insert(caller, [job()], notify=True)
            await listener.execute("SELECT 1")
            assert not rang.is_set()
            conn.commit()
            async with asyncio.timeout(60):
                await rang.wait()


async def test_an_open_transaction_hides_the_job_from_workers(postgres_place: Place) -> None:
    with psycopg.connect(postgres_place.address) as conn:
        await works(conn, postgres_place)
        assert (await postgres_place.store.claim(claim_by())).jobs == []
    assert len((await postgres_place.store.claim(claim_by())).jobs) == 2


async def test_cancelling_the_enqueue_leaves_it_to_the_caller(postgres_place: Place) -> None:
    holder = psycopg.connect(postgres_place.address)
    conn = await asyncpg.connect(postgres_place.address)
    try:
        _insert_sync(holder, postgres_place, [job(key="k")])
        transaction = conn.transaction()
        await transaction.start()
        waiting = asyncio.create_task(insert(caller_for(conn, postgres_place.home), [job(key="k")]))
        await somebody_waits(postgres_place)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        await transaction.rollback()
    finally:
        holder.close()
        await conn.close()
    assert await postgres_place.committed() == ([], [])
