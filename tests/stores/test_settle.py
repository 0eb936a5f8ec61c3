"""settle: what each outcome does to the row, and what a refused one is told."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import (
    Answer,
    Completed,
    Failed,
    GaveUp,
    Outcome,
    Released,
    Settlement,
    Snoozed,
    TimedOut,
    Transition,
    Verdict,
)
from rowlock.stores.base import Hold, Progress
from tests.stores.conftest import shared_store
from tests.stores.harness import NOBODY, OUTCOMES, START, Harness, claim_by, job, settlement
from tests.stores.reference import Reference
from tests.stores.rows import Row, micros

store = shared_store

APPLIED = Verdict(Answer.APPLIED)
LOST = Verdict(Answer.LOST)


async def settle(store: Harness, claimed: Job, outcome: Outcome, ran: float | None = None) -> Verdict:
    [verdict] = (await store.store.settle([settlement(claimed, outcome, ran=ran)])).verdicts
    return verdict


# ── What each does to the row ──


async def test_complete(store: Harness) -> None:
    claimed = await store.claimed(max_retries=1)
    now = await store.advance(8)
    assert await settle(store, claimed, Completed({"n": [1, 2.5, "ü"]}), ran=2.5) == APPLIED
    expected = structs.replace(
        claimed,
        status=Status.COMPLETED,
        progress=100.0,
        result={"n": [1, 2.5, "ü"]},
        started_at=now - timedelta(seconds=2.5),
        finished_at=now,
        updated=now,
        locked_until=None,
        events_count=3,
    )
    assert await store.rows() == {claimed.id: Row(expected, ready=False)}
    assert await store.story(claimed.id) == ["enqueued", "claimed", "completed"]
    last = (await store.events(claimed.id))[-1]
    assert (last.seq, last.at, last.status, last.version, last.by, last.data) == (2, now, "completed", 1, "w1", {})
    assert await store.audit() == []


AFTER = 4.0  # seconds between claim and settle
ENTRY: dict[str, Any] = {"version": 1, "by": "w1", "claimed_at": micros(START), "started_at": micros(START) + 3_000_000}
NOT_COMPLETED: list[tuple[Outcome, dict[str, Any], bool, dict[str, Any]]] = [
    (
        Failed("boom\n  at line 1"),
        {"status": "pending", "retries": 1, "last_error": "boom\n  at line 1", "run_at": START + timedelta(seconds=14)},
        False,
        {"event": "retried", "delay": 10.0, "error": "boom\n  at line 1"},
    ),
    (
        TimedOut(1.5),
        {
            "status": "pending",
            "retries": 1,
            "last_error": "Timed out: the handler ran for more than 1.5 s",
            "run_at": START + timedelta(seconds=14),
        },
        False,
        {"event": "retried", "delay": 10.0, "error": "Timed out: the handler ran for more than 1.5 s"},
    ),
    (
        Failed("never", final=True),
        {"status": "failed", "last_error": "never", "finished_at": START + timedelta(seconds=AFTER)},
        False,
        {"event": "failed", "error": "never"},
    ),
    (
        Snoozed(90.0),
        {"status": "pending", "run_at": START + timedelta(seconds=94)},
        False,
        {"event": "snoozed", "delay": 90.0},
    ),
    (
        Snoozed(0.0),
        {"status": "pending", "run_at": START + timedelta(seconds=AFTER)},
        True,
        {"event": "snoozed"},
    ),
    (Released(), {"status": "pending"}, True, {"event": "released", "reason": "shutdown"}),
    (
        GaveUp("unwanted"),
        {"status": "cancelled", "cancel_reason": "unwanted", "finished_at": START + timedelta(seconds=AFTER)},
        False,
        {"event": "cancelled", "reason": "unwanted"},
    ),
]


@pytest.mark.parametrize(
    ("outcome", "columns", "ready", "entry"), NOT_COMPLETED, ids=[repr(case[0]) for case in NOT_COMPLETED]
)
async def test_everything_but_complete(
    store: Harness, outcome: Outcome, columns: dict[str, Any], ready: bool, entry: dict[str, Any]
) -> None:
    claimed = await store.claimed()
    now = await store.advance(AFTER)
    assert await settle(store, claimed, outcome, ran=1.0) == APPLIED
    changes: dict[str, Any] = {
        "locked_by": None,
        "locked_until": None,
        "updated": now,
        "started_at": START + timedelta(seconds=3),
        "events_count": 3,
        **columns,
    }
    changes["status"] = Status(changes["status"])
    history = ({"at": micros(now), "status": changes["status"], **ENTRY, **entry},)
    assert await store.rows() == {claimed.id: Row(structs.replace(claimed, **changes), ready, history)}
    assert await store.story(claimed.id) == ["enqueued", "claimed", entry["event"]]
    assert await store.audit() == []


async def test_the_last_retry(store: Harness) -> None:
    claimed = await store.claimed(max_retries=0)
    assert await settle(store, claimed, Failed("boom")) == APPLIED
    after = await store.job(claimed.id)
    assert (after.status, after.retries, after.last_error) == (Status.FAILED, 0, "Max retries exceeded: boom")


async def test_an_error_stays_until_the_next(store: Harness) -> None:
    first = await store.claimed()
    await settle(store, first, Failed("boom"))
    await store.advance(10)
    await store.store.promote()
    [second] = (await store.claim()).jobs
    await settle(store, second, Completed())
    after = await store.job(first.id)
    assert (after.status, after.last_error, after.retries) == (Status.COMPLETED, "boom", 1)


@pytest.mark.parametrize("ran", [None, 0.0, 5.0, 100.0])
@pytest.mark.parametrize("start", [True, False])
async def test_the_start_mark(store: Harness, ran: float | None, start: bool) -> None:
    """A handler can't have started before the claim, whatever the worker's clock says."""
    for outcome in (Completed(), Released()):
        claimed = await store.claimed(start=start)
        now = await store.advance(10)
        await settle(store, claimed, outcome, ran=ran)
        started_at = (await store.job(claimed.id)).started_at
        assert claimed.claimed_at
        if ran is None:
            assert started_at == (claimed.claimed_at if start else None)
        else:
            assert started_at == max(claimed.claimed_at, now - timedelta(seconds=ran))
        await store.store.cancel([claimed.id], by="ann")  # out of the next round's way


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
async def test_outcomes_decided_before_the_cancel_request(store: Harness, name: str) -> None:
    claimed = await store.claimed()
    await store.store.cancel([claimed.id], by="ann", reason="stop")
    before = await store.rows()
    verdict = await settle(store, claimed, OUTCOMES[name])
    after = (await store.rows())[claimed.id].job
    if name == "completed":
        assert (verdict, after.status, after.cancel_reason) == (APPLIED, Status.COMPLETED, "stop")
    elif name == "gave up":
        assert (verdict, after.status, after.cancel_reason) == (APPLIED, Status.CANCELLED, "stop")
    else:
        assert verdict == Verdict(Answer.CHANGED, Status.CANCEL_REQUESTED)
        assert await store.rows() == before


@pytest.mark.parametrize("name", OUTCOMES)
async def test_outcomes_decided_after_the_cancel_request(store: Harness, name: str) -> None:
    claimed = await store.claimed()
    await store.store.cancel([claimed.id], by="ann", reason="stop")
    assert await settle(store, await store.job(claimed.id), OUTCOMES[name]) == APPLIED
    after = await store.job(claimed.id)
    assert after.status is (Status.COMPLETED if name == "completed" else Status.CANCELLED)
    assert after.finished_at == store.now
    assert (after.cancel_requested_at, after.cancel_reason) == (START, "stop")


# ── Refused ──


@pytest.mark.parametrize("name", OUTCOMES)
async def test_a_repeat_is_told_so(store: Harness, name: str) -> None:
    claimed = await store.claimed()
    assert await settle(store, claimed, OUTCOMES[name], ran=1.0) == APPLIED
    before = await store.rows()
    await store.advance(1)
    status = before[claimed.id].job.status
    assert await settle(store, claimed, OUTCOMES[name], ran=1.0) == Verdict(Answer.ALREADY, status)
    assert await store.rows() == before


@pytest.mark.parametrize("name", [name for name in OUTCOMES if name != "completed"])
async def test_a_repeat_is_told_so_after_the_next_claim(store: Harness, name: str) -> None:
    claimed = await store.claimed()
    await settle(store, claimed, OUTCOMES[name])
    if name in ("failed", "gave up"):
        await store.store.requeue([claimed.id], by="ann")
    await store.advance(100)
    await store.store.promote()
    [again] = (await store.claim("w2")).jobs
    assert (again.id, again.version) == (claimed.id, 2)
    before = await store.rows()
    assert await settle(store, claimed, OUTCOMES[name]) == Verdict(Answer.ALREADY, Status.PROCESSING)
    assert await store.rows() == before
    assert await settle(store, again, Completed()) == APPLIED
    assert await settle(store, claimed, OUTCOMES[name]) == Verdict(Answer.ALREADY, Status.COMPLETED)


@pytest.mark.parametrize("name", OUTCOMES)
async def test_another_outcome_of_a_settled_run_is_lost(store: Harness, name: str) -> None:
    claimed = await store.claimed()
    await settle(store, claimed, OUTCOMES[name])
    before = await store.rows()
    for other, outcome in OUTCOMES.items():
        if {name, other} <= {"retried", "timed out"} or other == name:
            continue
        assert await settle(store, claimed, outcome) == LOST
    assert await store.rows() == before


async def test_unknown_deleted_and_wrong_version(store: Harness) -> None:
    claimed = await store.claimed()
    gone = await store.settled(Failed("x", final=True))
    await store.store.delete([gone.id], by="ann")
    before = await store.rows()
    wishes = [
        settlement(claimed, Completed()).__class__(job_id, version, settlement(claimed, Completed()).transition)
        for job_id, version in [(NOBODY, 1), (gone.id, 1), (claimed.id, 0), (claimed.id, 2)]
    ]
    assert (await store.store.settle(wishes)).verdicts == [LOST] * 4
    assert await store.rows() == before


# ── Batches ──


async def test_a_mixed_batch_answers_in_order(store: Harness) -> None:
    reference = Reference(START)
    new = [job(priority=100 - i) for i in range(30)]
    await store.insert(*new)
    reference.insert(new)
    claimed = (await store.claim(limit=30)).jobs
    assert claimed == reference.claim(claim_by(limit=30)).jobs
    for target in (store.store, reference):
        answer = target.cancel([j.id for j in claimed[20:]], by="ann", reason="r")
        if not isinstance(answer, list):
            await answer
    kinds = list(OUTCOMES.values())
    wishes = [settlement(j, kinds[i % 7], ran=i / 10) for i, j in enumerate(reversed(claimed))]
    wishes[4] = structs.replace(wishes[4], version=9)
    wishes[9] = structs.replace(wishes[9], id=NOBODY)
    reference.now = await store.advance(1)
    assert (await store.store.settle(wishes)).verdicts == reference.settle(wishes).verdicts
    assert await store.rows() == reference.rows


@pytest.mark.parametrize("first", OUTCOMES)
@pytest.mark.parametrize("second", ["same", "other"])
async def test_one_job_twice_in_a_batch_is_settled_once(store: Harness, first: str, second: str) -> None:
    reference = Reference(START)
    new = [job(), job()]
    await store.insert(*new)
    reference.insert(new)
    one, two = (await store.claim()).jobs
    reference.claim(claim_by())
    other = "released" if first != "released" else "completed"
    names = [first, first if second == "same" else other]
    wishes = [settlement(one, OUTCOMES[names[0]]), settlement(two, Completed()), settlement(one, OUTCOMES[names[1]])]
    verdicts = (await store.store.settle(wishes)).verdicts
    assert verdicts == reference.settle(wishes).verdicts
    assert await store.rows() == reference.rows


async def test_a_large_batch(store: Harness) -> None:
    await store.insert(*[job("mail", {"i": i}) for i in range(5000)])
    claimed = (await store.claim(limit=5000)).jobs
    assert len(claimed) == 5000
    await store.advance(1)
    kinds = list(OUTCOMES.values())
    wishes = [settlement(j, kinds[i % 7]) for i, j in enumerate(claimed)]
    assert (await store.store.settle(wishes)).verdicts == [APPLIED] * 5000
    rows = await store.rows()
    for i, j in enumerate(claimed):
        assert rows[j.id].job.status is wishes[i].transition.status


async def test_a_waiting_job_holds_no_lease(store: Harness) -> None:
    claimed = await store.claimed()
    waits = Transition(event="waited", status=Status.WAITING, ran=0.0)
    assert (await store.store.settle([Settlement(claimed.id, 1, waits)])).verdicts == [APPLIED]
    row = await store.row(claimed.id)
    assert (row.job.status, row.ready, row.job.run_at, row.job.finished_at) == (Status.WAITING, False, START, None)


async def test_a_stale_and_a_current_settlement_of_one_job_in_one_batch(store: Harness) -> None:
    """Whatever their order, the stale one is lost and the current one counts."""
    first = await store.claimed()
    await store.store.settle([settlement(first, Released())])
    [second] = (await store.claim()).jobs
    stale, current = settlement(first, Failed("late")), settlement(second, Completed({"ok": True}))
    verdicts = (await store.store.settle([stale, current])).verdicts
    assert [verdict.answer for verdict in verdicts] == [Answer.LOST, Answer.APPLIED]
    assert (await store.job(first.id)).result == {"ok": True}


async def test_of_several_progress_reports_in_one_batch_the_last_counts(store: Harness) -> None:
    run = await store.claimed()
    reports = [Progress(run.id, run.version, percent) for percent in (30.0, 20.0, 50.0, 40.0)]
    assert await store.store.progress(reports) == [Hold.KEPT] * 4
    assert (await store.job(run.id)).progress == 40.0
