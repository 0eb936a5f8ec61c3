"""The example workers, as processes, against a real server: they work, die, freeze, and stop when they are told to.

No other process is there: the server takes back what they leave behind."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import CRASH_ERROR, CRASH_UNSEEN
from rowlock.http import upkeep
from rowlock.runtime.settings import WorkerSettings
from rowlock.stores import reading
from tests.http.conftest import world_of
from tests.http.harness import Server, World
from tests.waiting import status_of, until

FOLDER = Path(__file__).parent.parent.parent / "examples" / "worker"

# The example in bash runs this. It does what the handler of the Python example does.
HANDLER = """
import json, sys, time
job = json.load(sys.stdin)
time.sleep(job["payload"].get("seconds", 0))
print(f"hello {job['payload']['name']}")
"""


class Example(Struct, frozen=True):
    """`lease`: in seconds. The example in bash renews it after a third of it, rounded down to whole seconds."""

    name: str
    command: list[str]
    lease: int


# The example in bash runs this if it has a step. It does what the handler of the Python example does.
STEPPING = r"""
job=$(cat)
[[ $job =~ \"name\":\"([a-z]+)\".*\"seconds\":([0-9]+) ]]
compose() { printf 'hello %s\n' "$1"; }
greeting=$(step compose compose "${BASH_REMATCH[1]}") || exit
sleep "${BASH_REMATCH[2]}"
echo "$greeting"
"""

PLAIN = Example("plain", [sys.executable, str(FOLDER / "worker.py"), "greet"], 3)
STEPS = Example("bash", ["bash", str(FOLDER / "worker.sh"), "greet", "bash", "-c", STEPPING], 3)
BASH = Example("bash", ["bash", str(FOLDER / "worker.sh"), "greet", sys.executable, "-c", HANDLER], 3)
needs_curl = pytest.mark.skipif(not (shutil.which("bash") and shutil.which("curl")), reason="needs bash and curl")


class Stage:
    def __init__(self, example: Example, world: World, server: Server) -> None:
        self.example = example
        self.world = world
        self.jobs = world.jobs
        self.server = server

    async def enqueue(self, **payload: Any) -> str:
        return (await self.jobs.enqueue("greet", payload)).id

    async def ended(self, job_id: str) -> Job:
        return await self.jobs.wait(job_id, timeout=60)

    async def running(self, job_id: str) -> Job:
        return await status_of(self.jobs, job_id, Status.PROCESSING)

    async def is_renewed(self, job_id: str) -> bool:
        job = await self.jobs.get(job_id)
        if job.locked_until is None or job.claimed_at is None:
            return False
        return (job.locked_until - job.claimed_at).total_seconds() > self.example.lease + 0.001

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        token = self.world.who["worker token"].headers["authorization"].removeprefix("Bearer ")
        environ = {"ROWLOCK_API": self.server.url, "ROWLOCK_TOKEN": token, "ROWLOCK_LEASE": str(self.example.lease)}
        process = subprocess.Popen(self.example.command, env={**os.environ, **environ}, start_new_session=True)
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


@pytest.fixture
async def stage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stage]:
    example, kind = request.param
    monkeypatch.setattr(upkeep, "SETTINGS", WorkerSettings(maintenance=0.1, lease=1.0))
    async with world_of(kind, request, tmp_path) as world:
        with Server.running(world.place.url) as server:
            yield Stage(example, world, server)


def on(example: Example, kind: str, *marks: pytest.MarkDecorator) -> Any:
    return pytest.param((example, kind), id=f"{example.name}-{kind}", marks=marks)


@pytest.mark.parametrize(
    "stage",
    [
        on(PLAIN, "sqlite"),
        on(PLAIN, "postgres"),
        on(BASH, "sqlite", needs_curl),
        on(BASH, "postgres", needs_curl, pytest.mark.proof),
    ],
    indirect=True,
)
async def test_it_does_all_that_a_worker_does(stage: Stage) -> None:
    jobs = stage.jobs
    with stage.worker() as process:
        # The jobs: longer than the lease; with awkward JSON; one that fails; one that is cancelled.
        long = await stage.enqueue(name='a "b"\\\n\tç', seconds=stage.example.lease)
        await until(lambda: stage.is_renewed(long))
        broken = (await jobs.enqueue("greet", max_retries=0)).id
        [done, failed] = [await stage.ended(job_id) for job_id in (long, broken)]
        assert (done.status, done.result) == ("completed", 'hello a "b"\\\n\tç')
        assert failed.status == "failed"
        assert "KeyError: 'name'" in str(failed.last_error)
        endless = await stage.enqueue(name="ada", seconds=600)
        await stage.running(endless)
        await jobs.cancel(endless)
        assert (await stage.ended(endless)).status == "cancelled"
        [told] = await jobs.workers.list()
        assert (told.topics, told.name.partition("-")[0]) == (("greet",), stage.example.name)

        process.send_signal(signal.SIGTERM)
        await stage.enqueue(name="ada")  # the worker may still wait for one more job

        async def left() -> bool:
            return not await jobs.workers.list()

        await until(left)
        assert await asyncio.to_thread(process.wait, 60) == 0


@pytest.mark.parametrize(
    "stage",
    [
        on(PLAIN, "sqlite"),
        on(PLAIN, "postgres"),
        on(BASH, "sqlite", needs_curl, pytest.mark.proof),
        on(BASH, "postgres", needs_curl, pytest.mark.proof),
    ],
    indirect=True,
)
async def test_one_that_is_killed_or_frozen_loses_its_job_and_changes_nothing_any_more(stage: Stage) -> None:
    jobs = stage.jobs
    with stage.worker() as frozen, stage.worker() as killed:
        runs = [await stage.running(await stage.enqueue(name="ada", seconds=600)) for _ in range(2)]
        for run in runs:  # otherwise its claim's answer may be on its way, and the job is given back for nothing
            await until(partial(stage.is_renewed, run.id))
        os.killpg(frozen.pid, signal.SIGSTOP)
        os.killpg(killed.pid, signal.SIGKILL)
        for run in runs:
            await status_of(jobs, run.id, Status.PENDING)
            await jobs.update(run.id, payload={"name": "ada"})
        with stage.worker():
            ended = [await stage.ended(run.id) for run in runs]
        for run, job in zip(runs, ended, strict=True):
            assert (job.status, job.version, job.retries) == ("completed", 2, 1)
            assert job.last_error == f"{CRASH_ERROR}: worker {run.locked_by}{CRASH_UNSEEN}"
        # The frozen worker wakes up, and is told that it comes too late. Then it goes on.
        os.killpg(frozen.pid, signal.SIGCONT)
        after = await stage.ended(await stage.enqueue(name="bob"))
        assert after.locked_by in {run.locked_by for run in runs}
        assert [await jobs.get(job.id) for job in ended] == ended


@pytest.mark.parametrize(
    "stage",
    [on(PLAIN, "sqlite"), on(STEPS, "sqlite", needs_curl), on(PLAIN, "postgres", pytest.mark.proof)],
    indirect=True,
)
async def test_a_step_that_a_killed_worker_has_stored_is_not_run_again(stage: Stage) -> None:
    jobs = stage.jobs
    job_id = await stage.enqueue(name="ada", seconds=4)

    async def is_stored() -> bool:
        return (await jobs.get(job_id)).step is not None

    with stage.worker():
        await until(is_stored)
    [before] = await reading.steps(await stage.world.store(), job_id)
    assert (before.name, before.state, before.result, before.version) == ("compose", "succeeded", "hello ada", 1)
    with stage.worker():
        done = await stage.ended(job_id)
    assert (done.status, done.result, done.version) == ("completed", "hello ada", 2)
    assert await reading.steps(await stage.world.store(), job_id) == [before]


@pytest.mark.parametrize("stage", [on(PLAIN, "sqlite"), on(PLAIN, "postgres")], indirect=True)
async def test_it_waits_for_a_signal_and_undoes_what_a_cancel_makes_worthless(stage: Stage) -> None:
    jobs = stage.jobs
    with stage.worker():
        answered = await stage.enqueue(name="ada", signal="reply")
        await status_of(jobs, answered, Status.WAITING)
        await jobs.signal(answered, "reply", "good day")
        job = await stage.ended(answered)
        assert (job.status, job.result) == ("completed", "hello ada, good day")
        cancelled = await stage.enqueue(name="ada", signal="reply")
        await status_of(jobs, cancelled, Status.WAITING)
        await jobs.cancel(cancelled)
        assert (await stage.ended(cancelled)).status == "cancelled"
        done = [step.name for step in await jobs.steps(cancelled) if step.state == "succeeded"]
        assert done == ["compose", "take back"]
