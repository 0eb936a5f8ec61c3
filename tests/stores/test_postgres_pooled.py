"""PostgreSQL behind a pooler in transaction mode: what a statement costs there, and which workers are woken."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, nullcontext
from typing import Any

import pytest

from rowlock import Jobs
from rowlock.errors import StoreError
from rowlock.stores.postgres.store import PostgresStore
from tests.faults.wire import Wire
from tests.pgbouncer import PgBouncer, find_pgbouncer
from tests.servers import PostgresServer
from tests.stores.conftest import real_postgres_store
from tests.stores.harness import PostgresHarness, claim_by
from tests.stores.processes import real_job
from tests.stores.test_transactions import claimed, fenced, guard

# A store that waits for work holds this lock, so that clients ring for it.
WAITING = """
    SELECT pid FROM pg_locks JOIN pg_database d ON d.oid = database
    WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted AND datname = current_database()"""


harness = real_postgres_store


@pytest.fixture(scope="module")
def bouncer(postgres: PostgresServer) -> Iterator[PgBouncer]:
    program = find_pgbouncer()
    if program is None:
        pytest.skip("there is no pgbouncer on this machine")
    with PgBouncer(program, postgres) as bouncer:
        yield bouncer


async def test_a_statement_that_was_sent_before_takes_one_round_trip(
    harness: PostgresHarness, postgres: PostgresServer
) -> None:
    async with Wire(postgres.host, postgres.port) as wire:
        store = PostgresStore(wire.through(harness.url) + "?statement_cache_size=0&listen=off&pool_size=1")
        await store.open()
        [link] = wire.links

        async def rounds(work: Any) -> int:
            before = link.rounds
            await work
            return link.rounds - before

        first = [await rounds(store.insert([real_job()])), await rounds(store.claim(claim_by(limit=1)))]
        again = [await rounds(store.insert([real_job()])), await rounds(store.claim(claim_by(limit=1)))]
        await store.close()
    assert (first, again) == ([2, 2], [1, 1])


@pytest.mark.parametrize("on", [False, True])
async def test_the_server_keeps_inserts_alone_and_only_if_it_may(harness: PostgresHarness, on: bool) -> None:
    """A claim is not kept: a plan that is made while there are no jobs is a bad plan later."""
    option = "&prepared_statements=on" if on else ""
    store = PostgresStore(f"{harness.url}?statement_cache_size=0&pool_size=1{option}")
    await store.open()
    for _ in range(3):
        await store.insert([real_job()])
        await store.insert([real_job(), real_job(priority=7)])
        await store.insert([real_job(key=None, tags=("a",))])
    assert len((await store.claim(claim_by(limit=100))).jobs) == 12
    async with store._connections.acquire() as connection:
        kept = [
            text for (text,) in await connection.fetch("SELECT statement FROM pg_prepared_statements WHERE name <> ''")
        ]
    await store.close()
    assert set(kept) <= store._sql.lasting
    assert len(kept) == (2 if on else 0)


async def test_behind_pgbouncer_statements_are_the_same(harness: PostgresHarness, bouncer: PgBouncer) -> None:
    store = PostgresStore(bouncer.through(harness.url))
    await store.open()
    jobs = [real_job() for _ in range(40)]
    await asyncio.gather(*(store.insert([one]) for one in jobs))  # over several connections to several server processes
    assert {one.id for one in (await store.claim(claim_by(limit=100))).jobs} == {one.id for one in jobs}
    await store.close()


async def test_a_pgbouncer_that_keeps_no_statements_is_told_from_others(
    harness: PostgresHarness, bouncer: PgBouncer
) -> None:
    url = bouncer.through(harness.url) + "?prepared_statements=on&listen=off"
    async with AsyncExitStack() as stack:
        stores = [PostgresStore(url) for _ in range(2)]
        for store in stores:
            await store.open()
            stack.push_async_callback(store.close)
        await stores[0].insert([real_job()])
        expected = nullcontext() if bouncer.keeps_statements else pytest.raises(StoreError, match=r"PgBouncer 1\.21")
        with expected:  # over the same server connection
            await stores[1].insert([real_job()])


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_handlers_statements_may_come_again_and_again(
    harness: PostgresHarness, bouncer: PgBouncer, colour: str
) -> None:
    """If the driver named its statements, the names would be taken: by the last handler on the same server."""
    run = await claimed(harness)
    store = PostgresStore(bouncer.through(harness.url))
    await store.open()
    for _ in range(2):
        async with fenced(store, guard(run), colour) as conn:
            for n in range(10):
                if colour == "async":
                    assert await conn.fetchval("SELECT $1::int", n) == n
                else:
                    assert conn.execute("SELECT %s::int", [n]).fetchone() == (n,)
    await store.close()


async def test_a_worker_behind_pgbouncer_is_woken(harness: PostgresHarness, bouncer: PgBouncer) -> None:
    """Without the doorbell, the worker would find the job only within the hour."""
    url = bouncer.through(harness.url)
    async with Jobs(url, listen_url=harness.url) as working, Jobs(url) as enqueuing:

        @working.task
        async def mail() -> str:
            return "sent"

        await working.start(poll=3600.0)
        while await harness.fetch(WAITING) == []:
            pass  # each query is a round trip, so no sleep is needed
        made = await enqueuing.enqueue("mail")
        assert (await enqueuing.wait(made.id, timeout=60)).result == "sent"
