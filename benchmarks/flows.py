"""Measures flows beside plain jobs, rounds in turns: enqueue, a fan-out, a fan-out with a join behind it, and a gather.

python -m benchmarks.flows [--jobs 10000] [--children 1000] [--rounds 3] [--only postgres]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from benchmarks.servers import POSTGRES
from benchmarks.waits import fresh
from rowlock import Context, Jobs
from rowlock.cli.service import calm_collector
from tests.servers import PostgresServer

_SLOTS = 500


class Application:
    """Tasks that do nothing but count down the jobs that are left."""

    def __init__(self, url: str) -> None:
        self.jobs = jobs = Jobs(url, migrate=True)
        self._left = 0
        self._done = asyncio.Event()

        @jobs.task("root", max_retries=0)
        async def root() -> int:
            self.count()
            return 1

        @jobs.task("leaf", max_retries=0)
        async def leaf(n: int) -> int:
            self.count()
            return n

        @jobs.task("gatherer", max_retries=0)
        async def gatherer(ctx: Context, children: int) -> int:
            return sum(await ctx.gather([leaf.draft(n) for n in range(children)]))

        self.root, self.leaf, self.gatherer = root, leaf, gatherer

    def count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._done.set()

    async def drain(self, count: int) -> float:
        """Return the seconds until a new worker has run `count` jobs."""
        self._left = count
        self._done.clear()
        began = time.perf_counter()
        await self.jobs.start(concurrency=_SLOTS)
        await self._done.wait()
        took = time.perf_counter() - began
        await self.jobs.stop()
        return took


async def plain(app: Application, count: int) -> tuple[float, float]:
    """Return the seconds that the enqueue takes, and those that a new worker takes to run all jobs."""
    began = time.perf_counter()
    await app.jobs.enqueue_many([app.leaf.draft(n) for n in range(count)])
    return time.perf_counter() - began, await app.drain(count)


async def fan_out(app: Application, count: int, *, joins: bool = False) -> tuple[float, float]:
    began = time.perf_counter()
    flow = app.jobs.flow("fan")
    first = flow.add(app.root.draft())
    leaves = [flow.add(app.leaf.draft(n), after=first) for n in range(count - 1 - joins)]
    if joins:
        flow.add(app.root.draft(), after=leaves, name="join")
    await flow.enqueue()
    return time.perf_counter() - began, await app.drain(count)


async def joined(app: Application, count: int) -> tuple[float, float]:
    return await fan_out(app, count, joins=True)


async def gathered(app: Application, children: int) -> float:
    """Return the seconds from the enqueue of the job to its result."""
    await app.jobs.start(concurrency=_SLOTS)
    began = time.perf_counter()
    result = await app.jobs.result(await app.gatherer.enqueue(children), timeout=600)
    took = time.perf_counter() - began
    await app.jobs.stop()
    if result != sum(range(children)):
        raise SystemExit(f"the sum is {result}")
    return took


Kind = Callable[[Application, int], Awaitable[tuple[float, float]]]
KINDS: dict[str, Kind] = {"plain": plain, "fan-out": fan_out, "fan-out and join": joined}


async def measure(given: argparse.Namespace) -> None:
    with PostgresServer(durable=True, settings=POSTGRES) as server:
        for store in [given.only] if given.only else ["postgres", "sqlite"]:
            times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
            gathers = []
            for _ in range(given.rounds):
                for kind, run in KINDS.items():
                    async with fresh(store, server) as (url, _):
                        app = Application(url)
                        async with app.jobs:
                            times[kind].append(await run(app, given.jobs))
                async with fresh(store, server) as (url, _):
                    app = Application(url)
                    async with app.jobs:
                        gathers.append(await gathered(app, given.children))
            for kind, took in times.items():
                enqueue, drain = (statistics.median(column) for column in zip(*took, strict=True))
                ratio = statistics.median(one[1] / other[1] for one, other in zip(times["plain"], took, strict=True))
                rate = f"{given.jobs / drain:,.0f} jobs/s, {ratio:.2f} of the plain rate"
                print(f"{store}: {kind}, {given.jobs:,} jobs: enqueued in {enqueue:.2f} s; {rate}", flush=True)
            print(f"{store}: gather of {given.children:,}: {statistics.median(gathers):.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flows", description=__doc__.split("\n")[0])
    for name, default in (("jobs", 10_000), ("children", 1_000), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", choices=["postgres", "sqlite"])
    given = parser.parse_args()
    calm_collector()  # as `rowlock worker` does
    asyncio.run(measure(given))


if __name__ == "__main__":
    main()
