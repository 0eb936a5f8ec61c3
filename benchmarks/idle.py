"""Measures processor time and memory of an idle worker, over all its processes."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from benchmarks import programs
from benchmarks.bench import Bench
from benchmarks.latency import warm_up
from benchmarks.numbers import OURS
from benchmarks.programs import Task
from benchmarks.rounds import Cell, interleave
from benchmarks.systems.base import System

if TYPE_CHECKING:
    import psutil

WARM = 50  # jobs before the measurement: a worker keeps the memory that it once needed for work
SETTLE = 2.0  # seconds
MIB = 1 << 20


def tree(pid: int) -> list[psutil.Process]:
    import psutil

    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(process: psutil.Process) -> float:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def measure(bench: Bench, name: str) -> None:
    def act(system: System, cell: Cell) -> float:
        with (
            bench.servers.fresh(system) as url,
            programs.marks_folder() as folder,
            programs.working(Task(system, url, marks=folder)) as started,
        ):
            warm_up(system, url, folder, started, WARM)
            time.sleep(SETTLE)
            processes = tree(started[0].process.pid)
            before = sum(map(cpu_seconds, processes))
            time.sleep(bench.scale.idle_seconds)
            used = sum(map(cpu_seconds, processes)) - before
            sizes = [float(process.memory_info().rss) / MIB for process in processes]
        cell.facts |= {
            "cpu_percent": 100 * used / bench.scale.idle_seconds,
            "rss_mb": max(sizes),  # of the largest process, which does the work
            "rss_of_all_mb": sum(sizes),  # shared memory counts for each process
            "processes": len(sizes),
        }
        return max(sizes)

    quick = [system for system in bench.systems if system.name == OURS]
    interleave(bench.results, name, quick if bench.scale.is_quick else bench.able("produce", "worker"), 1, act)
