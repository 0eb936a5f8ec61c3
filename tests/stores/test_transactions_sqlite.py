"""Store.transaction on SQLite: a handler holds the only write lock, so not for long, and it commits all or nothing."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rowlock.core.lifecycle import Completed
from rowlock.core.moves import Rescue
from rowlock.errors import ConnectionRefused, LeaseLost, StoreBusy
from rowlock.stores.base import Beat, Guard, Hold
from rowlock.stores.sqlite.store import SqliteStore
from tests.databases import Databases
from tests.stores.harness import SqliteHarness, harness_at, settlement
from tests.stores.test_transactions import claimed, fenced, guard, order, orders, write

SHORT = 0.05  # seconds; tests wait for what follows this time, not for this time itself
ENDLESS = "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) INSERT INTO orders SELECT n FROM c"


@pytest.fixture
async def harness(tmp_path: Path, databases: Databases) -> AsyncIterator[SqliteHarness]:
    async with harness_at("sqlite", databases, tmp_path, virtual=False) as harness:
        assert isinstance(harness, SqliteHarness)
        await harness.execute("CREATE TABLE orders (n integer PRIMARY KEY)")
        yield harness


async def test_a_heartbeat_waits_for_the_transaction_and_then_keeps_the_job(harness: SqliteHarness) -> None:
    run = await claimed(harness)
    async with fenced(harness.store, guard(run)) as conn:
        await order(conn, 1)
        beating = asyncio.create_task(harness.store.heartbeat([Beat(run.id, 1)], 60.0))
        await asyncio.sleep(0)
        assert not beating.done()
    assert await beating == [Hold.KEPT]


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_one_that_takes_too_long_is_rolled_back(harness: SqliteHarness, colour: str) -> None:
    run = await claimed(harness)

    async def handler() -> None:
        async with fenced(harness.store, guard(run, completes=True), colour, longest=SHORT) as conn:
            await order(conn, 1)
            # Other writers get their turn although the handler is still in the block.
            assert await harness.store.heartbeat([Beat(run.id, 1)], 60.0) == [Hold.KEPT]

    with pytest.raises(StoreBusy, match=r"write lock for more than 0\.05 s.*do slow work before"):
        await handler()
    assert await orders(harness) == []
    assert (await harness.job(run.id)).status == "processing"


async def test_nothing_is_written_after_the_rollback(harness: SqliteHarness) -> None:
    """Otherwise a handler that swallows every error would commit each statement by itself."""
    run = await claimed(harness)

    async def handler() -> None:
        async with fenced(harness.store, guard(run), longest=SHORT) as conn:
            await harness.store.heartbeat([Beat(run.id, 1)], 60.0)
            cursor = conn.cursor()
            attempts: list[Callable[[], Any]] = [
                lambda: conn.execute("INSERT INTO orders VALUES (1)"),
                lambda: conn.executemany("INSERT INTO orders VALUES (?)", [(2,)]),
                lambda: cursor.execute("INSERT INTO orders VALUES (3)"),
            ]
            for attempt in attempts:
                with pytest.raises(StoreBusy):
                    attempt()

    with pytest.raises(StoreBusy):
        await handler()
    assert await orders(harness) == []


async def test_a_statement_that_runs_too_long_is_interrupted(harness: SqliteHarness) -> None:
    run = await claimed(harness)

    def handler() -> None:
        with harness.store.sync_transaction(guard(run), longest=SHORT) as conn:
            conn.execute(ENDLESS)

    with pytest.raises(StoreBusy) as busy:
        await asyncio.to_thread(handler)
    assert isinstance(busy.value.__cause__, sqlite3.OperationalError)
    assert await orders(harness) == []


async def test_the_watchdog_against_the_commit(harness: SqliteHarness) -> None:
    """The transaction is either rolled back with an error, or committed."""
    run = await claimed(harness)
    committed = []
    for n in range(60):
        try:
            with harness.store.sync_transaction(guard(run), longest=0.0002 * (n % 12)) as conn:
                conn.execute("INSERT INTO orders VALUES (?)", (n,))
        except StoreBusy:
            continue
        committed.append(n)
    assert await orders(harness) == committed
    await write(harness.store, guard(run), n=1000)


async def test_no_watchdog_and_no_thread_is_left(harness: SqliteHarness) -> None:
    run = await claimed(harness)
    before = set(threading.enumerate())
    await write(harness.store, guard(run))
    await write(harness.store, guard(run), "sync", 2)
    for thread in set(threading.enumerate()) - before:
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive() or thread.name.startswith("asyncio")


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_no_room_for_the_watchdog(harness: SqliteHarness, monkeypatch: pytest.MonkeyPatch, colour: str) -> None:
    """The system refuses a thread for the watchdog. The lock must not stay with a transaction that no handler uses."""
    run = await claimed(harness)

    def start(_: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Timer, "start", start)
        with pytest.raises(RuntimeError, match="new thread"):
            await write(harness.store, guard(run), colour, 1)
    await write(harness.store, guard(run), colour, 2)
    assert await orders(harness) == [2]


async def test_cancelled_while_it_waits_for_the_lock(harness: SqliteHarness) -> None:
    run = await claimed(harness)
    async with fenced(harness.store, guard(run)) as conn:
        waiting = asyncio.create_task(write(harness.store, guard(run), n=2))
        await order(conn, 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await write(harness.store, guard(run), n=3)
    assert await orders(harness) == [1, 3]


async def test_many_that_wait_for_the_lock_all_get_it(harness: SqliteHarness) -> None:
    run = await claimed(harness)
    await asyncio.gather(*(write(harness.store, guard(run), n=n) for n in range(40)))
    assert await orders(harness) == list(range(40))


async def test_what_would_end_the_transaction_is_refused_on_the_spot(harness: SqliteHarness) -> None:
    run = await claimed(harness)
    async with fenced(harness.store, guard(run)) as conn:
        await order(conn, 1)
        for attempt in (
            conn.commit,
            lambda: conn.cursor(sqlite3.Cursor),
            conn.rollback,
            conn.__enter__,
            lambda: conn.executescript("SELECT 1"),
            lambda: conn.cursor().executescript("SELECT 1"),
        ):
            with pytest.raises(ConnectionRefused) as refused:
                attempt()
            assert refused.value.code == "no_transaction"
        await order(conn, 2)
    assert await orders(harness) == [1, 2]


@pytest.mark.parametrize("ending", ["isolation_level", "interrupt", "close"])
async def test_what_ends_the_transaction_unseen_is_noticed(harness: SqliteHarness, ending: str) -> None:
    run = await claimed(harness)

    async def handler() -> None:
        async with fenced(harness.store, guard(run, completes=True)) as conn:
            if ending == "isolation_level":
                conn.isolation_level = None  # this makes Python send COMMIT
            elif ending == "close":
                conn.close()
            else:
                conn.set_progress_handler(lambda: 1, 1000)
                with pytest.raises(sqlite3.OperationalError):
                    conn.execute(ENDLESS)

    with pytest.raises(ConnectionRefused, match="ended inside the block"):
        await handler()
    assert await harness.job(run.id) == run


async def test_rows_that_are_still_read_when_the_time_is_up(harness: SqliteHarness) -> None:
    run = await claimed(harness)

    async def handler() -> None:
        async with fenced(harness.store, guard(run), longest=SHORT) as conn:
            rows = conn.execute(
                "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT c.n FROM c, _jobs"
            )
            await harness.store.heartbeat([Beat(run.id, 1)], 60.0)
            for _ in rows:
                pass

    with pytest.raises(StoreBusy):
        await handler()


async def test_rows_that_are_still_to_be_fetched_keep_nobody_from_the_lock(harness: SqliteHarness) -> None:
    """The interrupt that ends a SELECT must not hit the ROLLBACK after it."""
    run = await claimed(harness)
    assert harness.path is not None

    def handler() -> None:
        with harness.store.sync_transaction(guard(run), longest=SHORT) as conn:
            unread = conn.execute("SELECT id FROM _jobs UNION ALL SELECT 'more'")
            assert unread.fetchone() == (run.id,)
            with pytest.raises(sqlite3.OperationalError, match="interrupted"):
                conn.execute(ENDLESS.replace("INSERT INTO orders SELECT n", "SELECT count(*)"))
            with closing(sqlite3.connect(str(harness.path), timeout=10.0)) as other:
                other.execute("BEGIN IMMEDIATE")
            got_the_lock.set()
            with pytest.raises(StoreBusy):
                unread.fetchone()

    got_the_lock = threading.Event()
    with pytest.raises(StoreBusy):
        await asyncio.to_thread(handler)
    assert got_the_lock.is_set()
    await write(harness.store, guard(run))


async def test_the_connection_is_closed_after_the_block(harness: SqliteHarness) -> None:
    run = await claimed(harness)
    with harness.store.sync_transaction(guard(run), longest=30.0) as conn:
        pass
    with pytest.raises((ConnectionRefused, sqlite3.ProgrammingError)):
        conn.execute("INSERT INTO orders VALUES (1)")
    assert await orders(harness) == []


async def test_factories_of_the_application(harness: SqliteHarness) -> None:
    run = await claimed(harness)
    async with fenced(harness.store, guard(run, completes=True)) as conn:
        conn.row_factory = lambda _cursor, row: {"row": row}
        conn.text_factory = bytes
        assert conn.execute("SELECT 'x'").fetchone() == {"row": (b"x",)}
    [verdict] = (await harness.store.settle([settlement(run, Completed())])).verdicts
    assert verdict.answer == "already"


async def test_a_database_in_memory_can_not_be_shared() -> None:
    store: Any = SqliteStore(None)
    for begin in (store.transaction, store.sync_transaction):
        with pytest.raises(ConnectionRefused, match="use a file") as refused:
            begin(Guard("x", 1), longest=1.0)
        assert refused.value.code == "in_memory"


async def test_a_rescue_that_comes_during_the_transaction_comes_after_it(harness: SqliteHarness) -> None:
    run = await claimed(harness)
    async with fenced(harness.store, guard(run)) as conn:
        await order(conn, 1)
        rescuing = asyncio.create_task(harness.store.move_due(Rescue(by="m1", backoff=[0.0], workers=["w1"])))
        await asyncio.sleep(0)
    assert [rescued.id for rescued in await rescuing] == [run.id]
    with pytest.raises(LeaseLost):
        await write(harness.store, guard(run), n=2)
    assert await orders(harness) == [1]
