"""A small world in which one verb is about to go wrong: its jobs, its witness, and the survivor that cleans up."""

import asyncio
import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg

from rowlock.core.ids import IdMaker
from rowlock.core.job import Job, Lane, new_job
from rowlock.core.lifecycle import Completed, Outcome, Settlement, decide
from rowlock.core.moves import CancelTimeout, Expire, Rescue, Wake
from rowlock.core.retry import Delays
from rowlock.stores import open_store
from rowlock.stores.base import Claim, Store
from tests.proof.history import Execution, Fault, History, Operation
from tests.proof.recorder import now
from tests.proof.witness import TABLES, TablesAt, Witness

ACTOR = "actor"  # the worker, operator or client that performs the verb
SURVIVOR = "survivor"
TOPIC = "mail"
BUSINESS = "CREATE TABLE business (job_id text NOT NULL)"
LEASE = 0.05  # seconds; only the survivor takes jobs back
_LANES = (Lane(TOPIC),)
_LIVE = "SELECT count(*) FROM _jobs WHERE status NOT IN ('failed', 'expired', 'cancelled')"
_WAITING = "SELECT id FROM _jobs WHERE status = 'waiting'"
_COUNTERS = ("_jobs_totals", "_jobs_counts", "_jobs_rollups")

Facts = dict[str, Any]
new_ids = IdMaker(time.time_ns, os.urandom)


def claim_by(worker: str, *, lease: float = LEASE, start: bool = True) -> Claim:
    return Claim(worker, _LANES, 10, lease, start)


def settlement(job: Job, outcome: Outcome) -> Settlement:
    decided = decide(job, outcome, datetime.now(UTC), retry=Delays((0.01,)), ran=0.0)
    return Settlement(job.id, job.version, decided, job.locked_by)


def output(job: Job) -> dict[str, Any]:
    return {"job": job.id, "run": job.version}


class Tables(TablesAt):
    """A way to the tables with one connection for all calls on PostgreSQL, where each new connection is expensive."""

    _connection: "asyncpg.Connection[asyncpg.Record] | None" = None

    async def fetch(self, query: str) -> list[tuple[Any, ...]]:
        if self.kind == "sqlite":
            return await super().fetch(query)
        if self._connection is None:
            self._connection = await asyncpg.connect(self._where)
        return [tuple(record) for record in await self._connection.fetch(query)]

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


class Stage:
    """One database for many performances: call `clear` between two of them."""

    def __init__(self, url: str, store: Store) -> None:
        self.url = url
        self.store = store
        self.tables = Tables(url)
        self._witness = Witness(self.tables)
        self.operations: list[Operation] = []
        self.executions: list[Execution] = []
        self.faults: list[Fault] = []

    @staticmethod
    async def prepare(url: str) -> None:
        await open_store(url).migrate()
        await Stage.watch(url)

    @staticmethod
    async def watch(url: str) -> None:
        """Install the witness and the application's own table."""
        await Witness(TablesAt(url)).install()
        await TablesAt(url).execute(BUSINESS)

    async def clear(self) -> None:
        more = ("_jobs_ends",) if self.tables.kind == "postgres" else ()
        notes = ("_jobs_once", "_jobs_throttles", "_jobs_starts", *more)
        for table in (*TABLES, *_COUNTERS, *notes, "business"):
            await self.tables.execute(f"DELETE FROM {table}")
        await self._witness.forget()
        self.operations, self.executions, self.faults = [], [], []

    # ── Before ──

    async def add(self, **fields: Any) -> str:
        job_id = new_ids.one()
        [made] = await self.store.insert([new_job(job_id, TOPIC, {}, **fields)])
        self.asked("enqueue", [job_id], "ok")
        return made.id

    async def claimed(self, worker: str = ACTOR, *, fails: bool = False, **wishes: Any) -> Job:
        """Return a claimed job whose handler has run. Its outcome is not settled: only its worker knows it."""
        await self.add(max_retries=3)
        [job] = (await self.store.claim(claim_by(worker, **wishes))).jobs
        self.ran(job, fails=fails)
        return job

    async def settled(self, outcome: Outcome) -> Job:
        job = await self.claimed(fails=True)
        await self.store.settle([settlement(job, outcome)])
        return job

    def asked(self, verb: str, ids: Sequence[str], outcome: str, **detail: Any) -> None:
        answer = {"jobs": [{"id": one, "existing": False} for one in ids]} if outcome == "ok" else None
        n = len(self.operations) + 1
        self.operations.append(Operation("client", n, verb, now(), now(), outcome, tuple(ids), answer, detail))

    def ran(self, job: Job, *, fails: bool = False) -> None:
        result, error = (None, "boom") if fails else (output(job), None)
        self.executions.append(Execution(str(job.locked_by), job.id, job.version, now(), now(), result, error))

    async def until(self, moment: datetime | None) -> None:
        """Wait until the database's clock is past the moment."""
        assert moment is not None
        while await self.store.now() <= moment:  # noqa: ASYNC110 - a clock gives no signal
            await asyncio.sleep(0.002)

    # ── After ──

    async def drain(self) -> None:
        """Do what a healthy worker would do with the jobs that were left behind, until all have ended."""
        store = self.store
        for pause in await store.paused():
            await store.steer_topic(pause.topic, "resume", by=SURVIVOR)
        async with asyncio.timeout(30):
            while (await self.tables.fetch(_LIVE))[0][0]:
                await store.move_due(Rescue(by=SURVIVOR, backoff=[0.0]))
                await store.move_due(CancelTimeout(by=SURVIVOR, grace=0.0))
                await store.move_due(Expire(by=SURVIVOR))
                await store.promote()
                waiting = [str(job_id) for (job_id,) in await self.tables.fetch(_WAITING)]
                await store.move(waiting, Wake(by=SURVIVOR))
                await store.tidy("fold_counts", 10_000)
                jobs = (await store.claim(claim_by(SURVIVOR, lease=30.0))).jobs
                for job in jobs:
                    self.ran(job)
                await store.settle([settlement(job, Completed(output(job))) for job in jobs])
                if not jobs:
                    await asyncio.sleep(0.005)

    async def history(self) -> History:
        at = (await self.store.now()).timestamp() * 1e6
        history = History(self.tables.kind, {"lease": LEASE, "now": at}, at_rest=True)
        history.operations, history.executions, history.faults = self.operations, self.executions, self.faults
        return await self._witness.collect(history)

    async def completed(self) -> int:
        """Return the number of completions by the product's own counters."""
        return (await self.store.stats()).completed

    async def starts(self) -> int:
        """Return the number of starts that are counted for rates."""
        return int((await self.tables.fetch("SELECT coalesce(sum(n), 0) FROM _jobs_starts"))[0][0])

    async def business(self) -> list[str]:
        return [str(job_id) for (job_id,) in await self.tables.fetch("SELECT job_id FROM business")]
