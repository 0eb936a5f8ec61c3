"""Measures what wake-ups cost when many processes enqueue one by one. Run as a program, it is such a process."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks import programs
from benchmarks.bench import Bench
from benchmarks.drain import wait_until_idle
from benchmarks.programs import Task
from benchmarks.rounds import Cell, Results, interleave
from benchmarks.systems.base import System, order

PRODUCERS = 32
ROUNDS = 3
ON, OFF, RAW = "wake-ups on", "wake-ups off", "raw INSERT, wake-ups off"
KINDS = {ON: "on", OFF: "off", RAW: "off"}  # listen=… of worker and producers
GO = "go"  # a file with the moment (monotonic) at which all producers begin


def measure(bench: Bench, name: str) -> None:
    rowlock = next(iter(bench.named("rowlock")), None)
    if rowlock is None:
        return
    seconds = bench.scale.producing_seconds

    def act(kind: System, cell: Cell) -> float:
        options = {"listen": KINDS[kind.name], "pool_size": 1, "seconds": seconds, "raw": kind.name == RAW}
        with bench.servers.fresh(rowlock) as url, programs.marks_folder() as folder, ExitStack() as stack:
            worker = Task(rowlock, url, marks=folder, options={"listen": KINDS[kind.name]})
            stack.enter_context(programs.working(worker))
            producing = programs.working(Task(kind, url, marks=folder, options=options), "produce", count=PRODUCERS)
            started = stack.enter_context(producing)
            wait_until_idle(started)
            bench.servers.settle(rowlock, url)
            Path(folder, f"{GO}.new").write_text(str(time.monotonic() + 0.5))
            Path(folder, f"{GO}.new").rename(folder / GO)
            return float(sum(programs.finish(producer)["jobs"] for producer in started)) / seconds

    start = [sys.executable, "-m", "benchmarks.producers"]
    # The same system, once for each kind, so that the kinds take turns.
    systems = [replace(rowlock, name=kind, start=lambda _verb: start) for kind in KINDS]
    interleave(bench.results, name, systems, min(bench.scale.rounds, ROUNDS), act)


def kept(results: Results) -> float | None:
    """Return the producers' rate with wake-ups, as a share of the rate without."""
    medians = results.medians("producers_32")
    return medians[ON] / medians[OFF] if ON in medians and OFF in medians else None


def wait_to_begin(go: Path) -> float:
    """Wait for the common start time and return it. Blocks, because the process has nothing else to do."""
    while not go.exists():
        time.sleep(0.1)
    begin = float(go.read_text())
    time.sleep(max(begin - time.monotonic(), 0))
    return begin


async def produce() -> None:
    """Enqueue from a common start time, for some seconds."""
    wanted = order()
    if wanted.options["raw"]:
        from benchmarks.systems.raw import producing
    else:
        from benchmarks.systems.rowlock import producing
    go = Path(os.environ["BENCH_MARKS"], GO)
    async with producing(wanted, 1) as producer:
        begin = wait_to_begin(go)
        jobs = 0
        while time.monotonic() < begin + wanted.options["seconds"]:
            await producer.one({"n": jobs})
            jobs += 1
    print(json.dumps({"jobs": jobs}))


if __name__ == "__main__":
    import uvloop

    uvloop.run(produce())
