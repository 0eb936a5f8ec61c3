"""huey on Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.systems.asking import redis_client
from benchmarks.systems.base import Order, System
from benchmarks.systems.verbs import Payload, Producer, handled, sync_program, version_of

QUEUE = "bench"
THREADS = 2


def make_app(wanted: Order) -> Any:
    from huey import RedisHuey

    return RedisHuey(QUEUE, url=wanted.url)


def make_noop(app: Any) -> Any:
    @app.task()
    def noop(payload: Payload) -> None:
        handled(payload)

    return noop


def setup(wanted: Order) -> None:
    """Do nothing: Redis needs no tables."""


@contextmanager
def producing(wanted: Order, callers: int) -> Iterator[Producer]:
    app = make_app(wanted)
    noop = make_noop(app)
    app.pending_count()
    yield Producer(noop, noop.map)


def worker(wanted: Order) -> None:
    app = make_app(wanted)
    make_noop(app)
    app.create_consumer(workers=THREADS, worker_type="thread", graceful_signal="TERM", shutdown_timeout=5).run()


async def unfinished(url: str) -> int:
    async with redis_client(url) as client:
        queued = await client.llen(f"huey.redis.{QUEUE}")
        return int(queued + await client.zcard(f"huey.schedule.{QUEUE}"))


SYSTEM = System(
    name="huey",
    store="redis",
    version=version_of("huey"),
    unfinished=unfinished,
    settings={
        "worker": f"consumer with {THREADS} threads, blocking pop",
        "safety": "a job leaves the queue when it is claimed: a crash loses it",
        "results": "default: stored unless None; keeps no record of jobs without a result",
        "bulk": "task.map(), which pushes one by one",
    },
    pace=2500,
    durable=False,
)

if __name__ == "__main__":
    sync_program(setup, producing, worker)
