"""The limit: rowlock's own statements on its own tables, in a bare loop. No worker, no handlers, no renewal of leases,
no retries; every job's payload is decoded and marked."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks import marks
from benchmarks.systems import rowlock
from benchmarks.systems.base import Order, System
from benchmarks.systems.verbs import Payload, Producer, async_program, version_of
from rowlock.core.codec import decode
from rowlock.core.ids import IdMaker
from rowlock.core.job import Lane, NewJob, Status
from rowlock.core.lifecycle import Settlement, Transition

BATCH = 500
IN_FLIGHT = 2  # batches, each on a connection of its own: the database has one while this process has the other
LEASE = 30.0
PAUSE, LONGEST_PAUSE = 0.005, 0.1  # seconds between looks at an empty queue; each pause is twice the last
DONE = Transition(event="completed", status=Status.COMPLETED, ran=0.0)


def new_jobs(ids: list[str], payloads: list[Payload]) -> list[NewJob]:
    return [
        NewJob(job_id, rowlock.TOPIC, f'{{"n":{payload["n"]}}}') for job_id, payload in zip(ids, payloads, strict=True)
    ]


async def connect(url: str) -> Any:
    import asyncpg

    from rowlock.stores.postgres.connections import PLANNER

    return await asyncpg.connect(url, server_settings=PLANNER)


@asynccontextmanager
async def producing(wanted: Order, callers: int) -> AsyncIterator[Producer]:
    from rowlock.stores.postgres import rows
    from rowlock.stores.postgres.statements import Statements

    connection = await connect(wanted.url)
    insert = Statements('"public"').insert_alike
    ids = IdMaker(time.time_ns, os.urandom)
    waiting: list[tuple[Payload, asyncio.Future[None]]] = []

    async def many(payloads: list[Payload]) -> None:
        jobs = new_jobs(ids.many(len(payloads)), payloads)
        columns = [job.id for job in jobs], [job.topic for job in jobs], [job.payload for job in jobs]
        same = rows.insert_alike(jobs[:1])
        assert same is not None
        counted = [rowlock.TOPIC], [len(jobs)]
        _now, count, _rang = await connection.fetchrow(insert, *columns, *same, False, "", 0, 0, *counted, None)
        assert count == len(jobs)

    async def alone(payload: Payload) -> None:
        await many([payload])

    async def together(payload: Payload) -> None:
        """Wait for the other callers. The last one to arrive writes the jobs of all of them."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append((payload, future))
        if len(waiting) < callers:
            await future
            return
        group = waiting.copy()
        waiting.clear()
        await many([payload for payload, _ in group])
        for _, done in group:
            done.set_result(None)

    await connection.fetchval("SELECT 1")
    yield Producer(alone if callers == 1 else together, many)
    await connection.close()


async def worker(wanted: Order) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    one = bool(wanted.options.get("one"))
    loops = range(1 if one else IN_FLIGHT)
    await asyncio.gather(*(work(wanted.url, f"raw-{os.getpid()}-{n}", 1 if one else BATCH, stop) for n in loops))


async def work(url: str, name: str, limit: int, stop: asyncio.Event) -> None:
    from rowlock.stores.columns import CLAIMED
    from rowlock.stores.postgres import rows
    from rowlock.stores.postgres.claim_bounds import Lanes
    from rowlock.stores.postgres.rows import CLAIMED_JOB
    from rowlock.stores.postgres.statements import Statements

    columns = [column.name for column in CLAIMED]
    at_id, at_payload, at_version = (CLAIMED_JOB + columns.index(name) for name in ("id", "payload", "version"))
    sql = Statements('"public"')
    plan = Lanes((Lane(rowlock.TOPIC),)).plan()
    claim = (*plan.lanes, *plan.parts, None, limit, name, LEASE, True, None, None)
    connection = await connect(url)
    done: list[Settlement] = []
    pause = PAUSE
    while not stop.is_set() or done:
        if done:
            found = await connection.fetch(sql.complete_and_claim, *rows.completions(done), *claim)
            assert found[0]["applied"] is None  # None: all of them were applied
        else:
            found = await connection.fetch(sql.claim, *claim)
        done = []
        for row in found[1:]:
            marks.seen(decode(row[at_payload])["n"])
            done.append(Settlement(row[at_id], row[at_version], DONE, name))
        if done:
            pause = PAUSE
        else:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
    await connection.close()


SYSTEM = System(
    name="raw",
    store="postgres",
    version=version_of("rowlock"),
    unfinished=rowlock.unfinished,
    completed=rowlock.completed,
    settings={
        "client": "one asyncpg connection on uvloop; one INSERT for each round of 100 callers",
        "worker": f"{IN_FLIGHT} loops of settle-and-claim of {BATCH}, each on its own connection, on uvloop",
        "tables": "rowlock's",
    },
    pace=30_000,
    lacks=frozenset({"produce"}),
)

if __name__ == "__main__":
    async_program(rowlock.setup, producing, worker)
