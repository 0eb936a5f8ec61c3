"""Measures durable steps per second: rowlock and DBOS in turns, on one PostgreSQL that flushes every commit.

python -m benchmarks.steps [--rounds 3] [--jobs 50] [--steps 20] [--at-once 20]      (needs: pip install dbos)

A job takes its steps one after the other, and each step returns a number. Time counts from the first enqueue until the
last result is there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from benchmarks.servers import POSTGRES
from rowlock import Context, Jobs
from tests.servers import PostgresServer


async def rowlock(url: str, count: int, steps: int, at_once: int) -> float:
    jobs = Jobs(url, migrate=True)

    async def one(n: int) -> int:
        return n

    @jobs.task
    async def flow(ctx: Context, steps: int) -> int:
        return sum([await ctx.step(one, n) for n in range(steps)])

    async with jobs:
        await jobs.start(concurrency=at_once)
        began = time.perf_counter()
        made = await jobs.enqueue_many([flow.draft(steps) for _ in range(count)])
        results = [(await jobs.wait(one.id, timeout=600)).result for one in made]
        took = time.perf_counter() - began
        await jobs.stop()
    assert results == [sum(range(steps))] * count
    return took


async def dbos(url: str, count: int, steps: int, at_once: int) -> float:
    from dbos import DBOS

    DBOS(config={"name": "bench", "system_database_url": url, "run_admin_server": False, "log_level": "ERROR"})

    @DBOS.step()
    async def one(n: int) -> int:
        return n

    @DBOS.workflow()
    async def flow(steps: int) -> int:
        return sum([await one(n) for n in range(steps)])

    DBOS.launch()
    free = asyncio.Semaphore(at_once)

    async def run() -> int:
        async with free:
            return await (await DBOS.start_workflow_async(flow, steps)).get_result()

    began = time.perf_counter()
    results = await asyncio.gather(*(run() for _ in range(count)))
    took = time.perf_counter() - began
    assert results == [sum(range(steps))] * count
    DBOS.destroy()
    return took


SYSTEMS: dict[str, Callable[[str, int, int, int], Awaitable[float]]] = {"rowlock": rowlock, "dbos": dbos}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__.split("\n")[0])
    for name, default in (("rounds", 3), ("jobs", 50), ("steps", 20), ("at-once", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--run", nargs=2, metavar=("SYSTEM", "URL"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    size = (given.jobs, given.steps, given.at_once)
    if given.run:
        system, url = given.run
        print(json.dumps(asyncio.run(_run(SYSTEMS[system], url, size))))
        return
    rates: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    with PostgresServer(durable=True, settings=POSTGRES) as server:
        for n in range(given.rounds):
            for name in list(SYSTEMS)[:: 1 if n % 2 else -1]:
                database = f"steps_{secrets.token_hex(4)}"
                server.administer(f"CREATE DATABASE {database}")
                program = [sys.executable, "-m", "benchmarks.steps", "--run", name, server.url(database)]
                words = [f"--jobs={size[0]}", f"--steps={size[1]}", f"--at-once={size[2]}"]
                done = subprocess.run([*program, *words], capture_output=True, text=True, check=False)
                if done.returncode:
                    sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
                rates[name].append(size[0] * size[1] / float(done.stdout.splitlines()[-1]))
    for name, found in rates.items():
        print(f"{name}: {statistics.median(found):,.0f} steps/s ({min(found):,.0f} to {max(found):,.0f})")
    ratios = [ours / theirs for ours, theirs in zip(rates["rowlock"], rates["dbos"], strict=True)]
    print(f"rowlock / dbos: {statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})")


async def _run(system: Callable[[str, int, int, int], Awaitable[float]], url: str, size: tuple[int, int, int]) -> float:
    return await system(url, *size)


if __name__ == "__main__":
    main()
