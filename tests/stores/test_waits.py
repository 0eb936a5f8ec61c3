"""Waits, signals and callbacks: which runs wait, what wakes a job, what a cancel does, and what is removed when."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec import UNSET, structs

from rowlock.client.verify import verify
from rowlock.core.codec import encode
from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import APPLIED, Answer, Completed, Failed, GaveUp, Outcome, Released, Waits
from rowlock.core.moves import (
    AcknowledgeCallback,
    Cancel,
    CancelTimeout,
    Delete,
    Edit,
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
from rowlock.core.steps import StepState
from rowlock.core.templates import line_of
from rowlock.core.times import NEVER_AT
from rowlock.core.waits import MAX_UNREAD, WAIT_TIMED_OUT, WaitTerms
from rowlock.runtime.give_back import give_back
from rowlock.stores import reading
from rowlock.stores.base import DAY, Awaited, Beat, Changed, Hold, Retention
from rowlock.stores.queries import Filter
from rowlock.stores.records import Write
from tests.stores import harness
from tests.stores.conftest import paired_store
from tests.stores.harness import LEASE, NOBODY, START, Harness, mark, settlement, wait

store = paired_store

KEPT, CANCEL, LOST = Hold.KEPT, Hold.CANCEL, Hold.LOST
RUNNING, SUCCEEDED, FAILED = StepState.RUNNING, StepState.SUCCEEDED, StepState.FAILED


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


async def signal(store: Harness, job: Job, name: str = "go", data: Any = 1, **fields: Any) -> Changed:
    sent = SignalSent(name, encode(data, "data"), fields.pop("id", None))
    [answer] = await store.store.move([job.id], Signal(by="ann", sent=sent, **fields))
    return answer


async def take(store: Harness, run: Job, waits_for: str = "signal:go", **fields: Any) -> Awaited:
    answer: Awaited = await store.store.take_signal(wait(run, waits_for, **fields))
    return answer


async def again(store: Harness, job: Job, worker: str = "w1") -> Job:
    """Claim the job and return its next run."""
    [run] = (await store.claim(worker, job.topic)).jobs
    assert run.id == job.id
    return run


async def with_callback(store: Harness, *done: str, lasts: float | None = None, timeout: float | None = None) -> Job:
    """Return a job that waits for an answer to a callback."""
    run = await store.claimed()
    marks = [mark(run, name, "succeeded") for name in done]
    result = WaitTerms(timeout=lasts).text
    marks.append(mark(run, "@callback:go", "succeeded", position=8, lasts=lasts, result=result))
    await store.store.checkpoint(marks)
    return await store.waits(run, timeout=timeout, undoes=bool(done))


async def unread(store: Harness, job: Job) -> list[Any]:
    return [one.data for one in (await store.row(job.id)).signals if one.wait is None]


async def cancel(store: Harness, job: Job) -> Job:
    await store.store.move([job.id], Cancel(by="ann", reason="no"))
    return await store.job(job.id)


async def stored(store: Harness, job: Job) -> dict[str, str]:
    return {f"{step.name}#{step.n}": step.state.value for step in await reading.steps(store.store, job.id)}


async def legal(store: Harness) -> None:
    """Check that `rowlock verify` finds no fault."""
    assert (await verify(store.store, limit=100, seconds=60.0)).findings == []


# ── Does a run have to wait? ──


async def test_a_signal_that_came_before_is_read_at_once(store: Harness) -> None:
    run = await store.claimed()
    await signal(store, run, data={"ok": [1.5, None]})
    answer = await take(store, run, seconds=60.0)
    assert (answer.hold, answer.state, json.loads(answer.result or "")) == (KEPT, SUCCEEDED, {"ok": [1.5, None]})
    [step] = await reading.steps(store.store, run.id)
    assert (step.name, step.state, step.result) == ("@signal:go", SUCCEEDED, {"ok": [1.5, None]})
    assert step.finished_at == START
    [read] = (await store.row(run.id)).signals
    assert (read.seq, read.by, read.at, read.wait, read.wait_n) == (1, "ann", START, "@signal:go", 1)
    assert (await store.job(run.id)).status is Status.PROCESSING


async def test_signals_of_a_name_are_read_in_their_order(store: Harness) -> None:
    run = await store.claimed()
    for name, data in (("go", 1), ("other", 2), ("go", 3)):
        await signal(store, run, name, data)
    results = [(await take(store, run, n=n)).result for n in (1, 2)]
    assert results == ["1", "3"]
    assert (await take(store, run, n=3)).state is RUNNING
    assert (await take(store, run, "signal:other")).result == "2"
    assert await unread(store, run) == []


async def test_an_open_wait_has_its_terms_and_a_deadline_that_stays(store: Harness) -> None:
    run = await store.claimed()
    terms = WaitTerms(60.0, {"type": "object"}).text
    answer = await take(store, run, seconds=60.0, terms=terms)
    assert answer == Awaited(KEPT, RUNNING, None, 60.0, 0)
    [step] = await reading.steps(store.store, run.id)
    assert (step.state, step.deadline, step.finished_at) == (RUNNING, after(60), None)
    assert step.result == {"timeout": 60.0, "schema": {"type": "object"}}
    assert (await store.job(run.id)).step == "@signal:go"
    await store.advance(20)
    assert (await take(store, run, seconds=60.0)).left == 40.0
    await store.store.settle([settlement(run, Released())])
    run = await again(store, run, "w2")
    assert (await take(store, run, seconds=60.0)).left == 40.0
    [step] = await reading.steps(store.store, run.id)
    assert (step.started_at, step.deadline, step.version) == (START, after(60), 2)


@pytest.mark.parametrize(
    ("waits_for", "default", "state", "result"),
    [
        ("signal:go", UNSET, FAILED, None),
        ("signal:go", '{"ok":false}', SUCCEEDED, {"ok": False}),
        ("signal:go", "null", SUCCEEDED, None),
        ("sleep", UNSET, SUCCEEDED, None),
    ],
)
@pytest.mark.parametrize("ends", [{"seconds": 60.0}, {"until": after(60)}])
async def test_the_time_of_a_wait_is_over(
    store: Harness, waits_for: str, default: Any, state: StepState, result: Any, ends: dict[str, Any]
) -> None:
    run = await store.claimed()
    assert (await take(store, run, waits_for, default=default, **ends)).left == 60.0
    await store.advance(60 - 1e-6)
    assert (await take(store, run, waits_for, default=default, **ends)).state is RUNNING
    await store.advance(1e-6)
    answer = await take(store, run, waits_for, default=default, **ends)
    assert (answer.hold, answer.state, json.loads(answer.result or "null")) == (KEPT, state, result)
    [step] = await reading.steps(store.store, run.id)
    assert (step.state, step.result, step.error) == (state, result, WAIT_TIMED_OUT if state is FAILED else None)
    assert step.finished_at == store.now


async def test_a_time_that_is_over_already(store: Harness) -> None:
    run = await store.claimed()
    assert (await take(store, run, "sleep", until=after(-5))).state is SUCCEEDED
    assert (await take(store, run, "sleep", n=2, seconds=0.0)).state is SUCCEEDED
    assert (await take(store, run, seconds=0.0)).state is FAILED


async def test_a_signal_that_is_there_wins_over_the_deadline(store: Harness) -> None:
    run = await store.claimed()
    await take(store, run, seconds=60.0)
    await store.advance(100)
    await signal(store, run)
    assert (await take(store, run, seconds=60.0)).result == "1"


@pytest.mark.parametrize("how", ["signal", "deadline", "default"])
async def test_a_repeat_gets_the_same_answer(store: Harness, how: str) -> None:
    """The reply to the first call was lost. The answer also stays the same for later runs."""
    run = await store.claimed()
    default = "7" if how == "default" else UNSET
    await take(store, run, seconds=60.0, default=default)
    if how == "signal":
        await signal(store, run)
    await store.advance(60)
    first = await take(store, run, seconds=60.0, default=default)
    await signal(store, run, data=2)
    before = await store.rows()
    second = await take(store, run, seconds=60.0, default=default)
    assert (second.hold, second.state, second.result) == (KEPT, first.state, first.result)
    assert await store.rows() == before
    await store.store.settle([settlement(run, Released())])
    third = await take(store, await again(store, run), seconds=1.0, default="8")
    assert (third.state, third.result) == (first.state, first.result)
    assert await unread(store, run) == [2]


async def test_a_run_that_has_lost_its_job_reads_nothing(store: Harness) -> None:
    run = await store.claimed()
    await signal(store, run)
    before = await store.rows()
    for wrong in ({"version": 0}, {"version": 2}, {"worker": "w2"}, {"id": NOBODY}):
        assert await take(store, run, **wrong) == Awaited(LOST)
    assert await store.rows() == before
    assert (await take(store, run, worker=None)).result == "1"


@pytest.mark.parametrize("status", Status)
async def test_only_a_running_job_may_ask(store: Harness, status: Status) -> None:
    job = await store.in_status(status)
    before = await store.rows()
    held = {Status.PROCESSING: KEPT, Status.CANCEL_REQUESTED: CANCEL}
    answer = await take(store, job, "sleep", worker=None, seconds=5.0)
    assert answer.hold is held.get(status, LOST)
    assert (await store.rows() == before) == (answer.hold is not KEPT)


# ── The job waits ──


async def test_a_job_waits_until_a_time(store: Harness) -> None:
    job = await store.waiting("sleep", timeout=90.0)
    assert (job.status, job.waits_for, job.run_at) == (Status.WAITING, "sleep", after(90))
    assert (job.locked_by, job.locked_until, job.retries) == (None, None, 0)
    claimed = await store.claim()
    assert (claimed.jobs, claimed.next_due) == ([], 90.0)
    await store.advance(90 - 1e-6)
    assert await store.store.promote() == 0
    await store.advance(1e-6)
    assert await store.store.promote() == 1
    run = await again(store, job)
    assert (run.status, run.waits_for, run.version) == (Status.PROCESSING, None, 2)
    assert (await take(store, run, "sleep", seconds=90.0)).state is SUCCEEDED
    await store.store.settle([settlement(run, Completed(), ran=0.0)])
    assert await store.story(job.id) == ["enqueued", "claimed", "waited", "resumed", "claimed", "completed"]
    await legal(store)


async def test_a_job_waits_for_ever(store: Harness) -> None:
    job = await store.waiting()
    assert (job.status, job.waits_for, job.run_at) == (Status.WAITING, "signal:go", NEVER_AT)
    assert (await store.claim()).next_due is None
    later = await store.waiting("sleep", timeout=50.0)
    soon = await store.add(delay=70.0)
    assert (await store.claim()).next_due == 50.0
    await store.advance(9 * 366 * DAY)
    assert await store.store.promote() == 2
    assert {run.id for run in (await store.claim()).jobs} == {later.id, soon}
    assert (await store.job(job.id)).status is Status.WAITING
    await legal(store)


async def test_promote_does_at_most_what_it_may(shared_store: Harness) -> None:
    store = shared_store
    for _ in range(3):
        await store.waiting("sleep", timeout=5.0)
        await store.add(delay=5.0)
    await store.advance(5)
    assert [await store.store.promote(4), await store.store.promote(4), await store.store.promote(4)] == [4, 2, 0]


async def test_waiting_jobs_are_resumed_oldest_first(shared_store: Harness) -> None:
    store = shared_store
    jobs = [await store.waiting("sleep", timeout=seconds) for seconds in (30.0, 10.0, 20.0)]
    await store.advance(60)
    moved = [await store.store.move_due(Resume(by="m1"), 2), await store.store.move_due(Resume(by="m1"), 2)]
    assert [[one.id for one in some] for some in moved] == [[jobs[1].id, jobs[2].id], [jobs[0].id]]
    assert {one.status for some in moved for one in some} == {Status.PENDING}


async def test_a_signal_between_the_look_and_the_wait_is_not_missed(store: Harness) -> None:
    run = await store.claimed()
    answer = await take(store, run, seconds=60.0)
    await signal(store, run)
    settled = await store.store.settle([settlement(run, Waits("signal:go", answer.left, answer.seen), ran=1.0)])
    assert settled.verdicts == [APPLIED]
    job = await store.job(run.id)
    assert (job.status, job.waits_for, job.run_at, job.locked_by) == (Status.PENDING, None, START, None)
    entry = (await store.row(run.id)).history[-1]
    assert (entry["event"], entry["status"]) == ("waited", "pending")
    assert (await take(store, await again(store, run))).result == "1"
    await legal(store)


async def test_signals_that_were_seen_don_t_keep_a_job_from_waiting(store: Harness) -> None:
    run = await store.claimed()
    for name in ("other", "go"):
        await signal(store, run, name)
    assert (await take(store, run)).seen == 2
    job = await store.waits(run, n=2)
    assert job.status is Status.WAITING


async def test_a_repeated_settlement_of_a_wait_is_known(store: Harness) -> None:
    run = await store.claimed()
    waits = settlement(run, Waits("signal:go", 5.0, 0))
    await store.store.settle([waits])
    assert [v.answer for v in (await store.store.settle([waits])).verdicts] == [Answer.ALREADY]
    await signal(store, run)
    assert [v.answer for v in (await store.store.settle([waits])).verdicts] == [Answer.ALREADY]
    await again(store, run, "w2")
    assert [v.answer for v in (await store.store.settle([waits])).verdicts] == [Answer.ALREADY]


async def test_waits_in_one_batch_with_other_ends(shared_store: Harness) -> None:
    store = shared_store
    runs = [await store.claimed() for _ in range(4)]
    outcomes: list[Outcome] = [Completed(), Waits("sleep", 5.0, 0), Released(), Waits("signal:go", None, 0)]
    pairs = zip(runs, outcomes, strict=True)
    settled = await store.store.settle([settlement(run, outcome, ran=0.0) for run, outcome in pairs])
    assert settled.verdicts == [APPLIED] * 4
    statuses = [(await store.job(run.id)).status for run in runs]
    assert statuses == [Status.COMPLETED, Status.WAITING, Status.PENDING, Status.WAITING]


# ── Signals ──


@pytest.mark.parametrize("status", Status)
async def test_a_signal_in_a_status(store: Harness, status: Status) -> None:
    job = await store.in_status(status)
    answer = await signal(store, job)
    ended = {Status.COMPLETED, Status.FAILED, Status.EXPIRED, Status.CANCELLED, Status.CANCEL_REQUESTED}
    assert answer.done == (status not in ended)
    assert answer.status is (Status.PENDING if status is Status.WAITING else status)
    assert await unread(store, job) == ([] if status in ended else [1])
    assert bool(await store.audit()) == (answer.done or status is Status.CANCEL_REQUESTED)
    assert (await signal(store, structs.replace(job, id=NOBODY))).status is None


async def test_a_signal_wakes_the_job_that_waits_for_it(store: Harness) -> None:
    job = await store.waiting(timeout=60.0)
    await store.advance(10)
    assert (await signal(store, job, "other")).status is Status.WAITING
    assert (await store.job(job.id)).run_at == after(60)
    assert (await signal(store, job, data={"a": 1}, id="x1")).status is Status.PENDING
    woken = await store.job(job.id)
    assert (woken.run_at, woken.waits_for) == (after(10), None)
    run = await again(store, job)
    assert json.loads((await take(store, run)).result or "") == {"a": 1}
    assert await store.story(job.id) == ["enqueued", "claimed", "waited", "signalled", "resumed", "claimed"]
    events = await store.events(job.id)
    assert (events[4].by, events[4].data) == ("ann", {"waits_for": "signal:go", "signal": "go", "id": "x1"})
    audit = await store.audit()
    assert [(line.action, line.data) for line in audit] == [
        ("signal", {"signal": "other"}),
        ("signal", {"signal": "go", "id": "x1"}),
    ]
    await legal(store)


async def test_a_job_that_sleeps_is_not_woken_by_signals(store: Harness) -> None:
    job = await store.waiting("sleep", timeout=60.0)
    assert (await signal(store, job, "sleep")).status is Status.WAITING


async def test_an_id_counts_once_per_job(store: Harness) -> None:
    job, other = await store.waiting(), await store.waiting()
    assert (await signal(store, job, data=1, id="x")).done
    again_ = await signal(store, job, data=2, id="x")
    assert (again_.done, again_.why, again_.status) == (False, "known", Status.PENDING)
    assert (await signal(store, job, "other", data=3, id="x")).why == "known"
    assert (await signal(store, other, data=4, id="x")).done
    assert (await signal(store, job, data=5)).done
    assert (await signal(store, job, data=6)).done
    run, _ = (await store.claim()).jobs
    assert (await take(store, run)).result == "1"
    assert (await signal(store, job, data=7, id="x")).why == "known"
    assert await unread(store, job) == [5, 6]


async def test_one_signal_for_many_jobs(store: Harness) -> None:
    jobs = [await store.waiting(), await store.in_status(Status.PENDING), await store.in_status(Status.FAILED, "other")]
    order = Signal(by="ann", sent=SignalSent("go", "1", "x"))
    answers = await store.store.move([job.id for job in jobs], order)
    assert [answer.done for answer in answers] == [True, True, False]


async def test_too_many_unread_signals(shared_store: Harness) -> None:
    store = shared_store
    job = await store.waiting("sleep", timeout=60.0)
    await store.execute(
        "WITH RECURSIVE k (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM k WHERE n < 999) "
        "INSERT INTO _jobs_signals (job_id, seq, name, data, at) "
        "SELECT j.id, k.n, CASE WHEN k.n % 2 = 0 THEN 'go' ELSE 'other' END, '0', j.created FROM _jobs j, k; "
        "UPDATE _jobs SET signals = 999"
    )
    assert (await signal(store, job, data=1)).done
    before = await store.rows()
    full = await signal(store, job, data=2)
    assert (full.done, full.why, full.status) == (False, "full", Status.WAITING)
    assert await store.rows() == before
    assert len(await unread(store, job)) == MAX_UNREAD
    await store.advance(60)
    await store.store.promote()
    assert (await take(store, await again(store, job))).state is SUCCEEDED
    assert (await signal(store, job, data=3)).done


async def test_a_signal_keeps_the_place_of_a_job_that_does_not_wait(store: Harness) -> None:
    later = await store.job(await store.add(delay=50.0))
    ready = await store.job(await store.add())
    for job in (later, ready):
        assert (await signal(store, job)).status is Status.PENDING
        assert (await store.job(job.id)).run_at == job.run_at
    assert [run.id for run in (await store.claim()).jobs] == [ready.id]


# ── An operator ends a wait ──


@pytest.mark.parametrize(("waits_for", "state"), [("sleep", SUCCEEDED), ("signal:go", FAILED)])
@pytest.mark.parametrize("timeout", [None, 600.0])
async def test_wake(store: Harness, waits_for: str, state: StepState, timeout: float | None) -> None:
    job = await store.waiting(waits_for, timeout=timeout)
    await store.advance(5)
    [answer] = await store.store.move([job.id], Wake(by="ann", reason="enough"))
    assert (answer.done, answer.status) == (True, Status.PENDING)
    run = await again(store, job)
    assert (await take(store, run, waits_for, seconds=timeout)).state is state
    entry = (await store.row(job.id)).history[-1]
    assert (entry["event"], entry["by"], entry["reason"]) == ("resumed", "ann", "enough")
    assert [line.action for line in await store.audit()] == ["wake"]
    [answer] = await store.store.move([job.id], Wake(by="ann"))
    assert (answer.done, answer.status) == (False, Status.PROCESSING)
    await legal(store)


async def test_wake_leaves_ended_waits_alone(store: Harness) -> None:
    run = await store.claimed()
    await take(store, run, "sleep", until=after(-9))
    job = await store.waits(run, "sleep", n=2, timeout=60.0)
    await store.store.move([job.id], Wake(by="ann"))
    assert [step.deadline for step in await reading.steps(store.store, job.id)] == [after(-9), START]


# ── Callbacks ──


def answer_by(store: Harness, job: Job, **fields: Any) -> Any:
    return signal(store, job, id="callback 1", number=fields.pop("number", 1), **fields)


async def test_a_callback_is_answered_once(store: Harness) -> None:
    job = await with_callback(store, lasts=60.0)
    [address, _] = await reading.steps(store.store, job.id)
    assert (address.state, address.deadline, address.result) == (SUCCEEDED, after(60), {"timeout": 60.0})
    assert (await answer_by(store, job, data="done")).status is Status.PENDING
    repeated = await answer_by(store, job, data="done")
    assert (repeated.done, repeated.why) == (False, "known")
    assert (await take(store, await again(store, job))).result == '"done"'
    assert (await answer_by(store, job)).why == "known"
    assert await store.audit() == []  # no operator's order, so no audit entry
    assert await store.story(job.id) == ["enqueued", "claimed", "waited", "resumed", "claimed"]


async def test_a_callback_that_is_written_again_stays(store: Harness) -> None:
    """A replay finds the callback. Only a report moves its deadline."""
    run = await store.claimed()
    address = mark(run, "@callback:go", "succeeded", position=1, lasts=60.0)
    await store.store.checkpoint([address])
    before = await reading.steps(store.store, run.id)
    await store.advance(5)
    await store.store.checkpoint([structs.replace(address, lasts=None)])
    assert await reading.steps(store.store, run.id) == before


async def test_late_and_unknown_callbacks_are_refused(store: Harness) -> None:
    job = await with_callback(store, lasts=60.0)
    report = ReportCallback(by="x", signal="go", number=1, timeout=60.0, percent=5.0)
    await store.advance(60)
    before = await store.rows()
    assert (await answer_by(store, job)).why == "late"
    assert (await answer_by(store, job, number=2)).why == "gone"
    assert (await answer_by(store, job, name="other")).why == "gone"
    for order, why in ((report, "late"), (structs.replace(report, number=2), "gone")):
        [refused] = await store.store.move([job.id], order)
        assert (refused.done, refused.why, refused.status) == (False, why, Status.WAITING)
    assert await store.rows() == before
    endless = await with_callback(store)
    await store.advance(9 * DAY)
    assert (await answer_by(store, endless)).done


async def test_a_report_restarts_both_deadlines(store: Harness) -> None:
    job = await with_callback(store, lasts=60.0, timeout=100.0)
    other = await with_callback(store, lasts=60.0, timeout=100.0)
    await store.advance(50)
    order = ReportCallback(by="x", signal="go", number=1, timeout=60.0, percent=40.0, stage="frames", message="2 of 5")
    [told] = await store.store.move([job.id], order)
    assert (told.done, told.status) == (True, Status.WAITING)
    after_ = await store.job(job.id)
    assert (after_.progress, after_.stage, after_.message, after_.run_at) == (40.0, "frames", "2 of 5", after(150))
    assert [step.deadline for step in await reading.steps(store.store, job.id)] == [after(110), after(150)]
    assert [step.deadline for step in await reading.steps(store.store, other.id)] == [after(60), after(100)]
    assert (await store.claim()).next_due == 50.0
    await store.advance(50)
    assert await store.store.promote() == 1
    assert (await store.job(job.id)).status is Status.WAITING
    assert (await answer_by(store, job)).done
    assert (await answer_by(store, other)).why == "late"


async def test_a_report_without_anything_new(store: Harness) -> None:
    """The outside system reports that it lives, for a callback without a deadline."""
    job = await with_callback(store)
    await store.advance(5)
    [told] = await store.store.move([job.id], ReportCallback(by="x", signal="go", number=1))
    assert told.done
    after_ = await store.job(job.id)
    assert structs.replace(after_, updated=START) == job
    assert after_.updated == store.now


async def test_a_report_is_about_one_callback(store: Harness) -> None:
    run = await store.claimed()
    for n in (1, 2):
        await store.store.checkpoint([mark(run, "@callback:go", "succeeded", n=n, position=n, lasts=60.0)])
    job = await store.waits(run)
    await store.advance(30)
    await store.store.move([job.id], ReportCallback(by="x", signal="go", number=2, timeout=60.0))
    assert [step.deadline for step in await reading.steps(store.store, job.id)] == [after(60), after(90), None]


# ── Cancel ──


async def test_cancel_with_nothing_to_undo(store: Harness) -> None:
    """A wait is not a step that needs undoing, and neither is a callback whose time is over."""
    for job in (
        await store.waiting(),
        await store.waiting("sleep", timeout=60.0),
        await with_callback(store, lasts=1.0),
    ):
        await store.advance(5)
        cancelled = await cancel(store, job)
        assert (cancelled.status, cancelled.finished_at) == (Status.CANCELLED, store.now)
        assert (cancelled.waits_for, cancelled.cancel_reason) == (None, "no")
    assert (await store.store.stats()).cancelled == 3
    await legal(store)


async def test_a_callback_that_has_its_answer_holds_up_no_cancel(store: Harness) -> None:
    job = await with_callback(store)
    await signal(store, job, id="@callback:go#1", number=1)
    run = await again(store, job)
    assert (await take(store, run)).state is SUCCEEDED
    waits = await store.waits(run, n=2)
    assert (await cancel(store, waits)).status is Status.CANCELLED


async def test_cancel_with_steps_to_undo(store: Harness) -> None:
    job = await store.waiting(done=["a"], timeout=60.0)
    await store.advance(5)
    asked = await cancel(store, job)
    assert (asked.status, asked.locked_until, asked.waits_for) == (Status.CANCEL_REQUESTED, None, None)
    assert (asked.run_at, asked.cancel_requested_at) == (after(5), after(5))
    assert (await signal(store, job)).status is Status.CANCEL_REQUESTED
    [answer] = await store.store.move([job.id], Cancel(by="bob"))
    assert (answer.done, answer.status) == (False, Status.CANCEL_REQUESTED)
    await legal(store)
    run = await again(store, job, "w2")
    assert (run.status, run.version, run.locked_by) == (Status.CANCEL_REQUESTED, 2, "w2")
    assert run.locked_until == after(5 + LEASE)
    assert await store.store.heartbeat([Beat(run.id, 2, worker="w2")], LEASE) == [CANCEL]
    assert await take(store, run) == Awaited(CANCEL)
    assert await store.store.checkpoint([mark(run, "b", "succeeded", cancelable=False)]) == [CANCEL]
    await legal(store)
    await store.store.settle([settlement(run, GaveUp(), ran=0.0)])
    assert (await store.job(job.id)).status is Status.CANCELLED
    assert await store.story(job.id) == [
        *("enqueued", "claimed", "step_succeeded", "waited", "cancel_requested"),
        *("claimed", "step_succeeded", "cancelled"),
    ]
    await legal(store)


async def test_a_handler_may_complete_in_its_last_run(store: Harness) -> None:
    job = await store.waiting(done=["a"])
    await cancel(store, job)
    run = await again(store, job)
    assert (await store.store.settle([settlement(run, Completed(), ran=0.0)])).verdicts == [APPLIED]
    assert (await store.job(job.id)).status is Status.COMPLETED


async def test_a_cancelled_job_that_is_to_run_once_more_is_listed_and_counted(store: Harness) -> None:
    job = await store.waiting(done=["a"])
    outside = await with_callback(store)
    plain = await store.add()
    for one in (job, outside):
        await cancel(store, one)
    stats = await store.store.stats()
    assert (stats.pending, stats.cancel_requested, stats.waiting) == (1, 2, 0)
    for topics in ((), ("mail",)):
        pages = {
            status: await store.store.list(Filter(statuses=(status,), topics=topics))
            for status in (Status.PENDING, Status.CANCEL_REQUESTED, Status.PROCESSING)
        }
        assert {status: {one.id for one in page.items} for status, page in pages.items()} == {
            Status.PENDING: {plain},
            Status.CANCEL_REQUESTED: {job.id, outside.id},
            Status.PROCESSING: set(),
        }


@pytest.mark.parametrize("lasts", [None, 600.0])
async def test_cancel_while_the_outside_works(store: Harness, lasts: float | None) -> None:
    job = await with_callback(store, lasts=lasts)
    asked = await cancel(store, job)
    assert (asked.status, asked.waits_for, asked.locked_until) == (Status.CANCEL_REQUESTED, "signal:go", None)
    assert (await store.claim()).jobs == []
    assert await store.store.promote() == 0
    assert (await answer_by(store, job)).done is False
    await legal(store)
    gone = AcknowledgeCallback(by="x", signal="go", number=2)
    [refused] = await store.store.move([job.id], gone)
    assert (refused.done, refused.why) == (False, "gone")
    [done] = await store.store.move([job.id], structs.replace(gone, number=1))
    assert (done.done, done.status) == (True, Status.CANCELLED)
    [repeated] = await store.store.move([job.id], structs.replace(gone, number=1))
    assert (repeated.done, repeated.status) == (False, Status.CANCELLED)
    assert await store.story(job.id) == ["enqueued", "claimed", "waited", "cancel_requested", "cancelled"]
    await legal(store)


async def test_cancel_with_steps_while_the_outside_works(store: Harness) -> None:
    """The handler undoes its steps and tells the outside system, so the acknowledgement is refused."""
    job = await with_callback(store, "a")
    await cancel(store, job)
    acknowledge = AcknowledgeCallback(by="x", signal="go", number=1)
    for _ in range(2):  # first the job is ready, then claimed
        [refused] = await store.store.move([job.id], acknowledge)
        assert (refused.done, refused.status, refused.why) == (False, Status.CANCEL_REQUESTED, None)
        await store.claim()
    assert (await store.job(job.id)).locked_by == "w1"


async def test_an_acknowledgement_without_a_cancel_is_refused(store: Harness) -> None:
    job = await with_callback(store)
    [refused] = await store.store.move([job.id], AcknowledgeCallback(by="x", signal="go", number=1))
    assert (refused.done, refused.status) == (False, Status.WAITING)


async def test_claims_that_are_given_back_after_a_cancel(store: Harness) -> None:
    """The worker has not received the reply to its claim. Another run will undo what is to be undone."""
    undoing = await store.waiting(done=["a"])
    await cancel(store, undoing)
    await store.advance(1)
    held = [await again(store, undoing, "w2"), await store.claimed(worker="w2")]
    await store.advance(1)
    await cancel(store, held[1])
    await give_back(store.store, [Beat(run.id, run.version, worker="w2") for run in held], "no reply")
    found = [await store.job(run.id) for run in held]
    assert [(job.status, job.locked_by) for job in found] == [
        (Status.CANCEL_REQUESTED, None),
        (Status.CANCELLED, None),
    ]
    await legal(store)
    assert (await again(store, undoing, "w3")).status is Status.CANCEL_REQUESTED


@pytest.mark.parametrize("undoes", [False, True])
async def test_a_cancel_before_the_run_waits(store: Harness, undoes: bool) -> None:
    run = await store.claimed()
    await store.store.checkpoint([mark(run, "a", "succeeded")])
    assert (await take(store, run)).state is RUNNING
    asked = await cancel(store, run)
    waits = Waits("signal:go", None, 0, undoes)
    settled = await store.store.settle([settlement(run, waits, ran=0.0)])
    [verdict] = settled.verdicts
    assert (verdict.answer, verdict.status) == (Answer.CHANGED, Status.CANCEL_REQUESTED)
    decided = settlement(asked, waits, ran=0.0)
    assert (await store.store.settle([decided])).verdicts == [APPLIED]
    job = await store.job(run.id)
    assert job.status is (Status.CANCEL_REQUESTED if undoes else Status.CANCELLED)
    assert job.locked_by is None
    assert [v.answer for v in (await store.store.settle([decided])).verdicts] == [Answer.ALREADY]
    await legal(store)
    if undoes:
        assert (await again(store, run, "w2")).status is Status.CANCEL_REQUESTED
        assert (await store.story(run.id))[-2:] == ["wait_cancelled", "claimed"]
        await legal(store)


async def test_the_last_run_is_no_end_for_a_job_that_was_not_cancelled(store: Harness) -> None:
    run = await store.claimed()
    decided = settlement(structs.replace(run, status=Status.CANCEL_REQUESTED), Waits("sleep", 1.0, 0, True))
    [verdict] = (await store.store.settle([decided])).verdicts
    assert (verdict.answer, verdict.status) == (Answer.CHANGED, Status.PROCESSING)


@pytest.mark.parametrize("done", [[], ["a"]])
async def test_cancel_timeout_of_a_job_without_a_lease(store: Harness, done: list[str]) -> None:
    job = await with_callback(store, *done)
    await cancel(store, job)
    await store.advance(30)
    assert await store.store.move_due(CancelTimeout(by="m1", grace=30.0)) == []
    await store.advance(1e-6)
    [moved] = await store.store.move_due(CancelTimeout(by="m1", grace=30.0))
    assert (moved.id, moved.status) == (job.id, Status.CANCELLED)
    assert (await store.claim()).jobs == []
    assert (await store.story(job.id))[-1] == "cancel_timed_out"
    await legal(store)


@pytest.mark.parametrize("grace", [5, 300.5])
async def test_the_grace_of_a_template(shared_store: Harness, grace: float) -> None:
    store = shared_store
    template = {"template": {"topic": "mail", "version": 0, "cancel": {"supported": True, "grace": grace}}}
    await store.store.write_records([Write("template", "mail@0", template)])
    held = await store.claimed()
    free = await with_callback(store)
    last = await store.waiting(done=["a"])
    other = await store.claimed(topic="other")
    for job in (held, free, last, other):
        await cancel(store, job)
    order = CancelTimeout(by="m1", grace=30.0)
    due: dict[str, float] = {}
    for seconds in (5.0, 6.0, 30.0, 31.0, 300.0, 301.0):
        await store.advance(seconds - (store.now - START).total_seconds())
        due |= {moved.id: seconds for moved in await store.store.move_due(order)}
    own = 6.0 if grace == 5 else 301.0
    assert due == {held.id: own, free.id: own, last.id: own, other.id: 31.0}


async def test_a_worker_that_dies_in_the_last_run(store: Harness) -> None:
    job = await store.waiting(done=["a"])
    await cancel(store, job)
    assert await store.store.move_due(Rescue(by="m1", backoff=[0.0])) == []
    await again(store, job)
    await store.advance(LEASE + 1)
    [moved] = await store.store.move_due(Rescue(by="m1", backoff=[0.0]))
    assert moved.status is Status.CANCELLED
    await legal(store)


async def test_a_waiting_job_is_not_rescued(store: Harness) -> None:
    job = await store.waiting()
    await store.advance(DAY)
    assert await store.store.move_due(Rescue(by="m1", backoff=[0.0])) == []
    assert await store.store.move_due(Rescue(by="m1", backoff=[0.0], workers=["w1"])) == []
    assert (await store.job(job.id)).status is Status.WAITING


# ── What else happens to jobs ──


async def test_expires_at_bounds_the_first_start(store: Harness) -> None:
    fields: dict[str, Any] = {"expires_at": after(10)}
    waits = await store.waiting("sleep", timeout=60.0, **fields)
    retried = await store.settled(Failed("boom"), **fields)
    fresh = await store.add(**fields)
    await store.advance(60)
    await store.store.promote()
    assert [moved.id for moved in await store.store.move_due(Expire(by="m1"))] == [fresh]
    assert {run.id for run in (await store.claim()).jobs} == {waits.id, retried.id}


async def failed_after_waits(store: Harness) -> Job:
    """Return a failed job. Its run did step a, a wait that read signal 1 (id x), step b, a wait that read signal 2
    (id y), and a wait that timed out."""
    run = await store.claimed(payload={"n": 1})
    for n, id in enumerate(["x", "y"], start=1):
        await signal(store, run, data=n, id=id)
    await store.store.checkpoint([mark(run, "a", "succeeded", position=1)])
    await take(store, run, n=1, position=2)
    await store.store.checkpoint([mark(run, "b", "succeeded", position=3)])
    await take(store, run, n=2, position=4)
    await take(store, run, "signal:other", seconds=0.0, position=5)
    await store.store.settle([settlement(run, Failed("no", final=True), ran=0.0)])
    return run


@pytest.mark.parametrize(
    ("order", "left", "free"),
    [
        ({}, ["a", "@signal:go", "b", "@signal:go"], []),
        ({"from_step": "b"}, ["a", "@signal:go"], ["y"]),
        ({"from_step": "a"}, [], ["x", "y"]),
        ({"keep_steps": False}, [], ["x", "y"]),
        ({"edit": Edit(payload='{"n":2}')}, [], ["x", "y"]),
    ],
)
async def test_a_requeue_removes_the_signals_that_dropped_waits_have_read(
    store: Harness, order: dict[str, Any], left: list[str], free: list[str]
) -> None:
    run = await failed_after_waits(store)
    [answer] = await store.store.move([run.id], Requeue(by="ann", **order))
    assert answer.done
    assert [step.name for step in await reading.steps(store.store, run.id)] == left
    for id in ("x", "y"):
        assert (await signal(store, run, data=9, id=id)).done == (id in free)
    [next_run] = (await store.claim()).jobs
    result = (await take(store, next_run, n=1)).result
    assert result == ("9" if "x" in free else "1")
    await legal(store)


async def test_an_update_of_the_payload_removes_them_too(store: Harness) -> None:
    run = await store.claimed(payload={"n": 1})
    for data in (1, 2):
        await signal(store, run, data=data)
    await take(store, run)
    await store.store.settle([settlement(run, Released())])
    await store.store.move([run.id], Update(by="ann", edit=Edit(payload='{"n":2}')))
    assert await stored(store, run) == {}
    assert [one.data for one in (await store.row(run.id)).signals] == [2]
    await legal(store)


async def test_an_undone_cancel_waits_again(store: Harness) -> None:
    job = await store.waiting(timeout=60.0)
    await cancel(store, job)
    await store.advance(5)
    [answer] = await store.store.move([job.id], Requeue(by="ann", undo=True))
    assert answer.done
    run = await again(store, job)
    assert (await take(store, run, seconds=60.0)).left == 55.0


@pytest.mark.parametrize("outcome", [Released(), Failed("no", final=True), GaveUp(), Completed()])
@pytest.mark.parametrize("reads", [False, True])
async def test_signals_go_with_a_job_that_is_deleted(store: Harness, outcome: Outcome, reads: bool) -> None:
    stays = await store.waiting(topic="other")
    await signal(store, stays, "other")
    run = await store.claimed()
    for data in (1, 2):
        await signal(store, run, data=data)
    if reads:
        await take(store, run)
    await store.store.settle([settlement(run, outcome, ran=0.0)])
    await store.store.move([run.id, stays.id], Delete(by="ann"))
    assert [str(one) for (one,) in await store.fetch("SELECT job_id FROM _jobs_signals")] == [stays.id]
    assert await reading.steps(store.store, run.id) == []


@pytest.mark.parametrize("reads", [False, True])
async def test_signals_go_with_jobs_that_are_pruned(store: Harness, reads: bool) -> None:
    for outcome in (Completed(), GaveUp(), Failed("no", final=True)):
        run = await store.claimed()
        for data in (1, 2):
            await signal(store, run, data=data)
        if reads:
            await take(store, run)
        await store.store.settle([settlement(run, outcome, ran=0.0)])
    stays = await store.waiting()
    await signal(store, stays, "other")
    await store.advance(8 * DAY)
    assert await store.store.prune(Retention(failed=DAY)) == 3
    assert [str(one) for (one,) in await store.fetch("SELECT job_id FROM _jobs_signals")] == [stays.id]
    await legal(store)


# ── Lines ──


async def line(store: Harness, if_live: str) -> str:
    new = harness.job(key="k")
    new = structs.replace(new, if_live=if_live, line=line_of(new.topic, None, None, "k"))
    await store.insert(new)
    return new.id


async def head_waits(store: Harness, if_live: str, *done: str) -> Job:
    await line(store, if_live)
    [run] = (await store.claim()).jobs
    await store.store.checkpoint([mark(run, name, "succeeded") for name in done])
    return await store.waits(run, undoes=bool(done))


async def test_a_waiting_head_keeps_its_place(shared_store: Harness) -> None:
    store = shared_store
    head = await head_waits(store, "queue")
    second = await line(store, "queue")
    assert (await store.job(second)).status is Status.BLOCKED
    await signal(store, head)
    assert (await store.job(second)).status is Status.BLOCKED
    run = await again(store, head)
    await store.store.settle([settlement(run, Completed(), ran=0.0)])
    assert (await store.job(second)).status is Status.PENDING
    assert (await signal(store, await store.job(await line(store, "queue")))).status is Status.BLOCKED
    await legal(store)


async def test_a_waiting_head_with_nothing_to_undo_is_replaced_at_once(shared_store: Harness) -> None:
    store = shared_store
    head = await head_waits(store, "replace")
    new = await line(store, "replace")
    assert (await store.job(head.id)).status is Status.CANCELLED
    assert (await store.job(head.id)).cancel_reason == f"replaced by {new}"
    assert [run.id for run in (await store.claim()).jobs] == [new]
    await legal(store)


async def test_a_waiting_head_with_steps_undoes_them_before_it_is_replaced(shared_store: Harness) -> None:
    store = shared_store
    head = await head_waits(store, "replace", "a")
    first = await line(store, "replace")
    second = await line(store, "replace")
    statuses = [(await store.job(one)).status for one in (head.id, first, second)]
    assert statuses == [Status.CANCEL_REQUESTED, Status.CANCELLED, Status.BLOCKED]
    run = await again(store, head, "w2")
    await store.store.settle([settlement(run, GaveUp(), ran=0.0)])
    assert [run.id for run in (await store.claim()).jobs] == [second]
    await legal(store)


@pytest.mark.parametrize("how", ["acknowledge", "timeout"])
async def test_the_end_of_a_cancelled_head_moves_its_line(shared_store: Harness, how: str) -> None:
    store = shared_store
    await line(store, "queue")
    [run] = (await store.claim()).jobs
    await store.store.checkpoint([mark(run, "@callback:go", "succeeded", position=1)])
    head = await store.waits(run)
    second = await line(store, "queue")
    await cancel(store, head)
    assert (await store.job(second)).status is Status.BLOCKED
    await store.advance(60)
    if how == "acknowledge":
        await store.store.move([head.id], AcknowledgeCallback(by="x", signal="go", number=1))
    else:
        await store.store.move_due(CancelTimeout(by="m1", grace=30.0))
    await store.claim("w1", "bills")  # any claim moves the lines
    assert (await store.job(second)).status is Status.PENDING


# ── A whole life ──


async def test_the_events_of_a_whole_life(store: Harness) -> None:
    run = await store.claimed()
    await store.store.checkpoint([mark(run, "@callback:go", "succeeded", position=1, lasts=600.0)])
    await store.store.checkpoint([mark(run, "b", "succeeded", position=2)])
    job = await store.waits(run, timeout=60.0)
    await store.advance(30)
    await store.store.move([job.id], ReportCallback(by="x", signal="go", number=1, timeout=600.0, percent=50.0))
    await store.advance(60)
    await store.store.promote()
    run = await again(store, job, "w2")
    assert (await take(store, run, seconds=60.0)).state is FAILED
    job = await store.waits(run, n=2)
    await answer_by(store, job)
    run = await again(store, job, "w3")
    assert (await take(store, run, n=2)).state is SUCCEEDED
    await store.advance(1)
    await store.store.settle([settlement(run, Completed(7), ran=1.0)])
    assert await store.story(job.id) == [
        *("enqueued", "claimed", "step_succeeded", "waited", "resumed"),
        *("claimed", "waited", "resumed", "claimed", "completed"),
    ]
    events = await store.events(job.id)
    assert [event.seq for event in events] == list(range(10))
    assert [event.by for event in events if event.event == "claimed"] == ["w1", "w2", "w3"]
    done = await store.job(job.id)
    assert (done.status, done.waits_for, done.retries, done.version) == (Status.COMPLETED, None, 0, 3)
    await legal(store)


DAMAGE = [
    ("wait", "UPDATE _jobs SET waits_for = NULL"),
    ("wait", "UPDATE _jobs SET status = 'pending'"),
    ("lease", "UPDATE _jobs SET locked_by = 'w1'"),
    ("history", "UPDATE _jobs SET history = NULL"),
    ("steps", "UPDATE _jobs SET step = NULL"),
    ("steps", "DELETE FROM _jobs_steps"),
]


@pytest.mark.parametrize(("check", "damage"), DAMAGE, ids=[damage for _, damage in DAMAGE])
async def test_verify_finds_damage(shared_store: Harness, check: str, damage: str) -> None:
    store = shared_store
    await store.waiting()
    await store.execute(damage)
    report = await verify(store.store, limit=100, seconds=60.0)
    assert check in {finding.check for finding in report.findings}
    await store.execute("DELETE FROM _jobs; DELETE FROM _jobs_steps")


async def test_verify_finds_signals_of_jobs_that_are_gone(shared_store: Harness) -> None:
    store = shared_store
    job = await store.waiting()
    await signal(store, job)
    await store.execute("DELETE FROM _jobs; DELETE FROM _jobs_steps")
    report = await verify(store.store, limit=100, seconds=60.0)
    assert [(finding.check, finding.job_id) for finding in report.findings] == [("steps", job.id)]
    await store.execute("DELETE FROM _jobs_signals")


@pytest.mark.parametrize(
    "broken",
    [
        "ready = true",
        "locked_until = created",
        "status = 'processing'",
        "status = 'cancel_requested', ready = true, locked_until = created",
    ],
)
async def test_the_database_refuses_what_can_not_be(shared_store: Harness, broken: str) -> None:
    store = shared_store
    await store.waiting()
    with pytest.raises(Exception, match=r"(?i)check"):
        await store.execute(f"UPDATE _jobs SET {broken}")
