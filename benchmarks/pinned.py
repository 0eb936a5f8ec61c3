"""Drains with and without a transaction that holds an old snapshot. With it, dead rows and index entries pile up."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from benchmarks import marks, programs
from benchmarks.bench import Bench
from benchmarks.drain import STALLED
from benchmarks.numbers import done_at, rates
from benchmarks.programs import Failed, Task
from benchmarks.rounds import Cell, one_round
from benchmarks.servers import Servers
from benchmarks.systems.base import System

SYSTEMS = ("rowlock", "pgqueuer", "graphile-worker")
RESERVE = 1.4  # times the jobs that the rate predicts: the queue must not run empty
EDGE = 10.0  # seconds at the beginning and at the end: the report has the rates of both

Series = list[tuple[float, int]]  # seconds since the first handler, jobs handled so far


def measure(bench: Bench, name: str) -> None:
    for system in bench.named(*SYSTEMS):
        pace = bench.results.medians("drain_1").get(system.name, system.pace)
        n = min(round(pace * bench.scale.pinned_seconds * RESERVE / 1000) * 1000, marks.MOST)

        def act(system: System, cell: Cell, n: int = n) -> float:
            seconds = bench.scale.pinned_seconds
            free, held = (drain(bench.servers, system, n, seconds, pin=pin) for pin in (False, True))
            end = min(free[-1][0], held[-1][0])  # one of the two drains may have run out of jobs
            done = {"free": done_at(free, end), "pinned": done_at(held, end)}
            edge = min(EDGE, end / 3)
            cell.facts |= {
                "seconds": end,
                "done": done,
                "first": {"free": rates(free, 0, edge), "pinned": rates(held, 0, edge)},
                "last": {"free": rates(free, end - edge, end), "pinned": rates(held, end - edge, end)},
                "series": {"free": free, "pinned": held},
            }
            return 1 - done["pinned"] / done["free"]

        one_round(name, system, bench.results.cell(name, system), act)


def drain(servers: Servers, system: System, n: int, seconds: float, *, pin: bool) -> Series:
    with servers.fresh(system) as url, programs.marks_folder() as folder, contextlib.ExitStack() as stack:
        if pin:
            stack.enter_context(old_snapshot(servers, url))
        task = Task(system, url, n, folder)
        programs.run(task, "enqueue_bulk")
        servers.settle(system, url)
        with programs.working(task) as started:
            series = watch(task, seconds)
            started[0].check()
        left = servers.wait(system.unfinished(url))
    if n - left < 0.95 * series[-1][1]:
        raise Failed(f"{series[-1][1]} jobs were handled, and {n - left} are completed in the store")
    return series


def watch(task: Task, seconds: float) -> Series:
    deadline = time.monotonic() + STALLED
    while (begin := marks.first(task.marks)) is None:
        if time.monotonic() > deadline:
            raise Failed("no job was handled")
        time.sleep(0.01)
    series: Series = [(0.0, 0)]
    while series[-1][0] < seconds and series[-1][1] < task.n:
        time.sleep(0.5)
        handled = marks.distinct(task.marks, task.n)
        series.append((time.monotonic() - begin / 1e9, handled))
    return series


@contextlib.contextmanager
def old_snapshot(servers: Servers, url: str) -> Iterator[None]:
    import asyncpg

    connection = servers.wait(asyncpg.connect(url))
    servers.wait(connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ"))
    servers.wait(connection.fetchval("SELECT count(*) FROM pg_class"))  # the snapshot is taken now
    try:
        yield
    finally:
        servers.wait(connection.close())
