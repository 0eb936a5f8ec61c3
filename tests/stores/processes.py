"""The other processes in the tests of races and kills: `python -m tests.stores.processes VERB URL-OR-PATH WORKER`.

Each line on stdout is an acknowledgement: a JSON list of the jobs (or the count) that the store has confirmed.
"""

import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from rowlock.core.ids import IdMaker
from rowlock.core.job import NewJob, new_job
from rowlock.core.lifecycle import Answer, Completed
from rowlock.stores.base import Claim, Store
from rowlock.stores.postgres.store import PostgresStore
from rowlock.stores.sqlite.store import SqliteStore
from tests.closing import opening
from tests.stores.harness import Harness, PostgresHarness, SqliteHarness, claim_by, lanes, settlement

ids = IdMaker(time.time_ns, os.urandom)


def real_job(topic: str = "mail", **fields: Any) -> NewJob:
    return new_job(ids.one(), topic, **fields)


def open_store(target: str) -> Store:
    return PostgresStore(target) if target.startswith("postgresql://") else SqliteStore(target)


def target_of(harness: Harness) -> str:
    """Return the URL or path with which another process opens the same database."""
    if isinstance(harness, PostgresHarness):
        return harness.url
    assert isinstance(harness, SqliteHarness)
    assert isinstance(harness.path, Path)
    return str(harness.path)


async def stores(harness: Harness, count: int = 12) -> list[Store]:
    return [await harness.another() for _ in range(count)]


async def deadlocks(harness: Harness) -> int:
    if not isinstance(harness, PostgresHarness):
        return 0
    await harness.execute("SELECT pg_stat_clear_snapshot()")
    [(count,)] = await harness.fetch("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    return int(count)


def tell(what: list[str]) -> None:
    print(json.dumps(what), flush=True)


async def insert(store: Store, worker: str) -> None:
    """Enqueue for ever, in batches of all sizes."""
    while True:
        jobs = [real_job() for _ in range(random.choice([1, 2, 50]))]
        tell([inserted.id for inserted in await store.insert(jobs)])


async def claim(store: Store, worker: str) -> None:
    while jobs := (await store.claim(claim_by(worker, limit=random.choice([1, 5, 20]), lease=3600.0))).jobs:
        tell([job.id for job in jobs])


async def settle(store: Store, worker: str) -> None:
    """Complete one batch and claim the next, until no jobs are left."""
    wish = Claim(worker, lanes("mail"), 7, 3600.0)
    claimed = await store.claim(wish)
    while claimed.jobs:
        done = claimed.jobs
        settled = await store.settle([settlement(job, Completed(worker), ran=0.0) for job in done], wish)
        assert [verdict.answer for verdict in settled.verdicts] == [Answer.APPLIED] * len(done)
        tell([job.id for job in done])
        assert settled.claimed is not None
        claimed = settled.claimed


async def everything(store: Store, worker: str) -> None:
    """Insert 300 jobs and complete as many as it gets, beside other processes. Tell which jobs it has completed."""
    for _ in range(30):
        await store.insert([real_job() for _ in range(10)])
        claimed = await store.claim(Claim(worker, lanes("mail"), 10, 3600.0))
        settled = await store.settle([settlement(job, Completed(worker), ran=0.0) for job in claimed.jobs])
        assert all(verdict.answer is Answer.APPLIED for verdict in settled.verdicts)
        tell([job.id for job in claimed.jobs])


async def fold(store: Store, worker: str) -> None:
    """Fold counters for ever, a few notes at a time."""
    while True:
        tell([str(await store.tidy("fold_counts", 3))])


VERBS = {"insert": insert, "claim": claim, "settle": settle, "everything": everything, "fold": fold}


async def main(verb: str, target: str, worker: str) -> None:
    async with opening(open_store(target)) as store:
        await VERBS[verb](store, worker)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
