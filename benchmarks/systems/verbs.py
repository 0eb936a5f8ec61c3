"""The verbs of all Python systems, so that every clock starts and stops at the same place."""

from __future__ import annotations

import asyncio
import inspect
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Any

from benchmarks import marks
from benchmarks.systems.base import Order, order, took

Payload = dict[str, int]


@dataclass(frozen=True)
class Producer:
    """A connected, warmed-up client. Both calls return when the store has the jobs."""

    one: Callable[[Payload], Any]  # awaitable where the library is async
    many: Callable[[list[Payload]], Any]  # a whole batch, by the library's best call


# Each of these makes a client for so many concurrent callers.
SyncProducing = Callable[[Order, int], AbstractContextManager[Producer]]
AsyncProducing = Callable[[Order, int], AbstractAsyncContextManager[Producer]]
Run = Callable[[Order], Any]


def version_of(distribution: str) -> Callable[[], str | None]:
    def version() -> str | None:
        try:
            return installed_version(distribution)
        except PackageNotFoundError:
            return None

    return version


def handled(payload: Payload) -> None:
    """Do the work of every handler: leave a mark."""
    if "t0" in payload:
        marks.picked_up(payload["n"], payload["t0"])
    else:
        marks.seen(payload["n"])


def sync_program(setup: Run, producing: SyncProducing, worker: Run) -> None:
    """Run the program of a system whose library blocks: callers are threads."""
    verb, wanted = sys.argv[1], order()
    if verb == "setup":
        setup(wanted)
    elif verb == "worker":
        worker(wanted)
    else:
        callers = wanted.callers if verb == "enqueue_concurrent" else 1
        with producing(wanted, callers) as producer:
            _produce_sync(verb, wanted, producer)


def async_program(setup: Run, producing: AsyncProducing, worker: Run) -> None:
    """Run the program of a system whose library is async, on uvloop: callers are tasks."""
    import uvloop

    verb, wanted = sys.argv[1], order()
    if verb in ("setup", "worker"):
        running = (setup if verb == "setup" else worker)(wanted)
        if inspect.isawaitable(running):  # a worker may run an event loop of its own instead
            uvloop.run(_finish(running))
    else:
        uvloop.run(_produce_async(verb, wanted, producing))


async def _finish(running: Awaitable[Any]) -> None:
    await running


def _produce_sync(verb: str, wanted: Order, producer: Producer) -> None:
    if verb == "produce":
        for n in range(wanted.n):
            time.sleep(wanted.gap * random.uniform(0.5, 1.5))
            producer.one({"n": n, "t0": time.monotonic_ns()})
        return
    begin = time.perf_counter()
    if verb == "enqueue_one":
        for n in range(wanted.n):
            producer.one({"n": n})
    elif verb == "enqueue_bulk":
        for batch in _batches(wanted):
            producer.many(batch)
    elif verb == "enqueue_concurrent":
        numbers = iter(range(wanted.n))  # shared: its next() is atomic

        def call() -> None:
            for n in numbers:
                producer.one({"n": n})

        with ThreadPoolExecutor(wanted.callers) as threads:
            for calling in [threads.submit(call) for _ in range(wanted.callers)]:
                calling.result()  # raises what the caller raised
    else:
        sys.exit(f"no such verb: {verb}")
    took(time.perf_counter() - begin)


async def _produce_async(verb: str, wanted: Order, producing: AsyncProducing) -> None:
    callers = wanted.callers if verb == "enqueue_concurrent" else 1
    async with producing(wanted, callers) as producer:
        if verb == "produce":
            for n in range(wanted.n):
                await asyncio.sleep(wanted.gap * random.uniform(0.5, 1.5))
                await producer.one({"n": n, "t0": time.monotonic_ns()})
            return
        begin = time.perf_counter()
        if verb == "enqueue_one":
            for n in range(wanted.n):
                await producer.one({"n": n})
        elif verb == "enqueue_bulk":
            for batch in _batches(wanted):
                await producer.many(batch)
        elif verb == "enqueue_concurrent":
            numbers = iter(range(wanted.n))

            async def call() -> None:
                for n in numbers:
                    await producer.one({"n": n})

            await asyncio.gather(*(call() for _ in range(wanted.callers)))
        else:
            sys.exit(f"no such verb: {verb}")
        took(time.perf_counter() - begin)


def _batches(wanted: Order) -> Iterator[list[Payload]]:
    for begin in range(0, wanted.n, wanted.batch):
        yield [{"n": n} for n in range(begin, min(begin + wanted.batch, wanted.n))]
