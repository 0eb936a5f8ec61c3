"""Measures pickup under a steady load, with and without a transaction that holds an old snapshot.

Run as a program, this module enqueues the jobs, at times that do not depend on how fast the worker runs them.

    python -m benchmarks --only xmin_offered --systems rowlock
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from benchmarks import marks, programs
from benchmarks.bench import Bench
from benchmarks.latency import wait_for, warm_up
from benchmarks.numbers import percentile
from benchmarks.pinned import old_snapshot
from benchmarks.programs import Task
from benchmarks.rounds import Cell, one_round
from benchmarks.systems.base import System, order

RATE = 600  # jobs per second
WINDOW = 10.0  # seconds: the percentiles are those of all pickups in such a span
SHARES = {"p50": 0.50, "p99": 0.99}


def measure(bench: Bench, name: str) -> None:
    start = [sys.executable, "-m", "benchmarks.offered"]
    for system in bench.named("rowlock"):

        def act(system: System, cell: Cell) -> float:
            found = {kind: offer(bench, system, start, pin=kind == "pinned") for kind in ("free", "pinned")}
            cell.facts |= {kind: windows(pickups) for kind, pickups in found.items()}
            first, *_, last = cell.facts["pinned"]["p50"]
            return float(last / first)

        one_round(name, system, bench.results.cell(name, system), act)


def offer(bench: Bench, system: System, start: list[str], *, pin: bool) -> list[float]:
    """Return the milliseconds from before each enqueue to its handler's start."""
    n = round(RATE * bench.scale.offered_seconds)
    with bench.servers.fresh(system) as url, programs.marks_folder() as folder, contextlib.ExitStack() as stack:
        if pin:
            stack.enter_context(old_snapshot(bench.servers, url))
        started = stack.enter_context(programs.working(Task(system, url, marks=folder)))
        warm_up(system, url, folder, started)
        offering = replace(system, start=lambda _verb: start)
        programs.run(Task(offering, url, n, folder, gap=1 / RATE), "produce")
        wait_for(folder, n, started)
        return marks.pickups(folder)


def windows(pickups: Sequence[float]) -> dict[str, list[float]]:
    size = round(RATE * WINDOW)
    parts = [pickups[begin : begin + size] for begin in range(0, len(pickups), size)]
    return {name: [percentile(part, share) for part in parts] for name, share in SHARES.items()}


async def produce() -> None:
    from benchmarks.systems.rowlock import producing

    wanted = order()
    under_way: set[asyncio.Task[None]] = set()
    async with producing(wanted, 1) as producer:
        begin = time.monotonic()
        for n in range(wanted.n):
            await asyncio.sleep(max(begin + n * wanted.gap - time.monotonic(), 0))
            task = asyncio.ensure_future(producer.one({"n": n, "t0": time.monotonic_ns()}))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)


if __name__ == "__main__":
    import uvloop

    uvloop.run(produce())
