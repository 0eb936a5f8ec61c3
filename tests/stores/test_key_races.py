"""One live job per (topic, scope, scope_id, key), also if clients race, and however their transactions end."""

import asyncio
import random
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from rowlock.core.lifecycle import Completed, Failed, Outcome
from rowlock.core.moves import Cancel, Delete, Requeue
from rowlock.stores.base import Store
from tests.closing import connected
from tests.stores.harness import Harness, PostgresHarness, SqliteHarness, claim_by, settlement
from tests.stores.processes import deadlocks, real_job, stores
from tests.waiting import until


async def one_live_job_per_key(harness: Harness) -> None:
    live = "'pending', 'blocked', 'processing', 'waiting', 'cancel_requested'"
    twice = await harness.fetch(
        f"SELECT topic, scope, scope_id, key, count(*) FROM _jobs WHERE status IN ({live}) AND key IS NOT NULL "
        "GROUP BY topic, scope, scope_id, key HAVING count(*) > 1"
    )
    assert twice == []


async def test_one_live_job_per_key(real_store: Harness) -> None:
    """Eight clients enqueue the same few keys in batches, and end the jobs that hold them."""
    keys: list[dict[str, Any]] = [{"key": f"k{i % 3}", "scope_id": f"t{i % 2}" if i % 3 else None} for i in range(9)]
    created: list[str] = []
    deleted: set[str] = set()

    async def work(store: Store, name: str, dice: random.Random) -> None:
        for _ in range(25):
            batch = [real_job(**key) for key in dice.sample(keys, 6)]
            answers = await store.insert(batch)
            for new, answer in zip(batch, answers, strict=True):
                assert answer.existing == (answer.id != new.id)
            mine = [answer.id for answer in answers if not answer.existing]
            created.extend(mine)
            match dice.randrange(4):
                case 0:
                    await store.move([answer.id for answer in answers], Cancel(by=name))
                case 1:
                    gone = await store.move(mine, Delete(by=name))
                    deleted.update(change.id for change in gone if change.done)
                case 2:
                    jobs = (await store.claim(claim_by(name, limit=3))).jobs
                    ends: list[Outcome] = [Completed(), Failed("x", final=True)]
                    wishes = [settlement(job, dice.choice(ends)) for job in jobs]
                    await store.settle(wishes)
                case _:
                    await store.move([answer.id for answer in answers], Requeue(by=name))
            await one_live_job_per_key(real_store)

    everyone = await stores(real_store, 8)
    await asyncio.gather(*(work(store, f"w{i}", random.Random(i)) for i, store in enumerate(everyone)))
    assert len(created) == len(set(created))
    # Deadlocks are not checked here. A batch of completions locks its jobs as they lie in the table. An operator's
    # batch locks them by id (docs/decisions/0004-speed.md). PostgreSQL ends a deadlock, and the store repeats the call.
    assert set(await real_store.rows()) == set(created) - deleted


COLUMNS = "id, topic, key, status, ready, priority, max_retries, timeout, payload, created, updated, run_at"


class Rival:
    """A transaction of the application that enqueues a key, stays open for a while, and commits or rolls back."""

    def __init__(self, harness: Harness, key: str) -> None:
        self.harness = harness
        self.new = real_job(key=key)

    def statement(self, now: str) -> str:
        fixed = f"'{self.new.id}', 'mail', '{self.new.key}', 'pending', true, 100, 3, 600, '{{}}'"
        return f"INSERT INTO _jobs ({COLUMNS}) VALUES ({fixed}, {now}, {now}, {now})"

    async def run(self, commit: bool, meanwhile: Callable[[], Awaitable[Any]]) -> Any:
        """Return the answer of `meanwhile`, which begins while the transaction is open and may wait for its end."""
        if isinstance(self.harness, PostgresHarness):
            async with connected(self.harness.url) as connection:
                transaction = connection.transaction()
                await transaction.start()
                await connection.execute(self.statement("now()"))
                waiting = asyncio.ensure_future(meanwhile())
                while not waiting.done() and not await self.holds_someone_up():
                    pass  # each query is a round trip, so other tasks run
                await (transaction.commit() if commit else transaction.rollback())
                return await waiting
        assert isinstance(self.harness, SqliteHarness)
        assert self.harness.path is not None
        with closing(sqlite3.connect(self.harness.path, isolation_level=None, timeout=30.0)) as connection_:
            connection_.execute("BEGIN IMMEDIATE")
            connection_.execute(self.statement("1767268800000000"))
            waiting = asyncio.ensure_future(meanwhile())
            await asyncio.wait([waiting], timeout=0.05)  # SQLite can't tell which connection waits
            assert not waiting.done()
            connection_.execute("COMMIT" if commit else "ROLLBACK")
            return await waiting

    async def holds_someone_up(self) -> bool:
        return bool(await self.harness.fetch("SELECT 1 FROM pg_locks WHERE NOT granted LIMIT 1"))


async def test_a_key_of_an_open_transaction(real_store: Harness) -> None:
    """After a commit, the insert gets the rival's job. After a rollback, the key was never taken."""
    dice = random.Random(7)
    for n in range(10):
        rival, commit = Rival(real_store, f"k{n}"), dice.random() < 0.5
        mine = [real_job(key=f"k{n}"), real_job(key=f"other{n}")]
        answers = await rival.run(commit, partial(real_store.store.insert, mine))
        assert answers[0].existing == commit
        assert answers[0].id == (rival.new.id if commit else mine[0].id)
        assert not answers[1].existing
        assert (rival.new.id in await real_store.rows()) == commit
    await one_live_job_per_key(real_store)


async def test_a_requeue_against_an_open_transaction(real_store: Harness) -> None:
    dice = random.Random(8)
    for n in range(6):
        [inserted] = await real_store.store.insert([real_job(key=f"k{n}")])
        await real_store.store.move([inserted.id], Cancel(by="ann"))
        rival, commit = Rival(real_store, f"k{n}"), dice.random() < 0.5
        [changed] = await rival.run(commit, partial(real_store.store.move, [inserted.id], Requeue(by="ann")))
        assert changed.done == (not commit)
        assert changed.holder == (rival.new.id if commit else None)
    await one_live_job_per_key(real_store)


@pytest.mark.parametrize("commit", [False, True])
async def test_a_requeue_that_waits_for_its_key_holds_nothing(real_store: Harness, commit: bool) -> None:
    if not isinstance(real_store, PostgresHarness):
        pytest.skip("it has one write lock for all")
    [inserted] = await real_store.store.insert([real_job(key="k")])
    await real_store.store.move([inserted.id], Cancel(by="ann"))
    rival = Rival(real_store, "k")
    async with (
        connected(real_store.url) as connection,
        connected(real_store.url, server_settings={"lock_timeout": "900ms"}) as onlooker,
    ):
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(rival.statement("now()"))
        requeue = asyncio.ensure_future(real_store.store.move([inserted.id], Requeue(by="ann")))
        await until(rival.holds_someone_up)
        await onlooker.execute("SELECT FROM _jobs WHERE id = $1 FOR UPDATE", inserted.id)
        assert not requeue.done()
        await (transaction.commit() if commit else transaction.rollback())
        [changed] = await requeue
    assert (changed.done, changed.holder) == (not commit, rival.new.id if commit else None)
    assert await deadlocks(real_store) == 0


async def test_a_cancel_and_a_delete_of_the_same_jobs(real_store: Harness) -> None:
    """One job is archived. The other is live and locked by a third transaction, so cancel and delete wait for it."""
    if not isinstance(real_store, PostgresHarness):
        pytest.skip("it has one write lock for all")
    archived, live = real_job("old"), real_job()
    canceller, deleter = await stores(real_store, 2)
    await real_store.insert(archived, live)
    [job] = (await real_store.claim("w", "old")).jobs
    await real_store.store.settle([settlement(job, Completed())])
    both = [archived.id, live.id]

    async def waiting(count: int) -> bool:
        return len(await real_store.fetch("SELECT 1 FROM pg_locks WHERE NOT granted")) >= count

    async with connected(real_store.url) as connection, connection.transaction():
        await connection.execute("SELECT FROM _jobs WHERE id = $1 FOR UPDATE", live.id)
        cancel = asyncio.ensure_future(canceller.move(both, Cancel(by="ann")))
        await until(partial(waiting, 1))
        delete = asyncio.ensure_future(deleter.move(both, Delete(by="bob")))
        await until(partial(waiting, 2))
    assert [change.done for change in await cancel] == [False, True]
    assert [change.done for change in await delete] == [True, True]
    assert await deadlocks(real_store) == 0
