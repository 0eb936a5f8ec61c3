"""awa: a Rust core with Python handlers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.systems.asking import CONNECTIONS, count_rows
from benchmarks.systems.base import Order, System
from benchmarks.systems.verbs import Payload, Producer, async_program, handled, version_of

QUEUE = "bench"
WORKERS = 500


@dataclass
class Noop:
    n: int
    t0: int = 0


async def setup(wanted: Order) -> None:
    from awa import AsyncClient

    client = AsyncClient(wanted.url)
    await client.migrate()
    await client.install_queue_storage()  # without this, only the first worker's start switches to it
    await client.close()


@asynccontextmanager
async def producing(wanted: Order, callers: int) -> AsyncIterator[Producer]:
    from awa import AsyncClient

    client = AsyncClient(wanted.url, max_connections=min(callers, CONNECTIONS))

    async def one(payload: Payload) -> None:
        await client.insert(Noop(**payload), queue=QUEUE)

    async def many(payloads: list[Payload]) -> None:
        await client.enqueue_many_copy([Noop(**payload) for payload in payloads], queue=QUEUE)

    await client.queue_stats()
    yield Producer(one, many)
    await client.close()


async def worker(wanted: Order) -> None:
    from awa import AsyncClient

    client = AsyncClient(wanted.url, max_connections=CONNECTIONS)

    @client.task(Noop, queue=QUEUE)
    async def noop(job: Any) -> None:
        handled({"n": job.args.n, "t0": job.args.t0} if job.args.t0 else {"n": job.args.n})

    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await client.start([(QUEUE, WORKERS)])
    await stopping.wait()
    await client.shutdown(timeout_ms=5000)
    await client.close()


# The view awa.jobs takes a second for some thousand jobs, and doesn't show those that a worker has claimed. A job's
# entry and its receipt lie in the same slot of a ring, so awa keeps both or removes both.
COMPLETED = """
SELECT (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)
     + (SELECT count(*) FROM awa.done_entries)"""
ENQUEUED = "SELECT (SELECT count(*) FROM awa.ready_entries) + (SELECT count(*) FROM awa.deferred_jobs)"


async def unfinished(url: str) -> int:
    return await count_rows(url, f"SELECT ({ENQUEUED}) - ({COMPLETED})")


async def completed(url: str) -> int:
    return await count_rows(url, COMPLETED)


SYSTEM = System(
    name="awa-pg",
    store="postgres",
    version=version_of("awa-pg"),
    unfinished=unfinished,
    completed=completed,
    settings={
        "client": "AsyncClient; one connection, for many callers 10",
        "worker": f"{WORKERS} workers on one queue, {CONNECTIONS} connections",
        "tables": "its default queue storage; completed jobs are kept for its default retention",
        "bulk": "enqueue_many_copy (COPY)",
    },
    pace=3000,
)

if __name__ == "__main__":
    async_program(setup, producing, worker)
