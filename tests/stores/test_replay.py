"""A swallowed reply: the verb was carried out, its answer was lost, the caller asks again. No second effect."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from rowlock.core.job import Status
from rowlock.core.lifecycle import Answer, Completed
from rowlock.stores.base import DAY, Beat, Changed, Edit, Enqueued, Hold, Progress, Retention
from tests.stores.conftest import shared_store
from tests.stores.harness import LEASE, OUTCOMES, START, Harness, claim_by, ids, job, settlement

store = shared_store

Call = Callable[[], Awaitable[Any]]


async def everything(store: Harness) -> tuple[Any, ...]:
    rows = await store.rows()
    events = {job_id: await store.store.events(job_id) for job_id in rows}
    return rows, events, await store.audit(), await store.store.paused()


async def replay(store: Harness, call: Call, later: float = 0.5) -> Any:
    """The second answer."""
    await call()
    before = await everything(store)
    await store.advance(later)
    again = await call()
    assert await everything(store) == before
    return again


async def test_insert(store: Harness) -> None:
    new = [job(key="k"), job(), job(delay=60.0)]
    for repeat in (False, True):
        answer = await replay(store, partial(store.store.insert, new, repeat=repeat))
        assert [(i.id, i.existing) for i in answer] == [(n.id, True) for n in new]


async def test_insert_when_the_job_was_finished_meanwhile(store: Harness) -> None:
    new = [job(key="k"), job()]
    await store.store.insert(new)
    done = (await store.claim()).jobs
    await store.store.settle([settlement(j, Completed()) for j in done])
    answer = await replay(store, lambda: store.store.insert(new, repeat=True))
    assert answer == [Enqueued(n.id, True, Status.COMPLETED, START, START) for n in new]


async def test_insert_when_it_was_deleted_in_between_is_a_new_job(store: Harness) -> None:
    """The one thing that a repeat can't know. Completed jobs stay a day for its sake; deleting is a person's wish."""
    new = job()
    await store.store.insert([new])
    await store.store.delete([new.id], by="ann")
    [answer] = await store.store.insert([new], repeat=True)
    assert not answer.existing


async def test_claim(store: Harness) -> None:
    """Nobody runs what was claimed in vain, until its lease is over; the others are not held up."""
    await store.insert(*[job() for _ in range(5)])
    lost = ids((await store.claim(limit=2)).jobs)
    before = await store.rows()
    again = ids((await store.claim(limit=2)).jobs)
    assert not set(lost) & set(again)
    assert len(again) == 2
    after = await store.rows()
    assert {i: after[i] for i in lost} == {i: before[i] for i in lost}
    await store.advance(LEASE + 1)
    assert {r.id for r in await store.store.rescue(by="m1", backoff=[1.0])} == {*lost, *again}


async def test_a_claim_ahead_whose_reply_was_lost_is_free(store: Harness) -> None:
    await store.add(max_retries=0)
    await store.claim(start=False)
    await store.advance(LEASE + 1)
    [rescued] = await store.store.rescue(by="m1", backoff=[1.0])
    assert (rescued.status, rescued.charged) == (Status.PENDING, False)


@pytest.mark.parametrize("name", OUTCOMES)
async def test_settle(store: Harness, name: str) -> None:
    jobs = [await store.claimed(topic=f"t{i}") for i in range(3)]
    wishes = [settlement(j, OUTCOMES[name], ran=0.25) for j in jobs]
    answer = await replay(store, lambda: store.store.settle(wishes))
    assert {v.answer for v in answer.verdicts} == {Answer.ALREADY}
    assert {v.status for v in answer.verdicts} == {wishes[0].transition.status}


async def test_settle_after_a_cancel_request(store: Harness) -> None:
    claimed = await store.claimed()
    await store.store.cancel([claimed.id], by="ann")
    wish = settlement(await store.job(claimed.id), OUTCOMES["retried"])
    answer = await replay(store, lambda: store.store.settle([wish]))
    assert [v.answer for v in answer.verdicts] == [Answer.ALREADY]


async def test_settle_half_of_which_is_new(store: Harness) -> None:
    one, two = await store.claimed(), await store.claimed()
    await store.store.settle([settlement(one, Completed(1))])
    both = [settlement(one, Completed(1)), settlement(two, Completed(2))]
    assert [v.answer for v in (await store.store.settle(both)).verdicts] == [Answer.ALREADY, Answer.APPLIED]


async def test_settle_with_claim(store: Harness) -> None:
    await store.insert(*[job() for _ in range(3)])
    [one] = (await store.claim(limit=1)).jobs
    wish, next_ = [settlement(one, Completed())], claim_by("w1", limit=1)
    await store.store.settle(wish, next_)
    before = await store.rows()
    again = await store.store.settle(wish, next_)
    assert [v.answer for v in again.verdicts] == [Answer.ALREADY]
    assert again.claimed is not None
    [third] = again.claimed.jobs
    after = await store.rows()
    assert before.pop(third.id).job.status is Status.PENDING
    del after[third.id]
    assert after == before


async def test_heartbeat(store: Harness) -> None:
    claimed = await store.claimed(start=False)
    beat = Beat(claimed.id, 1, started=True)
    assert await replay(store, lambda: store.store.heartbeat([beat], 100.0), later=0.0) == [Hold.KEPT]
    before = await store.row(claimed.id)
    await store.advance(1)
    assert await store.store.heartbeat([beat], LEASE) == [Hold.KEPT]
    assert await store.row(claimed.id) == before  # neither started again nor shortened


async def test_progress(store: Harness) -> None:
    claimed = await store.claimed()
    report = Progress(claimed.id, 1, 50.0, "stage", "message")
    assert await replay(store, lambda: store.store.progress([report]), later=0.0) == [Hold.KEPT]


async def test_promote(store: Harness) -> None:
    await store.add(delay=1.0)
    await store.advance(1)
    assert await replay(store, store.store.promote) == 0


@pytest.mark.parametrize("start", [True, False])
async def test_rescue(store: Harness, start: bool) -> None:
    await store.claimed(start=start)
    await store.in_status(Status.CANCEL_REQUESTED)
    await store.advance(LEASE + 1)
    assert await replay(store, lambda: store.store.rescue(by="m1", backoff=[1.0])) == []


async def test_rescue_of_workers(store: Harness) -> None:
    await store.claimed("dead")
    assert await replay(store, lambda: store.store.rescue(by="m1", backoff=[1.0], workers=["dead"])) == []


async def test_expire(store: Harness) -> None:
    await store.add(expires_at=START)
    assert await replay(store, lambda: store.store.expire(by="m1")) == []


async def test_cancel_timeout(store: Harness) -> None:
    await store.in_status(Status.CANCEL_REQUESTED)
    await store.advance(31)
    assert await replay(store, lambda: store.store.cancel_timeout(by="m1")) == []


async def test_prune(store: Harness) -> None:
    await store.settled(Completed())
    await store.in_status(Status.CANCELLED)
    await store.advance(8 * DAY)
    assert await replay(store, lambda: store.store.prune(Retention())) == 0


async def test_cancel(store: Harness) -> None:
    waits, runs = await store.add("other"), (await store.claimed()).id
    assert await replay(store, lambda: store.store.cancel([waits, runs], by="ann", reason="r")) == [
        Changed(waits, False, Status.CANCELLED),
        Changed(runs, False, Status.CANCEL_REQUESTED),
    ]


async def test_requeue(store: Harness) -> None:
    dead = (await store.in_status(Status.FAILED)).id
    answer = await replay(store, lambda: store.store.requeue([dead], by="ann"))
    assert answer == [Changed(dead, False, Status.PENDING)]


async def test_delete(store: Harness) -> None:
    dead, done = (await store.in_status(Status.FAILED)).id, (await store.in_status(Status.COMPLETED)).id
    assert await replay(store, lambda: store.store.delete([dead, done], by="ann")) == [
        Changed(dead, False, None),
        Changed(done, False, None),
    ]


async def test_update_says_again_what_it_said(store: Harness) -> None:
    """Two equal edits are one edit; that it was asked for twice stays on record."""
    job_id = await store.add()
    edit = Edit(priority=7, payload='{"a":1}', tags=("t",), run_at=START)
    await store.store.update([job_id], edit, by="ann")
    before = await store.row(job_id)
    assert await store.store.update([job_id], edit, by="ann") == [Changed(job_id, True, Status.PENDING)]
    after = await store.row(job_id)
    assert structs.replace(after.job, events_count=before.job.events_count) == before.job
    assert after.ready == before.ready


async def test_pause_and_resume(store: Harness) -> None:
    await store.store.pause("mail", by="ann")
    paused = await store.store.paused()
    await store.store.pause("mail", by="ann")
    assert await store.store.paused() == paused
    assert await replay(store, lambda: store.store.resume("mail", by="ann")) is False
