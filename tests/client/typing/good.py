"""Code that both checkers must accept."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from msgspec import Struct

from rowlock import (
    INJECTED,
    Bulk,
    Callback,
    ChildFailed,
    Context,
    Enqueued,
    EnqueuedFlow,
    Exponential,
    Failures,
    Filter,
    Flow,
    Job,
    Jobs,
    Node,
    Page,
    Signal,
    Step,
    StepFailed,
    StepState,
    StepStatus,
    SyncContext,
    Task,
    WorkerInfo,
    step,
)

jobs = Jobs("sqlite://")


@jobs.task(max_retries=5, timeout=60)
async def send_mail(to: str, subject: str = "hi") -> None: ...


@jobs.task
def double(n: int) -> int:
    return 2 * n


@jobs.task("explicit.topic")
def explicit() -> None: ...


@jobs.task
def with_context(ctx: Context, n: int) -> int:
    ctx.progress(50, stage="half")
    return n


@jobs.task(process=True, memory=512)
def with_context_and_options(ctx: Context, n: int) -> int:
    return n


@jobs.task(timeout=5)
async def with_job(job: Job, n: int = 1) -> str:
    return job.id


@jobs.task
async def with_context_last(n: int, ctx: Context = INJECTED) -> None:
    async with ctx.transaction():
        ctx.complete(n)


@jobs.task
def with_sync_context(ctx: SyncContext, n: int) -> list[int]:
    ctx.check()
    assert_type(ctx.enqueue("t"), Enqueued[Any])
    with ctx.transaction():
        ctx.complete([n])
    return [n]


@jobs.task(process=True)
def with_sync_context_and_options(ctx: SyncContext, n: int) -> list[int]:
    return [n]


@jobs.task
async def fetch(ctx: Context, url: str) -> dict[str, int]:
    return {url: 1}


async def results() -> None:
    assert_type(await jobs.result(await fetch.enqueue("x"), timeout=5), dict[str, int])
    assert_type(await jobs.result(await fetch.using(key="k").enqueue("x")), dict[str, int])
    assert_type(await jobs.result(await send_mail.enqueue("x")), None)
    assert_type(await jobs.result(await with_sync_context.enqueue(1)), list[int])
    assert_type(await jobs.result(await with_sync_context_and_options.enqueue(n=1)), list[int])
    assert_type(jobs.sync.result(double.sync.enqueue(1)), int)
    assert_type(jobs.sync.result(double.using(delay=1).sync.enqueue(1), timeout=1), int)
    assert_type(jobs.sync.result(fetch.sync.using(delay=1).enqueue("x")), dict[str, int])
    assert_type(await jobs.result("id"), Any)
    assert_type(await jobs.result(await jobs.enqueue("t")), Any)


async def calls(ctx: Context) -> None:
    assert_type(await send_mail("a@b.c", subject="x"), None)
    assert_type(await fetch(ctx, url="x"), dict[str, int])
    assert_type(with_context(ctx, 1), int)
    assert_type(with_sync_context(ctx.sync, 1), list[int])


def annotations(made: Enqueued, task: Task[[int], int]) -> Enqueued[object]:
    assert_type(made, Enqueued[Any])
    return task.sync.enqueue(1)


async def later(n: int) -> int:
    return n


registered = jobs.register("later", later, max_retries=1)
annotations(jobs.sync.enqueue("t"), double)


async def main() -> None:
    assert_type(await jobs.result(await registered.enqueue(1)), int)
    assert_type(await with_context.enqueue(1), Enqueued[int])
    assert_type(await with_context_and_options.enqueue(n=1), Enqueued[int])
    assert_type(await with_job.enqueue(), Enqueued[str])
    assert_type(await with_context_last.enqueue(3), Enqueued[None])
    await jobs.start(concurrency=3)
    await jobs.stop()
    assert_type(await send_mail.enqueue("a@b.c"), Enqueued[None])
    assert_type(await send_mail.enqueue(to="a@b.c", subject="hello"), Enqueued[None])
    assert_type(await send_mail.using(key="k", delay=5, run_at=datetime.now(UTC)).enqueue("x"), Enqueued[None])
    assert_type(double(4), int)
    assert_type(double.sync.enqueue(n=4), Enqueued[int])
    assert_type(jobs.sync.enqueue("t", {"a": 1}, priority="explicit", tags=["x"]), Enqueued[Any])
    assert_type(await jobs.get("id"), Job)
    assert_type(jobs.sync.get("id"), Job)
    assert_type(jobs.sync.list(limit=5), Page)
    await jobs.enqueue_many([double.draft(1), ("t", {}), {"topic": "t"}])
    explicit()
    assert_type(await jobs.topics.resume("t"), bool)
    assert_type(jobs.sync.topics.resume("t"), bool)
    assert_type(await jobs.bulk.prepare("cancel", Filter(topics=["t"])), Bulk)
    assert_type(jobs.sync.bulk.get("id"), Bulk)
    assert_type(jobs.sync.failures.list(trend="day"), Failures)
    assert_type(jobs.sync.workers.list(), Sequence[WorkerInfo])


# ── Steps ──


@step
async def plain_step(n: int) -> str:
    return str(n)


@step(timeout=60, weight=5, retry=[30, 120], max_retries=2, was="older", title="A title", cancelable=False)
async def step_with_context(ctx: Context, n: int, *, loud: bool = False) -> list[int]:
    ctx.progress(50)
    return [n]


@step(retry=Exponential(), was=["a", "b"])
def sync_step(ctx: SyncContext, text: str) -> int:
    with ctx.transaction():
        ctx.complete(len(text))
    return len(text)


async def plain_function(n: int, text: str = "") -> tuple[int, str]:
    return n, text


async def function_with_context(ctx: Context, n: int) -> float:
    return n / 2


def sync_function(text: str) -> bytes:
    return text.encode()


def sync_function_with_context(ctx: SyncContext, text: str) -> int:
    return len(text)


class Shop:
    @step
    async def sell(self, what: str) -> int:
        return len(what)

    @step(retry=[30])
    def book(self, ctx: SyncContext, what: str) -> bytes:
        return what.encode()


@jobs.task(version=1, steps=[plain_step, step_with_context, sync_step, plain_function])
async def pipeline(ctx: Context, n: int) -> int:
    assert_type(await ctx.step(plain_step, n), str)
    assert_type(await ctx.step(plain_step, n=n), str)
    assert_type(await ctx.step(step_with_context, n, loud=True), list[int])
    assert_type(await ctx.step(step_with_context.using(name="other"), n), list[int])
    assert_type(await ctx.step(sync_step, "x"), int)
    assert_type(await ctx.step(Shop().sell, "tea"), int)
    assert_type(await ctx.step(Shop().book, "tea"), bytes)
    assert_type(await ctx.step(Shop.sell, Shop(), "tea"), int)
    assert_type(await ctx.step(plain_function, n, text="x"), tuple[int, str])
    assert_type(await ctx.step(function_with_context, n), float)
    assert_type(await ctx.step(sync_function, "x"), bytes)
    assert_type(await ctx.step(sync_function_with_context, "x"), int)
    assert_type(await asyncio.gather(ctx.step(plain_step, 1), ctx.step(sync_step, "x")), tuple[str, int])
    assert_type(await plain_step(1), str)
    assert_type(await step_with_context(ctx, 1), list[int])
    assert_type(sync_step(ctx.sync, "x"), int)
    await ctx.fence(object(), complete=5)
    try:
        await asyncio.create_task(ctx.step(plain_step, n))
    except StepFailed as failed:
        assert_type(failed.step, str)
        assert_type(failed.error, str)
    return n


@jobs.task
def sync_pipeline(ctx: SyncContext, n: int) -> int:
    assert_type(ctx.step(sync_step, "x"), int)
    assert_type(ctx.step(sync_function, "x"), bytes)
    assert_type(ctx.step(sync_function_with_context, "x"), int)
    assert_type(ctx.step(lambda: n), int)
    ctx.fence(object(), complete=5)
    return n


async def steps_of() -> list[StepStatus]:
    await jobs.requeue("id", from_step="charge#2")
    jobs.sync.requeue("id", keep_steps=False)
    assert_type((await jobs.steps("id"))[0].state, StepState)
    return jobs.sync.steps("id")


typed: Step[[int], str] = plain_step


class Decision(Struct):
    ok: bool


decision = Signal("decision", Decision)
anything = Signal("anything")


@jobs.task
async def approval(ctx: Context) -> bool:
    assert_type(decision, Signal[Decision])
    assert_type(await ctx.sleep(5), None)
    assert_type(await ctx.sleep(timedelta(days=1)), None)
    assert_type(await ctx.sleep(until=datetime.now(UTC)), None)
    assert_type(await ctx.wait_for(decision), Decision)
    assert_type(await ctx.wait_for(decision, timeout=timedelta(days=1)), Decision)
    assert_type(await ctx.wait_for(decision, timeout=60, default=None), Decision | None)
    assert_type(await ctx.wait_for(decision, timeout=60, default="late"), Decision | str)
    assert_type(await ctx.wait_for(decision, default=Decision(True)), Decision)
    assert_type(await ctx.wait_for(Signal("n", int)), int)
    assert_type(await ctx.wait_for(anything), Any)
    assert_type(await ctx.wait_for("anything"), Any)
    assert_type(await ctx.wait_for("anything", timeout=1, default=None), Any)
    one, other = await asyncio.gather(ctx.wait_for(decision), ctx.wait_for(Signal("n", int), timeout=1, default=None))
    assert_type(one, Decision)
    assert_type(other, int | None)
    link = await ctx.callback(decision, timeout=60)
    assert_type(link, Callback)
    assert_type((await ctx.callback("anything")).url, str)
    return one.ok


def sync_approval(ctx: SyncContext) -> bool:
    ctx.sleep(5)
    assert_type(ctx.wait_for(decision), Decision)
    assert_type(ctx.wait_for(decision, timeout=60, default=None), Decision | None)
    assert_type(ctx.wait_for("anything"), Any)
    assert_type(ctx.callback(decision).url, str)
    return ctx.wait_for(decision, timeout=timedelta(1)).ok


async def a_flow() -> None:
    flow = jobs.flow("order")
    assert_type(flow, Flow)
    doubled = flow.add(double.draft(1))
    assert_type(doubled, Node[int])
    assert_type(doubled.result, int)
    later_one = flow.add(double.using(delay=60).draft(doubled.result), after=[doubled, "explicit"], if_failed="hold")
    assert_type(later_one, Node[int])
    assert_type(flow.add(("explicit.topic", {"n": doubled.result}), when="double.result > 5"), Node[Any])
    assert_type(flow.add({"topic": "explicit.topic"}), Node[Any])
    assert_type(flow.job("01a1eee9-dc82-7000-a11b-4d35fcdc028c"), Node[Any])
    flow.wait(doubled, "explicit", if_failed="run")
    assert_type(await flow.enqueue(), EnqueuedFlow)
    assert_type(jobs.sync.flow("order").enqueue(), EnqueuedFlow)
    assert_type(await jobs.chain("01a1eee9-dc82-7000-a11b-4d35fcdc028c", double.draft(1), ("a", {})), EnqueuedFlow)


async def children(ctx: Context) -> None:
    assert_type(await ctx.gather([double.draft(n) for n in range(3)]), list[int])
    assert_type(await ctx.gather([double.draft(1)], if_failed="return"), list[int | ChildFailed])
    assert_type(await ctx.gather([("a", {})]), list[Any])
    assert_type(await ctx.run(double.draft(1)), int)
    assert_type(await ctx.run(("a", {})), Any)
    one, other = await asyncio.gather(ctx.gather([double.draft(1)]), ctx.run(with_job.draft(1)))
    assert_type(one, list[int])
    assert_type(other, str)


def sync_children(ctx: SyncContext) -> None:
    assert_type(ctx.gather([double.draft(1)]), list[int])
    assert_type(ctx.gather([double.draft(1)], if_failed="return"), list[int | ChildFailed])
    assert_type(ctx.run(double.draft(1)), int)
