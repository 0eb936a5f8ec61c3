"""Measures how soon an idle worker in another process starts a job, and what it costs while it is idle.

    python benchmarks/pickup.py                     SQLite, and a private PostgreSQL with durable commits
    python benchmarks/pickup.py --jobs 500 --idle 30

`from call`: from calling enqueue to the handler's start, commit included. `from commit`: from enqueue's return.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from rowlock import Jobs
from tests.servers import PostgresServer

APP = """
import os, time
from rowlock import Jobs
jobs = Jobs(os.environ["ROWLOCK_URL"])

@jobs.task
async def clock() -> float:
    return time.monotonic()
"""


def family(pid: int) -> list[int]:
    """Return the ids of the process and of all its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += family(int(child))
    return found


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def measure(name: str, url: str, jobs_count: int, idle: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "app.py").write_text(APP)
        asyncio.run(Jobs(url, migrate=True).open())
        worker = subprocess.Popen(
            [sys.executable, "-m", "rowlock", "worker", "app:jobs"],
            cwd=folder, env={**os.environ, "ROWLOCK_URL": url}, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            from_call, from_commit = asyncio.run(pick_up(url, jobs_count))
            time.sleep(2)
            pids = family(worker.pid)
            before = [cpu_seconds(pid) for pid in pids]
            time.sleep(idle)
            cpu = [100 * (cpu_seconds(pid) - was) / idle for pid, was in zip(pids, before, strict=True)]
            report = {
                "store": name,
                "from_call_ms": percentiles(from_call),
                "from_commit_ms": percentiles(from_commit),
                "idle_cpu_percent": [round(share, 2) for share in cpu],
                "rss_mib": [round(rss_mib(pid), 1) for pid in pids],
            }
            print(json.dumps(report))
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait()


async def pick_up(url: str, count: int) -> tuple[list[float], list[float]]:
    from_call, from_commit = [], []
    async with Jobs(url) as jobs:
        await jobs.wait((await jobs.enqueue("clock")).id)  # until the worker is there
        for _ in range(count):
            await asyncio.sleep(0.05)
            called = time.monotonic()
            made = await jobs.enqueue("clock")
            returned = time.monotonic()
            job = await jobs.wait(made.id, timeout=30)
            from_call.append(1e3 * (job.result - called))
            from_commit.append(1e3 * (job.result - returned))
    return from_call, from_commit


def percentiles(values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100)
    return {"p50": round(cuts[49], 2), "p95": round(cuts[94], 2), "p99": round(cuts[98], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--idle", type=float, default=20.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure("sqlite", f"sqlite:///{folder}/jobs.db", given.jobs, given.idle)
    with PostgresServer(durable=True) as server:
        measure("postgres", server.url(), given.jobs, given.idle)


if __name__ == "__main__":
    main()
