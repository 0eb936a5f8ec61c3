"""settle: each outcome in each situation. The reference says what it does, and what a refusal answers."""

import pytest
from msgspec import structs

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import (
    Answer,
    Completed,
    Failed,
    Outcome,
    Released,
    Snoozed,
    Verdict,
)
from rowlock.core.moves import Cancel, Delete, Requeue
from tests.stores.conftest import paired_store, shared_store
from tests.stores.harness import NOBODY, OUTCOMES, Harness, ids, job, settlement

store = paired_store
unpaired = shared_store  # for cases that the reference leaves open, and for large batches

APPLIED = Verdict(Answer.APPLIED)
LOST = Verdict(Answer.LOST)


async def settle(store: Harness, claimed: Job, outcome: Outcome, ran: float | None = None) -> Verdict:
    [verdict] = (await store.store.settle([settlement(claimed, outcome, ran=ran)])).verdicts
    return verdict


# ── What each outcome does to the row ──


@pytest.mark.parametrize("ran", [None, 0.0, 1.0, 100.0])
@pytest.mark.parametrize("start", [True, False])
async def test_each_outcome(store: Harness, ran: float | None, start: bool) -> None:
    """A handler can't have started before the claim, whatever the worker's clock says."""
    for n, outcome in enumerate([*OUTCOMES.values(), Snoozed(0.0), Completed({"n": [1, 2.5, "ü"]})]):
        claimed = await store.claimed(topic=f"t{n}", start=start, max_retries=n % 2)
        await store.advance(4)
        assert await settle(store, claimed, outcome, ran=ran) == APPLIED
        await store.story(claimed.id)


async def test_an_error_stays_until_the_next(store: Harness) -> None:
    first = await store.claimed()
    await settle(store, first, Failed("boom"))
    await store.advance(10)
    await store.store.promote()
    [second] = (await store.claim()).jobs
    await settle(store, second, Completed())
    after = await store.job(first.id)
    assert (after.status, after.last_error, after.retries) == (Status.COMPLETED, "boom", 1)


async def test_an_expired_but_not_rescued_lease_still_settles(store: Harness) -> None:
    claimed = await store.claimed()
    await store.advance(1000)
    assert await settle(store, claimed, Completed()) == APPLIED


async def test_a_long_error_is_whole_in_last_error_and_cut_in_the_history(store: Harness) -> None:
    claimed = await store.claimed()
    error = "é" * 200_000 + "\n" + '"\\' * 1000
    await settle(store, claimed, Failed(error))
    row = await store.row(claimed.id)
    assert row.job.last_error == error
    assert len(row.history[0]["error"].encode()) <= 4096


# ── After a cancel request ──


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("informed", [False, True])
async def test_an_outcome_after_a_cancel_request(store: Harness, name: str, informed: bool) -> None:
    """The worker decides before it knows of the request, or after."""
    claimed = await store.claimed()
    await store.store.move([claimed.id], Cancel(by="ann", reason="stop"))
    seen = await store.job(claimed.id) if informed else claimed
    verdict = await settle(store, seen, OUTCOMES[name])
    applied = informed or name in ("completed", "gave up")
    assert verdict == (APPLIED if applied else Verdict(Answer.CHANGED, Status.CANCEL_REQUESTED))
    assert (await store.job(claimed.id)).cancel_reason == "stop"


# ── Refused ──


@pytest.mark.parametrize("name", OUTCOMES)
async def test_a_repeat_is_told_so_and_another_outcome_is_lost(store: Harness, name: str) -> None:
    """This holds at once, after the next claim, and after the job's end."""

    async def check() -> None:
        before = await store.rows()
        for other, outcome in OUTCOMES.items():
            same = other == name or {name, other} <= {"retried", "timed out"}
            assert (await settle(store, claimed, outcome, ran=1.0)).answer is (Answer.ALREADY if same else Answer.LOST)
        assert await store.rows() == before

    claimed = await store.claimed()
    assert await settle(store, claimed, OUTCOMES[name], ran=1.0) == APPLIED
    await check()
    if name == "completed":
        return
    await store.store.move([claimed.id], Requeue(by="ann"))
    await store.advance(100)
    await store.store.promote()
    [again] = (await store.claim("w2")).jobs
    assert (again.id, again.version) == (claimed.id, 2)
    await check()
    assert await settle(store, again, Completed()) == APPLIED
    await check()


async def test_unknown_deleted_and_wrong_version(store: Harness) -> None:
    claimed = await store.claimed()
    gone = await store.settled(Failed("x", final=True))
    await store.store.move([gone.id], Delete(by="ann"))
    wish = structs.replace(settlement(claimed, Completed()), worker=None)
    others = [(NOBODY, 1), (gone.id, 1), (claimed.id, 0), (claimed.id, 2)]
    wishes = [structs.replace(wish, id=job_id, version=version) for job_id, version in others]
    assert (await store.store.settle(wishes)).verdicts == [LOST] * 4


# ── Batches ──


async def test_a_mixed_batch_answers_in_order(store: Harness) -> None:
    await store.insert(*[job(priority=100 - i) for i in range(30)])
    claimed = (await store.claim(limit=30)).jobs
    await store.store.move(ids(claimed[20:]), Cancel(by="ann", reason="r"))
    kinds = list(OUTCOMES.values())
    wishes = [settlement(j, kinds[i % 7], ran=i / 10) for i, j in enumerate(reversed(claimed))]
    wishes[4] = structs.replace(wishes[4], version=9)
    wishes[9] = structs.replace(wishes[9], id=NOBODY)
    await store.advance(1)
    await store.store.settle(wishes)


@pytest.mark.parametrize("first", OUTCOMES)
@pytest.mark.parametrize("second", ["same", "other"])
async def test_one_job_twice_in_a_batch_is_settled_once(store: Harness, first: str, second: str) -> None:
    one, two = await store.claimed(), await store.claimed()
    other = "released" if first != "released" else "completed"
    names = [first, first if second == "same" else other]
    wishes = [settlement(one, OUTCOMES[names[0]]), settlement(two, Completed()), settlement(one, OUTCOMES[names[1]])]
    await store.store.settle(wishes)


async def test_a_large_batch(unpaired: Harness) -> None:
    await unpaired.insert(*[job("mail", {"i": i}) for i in range(5000)])
    claimed = (await unpaired.claim(limit=5000)).jobs
    assert len(claimed) == 5000
    await unpaired.advance(1)
    kinds = list(OUTCOMES.values())
    wishes = [settlement(j, kinds[i % 7]) for i, j in enumerate(claimed)]
    assert (await unpaired.store.settle(wishes)).verdicts == [APPLIED] * 5000
    rows = await unpaired.rows()
    for i, j in enumerate(claimed):
        assert rows[j.id].job.status is wishes[i].transition.status


async def test_a_stale_and_a_current_settlement_of_one_job_in_one_batch(unpaired: Harness) -> None:
    """In any order, the stale settlement is lost and the current one counts."""
    first = await unpaired.claimed()
    await unpaired.store.settle([settlement(first, Released())])
    [second] = (await unpaired.claim()).jobs
    stale, current = settlement(first, Failed("late")), settlement(second, Completed({"ok": True}))
    verdicts = (await unpaired.store.settle([stale, current])).verdicts
    assert [verdict.answer for verdict in verdicts] == [Answer.LOST, Answer.APPLIED]
    assert (await unpaired.job(first.id)).result == {"ok": True}
