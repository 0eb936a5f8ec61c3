"""Measures topics with limits beside a plain one, rounds in turns.

python -m benchmarks.limits [--jobs 10000] [--rounds 3] [--only postgres]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

from benchmarks.servers import POSTGRES
from benchmarks.waits import fresh
from rowlock import Concurrency, Jobs
from tests.servers import PostgresServer

_SLOTS = 500
_TENANTS = 11
KINDS: dict[str, tuple[dict[str, Any], int]] = {
    # the options of the task, and the number of tenants that its jobs have; 0: each job has its own
    "plain": ({}, 1),
    "Concurrency(1000)": ({"limits": [Concurrency(1000)]}, 1),
    "Concurrency(2, by=) over all jobs": ({"limits": [Concurrency(2, by="tenant")]}, 0),
    "fair, 11 tenants": ({"fair": "tenant"}, _TENANTS),
}


async def drain(url: str, options: dict[str, Any], values: int, count: int) -> tuple[float, float]:
    """Return the seconds until a new worker has run `count` jobs that do nothing, and this process's CPU seconds."""
    done = asyncio.Event()
    left = count
    async with Jobs(url, migrate=True) as jobs:

        @jobs.task("leaf", max_retries=0, **options)
        async def leaf(tenant: int) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

        await jobs.templates.publish()
        await jobs.enqueue_many([leaf.draft(n % values if values else n) for n in range(count)])
        began, cpu = time.perf_counter(), time.process_time()
        await jobs.start(concurrency=_SLOTS)
        await done.wait()
        took = time.perf_counter() - began, time.process_time() - cpu
        await jobs.stop()
    return took


async def measure(given: argparse.Namespace) -> None:
    with PostgresServer(durable=True, settings=POSTGRES) as server:
        for store in [given.only] if given.only else ["postgres", "sqlite"]:
            times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
            for _ in range(given.rounds):
                for kind, (options, values) in KINDS.items():
                    async with fresh(store, server) as (url, _):
                        times[kind].append(await drain(url, options, values, given.jobs))
            for kind, took in times.items():
                seconds, cpu = (statistics.median(column) for column in zip(*took, strict=True))
                pairs = list(zip(times["plain"], took, strict=True))
                ratio, of_cpu = (statistics.median(one[n] / other[n] for one, other in pairs) for n in (0, 1))
                rate = f"{given.jobs / seconds:,.0f} jobs/s, {ratio:.2f} of the plain rate"
                print(f"{store}: {kind}: {rate}; {cpu:.2f} s of CPU ({of_cpu:.2f} by CPU)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__.split("\n")[0])
    for name, default in (("jobs", 10_000), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", choices=["postgres", "sqlite"])
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
