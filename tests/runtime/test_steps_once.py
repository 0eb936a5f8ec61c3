"""Exactly once in the database: a step's result commits with the writes of the step, and only while the run holds its
lease."""

import asyncio
import sqlite3
import threading
import time
from contextlib import closing
from typing import Any

import psycopg
import pytest

from rowlock import Context, Jobs, LeaseLost, Status, StepState, SyncContext, step
from rowlock.errors import OutcomeUnknown, StoreUnavailable, WrongContext
from rowlock.stores.base import Store
from rowlock.stores.queries import Filter
from tests.runtime.running import started, steal
from tests.runtime.test_context import Orders, add, add_sync
from tests.runtime.test_context import orders as orders
from tests.waiting import ended, until

# ── ctx.transaction() and ctx.complete() ──


@pytest.mark.parametrize("how", ["bound", "captured", "thread", "sync"])
async def test_the_result_commits_with_the_writes(jobs: Jobs, orders: Orders, how: str) -> None:
    tries: list[str] = []

    async def bound(ctx: Context, n: int) -> int:
        tries.append("it")
        async with ctx.transaction() as conn:
            await add(conn, n)
            ctx.complete(n + 1)
        return -1  # ignored, because ctx.complete() has set the result

    def in_thread(ctx: SyncContext, n: int) -> int:
        tries.append("it")
        with ctx.transaction() as conn:
            add_sync(conn, n)
            ctx.complete(n + 1)
        return -1

    if how == "sync":

        @jobs.task("work", retry=[0])
        def handle(ctx: SyncContext) -> int:
            found = ctx.step(in_thread, 1)
            if ctx.job.version == 1:
                raise ValueError
            return found
    else:

        @jobs.task("work", retry=[0])
        async def handle_async(ctx: Context) -> int:
            async def captured(n: int) -> int:
                return await bound(ctx, n)

            if how == "thread":
                found = await ctx.step(in_thread, 1)
            else:
                found = await (ctx.step(bound, 1) if how == "bound" else ctx.step(captured, 1))
            if ctx.job.version == 1:
                raise ValueError
            return found

    await jobs.start()
    job = await ended(jobs, (await jobs.enqueue("work")).id)
    assert (job.status, job.result, job.version, tries) == (Status.COMPLETED, 2, 2, ["it"]), job.last_error
    assert await orders.all() == [1]


async def test_an_error_takes_writes_and_result_back(jobs: Jobs, orders: Orders) -> None:
    async def book(ctx: Context) -> int:
        async with ctx.transaction() as conn:
            await add(conn, ctx.job.version)
            ctx.complete(1)
            if ctx.job.version == 1:
                raise ValueError("on second thoughts")
        return 0

    @jobs.task(retry=[0])
    async def work(ctx: Context) -> int:
        return await ctx.step(book)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.result, await orders.all()) == (1, [2])


async def test_an_error_after_the_commit_does_not_undo_it(jobs: Jobs, orders: Orders) -> None:
    @step(retry=[0], max_retries=5)
    async def book(ctx: Context) -> int:
        async with ctx.transaction() as conn:
            await add(conn, 1)
            ctx.complete(7)
        raise ValueError("too late")

    @jobs.task(retry=[0], max_retries=1)
    async def work(ctx: Context) -> int:
        return await ctx.step(book)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.result, job.retries, await orders.all()) == (Status.COMPLETED, 7, 1, [1])


async def test_a_step_is_not_late_once_it_is_committed(jobs: Jobs, orders: Orders) -> None:
    @step(timeout=0.5)
    def book(ctx: SyncContext) -> int:
        with ctx.transaction() as conn:
            add_sync(conn, 1)
            ctx.complete(7)
        while not ctx.cancelled:
            time.sleep(0.01)
        return 0

    @jobs.task(max_retries=0)
    async def work(ctx: Context) -> int:
        return await ctx.step(book)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.result, await orders.all()) == (Status.COMPLETED, 7, [1]), job.last_error


async def test_a_job_may_be_completed_after_its_steps(jobs: Jobs, orders: Orders) -> None:
    async def one() -> int:
        return 1

    @jobs.task
    async def work(ctx: Context) -> int:
        n = await ctx.step(one)
        async with ctx.transaction() as conn:
            await add(conn, n)
            ctx.complete(n)
        return 0

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.status, job.result, await orders.all()) == (Status.COMPLETED, 1, [1])


# ── A run that has lost its lease ──


@pytest.mark.parametrize("how", ["returns", "completes"])
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_frozen_run_can_not_store_a_result(
    jobs: Jobs, orders: Orders, elsewhere: Store, kind: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has lost its lease while the step worked, and the worker has not told it yet."""
    opened, stolen = threading.Event(), threading.Event()
    outcome: list[BaseException] = []

    async def asynchronous(ctx: Context) -> str:
        opened.set()
        await until(stolen.is_set)
        if how == "completes":
            async with ctx.transaction() as conn:
                await add(conn, 1)
                ctx.complete("zombie")
        return "zombie"

    def synchronous(ctx: SyncContext) -> str:
        opened.set()
        stolen.wait(60)
        if how == "completes":
            with ctx.transaction() as conn:
                add_sync(conn, 1)
                ctx.complete("zombie")
        return "zombie"

    if kind == "async":

        @jobs.task("work")
        async def handle_async(ctx: Context) -> None:
            try:
                await ctx.step(asynchronous)
            except LeaseLost as error:
                outcome.append(error)
                raise
    else:

        @jobs.task("work")
        def handle(ctx: SyncContext) -> None:
            try:
                ctx.step(synchronous)
            except LeaseLost as error:
                outcome.append(error)
                raise

    worker = await started(jobs, maintenance=3600, lease=600)
    made = await jobs.enqueue("work")
    await until(opened.is_set)
    monkeypatch.setattr(worker._heartbeat_thread, "_tell", lambda *_: None)  # the worker does not tell the zombie run
    worker.slots.stopping = True  # so that the worker doesn't claim the job again
    await steal(elsewhere, made.id, worker)
    stolen.set()
    await until(lambda: outcome)
    assert await orders.all() == []
    assert StepState.SUCCEEDED not in [one.state for one in await jobs.steps(made.id)]


async def test_a_result_is_stored_although_the_database_was_away(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short outage must not discard the work of a long step."""
    tries: list[str] = []

    async def one() -> int:
        tries.append("step")
        return 1

    @jobs.task
    async def work(ctx: Context) -> int:
        return await ctx.step(one)

    store = (await jobs._stores.handle()).checkpoints
    whole = store._run

    async def cut(marks: Any) -> Any:
        tries.append("cut")
        if len(tries) == 2:
            raise StoreUnavailable("away")
        holds = await whole(marks)
        if len(tries) == 3:
            raise OutcomeUnknown("no reply")
        return holds

    monkeypatch.setattr(store, "_run", cut)
    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert (job.result, job.version, tries) == (1, 1, ["step", "cut", "cut", "cut"])


async def test_concurrent_steps_share_a_statement(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    async def one(n: int) -> int:
        return n

    @jobs.task
    async def work(ctx: Context) -> list[int]:
        return await asyncio.gather(*(ctx.step(one, n) for n in range(50)))

    group = (await jobs._stores.handle()).checkpoints
    whole, batches = group._run, []

    async def count(marks: Any) -> Any:
        batches.append(len(marks))
        return await whole(marks)

    monkeypatch.setattr(group, "_run", count)
    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert job.result == list(range(50))
    assert sum(batches) == 50
    assert len(batches) < 10


# ── ctx.fence(conn, complete=…) outside of steps ──


@pytest.mark.parametrize("ending", ["commit", "rollback", "raise"])
async def test_fence_completes_the_job_outside_of_steps(jobs: Jobs, orders: Orders, url: str, ending: str) -> None:
    @jobs.task(max_retries=0)
    def work(ctx: SyncContext) -> str:
        file = url.removeprefix("sqlite:///")
        conn: Any = psycopg.connect(url) if file == url else sqlite3.connect(file)
        conn.execute("INSERT INTO orders VALUES (1)")
        ctx.fence(conn, complete="by fence")
        if ending == "rollback":
            conn.rollback()
        else:
            conn.commit()
        conn.close()
        if ending == "raise":
            raise ValueError("too late")
        return "by return"

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    if ending == "rollback":
        assert (job.status, await orders.all()) == (Status.FAILED, [])
        assert "ctx.fence(conn, complete=…), but its transaction is not committed" in (job.last_error or "")
    else:
        assert (job.status, job.result, await orders.all()) == (Status.COMPLETED, "by fence", [1])


def connect(url: str) -> Any:
    file = url.removeprefix("sqlite:///")
    return psycopg.connect(url) if file == url else sqlite3.connect(file)


@pytest.mark.parametrize("cancelable", [True, False])
async def test_a_step_after_the_completion_by_fence_is_refused(
    jobs: Jobs, orders: Orders, url: str, cancelable: bool
) -> None:
    done: list[str] = []

    @step(cancelable=cancelable)
    def late() -> None:
        done.append("late")

    @jobs.task(max_retries=0)
    def work(ctx: SyncContext) -> None:
        with closing(connect(url)) as conn:
            conn.execute("INSERT INTO orders VALUES (1)")
            ctx.fence(conn, complete="done")
            conn.commit()
        with pytest.raises(WrongContext, match="which has completed the job"):
            ctx.step(late)
        done.append("refused")

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    await until(lambda: done)
    assert (job.result, done) == ("done", ["refused"])


async def test_a_sync_step_is_completed_once(jobs: Jobs, orders: Orders, url: str) -> None:
    def book(ctx: SyncContext) -> int:
        with closing(connect(url)) as conn:
            for n in (1, 2):
                conn.execute(f"INSERT INTO orders VALUES ({n})")
                ctx.fence(conn, complete=n)
                conn.commit()
        return 0

    @jobs.task(max_retries=0)
    def work(ctx: SyncContext) -> None:
        ctx.step(book)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert "the step book has been completed before" in (job.last_error or "")
    assert await orders.all() == [1]
    assert [one.result for one in await jobs.steps(job.id)] == [1]


# ── Enqueue in ctx.transaction() ──


async def test_an_async_step_enqueues_in_its_transaction(jobs: Jobs, orders: Orders) -> None:
    @jobs.task
    async def child(n: int) -> None: ...

    async def book(ctx: Context, n: int) -> None:
        async with ctx.transaction() as conn:
            await add(conn, n)
            await ctx.enqueue("child", {"n": n}, conn=conn)
            await child.using(conn=conn).enqueue(n)
            ctx.complete()
            if n == 2:
                raise ValueError("taken back")

    @jobs.task(max_retries=0)
    async def work(ctx: Context) -> None:
        await ctx.step(book, 1)
        await ctx.step(book, 2)

    await jobs.start()
    job = await ended(jobs, (await work.enqueue()).id)
    assert "taken back" in (job.last_error or "")
    assert await orders.all() == [1]
    assert [(one.topic, one.payload) for one in (await jobs.list(Filter(topics=["child"]))).items] == [
        ("child", {"n": 1})
    ] * 2


async def test_other_sync_connections_are_refused_in_async_code(jobs: Jobs, orders: Orders, url: str) -> None:
    @jobs.task
    async def enqueues(ctx: Context) -> None:
        with closing(connect(url)) as conn:
            await ctx.enqueue("child", conn=conn)

    @jobs.task
    async def fences(ctx: Context) -> None:
        with closing(connect(url)) as conn:
            await ctx.fence(conn)

    await jobs.start()
    for task in (enqueues, fences):
        job = await ended(jobs, (await task.using(max_retries=0).enqueue()).id)
        assert "would block the event loop" in (job.last_error or "")
        assert "async with ctx.transaction()`" in " ".join((job.last_error or "").split())
