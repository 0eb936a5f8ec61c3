"""ctx.gather and ctx.run: a handler starts jobs and waits for them. ctx.enqueue: a later run finds the jobs that an
earlier run has enqueued."""

from typing import Any

import pytest

from rowlock import ChildFailed, Context, Filter, Jobs, Status, SyncContext
from rowlock.errors import Final, InvalidInput
from rowlock.stores.flows import StoredEdges
from tests.waiting import ended, status_of, until


class World:
    """What the handlers do, and what they have done. `part` fails for the numbers in `bad`."""

    def __init__(self, jobs: Jobs) -> None:
        self.ran: list[int] = []
        self.bad: set[int] = set()
        self.seen: list[str] = []

        @jobs.task("part", max_retries=0)
        async def part(n: int) -> int:
            self.ran.append(n)
            if n in self.bad:
                raise ValueError(f"{n} is bad")
            return n * n

        self.part = part

    async def wait_for(self, jobs: Jobs, job_id: str) -> Any:
        return await status_of(jobs, job_id, Status.WAITING)


@pytest.fixture
def world(jobs: Jobs) -> World:
    return World(jobs)


async def test_results_come_in_order_and_no_job_is_started_twice(jobs: Jobs, world: World) -> None:
    @jobs.task("whole", max_retries=1, retry=[0.0])
    async def whole(ctx: Context, count: int) -> list[int]:
        squares = await ctx.gather([world.part.draft(n) for n in range(count)])
        more = await ctx.run(world.part.draft(100))
        if not world.seen:  # the retry finds all children again
            world.seen.append("failed once")
            raise ValueError("once")
        return [*squares, more, *await ctx.gather([])]

    @jobs.task("whole.sync")
    def whole_sync(ctx: SyncContext, count: int) -> list[int]:
        return [*ctx.gather([world.part.draft(n) for n in range(count)]), ctx.run(world.part.draft(100))]

    await jobs.start(concurrency=3)
    for task in (whole, whole_sync):
        world.ran.clear()
        made = await task.using(scope="user", scope_id="7").enqueue(5)
        assert await jobs.result(made, timeout=60) == [0, 1, 4, 9, 16, 10_000]
        assert sorted(world.ran) == [0, 1, 2, 3, 4, 100]
        flow = await jobs.flows.get(made.id)
        assert (flow.status, flow.jobs, flow.counts) == ("completed", 7, {"completed": 7})
        page = await jobs.list(Filter(flow_id=made.id, topics=["part"]))
        assert {(job.scope, job.scope_id) for job in page.items} == {("user", "7")}
    assert (await jobs.verify()).findings == []


async def test_one_that_fails_is_told_when_all_have_ended(jobs: Jobs, world: World) -> None:
    world.bad = {1}

    @jobs.task("strict", max_retries=0)
    async def strict(ctx: Context) -> int:
        return sum(await ctx.gather([world.part.draft(n) for n in range(3)]))

    @jobs.task("lenient")
    async def lenient(ctx: Context) -> list[str]:
        got = await ctx.gather([world.part.draft(n) for n in range(3)], if_failed="return")
        return [f"{one.children[0][1]}" if isinstance(one, ChildFailed) else str(one) for one in got]

    await jobs.start()
    assert await jobs.result(await lenient.enqueue(), timeout=60) == ["0", "failed", "4"]
    world.ran.clear()
    failed = await ended(jobs, (await strict.enqueue()).id)
    assert failed.status is Status.FAILED
    assert "ChildFailed" in (failed.last_error or "")
    assert "1 is bad" in (failed.last_error or "")
    assert sorted(world.ran) == [0, 1, 2]
    # A requeue of the job also requeues its children that did not complete, and no other jobs.
    world.bad.clear()
    world.ran.clear()
    await jobs.requeue(failed.id)
    assert (await ended(jobs, failed.id)).result == 5
    assert world.ran == [1]


async def test_what_a_run_has_heard_does_not_change_while_the_job_lives(jobs: Jobs, world: World) -> None:
    world.bad = {1}

    @jobs.task("order", max_retries=0)
    async def order(ctx: Context) -> str:
        [got] = await ctx.gather([world.part.draft(1)], if_failed="return")
        world.seen.append("failed" if isinstance(got, ChildFailed) else "done")
        await ctx.wait_for("go")
        return world.seen[-1]

    await jobs.start()
    made = await order.enqueue()
    await until(lambda: "failed" in world.seen)
    await world.wait_for(jobs, made.id)
    world.bad.clear()
    [child] = (await jobs.list(Filter(flow_id=made.id, topics=["part"]))).items
    await jobs.requeue(child.id)
    assert (await ended(jobs, child.id)).status is Status.COMPLETED
    await jobs.signal(made.id, "go")
    assert await jobs.result(made, timeout=60) == "failed"
    assert set(world.seen) == {"failed"}


@pytest.mark.parametrize("reset", [{"keep_steps": False}, {"payload": {"first": 10}}], ids=["steps", "payload"])
async def test_a_requeue_that_drops_what_was_done_starts_other_jobs(
    jobs: Jobs, world: World, reset: dict[str, Any]
) -> None:
    @jobs.task("again", max_retries=0)
    async def again(ctx: Context, first: int) -> int:
        found = sum(await ctx.gather([world.part.draft(first + n) for n in range(2)]))
        if not world.seen:
            world.seen.append("failed")
            raise Final("no")
        return found

    await jobs.start()
    failed = await ended(jobs, (await again.enqueue(1)).id)
    assert failed.status is Status.FAILED
    world.ran.clear()
    await jobs.requeue(failed.id, **reset)
    first = reset.get("payload", {}).get("first", 1)
    assert (await ended(jobs, failed.id)).result == first**2 + (first + 1) ** 2
    assert sorted(world.ran) == [first, first + 1]


async def test_a_cancel_reaches_what_was_started(jobs: Jobs, world: World) -> None:
    @jobs.task("stopped")
    async def stopped(ctx: Context) -> None:
        await ctx.gather([world.part.draft(n) for n in range(3)])

    await jobs.topics.pause("part")
    await jobs.start()
    made = await stopped.enqueue()
    await world.wait_for(jobs, made.id)
    why = await jobs.why(made.id)
    assert why.code == "children"
    assert "3 of the 3 jobs" in why.answer
    await jobs.wake(made.id)  # the job goes on waiting, because its children have not ended
    await until(lambda: _has_run_again(jobs, made.id))
    await world.wait_for(jobs, made.id)
    await jobs.cancel(made.id)
    assert (await ended(jobs, made.id)).status is Status.CANCELLED
    children = Filter(flow_id=made.id, topics=["part"], statuses=[Status.CANCELLED])
    await until(lambda: _total_is(jobs, children, 3))
    assert world.ran == []


async def _has_run_again(jobs: Jobs, job_id: str) -> bool:
    return (await jobs.get(job_id)).version > 1


async def _total_is(jobs: Jobs, filter: Filter, total: int) -> bool:
    return (await jobs.list(filter)).total == total


async def test_another_topic_is_refused(jobs: Jobs, world: World) -> None:
    @jobs.task("changed", max_retries=1, retry=[0.0])
    async def changed(ctx: Context) -> None:
        world.seen.append("one more")
        await ctx.run(("part" if len(world.seen) < 3 else "other", {"n": 1}))
        raise ValueError("again")

    await jobs.start()
    failed = await ended(jobs, (await changed.enqueue()).id)
    text = "has started a job of the topic part by this call, and now it asks for a job of the topic other"
    assert text in (failed.last_error or "")


async def test_another_number_of_jobs_is_refused(jobs: Jobs, world: World) -> None:
    @jobs.task("changed", max_retries=1, retry=[0.0])
    async def changed(ctx: Context) -> None:
        await ctx.gather([world.part.draft(n) for n in range(2 + len(world.seen))])
        world.seen.append("one more")
        raise ValueError("again")

    await jobs.start()
    failed = await ended(jobs, (await changed.enqueue()).id)
    assert "StepChanged" in (failed.last_error or "")
    assert "has started 2 jobs by this call, and now it asks for 3 jobs" in (failed.last_error or "")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (7, "jobs"),
        ("part", "jobs"),
        ([("part", {"n": "x"})], "jobs[0].payload.n"),
        ([{"payload": {}}], "jobs[0].topic"),
    ],
)
async def test_what_is_no_list_of_jobs_is_refused(jobs: Jobs, world: World, given: Any, field: str) -> None:
    @jobs.task("wrong", max_retries=0)
    async def wrong(ctx: Context) -> None:
        try:
            await ctx.gather(given)
        except InvalidInput as error:
            world.seen.append(error.field)
            raise

    await jobs.start()
    made = await wrong.enqueue()
    assert (await ended(jobs, made.id)).status is Status.FAILED
    assert world.seen == [field]
    assert await (await jobs._store()).read([made.id], StoredEdges) == {}


async def test_a_retry_enqueues_the_same_job_once(jobs: Jobs, world: World) -> None:
    @jobs.task("sender", max_retries=1, retry=[0.0])
    async def sender(ctx: Context) -> list[str]:
        made = [await ctx.enqueue("part", {"n": n}) for n in (1, 2, 2)]
        made.append(await ctx.enqueue("part", {"n": 3 + len(world.seen)}))  # this job has another payload in each run
        if not world.seen:
            world.seen.append("failed")
            raise ValueError("once")
        return [one.id for one in made]

    await jobs.topics.pause("part")
    await jobs.start()
    ids = await jobs.result(await sender.enqueue(), timeout=60)
    assert len(set(ids)) == 4
    page = await jobs.list(Filter(topics=["part"]))
    assert sorted(job.payload["n"] for job in page.items) == [1, 2, 2, 3, 4]
    assert set(ids) < {job.id for job in page.items}
