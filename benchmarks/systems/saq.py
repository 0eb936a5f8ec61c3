"""saq on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.systems.asking import count_rows
from benchmarks.systems.base import Order, System
from benchmarks.systems.verbs import Payload, Producer, async_program, handled, version_of

CONNECTIONS = 20  # its default
CONCURRENCY = 50


def make_queue(wanted: Order) -> Any:
    from psycopg_pool import AsyncConnectionPool
    from saq.queue.postgres import PostgresQueue

    # A pool of our own: the pool that saq makes for a URL spends a round trip to check each connection before use.
    pool = AsyncConnectionPool(wanted.url, min_size=CONNECTIONS, max_size=CONNECTIONS, open=False)
    return PostgresQueue(pool, manage_pool_lifecycle=True, min_size=CONNECTIONS, max_size=CONNECTIONS)


async def setup(wanted: Order) -> None:
    queue = make_queue(wanted)
    await queue.connect()
    await queue.disconnect()


@asynccontextmanager
async def producing(wanted: Order, callers: int) -> AsyncIterator[Producer]:
    queue = make_queue(wanted)

    async def one(payload: Payload) -> None:
        await queue.enqueue("noop", **payload)

    async def many(payloads: list[Payload]) -> None:
        await asyncio.gather(*(one(payload) for payload in payloads))

    await queue.connect()
    await queue.count("queued")
    yield Producer(one, many)
    await queue.disconnect()


async def noop(context: object, **payload: int) -> None:
    handled(payload)


async def worker(wanted: Order) -> None:
    from saq import Worker

    queue = make_queue(wanted)
    await queue.connect()
    await Worker(queue, [("noop", noop)], concurrency=CONCURRENCY, shutdown_grace_period_s=2).start()
    await queue.disconnect()


async def unfinished(url: str) -> int:
    return await count_rows(url, "SELECT count(*) FROM saq_jobs WHERE status NOT IN ('complete', 'failed', 'aborted')")


async def completed(url: str) -> int:
    return await count_rows(url, "SELECT count(*) FROM saq_jobs WHERE status = 'complete'")


SYSTEM = System(
    name="saq",
    store="postgres",
    version=version_of("saq"),
    unfinished=unfinished,
    completed=completed,
    settings={
        "client": f"on uvloop, pool of {CONNECTIONS}",
        "worker": f"concurrency {CONCURRENCY}, pool of {CONNECTIONS}, LISTEN as by default",
        "tables": "finished jobs are kept for 10 minutes, as by default",
        "bulk": "has none: a gather of enqueues over the pool",
    },
    pace=300,
)

if __name__ == "__main__":
    async_program(setup, producing, worker)
