"""Measures a drain: from the first handler's start until the store has no job left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import marks, programs
from benchmarks.bench import Bench
from benchmarks.programs import Failed, Program, Task
from benchmarks.rounds import Cell, interleave
from benchmarks.servers import Servers
from benchmarks.systems.base import System

LOOK = 0.005  # seconds between looks at the marks when the end is near
RARELY = 0.05  # seconds between looks before that: each look takes time on one of the few cores
STALLED = 30.0  # seconds without any progress
LARGEST = 200_000
FETCHERS = 16


def measure(
    bench: Bench, name: str, workers: int, *, sqlite: bool = False, options: Mapping[str, Any] | None = None
) -> None:
    def act(system: System, cell: Cell) -> float:
        n = jobs_for(system, bench.scale.drain_seconds)
        cell.facts["jobs"] = n
        with bench.servers.filled(system, n) as url:
            return n / drained(bench.servers, Task(system, url, n, options=options or {}), workers)

    interleave(bench.results, name, bench.able("worker", "enqueue_bulk", sqlite=sqlite), bench.scale.rounds, act)


def jobs_for(system: System, seconds: float) -> int:
    return min(max(round(system.pace * seconds / 100) * 100, 500), LARGEST)


def drained(servers: Servers, task: Task, workers: int, *, before: int = 0) -> float:
    """Return the seconds that the workers take for the n jobs in the queue. `before`: completed jobs in the archive."""
    servers.settle(task.system, task.url)
    with programs.marks_folder() as folder:
        working = Task(task.system, task.url, task.n, folder, options=task.options)
        with programs.working(working, count=workers) as started:
            end = wait_until_done(servers, working, started, before)
        return (end - begin(folder)) / 1e9


def measure_fetch(bench: Bench, name: str, systems: list[System]) -> None:
    """Measure sixteen processes that take one job at a time. All are started and idle before the jobs come. Otherwise,
    on a few cores, the first process would finish before the last has started."""

    def act(system: System, cell: Cell) -> float:
        n = 500 if cell.median is None else max(round(cell.values[0] * bench.scale.fetch_seconds), 100)
        cell.facts["jobs"] = n
        with bench.servers.fresh(system) as url, programs.marks_folder() as folder:
            task = Task(system, url, n, folder, batch=n, options={"one": True})
            with programs.working(task, count=FETCHERS) as started:
                wait_until_idle(started)
                bench.servers.settle(system, url)
                programs.run(task, "enqueue_bulk")
                end = wait_until_done(bench.servers, task, started)
            return n / (end - begin(folder)) * 1e9

    interleave(bench.results, name, systems, bench.scale.rounds, act)


def begin(folder: Path) -> int:
    first = marks.first(folder)
    if first is None:
        raise Failed("jobs are gone, and none was handled")
    return first


def wait_until_done(servers: Servers, task: Task, started: list[Program], before: int = 0) -> int:
    """Return when (monotonic ns) n distinct jobs are completed in the store, and check that they are."""
    _wait_for_marks(task, started)
    deadline = time.monotonic() + STALLED
    while left := servers.wait(task.system.unfinished(task.url)):
        if time.monotonic() > deadline:
            raise Failed(f"all {task.n} jobs were handled, but {left} are not finished")
        time.sleep(LOOK)
    end = time.monotonic_ns()
    if task.system.completed is not None:
        kept = servers.wait(task.system.completed(task.url))
        if kept != before + task.n:
            raise Failed(f"{kept - before} of {task.n} jobs are recorded as completed")
    return end


def _wait_for_marks(task: Task, started: list[Program]) -> None:
    handled, since, pause = 0, time.monotonic(), RARELY
    while handled < task.n:
        time.sleep(pause)
        for program in started:
            program.check()
        now, before = time.monotonic(), handled
        handled = marks.distinct(task.marks, task.n)
        if handled > before:
            gained = (handled - before) / pause
            pause = min(max((task.n - handled) / gained / 2, LOOK), RARELY)
            since = now
        elif now - since > STALLED:
            tail = "\n".join(program.tail() for program in started[:1])
            raise Failed(f"stalled: {handled} of {task.n} jobs were handled; {tail}")


def wait_until_idle(started: list[Program], *, quiet: float = 1.0, longest: float = 60.0) -> None:
    """Wait until the processes have started: then they hardly use the processor."""
    from benchmarks.idle import cpu_seconds, tree

    deadline = time.monotonic() + longest
    used = -1.0
    while time.monotonic() < deadline:
        now = sum(cpu_seconds(process) for program in started for process in tree(program.process.pid))
        if 0 <= now - used < 0.1 * quiet:
            return
        used = now
        time.sleep(quiet)
        for program in started:
            program.check()
