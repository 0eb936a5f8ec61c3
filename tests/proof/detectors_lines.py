"""Detectors that must turn red when a defence of lines, or of keys that count once, is switched off."""

import asyncio
from typing import Any

import asyncpg
import pytest

from rowlock.core.lifecycle import Completed, Failed
from rowlock.errors import OnceTaken, StoreBusy
from rowlock.stores.driver_neutral import drive_async
from rowlock.stores.postgres import insert_on_conn
from rowlock.stores.postgres.lines import advance_lines
from rowlock.stores.postgres.statements import Statements
from tests.proof.checker import check
from tests.proof.history import History
from tests.proof.witness import Witness
from tests.stores import test_debounce, test_lines
from tests.stores.harness import Harness, PostgresHarness
from tests.stores.test_lines import claim, lined


async def order(store: Harness) -> None:
    await test_lines.test_a_line_runs_one_job_at_a_time_in_the_order_of_inserts(store)


async def end_of_the_head(store: Harness) -> None:
    await test_lines.test_every_end_of_the_head_unblocks_the_next(store, Completed())


async def requeue(store: Harness) -> None:
    await test_lines.test_a_requeued_job_goes_to_the_end(store)


async def replacement(store: Harness) -> None:
    await test_lines.test_a_running_job_is_asked_to_cancel_and_the_newest_follows_it(store)


async def late(store: Harness) -> None:
    await test_lines.test_an_older_job_that_comes_late_never_replaces_the_head(store)


async def replaced_by_the_head(store: Harness) -> None:
    await test_lines.test_an_older_job_that_comes_late_is_replaced_by_the_head(store, True)


async def once(store: Harness) -> None:
    try:
        await test_lines.test_a_key_that_counts_once(store)
    except OnceTaken as error:
        raise AssertionError(error) from None


async def claimed(store: Harness) -> None:
    await test_debounce.test_a_job_that_was_claimed_keeps_its_payload(store, Failed("x"))


async def bound(store: Harness) -> None:
    await test_debounce.test_at_most_bounds_the_whole_delay(store)


async def requeued(store: Harness) -> None:
    try:
        await test_debounce.test_requeue_beside_a_newer_job(store)
    except StoreBusy as error:  # without the defence, the unique index refuses the write
        raise AssertionError(error) from None


async def held_key(store: Harness) -> None:
    assert isinstance(store, PostgresHarness)
    await test_debounce.test_an_open_transaction_holds_its_key_and_nothing_else(store)


async def window(store: Harness) -> None:
    await test_debounce.test_the_first_of_a_window_counts(store)


async def repeated(store: Harness) -> None:
    await test_debounce.test_a_repeat_is_answered_by_its_own_job(store)


async def newest(store: Harness) -> None:
    with pytest.MonkeyPatch.context() as patch:
        await test_lines.test_the_newest_is_never_replaced(store, patch, 3)


async def _judged(store: Harness, witness: Witness) -> None:
    assert check(await witness.collect(History(store.kind))) == []


async def _watched(store: Harness) -> Witness:
    """Install the witness and drop the index of heads, so that only the checker can see a second head."""
    await store.execute("DROP INDEX _jobs_head")
    return await Witness(store).install()


async def second_head(store: Harness) -> None:
    witness = await _watched(store)
    for _ in range(2):
        await store.store.insert([lined()])
    await claim(store.store)
    await _judged(store, witness)


async def advances_at_once(store: Harness) -> None:
    """Two processes advance one line at once. The first has read the line, but has not written yet."""
    assert isinstance(store, PostgresHarness)
    witness = await _watched(store)
    sql = Statements('"public"')
    one, other = [await asyncpg.connect(store.url) for _ in range(2)]
    slow = _Slow(one, sql)
    try:
        await _insert(other)
        first = asyncio.create_task(advance_lines(slow, sql))
        await slow.has_read.wait()
        await _insert(other)
        second = asyncio.create_task(advance_lines(other, sql))
        while not second.done() and not await store.fetch(_WAITS):  # noqa: ASYNC110 - the server gives no signal
            await asyncio.sleep(0.01)
        slow.go_on.set()
        await asyncio.gather(first, second)
    finally:
        slow.go_on.set()
        await one.close()
        await other.close()
    await _judged(store, witness)


_WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


async def _insert(connection: Any) -> None:
    async with connection.transaction():
        queries = insert_on_conn.insert("public", [lined()], repeat=False)
        await drive_async(queries, lambda query: connection.fetchval(query.text, query.parameter))


class _Slow:
    """A connection that stops after it has read a line, until `go_on` is set."""

    def __init__(self, connection: Any, sql: Statements) -> None:
        self._connection = connection
        self._sql = sql
        self.has_read, self.go_on = asyncio.Event(), asyncio.Event()

    async def fetch(self, query: str, *values: Any) -> Any:
        found = await self._connection.fetch(query, *values)
        if query == self._sql.advance_rows:
            self.has_read.set()
            await self.go_on.wait()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)
