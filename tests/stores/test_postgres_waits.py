"""Waits against everything that may happen at the same moment, on real connections: each signal is read exactly once.

Each race runs hundreds of times. The server decides which side wins: the checks hold in either case.
"""

import asyncio
import random
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest
from msgspec import structs

from rowlock.core.codec import encode
from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Answer, Completed, Outcome, Verdict, Waits
from rowlock.core.moves import Cancel, Rescue, Resume, Signal, SignalSent, Wake
from rowlock.core.steps import StepState
from rowlock.stores.base import Awaited, Changed, Claim, Hold, Store
from tests.stores.conftest import real_postgres_store
from tests.stores.harness import Harness, lanes, mark, settlement, wait
from tests.stores.processes import deadlocks, real_job, stores

ROUNDS = 60
pytestmark = pytest.mark.timeout(300)
LANES = lanes("mail")


harness = real_postgres_store


async def signal(store: Store, job_id: str, data: Any, signal_id: str | None = None) -> Changed:
    [answer] = await store.move([job_id], Signal(by="ann", sent=SignalSent("go", encode(data, "data"), signal_id)))
    return answer


async def at_once(*calls: Awaitable[Any]) -> list[Any]:
    """Await all calls at about the same time, in random order; return their answers."""

    async def late(call: Awaitable[Any]) -> Any:
        await asyncio.sleep(random.random() * 0.002)
        return await call

    return await asyncio.gather(*map(late, calls))


async def settle(store: Store, run: Job, outcome: Outcome) -> Verdict:
    """Settle as a worker does: if a cancel came in between, decide again."""
    [verdict] = (await store.settle([settlement(run, outcome, ran=0.0)])).verdicts
    if verdict.answer is Answer.CHANGED:
        assert verdict.status is Status.CANCEL_REQUESTED
        cancelled = structs.replace(run, status=verdict.status)
        [verdict] = (await store.settle([settlement(cancelled, outcome, ran=0.0)])).verdicts
    return verdict


async def claimed(harness: Harness, *, done: Sequence[str] = ()) -> Job:
    """Return a new job that w1 runs, after these steps."""
    await harness.insert(real_job())
    [run] = (await harness.store.claim(Claim("w1", LANES, 1, 600.0))).jobs
    await harness.store.checkpoint([mark(run, name, "succeeded") for name in done])
    return run


async def look(store: Store, run: Job, seconds: float | None = None, **fields: Any) -> Awaited:
    answer = await store.take_signal(wait(run, seconds=seconds, **fields))
    assert answer.hold is Hold.KEPT
    return answer


async def waiting(harness: Harness, *, done: Sequence[str] = (), seconds: float | None = None) -> Job:
    run = await claimed(harness, done=done)
    answer = await look(harness.store, run, seconds)
    assert answer.state is StepState.RUNNING
    verdict = await settle(harness.store, run, Waits("signal:go", answer.left, answer.seen, bool(done)))
    assert verdict.answer is Answer.APPLIED
    return run


async def unread(harness: Harness, job_id: str) -> list[int]:
    found = await harness.fetch(
        f"SELECT seq FROM _jobs_signals WHERE job_id = '{job_id}' AND wait IS NULL ORDER BY seq"
    )
    return [seq for (seq,) in found]


async def test_every_signal_is_read_once_and_in_order(harness: Harness) -> None:
    """Each handler waits for four signals; two clients send two at once. They send some signals twice, with an id."""
    jobs, each = 60, 4
    new = [real_job() for _ in range(jobs)]
    await harness.insert(*new)
    results: dict[str, list[Any]] = {}
    everyone = await stores(harness, 5)

    async def work(store: Store, name: str) -> None:
        while len(results) < jobs:
            await store.promote()
            for run in (await store.claim(Claim(name, LANES, 3, 600.0))).jobs:
                await replay(store, run)

    async def replay(store: Store, run: Job) -> None:
        got: list[Any] = []
        for n in range(1, each + 1):
            answer = await look(store, run, n=n)
            if answer.state is StepState.RUNNING:
                verdict = await settle(store, run, Waits("signal:go", answer.left, answer.seen))
                assert verdict.answer is Answer.APPLIED
                return
            got.append(int(answer.result or ""))
        assert run.id not in results
        results[run.id] = got
        verdict = await settle(store, run, Completed(got))
        assert verdict.answer is Answer.APPLIED

    async def send(stores: Sequence[Store]) -> None:
        order = [job.id for job in new] * (each // 2)
        random.shuffle(order)
        sent: dict[str, int] = {}
        for job_id in order:
            n = sent[job_id] = sent.get(job_id, 0) + 1
            calls = [signal(store, job_id, 10 * n + k, f"{n}-{k}") for k, store in enumerate(stores)]
            answers = await at_once(*calls, signal(stores[0], job_id, 10 * n + 1, f"{n}-1"))
            assert sum(answer.done for answer in answers) == 2
            [refused] = [answer for answer in answers if not answer.done]
            assert refused.why == "known" or refused.status is Status.COMPLETED  # it may have read all by then

    await asyncio.gather(*(work(store, f"w{n}") for n, store in enumerate(everyone[:3])), send(everyone[3:]))
    found = await harness.fetch("SELECT job_id, data FROM _jobs_signals ORDER BY job_id, seq")
    stored: dict[str, list[int]] = {}
    for job_id, data in found:
        stored.setdefault(str(job_id), []).append(int(data))
    assert results == stored
    assert {tuple(sorted(got)) for got in results.values()} == {(10, 11, 20, 21)}
    assert await harness.fetch("SELECT job_id FROM _jobs_signals WHERE wait IS NULL") == []
    assert await deadlocks(harness) == 0


async def test_a_signal_comes_when_a_run_is_about_to_wait(harness: Harness) -> None:
    other = await harness.another()
    ways = set()
    for _ in range(ROUNDS):
        run = await claimed(harness)

        async def wait_for(run: Job) -> Awaited:
            answer = await look(harness.store, run)
            if answer.state is StepState.RUNNING:
                verdict = await settle(harness.store, run, Waits("signal:go", answer.left, answer.seen))
                assert verdict.answer is Answer.APPLIED
            return answer

        answer, sent = await at_once(wait_for(run), signal(other, run.id, 1))
        assert sent.done
        row = await harness.row(run.id)
        if answer.state is StepState.SUCCEEDED:  # the signal was there in time
            ways.add("read")
            assert (answer.result, row.job.status) == ("1", Status.PROCESSING)
            await harness.store.settle([settlement(run, Completed(), ran=0.0)])
            continue
        ways.add(" ".join(entry["event"] for entry in row.history))
        assert (row.job.status, row.ready, row.job.waits_for) == (Status.PENDING, True, None)
        [again] = (await harness.store.claim(Claim("w1", LANES, 1, 600.0))).jobs
        answer = await look(harness.store, again)
        assert (again.id, answer.state, answer.result) == (run.id, StepState.SUCCEEDED, "1")
        await harness.store.settle([settlement(again, Completed(), ran=0.0)])
    assert ways <= {"read", "signalled waited", "waited resumed"}
    assert len(ways) > 1, "no race"


@pytest.mark.parametrize("timer", ["promote", "resume", "wake"])
async def test_a_signal_comes_when_the_time_is_over(harness: Harness, timer: str) -> None:
    """The job is resumed once. The signal is there, so the run gets the signal."""
    other = await harness.another()
    ends: dict[str, Any] = {
        "promote": lambda run: other.promote(),
        "resume": lambda run: other.move_due(Resume(by="m1")),
        "wake": lambda run: other.move([run.id], Wake(by="ann")),
    }
    for _ in range(ROUNDS):
        run = await waiting(harness, seconds=60.0 if timer == "wake" else 0.002)
        _, sent = await at_once(ends[timer](run), signal(harness.store, run.id, 1))
        assert sent.done
        row = await harness.row(run.id)
        assert (row.job.status, row.ready, row.got) == (Status.PENDING, True, 1)
        assert sum(entry["event"] == "resumed" for entry in row.history) == 1
        [again] = (await harness.store.claim(Claim("w1", LANES, 1, 600.0))).jobs
        answer = await look(harness.store, again)
        assert (again.id, answer.state, answer.result) == (run.id, StepState.SUCCEEDED, "1")
        await harness.store.settle([settlement(again, Completed(), ran=0.0)])


async def test_a_signal_is_read_or_stays_unread_when_its_wait_times_out(harness: Harness) -> None:
    """The wait is over when the run looks. The run gets the signal if it is there; otherwise the next wait gets it."""
    other = await harness.another()
    for _ in range(ROUNDS):
        run = await waiting(harness, seconds=0.001)
        while not await harness.store.promote():
            pass
        [again] = (await harness.store.claim(Claim("w1", LANES, 1, 600.0))).jobs
        assert again.id == run.id
        answer, sent = await at_once(look(harness.store, again, default="0"), signal(other, run.id, 1))
        assert sent.done
        assert answer.state is StepState.SUCCEEDED
        assert await unread(harness, run.id) == ([] if answer.result == "1" else [1])
        following = await look(harness.store, again, n=2)
        assert [answer.result, following.result] in (["1", None], ["0", "1"])
        await harness.store.settle([settlement(again, Completed(), ran=0.0)])


@pytest.mark.parametrize("done", [(), ("a",)])
async def test_a_cancel_and_a_signal(harness: Harness, done: Sequence[str]) -> None:
    other = await harness.another()
    for _ in range(ROUNDS):
        run = await waiting(harness, done=done)
        [cancelled], sent = await at_once(other.move([run.id], Cancel(by="ann")), signal(harness.store, run.id, 1))
        assert cancelled.done
        row = await harness.row(run.id)
        assert (row.got, len(row.signals)) == (sent.done, sent.done)
        if done and not sent.done:
            assert (row.job.status, row.ready, row.job.locked_by) == (Status.CANCEL_REQUESTED, True, None)
            [undo] = (await harness.store.claim(Claim("w1", LANES, 1, 600.0))).jobs
            assert (undo.id, undo.status, undo.version) == (run.id, Status.CANCEL_REQUESTED, 2)
            verdict = await settle(harness.store, undo, Waits("signal:go", None, 0))
            assert verdict.answer is Answer.APPLIED
        else:
            assert (row.job.status, row.ready, row.job.waits_for) == (Status.CANCELLED, False, None)
        assert (await harness.job(run.id)).status is Status.CANCELLED


@pytest.mark.parametrize("done", [(), ("a",)])
async def test_a_cancel_comes_when_a_run_is_about_to_wait(harness: Harness, done: Sequence[str]) -> None:
    other = await harness.another()
    events = set()
    for _ in range(ROUNDS):
        run = await claimed(harness, done=done)
        answer = await look(harness.store, run)
        waits = Waits("signal:go", answer.left, answer.seen, bool(done))
        verdict, [cancelled] = await at_once(settle(harness.store, run, waits), other.move([run.id], Cancel(by="ann")))
        assert (verdict.answer, cancelled.done) == (Answer.APPLIED, True)
        row = await harness.row(run.id)
        events.add(" ".join(entry["event"] for entry in row.history))
        if not done:
            assert (row.job.status, row.ready) == (Status.CANCELLED, False)
            continue
        assert (row.job.status, row.ready, row.job.locked_by) == (Status.CANCEL_REQUESTED, True, None)
        [undo] = (await harness.store.claim(Claim("w1", LANES, 1, 600.0))).jobs
        assert (undo.id, undo.status) == (run.id, Status.CANCEL_REQUESTED)
        assert (await harness.store.take_signal(wait(undo))).hold is Hold.CANCEL
        await settle(harness.store, undo, Waits("signal:go", None, 0))
    both = {"waited cancel_requested", "cancel_requested wait_cancelled"} if done else {
        "waited cancelled", "cancel_requested cancelled",
    }  # fmt: skip
    assert events == both


async def test_a_rescue_and_a_resume_when_a_run_waits(harness: Harness) -> None:
    """A run ends once: either it waits, and its wait times out at once, or its worker is taken for dead."""
    other, third = await stores(harness, 2)
    rescue = Rescue(by="m1", backoff=[60.0], workers=["w1"])
    answers = set()
    for _ in range(ROUNDS):
        run = await claimed(harness)
        answer = await look(harness.store, run, 0.002)
        verdict, *_ = await at_once(
            settle(harness.store, run, Waits("signal:go", answer.left, answer.seen)),
            other.move_due(rescue),
            third.promote(),
        )
        answers.add(verdict.answer)
        while (await harness.job(run.id)).status is Status.WAITING:
            await third.promote()
        row = await harness.row(run.id)
        events = [entry["event"] for entry in row.history]
        assert events == (["waited", "resumed"] if verdict.answer is Answer.APPLIED else ["rescued"])
        assert (row.job.status, row.ready, row.job.version, row.job.locked_by) == (Status.PENDING, True, 1, None)
        await harness.store.move([run.id], Cancel(by="ann"))
    assert answers == {Answer.APPLIED, Answer.LOST}
