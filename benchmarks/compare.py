"""Compares this checkout with another commit: enqueue and drain on both databases, rounds in turns.

python -m benchmarks.compare COMMIT [--rounds 8] [--only postgres/callers,sqlite/drain]

Each round starts a process of each commit with a fresh database. CPU time of the process and of its PostgreSQL
backends varies less than time on the clock on a machine that others use, so that both are shown. A ratio above 1 means
that this checkout needs more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.servers import POSTGRES, disk_folder
from rowlock import Jobs
from tests.servers import PostgresServer

HERE = Path(__file__).resolve().parent.parent
SIZES = {"single": 1_500, "callers": 30_000, "bulk": 60_000, "drain": 30_000}
CALLERS = 100


async def single(jobs: Jobs, count: int) -> None:
    for n in range(count):
        await jobs.enqueue("bench", {"n": n})


async def callers(jobs: Jobs, count: int) -> None:
    async def call(n: int) -> None:
        for i in range(count // CALLERS):
            await jobs.enqueue("bench", {"n": n, "i": i})

    await asyncio.gather(*(call(n) for n in range(CALLERS)))


async def bulk(jobs: Jobs, count: int) -> None:
    for start in range(0, count, 10_000):
        await jobs.enqueue_many([("bench", {"n": n}) for n in range(start, min(start + 10_000, count))])


async def drain(jobs: Jobs, count: int) -> None:
    await jobs.start(concurrency=500)
    while (await jobs.stats()).completed < count:  # noqa: ASYNC110 - nothing tells it
        await asyncio.sleep(0.02)
    await jobs.stop()


WORK: dict[str, Callable[[Jobs, int], Awaitable[None]]] = {
    "single": single, "callers": callers, "bulk": bulk, "drain": drain,
}  # fmt: skip


async def measure(url: str, name: str, postmaster: int) -> tuple[float, float]:
    """Return the CPU seconds, and the seconds on the clock, of one piece of work."""
    jobs = Jobs(url, migrate=True)

    @jobs.task("bench")
    async def _bench(n: int, i: int = 0) -> None: ...

    count = SIZES[name]
    async with jobs:
        if name == "drain":
            await bulk(jobs, count)
        else:
            await WORK[name](jobs, count // 20)  # warms up: connects, prepares statements, fills caches
        cpu, clock = _cpu(postmaster), time.perf_counter()
        await WORK[name](jobs, count)
        return _cpu(postmaster) - cpu, time.perf_counter() - clock


def _cpu(postmaster: int) -> float:
    own = time.process_time()
    if not postmaster:
        return own
    server = psutil.Process(postmaster)
    return own + sum(sum(one.cpu_times()[:2]) for one in [server, *server.children()])


@contextmanager
def other_checkout(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rowlock-compare-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), commit], cwd=HERE, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=HERE, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__.split("\n")[0])
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", help="measures, separated by commas", default="")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        name, url, postmaster = given.run
        print(json.dumps(asyncio.run(measure(url, name, int(postmaster)))))
        return
    names = [f"{store}/{name}" for store in ("postgres", "sqlite") for name in WORK]
    wanted = given.only.split(",") if given.only else names
    if unknown := sorted({*wanted} - {*names}):
        parser.error(f"there is no measure {', '.join(unknown)}; there are {', '.join(names)}")
    with other_checkout(given.commit) as other, PostgresServer(durable=True, settings=POSTGRES) as server:
        for name in wanted:
            _compare(name, {"this": HERE, "other": other}, server, given.rounds)


def _compare(name: str, trees: dict[str, Path], server: PostgresServer, rounds: int) -> None:
    found: dict[str, list[tuple[float, float]]] = {which: [] for which in trees}
    for n in range(rounds):
        for which in list(trees)[:: 1 if n % 2 else -1]:
            found[which].append(_once(name, trees[which], server))
    words = []
    for kind, title in enumerate(("CPU", "time")):
        ratios = [ours[kind] / theirs[kind] for ours, theirs in zip(found["this"], found["other"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if rounds > 1 else ratios * 3
        total = sum(one[kind] for one in found["this"]) / sum(one[kind] for one in found["other"])
        words.append(f"{title} {middle:.3f} (quartiles {low:.3f} to {high:.3f}, of the sums {total:.3f})")
    each = 1e6 * statistics.median(one[0] for one in found["this"]) / SIZES[name.split("/")[1]]
    print(f"{name:17} {'; '.join(words)}; {each:.1f} µs of CPU per job", flush=True)


def _once(name: str, tree: Path, server: PostgresServer) -> tuple[float, float]:
    store, work = name.split("/")
    with tempfile.TemporaryDirectory(dir=disk_folder(), prefix="rowlock-compare-") as folder:
        database = f"compare_{secrets.token_hex(4)}"
        if store == "postgres":
            server.administer(f"CREATE DATABASE {database}")
        url = server.url(database) if store == "postgres" else f"sqlite:///{folder}/jobs.db"
        pid = server.pid if store == "postgres" else 0
        words = [sys.executable, "-m", "benchmarks.compare", "-", "--run", work, url, str(pid)]
        paths = os.pathsep.join([str(tree / "src"), str(HERE)])
        done = subprocess.run(
            words, cwd=HERE, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
        )
        if store == "postgres":
            server.administer(f"DROP DATABASE {database} WITH (FORCE)")
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
    cpu, seconds = json.loads(done.stdout.splitlines()[-1])
    return cpu, seconds


if __name__ == "__main__":
    main()
