"""Steps: what runs store of them, which runs may, and when the store removes steps."""

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from msgspec import structs

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Answer, Completed, Failed, GaveUp, Outcome, Released, StepRetry
from rowlock.core.moves import Cancel, CancelTimeout, Delete, Edit, Requeue, Rescue, Update
from rowlock.core.steps import StepState
from rowlock.stores import reading
from rowlock.stores.base import DAY, Hold, Progress, Retention
from tests.stores.conftest import paired_store
from tests.stores.harness import LEASE, NOBODY, START, Harness, PostgresHarness, job, mark, settlement

store = paired_store

KEPT, CANCEL, LOST = Hold.KEPT, Hold.CANCEL, Hold.LOST


async def states(store: Harness, job: Job) -> dict[str, str]:
    """Return the states of the stored steps by name, in the order of positions."""
    steps = await reading.steps(store.store, job.id)
    return {step.name if step.n == 1 else f"{step.name}#{step.n}": step.state.value for step in steps}


async def stepped(store: Harness, *done: str, **fields: Any) -> Job:
    """Return a claimed job whose run has finished these steps."""
    run = await store.claimed(**fields)
    percents = [100.0 * (n + 1) / (len(done) + 1) for n in range(len(done))]
    marks = [mark(run, name, "succeeded", percent=percent) for name, percent in zip(done, percents, strict=True)]
    assert set(await store.store.checkpoint(marks)) <= {KEPT}
    return run


async def dead(store: Harness, *marks: tuple[str, str], **fields: Any) -> Job:
    """Return a job that failed for good after these steps."""
    run = await store.claimed(**fields)
    await store.store.checkpoint([mark(run, name, state, percent=40.0) for name, state in marks])
    await store.store.settle([settlement(run, Failed("never", final=True))])
    return run


async def requeue(store: Harness, job: Job, **order: Any) -> Any:
    [answer] = await store.store.move([job.id], Requeue(by="ann", **order))
    return answer


# ── Storing ──


async def test_a_step_from_its_beginning_to_its_end(store: Harness) -> None:
    run = await store.claimed()
    assert await reading.steps(store.store, run.id) == []
    assert await store.store.checkpoint([mark(run, "a", "running", age=2.0)]) == [KEPT]
    [step] = await reading.steps(store.store, run.id)
    assert (step.state, step.started_at, step.finished_at) == ("running", START - timedelta(seconds=2), None)
    await store.advance(5)
    assert await store.store.checkpoint([mark(run, "a", "succeeded", result='{"n":[1.5]}', percent=33.3)]) == [KEPT]
    [step] = await reading.steps(store.store, run.id)
    assert (step.state, step.result, step.finished_at) == ("succeeded", {"n": [1.5]}, store.now)
    job = await store.job(run.id)
    assert (job.step, job.progress) == ("a", 33.3)


async def test_a_repeat_changes_nothing(store: Harness) -> None:
    run = await store.claimed()
    done = mark(run, "a", "succeeded", result="1", percent=50.0)
    await store.store.checkpoint([done])
    before = await reading.steps(store.store, run.id)
    await store.advance(1)
    assert await store.store.checkpoint([done, structs.replace(done, result="2")]) == [KEPT, KEPT]
    assert await reading.steps(store.store, run.id) == before


@pytest.mark.parametrize("end", ["succeeded", "failed"])
@pytest.mark.parametrize("later", ["running", "pending", "cancelled", "succeeded", "failed"])
async def test_nothing_replaces_an_end(store: Harness, end: str, later: str) -> None:
    run = await store.claimed()
    await store.store.checkpoint([mark(run, "a", end, result="1", error="x")])
    before = await reading.steps(store.store, run.id)
    await store.advance(1)
    await store.store.checkpoint([mark(run, "a", later, result="2")])
    assert await reading.steps(store.store, run.id) == before


@pytest.mark.parametrize("first", ["running", "pending", "cancelled"])
@pytest.mark.parametrize("later", StepState)
async def test_anything_replaces_what_is_no_end(store: Harness, first: str, later: StepState) -> None:
    if later is StepState.SKIPPED:
        return  # a run never stores this state
    run = await store.claimed()
    await store.store.checkpoint([mark(run, "a", first)])
    await store.advance(1)
    await store.store.checkpoint([mark(run, "a", later, retries=1)])
    assert await states(store, run) == {"a": first if later is StepState.RUNNING else later}


async def test_a_late_mark_of_a_running_step_replaces_nothing(store: Harness) -> None:
    """Another thread writes the late mark. It must not undo the retry that the step has counted since."""
    run = await store.claimed()
    await store.store.checkpoint([mark(run, "a", "pending", retries=1, error="no answer")])
    before = await reading.steps(store.store, run.id)
    await store.store.checkpoint([mark(run, "a", "running", retries=0)])
    assert await reading.steps(store.store, run.id) == before
    await store.store.settle([settlement(run, Released())])
    [again] = (await store.claim()).jobs
    await store.store.checkpoint([mark(again, "a", "running", retries=1)])
    [step] = await reading.steps(store.store, run.id)
    assert (step.state, step.retries, step.version) == ("running", 1, 2)


async def test_several_marks_of_one_job_in_one_batch(store: Harness) -> None:
    """The effect is as if each mark had come alone. The last mark names the job's step."""
    run = await store.claimed()
    marks = [
        mark(run, "a", "running", percent=1.0),
        mark(run, "a", "succeeded", result="1", percent=20.0),
        mark(run, "b", "pending", error="no answer", retries=1),
        mark(run, "b", "running", retries=1),
        mark(run, "a", "running"),
        mark(run, "b", "succeeded", n=2, position=3, result="[]", percent=30.0),
        mark(run, "c", "running", percent=None),
    ]
    assert await store.store.checkpoint(marks) == [KEPT] * len(marks)
    assert await states(store, run) == {"a": "succeeded", "b": "pending", "b#2": "succeeded", "c": "running"}
    job = await store.job(run.id)
    assert (job.step, job.progress) == ("c", 30.0)


async def test_a_batch_of_several_jobs_answers_in_order(store: Harness) -> None:
    kept, asked, stale, back = [await store.claimed(f"w{i}") for i in range(4)]
    await store.store.move([asked.id], Cancel(by="ann"))
    await store.store.settle([settlement(back, Released())])
    done = await store.settled(Completed(), topic="other")
    await store.advance(1)
    runs = [
        done,
        kept,
        structs.replace(kept, id=NOBODY),
        asked,
        structs.replace(stale, version=0),
        back,
        structs.replace(kept, locked_by="w9"),
        structs.replace(kept, locked_by=None),
    ]
    marks = [mark(run, "a", "running") for run in runs] + [mark(run, "b", "succeeded") for run in runs]
    assert await store.store.checkpoint(marks) == [LOST, KEPT, LOST, CANCEL, LOST, LOST, LOST, KEPT] * 2
    assert await states(store, kept) == {"a": "running", "b": "succeeded"}
    assert await states(store, stale) == await states(store, back) == {}
    assert await store.store.checkpoint([]) == []


@pytest.mark.parametrize("status", Status)
async def test_only_a_held_job_takes_marks(store: Harness, status: Status) -> None:
    job = await store.in_status(status)
    held = status in (Status.PROCESSING, Status.CANCEL_REQUESTED)
    [hold] = await store.store.checkpoint([mark(job, "a", "succeeded", worker=None)])
    assert (hold is not LOST) == held
    assert bool(await reading.steps(store.store, job.id)) == held


@pytest.mark.parametrize("wrong", [{"version": 0}, {"version": 1}, {"version": 3}, {"worker": "w2"}])
async def test_a_mark_of_another_run_is_refused(store: Harness, wrong: dict[str, Any]) -> None:
    run = await stepped(store, "a")
    await store.store.settle([settlement(run, Released())])
    [again] = (await store.claim()).jobs
    before = await store.rows()
    asked = mark(again, "a", "running", **wrong), mark(again, "b", "succeeded", **wrong)
    assert await store.store.checkpoint(asked) == [LOST, LOST]
    assert await store.rows() == before


async def test_strange_texts(store: Harness) -> None:
    run = await store.claimed()
    error = "boom \0 \ud800 \U0001f600" * 3
    fields = {"error": error, "percent": float("nan"), "age": float("nan"), "function": "f"}
    assert await store.store.checkpoint([mark(run, "a 'ä'\"\\#1", "failed", **fields)]) == [KEPT]
    [step] = await reading.steps(store.store, run.id)
    assert step.name == "a 'ä'\"\\#1"
    assert "\0" not in (step.error or "")


async def test_the_largest_result(store: Harness) -> None:
    run = await store.claimed()
    text = '"' + "ä" * 500_000 + '"'
    assert await store.store.checkpoint([mark(run, "a", "succeeded", result=text)]) == [KEPT]
    [step] = await reading.steps(store.store, run.id)
    assert step.result == "ä" * 500_000


async def test_a_locked_row_is_waited_for(store: Harness) -> None:
    """Many marks come at once, in any order: each is written. Progress reports and heartbeats go on meanwhile."""
    run = await store.claimed()
    real = store.paired.real
    other = await store.another()
    calls = []
    for n in range(40):
        which = real if n % 2 else other
        calls.append(which.checkpoint([mark(run, "s", "succeeded", n=n + 1, position=n + 1, result=str(n))]))
        calls.append(which.progress([Progress(run.id, 1, float(n), worker="w1")]))
    answers = await asyncio.gather(*calls)
    assert answers[::2] == [[KEPT]] * 40
    assert [step.result for step in await reading.steps(real, run.id)] == list(range(40))
    await store.paired.adopt()


# ── The life of the job ──


async def test_the_next_run_finds_the_results_and_keeps_the_progress(store: Harness) -> None:
    run = await stepped(store, "a", "b")
    await store.store.settle([settlement(run, Failed("boom"))])
    await store.advance(60)
    await store.store.promote()
    [again] = (await store.claim("w2")).jobs
    assert again.step == "b"
    assert again.progress == (await store.job(run.id)).progress == 200 / 3
    assert await states(store, again) == {"a": "succeeded", "b": "succeeded"}
    plain = await store.claimed("w3")
    await store.store.progress([Progress(plain.id, 1, 50.0)])
    await store.store.settle([settlement(plain, Released())])
    assert (await store.claim("w3")).jobs[0].progress == 0.0


async def test_the_end_of_a_step_is_an_event_of_its_run(store: Harness) -> None:
    run = await store.claimed()
    await store.store.checkpoint([mark(run, "b", "succeeded"), mark(run, "a", "running")])
    await store.store.settle([settlement(run, Failed("boom"))])
    await store.advance(60)
    await store.store.promote()
    [again] = (await store.claim()).jobs
    await store.store.checkpoint([mark(again, "a", "failed", n=2, error="no")])
    await store.advance(1)
    await store.store.checkpoint([mark(again, "a", "succeeded")])
    await store.store.move([run.id], Cancel(by="ann"))
    await store.advance(1)
    await store.store.checkpoint([mark(again, "c", "succeeded")])
    assert await store.story(run.id) == [
        *("enqueued", "claimed", "step_succeeded", "retried"),
        *("claimed", "step_failed", "cancel_requested", "step_succeeded", "step_succeeded"),
    ]
    events = await store.events(run.id)
    assert [event.seq for event in events] == list(range(9))
    failed = next(event for event in events if event.event == "step_failed")
    assert (failed.version, failed.data) == (2, {"step": "a", "n": 2, "position": 1, "error": "no"})


async def test_an_own_retry_of_a_step_costs_the_job_nothing(store: Harness) -> None:
    run = await store.claimed()
    await store.store.checkpoint([mark(run, "a", "pending", retries=1, error="no answer")])
    settled = await store.store.settle([settlement(run, StepRetry(20.0, "no answer", "a"), ran=1.0)])
    assert [verdict.answer for verdict in settled.verdicts] == [Answer.APPLIED]
    job = await store.job(run.id)
    assert (job.status, job.retries, job.last_error) == (Status.PENDING, 0, "no answer")
    assert job.run_at == START + timedelta(seconds=20)
    entry = (await store.row(run.id)).history[-1]
    assert (entry["event"], entry["reason"], entry["delay"]) == ("step_retried", "a", 20.0)


async def test_completed_jobs_keep_their_steps(store: Harness) -> None:
    run = await stepped(store, "a", "b")
    before = await reading.steps(store.store, run.id)
    await store.store.settle([settlement(run, Completed())])
    assert await reading.steps(store.store, run.id) == before
    assert (await store.job(run.id)).step == "b"
    assert await store.store.checkpoint([mark(run, "c", "succeeded")]) == [LOST]


@pytest.mark.parametrize("status", [Status.PENDING, Status.FAILED, Status.CANCELLED, Status.COMPLETED])
async def test_steps_go_with_a_job_that_is_deleted(store: Harness, status: Status) -> None:
    outcomes: dict[Status, Outcome] = {
        Status.PENDING: Released(),
        Status.FAILED: Failed("no", final=True),
        Status.CANCELLED: GaveUp(),
        Status.COMPLETED: Completed(),
    }
    stays = await stepped(store, "a", topic="other")
    run = await stepped(store, "a", "b")
    await store.store.settle([settlement(run, outcomes[status])])
    await store.store.move([run.id, stays.id], Delete(by="ann"))
    assert await reading.steps(store.store, run.id) == []
    assert await states(store, stays) == {"a": "succeeded"}


async def test_steps_go_with_jobs_that_are_pruned(store: Harness) -> None:
    for outcome in (Completed(), GaveUp(), Failed("no", final=True)):
        run = await stepped(store, "a")
        await store.store.settle([settlement(run, outcome)])
    stays = await stepped(store, "a")
    await store.advance(8 * DAY)
    assert await store.store.prune(Retention(failed=DAY)) == 3
    assert [str(job_id) for (job_id,) in await store.fetch("SELECT job_id FROM _jobs_steps")] == [stays.id]


@pytest.mark.parametrize("remove", ["delete", "prune"])
async def test_an_id_that_is_used_again_keeps_its_steps(shared_store: Harness, remove: str) -> None:
    """The older job is in the archive, and is removed while the newer job runs."""
    store = shared_store
    run = await stepped(store, "a")
    await store.store.settle([settlement(run, Completed())])
    await store.advance(8 * DAY)
    await store.insert(job(id=run.id))
    [again] = (await store.claim("w9")).jobs
    assert await store.store.checkpoint([mark(again, "b", "running")]) == [KEPT]
    if remove == "delete":
        await store.store.move([run.id], Delete(by="ann"))
    else:
        assert await store.store.prune(Retention()) == 1
    assert await store.fetch("SELECT * FROM _jobs_archive") == []
    assert list(await states(store, run)) == ["a", "b"]


# ── Requeue ──

ENDED = (("a", "succeeded"), ("b", "succeeded"), ("c", "failed"))


async def test_a_requeue_keeps_results_and_nothing_else(store: Harness) -> None:
    rest = (("d", "running"), ("e", "pending"), ("f", "cancelled"))
    job = await dead(store, *ENDED, *rest)
    assert (await requeue(store, job)).done
    assert await states(store, job) == {"a": "succeeded", "b": "succeeded"}
    after = await store.job(job.id)
    assert (after.step, after.progress) == ("b", 40.0)
    [line] = await store.audit()
    assert line.data == {"dropped_steps": ["c", "d", "e", "f"]}


async def test_a_requeue_of_which_no_result_is_left(store: Harness) -> None:
    job = await dead(store, ("c", "failed"))
    await requeue(store, job)
    after = await store.job(job.id)
    assert (after.step, after.progress, await states(store, job)) == (None, 0.0, {})


async def test_a_requeue_without_the_results(store: Harness) -> None:
    job = await dead(store, *ENDED)
    await requeue(store, job, keep_steps=False)
    assert await states(store, job) == {}
    assert (await store.job(job.id)).step is None


@pytest.mark.parametrize(
    ("from_step", "left"), [("a", []), ("b", ["a"]), ("b#1", ["a"]), ("b#2", ["a", "b"]), ("c", ["a", "b", "b#2"])]
)
async def test_a_requeue_from_a_step(store: Harness, from_step: str, left: list[str]) -> None:
    run = await store.claimed()
    marks = [
        mark(run, "a", "succeeded"),
        mark(run, "b", "succeeded"),
        mark(run, "b", "succeeded", n=2, position=3),
        mark(run, "c", "failed", position=4),
    ]
    await store.store.checkpoint(marks)
    await store.store.settle([settlement(run, Failed("never", final=True))])
    answer = await requeue(store, run, from_step=from_step)
    assert (answer.done, list(await states(store, run))) == (True, left)
    assert (await store.row(run.id)).history[-1]["from_step"] == from_step


@pytest.mark.parametrize("said", ["x", "a#2", "c#0", ""])
async def test_a_requeue_from_a_step_that_is_not_there_is_refused(store: Harness, said: str) -> None:
    job = await dead(store, *ENDED)
    before = await store.rows()
    answer = await requeue(store, job, from_step=said)
    assert (answer.done, answer.status, answer.steps) == (False, Status.FAILED, ("a", "b", "c"))
    assert await store.rows() == before
    assert await store.audit() == []
    plain = await store.in_status(Status.FAILED)
    assert (await requeue(store, plain, from_step="a")).steps == ()


@pytest.mark.parametrize(("payload", "left"), [('{"n":1}', ["a", "b"]), ('{"n":2}', [])])
async def test_a_requeue_with_another_payload_drops_the_results(store: Harness, payload: str, left: list[str]) -> None:
    job = await dead(store, *ENDED, payload={"n": 1})
    await requeue(store, job, edit=Edit(payload=payload))
    assert list(await states(store, job)) == left


@pytest.mark.parametrize(("payload", "left"), [('{"n":1}', ["a"]), ('{"n":2}', [])])
async def test_an_update_of_the_payload_drops_the_results(store: Harness, payload: str, left: list[str]) -> None:
    run = await stepped(store, "a", payload={"n": 1})
    await store.store.settle([settlement(run, Released())])
    await store.store.move([run.id], Update(by="ann", edit=Edit(priority=7)))
    assert list(await states(store, run)) == ["a"]
    await store.store.move([run.id], Update(by="ann", edit=Edit(payload=payload)))
    assert list(await states(store, run)) == left
    assert (await store.job(run.id)).step == (left[0] if left else None)


async def test_an_undone_cancel_keeps_all_steps(store: Harness) -> None:
    run = await store.claimed()
    await store.store.checkpoint([mark(run, "a", "succeeded", percent=7.0), mark(run, "b", "pending", retries=2)])
    await store.store.settle([settlement(run, Released())])
    await store.store.move([run.id], Cancel(by="ann"))
    await requeue(store, run, undo=True)
    assert await states(store, run) == {"a": "succeeded", "b": "pending"}
    job = await store.job(run.id)
    assert (job.step, job.progress) == ("b", 7.0)


async def test_many_jobs_are_requeued_at_once(store: Harness) -> None:
    jobs = [await dead(store, *ENDED[:n], key=f"k{n}" if n % 2 else None) for n in range(4)]
    answers = await store.store.move([job.id for job in jobs], Requeue(by="ann", from_step="b"))
    assert [answer.done for answer in answers] == [False, False, True, True]
    assert [list(await states(store, job)) for job in jobs] == [[], ["a"], ["a"], ["a"]]


async def test_a_run_after_a_requeue_writes_anew(store: Harness) -> None:
    job = await dead(store, *ENDED)
    await requeue(store, job, from_step="b")
    [again] = (await store.claim()).jobs
    await store.store.checkpoint([mark(again, "b", "succeeded", result='"new"'), mark(again, "c", "succeeded")])
    assert [(step.name, step.version, step.result) for step in await reading.steps(store.store, job.id)] == [
        ("a", 1, None),
        ("b", 2, "new"),
        ("c", 2, None),
    ]


# ── Steps that are not cancelable ──


async def in_shielded_step(store: Harness) -> Job:
    run = await store.claimed()
    await store.store.checkpoint([mark(run, "a", "running", cancelable=False)])
    await store.store.move([run.id], Cancel(by="ann"))
    return run


async def cancelled_by_timeout(store: Harness) -> list[str]:
    return [moved.id for moved in await store.store.move_due(CancelTimeout(by="m1", grace=5.0))]


async def test_no_cancel_timeout_during_a_step_that_is_not_cancelable(store: Harness) -> None:
    run = await in_shielded_step(store)
    other = await store.claimed("w2")
    await store.store.checkpoint([mark(other, "a", "running", cancelable=True)])
    await store.store.move([other.id], Cancel(by="ann"))
    await store.advance(10)
    assert await cancelled_by_timeout(store) == [other.id]
    assert await store.store.checkpoint([mark(run, "a", "succeeded", cancelable=False)]) == [CANCEL]
    assert await cancelled_by_timeout(store) == [run.id]


async def test_the_shield_ends_with_the_lease(store: Harness) -> None:
    run = await in_shielded_step(store)
    await store.advance(LEASE)
    assert await cancelled_by_timeout(store) == []
    await store.advance(1e-6)
    assert await cancelled_by_timeout(store) == [run.id]


async def test_the_shield_is_that_of_its_own_run(store: Harness) -> None:
    run = await store.claimed()
    await store.store.checkpoint([mark(run, "a", "running", cancelable=False)])
    await store.advance(LEASE + 1)
    await store.store.move_due(Rescue(by="m1", backoff=[0.0]))
    [again] = (await store.claim("w2")).jobs
    await store.store.move([again.id], Cancel(by="ann"))
    await store.advance(10)
    assert await cancelled_by_timeout(store) == [run.id]


async def test_shielded_jobs_don_t_hide_others_from_the_timeout(shared_store: Harness) -> None:
    store = shared_store
    for _ in range(3):
        await in_shielded_step(store)
    await store.advance(1)
    other = await store.in_status(Status.CANCEL_REQUESTED)
    await store.advance(10)
    assert [moved.id for moved in await store.store.move_due(CancelTimeout(by="m1", grace=5.0), 2)] == [other.id]


WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


async def test_a_shielded_step_that_begins_while_the_timeout_looks(postgres_store: PostgresHarness) -> None:
    """The run marks the step when the timeout's statement has its snapshot, but no lock yet."""
    store = postgres_store
    run = await store.claimed()
    await store.store.checkpoint([mark(run, "a", "succeeded")])
    await cancelled_by_timeout(store)  # plans the statement now: planning reads the clock, too
    await store.store.move([run.id], Cancel(by="ann"))
    await store.advance(10)
    blocker = await asyncpg.connect(store.url)
    try:
        async with blocker.transaction():
            await blocker.execute(
                "LOCK TABLE testclock.clock IN ACCESS EXCLUSIVE MODE"
            )  # the statement waits when it reads the clock
            timeout = asyncio.create_task(store.store.move_due(CancelTimeout(by="m1", grace=5.0)))
            while not await store.fetch(WAITING):  # noqa: ASYNC110 - the server gives no signal
                await asyncio.sleep(0.01)
            await store.execute(
                "INSERT INTO _jobs_steps (job_id, name, n, position, function, state, retries, cancelable, version,"
                " started_at) SELECT id, 'b', 1, 2, 'b', 'running', 0, false, 1, created FROM _jobs;"
                " UPDATE _jobs SET step = 'b', updated = now()"
            )
        assert await timeout == []
    finally:
        await blocker.close()
    assert (await store.job(run.id)).status is Status.CANCEL_REQUESTED


async def test_a_mark_that_waited_for_its_row_is_written(postgres_store: PostgresHarness) -> None:
    """The row changed meanwhile, so it is newer than the statement's snapshot."""
    store = postgres_store
    run = await store.claimed()
    blocker = await asyncpg.connect(store.url)
    try:
        async with blocker.transaction():
            await blocker.execute(f"UPDATE public._jobs SET stage = 'x' WHERE id = '{run.id}'")
            marking = asyncio.create_task(store.store.checkpoint([mark(run, "a", "succeeded", percent=50.0)]))
            while not await store.fetch(WAITING):  # noqa: ASYNC110 - the server gives no signal
                await asyncio.sleep(0.01)
        assert await marking == [KEPT]
    finally:
        await blocker.close()
    assert await states(store, run) == {"a": "succeeded"}
    job = await store.job(run.id)
    assert (job.step, job.progress, job.stage) == ("a", 50.0, "x")
