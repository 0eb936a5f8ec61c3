"""pgqueuer, as its performance guide advises: one connection for the worker, a pool for producers, autovacuum tuned."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.systems.asking import CONNECTIONS, count_rows
from benchmarks.systems.base import Order, System
from benchmarks.systems.verbs import Payload, Producer, async_program, handled, version_of


async def setup(wanted: Order) -> None:
    import asyncpg
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.queries import Queries

    connection = await asyncpg.connect(wanted.url)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()  # durable tables are its default
    await queries.optimize_autovacuum()
    await connection.close()


@asynccontextmanager
async def producing(wanted: Order, callers: int) -> AsyncIterator[Producer]:
    import asyncpg
    from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
    from pgqueuer.queries import Queries

    async with asyncpg.create_pool(wanted.url, min_size=min(callers, CONNECTIONS), max_size=CONNECTIONS) as pool:
        connection = await pool.acquire() if callers == 1 else None
        queries = Queries(AsyncpgDriver(connection) if connection else AsyncpgPoolDriver(pool))
        await queries.driver.fetch("SELECT 1")

        async def one(payload: Payload) -> None:
            await queries.enqueue("noop", json.dumps(payload).encode())

        async def many(payloads: list[Payload]) -> None:
            count = len(payloads)
            await queries.enqueue(["noop"] * count, [json.dumps(p).encode() for p in payloads], [0] * count)

        yield Producer(one, many)
        if connection:
            await pool.release(connection)


async def worker(wanted: Order) -> None:
    import asyncpg
    from pgqueuer import PgQueuer
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.models import Job

    connection = await asyncpg.connect(wanted.url)
    queuer = PgQueuer(AsyncpgDriver(connection))

    @queuer.entrypoint("noop")
    async def noop(job: Job) -> None:
        handled(json.loads(job.payload or b""))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queuer.shutdown.set)
    await queuer.run(batch_size=1 if wanted.options.get("one") else 1000)
    await connection.close()


async def unfinished(url: str) -> int:
    return await count_rows(url, "SELECT count(*) FROM pgqueuer")


async def completed(url: str) -> int:
    return await count_rows(url, "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'")


SYSTEM = System(
    name="pgqueuer",
    store="postgres",
    version=version_of("pgqueuer"),
    unfinished=unfinished,
    completed=completed,
    settings={
        "client": "asyncpg on uvloop; one connection, for many callers a pool of 10",
        "worker": "run(batch_size=1000) on one connection; LISTEN as by default",
        "tables": "durable (logged), tuned by `pgq autovac`; finished jobs are deleted and logged in pgqueuer_log",
        "bulk": "enqueue() with lists",
    },
    pace=15_000,
)

if __name__ == "__main__":
    async_program(setup, producing, worker)
