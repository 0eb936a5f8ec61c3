"""What both checkers must accept."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import assert_type

from rowlock import INJECTED, Bulk, Context, Enqueued, Failures, Filter, Job, Jobs, Page, WorkerInfo

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


async def main() -> None:
    assert_type(await with_context.enqueue(1), Enqueued)
    assert_type(await with_context_and_options.enqueue(n=1), Enqueued)
    assert_type(await with_job.enqueue(), Enqueued)
    assert_type(await with_context_last.enqueue(3), Enqueued)
    await jobs.start(concurrency=3)
    await jobs.stop()
    assert_type(await send_mail.enqueue("a@b.c"), Enqueued)
    assert_type(await send_mail.enqueue(to="a@b.c", subject="hello"), Enqueued)
    assert_type(await send_mail.using(key="k", delay=5, run_at=datetime.now(UTC)).enqueue("x"), Enqueued)
    assert_type(double(4), int)
    assert_type(double.sync.enqueue(n=4), Enqueued)
    assert_type(jobs.sync.enqueue("t", {"a": 1}, priority="explicit", tags=["x"]), Enqueued)
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
