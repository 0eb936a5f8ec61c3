"""rq."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.systems.asking import redis_client
from benchmarks.systems.base import Order, System
from benchmarks.systems.verbs import Payload, Producer, handled, sync_program, version_of

QUEUE = "bench"
NOOP = "benchmarks.systems.rq.noop"


def noop(payload: Payload) -> None:
    handled(payload)


def setup(wanted: Order) -> None:
    """Do nothing: Redis needs no tables."""


@contextmanager
def producing(wanted: Order, callers: int) -> Iterator[Producer]:
    import redis
    from rq import Queue

    connection = redis.Redis.from_url(wanted.url)
    queue = Queue(QUEUE, connection=connection)

    def one(payload: Payload) -> None:
        queue.enqueue(NOOP, payload)

    def many(payloads: list[Payload]) -> None:
        queue.enqueue_many([Queue.prepare_data(NOOP, [payload]) for payload in payloads])

    connection.ping()
    yield Producer(one, many)


def worker(wanted: Order) -> None:
    import redis
    from rq import Queue, SimpleWorker

    connection = redis.Redis.from_url(wanted.url)
    queue = Queue(QUEUE, connection=connection)
    SimpleWorker([queue], connection=connection).work(logging_level=logging.WARNING)


async def unfinished(url: str) -> int:
    async with redis_client(url) as client:
        waiting = await client.llen(f"rq:queue:{QUEUE}") + await client.llen(f"rq:queue:{QUEUE}:intermediate")
        return int(waiting + await client.zcard(f"rq:wip:{QUEUE}"))


async def completed(url: str) -> int:
    async with redis_client(url) as client:
        return int(await client.zcard(f"rq:finished:{QUEUE}"))


SYSTEM = System(
    name="rq",
    store="redis",
    version=version_of("rq"),
    unfinished=unfinished,
    completed=completed,
    settings={
        "worker": "SimpleWorker (no fork per job), warnings only",
        "results": "default: kept for 500 s",
        "bulk": "enqueue_many in a pipeline",
    },
    pace=300,
    durable=False,
)

if __name__ == "__main__":
    sync_program(setup, producing, worker)
