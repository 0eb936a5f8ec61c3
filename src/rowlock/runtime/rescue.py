"""Rescue the jobs of a worker process that has died. The supervisor starts this program; it ends when it is done.

The jobs whose handlers were running may be the cause of the death. They get their start mark, if they have none, and
are rescued: they are charged, and suspects from now on. Jobs that were only claimed, and jobs that ran in child
processes, are given back. If the worker was told to end, all jobs are given back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import suppress

import msgspec

from rowlock import logs
from rowlock.core import moves
from rowlock.core.job import Status
from rowlock.core.lifecycle import Settlement, Transition
from rowlock.core.retry import DEFAULT_RETRY, backoff_table
from rowlock.errors import StoreError
from rowlock.runtime.backoff import Backoff
from rowlock.runtime.supervisor import Rescue
from rowlock.stores import open_store
from rowlock.stores.base import Beat, Moved, Store

log = logging.getLogger("rowlock")

_BATCH = 500


async def rescue(order: Rescue) -> tuple[int, int]:
    """Return how many jobs the worker held, and how many of them were charged."""
    store = open_store(order.url)
    await store.open()
    try:
        given_back = await _give_back(store, order)
        rescued = await _rescue(store, order)
        await store.retire([order.worker])
        if given_back or rescued:
            await store.ring()
        return given_back + len(rescued), sum(one.charged for one in rescued)
    finally:
        await store.close()


async def _give_back(store: Store, order: Rescue) -> int:
    """Give back the jobs that are not accused, whatever their start marks say: a claim may mark jobs that don't start.
    Return how many."""
    accused, apart = (set(), set()) if order.blameless else (set(order.accused), set(order.apart))
    held = [beat for beat in await store.held_by([order.worker]) if (beat.id, beat.version) not in accused]
    settlements = []
    for beat in held:
        why = "shutdown" if order.blameless else "not running"
        if (beat.id, beat.version) in apart:
            why = "in a child process when its worker died"
        to = Transition(event="released", status=Status.PENDING, delay=None, reason=f"{why}: {order.detail}")
        settlements.append(Settlement(beat.id, beat.version, to, beat.worker))
    for at in range(0, len(settlements), _BATCH):
        await store.settle(settlements[at : at + _BATCH])
    return len(held)


async def _rescue(store: Store, order: Rescue) -> list[Moved]:
    """Rescue all jobs that are left: the accused ones, and those with a cancel request."""
    if not order.blameless:
        await store.heartbeat([Beat(job_id, version, True, order.worker) for job_id, version in order.accused], 0.0)
    taking = moves.Rescue(
        by=f"supervisor of {order.worker}",
        backoff=backoff_table(DEFAULT_RETRY),
        workers=[order.worker],
        detail=order.detail,
    )
    rescued: list[Moved] = []
    while True:
        batch = await store.move_due(taking, _BATCH)
        rescued += batch
        if len(batch) < _BATCH:
            return rescued


async def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Rescue)
    backoff = Backoff(f"rescue of {order.worker}", 2.0)
    with suppress(TimeoutError):  # then the leases run out, and the maintenance of any worker rescues the jobs
        async with asyncio.timeout(order.seconds):
            while True:
                try:
                    held, charged = await rescue(order)
                except StoreError as error:
                    await asyncio.sleep(backoff.failed(error))
                else:
                    log.warning("took back the jobs of worker %s: %d, %d of them charged", order.worker, held, charged)
                    return


if __name__ == "__main__":
    logs.set_up()
    asyncio.run(main())
    os._exit(0)  # a thread that waits for SQLite's lock must not keep this process alive
