"""PostgreSQL only: a row that another transaction has locked briefly blocks no worker, and no answer calls it lost.

(SQLite has one writer, so a row is never found locked.)
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import pytest

from rowlock.core.job import Log
from rowlock.core.moves import Expire, Rescue
from rowlock.stores.base import Beat, Hold, NewLine, Progress
from rowlock.stores.postgres.store import PostgresStore
from tests.closing import connected
from tests.stores.conftest import postgres_store
from tests.stores.harness import LEASE, START, Harness, PostgresHarness, ids, info, job

pytestmark = pytest.mark.timeout(30)  # a verb that waits for the lock would wait for ever


store = postgres_store


@asynccontextmanager
async def locked(store: Harness, job_id: str) -> AsyncIterator[None]:
    assert isinstance(store, PostgresHarness)
    async with connected(store.url) as connection, connection.transaction():
        await connection.execute("SELECT 1 FROM public._jobs WHERE id = $1 FOR UPDATE", job_id)
        yield


async def test_claim_takes_the_others_and_says_so(store: Harness) -> None:
    new = [job(priority=9 - i) for i in range(3)]
    await store.insert(*new)
    async with locked(store, new[0].id):
        answer = await store.claim(limit=10)
        assert ids(answer.jobs) == [new[1].id, new[2].id]
        assert answer.contended
    assert ids((await store.claim(limit=10)).jobs) == [new[0].id]


async def test_heartbeat_and_progress_say_unseen(store: Harness) -> None:
    one, two = await store.claimed(), await store.claimed()
    async with locked(store, one.id):
        beats = [Beat(one.id, 1), Beat(two.id, 1), Beat(one.id, 7)]
        assert (await store.store.heartbeat(beats[:2], LEASE)) == [Hold.UNSEEN, Hold.KEPT]
        # A wrong version alone proves that the run is lost: this answer needs no lock.
        assert (await store.store.heartbeat(beats[2:], LEASE)) == [Hold.LOST]
        said = (NewLine(0.0, "info", "hi"),)
        reports = [Progress(one.id, 1, 5.0, lines=said), Progress(two.id, 1, 5.0, lines=said)]
        assert (await store.store.progress(reports)) == [Hold.UNSEEN, Hold.KEPT]
        assert [len(((await store.store.read([run.id], Log))[run.id]).lines) for run in (one, two)] == [0, 1]
    assert (await store.store.heartbeat(beats[:1], LEASE)) == [Hold.KEPT]


async def test_look_and_held_by_wait_for_nobody(store: Harness) -> None:
    claimed = await store.claimed()
    async with locked(store, claimed.id):
        assert await store.store.look([Beat(claimed.id, 1), Beat(claimed.id, 2)]) == [Hold.KEPT, Hold.LOST]
        assert await store.store.held_by(["w1"]) == [Beat(claimed.id, 1, started=True, worker="w1")]


async def test_who_is_just_reporting_is_not_retired(store: Harness) -> None:
    assert isinstance(store, PostgresHarness)
    for name in ("lives", "dead"):
        await store.store.report(info(name))
    connection = await asyncpg.connect(store.url)
    async with connection.transaction():
        await connection.execute("UPDATE public._jobs_workers SET running = 1 WHERE name = 'lives'")
        assert await store.store.retire(["dead", "lives"]) == 1
    await connection.close()
    assert [worker.name for worker in await store.store.workers()] == ["lives"]


async def test_maintenance_leaves_it_for_the_next_pass(store: Harness) -> None:
    future = await store.add("future", delay=1.0)
    late = await store.add("late", expires_at=START + timedelta(seconds=1))
    crashed = await store.claimed()
    await store.advance(1000)
    async with locked(store, future):
        assert await store.store.promote() == 0
    async with locked(store, late):
        assert await store.store.move_due(Expire(by="m1")) == []
    async with locked(store, crashed.id):
        assert await store.store.move_due(Rescue(by="m1", backoff=[1.0])) == []
    assert await store.store.promote() == 1
    assert ids(await store.store.move_due(Expire(by="m1"))) == [late]
    assert ids(await store.store.move_due(Rescue(by="m1", backoff=[1.0]))) == [crashed.id]


async def test_a_rescuer_that_falls_silent_loses_its_locks(store: Harness) -> None:
    """A rescuer locks rows, and writes them in a second statement. Its process may be frozen between the two."""
    assert isinstance(store.store, PostgresStore)
    await store.claimed()
    await store.advance(1000)
    async with store.store._connections.acquire() as connection, connection.transaction():
        assert await connection.fetch(store.store._sql.rescue_expired, 10, None)
        assert await connection.fetchval("SHOW idle_in_transaction_session_timeout") == "10s"
