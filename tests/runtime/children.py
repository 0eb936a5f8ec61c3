"""Run claimed jobs in child processes of a pool, and check that the pool leaves nothing behind."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from rowlock import Jobs, Outcome
from rowlock.context import Interruption
from rowlock.core.job import Job
from rowlock.core.steps import StepMark
from rowlock.runtime.processes import Processes
from tests.guard import processes, running
from tests.stores.harness import SqliteHarness
from tests.waiting import until


class Wire:
    """A ProcessLink that records what the child reports."""

    def __init__(self) -> None:
        self.interruption: Interruption | None = None
        self.looks = False
        self.completed = False
        self.began = time.monotonic()
        self.renewed = self.began
        self.lease = 3600.0  # seconds; nothing renews the lease
        self.reports: list[tuple[float | None, str | None, str | None]] = []
        self.lines: list[tuple[str, str]] = []
        self.beats = 0
        self.marks: list[StepMark] = []
        self.unmarked: list[tuple[str, int]] = []
        self.shields: list[int] = []
        self._watcher: Callable[[Interruption], None] | None = None

    @property
    def lease_is_over(self) -> bool:
        return time.monotonic() - self.renewed >= self.lease

    def report(self, percent: float | None, stage: str | None, message: str | None) -> None:
        self.reports.append((percent, stage, message))

    def log(self, level: str, text: str) -> None:
        self.lines.append((level, text))

    def beat(self) -> None:
        self.beats += 1

    def mark(self, mark: StepMark) -> None:
        self.marks.append(mark)

    def unmark(self, name: str, n: int) -> None:
        self.unmarked.append((name, n))

    def shield(self, change: int) -> None:
        self.shields.append(change)

    def hear_cancel(self) -> None:
        self.interruption = Interruption.CANCELLED

    def watch(self, callback: Callable[[Interruption], None]) -> None:
        self._watcher = callback
        if self.interruption is not None:
            callback(self.interruption)

    def interrupt(self, why: Interruption) -> None:
        self.interruption = why
        if self._watcher is not None:
            self._watcher(why)


class Runner:
    """Runs jobs of one application in child processes."""

    def __init__(self, jobs: Jobs, harness: SqliteHarness, pool: Processes) -> None:
        self.jobs = jobs
        self.pool = pool
        self._harness = harness

    async def claimed(self, topic: str, payload: dict[str, Any]) -> Job:
        return await self._harness.claimed(topic=topic, payload=payload)

    async def run(self, topic: str, *, link: Wire | None = None, **payload: Any) -> Outcome:
        job = await self.claimed(topic, payload)
        return await self.pool.run(job, self.jobs.tasks[topic], link or Wire())

    def begin(self, topic: str, *, link: Wire | None = None, **payload: Any) -> "asyncio.Task[Outcome]":
        return asyncio.create_task(self.run(topic, link=link, **payload))

    async def begun(self, topic: str, file: Path, link: Wire | None = None) -> tuple["asyncio.Task[Outcome]", int]:
        """Begin a run whose handler writes its pid into the file. Return the run's task and the pid."""
        return self.begin(topic, link=link, file=str(file)), await pid_in(file)


@asynccontextmanager
async def children(jobs: Jobs, **options: Any) -> AsyncIterator[Runner]:
    """Yield a Runner. At the end, check that no child, no thread and no open file is left."""
    harness = SqliteHarness(None, virtual=False)
    await harness.open()
    try:
        with nothing_left_behind():
            pool = Processes(**options)
            try:
                yield Runner(jobs, harness, pool)
            finally:
                await pool.close()
                await asyncio.sleep(0)  # the event loop closes sockets in its next round
    finally:
        await harness.close()


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    before = _possessions()
    yield
    assert _possessions() == before


def _possessions() -> tuple[set[int], set[str], set[str]]:
    own = {pid for pid, parent, _ in processes() if parent == os.getpid()}  # zombies too
    return (
        own,
        {name for thread in threading.enumerate() if not (name := thread.name).startswith("asyncio_")},
        _open_files(),
    )


def _open_files() -> set[str]:
    folder = Path("/proc/self/fd")
    if sys.platform != "linux":
        folder = Path("/dev/fd")
    return {f"{link.name} {link.readlink()}" for link in list(folder.iterdir()) if link.is_symlink() and link.exists()}


async def pid_in(file: Path) -> int:
    """Wait until a handler has begun and has written its pid into the file. Return the pid."""
    return int(await until(lambda: file.exists() and file.read_text(), f"the pid in {file}"))


async def gone(*pids: int) -> None:
    await until(lambda: not running(set(pids)))
