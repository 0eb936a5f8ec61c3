"""graphile-worker (Node, PostgreSQL), as its page on performance advises for the highest throughput."""

from benchmarks.systems import node
from benchmarks.systems.asking import count_rows
from benchmarks.systems.base import System


async def unfinished(url: str) -> int:
    return await count_rows(url, "SELECT count(*) FROM graphile_worker._private_jobs")  # completed jobs are deleted


SYSTEM = System(
    name="graphile-worker",
    store="postgres",
    version=node.version("graphile-worker"),
    unfinished=unfinished,
    settings={
        "client": "addJob of its worker utilities; a pool of 10 connections",
        "worker": "24 concurrent jobs, 25 connections, localQueue of 500, batched completion (its delay 0), "
        "LISTEN as by default, no log line per job",
        "bulk": "addJobs",
    },
    pace=12_000,
    start=node.program("graphile-worker"),
)
