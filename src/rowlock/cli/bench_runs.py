"""The measurements of `rowlock bench`: it enqueues jobs of its own topic, `rowlock worker` runs them. A job counts when
the database says that it is completed."""

from __future__ import annotations

import asyncio
import math
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import click
from msgspec import Struct
from msgspec.structs import asdict

from rowlock.cli.show import note
from rowlock.core.job import Job, Status
from rowlock.core.moves import Delete
from rowlock.jobs import Jobs
from rowlock.stores.queries import MAX_LIMIT, Filter

T = TypeVar("T")

APP = "rowlock.cli.bench_app:jobs"
TOPIC = "ROWLOCK_BENCH_TOPIC"  # environment variable, for that module

_BATCH = 1000  # jobs enqueued, read back or removed at once …
_BATCH_BYTES = 8 << 20  # … if their payloads aren't larger than this
_LOOK = 0.05  # seconds between looks at the last job of a drain
_STALLED = 30.0  # seconds without a completed job, after which a drain is given up
_CHECK = 5.0  # seconds between looks at the counters, which cost more
_GRACE = 2.0  # seconds that running jobs get when their worker is stopped early
_LATE = 3.0  # seconds that it may take beyond that
_TOLD = 20  # lines of the workers' log, if they fail
_GAP = 0.01  # seconds between enqueues for an idle worker, on average


class Rate(Struct, frozen=True, kw_only=True):
    jobs: int
    seconds: float
    per_second: float


class Drain(Rate, frozen=True, kw_only=True):
    """The time from when all processes were running until all jobs were completed, by the database's clock; `jobs` were
    completed in that time. `workers`: processes that started before half of the jobs were done. If some started later,
    the time begins with the first start."""

    processes: int
    workers: int
    sleep: float


class Pickup(Struct, frozen=True, kw_only=True):
    """Milliseconds from the call of `enqueue` to the first line of the handler, with an idle worker."""

    jobs: int
    p50: float
    p95: float
    p99: float


class Bench:
    """Remembers its jobs by id. `remove` also finds jobs whose enqueue was interrupted."""

    def __init__(self, jobs: Jobs, *, concurrency: int, payload: int) -> None:
        self.topic = f"rowlock.bench.{secrets.token_hex(4)}"
        self._jobs = jobs
        self._concurrency = concurrency
        self._fill = {"fill": "x" * (payload - len('{"fill":""}'))} if payload else {}
        self._batch = max(1, min(_BATCH, _BATCH_BYTES // max(payload, 1)))
        self._ids: list[str] = []
        self._enough = False

    # ── Enqueue ──

    async def enqueue_one_by_one(self, most: int, seconds: float) -> tuple[Rate, list[str]]:
        """Await each enqueue before the next, for at most `seconds` and `most` jobs."""

        async def one(_: int) -> list[str]:
            return [(await self._jobs.enqueue(self.topic, self._fill)).id]

        return await self._whole(self._enqueue(one, most, seconds))

    async def enqueue_bulk(self, count: int, sleep: float = 0.0) -> tuple[Rate, list[str]]:
        job = (self.topic, {**self._fill, "sleep": sleep} if sleep else self._fill)

        async def many(left: int) -> list[str]:
            return [made.id for made in await self._jobs.enqueue_many([job] * min(self._batch, left))]

        return await self._whole(self._enqueue(many, count))

    async def _enqueue(
        self, some: Callable[[int], Awaitable[list[str]]], most: int, seconds: float = math.inf
    ) -> tuple[Rate, list[str]]:
        """Call `some` with the number of jobs that are left, until there are `most` or the time is over."""
        ids: list[str] = []
        took = 0.0
        began = time.perf_counter()
        while len(ids) < most and took < seconds and not self._enough:
            ids += await some(most - len(ids))
            took = time.perf_counter() - began
        self._ids += ids
        return rate(len(ids), took), ids

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Let Ctrl-C wait for the running statement: jobs that it adds later would not be removed."""
        task = asyncio.create_task(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._enough = True
            await asyncio.wait([task])
            raise

    # ── Run ──

    async def drain(self, ids: Sequence[str], processes: int, sleep: float = 0.0) -> Drain:
        """Run all of these jobs, which are pending already."""
        async with self._workers(processes) as workers:
            return drained(await self._completed(ids, workers, sleep), processes, sleep)

    async def pick_up(self, count: int, processes: int) -> Pickup:
        async with self._workers(processes) as workers:
            _, [first] = await self.enqueue_one_by_one(1, 1.0)
            await self._completed([first], workers)  # from now on it is idle
            ids = await self._whole(self._enqueue_now_and_then(count))
            waited = [job.result / 1e6 for job in await self._completed(ids, workers)]
        waited.sort()
        p50, p95, p99 = (waited[min(int(len(waited) * share), len(waited) - 1)] for share in (0.5, 0.95, 0.99))
        return Pickup(jobs=count, p50=round(p50, 3), p95=round(p95, 3), p99=round(p99, 3))

    async def _enqueue_now_and_then(self, count: int) -> list[str]:
        ids: list[str] = []
        while len(ids) < count and not self._enough:
            await asyncio.sleep(_GAP * random.uniform(0.5, 1.5))  # noqa: S311 - not in step with anything
            made = await self._jobs.enqueue(self.topic, {**self._fill, "sent": time.monotonic_ns()})
            ids.append(made.id)
        self._ids += ids
        return ids

    def _workers(self, processes: int) -> Workers:
        return Workers(self._jobs.settings.url, self.topic, processes, self._concurrency)

    async def _completed(self, ids: Sequence[str], workers: Workers, sleep: float = 0.0) -> list[Job]:
        """Return these jobs once all are completed. Meanwhile it reads a single row: the measurement itself must not be
        a load."""
        store = await self._jobs._store()
        found: list[Job] = []
        todo = list(ids)
        watch = Watch(self._jobs, self.topic, workers, _STALLED + sleep)
        while todo:
            while (job := (await store.read(todo[-1:], Job)).get(todo[-1])) is not None and job.is_live:
                await watch.check()
                await asyncio.sleep(_LOOK)
            late: list[str] = []
            for start in range(0, len(todo), _BATCH):
                batch = todo[start : start + _BATCH]
                rows = await store.read(batch, Job)
                if len(rows) < len(batch):
                    raise click.ClickException("jobs of this measurement were deleted by another process")
                found += [row for row in rows.values() if row.status is Status.COMPLETED]
                late += [job_id for job_id in batch if rows[job_id].is_live]
                if bad := [row for row in rows.values() if not row.is_live and row.status is not Status.COMPLETED]:
                    raise click.ClickException(f"job {bad[0].id} ended as {bad[0].status}: {bad[0].last_error}")
            todo = late
        if len({job.id for job in found}) != len(ids):
            raise click.ClickException(f"{len(ids)} jobs were enqueued, {len(found)} were completed")
        return found

    # ── Remove ──

    async def remove(self) -> int:
        """Delete all jobs of the topic, after the workers have ended. Return how many could not be deleted."""
        store = await self._jobs._store()
        by = self._jobs.settings.by
        for start in range(0, len(self._ids), _BATCH):
            await store.move(self._ids[start : start + _BATCH], Delete(by=by, reason="rowlock bench"))
        left = 0
        cursor: str | None = None
        while True:
            page = await self._jobs.list(Filter(topics=[self.topic]), limit=MAX_LIMIT, cursor=cursor)
            gone = await store.move([job.id for job in page.items], Delete(by=by, reason="rowlock bench"))
            left += sum(not one.done for one in gone)
            cursor = page.next
            if cursor is None:
                return left


class Watch:
    """Raises if the workers have ended, or complete no more jobs."""

    def __init__(self, jobs: Jobs, topic: str, workers: Workers, patience: float) -> None:
        self._jobs = jobs
        self._topic = topic
        self._workers = workers
        self._patience = patience
        self._completed = -1
        self._moved = self._checked = time.monotonic()

    async def check(self) -> None:
        self._workers.demand()
        now = time.monotonic()
        if now - self._checked < _CHECK:
            return
        self._checked = now
        completed = (await self._jobs.stats(self._topic)).completed
        if completed != self._completed:
            self._completed = completed
            self._moved = now
        elif now - self._moved > self._patience:
            self._workers.tell_log()
            raise click.ClickException(f"the workers have completed nothing for {self._patience:.0f} s")


class Workers:
    """Runs `rowlock worker` until the end of the block. Its log is printed only if it fails."""

    def __init__(self, url: str, topic: str, processes: int, concurrency: int) -> None:
        self._command = [
            sys.executable, "-m", "rowlock", "worker", APP, "--processes", str(processes),
            "--concurrency", str(concurrency), "--grace", str(_GRACE),
        ]  # fmt: skip
        self._environ = {**os.environ, "ROWLOCK_URL": url, TOPIC: topic}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end of the block

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            env=self._environ,
            stdin=subprocess.PIPE,  # closes when this process ends: see bench_app
            stdout=self._log,
            stderr=self._log,
            process_group=0,  # Ctrl-C must not reach them: this process stops them
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._process.returncode is None:
                with suppress(ProcessLookupError):
                    self._process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(_GRACE + _LATE):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        finally:
            self._log.close()

    def demand(self) -> None:
        """Raise if the workers have ended."""
        if self._process.returncode is not None:
            self.tell_log()
            raise click.ClickException("the workers have ended")

    def tell_log(self) -> None:
        self._log.seek(0)
        for line in self._log.read().decode(errors="replace").splitlines()[-_TOLD:]:
            note(line)


def drained(jobs: Sequence[Job], processes: int, sleep: float) -> Drain:
    """Return the rate of a drain. The time begins when the last process starts its first job, if that is early
    enough."""
    starts: dict[str | None, float] = {}
    for job in jobs:
        at = (job.started_at or job.claimed_at or job.created).timestamp()
        starts[job.locked_by] = min(at, starts.get(job.locked_by, at))
    ends = sorted(job.finished_at.timestamp() for job in jobs if job.finished_at is not None)
    in_time = [at for at in starts.values() if at < ends[len(ends) // 2]]
    begin = max(in_time) if len(in_time) >= processes else min(starts.values())
    measured = rate(sum(at > begin for at in ends), ends[-1] - begin)
    return Drain(**asdict(measured), processes=processes, workers=len(in_time), sleep=sleep)


def rate(jobs: int, seconds: float) -> Rate:
    return Rate(jobs=jobs, seconds=round(seconds, 6), per_second=round(jobs / max(seconds, 1e-6), 1))
