"""Measures waits: what waiting jobs cost an idle worker, timers that are due together, and how fast a signal arrives.

python -m benchmarks.waits [--waiting 100000] [--timers 10000] [--signals 200] [--seconds 20] [--only postgres]
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sqlite3
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import psutil

from benchmarks.servers import POSTGRES, disk_folder
from rowlock import Context, Filter, Jobs, Status
from tests.servers import PostgresServer

# Makes the rows as a run that waits for ever leaves them. To run so many handlers would take minutes.
_WAIT = "UPDATE _jobs SET status = 'waiting', ready = {no}, run_at = {never}, waits_for = 'signal:go', version = 1"


class Woken:
    """Notes when handlers went on, by time.perf_counter()."""

    at: dict[int, float]

    def __init__(self) -> None:
        self.at = {}
        self.changed = asyncio.Event()

    def note(self, n: int) -> None:
        self.at[n] = time.perf_counter()
        self.changed.set()

    async def all(self, count: int) -> None:
        while len(self.at) < count:
            self.changed.clear()
            await self.changed.wait()


def application(url: str, woken: Woken) -> Jobs:
    jobs = Jobs(url, migrate=True)

    @jobs.task("sleeper")
    async def _sleeper(ctx: Context, n: int, until: datetime) -> None:
        await ctx.sleep(until=until)
        woken.note(n)

    @jobs.task("listener")
    async def _listener(ctx: Context, n: int) -> None:
        await ctx.wait_for("go")
        woken.note(n)

    return jobs


async def count(jobs: Jobs, status: Status, wanted: int) -> None:
    while (await jobs.list(Filter(statuses=[status]), limit=1)).total < wanted:  # noqa: ASYNC110 - nothing tells it
        await asyncio.sleep(0.05)


async def idle(url: str, postmaster: int | None, waiting: int, seconds: float) -> str:
    """Return the CPU time and the transactions per second of a worker that has nothing to do."""
    jobs = application(url, Woken())
    async with jobs:
        for start in range(0, waiting, 10_000):
            many = range(start, min(start + 10_000, waiting))
            await jobs.enqueue_many([("listener", {"n": n}) for n in many])
        if waiting:
            await _make_wait(url)
        await jobs.start(concurrency=10)
        await asyncio.sleep(3)  # until the worker has finished what it does at its start
        cpu, commits, began = _cpu(postmaster), await _commits(url), time.perf_counter()
        await asyncio.sleep(seconds)
        took = time.perf_counter() - began
        used, done = _cpu(postmaster) - cpu, await _commits(url) - commits
        await jobs.stop()
    return f"{waiting:,} waiting: {100 * used / took:.2f} % of a core" + (
        f", {done / took:.1f} commits/s" if done else ""
    )


async def timers(url: str, amount: int) -> str:
    """Return how long it takes until all jobs go on whose timers end at the same moment."""
    woken = Woken()
    jobs = application(url, woken)
    async with jobs:
        await jobs.start(concurrency=100)
        until = datetime.now(UTC) + timedelta(seconds=5 + amount / 200)
        await jobs.enqueue_many([("sleeper", {"n": n, "until": until.isoformat()}) for n in range(amount)])
        await count(jobs, Status.WAITING, min(amount, 10_000))
        left = (until - datetime.now(UTC)).total_seconds()
        if left < 0:
            raise SystemExit("the jobs did not reach their wait in time: use fewer")
        due = time.perf_counter() + left
        await woken.all(amount)
        await jobs.stop()
    late = sorted(at - due for at in woken.at.values())
    return f"{amount:,} timers: half went on after {late[len(late) // 2]:.2f} s, all after {late[-1]:.2f} s"


async def signals(url: str, amount: int) -> str:
    """Return how long it takes from jobs.signal until the handler has gone on."""
    woken = Woken()
    jobs = application(url, woken)
    took = []
    async with jobs:
        await jobs.start(concurrency=10)
        made = await jobs.enqueue_many([("listener", {"n": n}) for n in range(amount)])
        await count(jobs, Status.WAITING, amount)
        for n, one in enumerate(made):
            began = time.perf_counter()
            await jobs.signal(one.id, "go")
            await woken.all(n + 1)
            took.append(1000 * (woken.at[n] - began))
            await asyncio.sleep(0.05)  # until the worker is idle again
        await jobs.stop()
    took.sort()
    p50, p99 = statistics.median(took), took[int(0.99 * len(took))]
    return f"{amount} signals: p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {took[-1]:.1f} ms"


async def _make_wait(url: str) -> None:
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.execute(_WAIT.format(no="0", never=str(2**62)))
        connection.close()
        return
    connection = await asyncpg.connect(url)
    await connection.execute(_WAIT.format(no="false", never="'infinity'"))
    await connection.execute("VACUUM ANALYZE _jobs")
    await connection.close()


async def _commits(url: str) -> int:
    if url.startswith("sqlite"):
        return 0
    connection = await asyncpg.connect(url)
    found: int = await connection.fetchval(
        "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
    )
    await connection.close()
    return found


def _cpu(postmaster: int | None) -> float:
    own = time.process_time()
    if postmaster is None:
        return own
    server = psutil.Process(postmaster)
    return own + sum(sum(one.cpu_times()[:2]) for one in [server, *server.children()])


@asynccontextmanager
async def fresh(store: str, server: PostgresServer) -> AsyncIterator[tuple[str, int | None]]:
    with tempfile.TemporaryDirectory(dir=disk_folder(), prefix="rowlock-waits-") as folder:
        if store == "sqlite":
            yield f"sqlite:///{Path(folder) / 'jobs.db'}", None
            return
        name = f"waits_{secrets.token_hex(4)}"
        server.administer(f"CREATE DATABASE {name}")
        try:
            yield server.url(name), server.pid
        finally:
            server.administer(f"DROP DATABASE {name} WITH (FORCE)")


async def measure(given: argparse.Namespace) -> None:
    with PostgresServer(durable=True, settings=POSTGRES) as server:
        for store in [given.only] if given.only else ["postgres", "sqlite"]:
            for waiting in (0, given.waiting):
                async with fresh(store, server) as (url, pid):
                    print(f"{store}: idle worker, {await idle(url, pid, waiting, given.seconds)}", flush=True)
            async with fresh(store, server) as (url, _):
                print(f"{store}: {await timers(url, given.timers)}", flush=True)
            async with fresh(store, server) as (url, _):
                print(f"{store}: {await signals(url, given.signals)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.waits", description=__doc__.split("\n")[0])
    for name, default in (("waiting", 100_000), ("timers", 10_000), ("signals", 200), ("seconds", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", choices=["postgres", "sqlite"])
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
