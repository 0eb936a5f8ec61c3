"""procrastinate on psycopg's async pool."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.systems.asking import CONNECTIONS, count_rows
from benchmarks.systems.base import Order, System
from benchmarks.systems.verbs import Payload, Producer, async_program, handled, version_of

CONCURRENCY = 5  # it fetches and finishes jobs one by one: more jobs at once only wait for each other's locks


def make_app(wanted: Order, connections: int) -> Any:
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=wanted.url, min_size=connections, max_size=connections))

    @app.task(name="noop")
    async def noop(**payload: int) -> None:
        handled(payload)

    return app


async def setup(wanted: Order) -> None:
    async with make_app(wanted, 1).open_async() as app:
        await app.schema_manager.apply_schema_async()


@asynccontextmanager
async def producing(wanted: Order, callers: int) -> AsyncIterator[Producer]:
    async with make_app(wanted, min(callers, CONNECTIONS)).open_async() as app:
        noop = app.tasks["noop"]

        async def one(payload: Payload) -> None:
            await noop.defer_async(**payload)

        async def many(payloads: list[Payload]) -> None:
            await noop.batch_defer_async(*payloads)

        await app.connector.execute_query_one_async("SELECT 1 AS one")
        yield Producer(one, many)


async def worker(wanted: Order) -> None:
    async with make_app(wanted, CONNECTIONS).open_async() as app:
        await app.run_worker_async(concurrency=CONCURRENCY, shutdown_graceful_timeout=5)


async def unfinished(url: str) -> int:
    return await count_rows(url, "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')")


async def completed(url: str) -> int:
    return await count_rows(url, "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'")


SYSTEM = System(
    name="procrastinate",
    store="postgres",
    version=version_of("procrastinate"),
    unfinished=unfinished,
    completed=completed,
    settings={
        "client": "PsycopgConnector on uvloop; one connection, for many callers a pool of 10",
        "worker": f"concurrency {CONCURRENCY}, pool of {CONNECTIONS}, LISTEN as by default",
        "tables": "default schema; finished jobs are kept, as by default",
        "bulk": "batch_defer_async",
    },
    pace=300,
)

if __name__ == "__main__":
    from benchmarks.systems import procrastinate as module  # procrastinate advises against an app in the main module

    async_program(module.setup, module.producing, module.worker)
