"""Measures schedules: how late their jobs are, many that are due at the same second, and what they cost an idle worker.

python -m benchmarks.schedules [--lateness 30] [--at-once 1000] [--idle 10000] [--seconds 20] [--only postgres]

The worker runs in this process, as an application runs it; the databases are those of benchmarks.waits. Nominal times
are compared with this machine's clock, which is the databases', too.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sqlite3
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import asyncpg

from benchmarks.servers import POSTGRES
from benchmarks.waits import _commits, _cpu, fresh
from rowlock import Cron, Every, Job, Jobs
from rowlock.core.schedules import Definition, Schedule, next_time
from rowlock.stores.schedules import COLUMNS, TIMES, row_of
from rowlock.zones import zone_data
from tests.servers import PostgresServer

_CREATED = {
    "sqlite": "SELECT fire_at, created, claimed_at FROM _jobs_archive WHERE fire_at IS NOT NULL",
    "postgres": "SELECT _jobs_us(fire_at), _jobs_us(created), _jobs_us(claimed_at) FROM _jobs_archive"
    " WHERE fire_at IS NOT NULL",
}


class Started:
    """Notes when handlers began: in seconds after the nominal time of their job."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self.changed = asyncio.Event()

    def note(self, job: Job) -> None:
        if job.fire_at is None:
            raise AssertionError("the job does not know its nominal time")
        self.late.append(time.time() - job.fire_at.timestamp())
        self.changed.set()

    async def all(self, count: int, timeout: float) -> None:
        async with asyncio.timeout(timeout):
            while len(self.late) < count:
                self.changed.clear()
                await self.changed.wait()


def application(url: str, started: Started) -> Jobs:
    jobs = Jobs(url, migrate=True)

    @jobs.task("tick")
    async def _tick(job: Job) -> None:
        started.note(job)

    return jobs


async def lateness(url: str, seconds: int) -> str:
    """Return how late the jobs of a single schedule are inserted, and how late their handlers begin."""
    started = Started()
    jobs = application(url, started)
    async with jobs:
        await jobs.start(concurrency=10)
        await asyncio.sleep(3)  # until the worker has finished what it does at its start
        await jobs.schedules.put("single", ("tick", {}), Every(1))
        await started.all(seconds, timeout=2 * seconds + 10)
        await asyncio.sleep(1)
        await jobs.stop()
    rows = await _fetch(url)
    made = [(created - fire_at) / 1e3 for fire_at, created, _ in rows]
    began = [1e3 * late for late in started.late]
    return f"Every(1), {len(rows)} times: job made {_spread(made)}; handler began {_spread(began)}"


async def at_once(url: str, amount: int) -> str:
    """Return when the jobs are made, and when they begin, if many schedules are due at the same second."""
    started = Started()
    jobs = application(url, started)
    async with jobs:
        await jobs.start(concurrency=100)
        await asyncio.sleep(3)
        due = (datetime.now(UTC) + timedelta(seconds=10)).replace(microsecond=0)
        await _many(url, amount, Definition(topic="tick", when=Every(86_400.0, due)))
        await started.all(amount, timeout=60)
        await asyncio.sleep(1)
        await jobs.stop()
    made = sorted((created - fire_at) / 1e6 for fire_at, created, _ in await _fetch(url))
    late = sorted(started.late)
    return (
        f"{amount:,} at once: jobs made after {made[0]:.3f} to {made[-1]:.3f} s, handlers began after {late[0]:.3f} to"
        f" {late[-1]:.3f} s (half of them after {late[len(late) // 2]:.3f} s)"
    )


async def idle(url: str, postmaster: int | None, amount: int, seconds: float) -> str:
    """Return what an idle worker costs beside schedules that are not due."""
    jobs = application(url, Started())
    async with jobs:
        await jobs.start(concurrency=10)
        if amount:
            await _many(url, amount, Definition(topic="tick", when=Cron("0 0 1 1 *", "Europe/Berlin")))
        await asyncio.sleep(3)
        cpu, commits, began = _cpu(postmaster), await _commits(url), time.perf_counter()
        await asyncio.sleep(seconds)
        took = time.perf_counter() - began
        used, done = _cpu(postmaster) - cpu, await _commits(url) - commits
        await jobs.stop()
    rate = f", {done / took:.1f} commits/s" if done else ""
    return f"idle worker, {amount:,} schedules: {100 * used / took:.2f} % of a core{rate}"


# ── Rows ──


async def _many(url: str, amount: int, definition: Definition) -> None:
    """Insert schedules as `put` does, in one transaction."""
    now = datetime.now(UTC)
    at = next_time(definition, now, UTC)
    rows = [
        row_of(
            Schedule(
                id=f"{secrets.token_hex(4)}-{secrets.token_hex(2)}-7{n % 4096:03x}-8000-{n:012x}",
                name=f"bench-{n}",
                upto=now,
                next_run_at=at,
                zone_data=zone_data(),
                created=now,
                updated=now,
                **{name: getattr(definition, name) for name in Definition.__struct_fields__},
            )
        )
        for n in range(amount)
    ]
    names = ", ".join(COLUMNS)
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.executemany(
                f"INSERT INTO _jobs_schedules ({names}) VALUES ({', '.join(f':{name}' for name in COLUMNS)})", rows
            )
        connection.close()
        return
    values = ", ".join(f"_jobs_time(${n})" if name in TIMES else f"${n}" for n, name in enumerate(COLUMNS, 1))
    pg = await asyncpg.connect(url)
    async with pg.transaction():
        await pg.executemany(
            f"INSERT INTO _jobs_schedules ({names}) VALUES ({values})",
            [[row[name] for name in COLUMNS] for row in rows],
        )
    await pg.execute("ANALYZE _jobs_schedules")
    await pg.close()


async def _fetch(url: str) -> Sequence[tuple[int, int, int]]:
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            found = connection.execute(_CREATED["sqlite"]).fetchall()
        connection.close()
        return found
    pg = await asyncpg.connect(url)
    rows = [tuple(row) for row in await pg.fetch(_CREATED["postgres"])]
    await pg.close()
    return rows


def _spread(milliseconds: Sequence[float]) -> str:
    many = sorted(milliseconds)
    return f"after p50 {many[len(many) // 2]:.1f}, p99 {many[int(0.99 * len(many))]:.1f}, longest {many[-1]:.1f} ms"


async def measure(given: argparse.Namespace) -> None:
    with PostgresServer(durable=True, settings=POSTGRES) as server:
        for store in [given.only] if given.only else ["postgres", "sqlite"]:
            async with fresh(store, server) as (url, _):
                print(f"{store}: {await lateness(url, given.lateness)}", flush=True)
            async with fresh(store, server) as (url, _):
                print(f"{store}: {await at_once(url, given.at_once)}", flush=True)
            for amount in (0, given.idle, 0, given.idle):  # in turns: the machine may be busy with other things
                async with fresh(store, server) as (url, pid):
                    print(f"{store}: {await idle(url, pid, amount, given.seconds)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schedules", description=__doc__.split("\n")[0])
    for name, default in (("lateness", 30), ("at-once", 1000), ("idle", 10_000), ("seconds", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", choices=["postgres", "sqlite"])
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
