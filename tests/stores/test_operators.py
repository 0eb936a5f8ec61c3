"""cancel, requeue, update, delete and pause in special situations. The reference says what they do to rows."""

from collections.abc import Awaitable, Callable
from datetime import UTC, timedelta

import pytest

from rowlock.core.job import Status
from rowlock.core.lifecycle import Completed, Failed, GaveUp
from rowlock.core.moves import Cancel, Delete, Requeue, Rescue, Update
from rowlock.stores.base import Changed, Edit, Progress, Store
from tests.stores.conftest import paired_store
from tests.stores.harness import LEASE, MINUTE, NOBODY, START, Harness, job, settlement

store = paired_store

ALL = Edit(priority=7, delay=60.0, payload='{"b":9007199254740993}', tags=("x",))
BATCHES: dict[str, Callable[[Store, list[str], str | None], Awaitable[list[Changed]]]] = {
    "cancel": lambda store, ids, reason: store.move(ids, Cancel(by="ann", reason=reason)),
    "requeue": lambda store, ids, reason: store.move(ids, Requeue(by="ann", reason=reason)),
    "requeue with changes": lambda store, ids, reason: store.move(
        ids, Requeue(version=1, by="ann", reason=reason, edit=ALL)
    ),
    "update": lambda store, ids, reason: store.move(ids, Update(by="ann", reason=reason, edit=ALL)),
    "delete": lambda store, ids, reason: store.move(ids, Delete(by="ann", reason=reason)),
}


@pytest.mark.parametrize("reason", ["wrong address", None])
@pytest.mark.parametrize("verb", BATCHES)
async def test_a_batch_of_every_status(store: Harness, verb: str, reason: str | None) -> None:
    """Answers come in the order of the ids. An id that comes twice takes effect once. A second call does the rest."""
    jobs = [(await store.in_status(status, topic=status)).id for status in Status]
    await store.advance(2)
    for ids in ([jobs[3], *reversed(jobs), NOBODY, jobs[3]], jobs, []):
        answers = await BATCHES[verb](store.store, ids, reason)
        assert [answer.id for answer in answers] == ids
    await store.claim("w9", *Status)


# ── requeue ──


async def test_requeue_with_changes_waits_for_its_time(store: Harness) -> None:
    there = await store.in_status(Status.FAILED)
    await store.store.move([there.id], Requeue(version=there.version, by="ann", edit=ALL))
    assert (await store.claim()).jobs == []
    await store.advance(MINUTE)
    await store.store.promote()
    assert [j.payload for j in (await store.claim()).jobs] == [{"b": 9007199254740993}]


async def test_requeue_of_a_job_that_has_run_again_since(store: Harness) -> None:
    there = await store.in_status(Status.FAILED)
    answers = await store.store.move([there.id], Requeue(version=there.version - 1, by="ann", edit=Edit(payload="{}")))
    assert answers == [Changed(there.id, False, Status.FAILED)]


@pytest.mark.parametrize("edit", [Edit(), Edit(payload='{"other":1}')], ids=["as it is", "with changes"])
async def test_requeue_while_another_has_the_key(store: Harness, edit: Edit) -> None:
    dead = (await store.settled(GaveUp(), key="k")).id
    holder = await store.add(key="k")
    elsewhere = (await store.settled(GaveUp(), topic="other", key="k")).id
    answers = await store.store.move([dead, elsewhere], Requeue(by="ann", edit=edit))
    assert answers == [Changed(dead, False, Status.CANCELLED, holder), Changed(elsewhere, True, Status.PENDING)]


async def test_requeue_while_others_have_the_key_in_their_scopes(store: Harness) -> None:
    dead = (await store.settled(GaveUp(), key="k", scope="a", scope_id="a")).id
    for scope, scope_id in ((None, None), ("a", None), (None, "a"), ("b", "a")):
        await store.add(key="k", scope=scope, scope_id=scope_id)
    assert await store.store.move([dead], Requeue(by="ann")) == [Changed(dead, True, Status.PENDING)]


async def test_requeue_of_two_with_one_key(store: Harness) -> None:
    older, newer = [(await store.settled(GaveUp(), key="k")).id for _ in range(2)]
    answers = await store.store.move([newer, older], Requeue(by="ann"))
    assert answers == [Changed(newer, False, Status.CANCELLED, older), Changed(older, True, Status.PENDING)]


async def test_requeue_resets_what_a_run_left_behind(store: Harness) -> None:
    claimed = await store.claimed(max_retries=1, run_at=START - timedelta(days=1))
    await store.advance(LEASE + 1)
    await store.store.move_due(Rescue(by="m1", backoff=[1.0]))
    [claimed] = (await store.claim("w2")).jobs
    await store.store.progress([Progress(claimed.id, 2, 40.0, "stage", "message")])
    await store.store.move([claimed.id], Cancel(by="ann", reason="stop"))
    await store.store.settle([settlement(await store.job(claimed.id), Failed("boom"))])
    there = await store.job(claimed.id)
    assert (there.retries, there.crashes, there.progress, there.stage) == (1, 1, 40.0, "stage")
    assert (there.status, there.last_error, there.cancel_reason) == (Status.CANCELLED, "boom", "stop")
    await store.store.move([there.id], Requeue(by="ann"))


# ── update ──

EDITS = [
    Edit(priority=7),
    Edit(payload='{"b":[2.5,null]}'),
    Edit(tags=("x", "ü")),
    Edit(tags=()),
    Edit(run_at=START + timedelta(hours=1)),
    Edit(run_at=START - timedelta(hours=1)),
    Edit(delay=5.5),
    Edit(delay=0.0),
    Edit(priority=-1, run_at=START, payload="{}", tags=("y",)),
]


@pytest.mark.parametrize("edit", EDITS, ids=str)
@pytest.mark.parametrize("delay", [0.0, MINUTE])
async def test_an_edit_changes_this_job_alone(store: Harness, edit: Edit, delay: float) -> None:
    job_id = await store.add("mail", {"a": 1}, tags=("old",), delay=delay)
    await store.add()
    await store.advance(2)
    await store.store.move([job_id], Update(by="ann", reason="why", edit=edit))
    await store.advance(MINUTE)
    await store.store.move([job_id], Update(by="ann", edit=Edit(priority=4)))  # promote makes it ready, not update
    await store.store.promote()


async def test_an_updated_priority_counts_in_the_next_claim(store: Harness) -> None:
    first, second = await store.add(), await store.add()
    await store.claimed("w0", priority=1000)  # a store may remember the last claim: give it one to remember
    await store.store.move([second], Update(by="ann", edit=Edit(priority=101)))
    assert [j.id for j in (await store.claim()).jobs] == [second, first]


# ── pause ──


async def test_pause_and_resume(store: Harness) -> None:
    await store.store.steer_topic("b", "pause", by="ann", reason="deploy", until=START + timedelta(minutes=5))
    await store.advance(1)
    await store.store.steer_topic("a", "pause", by="bob")
    assert [pause.topic for pause in await store.store.paused()] == ["a", "b"]
    assert (await store.store.paused())[0].at.tzinfo is UTC
    await store.advance(1)
    await store.store.steer_topic("a", "pause", by="ann", reason="again")  # the latest pause counts
    assert [pause.reason for pause in await store.store.paused()] == ["again", "deploy"]
    assert await store.store.steer_topic("a", "resume", by="ann", reason="done")
    assert not await store.store.steer_topic("a", "resume", by="ann")
    assert not await store.store.steer_topic("never", "resume", by="ann")
    await store.advance(5 * MINUTE)
    assert await store.store.paused() == []


async def test_a_pause_stops_claims_and_nothing_else(store: Harness) -> None:
    claimed = await store.claimed()
    await store.store.steer_topic("mail", "pause", by="ann")
    await store.insert(job(), job(delay=1))
    await store.advance(1)
    assert await store.store.promote() == 1
    assert (await store.store.settle([settlement(claimed, Completed())])).verdicts[0].answer == "applied"
    assert (await store.claim()).jobs == []
