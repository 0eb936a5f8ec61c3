"""A caller that enqueues one job after the other writes each by itself, and does not hinder other callers."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from rowlock import errors
from rowlock.core.job import NewJob, Status
from rowlock.stores.base import Enqueued
from rowlock.stores.group import Group
from tests.stores.harness import job

AT = datetime(2026, 1, 1, tzinfo=UTC)


class Writes:
    """Record how many jobs each task wrote, and let writes wait for `go`."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, asyncio.Task[object] | None]] = []
        self.go = asyncio.Event()
        self.go.set()
        self.asked = asyncio.Event()
        self.failures = 0  # of the next writes

    async def insert(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        self.calls.append((len(jobs), asyncio.current_task()))
        self.asked.set()
        await self.go.wait()
        if self.failures:
            self.failures -= 1
            raise errors.StoreError("no")
        return [Enqueued(one.id, False, Status.PENDING, AT, AT) for one in jobs]

    @property
    def sizes(self) -> list[int]:
        return [size for size, _ in self.calls]


@pytest.fixture
async def writes() -> Writes:
    return Writes()


@pytest.fixture
async def group(writes: Writes) -> Group[NewJob, Enqueued]:
    """Return a group whose last job was alone in its write."""
    group = Group(writes.insert)
    await group.call(job())
    writes.calls.clear()
    writes.asked.clear()
    return group


async def held_up(group: Group[NewJob, Enqueued], writes: Writes) -> "asyncio.Future[Enqueued]":
    """Add a job to the group. Return its future when its write has begun and waits for `writes.go`."""
    writes.go.clear()
    first = asyncio.ensure_future(group.call(job()))
    await writes.asked.wait()
    return first


async def test_one_after_the_other_needs_no_task(group: Group[NewJob, Enqueued], writes: Writes) -> None:
    for _ in range(3):
        await group.call(job())
    assert writes.calls == [(1, asyncio.current_task())] * 3


async def test_who_comes_meanwhile_gathers(group: Group[NewJob, Enqueued], writes: Writes) -> None:
    first = await held_up(group, writes)
    others = [asyncio.ensure_future(group.call(job())) for _ in range(5)]
    await asyncio.sleep(0)
    assert writes.sizes == [1]
    writes.go.set()
    assert len({answer.id for answer in await asyncio.gather(first, *others)}) == 6
    assert writes.sizes == [1, 5]
    await asyncio.gather(*(group.call(job()) for _ in range(4)))  # later jobs share a write at once
    assert writes.sizes == [1, 5, 4]


@pytest.mark.parametrize("cancelled", [True, False])
async def test_the_end_of_the_first_harms_nobody_else(
    group: Group[NewJob, Enqueued], writes: Writes, cancelled: bool
) -> None:
    first = await held_up(group, writes)
    others = [asyncio.ensure_future(group.call(job())) for _ in range(2)]
    await asyncio.sleep(0)
    if cancelled:
        first.cancel()
    else:
        writes.failures = 1
    writes.go.set()
    with pytest.raises(asyncio.CancelledError if cancelled else errors.StoreError):
        await first
    assert len(await asyncio.gather(*others)) == 2
    assert writes.sizes == [1, 2]


async def test_after_a_cancelled_one_the_next_has_a_task_again(group: Group[NewJob, Enqueued], writes: Writes) -> None:
    first = await held_up(group, writes)
    first.cancel()
    writes.go.set()
    await asyncio.wait([first])
    await group.call(job())
    assert writes.calls[1][1] is not asyncio.current_task()


async def test_drain_waits_for_it_and_for_those_behind(group: Group[NewJob, Enqueued], writes: Writes) -> None:
    first = await held_up(group, writes)
    second = asyncio.ensure_future(group.call(job()))
    draining = asyncio.ensure_future(group.drain())
    await asyncio.sleep(0.01)
    assert not draining.done()
    writes.go.set()
    await draining
    assert writes.sizes == [1, 1]
    await asyncio.gather(first, second)
