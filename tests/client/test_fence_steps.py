"""ctx.fence(conn, complete=value) in a step: on every kind of connection, the step's result commits with the caller's
own transaction, or not at all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from rowlock import Context, Jobs, StepState
from rowlock.core.moves import Rescue
from rowlock.errors import LeaseLost, WrongContext
from rowlock.stores import reading
from rowlock.stores.callers import AsyncCaller
from tests.client.conn_kinds import Kind
from tests.runtime.children import Wire
from tests.stores.harness import claim_by, job

pytestmark = pytest.mark.sampled(4)  # kinds of connections


@asynccontextmanager
async def running(kind: Kind) -> AsyncIterator[Context]:
    """Yield the Context of a run that worker w1 has claimed."""
    place = kind.place
    await place.store.insert([job()])
    [run] = (await place.store.claim(claim_by("w1"))).jobs
    async with Jobs(place.address if place.dialect == "postgres" else f"sqlite:///{place.address}") as jobs:
        yield Context(run, Wire(), jobs.context_host())


async def fence(ctx: Context, kind: Kind, value: int) -> None:
    caller = kind.caller()
    if isinstance(caller, AsyncCaller):
        await ctx.fence(kind.conn, complete=value)
        return
    # This is what ctx.sync.fence does. ctx.sync.fence refuses calls where an event loop runs, as here. Another thread
    # is no way out: it can't use a connection of SQLite.
    guard = ctx.guard_for(value)
    caller.fence(guard)
    ctx.note_fence(guard)


async def test_the_result_commits_with_the_callers_writes(kind: Kind) -> None:
    async def book(ctx: Context) -> int:
        async with kind.transaction():
            await kind.order(1)
            await fence(ctx, kind, 5)
            assert await reading.steps(kind.place.store, ctx.job.id) == []  # other connections don't see the step yet
        return 0  # ignored: the fence has set the result

    async with running(kind) as ctx:
        assert await ctx.step(book) == 5
        assert (await kind.place.committed())[0] == [1]
        [stored] = await reading.steps(kind.place.store, ctx.job.id)
        assert (stored.name, stored.state, stored.result) == ("book", StepState.SUCCEEDED, 5)


async def test_a_rollback_takes_the_result_back(kind: Kind) -> None:
    async def book(ctx: Context) -> int:
        with suppress(ZeroDivisionError):
            async with kind.transaction():
                await kind.order(1)
                await fence(ctx, kind, 5)
                raise ZeroDivisionError
        return 0

    async with running(kind) as ctx:
        with pytest.raises(WrongContext, match=r"the step book has called .* but its transaction is not committed"):
            await ctx.step(book)
        assert (await kind.place.committed())[0] == []
        assert await reading.steps(kind.place.store, ctx.job.id) == []


async def test_a_step_is_completed_once(kind: Kind) -> None:
    if not isinstance(kind.caller(), AsyncCaller):
        pytest.skip("ctx.sync.fence is tested with handlers")

    async def book(ctx: Context) -> int:
        async with kind.transaction():
            await kind.order(1)
            await ctx.fence(kind.conn, complete=5)
        await again(ctx)
        return 0

    async def again(ctx: Context) -> None:
        async with kind.transaction():
            await kind.order(2)
            await ctx.fence(kind.conn, complete=6)

    async with running(kind) as ctx:
        with pytest.raises(WrongContext, match="the step book has been completed before"):
            await ctx.step(book)
        assert (await kind.place.committed())[0] == [1]
        assert [one.result for one in await reading.steps(kind.place.store, ctx.job.id)] == [5]


async def test_a_zombie_commits_nothing(kind: Kind) -> None:
    async def book(ctx: Context) -> int:
        async with kind.transaction():
            await kind.order(1)
            await fence(ctx, kind, 5)
        return 0

    async with running(kind) as ctx:
        await kind.place.store.move_due(Rescue(by="m1", backoff=[0.0], workers=["w1"]))
        with pytest.raises(LeaseLost):
            await ctx.step(book)
        assert (await kind.place.committed())[0] == []
        assert await reading.steps(kind.place.store, ctx.job.id) == []


async def test_the_callers_transaction_may_be_tried_again(kind: Kind) -> None:
    async def book(ctx: Context) -> int:
        for n in range(2):
            with suppress(ZeroDivisionError):
                async with kind.transaction():
                    await kind.order(n)
                    await fence(ctx, kind, n)
                    if n == 0:
                        raise ZeroDivisionError
        return -1

    async with running(kind) as ctx:
        first, second = await asyncio.gather(ctx.step(book), ctx.step(lambda: 7))
        assert (first, second) == (1, 7)
        assert (await kind.place.committed())[0] == [1]
