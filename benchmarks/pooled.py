"""Measures enqueue one by one, and pickup, through PgBouncer in transaction mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from benchmarks import latency, marks, programs
from benchmarks.bench import Bench
from benchmarks.programs import Task
from benchmarks.rounds import Cell, interleave, say
from benchmarks.systems.base import System

DIRECT, POOLED, AROUND = "direct", "PgBouncer", "PgBouncer and listen_url"
JOBS = 300  # enqueued in a round
PICKUPS = 40  # at most
GAP = 0.25  # seconds between jobs, on average, so that a worker that polls does not find many at once


def measure_enqueue(bench: Bench, name: str) -> None:
    def act(way: System, cell: Cell) -> float:
        rowlock = bench.named("rowlock")[0]
        with bench.servers.fresh(rowlock) as url:
            bench.servers.settle(rowlock, url)
            there, _ = _through(bench, way, url)
            answer = programs.run(Task(way, there, n=JOBS), "enqueue_one")
        return JOBS / float(answer["seconds"])

    interleave(bench.results, name, _ways(bench, name, DIRECT, POOLED), bench.scale.rounds, act)


def measure_pickup(bench: Bench, name: str) -> None:
    def act(way: System, cell: Cell) -> float:
        with bench.servers.fresh(bench.named("rowlock")[0]) as url, programs.marks_folder() as folder:
            there, options = _through(bench, way, url)
            with programs.working(Task(way, there, marks=folder, options=options)) as started:
                latency.warm_up(way, there, folder, started)
                n = min(bench.scale.pickups, PICKUPS) + 1  # the first job still pays for the producer's start
                programs.run(Task(way, there, n, folder, gap=GAP), "produce")
                latency.wait_for(folder, n, started)
            return latency.note(cell, marks.pickups(folder)[1:])

    interleave(bench.results, name, _ways(bench, name, DIRECT, POOLED, AROUND), bench.scale.pickup_rounds, act)


def _ways(bench: Bench, name: str, *ways: str) -> list[System]:
    """Return the same system once for each way to connect, so that the ways take turns."""
    rowlock = next(iter(bench.named("rowlock")), None)
    if rowlock is None:
        return []
    if bench.servers.pgbouncer is None:
        bench.left_out[name] = "there is no pgbouncer on this machine"
        say(f"{name} is left out: {bench.left_out[name]}")
        return []
    return [replace(rowlock, name=way, start=rowlock.command) for way in ways]


def _through(bench: Bench, way: System, url: str) -> tuple[str, Mapping[str, str]]:
    """Return the URL, and the worker's options."""
    bouncer = bench.servers.pgbouncer
    if way.name == DIRECT or bouncer is None:
        return url, {}
    return bouncer.through(url), {"listen_url": url} if way.name == AROUND else {}
