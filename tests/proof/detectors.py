"""Detectors that must turn red when a defence is switched off. Most of them call one existing test."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import rowlock.stores.postgres.clock
import rowlock.stores.postgres.store
from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Answer, Completed, Failed, Outcome, Released
from rowlock.errors import StoreError
from rowlock.jobs import Jobs
from rowlock.runtime.heartbeat import HeartbeatThread
from rowlock.stores.base import Hold, Progress, Store
from rowlock.stores.sqlite.connection import SqliteConnection, rollback
from rowlock.stores.sqlite.store import SqliteStore
from tests.closing import connected
from tests.proof import test_simulation
from tests.proof.crash_points import CASES
from tests.proof.crash_stage import Stage
from tests.proof.fail_points import Point
from tests.proof.lives import World
from tests.proof.performance import opened_stage, swallow
from tests.proof.simulation import simulate
from tests.proof.simulation_sabotage import KILLS
from tests.runtime import test_claimed_again
from tests.stores import (
    test_claim,
    test_fencing,
    test_insert,
    test_locked_rows,
    test_maintenance,
    test_postgres_doorbell,
    test_postgres_ghosts,
    test_races,
    test_replay,
    test_same_version,
    test_settle,
    test_sqlite_lost_file,
    test_sqlite_own,
    test_transactions,
    test_transactions_sqlite,
)
from tests.stores.harness import Harness, PostgresHarness, SqliteHarness, settlement
from tests.stores.paired import paired
from tests.stores.processes import real_job

ORDERS = "CREATE TABLE orders (n integer PRIMARY KEY)"  # the application's own table
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


# ── The fence ──


async def settle(store: Harness) -> None:
    await test_fencing.test_an_old_version_in_the_same_status_is_refused(store, Failed("x"))


async def completion(store: Harness) -> None:
    await test_fencing.test_an_old_version_in_the_same_status_is_refused(store, Completed())


heartbeat = settle


async def status(store: Harness) -> None:
    await test_settle.test_an_outcome_after_a_cancel_request(store, "retried", False)


async def complete(store: Harness) -> None:
    """A worker that has given a job back can't complete it any more, although its version is still the same. The settle
    names no worker, because the worker's name would not fit any more either."""
    old = replace(await store.claimed("A"), locked_by=None)
    await store.store.settle([settlement(old, Released())])
    [verdict] = (await store.store.settle([settlement(old, Completed())])).verdicts
    assert verdict.answer is Answer.LOST
    assert (await store.job(old.id)).status is Status.PENDING


async def progress(store: Harness) -> None:
    old = await store.claimed("A")
    await store.store.settle([settlement(old, Released())])
    await store.claim("A")
    assert await store.store.progress([Progress(old.id, old.version, 50.0)]) == [Hold.LOST]
    assert (await store.job(old.id)).progress == 0


async def heartbeat_after_the_end(store: Harness) -> None:
    """Without the heartbeat's own guard, the last guard refuses the write: the table's constraint."""
    try:
        await test_fencing.test_a_zombie_after_the_end_of_its_job(store, "cancel_timeout")
    except StoreError as error:
        raise AssertionError(error) if "_jobs_lease" in str(error) else error from None


async def fence(store: Harness) -> None:
    await store.execute(ORDERS)
    await test_transactions.test_a_zombie_commits_nothing(store, _rescued_and_claimed_anew, False, "async")


async def _rescued_and_claimed_anew(store: Harness, run: Job) -> None:
    """The same worker claims the job again, so its name does not tell the two runs apart."""
    await test_transactions._rescued(store, run)
    [again] = (await store.claim("w1")).jobs
    assert (again.id, again.version) == (run.id, 2)


# Another worker's run of the same version.


async def others_settle(store: Harness) -> None:
    await _forgotten(store, Failed("x"))


async def others_completion(store: Harness) -> None:
    await _forgotten(store, Completed())


async def _forgotten(store: Harness, outcome: Outcome) -> None:
    old, _ = await test_same_version.given_twice(store)
    before = await store.rows()
    [verdict] = (await store.store.settle([settlement(old, outcome)])).verdicts
    assert verdict.answer is Answer.LOST
    assert await store.rows() == before


async def others_in_a_mixed_batch(store: Harness) -> None:
    await test_same_version.test_a_batch_of_several_workers(store, "all kinds", False)


async def others_heartbeat(store: Harness) -> None:
    old, _ = await test_same_version.given_twice(store)
    before = await store.rows()
    assert await store.store.heartbeat([test_same_version.beat(old)], 1000.0) == [Hold.LOST]
    assert await store.rows() == before


async def others_progress(store: Harness) -> None:
    old, _ = await test_same_version.given_twice(store)
    before = await store.rows()
    assert await store.store.progress([test_same_version.report(old)]) == [Hold.LOST]
    assert await store.rows() == before


async def others_fence(store: Harness) -> None:
    await store.execute(ORDERS)
    lose = test_transactions._forgotten_and_claimed
    await test_transactions.test_a_zombie_commits_nothing(store, lose, False, "async")


async def others_repeat(store: Harness) -> None:
    await test_same_version.test_a_repeat_of_ones_own_is_known_by_the_worker_too(store, Released())


async def own_claim_beside_the_settle(store: Harness) -> None:
    await test_same_version.test_a_settle_can_not_end_what_its_own_claim_brings(store, Completed())


async def older_run(store: Harness) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeartbeatThread, "_renew_all", test_claimed_again.nothing)
        async with Jobs(_url(store)) as jobs:
            try:
                await test_claimed_again.test_one_that_has_not_started_makes_room(jobs)
            finally:
                await jobs.stop(grace=0)


# ── The claim ──


async def claim(store: Harness) -> None:
    async with paired(store):
        await test_claim.test_what_a_claim_does_to_the_row(store)


async def pause(store: Harness) -> None:
    await test_claim.test_paused_topics_are_not_claimed(store)


async def expiry(store: Harness) -> None:
    await test_claim.test_expired_jobs_are_not_claimed(store)


async def claim_of_locked_rows(store: Harness) -> None:
    await test_locked_rows.test_claim_takes_the_others_and_says_so(store)


async def heartbeat_of_locked_rows(store: Harness) -> None:
    await test_locked_rows.test_heartbeat_and_progress_say_unseen(store)


# ── Leases ──


async def lease(store: Harness) -> None:
    await test_maintenance.test_a_lease_is_over_only_after_its_last_moment(store)


async def before(store: Harness) -> None:
    await test_maintenance.test_a_lease_that_ran_out_after_the_look_is_not_rescued(store)


async def shrink(store: Harness) -> None:
    await test_fencing.test_heartbeat_never_shortens_a_lease(store)


async def charge(store: Harness) -> None:
    async with paired(store):
        await test_maintenance.test_crashes_from_the_second_on_wait(store)


async def race_of_rescues(store: Harness) -> None:
    with pytest.MonkeyPatch.context() as patch:
        await test_races.test_a_run_does_not_end_while_a_rescue_decides(store, patch)


async def promote(store: Harness) -> None:
    await test_maintenance.test_promote_makes_due_jobs_ready(store)


# ── Enqueue ──


async def archive(store: Harness) -> None:
    await test_replay.test_insert(store)


def without_the_index(patch: pytest.MonkeyPatch) -> None:
    open_ = Harness.open

    async def without_it(self: Harness, *, migrated: bool = False) -> None:
        await open_(self, migrated=migrated)
        await self.execute("DROP INDEX _jobs_live_key")

    patch.setattr(Harness, "open", without_it)


async def keys(store: Harness) -> None:
    await test_insert.test_a_live_key_answers_with_its_holder(store)


async def swallowed_insert(store: Harness) -> None:
    """A crash point: the reply to the COMMIT is lost, and the client repeats the insert."""
    url = _url(store)
    await Stage.watch(url)
    async with opened_stage(url) as stage:
        await swallow(stage, CASES["insert"], Point(1, after=True))


def _url(store: Harness) -> str:
    if isinstance(store, PostgresHarness):
        return store.url
    assert isinstance(store, SqliteHarness)
    assert isinstance(store.path, Path)
    return f"sqlite:///{store.path}"


# ── PostgreSQL ──


@asynccontextmanager
async def _in_the_way(store: Harness, statement: str, waiting: int) -> AsyncIterator[None]:
    """Hold a transaction of another client open until `waiting` connections wait for it."""
    async with connected(_url(store)) as connection, connection.transaction():
        await connection.execute(statement)
        yield
        while await connection.fetchval(_WAITING) < waiting:
            pass  # each query takes a round trip


async def write_that_waited(store: Harness) -> None:
    """A row that changed while the settle waited for its lock is too new for the snapshot. The settle must still write
    it."""
    for outcome, status in ((Completed(), Status.COMPLETED), (Failed("no", final=True), Status.FAILED)):
        await store.insert(real_job())
        [run] = (await store.claim()).jobs
        async with _in_the_way(store, f"UPDATE _jobs SET progress = 50 WHERE id = '{run.id}'", 1):
            asked = asyncio.create_task(store.store.settle([settlement(run, outcome, ran=0.0)]))
        [verdict] = (await asked).verdicts
        assert verdict.answer is Answer.APPLIED
        assert (await store.job(run.id)).status is status


async def _opposite(
    store: Harness, verb: Callable[[Store, Sequence[Job]], Coroutine[Any, Any, None]], block: str
) -> None:
    """Send two batches of the same jobs in opposite orders. Another transaction holds both up at the job in the middle.
    A deadlock follows unless the verb sorts its jobs."""
    [(name,)] = await store.fetch("SELECT current_database()")
    await store.execute(f"ALTER DATABASE {name} SET deadlock_timeout = '50ms'")
    one, two = await store.another(), await store.another()
    jobs = sorted(await test_races._claimed(store, 9), key=lambda job: job.id)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rowlock.stores.postgres.store, "ATTEMPTS", 1)  # a deadlock is not hidden by a second try
        async with _in_the_way(store, block.format(id=jobs[4].id), 2):
            asked = [asyncio.create_task(verb(one, jobs)), asyncio.create_task(verb(two, jobs[::-1]))]
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert answers == [None, None]


async def insert_on_its_way(store: Harness) -> None:
    """The connection breaks while an insert is on its way. The server gets the insert after its repeat has made a job
    that has completed."""
    with pytest.MonkeyPatch.context() as patch:
        # The first insert must come within its time, on a busy machine too. Otherwise the server refuses it anyway.
        patch.setattr(rowlock.stores.postgres.clock, "INSERTS", 5.0)
        await test_postgres_ghosts.made_once(store, test_postgres_ghosts.KINDS["alike"]())


async def insert_that_waited(store: Harness) -> None:
    """An insert waits for its key, and gets it when its repeat may already have come and gone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rowlock.stores.postgres.clock, "INSERTS", 2.0)
        await test_postgres_ghosts.taken_back(store)


async def opposite_inserts(store: Harness) -> None:
    await _opposite(store, test_races._insert, "UPDATE _jobs SET key = '{id}' WHERE id = '{id}'")


async def opposite_settles(store: Harness) -> None:
    await _opposite(store, test_races._settle, "SELECT 1 FROM _jobs WHERE id = '{id}' FOR UPDATE")


async def lost_listener(store: Harness) -> None:
    url = _url(store)
    async with connected(url) as connection:
        onlooker = test_postgres_doorbell.Onlooker(connection)
        await test_postgres_doorbell.test_a_listener_that_was_terminated_is_replaced(url, onlooker)


# ── SQLite ──


async def watchdog(store: Harness) -> None:
    assert isinstance(store, SqliteHarness)
    await store.execute(ORDERS)
    await test_transactions_sqlite.test_one_that_takes_too_long_is_rolled_back(store, "async")


def clock_read_before_the_lock(patch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def transaction(self: SqliteConnection) -> Iterator[int]:
        now = self._clock()
        self.begin()
        try:
            yield now
            self.conn.execute("COMMIT")
        except BaseException:
            rollback(self.conn)
            raise

    patch.setattr(SqliteConnection, "transaction", transaction)


async def clock(store: Harness) -> None:
    assert isinstance(store, SqliteHarness)
    assert store.path is not None
    other = store.path.with_name("clock")
    other.mkdir()
    await asyncio.to_thread(test_sqlite_own.test_the_clock_is_read_after_the_lock_was_taken, other)


def _file(store: Harness) -> tuple[SqliteStore, Path]:
    assert isinstance(store, SqliteHarness)
    assert store.path is not None
    assert isinstance(store.store, SqliteStore)
    return store.store, store.path


async def lost_file(store: Harness) -> None:
    await test_sqlite_lost_file.test_nothing_is_acknowledged(*_file(store), test_sqlite_lost_file.delete)


async def file_lost_in_a_commit(store: Harness) -> None:
    await test_sqlite_lost_file.test_a_commit_into_a_file_that_is_just_lost_has_an_unknown_outcome(*_file(store))


async def lost_log(store: Harness) -> None:
    await test_sqlite_lost_file.test_a_deleted_log(*_file(store))


async def replaced_file(store: Harness) -> None:
    """Red, too, if the store takes the new file for the old one, or if the file has become unreadable."""
    try:
        await test_sqlite_lost_file.test_stores_go_on_with_another_file(*_file(store), test_sqlite_lost_file.replaced)
    except StoreError as error:
        raise AssertionError(error) from None


async def connection_to_a_deleted_original(store: Harness) -> None:
    _, path = _file(store)
    copy = test_sqlite_lost_file.replaced_by_a_copy
    await asyncio.to_thread(test_sqlite_lost_file.test_a_connection_to_a_deleted_file_is_refused, path, copy)


# ── Workers, in the simulation ──


def unmarked_suspects(seeds: Iterable[int]) -> None:
    """A suspect, or a job without retries left, has its durable start mark before its handler starts. Without the mark,
    its crash would not be charged, and a job that kills its workers would never end as a dead letter."""
    judged = 0
    for history in (simulate(seed, **KILLS).history for seed in seeds):
        lives = {(life.id, version): life for life in World(history).lives for version in life.claims}
        for run in history.executions:
            life = lives[run.job_id, run.version]
            row = life.claims[run.version].after
            if row and (row["crashes"] or row["retries"] >= row["max_retries"]):
                judged += 1
                known = [step.after for step in life.steps if step.version == run.version and step.at <= run.begun]
                assert any(one and one["started_at"] for one in known), f"run {run.version} of {run.job_id}"
    assert judged


def marked_and_not_begun() -> None:
    test_simulation.test_no_more_jobs_than_slots_are_marked_and_have_not_begun()


def unsettled_on_the_board() -> None:
    test_simulation.test_a_run_is_on_the_board_until_it_is_settled()


def unheard_claims() -> None:
    test_simulation.test_a_claim_that_a_blocked_thread_has_not_heard_of_is_renewed()


def late_claims() -> None:
    test_simulation.test_a_claim_that_nobody_has_asked_for_any_more_is_given_back()


def blocked_loops() -> None:
    test_simulation.test_a_handler_that_blocks_its_thread_for_longer_than_a_lease_keeps_its_job()
