"""chancy with its async executor."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.systems.asking import CONNECTIONS, count_rows
from benchmarks.systems.base import Order, System
from benchmarks.systems.verbs import Payload, Producer, async_program, handled, version_of

NOOP = "benchmarks.systems.chancy.noop"
CONCURRENCY = 500
WRITE_SECONDS = 0.05  # the default, 1, would only delay completions


async def noop(**payload: int) -> None:
    handled(payload)


def make_app(wanted: Order, connections: int) -> Any:
    from chancy import Chancy

    log = logging.getLogger("chancy")  # chancy's default logger writes lines for every job
    log.setLevel(logging.WARNING)
    return Chancy(
        wanted.url, min_connection_pool_size=connections, max_connection_pool_size=max(connections, 2), log=log
    )


async def setup(wanted: Order) -> None:
    from chancy import Chancy, Queue

    async with make_app(wanted, 1) as app:
        await app.migrate()
        await app.declare(
            Queue(
                "default",
                executor=Chancy.Executor.Async,
                concurrency=CONCURRENCY,
                eager_polling=True,
                polling_interval=1,
            )
        )


@asynccontextmanager
async def producing(wanted: Order, callers: int) -> AsyncIterator[Producer]:
    from chancy import Job

    async with make_app(wanted, min(callers, CONNECTIONS)) as app:

        async def one(payload: Payload) -> None:
            await app.push(Job(func=NOOP, kwargs=payload))

        async def many(payloads: list[Payload]) -> None:
            async for _references in app.push_many([Job(func=NOOP, kwargs=payload) for payload in payloads]):
                pass

        await app.get_queue("default")
        yield Producer(one, many)


async def worker(wanted: Order) -> None:
    from chancy import Worker

    async with make_app(wanted, CONNECTIONS) as app, Worker(app, shutdown_timeout=5) as running:
        running.send_outgoing_interval = WRITE_SECONDS
        await running.wait_for_shutdown()


async def unfinished(url: str) -> int:
    return await count_rows(url, "SELECT count(*) FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying')")


async def completed(url: str) -> int:
    return await count_rows(url, "SELECT count(*) FROM chancy_jobs WHERE state = 'succeeded'")


SYSTEM = System(
    name="chancy",
    store="postgres",
    version=version_of("chancy"),
    unfinished=unfinished,
    completed=completed,
    settings={
        "client": "on uvloop; one connection, for many callers a pool of 10",
        "worker": f"async executor, concurrency {CONCURRENCY}, eager polling, LISTEN",
        "completion": f"written every {WRITE_SECONDS} s (default 1), one UPDATE per job in a pipeline",
        "tables": "default migrations and plugins; finished jobs are kept until its pruner comes",
        "log": "warnings only",
        "bulk": "push_many, which inserts one by one in a transaction",
    },
    pace=1500,
)

if __name__ == "__main__":
    async_program(setup, producing, worker)
