"""celery on Redis."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.systems.asking import redis_client
from benchmarks.systems.base import Order, System, order
from benchmarks.systems.verbs import Payload, Producer, handled, sync_program, version_of

PREFETCH = 100


def make_app(wanted: Order) -> Any:
    from celery import Celery

    app = Celery("bench", broker=wanted.url)
    app.conf.task_ignore_result = True
    app.conf.worker_prefetch_multiplier = PREFETCH

    @app.task(name="noop")
    def noop(payload: Payload) -> None:
        handled(payload)

    return app


def __getattr__(name: str) -> Any:
    """Return `app`, for which celery's command line looks. An import that only needs SYSTEM must not make it."""
    if name == "app":
        globals()[name] = app = make_app(order())
        return app
    raise AttributeError(name)


def setup(wanted: Order) -> None:
    """Do nothing: Redis needs no tables."""


@contextmanager
def producing(wanted: Order, callers: int) -> Iterator[Producer]:
    app = make_app(wanted)
    noop = app.tasks["noop"]

    def one(payload: Payload) -> None:
        noop.delay(payload)

    def many(payloads: list[Payload]) -> None:
        with app.producer_pool.acquire() as producer:
            for payload in payloads:
                noop.apply_async((payload,), producer=producer)

    with app.producer_pool.acquire(block=True) as producer:  # without this, the first call connects
        producer.channel.client.ping()
    yield Producer(one, many)


def worker(wanted: Order) -> None:
    program = str(Path(sys.executable).with_name("celery"))
    name = f"bench-{os.getpid()}@%h"  # two workers of the same name would confuse each other
    arguments = ["-A", "benchmarks.systems.celery:app", "worker", "--pool", "solo", "--hostname", name]
    os.execv(program, [program, "--quiet", *arguments, "--loglevel", "ERROR"])


async def unfinished(url: str) -> int:
    async with redis_client(url) as client:
        return int(await client.llen("celery") + await client.hlen("unacked"))


SYSTEM = System(
    name="celery",
    store="redis",
    version=version_of("celery"),
    unfinished=unfinished,
    settings={
        "worker": f"pool solo (a noop is as fast in threads, prefork, gevent), prefetch {PREFETCH}, one process",
        "acknowledgement": "early, as by default: a crash loses the jobs that it holds",
        "results": "ignored: no result backend",
        "bulk": "has none: apply_async one by one with one producer",
    },
    pace=800,
    durable=False,
)

if __name__ == "__main__":
    sync_program(setup, producing, worker)
