"""Cases of steps: runs store their results, and operators remove them."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import asyncpg

from rowlock.core.job import Job
from rowlock.core.lifecycle import Completed, Failed, StepRetry
from rowlock.core.moves import Delete, Requeue
from rowlock.core.steps import StepMark, StepState
from rowlock.errors import StoreError
from rowlock.stores import reading
from rowlock.stores.base import Guard, Retention
from rowlock.stores.callers import caller_for
from tests.proof.crash_case import Act, Actor, case, failing_run, simply, steps
from tests.proof.crash_stage import ACTOR, Facts, Stage, output, settlement
from tests.proof.fail_points import PRODUCT, trapping
from tests.proof.history import History
from tests.proof.witness import STEPS


def _mark(facts: Facts, name: str, state: str = "succeeded", **fields: Any) -> StepMark:
    usual: dict[str, Any] = {"n": 1, "position": "abc".index(name) + 1, "function": name, "worker": ACTOR}
    return StepMark(id=facts["id"], version=facts["version"], name=name, state=StepState(state), **usual | fields)


async def _run(stage: Stage) -> Facts:
    job = await stage.claimed()
    return {"id": job.id, "version": job.version}


def _stored(history: History, facts: Facts) -> int:
    """Return how often the result of a step was written."""
    return sum(
        change.table == STEPS and bool(change.after and change.after["state"] == "succeeded")
        for change in history.changes
    )


def _result(facts: Facts) -> StepMark:
    return _mark(facts, "a", result='{"paid":1}', percent=50.0)


async def _checkpointing(actor: Actor) -> Act:
    return lambda: actor.store.checkpoint([_result(actor.facts)])


async def _retrying(actor: Actor) -> Act:
    """Store the step's own retry counter, then the end of the run."""
    job = (await actor.store.read([actor.facts["id"]], Job))[actor.facts["id"]]
    one = settlement(job, StepRetry(0.01, "no answer", "a"))
    tried = _mark(actor.facts, "a", "pending", retries=1, error="no answer")

    async def act() -> None:
        await actor.store.checkpoint([tried])
        await actor.store.settle([one])

    return act


case("checkpoint", _run, _checkpointing, _stored)
case("retry a step", failing_run, _retrying, steps("retry_step"))


# ── A step together with writes of the application ──


def _in_transaction(*, completes: bool) -> Callable[[Actor], Awaitable[Act]]:
    async def ready(actor: Actor) -> Act:
        job_id, version = actor.facts["id"], actor.facts["version"]
        job = (await actor.store.read([job_id], Job))[job_id]
        done = settlement(job, Completed(output(job))) if completes else None
        guard = Guard(job_id, version, done, ACTOR, checkpoint=_result(actor.facts))

        async def act() -> None:
            async with actor.store.transaction(guard, longest=10.0) as conn:
                written = conn.execute(f"INSERT INTO business VALUES ('{job_id}')")
                if not isinstance(written, sqlite3.Cursor):
                    await written

        return act

    return ready


def _together(history: History, facts: Facts) -> int:
    """Return how often the step's result was stored, or 99 if it is there without the application's row, or the
    reverse."""
    stored, rows = _stored(history, facts), len(facts["business"])
    return stored if stored == rows else 99


async def _look_first(actor: Actor, act: Act) -> None:
    """Repeat the step only if its result was not stored, as a run does that got no answer."""
    if not await reading.steps(actor.store, actor.facts["id"]):
        await act()


case("commit a step with its writes", _run, _in_transaction(completes=False), _together, recover=_look_first)


async def _completing_run(stage: Stage) -> Facts:
    facts = await _run(stage)
    run = stage.executions[-1]
    stage.asked("complete", [facts["id"]], "unknown", version=facts["version"], result=run.result)
    return facts


case(
    "commit a step and complete", _completing_run, _in_transaction(completes=True), _together, recover=_look_first
)  # fmt: skip


async def _on_conn(actor: Actor) -> Act:
    """Store the result on the application's own connection, as ctx.fence does."""
    home, facts = await actor.store.home(), actor.facts
    insert = f"INSERT INTO business VALUES ('{facts['id']}')"
    guard = Guard(facts["id"], facts["version"], None, ACTOR, checkpoint=_result(facts))

    def on_sqlite() -> None:
        path = actor.url.removeprefix("sqlite:///")
        factory = trapping(sqlite3.Connection, actor.trap)
        with closing(sqlite3.connect(path, isolation_level=None, factory=factory)) as conn:
            conn.execute("BEGIN IMMEDIATE")
            conn.execute(insert)
            caller_for(conn, home).fence(guard)
            conn.execute("COMMIT")

    async def on_postgres() -> None:
        conn = await asyncpg.connect(actor.url, server_settings={"application_name": PRODUCT})
        try:
            async with conn.transaction():
                await conn.execute(insert)
                fenced = caller_for(conn, home).fence(guard)
                assert fenced is not None
                await fenced
        finally:
            conn.terminate()

    async def act() -> None:
        try:
            await (asyncio.to_thread(on_sqlite) if actor.url.startswith("sqlite") else on_postgres())
        except (OSError, sqlite3.Error, asyncpg.InterfaceError) as error:  # the driver's own errors
            raise StoreError(str(error)) from error

    return act


case("commit a step on a caller's connection", _run, _on_conn, _together, recover=_look_first)


# ── Operators and maintenance ──


async def _dead_letter(stage: Stage) -> Facts:
    job = await stage.claimed(fails=True)
    facts = {"id": job.id, "version": job.version}
    await stage.store.checkpoint([_mark(facts, "a"), _mark(facts, "b"), _mark(facts, "c", "failed")])
    await stage.store.settle([settlement(job, Failed("boom", final=True))])
    return {"id": job.id}


case(
    "requeue from a step", _dead_letter,
    simply(lambda store, one: store.move([one], Requeue(by=ACTOR, from_step="b"))), steps("requeue"),
)  # fmt: skip
case("delete with steps", _dead_letter, simply(lambda store, one: store.move([one], Delete(by=ACTOR))), steps("delete"))
case("prune with steps", _dead_letter, simply(lambda store, _: store.prune(Retention(failed=0.0))), steps("prune"))
