"""kill -9: of everything, of a worker process, of the supervisor; and jobs that kill."""

import os
import signal

import pytest

from rowlock import Status
from tests.runtime.system.fleet import SHORT, Fleet, WorkerProcess

pytestmark = pytest.mark.timeout(180)

LONG_LEASE = ("--lease", "10m", "--poll", "200ms", "--grace", "1s")  # an earlier rescue is not due to the lease


async def test_the_jobs_of_a_machine_that_died_run_elsewhere(postgres_fleet: Fleet) -> None:
    """The supervisor and its children die at once. No process is left that could report the deaths, so the jobs wait
    until their leases run out."""
    fleet = postgres_fleet
    worker = await fleet.start(*SHORT, "--concurrency", "2", processes=2)
    ids = await fleet.enqueue_many(4, "nap", {"seconds": 60.0})
    await fleet.begun(*ids)
    survivor = await fleet.start()
    mine = await fleet.enqueue("nap", {"seconds": 9.0})  # the other processes have no free slot for it
    await fleet.begun(mine)
    for pid in [worker.pid, *worker.children()]:
        os.kill(pid, signal.SIGKILL)
    await fleet.begun(*ids, version=2)
    for one in ids:
        job = await fleet.jobs.get(one)
        assert (job.version, job.retries, job.crashes) == (2, 1, 1)
        assert "Task timed out (worker crashed?)" in (job.last_error or "")
    [unharmed] = await fleet.ended(mine)
    assert (unharmed.status, unharmed.version) == (Status.COMPLETED, 1), survivor.output


async def test_after_a_second_crash_a_job_waits_as_its_task_says(fleet: Fleet) -> None:
    """The job does not wait for minutes, which is the default. The worker that rescues it need not have the task."""
    job_id = await fleet.enqueue("stubborn")
    for version in (1, 2):
        await fleet.start(*SHORT)
        await fleet.begun(job_id, version=version)
        fleet.kill_all()
    await fleet.start(*SHORT, "--topics", "nap")
    await fleet.until(lambda: second_rescue(fleet, job_id), what="a worker without the task to rescue it")
    await fleet.start(*SHORT)
    [job] = await fleet.ended(job_id)
    assert (job.status, job.version, job.retries, job.crashes) == (Status.COMPLETED, 3, 2, 2)
    assert "the handler may not have begun" in (job.last_error or "")


async def second_rescue(fleet: Fleet, job_id: str) -> bool:
    return (await fleet.events(job_id)).count("rescued") == 2


async def test_a_dead_process_is_replaced_and_its_jobs_do_not_wait_for_their_lease(fleet: Fleet) -> None:
    worker = await fleet.start(*LONG_LEASE, "--concurrency", "3")
    [victim] = await fleet.working(worker)
    ids = await fleet.enqueue_many(3, "short", {"seconds": 3.0})
    waiting = await fleet.enqueue_many(3, "short", {"seconds": 0.0})
    await fleet.begun(*ids)
    [info] = await fleet.jobs.workers.list()
    os.kill(victim, signal.SIGKILL)
    await fleet.working(worker, without={victim})
    jobs = await fleet.ended(*ids)
    assert {(job.status, job.version, job.retries, job.crashes) for job in jobs} == {(Status.COMPLETED, 2, 1, 1)}
    for job in jobs:
        [rescued] = [event for event in await fleet.jobs.events(job.id) if event.event == "rescued"]
        assert rescued.by == f"supervisor of {info.name}"
        assert info.name in rescued.data["error"]
        assert "killed by SIGKILL" in rescued.data["error"]
    others = await fleet.ended(*waiting)
    assert {(job.status, job.version, job.retries) for job in others} == {(Status.COMPLETED, 1, 0)}
    assert info.name not in {worker.name for worker in await fleet.jobs.workers.list()}  # it is off the register


async def test_a_process_that_cannot_be_replaced_for_a_while_is_replaced_later(sqlite_fleet: Fleet) -> None:
    """This may happen during a deploy. The other processes go on, and the new process starts in the end."""
    fleet = sqlite_fleet
    worker = await fleet.start(*LONG_LEASE, processes=2)
    victim, other = await fleet.working(worker, 2)
    source = (fleet.folder / "app.py").read_text()
    (fleet.folder / "app.py").write_text("raise RuntimeError('half written')\n")
    os.kill(victim, signal.SIGKILL)
    await fleet.until(lambda: worker.output.count("half written") >= 2, what="two tries to fail")
    (fleet.folder / "app.py").write_text(source)
    await fleet.working(worker, without={victim, other})
    assert other in worker.children()


async def test_children_of_a_dead_supervisor_stop_politely(postgres_fleet: Fleet) -> None:
    fleet = postgres_fleet
    worker = await fleet.start(*LONG_LEASE, processes=2)
    ids = [await fleet.enqueue(topic, {"seconds": 60.0}) for topic in ("nap", "doze", "toil")]
    await fleet.begun(*ids)
    worker.signal(signal.SIGKILL)
    await fleet.nobody_left()
    for one in ids:
        job = await fleet.jobs.get(one)
        assert (job.status, job.retries, job.locked_by) == (Status.PENDING, 0, None)
        assert (await fleet.events(one))[-1] == "released"
    assert await fleet.jobs.workers.list() == []


async def steady(fleet: Fleet, worker: WorkerProcess) -> None:
    assert worker.process.poll() is None
    probe = await fleet.enqueue("quick")
    [job] = await fleet.ended(probe)
    assert job.status is Status.COMPLETED


@pytest.mark.parametrize(
    ("fleet", "how", "sign"),
    [("postgres", "kill", "killed by SIGKILL"), ("sqlite", "kill", "killed by SIGKILL"), ("sqlite", "exit", "code 7")],
    indirect=["fleet"],
)
async def test_a_job_that_kills_its_process_ends_alone(fleet: Fleet, how: str, sign: str) -> None:
    """The first run also kills the other runs in its process. Then the job is a suspect and runs in a child process,
    where it can't harm other runs."""
    before = await fleet.enqueue_many(250, "quick")
    guilty = await fleet.enqueue("poison", {"how": how}, max_retries=1)
    after = await fleet.enqueue_many(250, "quick")
    worker = await fleet.start(*LONG_LEASE)
    await fleet.drained()
    dead = await fleet.jobs.get(guilty)
    assert dead.status is Status.FAILED
    assert dead.retries == 1
    assert sign in (dead.last_error or "")
    [first, second] = fleet.runs_of(guilty)
    assert first.pid != second.pid
    await check_innocent(fleet, before | after)
    await steady(fleet, worker)


async def test_who_was_claimed_beside_it_and_had_not_begun_is_not_charged(fleet: Fleet) -> None:
    """The claim itself was the start mark of all jobs, because each had a free slot. But the first job killed the
    process before the others began."""
    guilty = await fleet.enqueue("poison", {"how": "kill"}, max_retries=1, priority=200)
    others = [await fleet.enqueue("nap", {"seconds": 0.0}, max_retries=0) for _ in range(9)]
    worker = await fleet.start(*LONG_LEASE)
    await fleet.drained()
    assert (await fleet.jobs.get(guilty)).status is Status.FAILED
    for job_id in others:
        job = await fleet.jobs.get(job_id)
        assert (job.status, job.retries, job.crashes) == (Status.COMPLETED, 0, 0)
    await steady(fleet, worker)


async def test_a_job_that_kills_its_process_and_has_no_retry_left_expires(postgres_fleet: Fleet) -> None:
    fleet = postgres_fleet
    before = await fleet.enqueue_many(250, "quick")
    guilty = await fleet.enqueue("poison", {"how": "kill"}, max_retries=0)
    after = await fleet.enqueue_many(250, "quick")
    worker = await fleet.start(*LONG_LEASE)
    await fleet.drained()
    dead = await fleet.jobs.get(guilty)
    assert (dead.status, dead.version) == (Status.EXPIRED, 1)
    assert "killed by SIGKILL" in (dead.last_error or "")
    await check_innocent(fleet, before | after)
    await steady(fleet, worker)


async def check_innocent(fleet: Fleet, ids: set[str]) -> None:
    """Check that all jobs are done, and that only jobs whose handler had begun when the process died are charged, once.
    Some of these handlers may have ended. But the worker can't know which unsettled run has left something deadly."""
    rows = await fleet.fetch("SELECT id, retries, crashes FROM _jobs_archive")
    done = {str(one): (retries, crashes) for one, retries, crashes in rows}
    assert ids <= set(done)
    began = {one.id for one in fleet.noted() if one.version == 1}
    charged = {one for one in ids if done[one] != (0, 0)}
    assert charged <= began
    assert {done[one] for one in charged} <= {(1, 1)}


async def test_a_worker_whose_lease_ran_out_while_it_was_frozen_is_told_and_refused(fleet: Fleet) -> None:
    frozen = await fleet.start()
    thread = await fleet.enqueue("watchful", {"seconds": 60.0, "again": 0.0})
    task = await fleet.enqueue("nap", {"seconds": 60.0, "again": 0.0})
    await fleet.begun(thread, task)
    pids = [frozen.pid, *frozen.children()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    await fleet.start(*SHORT)
    await fleet.begun(thread, task, version=2)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    await fleet.until(
        lambda: fleet.runs_of(thread, "lost") and fleet.runs_of(task, "cancelled"), what="the frozen one to be told"
    )
    assert [one.version for one in fleet.runs_of(thread, "lost")] == [1]
    assert [one.version for one in fleet.runs_of(task, "cancelled")] == [1]
    jobs = await fleet.ended(thread, task)
    assert [job.status for job in jobs] == [Status.COMPLETED] * 2
    for job in jobs:
        assert job.result["run"] == job.version == 2
        assert job.result["pid"] not in pids
        assert (await fleet.events(job.id)).count("completed") == 1
