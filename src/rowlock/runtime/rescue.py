"""Take back the jobs of a worker process that is known to be dead. Started by the supervisor, ends when it is done.

The jobs whose handlers were running in it may be why it died: they get their start mark, if they have none yet, and are
rescued in one go, charged, and suspect from now on. Jobs that it had only claimed, and jobs that ran in child processes
of their own, are given back. If it ended because it had to, all of them are.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import suppress

import msgspec

from rowlock import logs
from rowlock.core.job import Status
from rowlock.core.lifecycle import Settlement, Transition
from rowlock.core.retry import DEFAULT_RETRY, backoff_table
from rowlock.errors import StoreError
from rowlock.runtime.patience import Patience
from rowlock.runtime.supervisor import Rescue
from rowlock.stores import open_store
from rowlock.stores.base import Beat, Rescued, Store

log = logging.getLogger("rowlock")

_BATCH = 500


async def rescue(order: Rescue) -> tuple[int, int]:
    """How many jobs it held, and how many of them were charged."""
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
    """Give back the jobs that are not accused, whatever their start marks say: a claim may mark what it only means to
    start. Return how many."""
    accused, apart = (set(), set()) if order.blameless else (set(order.accused), set(order.apart))
    held = [beat for beat in await store.held_by(order.worker) if (beat.id, beat.version) not in accused]
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


async def _rescue(store: Store, order: Rescue) -> list[Rescued]:
    """All that is left. Of what was given back, that is what someone wanted cancelled."""
    if not order.blameless:
        await store.heartbeat([Beat(job_id, version, True, order.worker) for job_id, version in order.accused], 0.0)
    rescued: list[Rescued] = []
    while True:
        batch = await store.rescue(
            by=f"supervisor of {order.worker}",
            backoff=backoff_table(DEFAULT_RETRY),
            limit=_BATCH,
            workers=[order.worker],
            detail=order.detail,
        )
        rescued += batch
        if len(batch) < _BATCH:
            return rescued


async def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Rescue)
    patience = Patience(f"rescue of {order.worker}", 2.0)
    with suppress(TimeoutError):  # then the leases run out, and any worker's maintenance does it
        async with asyncio.timeout(order.seconds):
            while True:
                try:
                    held, charged = await rescue(order)
                except StoreError as error:
                    await asyncio.sleep(patience.failed(error))
                else:
                    log.warning("took back %d jobs of worker %s, %d of them are charged", held, order.worker, charged)
                    return


if __name__ == "__main__":
    logs.set_up()
    asyncio.run(main())
    os._exit(0)  # a thread that waits for SQLite's lock must not keep it
