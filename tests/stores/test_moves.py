"""Every verb in every status: a move that MOVES allows does what the reference says, any other changes nothing."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import structs

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import MOVES, Answer, Settlement, Transition
from rowlock.core.moves import (
    AcknowledgeCallback,
    Cancel,
    CancelTimeout,
    Delete,
    Expire,
    ReportCallback,
    Requeue,
    Rescue,
    Resume,
    Signal,
    SignalSent,
    Update,
    Wake,
)
from rowlock.stores.base import DAY, Beat, Edit, Hold, Progress, Retention, Store
from tests.stores.conftest import paired_store
from tests.stores.harness import Harness, claim_by, mark

store = paired_store
pytestmark = pytest.mark.sampled(4)

Verb = Callable[[Store, Job], Awaitable[Any]]


def settles(event: str, status: Status, **fields: Any) -> Verb:
    transition = Transition(event=event, status=status, ran=0.0, **fields)
    return lambda store, job: store.settle([Settlement(job.id, job.version, transition)])


VERBS: dict[str, Verb] = {
    "claim": lambda store, job: store.claim(claim_by("w9")),
    "heartbeat": lambda store, job: store.heartbeat([Beat(job.id, job.version)], 1000.0),
    "progress": lambda store, job: store.progress([Progress(job.id, job.version, 50.0)]),
    "checkpoint": lambda store, job: store.checkpoint([mark(job, "a", "succeeded")]),
    "complete": settles("completed", Status.COMPLETED),
    "fail": settles("failed", Status.FAILED),
    "retry_step": settles("step_retried", Status.PENDING),
    "snooze": settles("snoozed", Status.PENDING),
    "release": settles("released", Status.PENDING),
    "wait": settles("waited", Status.WAITING, waits_for="sleep", delay=None),
    "cancel_wait": settles("wait_cancelled", Status.CANCEL_REQUESTED),
    "resume": lambda store, job: store.move_due(Resume(by="m1")),
    "wake": lambda store, job: store.move([job.id], Wake(by="ann")),
    "signal": lambda store, job: store.move([job.id], Signal(by="ann", sent=SignalSent("go", "1"))),
    "report_callback": lambda store, job: store.move([job.id], ReportCallback(by="x", signal="go", number=1)),
    "acknowledge_callback": lambda store, job: store.move([job.id], AcknowledgeCallback(by="x", signal="go", number=1)),
    "acknowledge_cancel": settles("cancelled", Status.CANCELLED),
    "cancel": lambda store, job: store.move([job.id], Cancel(by="ann")),
    "cancel_timeout": lambda store, job: store.move_due(CancelTimeout(by="m1", grace=30.0)),
    "promote": lambda store, job: store.promote(),
    "rescue": lambda store, job: store.move_due(Rescue(by="m1", backoff=[1.0])),
    "expire": lambda store, job: store.move_due(Expire(by="m1")),
    "update": lambda store, job: store.move([job.id], Update(by="ann", edit=Edit(priority=1))),
    "requeue": lambda store, job: store.move([job.id], Requeue(by="ann")),
    "delete": lambda store, job: store.move([job.id], Delete(by="ann")),
    "prune": lambda store, job: store.prune(Retention(failed=DAY, expired=DAY)),
}
NO_SOURCE = {"enqueue"}
IN_LINES = {"replace", "unblock", "debounce"}  # see test_lines.py and test_debounce.py
IN_FLOWS = {"stop", "block", "release_hold"}  # see test_flows.py


def test_no_move_is_forgotten() -> None:
    assert set(VERBS) | NO_SOURCE | IN_LINES | IN_FLOWS == set(MOVES)


async def liked(store: Harness, verb: str, status: Status) -> Job:
    """Return a job in this status that fits the verb in everything but, perhaps, the status."""
    if verb.endswith("_callback") and status in (Status.WAITING, Status.CANCEL_REQUESTED):
        run = await store.claimed()
        await store.store.checkpoint([mark(run, "@callback:go", "succeeded", position=1)])
        await store.waits(run)
    elif verb == "claim" and status is Status.CANCEL_REQUESTED:
        run = await store.waiting(done=["a"])
    else:
        job = await store.in_status(status)
        table = "_jobs_archive" if status is Status.COMPLETED else "_jobs"
        columns = {"promote": "ready = false", "expire": "ready = false, expires_at = created, started_at = NULL"}
        columns["resume"] = "ready = false, run_at = created"
        if verb in columns:
            changes = columns[verb].removeprefix("ready = false, ") if table == "_jobs_archive" else columns[verb]
            if changes != "ready = false" or table == "_jobs":
                await store.change(f"UPDATE {table} SET {changes} WHERE id = '{job.id}'")
        return job
    if status is Status.CANCEL_REQUESTED:
        await store.store.move([run.id], Cancel(by="ann"))
    return await store.job(run.id)


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_in_a_status(store: Harness, verb: str, status: Status) -> None:
    job = await liked(store, verb, status)
    before, audit = await store.rows(), await store.audit()
    allowed = status in MOVES[verb].sources
    await store.advance({"rescue": DAY, "cancel_timeout": DAY, "prune": 9 * DAY}.get(verb, 1))

    await VERBS[verb](store.store, job)

    after = await store.rows()
    assert (after != before) == allowed
    assert allowed or await store.audit() == audit
    if allowed and MOVES[verb].targets:
        assert after[job.id].job.status in MOVES[verb].targets
        assert after[job.id].job.version - job.version == (verb == "claim")


@pytest.mark.parametrize("status", [Status.PROCESSING, Status.CANCEL_REQUESTED])
@pytest.mark.parametrize("verb", [verb for verb in VERBS if MOVES[verb].fenced])
@pytest.mark.parametrize("version", [-1, 1])
async def test_a_fenced_verb_with_another_version(store: Harness, verb: str, status: Status, version: int) -> None:
    """The status is right, but the version is wrong."""
    job = await store.in_status(status)
    before = await store.rows()
    answer = await VERBS[verb](store.store, structs.replace(job, version=job.version + version))
    if verb in ("heartbeat", "progress", "checkpoint"):
        assert answer == [Hold.LOST]
    else:
        assert [verdict.answer for verdict in answer.verdicts] != [Answer.APPLIED]
    assert await store.rows() == before


@pytest.mark.parametrize("done", [[], ["a"]])
@pytest.mark.parametrize("verb", [verb for verb in VERBS if MOVES[verb].fenced])
async def test_no_run_has_a_job_without_a_lease(store: Harness, verb: str, done: list[str]) -> None:
    """The status and the version are right, and the call names no worker. But no worker holds the job."""
    run = await store.claimed()
    await store.store.checkpoint([mark(run, "@callback:go", "succeeded", position=1)])
    await store.store.checkpoint([mark(run, name, "succeeded") for name in done])
    await store.waits(run)
    await store.store.move([run.id], Cancel(by="ann"))
    job = await store.job(run.id)
    assert (job.status, job.locked_by) == (Status.CANCEL_REQUESTED, None)
    before = await store.rows()
    answer = await VERBS[verb](store.store, job)
    if verb in ("heartbeat", "progress", "checkpoint"):
        assert answer == [Hold.LOST]
    else:
        expected = Answer.ALREADY if verb == "wait" else Answer.LOST  # its last run has ended with a wait
        assert [verdict.answer for verdict in answer.verdicts] == [expected]
    assert await store.rows() == before


async def test_the_database_itself_refuses_an_unknown_status(store: Harness) -> None:
    job_id = await store.add()
    for broken in ("status = 'bogus'", "status = 'completed'", "status = 'failed'"):  # a failed job is never ready
        with pytest.raises(Exception, match=r"(?i)check"):
            await store.execute(f"UPDATE _jobs SET {broken} WHERE id = '{job_id}'")
