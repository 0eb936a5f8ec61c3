"""Measures a fan-out, alone and with a join behind it, beside queues that have such flows: chancy, DBOS and pg-boss.

python -m benchmarks.flow_peers [--jobs 1000,10000] [--rounds 3] [--systems rowlock,chancy,dbos,pg-boss] [--limit 120]

It needs `pip install chancy dbos`, and npm. All use one PostgreSQL that flushes every commit, each round in a database
of its own, in turns. The worker of each system is running already, in the same process. The time goes from the call
that enqueues the flow until the last job has run. A system that takes longer than --limit seconds says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.servers import POSTGRES
from tests.servers import PostgresServer

KINDS = ("fan-out", "fan-out and join")
NODE = Path(__file__).parent / "node" / "flows"
HOW = {
    "rowlock": "jobs.flow",
    "chancy": "Workflow; completions are written every 0.05 s (default 1); a leader is elected before the clock starts",
    "dbos": "no graph: the root is a workflow that enqueues the leaves. For a join it waits for their results",
    "pg-boss": "flow(); resolveFlow() is called whenever there is no job (by itself: every 5 s)",
}
_SLOTS = 500
_left = 0
_done: asyncio.Event


def _expect(count: int) -> None:
    global _left, _done
    _left, _done = count, asyncio.Event()


def _count() -> None:
    global _left
    _left -= 1
    if _left == 0:
        _done.set()


async def noop() -> None:
    """The handler of chancy, which finds it by its name."""
    _count()


async def rowlock(url: str, kind: str, count: int) -> tuple[float, float]:
    from rowlock import Jobs

    jobs = Jobs(url, migrate=True)

    @jobs.task(max_retries=0)
    async def task() -> None:
        _count()

    async with jobs:
        await jobs.start(concurrency=_SLOTS)
        await asyncio.sleep(1)
        _expect(count)
        flow = jobs.flow("fan")
        root = flow.add(task.draft())
        leaves = [flow.add(task.draft(), after=root) for _ in range(_leaves(kind, count))]
        if kind != "fan-out":
            flow.add(task.draft(), after=leaves)
        began = time.perf_counter()
        await flow.enqueue()
        enqueued = time.perf_counter() - began
        await _done.wait()
        took = time.perf_counter() - began
        await jobs.stop()
    return enqueued, took


async def chancy(url: str, kind: str, count: int) -> tuple[float, float]:
    from chancy import Chancy, Job, Queue, Worker
    from chancy.plugins.leadership import Leadership
    from chancy.plugins.workflow import Workflow, WorkflowPlugin

    log = logging.getLogger("chancy")  # chancy's default logger writes lines for every job
    log.setLevel(logging.WARNING)
    queue = Queue("default", executor=Chancy.Executor.Async, concurrency=_SLOTS, eager_polling=True, polling_interval=1)
    job = Job(func="benchmarks.flow_peers.noop")
    sys.modules["benchmarks.flow_peers"] = sys.modules[__name__]  # else chancy would import a second copy
    pool = {"min_connection_pool_size": 10, "max_connection_pool_size": 10}
    async with Chancy(url, **pool, plugins=[Leadership(poll_interval=1)], log=log) as app:
        await app.migrate()
        await app.declare(queue)
        async with Worker(app, shutdown_timeout=5) as worker:
            worker.send_outgoing_interval = 0.05
            await worker.is_leader.wait()
            _expect(count)
            flow = Workflow("fan").add("root", job)
            names = [f"leaf{n}" for n in range(_leaves(kind, count))]
            flow.add_group([(name, job) for name in names], ["root"])
            if kind != "fan-out":
                flow.add("join", job, names)
            began = time.perf_counter()
            await WorkflowPlugin.push(app, flow)
            enqueued = time.perf_counter() - began
            await _done.wait()
            took = time.perf_counter() - began
    return enqueued, took


async def dbos(url: str, kind: str, count: int) -> tuple[float, float]:
    from dbos import DBOS

    config: Any = {"name": "bench", "system_database_url": url, "run_admin_server": False, "log_level": "ERROR"}
    DBOS(config=config)

    @DBOS.workflow()
    async def leaf() -> None:
        _count()

    @DBOS.workflow()
    async def root(leaves: int, joins: bool) -> None:
        made = [await DBOS.enqueue_workflow_async("fan", leaf) for _ in range(leaves)]
        if joins:
            for one in made:
                await one.get_result()
            _count()
        _count()

    DBOS.launch()
    await DBOS.register_queue_async("fan", worker_concurrency=_SLOTS, polling_interval_sec=0.1)
    await asyncio.sleep(1)
    _expect(count)
    began = time.perf_counter()
    await DBOS.start_workflow_async(root, _leaves(kind, count), kind != "fan-out")
    enqueued = time.perf_counter() - began
    await _done.wait()
    took = time.perf_counter() - began
    DBOS.destroy()
    return enqueued, took


SYSTEMS: dict[str, Callable[[str, str, int], Awaitable[tuple[float, float]]]] = {
    "rowlock": rowlock,
    "chancy": chancy,
    "dbos": dbos,
}


def _leaves(kind: str, count: int) -> int:
    return count - (1 if kind == "fan-out" else 2)


def program(system: str, url: str, kind: str, count: int) -> list[str]:
    if system == "pg-boss":
        return [str(NODE / "node_modules" / ".bin" / "node"), str(NODE / "pg-boss.mjs"), url, kind, str(count)]
    return [sys.executable, "-m", "benchmarks.flow_peers", "--run", system, url, kind, str(count)]


def run(server: PostgresServer, system: str, kind: str, count: int, limit: float) -> list[float] | str:
    """Return the seconds until the flow is enqueued, and until all its jobs have run; or what went wrong."""
    database = f"flows_{secrets.token_hex(4)}"
    server.administer(f"CREATE DATABASE {database}")
    try:
        words = program(system, server.url(database), kind, count)
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"more than {limit:.0f} s"
    finally:
        server.administer(f"DROP DATABASE {database} WITH (FORCE)")
    if done.returncode:
        return f"failed: {done.stderr.strip()[-2000:]}"
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(systems: list[str], sizes: list[int], rounds: int, limit: float) -> None:
    if "pg-boss" in systems and not (NODE / "node_modules").is_dir():
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"], cwd=NODE, check=True)
    for system in systems:
        print(f"{system}: {HOW[system]}", flush=True)
    with PostgresServer(durable=True, settings=POSTGRES) as server:
        for kind in KINDS:
            for size in sizes:
                times: dict[str, list[list[float]]] = {system: [] for system in systems}
                bad: dict[str, str] = {}
                for n in range(rounds):
                    for system in systems[:: 1 if n % 2 else -1]:
                        if system in bad:  # another round would go wrong, too
                            continue
                        answer = run(server, system, kind, size, limit)
                        if isinstance(answer, str):
                            bad[system] = answer
                        else:
                            times[system].append(answer)
                for system, found in times.items():
                    print(f"{kind}, {size:,} jobs: {system}: {_shown(found, size, bad.get(system))}", flush=True)


def _shown(found: list[list[float]], size: int, bad: str | None) -> str:
    if bad is not None:
        return bad
    enqueued, took = (statistics.median(column) for column in zip(*found, strict=True))
    span = f"{min(one[1] for one in found):.2f} to {max(one[1] for one in found):.2f}"
    return f"{took:.2f} s ({span}), {size / took:,.0f} jobs/s; enqueued in {enqueued:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flow_peers", description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", default="1000,10000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--systems", default=",".join(HOW))
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--run", nargs=4, metavar=("SYSTEM", "URL", "KIND", "JOBS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        system, url, kind, count = given.run
        print(json.dumps(asyncio.run(_run(system, url, kind, int(count)))))
        return
    compare(given.systems.split(","), [int(size) for size in given.jobs.split(",")], given.rounds, given.limit)


async def _run(system: str, url: str, kind: str, count: int) -> tuple[float, float]:
    return await SYSTEMS[system](url, kind, count)


if __name__ == "__main__":
    main()
