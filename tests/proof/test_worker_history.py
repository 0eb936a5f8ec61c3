"""Real workers before the witness: jobs of all kinds, operators who interfere, killed processes. No invariant
breaks."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rowlock.errors import InvalidState, KeyTaken
from rowlock.jobs import Jobs
from tests.databases import Databases, migrated
from tests.faults import load
from tests.proof import history_app
from tests.proof.checker import check, summary
from tests.proof.history import History
from tests.proof.history_app import BUSINESS, SIGNALLED, app, new_ids, wrongly_answered
from tests.proof.lives import World
from tests.proof.recorder import Recorder
from tests.proof.witness import Tables, TablesAt, Witness
from tests.runtime.system.fleet import Fleet, WorkerProcess, opened
from tests.waiting import until

ROOT = Path(__file__).parents[2]
LEASE, POLL, GRACE = 1.5, 0.2, 2.0
FULL = os.environ.get("ROWLOCK_PROOF") == "full"
JOBS, KILLS = (3000, 6) if FULL else (100, 0)
TIMEOUT = 900 if FULL else 90
KINDS: dict[str, dict[str, Any]] = {**load.KINDS, "late": {}}


async def prepare(url: str) -> None:
    """Migrate the database, install the witness, and create the application's tables."""
    await migrated(url)
    await Witness(TablesAt(url)).install()
    for table in BUSINESS:
        await TablesAt(url).execute(table)


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> AsyncIterator[str]:
    async with databases.at(request.param, tmp_path, prepare) as url:
        yield url


@pytest.fixture
def record(tmp_path: Path) -> Recorder:
    folder = tmp_path / "record"
    folder.mkdir()
    return Recorder(folder)


async def produce(jobs: Jobs, record: Recorder, count: int, kinds: dict[str, dict[str, Any]], seed: int) -> list[str]:
    """Enqueue jobs of all kinds, some with a key that other jobs have, too. Return their ids."""
    chance = Random(seed)
    made = []
    for n in range(count):
        topic = list(kinds)[n % len(kinds)]
        key = chance.choice([None, None, "a", "b"])
        job_id = new_ids.one()
        options: dict[str, Any] = {"id": job_id, "key": key, "delay": 0.05 if n % 7 == 0 else 0.0}
        with record.operation("enqueue", [job_id], topic=topic, key=key) as told:
            told(enqueued := await jobs.enqueue(topic, kinds[topic], **options))
        if topic in SIGNALLED and not enqueued.existing:
            await load.signal(jobs, record, job_id)
        made.append(job_id)
    return made


async def interfere(jobs: Jobs, record: Recorder, ids: list[str], seed: int) -> None:
    """Act as an operator who cancels, requeues, deletes, updates and pauses, whether that is allowed or not."""
    chance = Random(seed)
    for _ in range(40):
        verb = chance.choice(["cancel", "requeue", "requeue", "delete", "update", "pause"])
        one = chance.choice(ids)
        with suppress(InvalidState, KeyTaken, LookupError), record.operation(verb, [one]):
            if verb == "pause":
                await jobs.topics.pause("nap", by="ann")
                await jobs.topics.resume("nap", by="ann")
            elif verb == "update":
                await jobs.update(one, priority=chance.randrange(200), by="ann")
            else:
                await getattr(jobs, verb)(one, by="ann")
        await asyncio.sleep(0)


async def drained(tables: Tables) -> None:
    """Wait until all jobs have ended."""
    live = "SELECT count(*) FROM _jobs WHERE status NOT IN ('failed', 'expired', 'cancelled')"

    async def idle() -> bool:
        [(count,)] = await tables.fetch(live)
        return bool(count == 0)

    await until(idle, what="the queue to be empty", patience=TIMEOUT)


async def collected(url: str, record: Recorder) -> History:
    tables = TablesAt(url)
    known = {"lease": LEASE, "poll": POLL, "grace": GRACE, "cancel_grace": 30.0}
    history = await Witness(tables).collect(record.load(History(tables.kind, known, at_rest=True)))
    there = {(str(job_id), version) for job_id, version in await tables.fetch("SELECT job_id, version FROM business")}
    for operation in history.operations:
        if operation.verb == "complete" and operation.detail:
            operation.detail["row_visible"] = (operation.ids[0], operation.detail["version"]) in there
    return history


def judged(suite: str, history: History, began: float) -> None:
    found = [*check(history), *wrongly_answered(history)]
    print(summary(f"{suite} on {history.store}", [history], found, time.monotonic() - began))
    assert found == []


@pytest.mark.timeout(TIMEOUT)
async def test_three_workers_and_an_operator(url: str, record: Recorder) -> None:
    began = time.monotonic()
    many = [app(record, url) for _ in range(3)]
    client = many[0]
    try:
        for jobs in many:
            await jobs.start(concurrency=5, lease=LEASE, poll=POLL, grace=GRACE)
        ids = await produce(client, record, 2 * JOBS, KINDS, seed=1)
        [watched] = await produce(client, record, 1, {"watchful": {}}, seed=2)
        await interfere(client, record, ids, seed=3)
        with record.operation("cancel", [watched]):
            await client.cancel(watched, by="ann")
        await drained(TablesAt(url))
    finally:
        for jobs in many:
            await jobs.close()
    history = await collected(url, record)
    assert len({one.version for one in history.executions}) > 1
    judged("three workers", history, began)


@pytest.mark.timeout(TIMEOUT)
async def test_an_id_that_is_used_again_after_a_delete(url: str, record: Recorder) -> None:
    """Two jobs have one id, one after the other. Each has its own enqueue, its own runs, and its own completion."""
    began = time.monotonic()
    first, second, third = (app(record, url) for _ in range(3))
    job_id = new_ids.one()

    async def enqueue(topic: str, **payload: Any) -> None:
        with record.operation("enqueue", [job_id], topic=topic, key=None) as told:
            told(await first.enqueue(topic, payload, id=job_id))

    async with first, second, third:
        await first.start(concurrency=1, poll=POLL)
        await enqueue("quick")
        await first.wait(job_id, timeout=TIMEOUT)
        await first.stop()
        with record.operation("delete", [job_id]):
            await first.delete(job_id, by="ann")
        await enqueue("nap", seconds=0.5)
        await second.start(concurrency=1, poll=POLL, grace=0.0)

        await until(lambda: len(record.load(History("")).executions) == 2, what="the second job to begin")
        await second.stop()  # before the job has ended: another worker runs it next
        await third.start(concurrency=1, poll=POLL)
        await first.wait(job_id, timeout=TIMEOUT)
    history = await collected(url, record)
    assert len(history.executions) == 3
    assert {one.move for life in World(history).lives for one in life.steps} >= {"complete", "delete", "release"}
    judged("an id that is used again", history, began)


@pytest.mark.timeout(TIMEOUT)
async def test_processes_that_are_killed(url: str, record: Recorder, tmp_path: Path) -> None:
    began = time.monotonic()
    shutil.copy(history_app.__file__, tmp_path / "history_app.py")
    async with opened(url, tmp_path) as fleet, app(record, url) as client:
        options = ("--lease", f"{LEASE}s", "--poll", f"{POLL}s", "--grace", f"{GRACE}s", "-c", "5")
        env = {"PYTHONPATH": str(ROOT), "ROWLOCK_PROOF_RECORD": str(tmp_path / "record")}
        worker = await fleet.start(*options, processes=2, app="history_app:jobs", **env)
        kinds = {**KINDS, "nap": {"seconds": 0.4}, "toiling": {}}
        if FULL:
            await produce(client, record, 3, {"deadly": {}}, seed=5)
        else:
            del kinds["late"]  # a suspect runs alone in a child process, and the worker waits for a late one
        producing = asyncio.create_task(produce(client, record, JOBS, kinds, seed=4))
        kill(record, {await somebody_at_work(fleet, worker)})
        for _ in range(KILLS):  # kill the supervisor, too: it would take the jobs back at once
            if producing.done():
                break
            await somebody_at_work(fleet, worker)
            children = worker.children()
            kill(record, {worker.pid})
            kill(record, children)
            worker = await fleet.start(*options, processes=2, app="history_app:jobs", **env)
        await producing
        await drained(TablesAt(url))
        await worker.stopped()
    history = await collected(url, record)
    judged("killed processes", history, began)


def kill(record: Recorder, pids: set[int]) -> None:
    for pid in pids:
        record.fault("kill", pid)
        with suppress(ProcessLookupError):  # a deadly job has killed it already
            os.kill(pid, signal.SIGKILL)


async def somebody_at_work(fleet: Fleet, worker: WorkerProcess) -> int:
    """Return the pid of a process that holds jobs."""
    found = 0

    async def holds() -> bool:
        nonlocal found
        holders = await fleet.fetch("SELECT DISTINCT locked_by FROM _jobs WHERE locked_until IS NOT NULL")
        pids = {int(name.split("-")[-2]) for (name,) in holders}
        found = next(iter(pids & worker.children()), 0)
        return bool(found)

    await until(holds, what="somebody to work")
    return found
