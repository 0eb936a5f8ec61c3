"""A process dies, or never gets the reply, right before or after a call to the database, in every verb that writes.

The verb has taken effect once or not at all, and the next process finishes the jobs that were left behind.
"""

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from rowlock.stores import open_store
from rowlock.stores.base import Store
from tests.databases import KINDS, Databases, empty
from tests.proof.crash_child import Victims
from tests.proof.crash_points import CASES
from tests.proof.crash_stage import Stage
from tests.proof.fail_points import Point, Trap, trapped
from tests.proof.performance import count_calls, kill, opened_stage, points, swallow


@pytest.fixture(scope="session")
def victims() -> Iterator[Victims]:
    with Victims() as victims:
        yield victims


@pytest_asyncio.fixture(params=KINDS, scope="module", loop_scope="module")
async def stage(
    request: pytest.FixtureRequest, databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stage]:
    """One stage for all tests: every performance ends by clearing it."""
    folder = tmp_path_factory.mktemp("stage")
    async with databases.at(request.param, folder, Stage.prepare) as url, opened_stage(url) as stage:
        yield stage


def _say(points: int, began: float) -> None:
    """Print the suite's line. Violations fail the test before, so there are none."""
    print(f"crash points: 0 violations, {points} points, {time.monotonic() - began:.2f} s")


# ── All verbs ──


def test_every_verb_that_writes_has_a_case() -> None:
    """Every verb of a store belongs to one of these sets."""
    reads = {
        *("read", "holders", "stored_rows", "end_counts", "list", "stats", "workers", "paused", "look"),
        *("held_by", "records", "audit", "failures", "bulks", "bulk_items", "newest", "newest_of_scopes", "mark"),
        *("count_ready", "next_fire", "schedules", "fires", "flows", "flow_graph", "debounced", "limit_usage"),
        *("series", "now", "home", "pending_migrations", "traits", "owes_ring"),
    }
    connects = {"open", "close", "ring", "wait_for_work"}
    elsewhere = {
        "migrate",  # below
        "sync_transaction",  # the same statements as transaction's
        "drop_flow",  # one statement or transaction, on the rest of deleted jobs
        "set_shares",  # one statement: after a crash, the next `put` repeats it
    }
    cases = {
        *("insert", "claim", "settle", "heartbeat", "progress", "transaction", "report", "retire", "promote"),
        "tidy",  # a case for each chore but sweep_rollups: one statement, on rows that no process reads any more
        *("move", "move_due", "prune", "steer_topic", "write_records", "set_backoff"),
        *("create_bulk", "steer_bulk", "run_bulk", "checkpoint", "take_signal", "change_schedules"),
        *("insert_flow", "start_children"),
    }
    verbs = {name for name in vars(Store) if not name.startswith("_")}
    assert verbs - connects == reads | elsewhere | cases


@pytest.mark.sampled(3)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", CASES)
async def test_the_last_reply_of_a_verb_is_not_heard(stage: Stage, name: str, victims: Victims) -> None:
    """Once the process dies before it gets the reply, once it goes on without the reply."""
    case, began = CASES[name], time.monotonic()
    if calls := await count_calls(stage, case):
        await kill(stage, case, Point(calls, after=True), calls, victims)
        await swallow(stage, case, Point(calls, after=True))
    _say(2 if calls else 0, began)


@pytest.mark.proof
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", CASES)
async def test_every_point_of_a_verb(stage: Stage, name: str, victims: Victims) -> None:
    case, began = CASES[name], time.monotonic()
    calls = await count_calls(stage, case)
    assert calls or name == "fold counts"
    for point in points(calls):
        await kill(stage, case, point, calls, victims)
        await swallow(stage, case, point)
    _say(2 * len(points(calls)), began)


# ── Migrations ──


async def _migrate_again(url: str) -> None:
    store = open_store(url)
    await store.migrate()
    await store.open()
    assert await store.migrate() == []
    assert (await store.stats()).pending == 0
    await store.close()


async def _calls_of_migrate(url: str) -> int:
    trap = Trap()
    with trapped(trap):
        trap.set()
        await open_store(url).migrate()
    return trap.calls


@pytest.mark.proof  # slow
async def test_a_migration_of_sqlite_is_killed_anywhere(tmp_path: Path, victims: Victims) -> None:
    began = time.monotonic()
    all_points = points(await _calls_of_migrate(f"sqlite:///{tmp_path}/all.db"))
    for n, point in enumerate(all_points):
        url = f"sqlite:///{tmp_path}/{n}.db"
        await victims.perform(url, None, {}, point)
        await _migrate_again(url)
    _say(len(all_points), began)


@pytest.mark.proof
async def test_a_migration_of_postgres_is_killed_anywhere(databases: Databases, victims: Victims) -> None:
    began = time.monotonic()
    async with databases.fresh(empty) as url:
        all_points = points(await _calls_of_migrate(url))
    for point in all_points:
        async with databases.fresh(empty) as url:
            await victims.perform(url, None, {}, point)
            await _migrate_again(url)
    _say(len(all_points), began)
