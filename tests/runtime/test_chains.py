"""Handlers that never wait run one after the other in one asyncio task. No handler may notice the others."""

import asyncio
import time
from contextvars import ContextVar
from typing import NoReturn

import pytest

from rowlock.core.job import Job, Status
from rowlock.errors import Final
from rowlock.jobs import Jobs
from tests.waiting import ended, until

seen_by: ContextVar[str] = ContextVar("seen_by", default="nobody")


async def start(jobs: Jobs, topic: str, count: int, **payload: object) -> list[str]:
    """Enqueue all jobs, then start a worker. Return the ids of the jobs."""
    made = await jobs.enqueue_many([(topic, payload)] * count)
    await jobs.start(concurrency=count)
    return [answer.id for answer in made]


@pytest.mark.parametrize("waits", [False, True])
async def test_no_run_sees_the_variables_of_another(jobs: Jobs, waits: bool) -> None:
    @jobs.task
    async def look(job: Job) -> str:
        before = seen_by.get()
        seen_by.set(job.id)
        if waits:
            await asyncio.sleep(0)
        return before

    for job_id in await start(jobs, "look", 20):
        assert (await ended(jobs, job_id)).result == "nobody"


async def test_handlers_that_never_wait_share_a_task_until_one_waits(jobs: Jobs) -> None:
    tasks: list[asyncio.Task[None] | None] = []
    gate = asyncio.Event()

    @jobs.task
    async def work(n: int) -> None:
        tasks.append(asyncio.current_task())
        if n == 5:
            await gate.wait()

    made = await jobs.enqueue_many([("work", {"n": n}) for n in range(10)])
    await jobs.start(concurrency=10)
    for n, answer in enumerate(made):
        if n != 5:
            assert (await ended(jobs, answer.id)).status is Status.COMPLETED
    assert len(set(tasks[:6])) == 1
    assert tasks[5] not in tasks[6:]
    gate.set()
    assert (await ended(jobs, made[5].id)).status is Status.COMPLETED


async def test_handlers_that_wait_run_side_by_side(jobs: Jobs) -> None:
    together = asyncio.Barrier(10)

    @jobs.task
    async def meet() -> None:
        await together.wait()

    for job_id in await start(jobs, "meet", 10):
        assert (await ended(jobs, job_id)).status is Status.COMPLETED


async def test_a_handler_that_cancels_its_own_task_leaves_the_next_alone(jobs: Jobs) -> None:
    @jobs.task
    async def quit_late() -> str:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        return "done"

    for job_id in await start(jobs, "quit_late", 10):
        job = await ended(jobs, job_id)
        assert (job.status, job.result, job.version) == (Status.COMPLETED, "done", 1)


async def test_a_handler_that_fails_leaves_the_next_alone(jobs: Jobs) -> None:
    @jobs.task
    async def fail(n: int) -> int:
        if n % 2:
            raise Final("odd")
        return n

    made = await jobs.enqueue_many([("fail", {"n": n}) for n in range(10)])
    await jobs.start(concurrency=10)
    for n, answer in enumerate(made):
        job = await ended(jobs, answer.id)
        assert job.status is (Status.FAILED if n % 2 else Status.COMPLETED)
        assert job.result == (None if n % 2 else n)


async def test_a_timeout_ends_a_handler_that_waits_and_not_those_behind_it(jobs: Jobs) -> None:
    swallowed: list[BaseException] = []

    @jobs.task
    async def work(n: int) -> int:
        if n == 0:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError as error:
                swallowed.append(error)
                await asyncio.sleep(0)  # the handler may await while it cleans up
                raise
        return n

    first = await jobs.enqueue("work", {"n": 0}, timeout=0.2, max_retries=0)
    rest = await jobs.enqueue_many([("work", {"n": n}) for n in range(1, 5)])
    await jobs.start(concurrency=5)
    for answer in rest:
        assert (await ended(jobs, answer.id)).status is Status.COMPLETED
    job = await ended(jobs, first.id)
    assert job.status is Status.FAILED
    assert "Timed out" in (job.last_error or "")
    assert len(swallowed) == 1


async def test_others_have_their_turn_while_a_chain_goes_on(jobs: Jobs) -> None:
    turns = 0
    done = 0

    @jobs.task
    async def quick() -> None:
        nonlocal done
        done += 1

    async def count() -> None:
        nonlocal turns
        while done < 2000:
            turns += 1
            await asyncio.sleep(0)

    await jobs.enqueue_many([("quick", {})] * 2000)
    counting = asyncio.create_task(count())
    await jobs.start(concurrency=2000)
    await until(lambda: done == 2000)
    await counting
    assert turns > 5


async def test_a_result_that_breaks_when_it_is_looked_at_fails_its_job_alone(jobs: Jobs) -> None:
    class Broken(dict[str, int]):
        def items(self) -> NoReturn:
            raise RuntimeError("changed during iteration")

    @jobs.task
    async def work(n: int) -> object:
        return Broken(n=1) if n == 0 else n

    made = await jobs.enqueue_many([("work", {"n": n}) for n in range(3)])
    await jobs.start(concurrency=3)
    found = [await ended(jobs, answer.id) for answer in made]
    assert [job.status for job in found] == [Status.FAILED, Status.COMPLETED, Status.COMPLETED]


async def test_handlers_that_block_the_event_loop_are_not_given_back_while_there_are_slots_for_them(jobs: Jobs) -> None:
    @jobs.task
    async def block() -> None:
        time.sleep(0.3)  # noqa: ASYNC251 - that is the point

    for job_id in await start(jobs, "block", 6):
        assert (await ended(jobs, job_id)).version == 1
