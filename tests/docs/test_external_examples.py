"""examples/external, run as their first lines say: workers in other languages, and a service that answers."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from rowlock import Jobs
from rowlock.core.job import Job, Status
from rowlock.http import upkeep
from rowlock.runtime.settings import WorkerSettings
from tests.docs.test_examples import EXAMPLES, run, worker
from tests.http.harness import Server
from tests.waiting import status_of, until

FOLDER = EXAMPLES / "external"
needs_node = pytest.mark.skipif(not shutil.which("node"), reason="needs Node")
needs_curl = pytest.mark.skipif(not (shutil.which("bash") and shutil.which("curl")), reason="needs bash and curl")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(upkeep, "SETTINGS", WorkerSettings(maintenance=0.1, lease=1.0))
    for file in FOLDER.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    return tmp_path


def database(folder: Path) -> str:
    return f"sqlite:///{folder / 'jobs.db'}"


@contextmanager
def started(folder: Path, *command: str, environ: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run a program in its own process group, and kill the group at the end."""
    given = {**os.environ, "PACE": "0.05", "ROWLOCK_LEASE": "3", **environ}
    process = subprocess.Popen(
        command, cwd=folder, env=given, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)


async def working(jobs: Jobs, job_id: str) -> Job:
    """Return the job as soon as the external worker or service has reported some progress."""

    async def look() -> Job | None:
        job = await jobs.get(job_id)
        return job if job.message is not None and job.status in (Status.PROCESSING, Status.WAITING) else None

    return await until(look)


def test_every_example_is_run_by_a_test() -> None:
    names = {file.name for file in FOLDER.iterdir() if file.is_file()}
    assert names == {"app.py", "worker.sh", "worker.mjs", "webhook.py", "service.mjs"}


@pytest.mark.parametrize(
    "command",
    [pytest.param(["bash", "worker.sh"], marks=needs_curl), pytest.param(["node", "worker.mjs"], marks=needs_node)],
    ids=["bash", "node"],
)
async def test_a_worker_elsewhere_does_the_work(folder: Path, command: list[str]) -> None:
    short = run(folder, "app.py").strip()
    create = ("-m", "rowlock", "token", "create", "renderers", "--scope", "worker", "--topic", "external_worker_task")
    token = next(word for word in run(folder, *create, "--url", database(folder)).split() if word.startswith("rlk_"))
    with Server.running(database(folder)) as server:
        async with Jobs(database(folder)) as jobs:
            environ = {"ROWLOCK_API": server.url, "ROWLOCK_TOKEN": token}
            with started(folder, *command, environ=environ) as process:
                done = await jobs.wait(short, timeout=60)
                assert (done.status, done.result) == ("completed", {"target": "holiday", "frames": 8})
                assert done.message == "frame 8 of 8"
                # The worker holds a job for longer than its lease, and acknowledges the cancel.
                long = (await jobs.enqueue("external_worker_task", {"target": "war and peace", "frames": 100_000})).id
                await working(jobs, long)
                await jobs.cancel(long, reason="too long")
                cancelled = await jobs.wait(long, timeout=60)
                assert cancelled.status == "cancelled"
                assert (await jobs.events(long))[-1].event == "cancelled"  # not by a timeout
                # Text that is awkward in JSON comes back unchanged.
                awkward = {"target": 'a "b" ç\\', "frames": 1}
                again = await jobs.enqueue("external_worker_task", awkward)
                assert (await jobs.wait(again.id, timeout=60)).result == awkward
                process.send_signal(signal.SIGTERM)
                await jobs.enqueue("external_worker_task", {"target": "last", "frames": 1})  # ends a long poll
                assert await asyncio.to_thread(process.wait, 60) == 0


def test_a_worker_of_the_library_does_not_take_it(folder: Path) -> None:
    command = [sys.executable, "-m", "rowlock", "worker", "app:jobs"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert ended.returncode != 0
    assert "external" in ended.stderr


@needs_node
async def test_a_service_answers_the_address(folder: Path) -> None:
    run(folder, "webhook.py")  # makes the database
    with (
        Server.running(database(folder)) as server,
        started(folder, "node", "service.mjs", environ={"PORT": "0"}) as service,
    ):
        assert service.stdout is not None
        port = service.stdout.readline().split()[-1]
        environ = {**os.environ, "ROWLOCK_API": server.url, "SERVICE": f"http://127.0.0.1:{port}"}
        async with Jobs(database(folder)) as jobs:
            [short] = (await jobs.list()).items
            with worker(folder, "webhook:jobs", env=environ):
                assert (await jobs.wait(short.id, timeout=60)).result == "holiday has 8 frames"
                assert await asyncio.to_thread(service.stdout.readline) == "holiday: answered\n"
                # No worker is needed while the service works.
                long = await jobs.enqueue("film.render", {"target": "saga", "frames": 60})
                await status_of(jobs, long.id, Status.WAITING)
            assert (await working(jobs, long.id)).locked_by is None
            with worker(folder, "webhook:jobs", env=environ):
                assert (await jobs.wait(long.id, timeout=60)).result == "saga has 60 frames"
                assert await asyncio.to_thread(service.stdout.readline) == "saga: answered\n"
                # A cancel reaches the service with its next report.
                endless = await jobs.enqueue("film.render", {"target": "soap", "frames": 100_000})
                await working(jobs, endless.id)
                await status_of(jobs, endless.id, Status.WAITING)
                await jobs.cancel(endless.id)
                assert (await jobs.wait(endless.id, timeout=60)).status == "cancelled"
                assert "no longer waits for the answer" in await asyncio.to_thread(service.stdout.readline)
