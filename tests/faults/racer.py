"""One of several processes that claim at the same time: `python -m tests.faults.racer URL STORES SEED`.

Each store has its own connection. The process prints "ready", waits for a line on stdin, and then claims. At the end it
prints every claim that it was given: worker, job, version.
"""

import asyncio
import json
import sys
from random import Random

from rowlock.core.job import Lane, Status
from rowlock.core.lifecycle import Settlement, Transition
from rowlock.stores import open_store
from rowlock.stores.base import Claim, Claimed, Store

LEASE = 600.0  # seconds: no lease may run out
DONE = Transition(event="completed", status=Status.COMPLETED, result="null", ran=0.0)


async def race(store: Store, worker: str, chance: Random) -> list[tuple[str, str, int]]:
    """Claim in batches of any size until no job can be claimed any more. Some claims also complete the batch before.
    Return the claims."""
    found: list[tuple[str, str, int]] = []
    held: list[Settlement] = []
    while True:
        claim = Claim(worker, (Lane("raced"),), chance.choice([1, 2, 7, 30, 100]), LEASE)
        if held and chance.random() < 0.5:
            claimed: Claimed | None = (await store.settle(held, claim)).claimed
            held = []
        else:
            claimed = await store.claim(claim)
        assert claimed is not None
        found += [(worker, job.id, job.version) for job in claimed.jobs]
        held += [Settlement(job.id, job.version, DONE) for job in claimed.jobs]
        if not claimed.jobs and not claimed.contended:
            await store.settle(held)
            return found


async def main(url: str, count: int, seed: int) -> None:
    stores = [open_store(url) for _ in range(count)]
    await asyncio.gather(*(store.open() for store in stores))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    racing = [race(store, f"racer-{seed}-{n}", Random(seed * 100 + n)) for n, store in enumerate(stores)]
    for found in await asyncio.gather(*racing):
        print(*map(json.dumps, found), sep="\n", flush=True)
    await asyncio.gather(*(store.close() for store in stores))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
