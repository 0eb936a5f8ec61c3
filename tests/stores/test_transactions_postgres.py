"""Store.transaction on PostgreSQL: its connections, and their state afterwards."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from rowlock.core.job import Status
from rowlock.core.moves import Rescue
from rowlock.errors import ConnectionRefused, LeaseLost, OutcomeUnknown, StoreClosed, StoreError, StoreUnavailable
from rowlock.stores.base import Beat, Guard, Hold
from rowlock.stores.postgres import sync_transactions, transactions
from rowlock.stores.postgres.store import PostgresStore
from tests.proxy import Proxy
from tests.stores.harness import PostgresHarness, claim_by
from tests.stores.processes import real_job
from tests.stores.test_transactions import claimed, fenced, guard, order, orders, write


@pytest.fixture
async def harness(real_postgres_store: PostgresHarness) -> PostgresHarness:
    await real_postgres_store.execute("CREATE TABLE orders (n integer PRIMARY KEY)")
    return real_postgres_store


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_heartbeat_is_kept_while_the_transaction_is_open(harness: PostgresHarness, colour: str) -> None:
    run = await claimed(harness)
    async with fenced(harness.store, guard(run), colour) as conn:
        await order(conn, 1)
        assert await harness.store.heartbeat([Beat(run.id, 1)], 60.0) == [Hold.KEPT]
    assert await orders(harness) == [1]


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_job_that_is_lost_during_the_transaction(harness: PostgresHarness, colour: str) -> None:
    run = await claimed(harness)

    async def handler() -> None:
        async with fenced(harness.store, guard(run, completes=True), colour) as conn:
            await order(conn, 1)
            await harness.store.move_due(Rescue(by="m1", backoff=[0.0], workers=["w1"]))

    with pytest.raises(LeaseLost):
        await handler()
    assert await orders(harness) == []
    assert (await harness.job(run.id)).status is Status.PENDING


async def test_open_transactions_never_starve_claim_and_settle(harness: PostgresHarness) -> None:
    run = await claimed(harness)
    narrow = PostgresStore(f"{harness.url}?pool_size=1")
    await narrow.open()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(narrow.close)
        for n in range(15):
            await order(await stack.enter_async_context(fenced(narrow, guard(run))), n)
        await harness.insert(real_job())
        assert len((await narrow.claim(claim_by("w2"))).jobs) == 1
    assert await orders(harness) == list(range(15))


async def test_idle_connections_are_reused_and_clean_and_not_too_many(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MOST_IDLE", 2)
    run = await claimed(harness)
    async with fenced(harness.store, guard(run)) as conn:
        pid = conn.get_server_pid()
        await conn.execute("SET enable_hashjoin = off; SELECT pg_advisory_lock(1)")
    async with fenced(harness.store, guard(run)) as conn:
        assert conn.get_server_pid() == pid
        assert await conn.fetchval("SHOW enable_hashjoin") == "on"
        assert await conn.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1") == 0
    await asyncio.gather(*(write(harness.store, guard(run), n=n) for n in range(6)))
    assert isinstance(harness.store, PostgresStore)
    idle = list(harness.store._transactions._idle)
    assert len(idle) == 2
    await harness.store.close()
    assert all(conn.is_closed() for conn in idle)
    with pytest.raises(StoreClosed):
        await write(harness.store, guard(run), n=9)
    await harness.store.open()
    await write(harness.store, guard(run), n=9)


async def test_codecs_of_one_handler_are_not_the_next_ones(harness: PostgresHarness) -> None:
    run = await claimed(harness)
    async with fenced(harness.store, guard(run)) as conn:
        await conn.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
        assert await conn.fetchval("SELECT $1::jsonb", [1]) == [1]
    async with fenced(harness.store, guard(run)) as conn:
        assert await conn.fetchval("SELECT $1::jsonb", "[1]") == "[1]"


async def test_idle_connections_are_not_kept_for_ever(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "KEEP", 0.0)
    run = await claimed(harness)
    closed = asyncio.Event()
    async with fenced(harness.store, guard(run)) as conn:
        pid = conn.get_server_pid()
        conn.add_termination_listener(lambda _conn: closed.set())
    await closed.wait()
    async with fenced(harness.store, guard(run)) as conn:
        assert conn.get_server_pid() != pid


async def test_statements_have_the_servers_own_settings(harness: PostgresHarness) -> None:
    run = await claimed(harness)
    for colour in ("async", "sync"):
        async with fenced(harness.store, guard(run), colour) as conn:
            for name, usual in [("enable_seqscan", "on"), ("plan_cache_mode", "auto"),
                                ("transaction_isolation", "read committed")]:  # fmt: skip
                found = (
                    conn.execute(f"SHOW {name}").fetchone()[0]
                    if colour == "sync"
                    else await conn.fetchval(f"SHOW {name}")
                )
                assert found == usual


async def test_the_urls_settings_reach_psycopg(harness: PostgresHarness) -> None:
    run = await claimed(harness)
    store = PostgresStore(f"{harness.url}?search_path=public,%20pg_catalog&work_mem=5MB&sslmode=prefer&pool_size=3")
    with store.sync_transaction(guard(run), longest=1.0) as conn:
        assert conn.execute("SHOW search_path").fetchone() == ("public, pg_catalog",)
        assert conn.execute("SHOW work_mem").fetchone() == ("5MB",)


async def test_a_connection_that_was_cut_off_while_idle_is_replaced(harness: PostgresHarness) -> None:
    run = await claimed(harness)
    async with fenced(harness.store, guard(run)) as conn:
        pid = conn.get_server_pid()
    await harness.execute(f"SELECT pg_terminate_backend({pid}, 10000)")
    await write(harness.store, guard(run))
    assert await orders(harness) == [1]


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_nested_blocks_of_the_driver_are_savepoints(harness: PostgresHarness, colour: str) -> None:
    run = await claimed(harness)
    async with fenced(harness.store, guard(run), colour) as conn:
        await order(conn, 1)
        try:
            if colour == "async":
                async with conn.transaction():
                    await order(conn, 1)
            else:
                with conn.transaction():
                    await order(conn, 1)
        except (asyncpg.UniqueViolationError, psycopg.errors.UniqueViolation):
            await order(conn, 2)
    assert await orders(harness) == [1, 2]


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_an_error_that_was_swallowed_is_not_committed(harness: PostgresHarness, colour: str) -> None:
    run = await claimed(harness)

    async def handler() -> None:
        async with fenced(harness.store, guard(run), colour) as conn:
            await order(conn, 1)
            with pytest.raises((asyncpg.UniqueViolationError, psycopg.errors.UniqueViolation)):
                await order(conn, 1)

    with pytest.raises(ConnectionRefused, match="savepoint") as refused:
        await handler()
    assert refused.value.code == "failed_transaction"
    assert await orders(harness) == []


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_deferred_constraint_fails_in_the_drivers_own_words(harness: PostgresHarness, colour: str) -> None:
    run = await claimed(harness)
    await harness.execute("CREATE TABLE late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")

    async def handler() -> None:
        async with fenced(harness.store, guard(run, completes=True), colour) as conn:
            for _ in range(2):
                done = conn.execute("INSERT INTO late VALUES (1)")
                if colour == "async":
                    await done

    with pytest.raises((asyncpg.UniqueViolationError, psycopg.errors.UniqueViolation)):
        await handler()
    assert await harness.job(run.id) == run
    await write(harness.store, guard(run), colour)


async def test_psycopg_refuses_commit_and_rollback_by_itself(harness: PostgresHarness) -> None:
    run = await claimed(harness)
    with harness.store.sync_transaction(guard(run), longest=1.0) as conn:
        for attempt in (conn.commit, conn.rollback):
            with pytest.raises(psycopg.ProgrammingError):
                attempt()
        await order(conn, 1)
    assert await orders(harness) == [1]


async def test_without_psycopg_it_says_what_to_install(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install 'psycopg\[binary\]'.*ctx\.sync\.fence"):
        harness.store.sync_transaction(Guard("x", 1), longest=1.0).__enter__()


async def test_a_server_that_is_away(harness: PostgresHarness) -> None:
    store = PostgresStore("postgresql://nobody:secret@127.0.0.1:1/nowhere")
    with pytest.raises(StoreUnavailable, match="can't be reached") as away:
        store.sync_transaction(Guard("x", 1), longest=1.0).__enter__()
    assert "secret" not in str(away.value)


# ── Lost replies ──


@pytest.mark.parametrize("colour", ["async", "sync"])
@pytest.mark.parametrize("at_commit", [False, True])
async def test_a_reply_that_gets_lost(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch, colour: str, at_commit: bool
) -> None:
    """If the reply to COMMIT is lost, the outcome is unknown. If an earlier reply is lost, nothing was written."""
    run = await claimed(harness)
    address = urlsplit(harness.url)
    assert address.hostname
    assert address.port
    async with Proxy(address.hostname, address.port) as proxy:
        store = PostgresStore(harness.url.replace(f":{address.port}/", f":{proxy.port}/"))
        await store.open()

        _cut_around_the_check(monkeypatch, proxy, before=not at_commit)
        try:
            expected = OutcomeUnknown if at_commit else StoreUnavailable
            goes = guard(run, completes=True)
            writing = write(store, goes) if colour == "async" else asyncio.to_thread(_write_sync, store, goes)
            with pytest.raises(expected) as lost:
                await writing
        finally:
            await store.close()
    assert type(lost.value) is expected
    assert proxy.swallowed == 1
    assert await orders(harness) == ([1] if at_commit else [])
    assert (await harness.job(run.id)).status is (Status.COMPLETED if at_commit else Status.PROCESSING)


def _write_sync(store: PostgresStore, goes: Guard) -> None:
    with store.sync_transaction(goes, longest=1.0) as conn:
        conn.execute("INSERT INTO orders VALUES (1)")


def _cut_around_the_check(monkeypatch: pytest.MonkeyPatch, proxy: Proxy, *, before: bool) -> None:
    """Make the proxy lose one answer: to the first of the last statements, or to the COMMIT."""
    check, check_sync = transactions.Transactions._check, sync_transactions._check

    async def checked(*arguments: Any) -> None:
        proxy.swallow = int(before)
        await check(*arguments)
        proxy.swallow = 1

    def checked_sync(*arguments: Any) -> None:
        proxy.swallow = int(before)
        check_sync(*arguments)
        proxy.swallow = 1

    monkeypatch.setattr(transactions.Transactions, "_check", checked)
    monkeypatch.setattr(sync_transactions, "_check", checked_sync)


@pytest.mark.parametrize("at", ["commit", "reset"])
async def test_a_driver_that_loses_count(harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """As if the server is killed between two messages. At the COMMIT the outcome is unknown; after it, all is well."""
    run = await claimed(harness)
    where = asyncpg.transaction.Transaction if at == "commit" else transactions._Connection
    real = getattr(where, at)

    async def losing_count(*arguments: Any, **options: Any) -> None:
        await real(*arguments, **options)
        raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")

    with monkeypatch.context() as patched:
        patched.setattr(where, at, losing_count)
        if at == "commit":
            with pytest.raises(OutcomeUnknown):
                await write(harness.store, guard(run))
        else:
            await write(harness.store, guard(run))
    assert isinstance(harness.store, PostgresStore)
    assert not harness.store._transactions._idle
    await write(harness.store, guard(run), n=2)
    assert await orders(harness) == [1, 2]


async def test_cancelled_in_the_middle_of_a_statement(harness: PostgresHarness) -> None:
    run = await claimed(harness)

    async def handler() -> None:
        async with fenced(harness.store, guard(run)) as conn:
            await order(conn, 1)
            await conn.execute("SELECT pg_sleep(60)")

    task = asyncio.create_task(handler())
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    while await harness.fetch(asleep) == [(0,)]:
        assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await harness.fetch(asleep) == [(0,)]
    assert await orders(harness) == []
    await write(harness.store, guard(run))
