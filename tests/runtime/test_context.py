"""What a handler can do through its Context: mainly fenced transactions."""

import asyncio
import sqlite3
import threading
from collections.abc import Generator
from contextlib import ExitStack, closing
from typing import Any

import asyncpg
import pytest

from rowlock.context import Context, SyncContext
from rowlock.core.job import Job, Status
from rowlock.errors import InvalidInput, LeaseLost, StoreBusy, StoreUnavailable, WrongContext
from rowlock.jobs import Jobs
from rowlock.runtime.heartbeat import HeartbeatThread
from rowlock.stores.base import Store
from tests.proof.witness import TablesAt
from tests.runtime.running import ran, started, steal, working
from tests.waiting import ended, status_of, until


class Orders(TablesAt):
    """A table that belongs to the application."""

    def sqlite(self) -> closing[sqlite3.Connection]:
        return closing(sqlite3.connect(self._where))

    async def all(self) -> list[int]:
        return [n for (n,) in await self.fetch("SELECT n FROM orders ORDER BY n")]


@pytest.fixture
async def orders(url: str) -> Orders:
    orders = Orders(url)
    await orders.execute("CREATE TABLE orders (n INTEGER)")
    return orders


async def add(conn: Any, n: int) -> None:
    """Insert an order on the connection of an async handler, which is SQLite's or asyncpg's."""
    if isinstance(conn, sqlite3.Connection):
        conn.execute("INSERT INTO orders VALUES (?)", (n,))
    else:
        await conn.execute("INSERT INTO orders VALUES ($1)", n)


def add_sync(conn: Any, n: int) -> None:
    conn.execute(f"INSERT INTO orders VALUES ({n})")


# ── Transactions ──


async def test_a_transaction_commits_with_the_run(jobs: Jobs, orders: Orders) -> None:
    @jobs.task
    async def asynchronous(ctx: Context) -> None:
        async with ctx.transaction() as conn:
            await add(conn, 1)

    @jobs.task
    def synchronous(ctx: Context) -> None:
        with ctx.transaction() as conn:
            add_sync(conn, 2)

    for task in (asynchronous, synchronous):
        assert (await ran(jobs, task)).status is Status.COMPLETED
    assert await orders.all() == [1, 2]


async def test_an_error_in_it_takes_everything_back(jobs: Jobs, orders: Orders) -> None:
    @jobs.task(max_retries=0)
    async def broken(ctx: Context) -> None:
        async with ctx.transaction() as conn:
            await add(conn, 1)
            raise ValueError("on second thoughts")

    job = await ran(jobs, broken)
    assert "on second thoughts" in (job.last_error or "")
    assert await orders.all() == []


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_zombie_can_not_commit(
    jobs: Jobs, orders: Orders, elsewhere: Store, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has lost its lease while it worked, and the worker has not told it yet."""
    opened, stolen = threading.Event(), threading.Event()
    outcome: list[BaseException] = []

    async def asynchronous(ctx: Context) -> None:
        # On SQLite the transaction holds the write lock, so the theft comes first.
        opened.set()
        await until(stolen.is_set)
        try:
            async with ctx.transaction() as conn:
                await add(conn, 1)
        except LeaseLost as error:
            outcome.append(error)
            raise

    def synchronous(ctx: Context) -> None:
        opened.set()
        stolen.wait(60)
        try:
            with ctx.transaction() as conn:
                add_sync(conn, 1)
        except LeaseLost as error:
            outcome.append(error)
            raise

    jobs.register("work", asynchronous if kind == "async" else synchronous)
    await jobs.start(lease=600)
    worker = working(jobs)
    made = await jobs.enqueue("work")
    await until(opened.is_set)
    monkeypatch.setattr(worker._heartbeat_thread, "_tell", lambda *_: None)  # the worker does not tell the zombie run
    worker.slots.stopping = True  # so that the worker doesn't claim the job again
    await steal(elsewhere, made.id, worker)
    stolen.set()
    await until(lambda: bool(outcome))
    assert isinstance(outcome[0], LeaseLost)
    assert await orders.all() == []
    assert (await jobs.get(made.id)).locked_by == "someone else"


async def test_lines_of_a_handler_that_completes_its_job_in_a_transaction(
    jobs: Jobs, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat thread writes the lines when the job is archived already: here, when the worker stops."""
    monkeypatch.setattr(HeartbeatThread, "_note", lambda self, run: self._talking.add(run))

    @jobs.task
    async def once(ctx: Context) -> None:
        ctx.log("before")
        async with ctx.transaction() as conn:
            await add(conn, 1)
            ctx.log("inside")
            ctx.complete()

    @jobs.task
    def once_in_a_thread(ctx: SyncContext) -> None:
        ctx.log("before")
        with ctx.transaction() as conn:
            add_sync(conn, 2)
            ctx.log("inside")
            ctx.complete()

    await jobs.start()
    made = [await once.enqueue(), await once_in_a_thread.enqueue()]
    for one in made:
        assert (await ended(jobs, one.id)).status is Status.COMPLETED
    await jobs.stop()
    for one in made:
        assert [line.text for line in (await jobs.logs(one.id)).lines] == ["before", "inside"]


async def test_a_transaction_that_also_completes_the_job(jobs: Jobs, orders: Orders) -> None:
    @jobs.task
    async def once(ctx: Context) -> str:
        async with ctx.transaction() as conn:
            await add(conn, 1)
            ctx.complete({"order": 1})
        return "ignored"

    @jobs.task
    def once_in_a_thread(ctx: Context) -> str:
        with ctx.transaction() as conn:
            add_sync(conn, 2)
            ctx.complete({"order": 2})
        raise RuntimeError("too late to fail")

    for n, topic in enumerate((once.topic, once_in_a_thread.topic), 1):
        job = await ran(jobs, topic)
        assert (job.status, job.result, job.version) == (Status.COMPLETED, {"order": n}, 1)
        events = [event.event for event in await jobs.events(job.id)]
        assert events == ["enqueued", "claimed", "completed"]
    assert await orders.all() == [1, 2]


async def test_complete_belongs_into_a_transaction(jobs: Jobs, orders: Orders) -> None:
    @jobs.task(max_retries=0)
    async def outside(ctx: Context) -> None:
        ctx.complete(1)

    @jobs.task(max_retries=0)
    async def unfit(ctx: Context) -> None:
        async with ctx.transaction() as conn:
            await add(conn, 1)
            ctx.complete(object())

    job = await ran(jobs, outside)
    assert WrongContext.__name__ in (job.last_error or "")
    job = await ran(jobs, unfit)
    assert InvalidInput.__name__ in (job.last_error or "")
    assert await orders.all() == []


async def test_a_long_transaction_does_not_cost_the_worker_its_other_leases(jobs: Jobs, orders: Orders) -> None:
    gate = asyncio.Event()

    @jobs.task(max_retries=0)
    async def slow(ctx: Context) -> None:
        async with ctx.transaction() as conn:
            await add(conn, 1)
            await gate.wait()

    @jobs.task
    async def other(ctx: Context) -> str:
        await gate.wait()
        ctx.check()
        return "still mine"

    await started(jobs, lease=1.5, poll=0.2, maintenance=0.1)
    second = await other.enqueue()
    await status_of(jobs, second.id, Status.PROCESSING)
    first = await slow.enqueue()
    await asyncio.sleep(4.0)  # several leases long: the worker must renew both leases meanwhile
    gate.set()
    job = await ended(jobs, second.id)
    assert (job.result, job.version) == ("still mine", 1)
    job = await ended(jobs, first.id)
    if orders.kind == "sqlite":  # the transaction held the write lock there, and was rolled back in time
        assert StoreBusy.__name__ in (job.last_error or "")
        assert await orders.all() == []
    else:
        assert (job.status, await orders.all()) == (Status.COMPLETED, [1])


async def test_a_fence_on_a_connection_of_ones_own(jobs: Jobs, orders: Orders, url: str) -> None:
    @jobs.task
    async def on_asyncpg(ctx: Context) -> None:
        conn = await asyncpg.connect(url)
        async with conn.transaction():
            await add(conn, 1)
            await ctx.fence(conn)
        await conn.close()

    @jobs.task
    def on_sqlite3(ctx: Context) -> None:
        with orders.sqlite() as conn, conn:
            add_sync(conn, 1)
            ctx.sync.fence(conn)

    job = await ran(jobs, on_sqlite3 if orders.kind == "sqlite" else on_asyncpg)
    assert job.status is Status.COMPLETED, job.last_error
    assert await orders.all() == [1]


async def test_the_wrong_way_round_says_what_to_use(jobs: Jobs) -> None:
    @jobs.task(max_retries=0)
    async def blocking(ctx: Context) -> None:
        with ctx.transaction():
            pass

    @jobs.task(max_retries=0)
    async def blocking_fence(ctx: Context) -> None:
        ctx.sync.fence(None)

    job = await ran(jobs, blocking)
    assert "async with ctx.transaction()" in (job.last_error or "")
    job = await ran(jobs, blocking_fence)
    assert "await ctx.fence(conn)" in (job.last_error or "")


# ── Children ──


async def test_children_inherit_whose_they_are(jobs: Jobs) -> None:
    @jobs.task
    async def parent(ctx: Context) -> list[str]:
        first = await ctx.enqueue("child", {"n": 1})
        second = await ctx.enqueue("child", {"n": 2}, scope_id="another")
        return [first.id, second.id]

    @jobs.task
    def parent_in_a_thread(ctx: Context) -> list[str]:
        return [ctx.sync.enqueue("child", {"n": 3}).id]

    @jobs.task
    async def child(n: int) -> int:
        return n

    await jobs.start()
    found: list[Job] = []
    for task in (parent, parent_in_a_thread):
        made = await task.using(scope="account", scope_id="7", trace="00-a-b-01").enqueue()
        found += [await ended(jobs, job_id) for job_id in (await ended(jobs, made.id)).result]
    assert [(job.result, job.scope, job.scope_id, job.trace) for job in found] == [
        (1, "account", "7", "00-a-b-01"),
        (2, "account", "another", "00-a-b-01"),
        (3, "account", "7", "00-a-b-01"),
    ]


async def test_a_child_in_the_transaction_goes_with_it(jobs: Jobs, orders: Orders) -> None:
    @jobs.task(max_retries=0)
    def parent(ctx: Context, fail: bool) -> None:
        with ExitStack() as stack:
            if orders.kind == "sqlite":
                conn: Any = stack.enter_context(stack.enter_context(orders.sqlite()))
            else:
                conn = stack.enter_context(ctx.transaction())
            ctx.sync.enqueue("child", conn=conn)
            if fail:
                raise ValueError("no")

    await ran(jobs, parent, fail=True)
    assert (await jobs.stats("child")).pending == 0
    job = await ran(jobs, parent, fail=False)
    assert job.status is Status.COMPLETED, job.last_error
    assert (await jobs.stats("child")).pending == 1


async def test_progress_refuses_what_is_no_number(jobs: Jobs) -> None:
    @jobs.task(max_retries=0)
    async def wrong(ctx: Context) -> None:
        ctx.progress("half")  # type: ignore[arg-type]

    job = await ran(jobs, wrong)
    assert "percent: must be a number" in (job.last_error or "")


# ── SyncContext ──


async def test_a_sync_handler_has_everything_without_await(jobs: Jobs, orders: Orders) -> None:
    @jobs.task
    def everything(ctx: SyncContext, n: int) -> None:
        assert not ctx.cancelled
        ctx.check()
        ctx.heartbeat()
        ctx.progress(50, stage="half")
        ctx.enqueue("child", {"n": n})
        with ctx.transaction() as conn:
            add_sync(conn, n)
            ctx.complete({"order": n, "job": ctx.job.id})

    @jobs.task
    def last(n: int, ctx: SyncContext | None = None) -> str:
        assert ctx is not None
        ctx.log("a line")
        return repr(ctx)

    await jobs.start()
    made = await everything.using(scope="account").enqueue(3)
    job = await ended(jobs, made.id)
    assert (job.status, job.result, job.payload) == (Status.COMPLETED, {"order": 3, "job": job.id}, {"n": 3}), job
    assert await orders.all() == [3]
    [child] = [one for one in (await jobs.list()).items if one.topic == "child"]
    assert child.scope == "account"
    second = await last.enqueue(1)
    assert (await jobs.result(second, timeout=60)).startswith("<SyncContext of run 1 of last ")
    assert [line.text for line in (await jobs.logs(second.id)).lines] == ["a line"]


async def test_a_fence_of_a_sync_context(jobs: Jobs, orders: Orders) -> None:
    @jobs.task(max_retries=0)
    def fenced(ctx: SyncContext) -> None:
        if orders.kind == "sqlite":
            with orders.sqlite() as conn, conn:
                add_sync(conn, 1)
                ctx.fence(conn)
        else:
            with ctx.transaction() as conn:
                add_sync(conn, 1)
                ctx.fence(conn)

    await jobs.start()
    await jobs.result(await fenced.enqueue(), timeout=60)
    assert await orders.all() == [1]


def test_an_async_handler_can_not_have_a_sync_context() -> None:
    async def wrong(n: int, ctx: SyncContext) -> None: ...

    jobs = Jobs("sqlite://")
    with pytest.raises(InvalidInput, match=r"ctx: .*is async: annotate this parameter with Context, not SyncContext"):
        jobs.register("wrong", wrong)
    assert "wrong" not in jobs.tasks


async def test_an_outage_in_a_sync_context_is_noticed(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    noticed: list[bool] = []
    gone = StoreUnavailable("away")

    def refuse(*_: Any, **__: Any) -> None:
        raise gone

    @jobs.on_run
    def keep(ctx: Context) -> Generator[None, Any, None]:
        try:
            yield
        finally:
            noticed.append(ctx.is_cut_off(gone))

    @jobs.task
    def work(ctx: SyncContext) -> None:
        monkeypatch.setattr(jobs.sync, "enqueue", refuse)
        ctx.enqueue("child")

    await jobs.start()
    await work.enqueue()
    await until(lambda: noticed == [True])
