"""kill -9 in the middle of insert, claim or settle: every job stays legal, and no acknowledged job is lost."""

import asyncio
import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rowlock.core.job import Status
from rowlock.core.lifecycle import Answer, Completed
from rowlock.core.moves import Rescue
from tests.stores.harness import Harness, SqliteHarness, claim_by, settlement
from tests.stores.processes import real_job, target_of

ROOT = Path(__file__).parent.parent.parent
ROUNDS = 4


def run_and_kill(verb: str, target: str, worker: str, lines: int) -> list[list[str]]:
    """Run a process, kill it after `lines` lines, and return all that it had acknowledged by then."""
    command = [sys.executable, "-m", "tests.stores.processes", verb, target, worker]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        said = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        said += process.stdout.readlines()
        assert process.wait() == -signal.SIGKILL
    return [json.loads(line) for line in said if line.endswith("\n")]


BACKENDS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"


async def killed(harness: Harness, verb: str, worker: str, lines: int) -> list[list[str]]:
    """Do the same as `run_and_kill`, and wait until the server has finished the dead client's last statement."""
    if isinstance(harness, SqliteHarness):
        return await asyncio.to_thread(run_and_kill, verb, target_of(harness), worker, lines)
    before = set(await harness.fetch(BACKENDS))
    told = await asyncio.to_thread(run_and_kill, verb, target_of(harness), worker, lines)
    while not set(await harness.fetch(BACKENDS)) <= before:
        pass  # each query is a round trip, so no sleep is needed
    return told


async def work_off(store: Harness, dead_workers: list[str]) -> None:
    """Check that living workers can finish all jobs of the dead workers."""
    await store.store.move_due(Rescue(by="m1", backoff=[0.0], workers=dead_workers), 10_000)
    while jobs := (await store.claim("survivor", limit=500)).jobs:
        settled = await store.store.settle([settlement(job, Completed("survivor"), ran=0.0) for job in jobs])
        assert {verdict.answer for verdict in settled.verdicts} == {Answer.APPLIED}
    rows = await store.rows()
    assert {row.job.status for row in rows.values()} <= {Status.COMPLETED}
    if isinstance(store, SqliteHarness):
        assert await store.fetch("PRAGMA integrity_check") == [("ok",)]


@pytest.mark.timeout(300)
async def test_killed_while_inserting(real_store: Harness) -> None:
    acknowledged: set[str] = set()
    for round_ in range(ROUNDS):
        lines = random.randrange(1, 40)
        told = await killed(real_store, "insert", f"w{round_}", lines)
        acknowledged |= {job_id for line in told for job_id in line}
        rows = await real_store.rows()
        assert acknowledged <= set(rows)
        assert {row.job.status for row in rows.values()} == {Status.PENDING}
        assert all(row.ready for row in rows.values())
    await work_off(real_store, [])


@pytest.mark.timeout(300)
async def test_killed_while_claiming(real_store: Harness) -> None:
    workers = [f"w{n}" for n in range(ROUNDS)]
    for worker in workers:
        await real_store.insert(*[real_job() for _ in range(2000)])
        told = await killed(real_store, "claim", worker, random.randrange(1, 40))
        claimed = [job_id for line in told for job_id in line]
        assert len(claimed) == len(set(claimed))
        rows = await real_store.rows()
        assert {rows[job_id].job.locked_by for job_id in claimed} == {worker}
        held = [row for row in rows.values() if row.job.locked_by == worker]
        assert len(held) - len(claimed) in (0, 1, 5, 20)  # not 0: it died before it told
        assert {row.job.status for row in held} == {Status.PROCESSING}
        assert {row.job.version for row in held} == {1}
    await work_off(real_store, workers)


@pytest.mark.timeout(300)
async def test_killed_while_settling(real_store: Harness) -> None:
    workers = [f"w{n}" for n in range(ROUNDS)]
    for worker in workers:
        await real_store.insert(*[real_job() for _ in range(2000)])
        told = await killed(real_store, "settle", worker, random.randrange(1, 60))
        completed = [job_id for line in told for job_id in line]
        assert len(completed) == len(set(completed))
        rows = await real_store.rows()
        mine = [row.job for row in rows.values() if row.job.locked_by == worker]
        assert {rows[job_id].job.status for job_id in completed} == {Status.COMPLETED}
        assert sum(job.status is Status.COMPLETED for job in mine) - len(completed) in (0, 7)  # 7: not told yet
        # One transaction settles a batch and claims the next. So the worker always holds exactly one batch.
        assert sum(job.status is Status.PROCESSING for job in mine) == 7
    await work_off(real_store, workers)
    finished = [row.job for row in (await real_store.rows()).values()]
    assert len(finished) == 2000 * ROUNDS
    assert {job.result for job in finished} == {"survivor", *workers}


@pytest.mark.timeout(300)
async def test_the_rows_outlive_a_claimers_death_only_once(real_store: Harness) -> None:
    """The dead worker's jobs are charged one retry, and no job goes to two survivors."""
    await real_store.insert(*[real_job() for _ in range(300)])
    await killed(real_store, "claim", "dead", 3)
    held = {job_id for job_id, row in (await real_store.rows()).items() if row.job.locked_by == "dead"}
    others = [await real_store.another() for _ in range(4)]
    rescued = await asyncio.gather(
        *(store.move_due(Rescue(by=f"m{i}", backoff=[0.0], workers=["dead"])) for i, store in enumerate(others))
    )
    taken = [one.id for answer in rescued for one in answer]
    assert sorted(taken) == sorted(held)
    rows = await real_store.rows()
    assert {rows[job_id].job.retries for job_id in held} == {1}
    again = await asyncio.gather(*(store.claim(claim_by(f"w{i}", limit=1000)) for i, store in enumerate(others)))
    assert len({job.id for answer in again for job in answer.jobs}) == sum(len(answer.jobs) for answer in again)
