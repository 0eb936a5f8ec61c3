"""dramatiq on Redis."""

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

THREADS = 32


def make_noop(wanted: Order) -> Any:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=wanted.url)
    dramatiq.set_broker(broker)

    @dramatiq.actor
    def noop(payload: Payload) -> None:
        handled(payload)

    return noop


def make_broker() -> None:
    """The entry point of dramatiq's command line."""
    make_noop(order())


def setup(wanted: Order) -> None:
    """Do nothing: Redis needs no tables."""


@contextmanager
def producing(wanted: Order, callers: int) -> Iterator[Producer]:
    noop = make_noop(wanted)

    def many(payloads: list[Payload]) -> None:
        for payload in payloads:
            noop.send(payload)

    noop.broker.client.ping()
    yield Producer(noop.send, many)


def worker(wanted: Order) -> None:
    program = str(Path(sys.executable).with_name("dramatiq"))
    broker = "benchmarks.systems.dramatiq:make_broker"
    os.execv(program, [program, broker, "--processes", "1", "--threads", str(THREADS)])


async def unfinished(url: str) -> int:
    async with redis_client(url) as client:
        # A message stays in its hash until it is acknowledged.
        return int(await client.hlen("dramatiq:default.msgs") + await client.hlen("dramatiq:default.DQ.msgs"))


SYSTEM = System(
    name="dramatiq",
    store="redis",
    version=version_of("dramatiq"),
    unfinished=unfinished,
    settings={
        "worker": f"`dramatiq --processes 1 --threads {THREADS}`, default middleware and prefetch",
        "bulk": "has none: send() one by one",
    },
    pace=1500,
    durable=False,
)

if __name__ == "__main__":
    sync_program(setup, producing, worker)
