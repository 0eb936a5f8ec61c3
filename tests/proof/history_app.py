"""An application with handlers of all kinds and endings. It records every run of them.

It runs in the test's own process, and in the processes of `rowlock worker`. There ROWLOCK_PROOF_RECORD names the folder
of the record.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rowlock import Job, Jobs, SyncContext, step
from rowlock.context import Context
from rowlock.core.ids import IdMaker
from rowlock.core.retry import Delays
from rowlock.errors import Cancelled, Final, Snooze
from tests.proof.history import History, Violation
from tests.proof.recorder import Recorder

WAIT = 20.0  # seconds; producers signal every waiting job much sooner
SIGNALLED = frozenset({"waiting", "threaded_waiting"})  # jobs of these topics wait for a signal

new_ids = IdMaker(time.time_ns, os.urandom)

BUSINESS = (
    "CREATE TABLE business (job_id text NOT NULL, version integer NOT NULL)",
    "CREATE TABLE paid (job_id text NOT NULL)",  # one row per job that has taken the step `pay`, however often it ran
)


def app(record: Recorder, url: str | None = None) -> Jobs:
    jobs = Jobs(url) if url else Jobs()
    record.watch(jobs)
    handlers = Handlers(record)
    soon = Delays((0.05, 0.1))
    for name in ("quick", "nap", "snoozing", "giving_up", "parent"):
        jobs.register(name, getattr(handlers, name), retry=soon)
    # The handler runs the application's own statement. On a connection that has gone silent, only the timeout ends it.
    jobs.register("owning", handlers.owning, retry=soon, timeout=30.0)
    for name in ("threaded", "watchful"):
        jobs.register(name, getattr(handlers, name), retry=soon)
    # The step `pay` runs the application's own statement, as `owning` does.
    jobs.register("stepping", handlers.stepping, retry=soon, timeout=30.0)
    jobs.register("threaded_steps", handlers.threaded_steps, retry=soon)
    jobs.register("napping", handlers.napping, retry=soon)
    jobs.register("waiting", handlers.waiting, retry=soon)
    jobs.register("threaded_waiting", handlers.threaded_waiting, retry=soon)
    jobs.register("flaky", handlers.flaky, retry=soon, max_retries=2)
    jobs.register("hopeless", handlers.hopeless, retry=soon)
    jobs.register("late", handlers.late, retry=soon, timeout=0.2, max_retries=1)
    jobs.register("deadly", handlers.deadly, retry=soon, max_retries=1)
    return jobs


class Handlers:
    """Handlers whose names say how they end their job."""

    def __init__(self, record: Recorder) -> None:
        self._record = record

    async def quick(self, job: Job) -> dict[str, Any]:
        return output(job)

    async def nap(self, job: Job, seconds: float) -> dict[str, Any]:
        await asyncio.sleep(seconds)
        return output(job)

    def threaded(self, job: Job, ctx: Context) -> dict[str, Any]:
        ctx.progress(50, stage="half", message="way")
        ctx.log("so far, so good")
        time.sleep(0.01)
        return output(job)

    async def flaky(self, job: Job, good_from: int) -> dict[str, Any]:
        if job.version < good_from:
            raise ConnectionError("the bank is away")
        return output(job)

    async def hopeless(self, job: Job) -> None:
        raise Final("the card was refused")

    async def snoozing(self, job: Job) -> dict[str, Any]:
        if job.version == 1:
            raise Snooze(0.05)
        return output(job)

    async def giving_up(self, job: Job) -> None:
        raise Cancelled("the order was withdrawn")

    async def late(self, job: Job) -> None:
        await asyncio.sleep(60)

    def watchful(self, ctx: Context) -> None:
        """Run until an operator cancels the job."""
        for _ in range(6000):
            ctx.check()
            time.sleep(0.01)

    async def owning(self, job: Job, ctx: Context) -> str:
        """Complete the job together with a row of the application."""
        result = output(job)
        with self._record.operation("complete", [job.id], version=job.version, result=result):
            async with ctx.transaction() as conn:
                done = conn.execute(f"INSERT INTO business VALUES ('{job.id}', {job.version})")
                if asyncio.iscoroutine(done):
                    await done
                ctx.complete(result)
        return "is ignored"

    async def stepping(self, job: Job, ctx: Context) -> dict[str, Any]:
        """Take three steps: a plain one, one that fails at first and has its own retries, one that pays exactly
        once."""
        begins = self._record.step_begins

        @step
        async def fetch(ctx: Context) -> int:
            begins(ctx, "fetch")
            await asyncio.sleep(0.01)
            return ctx.job.version

        @step(retry=[0.05], max_retries=20)
        async def ask(ctx: Context, fetched: int) -> int:
            begins(ctx, "ask")
            if ctx.job.version == fetched:
                raise ConnectionError("the bank is away")
            return fetched

        @step
        async def pay(ctx: Context) -> str:
            begins(ctx, "pay")
            async with ctx.transaction() as conn:
                done = conn.execute(f"INSERT INTO paid VALUES ('{ctx.job.id}')")
                if asyncio.iscoroutine(done):
                    await done
                ctx.complete("paid")
            return "is ignored"

        assert await ctx.step(ask, await ctx.step(fetch)) < job.version
        assert await ctx.step(pay) == "paid"
        return output(job)

    def threaded_steps(self, job: Job, ctx: SyncContext) -> dict[str, Any]:
        def first(ctx: SyncContext) -> int:
            self._record.step_begins(ctx, "first")
            time.sleep(0.01)
            return ctx.job.version

        def second(ctx: SyncContext, begun: int) -> int:
            self._record.step_begins(ctx, "second")
            return begun

        assert ctx.step(second, ctx.step(first)) <= job.version
        return output(job)

    async def napping(self, job: Job, ctx: Context) -> dict[str, Any]:
        await ctx.sleep(0.2)
        return output(job)

    async def waiting(self, job: Job, ctx: Context) -> dict[str, Any]:
        """Take a step, wait for a signal, and sleep. Undo the step if the job is cancelled while it waits."""

        @step
        async def reserve(ctx: Context) -> int:
            self._record.step_begins(ctx, "reserve")
            return ctx.job.version

        @step(cancelable=False)
        async def unreserve(ctx: Context) -> int:
            return ctx.job.version

        assert await ctx.step(reserve) <= job.version
        try:
            got = await ctx.wait_for("go", timeout=WAIT, default=None)
            await ctx.sleep(0.05)
        except Cancelled:
            await ctx.step(unreserve)
            raise
        return output(job) | {"got": got}

    def threaded_waiting(self, job: Job, ctx: SyncContext) -> dict[str, Any]:
        return output(job) | {"got": ctx.wait_for("go", timeout=WAIT, default=None)}

    async def parent(self, job: Job, ctx: Context) -> dict[str, Any]:
        child = new_ids.one()
        with self._record.operation("enqueue", [child], topic="quick", key=None) as told:
            told(await ctx.enqueue("quick", id=child))
        return output(job)

    async def deadly(self, job: Job) -> None:
        assert job.locked_by is not None
        self._record.fault("exit", job.locked_by)
        os._exit(7)


def wrongly_paid(history: History, paid: Sequence[str]) -> Iterator[Violation]:
    """A step that writes in its own transaction is stored once, together with its row. Neither is there without the
    other."""
    stored = {row["job_id"] for row in history.steps if row["name"] == "pay" and row["state"] == "succeeded"}
    there = history.jobs.keys() | history.archive.keys()  # a deleted job has no steps, but its row in `paid` stays
    for job_id, count in Counter(paid).items():
        if count > 1:
            yield Violation("S21", job_id, f"has paid {count} times")
        elif job_id in there and job_id not in stored:
            yield Violation("S21", job_id, "has paid, and its step is not stored")
    for job_id in stored - set(paid):
        yield Violation("S21", job_id, "has a stored step that has not paid")


def wrongly_answered(history: History) -> Iterator[Violation]:
    """A job gets its acknowledged signal, unless its wait had timed out before the signal came. It gets no other
    data."""
    waits = {row["job_id"]: row for row in history.steps if (row["name"], row["n"]) == ("@signal:go", 1)}
    signals: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(history.signals, key=lambda row: int(row["seq"])):
        signals.setdefault(row["job_id"], []).append(row)
    for job_id, row in history.archive.items():
        if row["topic"] not in SIGNALLED:
            continue
        got, mine = row["result"]["got"], signals.get(job_id, [])
        read = [one["data"] for one in mine if one["wait"] is not None]
        if [got] != (read or [None]):
            yield Violation("S22", job_id, f"was completed with {got}, and has read {read}")
        if mine and not read and mine[0]["at"] <= waits[job_id]["finished_at"]:
            yield Violation("S22", job_id, f"has timed out, and signal {mine[0]['data']} was there")


def output(job: Job) -> dict[str, Any]:
    """Return a result that only this run can have made."""
    return {"job": job.id, "run": job.version}


if folder := os.environ.get("ROWLOCK_PROOF_RECORD"):
    jobs = app(Recorder(Path(folder)))

    @jobs.task(process=True)
    def toiling(job: Job) -> dict[str, Any]:
        time.sleep(0.02)
        return output(job)
