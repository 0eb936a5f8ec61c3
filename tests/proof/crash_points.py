"""Every verb that writes, as a case: what must be there before, the verb itself, and how its effect is counted.

A case is performed by a process that is killed at a fail-point (`crash_child`), or by a process that never gets the
reply and then does what the product does. The preparation passes only `facts` to that process, as JSON.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import asyncpg

from rowlock.client.enqueue import safe_insert
from rowlock.core.job import Job, new_job
from rowlock.core.lifecycle import Completed, Failed, GaveUp, Outcome, Released, Snoozed
from rowlock.errors import StoreError
from rowlock.jobs import Jobs
from rowlock.stores.base import Beat, Guard, NewLine, Progress
from tests.proof import (
    crash_points_bulk,
    crash_points_flows,
    crash_points_limits,
    crash_points_lines,
    crash_points_schedules,
    crash_points_steps,
    crash_points_upkeep,
    crash_points_waits,
)
from tests.proof.crash_case import (
    CASES,
    Act,
    Actor,
    cancelled_run,
    case,
    due,
    failing_run,
    find_lost_claims,
    steps,
)
from tests.proof.crash_stage import ACTOR, LEASE, TOPIC, Facts, Stage, claim_by, new_ids, output, settlement
from tests.proof.fail_points import PRODUCT, trapping
from tests.proof.history import History

__all__ = [
    "CASES",
    "crash_points_bulk",
    "crash_points_flows",
    "crash_points_limits",
    "crash_points_lines",
    "crash_points_schedules",
    "crash_points_steps",
    "crash_points_upkeep",
    "crash_points_waits",
]


# ── Clients ──


async def _new(stage: Stage) -> Facts:
    ids = [new_ids.one(), new_ids.one()]
    return {"id": ids[0], "ids": ids}


def _inserting(*, keyed: bool) -> Callable[[Actor], Awaitable[Act]]:
    async def ready(actor: Actor) -> Act:
        ids = actor.facts["ids"]
        jobs = [new_job(job_id, TOPIC, {}, key=f"k{n}" if keyed else None) for n, job_id in enumerate(ids)]
        return lambda: safe_insert(actor.store)(jobs)

    return ready


async def _on_conn(actor: Actor) -> Act:
    """The application's own transaction: its row and its job. Only the application could repeat it."""
    jobs, job_id = Jobs(actor.url), actor.facts["id"]
    insert = f"INSERT INTO business VALUES ('{job_id}')"

    def on_sqlite() -> None:
        path = actor.url.removeprefix("sqlite:///")
        factory = trapping(sqlite3.Connection, actor.trap)
        with closing(sqlite3.connect(path, isolation_level=None, factory=factory)) as conn:
            conn.execute("BEGIN IMMEDIATE")
            conn.execute(insert)
            jobs.sync.enqueue(TOPIC, id=job_id, conn=conn)
            conn.execute("COMMIT")

    async def on_postgres() -> None:
        conn = await asyncpg.connect(actor.url, server_settings={"application_name": PRODUCT})
        try:
            async with conn.transaction():
                await conn.execute(insert)
                await jobs.enqueue(TOPIC, id=job_id, conn=conn)
        finally:
            conn.terminate()

    async def act() -> None:
        try:
            await (asyncio.to_thread(on_sqlite) if actor.url.startswith("sqlite") else on_postgres())
        except (OSError, sqlite3.Error, asyncpg.InterfaceError) as error:  # the driver's own errors
            raise StoreError(str(error)) from error
        finally:
            await jobs.close()

    return act


async def _leave_it(actor: Actor, act: Act) -> None: ...


async def _one_new(stage: Stage) -> Facts:
    job_id = new_ids.one()
    return {"id": job_id, "ids": [job_id]}


case("insert", _new, _inserting(keyed=False), steps("enqueue"), asks="enqueue")
case("insert with keys", _new, _inserting(keyed=True), steps("enqueue"), asks="enqueue")
case(
    "enqueue on a caller's connection", _one_new, _on_conn, steps("enqueue"),
    recover=_leave_it, repeats=False, asks="transaction",
)  # fmt: skip


# ── Workers ──


async def _claiming(actor: Actor) -> Act:
    return lambda: actor.store.claim(claim_by(ACTOR))


case("claim", due, _claiming, steps("claim"), recover=find_lost_claims, repeats=False)


async def _run(stage: Stage) -> Facts:
    job = await stage.claimed()
    return {"id": job.id, "version": job.version}


async def _settlement(actor: Actor, outcome: Outcome | None = None) -> Any:
    job = (await actor.store.read([actor.facts["id"]], Job))[actor.facts["id"]]
    return settlement(job, outcome or Completed(output(job)))


def _settling(outcome: Outcome | None, *, claims: bool = False) -> Callable[[Actor], Awaitable[Act]]:
    async def ready(actor: Actor) -> Act:
        one = await _settlement(actor, outcome)
        return lambda: actor.store.settle([one], claim_by(ACTOR) if claims else None)

    return ready


async def _as_a_round(actor: Actor, act: Act) -> None:
    await find_lost_claims(actor)
    await (await _settling(None)(actor))()


async def _run_and_more(stage: Stage) -> Facts:
    facts = await _run(stage)
    await stage.add(max_retries=3)
    return facts


case("complete", _run, _settling(None), steps("complete"))
case("fail, to be tried again", failing_run, _settling(Failed("boom")), steps("fail"))
case("fail for good", failing_run, _settling(Failed("boom", final=True)), steps("fail"))
case("snooze", failing_run, _settling(Snoozed(0.01)), steps("snooze"))
case("release", failing_run, _settling(Released()), steps("release"))
case("acknowledge a cancel", cancelled_run, _settling(GaveUp()), steps("acknowledge_cancel"))
case("settle and claim", _run_and_more, _settling(None, claims=True), steps("complete"), recover=_as_a_round)


async def _claimed_ahead(stage: Stage) -> Facts:
    job = await stage.claimed(start=False)
    return {"id": job.id, "version": job.version}


def _beating(*, started: bool) -> Callable[[Actor], Awaitable[Act]]:
    async def ready(actor: Actor) -> Act:
        beat = Beat(actor.facts["id"], actor.facts["version"], started, ACTOR)
        return lambda: actor.store.heartbeat([beat], LEASE)

    return ready


async def _reporting(actor: Actor) -> Act:
    lines = (NewLine(0.0, "info", "half way"),)
    report = Progress(actor.facts["id"], actor.facts["version"], 50.0, "stage", "message", lines, ACTOR)
    return lambda: actor.store.progress([report])


case("heartbeat", _run, _beating(started=False), steps("heartbeat"), once=False)
case("start mark", _claimed_ahead, _beating(started=True), steps("heartbeat"), once=False)
case("progress with lines", _run, _reporting, steps("progress"), once=False)  # a repeat may log a line twice


def _in_transaction(*, completes: bool) -> Callable[[Actor], Awaitable[Act]]:
    async def ready(actor: Actor) -> Act:
        job_id, version = actor.facts["id"], actor.facts["version"]
        guard = Guard(job_id, version, await _settlement(actor) if completes else None, ACTOR)

        async def act() -> None:
            async with actor.store.transaction(guard, longest=10.0) as conn:
                written = conn.execute(f"INSERT INTO business VALUES ('{job_id}')")
                if not isinstance(written, sqlite3.Cursor):
                    await written

        return act

    return ready


async def _handler_raises(actor: Actor, act: Act) -> None:
    """To the handler the lost reply is an exception like any other. Its run fails, unless it is already completed."""
    await actor.store.settle([await _settlement(actor, Failed("no answer to the COMMIT"))])


async def _completing_run(stage: Stage) -> Facts:
    facts = await _run(stage)
    run = stage.executions[-1]
    stage.asked("complete", [facts["id"]], "unknown", version=facts["version"], result=run.result)
    return facts


def _written(history: History, facts: Facts) -> int:
    return len(facts["business"])


case(
    "commit a fenced transaction", _run, _in_transaction(completes=False), _written,
    recover=_handler_raises, repeats=False,
)  # fmt: skip
case(
    "complete in a fenced transaction", _completing_run, _in_transaction(completes=True), steps("complete"),
    recover=_handler_raises, repeats=False,
)  # fmt: skip
