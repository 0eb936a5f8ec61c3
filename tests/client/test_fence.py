"""fence(conn): on every kind of connection, the writes of a run commit only while the run holds its lease."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from typing import Any

import asyncpg
import psycopg
import pytest
from msgspec import structs
from psycopg.rows import dict_row

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Answer, Completed
from rowlock.core.moves import Cancel, CancelTimeout, Delete, Rescue
from rowlock.errors import ConnectionRefused, LeaseLost
from rowlock.stores import reading
from rowlock.stores.base import Beat, Guard, Hold, Home
from rowlock.stores.callers import caller_for
from tests.client.conn_kinds import KINDS, Kind, Place, fence
from tests.client.test_conn_settings import somebody_waits
from tests.closing import connected
from tests.databases import execute
from tests.stores.harness import claim_by, ids, job, mark, settlement

pytestmark = pytest.mark.sampled(4)  # kinds of connections


async def claimed(place: Place, worker: str = "w1") -> Job:
    await place.store.insert([job()])
    [run] = (await place.store.claim(claim_by(worker))).jobs
    return run


def guard(run: Job, *, completes: bool = False) -> Guard:
    done = settlement(run, Completed({"ok": True}), ran=1.0) if completes else None
    return Guard(run.id, run.version, done, run.locked_by)


async def orders(place: Place) -> list[int]:
    return (await place.committed())[0]


async def now(place: Place, run: Job) -> Job:
    return (await place.store.read([run.id], Job))[run.id]


async def write(kind: Kind, guard: Guard, n: int = 1) -> None:
    """Write an order and fence it in one transaction, as a handler does."""
    async with kind.transaction():
        await kind.order(n)
        await kind.fence(guard)


# ── Every kind ──


async def test_a_run_that_holds_its_lease_commits(kind: Kind) -> None:
    run = await claimed(kind.place)
    await write(kind, guard(run))
    assert await orders(kind.place) == [1]
    assert await now(kind.place, run) == run


async def test_the_fence_may_be_the_first_statement(kind: Kind) -> None:
    run = await claimed(kind.place)
    async with kind.transaction():
        await kind.fence(guard(run))
        await kind.order(1)
    assert await orders(kind.place) == [1]


async def test_a_step_s_result_commits_with_the_writes(kind: Kind) -> None:
    run = await claimed(kind.place)
    for n, completes in enumerate((False, True), start=1):
        done = mark(run, f"s{n}", "succeeded", result='{"ä":[1.5,null]}', percent=12.5)
        await write(kind, structs.replace(guard(run, completes=completes), checkpoint=done), n)
        step = (await reading.steps(kind.place.store, run.id))[-1]
        assert (step.name, step.result, step.version) == (f"s{n}", {"ä": [1.5, None]}, run.version)
        assert (await now(kind.place, run)).step == f"s{n}"
    assert await orders(kind.place) == [1, 2]
    assert (await now(kind.place, run)).status is Status.COMPLETED


async def test_a_zombie_stores_no_result(kind: Kind) -> None:
    zombie = await claimed(kind.place, "w1")
    await kind.place.store.move_due(Rescue(by="m1", backoff=[0.0], workers=["w1"]))
    [current] = (await kind.place.store.claim(claim_by("w2"))).jobs
    with pytest.raises(LeaseLost):
        await write(kind, structs.replace(guard(zombie), checkpoint=mark(zombie, "a", "succeeded")))
    assert (await orders(kind.place), await reading.steps(kind.place.store, zombie.id)) == ([], [])
    assert await now(kind.place, zombie) == current


async def test_a_zombie_commits_nothing(kind: Kind) -> None:
    zombie = await claimed(kind.place, "w1")
    await kind.place.store.move_due(Rescue(by="m1", backoff=[0.0], workers=["w1"]))
    [current] = (await kind.place.store.claim(claim_by("w2"))).jobs
    assert current.id == zombie.id
    for completes in (False, True):
        with pytest.raises(LeaseLost) as lost:
            await write(kind, guard(zombie, completes=completes))
        assert (lost.value.job_id, lost.value.version) == (zombie.id, 1)
    assert await orders(kind.place) == []
    assert await now(kind.place, current) == current


async def test_another_workers_run_of_the_same_version_is_not_its_own(kind: Kind) -> None:
    run = await claimed(kind.place)
    for completes in (False, True):
        other = guard(structs.replace(run, locked_by="w2"), completes=completes)
        with pytest.raises(LeaseLost):
            await write(kind, other)
    assert await kind.place.committed() == ([], [run.id])
    assert await now(kind.place, run) == run
    anyone = guard(structs.replace(run, locked_by=None), completes=True)
    await write(kind, anyone)
    assert await kind.place.committed() == ([1], [])


async def test_a_completion_commits_with_the_writes(kind: Kind) -> None:
    run = await claimed(kind.place)
    await write(kind, guard(run, completes=True))
    assert await kind.place.committed() == ([1], [])
    done = await now(kind.place, run)
    assert (done.status, done.version, done.result, done.locked_by) == (Status.COMPLETED, 1, {"ok": True}, "w1")
    assert done.started_at is not None
    store = kind.place.store
    assert [event.event for event in await reading.events(store, run.id)] == ["enqueued", "claimed", "completed"]
    [verdict] = (await store.settle([settlement(run, Completed({"ok": True}), ran=1.0)])).verdicts
    assert verdict.answer is Answer.ALREADY
    assert (await store.stats()).completed == 1


async def test_a_completion_is_rolled_back_with_the_writes(kind: Kind) -> None:
    run = await claimed(kind.place)
    with suppress(ZeroDivisionError):
        async with kind.transaction():
            await kind.order(1)
            await kind.fence(guard(run, completes=True))
            raise ZeroDivisionError
    assert await kind.place.committed() == ([], [run.id])
    assert await now(kind.place, run) == run
    [verdict] = (await kind.place.store.settle([settlement(run, Completed())])).verdicts
    assert verdict.answer is Answer.APPLIED


async def test_a_requested_cancel_stops_neither_commit_nor_completion(kind: Kind) -> None:
    run = await claimed(kind.place)
    await kind.place.store.move([run.id], Cancel(by="ann"))
    await write(kind, guard(run))
    await write(kind, guard(run, completes=True), 2)
    assert await orders(kind.place) == [1, 2]
    assert (await now(kind.place, run)).status is Status.COMPLETED


async def test_another_database_is_refused(kind: Kind) -> None:
    run = await claimed(kind.place)
    elsewhere = Home(kind.place.home.dialect, "elsewhere@1.2", kind.place.home.schema)
    async with kind.transaction():
        await kind.order(1)
        with pytest.raises(ConnectionRefused) as refused:
            await fence(caller_for(kind.conn, elsewhere), guard(run))
    assert refused.value.code == "another_database"


async def test_a_closed_connection_is_refused(sqlite_place: Place, postgres_place: Place) -> None:
    sync = sqlite3.connect(sqlite_place.address), psycopg.connect(postgres_place.address)
    asynchronous = await asyncpg.connect(postgres_place.address)
    for one in sync:
        one.close()
    await asynchronous.close()
    for conn in (*sync, asynchronous):
        place = sqlite_place if isinstance(conn, sqlite3.Connection) else postgres_place
        with pytest.raises(ConnectionRefused) as refused:
            await fence(caller_for(conn, place.home), Guard(job().id, 1))
        assert refused.value.code == "closed"


async def test_autocommit_is_refused(sqlite_place: Place, postgres_place: Place) -> None:
    with (
        closing(sqlite3.connect(sqlite_place.address, isolation_level=None)) as by_hand,
        psycopg.connect(postgres_place.address, autocommit=True) as automatic,
    ):
        for conn, place in [(by_hand, sqlite_place), (automatic, postgres_place)]:
            with pytest.raises(ConnectionRefused) as refused:
                await fence(caller_for(conn, place.home), Guard(job().id, 1))
            assert refused.value.code == "autocommit"


# ── Every way to lose a job ──


async def _rescued(place: Place, run: Job) -> None:
    await place.store.move_due(Rescue(by="m1", backoff=[0.0], workers=["w1"]))


async def _cancelled_by_timeout(place: Place, run: Job) -> None:
    await place.store.move([run.id], Cancel(by="ann"))
    assert ids(await place.store.move_due(CancelTimeout(by="m1", grace=0.0))) == [run.id]


async def _completed(place: Place, run: Job) -> None:
    await place.store.settle([settlement(run, Completed())])


async def _deleted(place: Place, run: Job) -> None:
    await _rescued(place, run)
    await place.store.move([run.id], Delete(by="ann"))


@pytest.mark.parametrize(
    "kind", [param for param in KINDS if param[1].__name__ in ("Psycopg", "Sqlite")], indirect=True
)
@pytest.mark.parametrize("lose", [_rescued, _cancelled_by_timeout, _completed, _deleted])
@pytest.mark.parametrize("completes", [False, True])
async def test_whoever_lost_the_job_commits_nothing(
    kind: Kind, lose: Callable[[Place, Job], Awaitable[None]], completes: bool
) -> None:
    run = await claimed(kind.place)
    await lose(kind.place, run)
    with pytest.raises(LeaseLost):
        await write(kind, guard(run, completes=completes))
    assert await orders(kind.place) == []


async def test_a_job_that_never_was(kind: Kind) -> None:
    with pytest.raises(LeaseLost):
        await write(kind, Guard(job().id, 1))
    assert await orders(kind.place) == []


# ── PostgreSQL: which transaction waits for which ──


async def test_the_fence_holds_the_job_until_the_commit(postgres_place: Place) -> None:
    run = await claimed(postgres_place)
    store = postgres_place.store
    with psycopg.connect(postgres_place.address) as conn:
        conn.execute("INSERT INTO orders VALUES (1)")
        assert await store.heartbeat([Beat(run.id, 1)], 60.0) == [Hold.KEPT]
        await fence(caller_for(conn, postgres_place.home), guard(run))
        assert await store.heartbeat([Beat(run.id, 1)], 60.0) == [Hold.UNSEEN]
        assert await store.move_due(Rescue(by="m1", backoff=[0.0], workers=["w1"])) == []
    assert await store.heartbeat([Beat(run.id, 1)], 60.0) == [Hold.KEPT]
    assert await orders(postgres_place) == [1]


@pytest.mark.parametrize("completes", [False, True])
async def test_the_fence_waits_for_a_writer_and_judges_what_it_left(postgres_place: Place, completes: bool) -> None:
    """If a heartbeat commits while the fence waits, the run keeps its lease, also for a completion. If a new version
    commits, the run has lost its lease."""
    run = await claimed(postgres_place)
    address = postgres_place.address
    for change, ends in [("locked_until = now() + interval '1 h'", None), ("version = version + 1", LeaseLost)]:
        with psycopg.connect(address) as other, psycopg.connect(address) as conn:
            other.execute(f"UPDATE _jobs SET {change}")
            caller = caller_for(conn, postgres_place.home)
            waiting = asyncio.create_task(
                asyncio.to_thread(asyncio.run, fence(caller, guard(run, completes=completes)))
            )
            await somebody_waits(postgres_place)
            other.commit()
            if ends is None:
                await waiting
            else:
                with pytest.raises(ends):
                    await waiting
            conn.rollback()


async def test_a_stricter_transaction_fails_in_the_drivers_own_words(postgres_place: Place) -> None:
    run = await claimed(postgres_place)
    async with connected(postgres_place.address) as conn:
        strict = conn.transaction(isolation="repeatable_read")
        await strict.start()
        await conn.execute("INSERT INTO orders VALUES (1)")
        await postgres_place.store.heartbeat([Beat(run.id, 1)], 60.0)
        with pytest.raises(asyncpg.SerializationError):
            await fence(caller_for(conn, postgres_place.home), guard(run))
        await strict.rollback()
        async with conn.transaction(isolation="serializable"):
            await conn.execute("INSERT INTO orders VALUES (2)")
            await fence(caller_for(conn, postgres_place.home), guard(run, completes=True))
    assert await orders(postgres_place) == [2]


async def test_a_role_that_may_only_enqueue_is_told_what_it_lacks(postgres_place: Place) -> None:
    run_ = await claimed(postgres_place)
    await execute(
        postgres_place.address,
        "DO $$ BEGIN CREATE ROLE enqueuer LOGIN PASSWORD 'x'; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        "GRANT SELECT ON _jobs_meta TO enqueuer",
        "GRANT SELECT, INSERT ON _jobs TO enqueuer",
    )
    with psycopg.connect(postgres_place.address) as conn:
        conn.execute("SET ROLE enqueuer")
        with pytest.raises(ConnectionRefused, match="UPDATE") as refused:
            await fence(caller_for(conn, postgres_place.home), guard(run_))
        assert refused.value.code == "no_permission"
        conn.rollback()


# ── What the application has set up on its connection ──


async def test_row_factories_and_codecs(sqlite_place: Place, postgres_place: Place) -> None:
    with closing(sqlite3.connect(sqlite_place.address)) as lite:
        lite.row_factory = lambda _cursor, row: {"row": row}
        lite.text_factory = bytes
        await _completes(lite, sqlite_place)
        lite.commit()
        assert lite.text_factory is bytes
        assert lite.execute("SELECT 1").fetchone() == {"row": (1,)}
    with psycopg.connect(postgres_place.address, row_factory=dict_row) as conn:
        await _completes(conn, postgres_place)
    async with connected(postgres_place.address) as aconn:
        await aconn.set_type_codec("jsonb", schema="pg_catalog", encoder=repr, decoder=repr)
        async with aconn.transaction():
            await _completes(aconn, postgres_place)


async def _completes(conn: Any, place: Place) -> None:
    await fence(caller_for(conn, place.home), guard(await claimed(place), completes=True))
