"""Group commit: concurrent callers share a commit, and no caller fails for the mistake of another."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import asyncpg
import pytest
from msgspec import structs

from rowlock import errors
from rowlock.core.job import NewJob
from rowlock.core.lifecycle import Completed, Settlement, decide
from rowlock.jobs import Jobs
from rowlock.stores.base import Claim, Enqueued
from rowlock.stores.group import Group
from tests.databases import Databases
from tests.proxy import Proxy
from tests.stores.harness import job, lanes


@pytest.fixture
async def jobs(url: str) -> AsyncIterator[Jobs]:
    async with Jobs(url) as jobs:
        yield jobs


async def test_concurrent_enqueues_share_commits(jobs: Jobs) -> None:
    enqueued = await asyncio.gather(*(jobs.enqueue("mail", {"n": n}) for n in range(500)))
    assert len({one.id for one in enqueued}) == 500
    # Jobs of one commit have the same time. The first job was written at once, and the others gathered meanwhile.
    assert len({one.created for one in enqueued}) < 50
    assert (await jobs.stats("mail")).pending == 500


async def test_keyed_enqueues_share_commits_in_sqlite(tmp_path: Path) -> None:
    async with Jobs(f"sqlite:///{tmp_path}/jobs.db") as jobs:
        enqueued = await asyncio.gather(*(jobs.enqueue("mail", key=str(n // 2)) for n in range(200)))
        assert [one.existing for one in enqueued] == [False, True] * 100
        assert len({one.created for one in enqueued}) < 50


async def test_a_value_that_sqlite_cannot_store_fails_its_own_caller_only(tmp_path: Path) -> None:
    good = [job() for _ in range(20)]
    bad = structs.replace(job(), priority=2**70)  # passes the checks, but SQLite can't store the integer
    async with Jobs(f"sqlite:///{tmp_path}/jobs.db") as jobs:
        group = Group((await jobs._store()).insert)
        wanted = [*good[:10], bad, *good[10:]]
        answers = await asyncio.gather(*(group.call(one) for one in wanted), return_exceptions=True)
        assert [isinstance(answer, OverflowError) for answer in answers] == [one is bad for one in wanted]
        assert {one.id for one in (await jobs.list(limit=100)).items} == {one.id for one in good}


class Store:
    """A store that records the size of each insert, and refuses inserts with the guilty topic."""

    def __init__(self, jobs: Jobs, guilty: str = "") -> None:
        self.jobs = jobs
        self.guilty = guilty
        self.calls: list[int] = []
        self.go = asyncio.Event()
        self.go.set()
        self.asked = asyncio.Event()

    async def insert(self, new: Sequence[NewJob]) -> list[Enqueued]:
        self.calls.append(len(new))
        self.asked.set()
        await self.go.wait()
        if any(one.topic == self.guilty for one in new):
            raise errors.StoreError("a constraint says no")
        return await (await self.jobs._store()).insert(new)


async def test_only_the_guilty_caller_sees_its_error(jobs: Jobs) -> None:
    store = Store(jobs, guilty="bad")
    group = Group(store.insert)
    topics = ["good", "bad", "good"]
    answers = await asyncio.gather(*(group.call(job(topic)) for topic in topics), return_exceptions=True)
    assert [isinstance(answer, errors.StoreError) for answer in answers] == [False, True, False]
    assert store.calls == [3, 1, 1, 1]
    assert (await jobs.list()).total == 2


async def test_a_constraint_of_the_database_fails_its_own_caller_only(jobs: Jobs) -> None:
    """As in the test above, but the database itself refuses the job."""
    store = await jobs._store()
    forbid = "CREATE TRIGGER forbid BEFORE INSERT ON _jobs "
    if jobs.settings.url.startswith("sqlite"):
        sql = f"{forbid} WHEN NEW.topic = 'bad' BEGIN SELECT RAISE(ABORT, 'forbidden'); END"
        opened = store._opened  # type: ignore[attr-defined]
        await opened.writer.call(lambda database: database.conn.execute(sql))
    else:
        connection = await asyncpg.connect(jobs.settings.url)
        await connection.execute(
            "CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'forbidden'; END $$"
        )
        await connection.execute(f"{forbid} FOR EACH ROW WHEN (NEW.topic = 'bad') EXECUTE FUNCTION forbid()")
        await connection.close()
    topics = ["good", "bad", "good", "good"]
    answers = await asyncio.gather(*(jobs.enqueue(topic) for topic in topics), return_exceptions=True)
    assert [isinstance(answer, errors.StoreError) for answer in answers] == [False, True, False, False]
    assert (await jobs.list()).total == 3


async def test_a_cancelled_caller_takes_nobody_along(jobs: Jobs) -> None:
    store = Store(jobs)
    store.go.clear()
    group = Group(store.insert)
    callers = [asyncio.ensure_future(group.call(job())) for _ in range(6)]
    await store.asked.wait()
    late = [asyncio.ensure_future(group.call(job())) for _ in range(4)]
    await asyncio.sleep(0)
    callers[0].cancel()  # its job is being written
    late[0].cancel()  # its job is still waiting
    store.go.set()
    answers = await asyncio.gather(*callers[1:], *late[1:])
    assert len({answer.id for answer in answers}) == 8
    assert not any(answer.existing for answer in answers)
    assert store.calls == [6, 3]
    assert (await jobs.list()).total == 9


async def test_groups_are_bounded(jobs: Jobs) -> None:
    store = Store(jobs)
    group = Group(store.insert, largest=10)
    await asyncio.gather(*(group.call(job()) for _ in range(21)))
    assert max(store.calls) == 10
    assert sum(store.calls) == 21


# ── Replies that are lost ──


@pytest.mark.parametrize("keyed", [False, True])
async def test_an_enqueue_whose_commit_reply_is_lost_makes_one_job(databases: Databases, keyed: bool) -> None:
    async with databases.fresh() as url, Proxy.before(url) as proxy, Jobs(proxy.through(url)) as jobs:
        await jobs.enqueue("warm-up")
        await (await jobs._stores.handle()).bell.stop()
        proxy.swallow = 1
        enqueued = await jobs.enqueue("mail", key="k") if keyed else await jobs.enqueue("mail")
        assert proxy.swallowed == 1
        assert not enqueued.existing
        assert (await jobs.stats("mail")).pending == 1


async def test_an_insert_repeated_after_its_job_was_archived_makes_no_second_one(jobs: Jobs) -> None:
    store = await jobs._store()
    first = job()
    await store.insert([first])  # the reply is lost …
    [run] = (await store.claim(Claim("w1", lanes("mail"), 1, 30.0))).jobs
    await store.settle([Settlement(run.id, run.version, decide(run, Completed(), await store.now()))])
    [answer] = await store.insert([first], repeat=True)  # … and meanwhile it was completed
    assert answer.existing
    assert (await jobs.list()).total == 1
