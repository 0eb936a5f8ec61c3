"""Detectors that must turn red when a defence of waits is switched off."""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import asyncpg
from msgspec import UNSET

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Answer, Completed, Failed, Released, Settlement, decide
from rowlock.core.moves import Cancel, Expire, Rescue, Signal, SignalSent
from rowlock.core.steps import StepState
from rowlock.errors import StoreError
from rowlock.stores.base import Beat, Hold, Progress
from tests.stores import test_waits as waits
from tests.stores.harness import Harness, PostgresHarness, mark, wait
from tests.stores.test_steps import WAITING


async def _refused_by_the_database(running: Awaitable[None]) -> None:
    """Turn a refusal by the table's last guard into red. That guard acts only without the product's own guard."""
    try:
        await running
    except StoreError as error:
        raise AssertionError(error) from None


# ── Does a run have to wait? ──


async def seen(store: Harness) -> None:
    await waits.test_a_signal_between_the_look_and_the_wait_is_not_missed(store)


async def not_seen(store: Harness) -> None:
    await waits.test_signals_that_were_seen_don_t_keep_a_job_from_waiting(store)


async def run(store: Harness) -> None:
    """A run that has lost its job reads no signal: its version or its worker is no longer the job's."""
    await waits.test_a_run_that_has_lost_its_job_reads_nothing(store)


async def status(store: Harness) -> None:
    await waits.test_only_a_running_job_may_ask(store, Status.CANCEL_REQUESTED)


async def order(store: Harness) -> None:
    await waits.test_signals_of_a_name_are_read_in_their_order(store)


async def repeat(store: Harness) -> None:
    await waits.test_a_repeat_gets_the_same_answer(store, "deadline")


async def deadline(store: Harness) -> None:
    await waits.test_an_open_wait_has_its_terms_and_a_deadline_that_stays(store)


async def early(store: Harness) -> None:
    await waits.test_the_time_of_a_wait_is_over(store, "signal:go", UNSET, StepState.FAILED, None, {"seconds": 60.0})


async def signal_wins(store: Harness) -> None:
    run = await store.claimed()
    await store.store.take_signal(wait(run, "signal:go", seconds=60.0))
    await store.advance(100)
    await store.store.move([run.id], Signal(by="ann", sent=SignalSent("go", "1")))
    answer = await store.store.take_signal(wait(run, "signal:go", seconds=60.0))
    assert (answer.state, answer.result) == (StepState.SUCCEEDED, "1")


async def look_that_waited(store: Harness) -> None:
    """A signal commits while a run waits for the lock of its row. The run's snapshot is older and has no signal. The
    locked row already counts it."""
    assert isinstance(store, PostgresHarness)
    run = await store.claimed()
    blocker = await asyncpg.connect(store.url)
    try:
        async with blocker.transaction():
            await blocker.execute(f"UPDATE public._jobs SET signals = 1 WHERE id = '{run.id}'")
            await blocker.execute(
                "INSERT INTO public._jobs_signals (job_id, seq, name, data, at, by)"
                f" VALUES ('{run.id}', 1, 'go', '7', clock_timestamp(), 'ann')"
            )
            looking = asyncio.create_task(store.store.take_signal(wait(run, "signal:go", seconds=60.0)))
            while not await store.fetch(WAITING):  # noqa: ASYNC110 - the server gives no signal
                await asyncio.sleep(0.01)
        assert (await looking).result == "7"
    finally:
        await blocker.close()


# ── What wakes a job ──


async def time(store: Harness) -> None:
    await waits.test_a_job_waits_until_a_time(store)


async def endless(store: Harness) -> None:
    await waits.test_a_job_waits_for_ever(store)


async def woken(store: Harness) -> None:
    job = await store.waiting()
    await store.store.move([job.id], Signal(by="ann", sent=SignalSent("go", "1")))
    assert [one.id for one in (await store.claim()).jobs] == [job.id]


async def due_now(store: Harness) -> None:
    """A signal makes a job due at once. If the job kept the time of an endless wait, no worker would ever claim it."""
    job = await store.waiting()
    await store.store.move([job.id], Signal(by="ann", sent=SignalSent("go", "1")))
    assert (await store.job(job.id)).run_at == store.now


async def once(store: Harness) -> None:
    await _refused_by_the_database(waits.test_an_id_counts_once_per_job(store))


async def bound(store: Harness) -> None:
    await waits.test_too_many_unread_signals(store)


async def wake(store: Harness) -> None:
    await waits.test_wake(store, "sleep", StepState.SUCCEEDED, None)


async def ended_waits(store: Harness) -> None:
    await waits.test_wake_leaves_ended_waits_alone(store)


# ── Callbacks ──


async def late(store: Harness) -> None:
    await waits.test_late_and_unknown_callbacks_are_refused(store)


async def report(store: Harness) -> None:
    await waits.test_a_report_restarts_both_deadlines(store)


async def one_callback(store: Harness) -> None:
    await waits.test_a_report_is_about_one_callback(store)


# ── Cancels ──


async def undo(store: Harness) -> None:
    await waits.test_cancel_with_steps_to_undo(store)


async def outside(store: Harness) -> None:
    await waits.test_cancel_while_the_outside_works(store, None)


async def no_cancel(store: Harness) -> None:
    await waits.test_the_last_run_is_no_end_for_a_job_that_was_not_cancelled(store)


async def cancel_before_the_wait(store: Harness) -> None:
    await waits.test_a_cancel_before_the_run_waits(store, True)


async def _to_be_undone(store: Harness) -> Job:
    """Return a job that is cancel_requested, without a lease, and with the version of its last run."""
    run = await store.claimed()
    await store.store.checkpoint([mark(run, "a", "succeeded")])
    job = await store.waits(run, undoes=True)
    await store.store.move([job.id], Cancel(by="ann"))
    return await store.job(job.id)


async def lease_in_settle(store: Harness) -> None:
    """A late run of any worker can't end a job that no worker holds."""
    job = await _to_be_undone(store)
    for outcome in (Completed(), Failed("x")):
        to = decide(job, outcome, store.now, ran=0.0)
        [verdict] = (await store.store.settle([Settlement(job.id, job.version, to)])).verdicts
        assert verdict.answer is Answer.LOST
        assert (await store.job(job.id)).status is Status.CANCEL_REQUESTED


async def lease_in_heartbeat(store: Harness) -> None:
    job = await _to_be_undone(store)
    before = await store.rows()

    async def beat() -> None:
        assert await store.store.heartbeat([Beat(job.id, job.version, True)], 30.0) == [Hold.LOST]

    await _refused_by_the_database(beat())
    assert await store.rows() == before


async def lease_in_progress(store: Harness) -> None:
    job = await _to_be_undone(store)
    before = await store.rows()
    assert await store.store.progress([Progress(job.id, job.version, 50.0)]) == [Hold.LOST]
    assert await store.rows() == before


async def lease_in_checkpoint(store: Harness) -> None:
    job = await _to_be_undone(store)
    before = await store.rows()
    assert await store.store.checkpoint([mark(job, "b", "succeeded", worker=None)]) == [Hold.LOST]
    assert await store.rows() == before


# ── Removals, and the first start ──


async def requeue(store: Harness) -> None:
    await waits.test_a_requeue_removes_the_signals_that_dropped_waits_have_read(
        store, {"keep_steps": False}, [], ["x", "y"]
    )


async def delete(store: Harness) -> None:
    await waits.test_signals_go_with_a_job_that_is_deleted(store, Released(), False)


async def prune(store: Harness) -> None:
    await waits.test_signals_go_with_jobs_that_are_pruned(store, False)


async def first_start(store: Harness) -> None:
    await waits.test_expires_at_bounds_the_first_start(store)


async def crashed_job(store: Harness) -> None:
    """A job that has crashed does not expire, although it is past `expires_at`: it had started in time."""
    fields: dict[str, Any] = {"expires_at": store.now + timedelta(seconds=60)}
    await store.claimed(**fields)
    await store.advance(61.0)
    [rescued] = await store.store.move_due(Rescue(by="m1", backoff=[0.0]))
    assert rescued.charged
    assert await store.store.move_due(Expire(by="m1")) == []
