"""Measures what a WASM handler costs beside a Python one: jobs per second of a worker, and microseconds per call.

python -m benchmarks.wasm [--rounds 5] [--jobs 2000]

All handlers run in threads, on a SQLite database in memory, eight at once. The handlers take turns in each round, and
the medians of the rounds count. `call` is the module alone, without a worker: a new instance, its stdin and its stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wasmtime import wat2wasm

from rowlock import Jobs
from rowlock.context import Context, SyncContext
from rowlock.core.job import Job
from rowlock.tasks import Task

EXAMPLES = Path(__file__).parent.parent / "examples" / "wasm"
NOOP = '(module (memory (export "memory") 1) (func (export "_start")))'
IMAGE = {"width": 64, "height": 64, "pixels": "AAAA" * 1365 + "AA==", "factor": 4}
ORDER = {"items": [{"name": "tea", "price": 300, "count": 2}, {"name": "bread", "price": 250}]}


def tasks(jobs: Jobs, folder: Path) -> dict[str, tuple[Task[..., Any], dict[str, Any]]]:
    noop = folder / "noop.wasm"
    noop.write_bytes(bytes(wat2wasm(NOOP)))

    def nothing(ctx: SyncContext) -> None:
        return None

    return {
        "Python function, no work": (jobs.register("python", nothing), {}),
        "module, no work": (jobs.wasm("noop", noop), {}),
        "thumbnail.wasm (C), 64 × 64 pixels": (jobs.wasm("thumbnail", EXAMPLES / "thumbnail.wasm"), IMAGE),
        "words.wasm (Rust)": (jobs.wasm("words", EXAMPLES / "words.wasm", enqueue=["none"]), {"text": "a few words"}),
        "javascript.wasm (QuickJS)": (jobs.wasm("order", EXAMPLES / "javascript.wasm"), ORDER),
    }


async def drained(jobs: Jobs, task: Task[..., Any], payload: dict[str, Any], count: int) -> float:
    """Return the jobs per second, from the enqueue until the last one has ended."""
    before = (await jobs.stats(task.topic)).completed
    began = time.perf_counter()
    await jobs.enqueue_many([task.draft(**payload) for _ in range(count)])
    while (await jobs.stats(task.topic)).completed < before + count:  # noqa: ASYNC110 - the worker tells the database
        await asyncio.sleep(0.01)
    return count / (time.perf_counter() - began)


def call_time(task: Task[..., Any], job: Job, payload: dict[str, Any], context: SyncContext, count: int) -> float:
    """Return the microseconds of one call."""
    values = task.arguments.call(payload, job, context)  # type: ignore[arg-type] # a SyncContext is as good
    began = time.perf_counter()
    for _ in range(count):
        task.function(**values)
    return (time.perf_counter() - began) / count * 1e6


async def measure(rounds: int, count: int, folder: Path) -> dict[str, tuple[float, float]]:
    rates: dict[str, list[float]] = {}
    calls: dict[str, list[float]] = {}
    jobs = Jobs("sqlite:///:memory:")
    named = tasks(jobs, folder)

    @jobs.task
    def calling(ctx: Context) -> None:
        """Call each handler as the worker does, in a thread, with the context of a run."""
        for name, (task, payload) in named.items():
            ctx.job.payload.clear()
            ctx.job.payload.update(payload)
            taken = call_time(task, ctx.job, payload, ctx.sync, max(20, count // 20))
            calls.setdefault(name, []).append(taken)

    async with jobs:
        await jobs.start(concurrency=8)
        for task, payload in named.values():  # compile
            await drained(jobs, task, payload, 20)
        for _ in range(rounds):
            for name, (task, payload) in named.items():
                rates.setdefault(name, []).append(await drained(jobs, task, payload, count))
            made = await calling.enqueue()
            await jobs.result(made, timeout=600)
        await jobs.stop()
    return {name: (statistics.median(rates[name]), statistics.median(calls[name])) for name in named}


def main(say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = asyncio.run(measure(given.rounds, given.jobs, Path(folder)))
    say("| handler | jobs/s | µs per call |\n| --- | ---: | ---: |")
    for name, (rate, call) in measured.items():
        say(f"| {name} | {rate:,.0f} | {call:,.0f} |")


if __name__ == "__main__":
    main()
