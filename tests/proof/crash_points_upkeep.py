"""Cases of the verbs that workers, maintenance and operators use beside the runs."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from rowlock.core.job import HELD, Job, Status
from rowlock.core.lifecycle import Completed, Failed
from rowlock.core.moves import Cancel, CancelTimeout, Delete, Expire, Requeue, Rescue, Update
from rowlock.stores.base import Edit, Retention, WorkerInfo
from rowlock.stores.records import Entry, Write
from tests.proof.crash_case import Act, Actor, cancelled_run, case, changes, due, simply, steps
from tests.proof.crash_stage import ACTOR, LEASE, TOPIC, Facts, Stage, output, settlement
from tests.proof.history import Fault, History
from tests.proof.recorder import now
from tests.proof.witness import AUDIT, RECORDS, TOPICS, WORKERS

# ── The register of workers ──


async def _nothing(stage: Stage) -> Facts:
    return {"id": ""}


_INFO = WorkerInfo(
    name=ACTOR, host="here", pid=1, topics=(TOPIC,), concurrency=1, running=0, lease=LEASE, rowlock="0"
)  # fmt: skip


async def _registered(stage: Stage) -> Facts:
    await stage.store.report(_INFO)
    return {"id": ""}


case("report", _nothing, simply(lambda store, _: store.report(_INFO)), changes(WORKERS, "insert"))
case("retire", _registered, simply(lambda store, _: store.retire([ACTOR])), changes(WORKERS, "delete"))
case(
    "set_backoff", _nothing, simply(lambda store, _: store.set_backoff({TOPIC: [1.0], "other": [2.0]})),
    lambda history, _: sum(one.table == TOPICS for one in history.changes) // 2,
)  # fmt: skip


# ── Maintenance ──


async def _future(stage: Stage) -> Facts:
    job_id = await stage.add(delay=0.005)
    await stage.until((await stage.store.read([job_id], Job))[job_id].run_at)
    return {"id": job_id}


async def _lease_over(stage: Stage) -> Facts:
    job = await stage.claimed("dead", lease=0.002)
    await stage.until(job.locked_until)
    return {"id": job.id}


async def _worker_dead(stage: Stage) -> Facts:
    stage.faults.append(Fault(now(), "kill", "dead"))
    return {"id": (await stage.claimed("dead", lease=5.0)).id}


async def _too_late(stage: Stage) -> Facts:
    job_id = await stage.add(expires_at=datetime.now(UTC) + timedelta(milliseconds=2))
    await stage.until((await stage.store.read([job_id], Job))[job_id].expires_at)
    return {"id": job_id}


async def _dead_letter(stage: Stage) -> Facts:
    return {"id": (await stage.settled(Failed("boom", final=True))).id}


async def _ungrouped(stage: Stage) -> Facts:
    """A dead letter that an SQL statement alone has made, so it has no fingerprint."""
    job_id = (await _too_late(stage))["id"]
    await stage.store.move_due(Expire(by="m1"))
    return {"id": job_id}


def _groupings(history: History, facts: Facts) -> int:
    return sum(
        bool(c.before and c.after and not c.before.get("fingerprint") and c.after.get("fingerprint"))
        for c in history.changes
    )


async def _cancel_unheard(stage: Stage) -> Facts:
    return {"id": (await cancelled_run(stage))["id"]}


async def _counted(stage: Stage) -> Facts:
    job = await stage.claimed()
    await stage.store.settle([settlement(job, Completed(output(job)))])
    return {"id": job.id}


def _rescuing(**wishes: Any) -> Callable[[Actor], Awaitable[Act]]:
    return simply(lambda store, _: store.move_due(Rescue(by=ACTOR, backoff=[0.0], **wishes)))


def _until_moved(*sources: Status) -> Callable[[Actor, Act], Awaitable[None]]:
    """Return a recovery that repeats the verb until the job has left these statuses. The server may not have noticed
    that the first client is gone. Until then that client's transaction has the row, and other transactions pass over
    it."""

    async def recover(actor: Actor, act: Act) -> None:
        job_id = actor.facts["id"]
        async with asyncio.timeout(10):
            while (await actor.store.read([job_id], Status)).get(job_id) in sources:
                await act()

    return recover


case("promote", _future, simply(lambda store, _: store.promote()), steps("promote"))
case("rescue", _lease_over, _rescuing(), steps("rescue"), recover=_until_moved(*HELD))
case("rescue of named workers", _worker_dead, _rescuing(workers=["dead"]), steps("rescue"), recover=_until_moved(*HELD))
case(
    "expire", _too_late, simply(lambda store, _: store.move_due(Expire(by=ACTOR))), steps("expire"),
    recover=_until_moved(Status.PENDING),
)  # fmt: skip
case(
    "cancel timeout", _cancel_unheard, simply(lambda store, _: store.move_due(CancelTimeout(by=ACTOR, grace=0.0))),
    steps("cancel_timeout"), recover=_until_moved(*HELD),
)  # fmt: skip
case("prune", _dead_letter, simply(lambda store, _: store.prune(Retention(failed=0.0))), steps("prune"))
case("group failures", _ungrouped, simply(lambda store, _: store.tidy("group_failures", 200)), _groupings)
case("fold counts", _counted, simply(lambda store, _: store.tidy("fold_counts", 10_000)), steps("complete"))


# ── Operators ──


async def _running(stage: Stage) -> Facts:
    return {"id": (await stage.claimed(fails=True)).id}


async def _paused(stage: Stage) -> Facts:
    await stage.store.steer_topic(TOPIC, "pause", by="ann")
    return {"id": ""}


def _pauses(history: History, facts: Facts) -> int:
    return sum(c.table == TOPICS and bool(c.after and c.after["paused_at"]) for c in history.changes)


def _resumes(history: History, facts: Facts) -> int:
    return sum(
        c.table == "_jobs_audit" and bool(c.after) and (c.after["action"], c.after["by"]) == ("resume", ACTOR)
        for c in history.changes
        if c.after
    )


case("cancel what waits", due, simply(lambda store, one: store.move([one], Cancel(by=ACTOR))), steps("cancel"))
case("cancel what runs", _running, simply(lambda store, one: store.move([one], Cancel(by=ACTOR))), steps("cancel"))
case("requeue", _dead_letter, simply(lambda store, one: store.move([one], Requeue(by=ACTOR))), steps("requeue"))
case(
    "update", due, simply(lambda store, one: store.move([one], Update(by=ACTOR, edit=Edit(priority=7)))),
    steps("update"), once=False,
)  # fmt: skip
case("delete", _dead_letter, simply(lambda store, one: store.move([one], Delete(by=ACTOR))), steps("delete"))
case("pause", _nothing, simply(lambda store, _: store.steer_topic(TOPIC, "pause", by=ACTOR)), _pauses, once=False)
case("resume", _paused, simply(lambda store, _: store.steer_topic(TOPIC, "resume", by=ACTOR)), _resumes)


# ── Records: accounts, tokens, settings ──

_WRITES = [Write("token", "a", {"n": 1}, revision=0), Write("token", "b", {"n": 2}, revision=0)]


def _written(history: History, facts: Facts) -> int:
    """Return 1 if both records and the audit's entry were written, 0 if none was, and 99 if only some were."""
    inserted = [c.table for c in history.changes if c.op == "insert" and c.table in (RECORDS, AUDIT)]
    whole = sorted(inserted) == sorted([RECORDS, RECORDS, AUDIT])
    return int(whole) if whole or not inserted else 99


async def _expired(stage: Stage) -> Facts:
    until = await stage.store.now() + timedelta(milliseconds=2)
    await stage.store.write_records([Write("session", "old", {}, expires_at=until)])
    await stage.until(until)
    return {"id": ""}


case("write_records", _nothing, simply(lambda store, _: store.write_records(_WRITES, Entry(ACTOR, "try"))), _written)
case("sweep_records", _expired, simply(lambda store, _: store.tidy("sweep_records", 10)), changes(RECORDS, "delete"))
