"""Detectors that must turn red when a defence of flows is switched off. Most of them call one existing test."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest

import rowlock.stores.postgres.store
from rowlock.core.job import Status
from rowlock.core.lifecycle import Completed
from rowlock.core.moves import Requeue
from rowlock.stores.postgres.lines import advance_lines
from rowlock.stores.postgres.statements import Statements
from tests.stores import test_flows
from tests.stores.flow_maker import end, made, node
from tests.stores.harness import Harness, PostgresHarness

_WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


async def join(store: Harness) -> None:
    await test_flows.test_a_wide_join_fires_once_after_the_last_parent(store, "forwards")


async def bad_end(store: Harness) -> None:
    await test_flows.test_a_bad_end_cancels_all_that_wait(store, "failed")


async def hold(store: Harness) -> None:
    await test_flows.test_hold_and_release(store, "failed")


async def untaken(store: Harness) -> None:
    await test_flows.test_a_condition_decides(store, "a.status = 'failed'", Completed(), "cancelled")


async def forgiven(store: Harness) -> None:
    await test_flows.test_a_person_requeues_a_child_whatever_its_parents_did(store)


async def comes_back(store: Harness) -> None:
    await test_flows.test_a_requeued_parent_blocks_what_it_has_stopped(store)


async def stays_cancelled(store: Harness) -> None:
    await test_flows.test_what_a_person_has_cancelled_stays_cancelled(store, True)


async def together(store: Harness) -> None:
    await test_flows.test_a_family_that_is_requeued_together_runs_in_its_order(store, "children first")


async def filled_once(store: Harness) -> None:
    await test_flows.test_a_filled_payload_is_not_filled_again(store)


async def awaited(store: Harness) -> None:
    await test_flows.test_a_job_that_others_wait_for_is_not_deleted(store)


async def outside(store: Harness) -> None:
    await test_flows.test_a_parent_outside_ends_later(store)


async def outside_has_ended(store: Harness) -> None:
    await test_flows.test_a_parent_outside_in_every_status(store, Status.COMPLETED)


async def unknown_parent(store: Harness) -> None:
    await test_flows.test_an_unknown_parent(store)


async def key_taken(store: Harness) -> None:
    await test_flows.test_a_key_that_a_live_job_has(store)


async def repeated(store: Harness) -> None:
    await test_flows.test_a_repeat_of_an_insert_changes_nothing(store, "later")


async def pruned(store: Harness) -> None:
    await test_flows.test_prune_flows_removes_flows_without_jobs(store)


async def many_pruned(store: Harness) -> None:
    await test_flows.test_many_children_that_are_pruned_keep_nobody_busy(store)


async def deleted_child(store: Harness) -> None:
    await test_flows.test_a_deleted_child_leaves_no_edge(store)


async def fence_by_version(store: Harness) -> None:
    await test_flows.test_a_run_that_does_not_hold_its_job_starts_nothing(store, "version")


async def fence_by_worker(store: Harness) -> None:
    await test_flows.test_a_run_that_does_not_hold_its_job_starts_nothing(store, "worker")


async def children(store: Harness) -> None:
    await test_flows.test_children_of_a_run(store)


async def cancel_of_children(store: Harness) -> None:
    await test_flows.test_a_cancel_reaches_the_children(store)


async def requeue_of_children(store: Harness) -> None:
    await test_flows.test_a_requeue_reaches_the_children_that_have_not_completed(store)


# ── Two processes at once, on PostgreSQL ──


class Slow:
    """A connection that stops after one statement until `go_on` is set."""

    def __init__(self, connection: Any, after: str) -> None:
        self._connection = connection
        self._after = after
        self.is_there, self.go_on = asyncio.Event(), asyncio.Event()

    async def fetch(self, query: str, *values: Any) -> Any:
        found = await self._connection.fetch(query, *values)
        if query == self._after and not self.is_there.is_set():
            self.is_there.set()
            await self.go_on.wait()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


async def _overtaken(store: Harness, after: str, meanwhile: Callable[[], Awaitable[Any]]) -> None:
    """A process looks at the parents that have ended, and stops after the statement `after`. `meanwhile` happens, and
    another process looks, too. Then the first process goes on."""
    assert isinstance(store, PostgresHarness)
    sql = Statements('"public"')
    one, other = [await asyncpg.connect(f"{store.url}?search_path=testclock,pg_catalog") for _ in range(2)]
    slow = Slow(one, getattr(sql, after))
    try:
        first = asyncio.create_task(_advance_all(slow, sql))
        await slow.is_there.wait()
        await meanwhile()
        second = asyncio.create_task(_advance_all(other, sql))
        while not second.done() and not await store.fetch(_WAITS):  # noqa: ASYNC110 - the server gives no signal
            await asyncio.sleep(0.01)
        slow.go_on.set()
        await asyncio.gather(first, second)
    finally:
        slow.go_on.set()
        await one.close()
        await other.close()


async def _advance_all(connection: Any, sql: Statements) -> None:
    more = True
    while more:
        _, more = await advance_lines(connection, sql)


@contextmanager
def _blind() -> Iterator[None]:
    """Keep the stores themselves from looking at the parents that have ended."""

    async def nothing(connection: Any, sql: Statements) -> tuple[set[str], bool]:
        return set(), False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rowlock.stores.postgres.store, "advance_lines", nothing)
        yield


async def two_ends(store: Harness) -> None:
    """Two parents end at once. The first process has read the edges of their child, but has not written yet."""
    flow = await made(store.store, {"a": node(), "b": node(), "c": node("a", "b")})
    a, b = await flow.runs("a", "b")
    with _blind():
        await end(store.store, a)
        await _overtaken(store, "flow_count_edges", lambda: end(store.store, b))
    await flow.run("c")


async def end_during_a_requeue(store: Harness) -> None:
    """A job is requeued while its requeued parent is live again. While the requeue is being written, the parent ends as
    before, and another process looks at that end."""
    flow = await made(store.store, {"a": node(), "b": node("a", if_failed="run"), "c": node("b")})
    await flow.run("a", test_flows.FAILS)
    await flow.run("b", test_flows.FAILS)
    await test_flows.requeue(store.store, flow["a"])
    [run] = await flow.runs("a")
    # As if no process had looked at the requeue of the parent yet.
    await store.execute(f"UPDATE _jobs_edges SET ended = 'failed', verdict = 'pass' WHERE child = '{flow['b']}'")
    with _blind():
        await store.store.move([flow["b"]], Requeue(by="ann"))
        await _overtaken(store, "flow_watched", lambda: end(store.store, run, test_flows.FAILS))
    await flow.run("b")
