"""pg-boss (Node, PostgreSQL)."""

from benchmarks.systems import node
from benchmarks.systems.asking import count_rows
from benchmarks.systems.base import System

JOBS = "SELECT count(*) FROM pgboss.job WHERE name = 'noop' AND state"


async def unfinished(url: str) -> int:
    return await count_rows(url, f"{JOBS} < 'completed'")


async def completed(url: str) -> int:
    return await count_rows(url, f"{JOBS} = 'completed'")


SYSTEM = System(
    name="pg-boss",
    store="postgres",
    version=node.version("pg-boss"),
    unfinished=unfinished,
    completed=completed,
    settings={
        "client": "send; a pool of 10 connections",
        "worker": "two loops of fetch and complete, 500 jobs at a time; polls every 0.5 s when there are none, "
        "which is the least that its work() allows",
        "bulk": "insert",
    },
    pace=6_000,
    start=node.program("pg-boss"),
)
