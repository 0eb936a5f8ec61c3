"""A lost reply: the store did the verb, the answer was lost, and the caller asks again. That has no second effect."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from rowlock.core.job import Status
from rowlock.core.lifecycle import Answer, Completed
from rowlock.core.moves import Cancel, CancelTimeout, Delete, Expire, Requeue, Rescue, Update
from rowlock.stores import reading
from rowlock.stores.base import DAY, Beat, Edit, Progress, Retention, Store
from tests.stores.conftest import paired_store
from tests.stores.harness import LEASE, OUTCOMES, START, Harness, claim_by, ids, job, settlement

store = paired_store


async def everything(store: Harness) -> tuple[Any, ...]:
    rows = await store.rows()
    events = {job_id: await reading.events(store.store, job_id) for job_id in rows}
    return rows, events, await store.audit(), await store.store.paused()


async def replay(store: Harness, call: Callable[[], Awaitable[Any]], later: float = 0.5) -> Any:
    """Call twice, check that the second call changes nothing, and return its answer."""
    await call()
    before = await everything(store)
    await store.advance(later)
    again = await call()
    assert await everything(store) == before
    return again


CALLS: dict[str, Callable[[Store, list[str]], Awaitable[Any]]] = {
    "promote": lambda store, ids: store.promote(),
    "rescue": lambda store, ids: store.move_due(Rescue(by="m1", backoff=[1.0])),
    "rescue of workers": lambda store, ids: store.move_due(Rescue(by="m1", backoff=[1.0], workers=["w1", "dead"])),
    "expire": lambda store, ids: store.move_due(Expire(by="m1")),
    "cancel_timeout": lambda store, ids: store.move_due(CancelTimeout(by="m1", grace=30.0)),
    "prune": lambda store, ids: store.prune(Retention()),
    "cancel": lambda store, ids: store.move(ids, Cancel(by="ann", reason="r")),
    "requeue": lambda store, ids: store.move(ids, Requeue(by="ann")),
    "delete": lambda store, ids: store.move(ids, Delete(by="ann")),
    "resume": lambda store, ids: store.steer_topic("paused", "resume", by="ann"),
}


@pytest.mark.parametrize("verb", CALLS)
async def test_a_verb_that_finds_nothing_left_to_do(store: Harness, verb: str) -> None:
    jobs = [(await store.in_status(status, topic=status)).id for status in Status]
    jobs += [await store.add(delay=1.0), (await store.claimed("dead", "ahead", start=False)).id]
    jobs.append(await store.add(expires_at=START))
    await store.store.steer_topic("paused", "pause", by="ann")
    await store.advance(8 * DAY)
    answer = await replay(store, partial(CALLS[verb], store.store, jobs))
    assert not (any(one.done for one in answer) if verb in ("cancel", "requeue", "delete") else answer)


async def test_insert(store: Harness) -> None:
    new = [job(key="k"), job(), job(delay=60.0)]
    for repeat in (False, True):
        answer = await replay(store, partial(store.store.insert, new, repeat=repeat))
        assert [(i.id, i.existing) for i in answer] == [(n.id, True) for n in new]
    done = (await store.claim()).jobs
    await store.store.settle([settlement(j, Completed()) for j in done])
    answer = await replay(store, lambda: store.store.insert(new, repeat=True))
    assert [i.status for i in answer] == [Status.COMPLETED, Status.COMPLETED, Status.PENDING]


async def test_insert_when_it_was_deleted_in_between_is_a_new_job(store: Harness) -> None:
    """A repeat can't know of a deleted job. Completed jobs stay a day for repeats, but an operator may delete them."""
    new = job()
    await store.store.insert([new])
    await store.store.move([new.id], Delete(by="ann"))
    [answer] = await store.store.insert([new], repeat=True)
    assert not answer.existing


async def test_claim(store: Harness) -> None:
    """No worker runs the jobs of a lost claim until their leases have expired. Other jobs are claimed meanwhile."""
    await store.insert(*[job() for _ in range(5)])
    lost, again = [ids((await store.claim(limit=2)).jobs) for _ in range(2)]
    assert not set(lost) & set(again)
    await store.advance(LEASE + 1)
    assert {r.id for r in await store.store.move_due(Rescue(by="m1", backoff=[1.0]))} == {*lost, *again}


async def test_a_claim_ahead_whose_reply_was_lost_is_free(store: Harness) -> None:
    await store.claimed(start=False, max_retries=0)
    await store.advance(LEASE + 1)
    [rescued] = await store.store.move_due(Rescue(by="m1", backoff=[1.0]))
    assert (rescued.status, rescued.charged) == (Status.PENDING, False)


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("name", OUTCOMES)
async def test_settle(store: Harness, name: str, cancelled: bool) -> None:
    runs = [await store.claimed(topic=f"t{i}") for i in range(3)]
    if cancelled:
        await store.store.move(ids(runs), Cancel(by="ann"))
    wishes = [settlement(await store.job(run.id), OUTCOMES[name], ran=0.25) for run in runs]
    await store.store.settle(wishes[:1])  # the next settle repeats this one and adds two
    answer = await replay(store, lambda: store.store.settle(wishes))
    assert {v.answer for v in answer.verdicts} == {Answer.ALREADY}


async def test_settle_with_claim(store: Harness) -> None:
    await store.insert(*[job() for _ in range(3)])
    [one] = (await store.claim(limit=1)).jobs
    wish, next_ = [settlement(one, Completed())], claim_by("w1", limit=1)
    await store.store.settle(wish, next_)
    again = await store.store.settle(wish, next_)
    assert [v.answer for v in again.verdicts] == [Answer.ALREADY]
    assert len(again.claimed.jobs if again.claimed else []) == 1


async def test_heartbeat_and_progress(store: Harness) -> None:
    claimed = await store.claimed(start=False)
    beat = Beat(claimed.id, 1, started=True)
    await replay(store, lambda: store.store.heartbeat([beat], 100.0), later=0.0)
    before = await store.row(claimed.id)
    await store.advance(1)
    await store.store.heartbeat([beat], LEASE)
    assert await store.row(claimed.id) == before  # the start mark and the lease stay as they are
    report = Progress(claimed.id, 1, 50.0, "stage", "message")
    await replay(store, lambda: store.store.progress([report]), later=0.0)


async def test_update_says_again_what_it_said(store: Harness) -> None:
    """Two equal edits have the effect of one, but the history shows that a client asked twice."""
    job_id = await store.add()
    edit = Edit(priority=7, payload='{"a":1}', tags=("t",), run_at=START)
    await store.store.move([job_id], Update(by="ann", edit=edit))
    before = await store.row(job_id)
    await store.store.move([job_id], Update(by="ann", edit=edit))
    after = await store.row(job_id)
    assert structs.replace(after.job, events_count=before.job.events_count) == before.job


async def test_pause(store: Harness) -> None:
    await store.store.steer_topic("mail", "pause", by="ann")
    paused = await store.store.paused()
    await store.store.steer_topic("mail", "pause", by="ann")
    assert await store.store.paused() == paused
