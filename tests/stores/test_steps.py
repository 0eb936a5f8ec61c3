"""Steps: what runs store of them, who may, and when it is removed."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Completed, Failed, Released
from rowlock.core.moves import Cancel, Requeue
from rowlock.core.steps import StepState
from rowlock.stores.base import Hold, Progress
from tests.stores.conftest import paired_store
from tests.stores.harness import NOBODY, START, Harness, mark, settlement

store = paired_store

KEPT, CANCEL, LOST = Hold.KEPT, Hold.CANCEL, Hold.LOST


async def states(store: Harness, job: Job) -> dict[str, str]:
    """Of the stored steps, by position."""
    steps = await store.store.steps(job.id)
    return {step.name if step.n == 1 else f"{step.name}#{step.n}": step.state.value for step in steps}


async def stepped(store: Harness, *done: str, **fields: Any) -> Job:
    """A claimed job whose run has finished these steps."""
    run = await store.claimed(**fields)
    percents = [100.0 * (n + 1) / (len(done) + 1) for n in range(len(done))]
    marks = [mark(run, name, "succeeded", percent=percent) for name, percent in zip(done, percents, strict=True)]
    assert set(await store.store.checkpoint(marks)) <= {KEPT}
    return run


async def dead(store: Harness, *marks: tuple[str, str], **fields: Any) -> Job:
    """A job that failed for good after these steps."""
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
    assert await store.store.steps(run.id) == []
    assert await store.store.checkpoint([mark(run, "a", "running", age=2.0)]) == [KEPT]
    [step] = await store.store.steps(run.id)
    assert (step.state, step.started_at, step.finished_at) == ("running", START - timedelta(seconds=2), None)
    await store.advance(5)
    assert await store.store.checkpoint([mark(run, "a", "succeeded", result='{"n":[1.5]}', percent=33.3)]) == [KEPT]
    [step] = await store.store.steps(run.id)
    assert (step.state, step.result, step.finished_at) == ("succeeded", {"n": [1.5]}, store.now)
    job = await store.job(run.id)
    assert (job.step, job.progress) == ("a", 33.3)


async def test_a_repeat_changes_nothing(store: Harness) -> None:
    run = await store.claimed()
    done = mark(run, "a", "succeeded", result="1", percent=50.0)
    await store.store.checkpoint([done])
    before = await store.store.steps(run.id)
    await store.advance(1)
    assert await store.store.checkpoint([done, structs.replace(done, result="2")]) == [KEPT, KEPT]
    assert await store.store.steps(run.id) == before


@pytest.mark.parametrize("end", ["succeeded", "failed"])
@pytest.mark.parametrize("later", ["running", "pending", "cancelled", "succeeded", "failed"])
async def test_nothing_replaces_an_end(store: Harness, end: str, later: str) -> None:
    run = await store.claimed()
    await store.store.checkpoint([mark(run, "a", end, result="1", error="x")])
    before = await store.store.steps(run.id)
    await store.advance(1)
    await store.store.checkpoint([mark(run, "a", later, result="2")])
    assert await store.store.steps(run.id) == before


@pytest.mark.parametrize("first", ["running", "pending", "cancelled"])
@pytest.mark.parametrize("later", StepState)
async def test_anything_replaces_what_is_no_end(store: Harness, first: str, later: StepState) -> None:
    if later is StepState.SKIPPED:
        return  # never stored
    run = await store.claimed()
    await store.store.checkpoint([mark(run, "a", first)])
    await store.advance(1)
    await store.store.checkpoint([mark(run, "a", later, retries=1)])
    assert await states(store, run) == {"a": later}


async def test_several_marks_of_one_job_in_one_batch(store: Harness) -> None:
    """As if each had come alone; the last one names the job's step."""
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
    assert await states(store, run) == {"a": "succeeded", "b": "running", "b#2": "succeeded", "c": "running"}
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
    assert bool(await store.store.steps(job.id)) == held


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
    [step] = await store.store.steps(run.id)
    assert step.name == "a 'ä'\"\\#1"
    assert "\0" not in (step.error or "")


async def test_the_largest_result(store: Harness) -> None:
    run = await store.claimed()
    text = '"' + "ä" * 500_000 + '"'
    assert await store.store.checkpoint([mark(run, "a", "succeeded", result=text)]) == [KEPT]
    [step] = await store.store.steps(run.id)
    assert step.result == "ä" * 500_000


async def test_a_locked_row_is_waited_for(store: Harness) -> None:
    """Many at once: each is written, whoever comes first; progress reports and heartbeats go on meanwhile."""
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
    assert [step.result for step in await real.steps(run.id)] == list(range(40))
    await store.paired.adopt()
