"""Every verb in every status: what MOVES allows is done, what it doesn't changes nothing and says so."""

from collections.abc import Awaitable, Callable

import pytest
from msgspec import structs

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import MOVES, Answer, Settlement, Transition
from rowlock.stores.base import DAY, Beat, Edit, Hold, Progress, Retention
from tests.stores.conftest import shared_store
from tests.stores.harness import Harness, claim_by

store = shared_store

Verb = Callable[[Harness, Job], Awaitable[bool]]  # whether the store says that it was done


def settles(event: str, status: Status) -> Verb:
    async def settle(store: Harness, job: Job) -> bool:
        transition = Transition(event=event, status=status, ran=0.0)
        [verdict] = (await store.store.settle([Settlement(job.id, job.version, transition)])).verdicts
        now = await store.job(job.id)
        if verdict.answer is Answer.CHANGED:
            assert verdict.status is now.status
        return verdict.answer is Answer.APPLIED

    return settle


async def claim(store: Harness, job: Job) -> bool:
    return bool((await store.store.claim(claim_by("w9"))).jobs)


async def heartbeat(store: Harness, job: Job) -> bool:
    [hold] = await store.store.heartbeat([Beat(job.id, job.version)], 1000.0)
    assert (hold is Hold.CANCEL) == (job.status is Status.CANCEL_REQUESTED)
    return hold is not Hold.LOST


async def progress(store: Harness, job: Job) -> bool:
    [hold] = await store.store.progress([Progress(job.id, job.version, 50.0)])
    assert (hold is Hold.CANCEL) == (job.status is Status.CANCEL_REQUESTED)
    return hold is not Hold.LOST


async def promote(store: Harness, job: Job) -> bool:
    return bool(await store.store.promote())


async def rescue(store: Harness, job: Job) -> bool:
    await store.advance(DAY)
    return bool(await store.store.rescue(by="m1", backoff=[1.0]))


async def expire(store: Harness, job: Job) -> bool:
    return bool(await store.store.expire(by="m1"))


async def cancel_timeout(store: Harness, job: Job) -> bool:
    await store.advance(DAY)
    return bool(await store.store.cancel_timeout(by="m1"))


async def prune(store: Harness, job: Job) -> bool:
    await store.advance(9 * DAY)
    return bool(await store.store.prune(Retention(failed=DAY, expired=DAY)))


async def cancel(store: Harness, job: Job) -> bool:
    [changed] = await store.store.cancel([job.id], by="ann")
    assert changed.done or changed.status is job.status
    return changed.done


async def requeue(store: Harness, job: Job) -> bool:
    [changed] = await store.store.requeue([job.id], by="ann")
    assert changed.done or changed.status is job.status
    return changed.done


async def update(store: Harness, job: Job) -> bool:
    [changed] = await store.store.update([job.id], Edit(priority=1), by="ann")
    assert changed.done or changed.status is job.status
    return changed.done


async def delete(store: Harness, job: Job) -> bool:
    [changed] = await store.store.delete([job.id], by="ann")
    assert changed.status is job.status
    return changed.done


VERBS: dict[str, Verb] = {
    "claim": claim,
    "heartbeat": heartbeat,
    "progress": progress,
    "complete": settles("completed", Status.COMPLETED),
    "fail": settles("failed", Status.FAILED),
    "snooze": settles("snoozed", Status.PENDING),
    "release": settles("released", Status.PENDING),
    "wait": settles("waited", Status.WAITING),
    "acknowledge_cancel": settles("cancelled", Status.CANCELLED),
    "cancel": cancel,
    "cancel_timeout": cancel_timeout,
    "promote": promote,
    "rescue": rescue,
    "expire": expire,
    "update": update,
    "requeue": requeue,
    "delete": delete,
    "prune": prune,
}
NOT_YET = {"enqueue", "resume"}  # enqueue has no source; resume comes with waits
LATER = {("expire", Status.WAITING)}  # comes with waits


def test_no_move_is_forgotten() -> None:
    assert set(VERBS) | NOT_YET == set(MOVES)


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_in_a_status(store: Harness, verb: str, status: Status) -> None:
    job = await store.in_status(status)
    if verb in ("promote", "expire"):
        # Of every job the one that this verb would like, were it not for the status.
        table = "_jobs_archive" if status is Status.COMPLETED else "_jobs"
        ready = "" if status is Status.COMPLETED else ", ready = false"
        await store.execute(f"UPDATE {table} SET expires_at = created {ready} WHERE id = '{job.id}'")
        job = await store.job(job.id)
    before, audit = await store.rows(), await store.audit()
    allowed = status in MOVES[verb].sources and (verb, status) not in LATER
    await store.advance(1)

    assert await VERBS[verb](store, job) == allowed

    after = await store.rows()
    if not allowed:
        assert after == before
        assert await store.audit() == audit
    elif not MOVES[verb].targets:
        assert after == {}
    else:
        assert after != before
        assert after[job.id].job.status in MOVES[verb].targets
        new = len(after[job.id].history) - len(before[job.id].history)
        recorded = [event for event in MOVES[verb].events if event not in ("claimed", "completed")]
        assert new == bool(recorded)
        if new:
            assert after[job.id].history[-1]["event"] in MOVES[verb].events
        grown = after[job.id].job.version - job.version
        assert grown == (verb == "claim")


@pytest.mark.parametrize("status", [Status.PROCESSING, Status.CANCEL_REQUESTED])
@pytest.mark.parametrize("verb", [verb for verb in VERBS if MOVES[verb].fenced])
@pytest.mark.parametrize("version", [-1, 1])
async def test_a_fenced_verb_with_another_version(store: Harness, verb: str, status: Status, version: int) -> None:
    """The status is right, the version isn't."""
    job = await store.in_status(status)
    before = await store.rows()
    other = structs.replace(job, version=job.version + version)
    if verb in ("heartbeat", "progress"):
        [hold] = (
            await store.store.heartbeat([Beat(other.id, other.version)], 1000.0)
            if verb == "heartbeat"
            else await store.store.progress([Progress(other.id, other.version, 9.0)])
        )
        assert hold is Hold.LOST
    else:
        assert not await VERBS[verb](store, other)
    assert await store.rows() == before


async def test_the_database_itself_refuses_an_unknown_status(store: Harness) -> None:
    job_id = await store.add()
    for broken in ("status = 'bogus'", "status = 'completed'", "status = 'failed'"):  # failed: it is still ready
        with pytest.raises(Exception, match=r"(?i)check"):
            await store.execute(f"UPDATE _jobs SET {broken} WHERE id = '{job_id}'")
