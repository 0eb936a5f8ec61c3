"""Real connections and the real clock: no job is given twice, no job is lost, and there are no deadlocks."""

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Answer, Completed, Failed, Released
from rowlock.core.moves import Cancel, CancelTimeout, Delete, Expire, Requeue, Rescue, Update
from rowlock.stores.base import Beat, Claim, Edit, Hold, Progress, Store
from rowlock.stores.postgres import moves
from tests.stores.harness import Harness, claim_by, ids, lanes, settlement
from tests.stores.processes import deadlocks, real_job, stores, target_of

ROOT = Path(__file__).parent.parent.parent


# ── claim ──


@pytest.mark.parametrize("merged", [False, True])
async def test_no_job_is_claimed_twice(real_store: Harness, merged: bool) -> None:
    """5,000 jobs, 12 workers, four lanes. Each claim comes alone, or with the settlement of the last batch."""
    topics = ["a", "b", "c", "d"]
    total = 5000
    await real_store.insert(*[real_job(topics[i % 4], priority=i % 3) for i in range(total)])
    taken: list[str] = []

    async def work(store: Store, name: str, limit: int) -> None:
        wish = Claim(name, lanes(*topics), limit, 600.0)
        done: list[Job] = []
        while len(taken) < total or done:
            if merged:
                settled = await store.settle([settlement(job, Completed(name)) for job in done], wish)
                assert all(verdict.answer is Answer.APPLIED for verdict in settled.verdicts)
                claimed = settled.claimed
                assert claimed is not None
            else:
                claimed = await store.claim(wish)
            assert len(claimed.jobs) <= limit
            assert {job.locked_by for job in claimed.jobs} <= {name}
            taken.extend(ids(claimed.jobs))
            done = claimed.jobs if merged else []

    everyone = await stores(real_store)
    await asyncio.gather(*(work(store, f"w{i}", 10 + 13 * i) for i, store in enumerate(everyone)))
    assert len(taken) == len(set(taken)) == total
    rows = await real_store.rows()
    assert {row.job.version for row in rows.values()} == {1}
    assert {row.job.status for row in rows.values()} == {Status.COMPLETED if merged else Status.PROCESSING}


async def test_workers_of_one_store_share_it(real_store: Harness) -> None:
    """Many tasks share one store object: its pool, its one writer, and what it remembers between claims."""
    await real_store.insert(*[real_job() for _ in range(1000)])
    taken: list[str] = []

    async def work(name: str) -> None:
        while len(taken) < 1000:
            taken.extend(ids((await real_store.claim(name, limit=17)).jobs))

    await asyncio.gather(*(work(f"w{i}") for i in range(16)))
    assert len(taken) == len(set(taken)) == 1000


async def test_given_back_while_others_claim(real_store: Harness) -> None:
    """Every job goes to many workers in turn, and each holds it alone."""
    await real_store.insert(*[real_job() for _ in range(40)])
    holders: dict[str, str] = {}
    runs: Counter[str] = Counter()

    async def work(store: Store, name: str) -> None:
        for _ in range(40):
            jobs = (await store.claim(claim_by(name, limit=5))).jobs
            for job in jobs:
                assert job.id not in holders, f"{job.id} is held by {holders[job.id]} and {name}"
                holders[job.id] = name
                runs[job.id] += 1
            for job in jobs:
                del holders[job.id]  # before the store gives it to another worker
            settled = await store.settle([settlement(job, Released()) for job in jobs])
            assert all(verdict.answer is Answer.APPLIED for verdict in settled.verdicts)

    await asyncio.gather(*(work(store, f"w{i}") for i, store in enumerate(await stores(real_store, 8))))
    rows = await real_store.rows()
    assert {row.job.status for row in rows.values()} == {Status.PENDING}
    assert {job_id: row.job.version for job_id, row in rows.items() if row.job.version} == dict(runs)


async def test_no_claim_that_begins_after_a_pause_takes_its_jobs(real_store: Harness) -> None:
    await real_store.insert(*[real_job(topic) for topic in ("a", "b") for _ in range(1500)])
    paused = False
    late: list[str] = []

    async def work(store: Store, name: str) -> None:
        while True:
            after = paused
            jobs = (await store.claim(claim_by(name, "a", "b", limit=3))).jobs
            if after:
                late.extend(job.topic for job in jobs)
                return

    async def stop(store: Store) -> None:
        nonlocal paused
        await store.steer_topic("a", "pause", by="ann")
        paused = True

    everyone = await stores(real_store, 8)
    await asyncio.gather(*(work(store, f"w{i}") for i, store in enumerate(everyone[1:])), stop(everyone[0]))
    assert "a" not in late
    assert "b" in late


# ── Batches in opposite order ──


async def _claimed(harness: Harness, count: int) -> list[Job]:
    await harness.insert(*[real_job() for _ in range(count)])
    return (await harness.claim("w1", limit=count)).jobs


async def _heartbeat(store: Store, jobs: Sequence[Job]) -> None:
    assert Hold.LOST not in await store.heartbeat([Beat(job.id, 1) for job in jobs], 600.0)


async def _progress(store: Store, jobs: Sequence[Job]) -> None:
    assert Hold.LOST not in await store.progress([Progress(job.id, 1, 5.0) for job in jobs])


async def _settle(store: Store, jobs: Sequence[Job]) -> None:
    settled = await store.settle([settlement(job, Failed("x", final=True)) for job in jobs])
    # The first call wins. The others are told so, or that the job was deleted since.
    assert {verdict.answer for verdict in settled.verdicts} <= {Answer.APPLIED, Answer.ALREADY, Answer.LOST}


async def _cancel(store: Store, jobs: Sequence[Job]) -> None:
    await store.move([job.id for job in jobs], Cancel(by="ann"))


async def _requeue(store: Store, jobs: Sequence[Job]) -> None:
    await store.move([job.id for job in jobs], Requeue(by="ann"))


async def _update(store: Store, jobs: Sequence[Job]) -> None:
    await store.move([job.id for job in jobs], Update(by="ann", edit=Edit(priority=random.randrange(9))))


async def _delete(store: Store, jobs: Sequence[Job]) -> None:
    await store.move([job.id for job in jobs], Delete(by="ann"))


async def _insert(store: Store, jobs: Sequence[Job]) -> None:
    answers = await store.insert([real_job(key=job.id) for job in jobs])
    assert len({answer.id for answer in answers}) == len(jobs)


OPPOSITE: dict[str, list[Callable[[Store, Sequence[Job]], Awaitable[None]]]] = {
    "heartbeat": [_heartbeat],
    "progress": [_progress],
    "settle": [_settle],
    "insert keyed": [_insert],
    "cancel": [_cancel],
    "heartbeat, progress, cancel": [_heartbeat, _progress, _cancel],
    "settle, requeue, update, delete": [_settle, _requeue, _update, _requeue, _delete],
}


@pytest.mark.parametrize("case", OPPOSITE)
async def test_batches_in_opposite_order_never_wait_in_a_circle(real_store: Harness, case: str) -> None:
    everyone = await stores(real_store, 8)
    for _ in range(8):
        jobs = await _claimed(real_store, 60)
        verbs = OPPOSITE[case]

        async def work(n: int, store: Store, jobs: list[Job] = jobs, verbs: list[Any] = verbs) -> None:
            mine = jobs[::-1] if n % 2 else jobs[:]
            if n > 3:
                random.Random(n).shuffle(mine)
            for verb in verbs:
                await verb(store, mine)

        await asyncio.gather(*(work(n, store) for n, store in enumerate(everyone)))
        rows = await real_store.rows()
        if case in ("settle", "cancel"):
            assert {len(rows[job.id].history) for job in jobs} == {1}  # eight tried, one succeeded
    assert await deadlocks(real_store) == 0


# ── rescue, heartbeat and settle at once ──


async def test_a_run_ends_once(real_store: Harness) -> None:
    """The lease has expired. At the same time the worker settles, its heartbeat beats, and three rescuers rescue."""
    worker, heart, *rescuers = await stores(real_store, 5)
    seen: Counter[str] = Counter()
    for n in range(25):
        topic = f"t{n}"
        await real_store.insert(*[real_job(topic) for _ in range(20)])
        jobs = (await worker.claim(claim_by("A", topic, limit=20, lease=0.0))).jobs
        settled, beats, rescued = await asyncio.gather(
            worker.settle([settlement(job, Completed(), ran=0.0) for job in jobs]),
            heart.heartbeat([Beat(job.id, 1) for job in jobs], 600.0),
            asyncio.gather(*(s.move_due(Rescue(by=f"m{i}", backoff=[1.0]), 7) for i, s in enumerate(rescuers))),
        )
        taken = [one.id for answer in rescued for one in answer]
        assert len(taken) == len(set(taken))
        rows = await real_store.rows()
        for job, verdict, hold in zip(jobs, settled.verdicts, beats, strict=True):
            after = rows[job.id].job
            rescued_ = job.id in taken
            assert (verdict.answer is Answer.APPLIED) != rescued_
            assert verdict.answer in (Answer.APPLIED, Answer.LOST)
            assert after.status is (Status.PENDING if rescued_ else Status.COMPLETED)
            assert (after.retries, after.crashes) == ((1, 1) if rescued_ else (0, 0))
            assert hold in (Hold.KEPT, Hold.LOST, Hold.UNSEEN)
            seen["rescued" if rescued_ else "settled"] += 1
    assert sum(seen.values()) == 500


async def test_a_run_does_not_end_while_a_rescue_decides(real_store: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rescue has locked the job. So the worker's settlement waits for the rescue, and comes too late."""
    if real_store.kind == "sqlite":
        pytest.skip("it has one write lock for all")
    await real_store.insert(real_job("mail"))
    [job] = (await real_store.claim("A", lease=0.0)).jobs
    decides, goes_on, apply = asyncio.Event(), asyncio.Event(), moves.apply

    async def slow(*arguments: Any) -> Any:
        decides.set()
        await goes_on.wait()
        return await apply(*arguments)

    monkeypatch.setattr(moves, "apply", slow)
    rescue = asyncio.create_task(real_store.store.move_due(Rescue(by="m", backoff=[1.0])))
    await decides.wait()
    settle = asyncio.create_task(real_store.store.settle([settlement(job, Failed("no"), ran=0.0)]))
    await asyncio.wait([settle], timeout=0.5)  # without the lock the settlement would end at once
    goes_on.set()
    assert [one.id for one in await rescue] == [job.id]
    assert [verdict.answer for verdict in (await settle).verdicts] == [Answer.LOST]
    assert (await real_store.rows())[job.id].job.retries == 1


async def test_maintenance_by_many_at_once_does_everything_once(real_store: Harness) -> None:
    everyone = await stores(real_store, 8)
    past = await real_store.store.now() - timedelta(days=1)
    await real_store.insert(*[real_job("late", expires_at=past) for _ in range(150)])
    await real_store.insert(*[real_job("asked") for _ in range(150)])
    asked = (await real_store.claim("w1", "asked", limit=150)).jobs
    await real_store.store.move(ids(asked), Cancel(by="ann"))
    expired = await asyncio.gather(*(store.move_due(Expire(by="m"), 40) for store in everyone for _ in range(2)))
    timed_out = await asyncio.gather(
        *(store.move_due(CancelTimeout(by="m", grace=0.0), 40) for store in everyone for _ in range(2))
    )
    # A pass skips rows that another pass has locked. So each job moves at most once, and a last pass finds the rest.
    expired.append(await real_store.store.move_due(Expire(by="m")))
    timed_out.append(await real_store.store.move_due(CancelTimeout(by="m", grace=0.0)))
    for answers in (expired, timed_out):
        done = [job_id for answer in answers for job_id in answer]
        assert len(done) == len(set(done)) == 150
    statuses = Counter(row.job.status for row in (await real_store.rows()).values())
    assert statuses == {Status.EXPIRED: 150, Status.CANCELLED: 150}


# ── Processes ──


@pytest.mark.timeout(300)
async def test_several_processes_on_one_database(real_store: Harness) -> None:
    """Each process inserts 300 jobs and completes those that it gets. None gets "database is locked", and every job is
    completed once."""
    command = [sys.executable, "-m", "tests.stores.processes", "everything", target_of(real_store)]
    running = [
        await asyncio.create_subprocess_exec(
            *command, f"w{n}", cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for n in range(4)
    ]
    said = await asyncio.gather(*(process.communicate() for process in running))
    assert [errors.decode() for _, errors in said] == [""] * 4
    assert [process.returncode for process in running] == [0] * 4
    completed = [job_id for output, _ in said for line in output.splitlines() for job_id in json.loads(line)]
    assert len(completed) == len(set(completed))
    rows = await real_store.rows()
    assert len(rows) == 4 * 300
    assert {job_id for job_id, row in rows.items() if row.job.status is Status.COMPLETED} == set(completed)
