"""Measures pickup: from before the enqueue call to the handler's start in another, idle process."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks import marks, programs
from benchmarks.bench import Bench
from benchmarks.numbers import percentile
from benchmarks.programs import Failed, Program, Task
from benchmarks.rounds import Cell, interleave
from benchmarks.systems.base import System

GAP = 0.02  # seconds between two jobs, on average
PATIENCE = 30.0
SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


def measure(bench: Bench, name: str) -> None:
    def act(system: System, cell: Cell) -> float:
        with bench.servers.fresh(system) as url, programs.marks_folder() as folder:
            with programs.working(Task(system, url, marks=folder)) as started:
                warm_up(system, url, folder, started)
                n = bench.scale.pickups + 1  # the first job still pays for the producer's start
                programs.run(Task(system, url, n, folder, gap=GAP), "produce")
                wait_for(folder, n, started)
            return note(cell, marks.pickups(folder)[1:])

    interleave(bench.results, name, bench.able("produce", "worker"), bench.scale.pickup_rounds, act)


def note(cell: Cell, found: list[float]) -> float:
    """Add a round's pickups to the cell, and return their median."""
    cell.samples += found
    cell.facts |= {name: percentile(cell.samples, share) for name, share in SHARES.items()}
    cell.facts["samples"] = len(cell.samples)
    return percentile(found, SHARES["p50"])


def warm_up(system: System, url: str, folder: Path, started: list[Program], n: int = 1) -> None:
    """Enqueue n jobs, and wait until the workers have run them."""
    programs.run(Task(system, url, n, folder, gap=GAP), "produce")
    wait_for(folder, n, started)


def wait_for(folder: Path, n: int, started: list[Program]) -> None:
    deadline = time.monotonic() + PATIENCE
    while marks.distinct(folder, n) < n:
        for program in started:
            program.check()
        if time.monotonic() > deadline:
            raise Failed(f"only {marks.distinct(folder, n)} of {n} jobs were picked up; {started[0].tail()}")
        time.sleep(0.02)
    time.sleep(0.05)  # what belongs to the last mark is written a moment later
