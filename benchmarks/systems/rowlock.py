"""rowlock as it is installed: the public API enqueues, `rowlock worker` works, `rowlock migrate` makes the tables."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

from benchmarks.systems.asking import count_rows
from benchmarks.systems.base import Order, System
from benchmarks.systems.verbs import Payload, Producer, async_program, version_of

APP = "benchmarks.systems.rowlock_app:jobs"
CONCURRENCY = 500
TOPIC = "noop"


def command(*arguments: str) -> NoReturn:
    """Replace this process by the installed command."""
    program = Path(sys.executable).with_name("rowlock")
    os.execv(program, [str(program), *arguments])


def setup(wanted: Order) -> None:
    command("migrate", "--url", wanted.url)


@asynccontextmanager
async def producing(wanted: Order, callers: int) -> AsyncIterator[Producer]:
    from benchmarks.systems.rowlock_app import jobs

    async def one(payload: Payload) -> None:
        await jobs.enqueue(TOPIC, payload)

    async def many(payloads: list[Payload]) -> None:
        await jobs.enqueue_many([(TOPIC, payload) for payload in payloads])

    async with jobs:  # connects, and checks that the tables are there
        yield Producer(one, many)


def worker(wanted: Order) -> None:
    command("worker", APP, "--concurrency", "1" if wanted.options.get("one") else str(CONCURRENCY), "--grace", "5")


async def unfinished(url: str) -> int:
    return await count_rows(url, "SELECT count(*) FROM _jobs WHERE finished_at IS NULL")


async def completed(url: str) -> int:
    return await count_rows(url, "SELECT count(*) FROM _jobs_archive")


SYSTEM = System(
    name="rowlock",
    store="postgres",
    version=version_of("rowlock"),
    unfinished=unfinished,
    completed=completed,
    settings={
        "client": "Jobs(url), on uvloop like all async clients",
        "worker": f"`rowlock worker --concurrency {CONCURRENCY}`, its own event loop",
        "bulk": "enqueue_many",
        "tables": "default migrations; completed jobs are kept in the archive",
    },
    pace=25_000,
)

if __name__ == "__main__":
    async_program(setup, producing, worker)
