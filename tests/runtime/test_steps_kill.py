"""kill -9 of the worker in each of five steps, before and after each COMMIT: no finished step runs again, and the rows
that steps write in their transactions are there exactly once."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from rowlock import Jobs, Status, StepState
from rowlock.core.moves import Rescue
from tests.runtime.test_context import Orders
from tests.runtime.test_context import orders as orders
from tests.waiting import until

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL"),
]

ROOT = Path(__file__).parents[2]
STEPS = ("first", "second", "third", "fourth", "fifth")
SAGA = ("reserve", "charge", "ship", "undo charge", "undo reserve")
MOMENTS = ("in", "before", "after")
KILLED = -9


class Stage:
    def __init__(self, jobs: Jobs, url: str, folder: Path, job_id: str) -> None:
        self.jobs = jobs
        self.url = url
        self.folder = folder
        self.job_id = job_id

    async def work(self, trap: str = "") -> int:
        """Run a worker, until it has killed itself or the job has ended. Return its exit code."""
        given = {"ROWLOCK_URL": self.url, "STEP_KILLS": str(self.folder)}
        given |= {"STEP_KILLS_TRAP": trap, "STEP_KILLS_JOB": self.job_id}
        process = subprocess.Popen(  # noqa: ASYNC220 - a moment
            [sys.executable, "-c", "from tests.runtime.apps import step_kills; step_kills.main()"],
            cwd=ROOT,
            env={**os.environ, **given},
            stdin=subprocess.DEVNULL,
        )
        try:
            await until(lambda: process.poll() is not None, "the worker to end", every=0.05, patience=150)
        finally:
            process.kill()
            process.wait()
        return process.returncode

    async def killed(self, trap: str) -> None:
        """Run a worker until it dies at this trap. Then rescue its job, so that another worker may claim it."""
        assert await self.work(trap) == KILLED
        assert self.lines("sprung")[-1] == trap
        worker = (await self.jobs.get(self.job_id)).locked_by
        assert worker is not None
        store = await self.jobs._store()
        order = Rescue(by="test", backoff=[0.0], workers=[worker])

        async def rescued() -> bool:
            """Return False while the dead worker's transaction still locks the row: the server has not noticed."""
            return [moved.status for moved in await store.move_due(order)] == [Status.PENDING]

        await until(rescued)

    @property
    def runs(self) -> Counter[str]:
        """Return how often each step ran."""
        return Counter(self.lines("runs"))

    def lines(self, file: str) -> list[str]:
        path = self.folder / file
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
async def stage(jobs: Jobs, orders: Orders, url: str, tmp_path: Path) -> Stage:
    made = await jobs.enqueue("five", max_retries=100)
    return Stage(jobs, url, tmp_path, made.id)


@pytest.fixture
async def saga(jobs: Jobs, orders: Orders, url: str, tmp_path: Path) -> Stage:
    made = await jobs.enqueue("saga", max_retries=100)
    return Stage(jobs, url, tmp_path, made.id)


def again(traps: Sequence[str]) -> Counter[str]:
    """Return how often each step runs again, because it had not ended when its worker was killed."""
    return Counter(trap.rpartition(" ")[0] for trap in traps if not trap.endswith("after"))


async def check(stage: Stage, orders: Orders, *traps: str) -> None:
    job = await stage.jobs.get(stage.job_id)
    assert (job.status, job.result) == (Status.COMPLETED, [0, 1, 2, 3, 4]), job.last_error
    assert job.version == len(traps) + 1
    assert stage.runs == Counter(STEPS) + again(traps)
    assert await orders.all() == [1, 3]
    assert [(one.name, one.state) for one in await stage.jobs.steps(job.id)] == [
        (name, StepState.SUCCEEDED) for name in STEPS
    ]
    assert (await stage.jobs.verify()).findings == []


@pytest.mark.sampled(10)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", STEPS)
async def test_a_worker_is_killed_in_a_step(stage: Stage, orders: Orders, name: str, moment: str) -> None:
    """The job is a suspect after the crash, so its next run has a child process of its own."""
    trap = f"{name} {moment}"
    await stage.killed(trap)
    assert await stage.work() == 0
    await check(stage, orders, trap)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_workers_are_killed_in_each_step_in_turn(stage: Stage, orders: Orders, moment: str) -> None:
    """All steps belong to one job. From the second run on, each worker dies together with the child process that runs
    the job."""
    traps = [f"{name} {moment}" for name in STEPS]
    for trap in traps:
        await stage.killed(trap)
    assert await stage.work() == 0
    await check(stage, orders, *traps)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", SAGA[2:])
async def test_what_was_done_is_undone_once(saga: Stage, orders: Orders, name: str, moment: str) -> None:
    """The worker is killed in the step that fails for good, or in one of the steps that undo the earlier steps."""
    trap = f"{name} {moment}"
    await saga.killed(trap)
    assert await saga.work() == 0
    job = await saga.jobs.get(saga.job_id)
    assert (job.status, job.version) == (Status.FAILED, 2)
    assert "the step ship has failed for good: ValueError: no truck" in (job.last_error or "")
    assert saga.runs == Counter(SAGA) + again([trap])
    assert await orders.all() == [3, 4]
    states = {one.name: one.state for one in await saga.jobs.steps(job.id)}
    assert states == {one: StepState.FAILED if one == "ship" else StepState.SUCCEEDED for one in SAGA}
