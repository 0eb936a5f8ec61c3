"""Steps of handlers in child processes: results, retries, marks and cancels go over the pipe, or straight to the
database."""

import asyncpg
import pytest

from rowlock import Status, StepState
from tests.runtime.system.fleet import Fleet, Noted

pytestmark = pytest.mark.timeout(180)


async def with_orders(fleet: Fleet) -> None:
    if fleet.url.startswith("sqlite"):
        await fleet.fetch("CREATE TABLE orders (n INTEGER)")
    else:
        other = await asyncpg.connect(fleet.url)
        await other.execute("CREATE TABLE orders (n INTEGER)")
        await other.close()


def versions(notes: list[Noted]) -> list[int]:
    return [one.version for one in notes]


@pytest.mark.parametrize("topic", ["pipeline", "async_pipeline"])
async def test_steps_in_a_child_process(fleet: Fleet, topic: str) -> None:
    await with_orders(fleet)
    await fleet.start()
    job_id = await fleet.enqueue(topic)
    [job] = await fleet.ended(job_id)
    n, runs = (7, 4) if topic == "pipeline" else (8, 3)
    assert (job.status, job.result, job.version) == (Status.COMPLETED, ["first", n, "at last"], runs), job.last_error
    assert job.retries == runs - 3  # the step counts its own retries
    assert versions(fleet.runs_of(job_id, "first")) == [1]
    assert versions(fleet.runs_of(job_id, "booked")) == [1]
    assert versions(fleet.runs_of(job_id, "flaky")) == [1, 2, 3]
    assert await fleet.fetch("SELECT n FROM orders") == [(n,)]
    found = [(one.name, one.state, one.retries) for one in await fleet.jobs.steps(job_id)]
    assert sorted(found) == [
        ("booked", StepState.SUCCEEDED, 0),
        ("flaky", StepState.SUCCEEDED, 2),
        ("plain", StepState.SUCCEEDED, 0),
    ]
    assert (await fleet.events(job_id)).count("step_retried") == 2


async def test_a_child_that_swallows_suspend_fails_for_good(fleet: Fleet) -> None:
    await fleet.start()
    [job] = await fleet.ended(await fleet.enqueue("swallow"))
    assert (job.status, job.version) == (Status.FAILED, 1)
    assert "the handler has caught Suspend" in (job.last_error or "")


async def test_a_child_is_not_killed_in_a_step_that_is_not_cancelable(fleet: Fleet) -> None:
    """Maintenance does not end the job during the step either. When the step has ended, the child is killed."""
    await fleet.start()
    job_id = await fleet.enqueue("careful", {"until": "go"})
    await fleet.until(lambda: fleet.runs_of(job_id, "finalize"), what="the step to begin")
    await fleet.jobs.cancel(job_id)

    async def seen() -> bool:
        return [one.state for one in await fleet.jobs.steps(job_id)] == [StepState.RUNNING]

    await fleet.until(seen, what="the step to be seen")
    other = await fleet.enqueue("short", {"seconds": 1.0})  # as long as five graces
    await fleet.ended(other)
    assert (await fleet.jobs.get(job_id)).status is Status.CANCEL_REQUESTED
    (fleet.folder / "go").touch()
    [job] = await fleet.ended(job_id)
    assert job.status is Status.CANCELLED
    assert len(fleet.runs_of(job_id, "finalized")) == 1
    [stored] = await fleet.jobs.steps(job_id)
    assert (stored.state, stored.result) == (StepState.SUCCEEDED, "done")


async def test_a_child_that_dies_keeps_what_its_steps_have_done(fleet: Fleet) -> None:
    await fleet.start()
    job_id = await fleet.enqueue("mortal")
    [job] = await fleet.ended(job_id)
    assert (job.status, job.result, job.version) == (Status.COMPLETED, "alive", 2), job.last_error
    assert versions(fleet.runs_of(job_id, "first")) == [1]
