"""Measures enqueue: one by one, by many callers, and in bulk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import programs
from benchmarks.bench import Bench
from benchmarks.rounds import Cell, interleave, say
from benchmarks.systems.base import System

CALLERS = 100
# Jobs of the first round, at most. Its rate sets the size of later rounds, so that they take the scale's seconds.
FIRST = {"enqueue_one": 500, "enqueue_concurrent": 3_000, "enqueue_bulk": 20_000}
MOST = 300_000


def measure(
    bench: Bench, name: str, verb: str, *, sqlite: bool = False, options: Mapping[str, Any] | None = None
) -> None:
    sizes: dict[str, int] = {}

    def act(system: System, cell: Cell) -> float:
        first = whole(min(FIRST[verb], system.pace))  # a system that drains slowly seldom enqueues fast
        n = sizes.get(system.name, first)
        rate = once(bench, system, verb, n, options or {})
        wanted = min(max(rate * bench.scale.enqueue_seconds, first / 2), MOST)
        sizes.setdefault(system.name, whole(wanted))
        cell.facts["jobs"] = n
        return rate

    systems = bench.able(verb, "setup", sqlite=sqlite)
    if bench.scale.sizes:
        for system in systems:
            try:
                act(system, Cell())
            except programs.Failed as error:
                say(f"{name}: {system.name} failed to warm up: {error}")  # it will fail again in a round that counts
    interleave(bench.results, name, systems, bench.scale.rounds, act)


def whole(n: float) -> int:
    """Return a number of jobs that divides evenly among the callers."""
    return max(round(n / CALLERS), 1) * CALLERS


def once(bench: Bench, system: System, verb: str, n: int, options: Mapping[str, Any]) -> float:
    """Return the jobs per second."""
    with bench.servers.fresh(system) as url:
        bench.servers.settle(system, url)
        answer = programs.run(programs.Task(system, url, n=n, callers=CALLERS, options=options), verb)
        there = bench.servers.wait(system.unfinished(url))
        if there != n:
            raise programs.Failed(f"{n} jobs were enqueued, and the store has {there}")
    return n / float(answer["seconds"])
