"""Every verb in every status: what MOVES allows is done as the reference says, anything else changes nothing."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import structs

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import MOVES, Answer, Settlement, Transition
from rowlock.core.moves import Cancel, CancelTimeout, Delete, Expire, Requeue, Rescue, Update
from rowlock.stores.base import DAY, Beat, Edit, Hold, Progress, Retention, Store
from tests.stores.conftest import paired_store
from tests.stores.harness import Harness, claim_by, mark

store = paired_store
pytestmark = pytest.mark.sampled(4)

Verb = Callable[[Store, Job], Awaitable[Any]]


def settles(event: str, status: Status) -> Verb:
    transition = Transition(event=event, status=status, ran=0.0)
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
    "wait": settles("waited", Status.WAITING),
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
NOT_YET = {"enqueue", "resume"}  # enqueue has no source; resume comes with waits
IN_LINES = {"replace", "unblock"}  # see test_lines.py
LATER = {("expire", Status.WAITING)}  # comes with waits


def test_no_move_is_forgotten() -> None:
    assert set(VERBS) | NOT_YET | IN_LINES == set(MOVES)


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_in_a_status(store: Harness, verb: str, status: Status) -> None:
    job = await store.in_status(status)
    if verb in ("promote", "expire"):
        # Of every job the one that this verb would like, were it not for the status.
        table = "_jobs_archive" if status is Status.COMPLETED else "_jobs"
        ready = "" if status is Status.COMPLETED else ", ready = false"
        await store.change(f"UPDATE {table} SET expires_at = created {ready} WHERE id = '{job.id}'")
    before, audit = await store.rows(), await store.audit()
    allowed = status in MOVES[verb].sources and (verb, status) not in LATER
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
    """The status is right, the version isn't."""
    job = await store.in_status(status)
    before = await store.rows()
    answer = await VERBS[verb](store.store, structs.replace(job, version=job.version + version))
    if verb in ("heartbeat", "progress", "checkpoint"):
        assert answer == [Hold.LOST]
    else:
        assert [verdict.answer for verdict in answer.verdicts] != [Answer.APPLIED]
    assert await store.rows() == before


async def test_the_database_itself_refuses_an_unknown_status(store: Harness) -> None:
    job_id = await store.add()
    for broken in ("status = 'bogus'", "status = 'completed'", "status = 'failed'"):  # failed: it is still ready
        with pytest.raises(Exception, match=r"(?i)check"):
            await store.execute(f"UPDATE _jobs SET {broken} WHERE id = '{job_id}'")
