"""Handlers in child processes: their input, their output, and which child process runs a job."""

import asyncio
import os
import signal
import sys
from datetime import UTC
from pathlib import Path

import pytest

from rowlock import Completed, Failed, GaveUp, Jobs, Released, Snoozed, decide
from rowlock.context import Interruption
from rowlock.runtime.processes import refusal
from tests.guard import processes, running
from tests.runtime.apps import deeds
from tests.runtime.children import Runner, Wire, children, gone
from tests.stores.harness import START
from tests.waiting import cancelled, until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="child processes are not supported there")


def completed(outcome: object) -> dict[str, object]:
    assert isinstance(outcome, Completed), outcome
    assert isinstance(outcome.result, dict)
    return outcome.result


async def pid_of(runner: Runner) -> int:
    """Return the pid of the child that runs the next job."""
    pid = completed(await runner.run("add", a=1, b=1))["pid"]
    assert isinstance(pid, int)
    return pid


# ── Results ──


async def test_a_handler_runs_in_a_child_of_this_process_and_answers_its_result(runner: Runner) -> None:
    result = completed(await runner.run("add", a=2, b=3))
    assert result["sum"] == 5
    assert result["parent"] == os.getpid() != result["pid"]


async def test_an_async_handler_runs_in_a_loop_that_the_child_keeps(runner: Runner) -> None:
    first = completed(await runner.run("async_add", a=1, b=2))
    second = completed(await runner.run("async_add", a=3, b=4))
    assert (first["sum"], second["sum"]) == (3, 7)
    assert first["pid"] == second["pid"]
    assert second["same_loop"]


async def test_a_sync_context_in_a_child(runner: Runner) -> None:
    found = completed(await runner.run("sync_context", n=3))
    assert (found["n"], found["kind"]) == (3, "SyncContext")
    assert found["pid"] != os.getpid()


async def test_the_child_has_the_surroundings_of_its_worker(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWLOCK_TEST_VARIABLE", "there")
    found = completed(await runner.run("surroundings"))
    assert found == {
        "cwd": str(Path.cwd()),
        "path": sys.path,
        "argv": sys.argv,
        "stdin": "",
        "variable": "there",
        "seen": ["surroundings"],  # the application's middleware also runs around the handler in the child
    }


async def test_transactions_in_a_child_are_fenced_by_version_and_worker(runner: Runner) -> None:
    job = await runner.claimed("guard", {})
    found = completed(await runner.pool.run(job, deeds.guard, Wire()))
    assert found == {"id": job.id, "version": 1, "worker": "w1"}


async def test_what_a_handler_tells_arrives(runner: Runner) -> None:
    link = Wire()
    result = completed(await runner.run("tell", link=link))
    assert link.lines == [("warning", "line 0"), ("warning", "line 1"), ("warning", "line 2")]
    # The calls within a moment arrive as one report, or as several reports on a busy machine.
    assert [stage for _, stage, _ in link.reports if stage is not None][-1] == "stage 2"
    assert [text for _, _, text in link.reports if text is not None][-1] == "\N{REPLACEMENT CHARACTER} and ?"
    assert link.reports[-1][0] == 100.0
    assert link.beats >= 1
    assert link.looks
    assert result == {"looked": False, "lease": link.lease, "began": link.began}


async def test_progress_is_told_less_often_than_it_is_made(runner: Runner) -> None:
    link = Wire()
    await runner.run("chatter", link=link, times=100_000)
    assert link.reports[-1][0] == pytest.approx(99.999)
    assert len(link.reports) < 10_000


async def test_a_thread_that_a_handler_left_behind_does_not_speak_for_the_next(runner: Runner) -> None:
    await runner.run("leave_a_thread_that_talks")
    link = Wire()
    await runner.run("tell", link=link)
    assert "still here" not in [text for _, text in link.lines]
    assert 13 not in [percent for percent, _, _ in link.reports]
    assert not link.completed


async def test_payload_and_result_may_be_as_large_as_they_may_be(runner: Runner) -> None:
    text = "ä" * ((1 << 19) - 100)
    assert await runner.run("echo", text=text) == Completed(text)


async def test_a_handler_may_print_a_megabyte(runner: Runner, capfd: pytest.CaptureFixture[str]) -> None:
    assert await runner.run("print_much", size=1 << 20) == Completed(None)
    assert len(capfd.readouterr().out) == (1 << 20) + 1


async def test_a_result_that_cant_be_stored_fails_as_it_does_elsewhere(runner: Runner) -> None:
    outcome = await runner.run("unfit")
    assert isinstance(outcome, Failed)
    assert outcome.final
    job = await runner.claimed("unfit", {})
    assert outcome.error == decide(job, Completed(deeds.unfit.function()), START).error
    assert isinstance(too_big := await runner.run("big", size=2 << 20), Failed)
    assert too_big.final
    assert "Queue references, not blobs" in too_big.error


async def test_an_error_brings_its_traceback_without_our_frames(runner: Runner) -> None:
    outcome = await runner.run("finish")
    assert isinstance(outcome, Failed)
    assert outcome.final
    assert "never again" in outcome.error
    assert "deeds.py" in outcome.error
    assert "rowlock/runtime" not in outcome.error


async def test_a_handler_may_snooze_or_give_up(runner: Runner) -> None:
    assert deeds.UNTIL.tzinfo is UTC
    for how, time in (("seconds", 30.0), ("duration", 120.0), ("time", deeds.UNTIL), ("naive", deeds.UNTIL)):
        assert await runner.run("snooze", how=how) == Snoozed(time), how
    wrong = await runner.run("snooze", how="nonsense")
    assert wrong == Failed("The handler can't snooze until 'tomorrow'", final=True)
    assert await runner.run("give_up") == GaveUp("not wanted")


RAISED = {
    "leave": "SystemExit: leaving",
    "ctrl_c": "KeyboardInterrupt",
    "async_ctrl_c": "KeyboardInterrupt",
    "cancels_itself": "Cancelled",
    "recurse": "RecursionError",
    "shy": "Shy",
}


async def test_what_a_handler_raises_fails_the_job_and_the_child_goes_on(runner: Runner) -> None:
    before = await pid_of(runner)
    for topic, named in RAISED.items():
        outcome = await runner.run(topic)
        assert isinstance(outcome, Failed), topic
        assert not outcome.final
        assert named in outcome.error
        assert completed(await runner.run("async_add", a=1, b=1))["pid"] == before, topic


# ── Interruptions ──


async def test_ctrl_c_is_not_for_children_but_for_what_they_start(runner: Runner) -> None:
    pid = await pid_of(runner)
    assert await runner.run("interrupt_itself") == Completed([pid, -signal.SIGINT])


async def test_an_interruption_reaches_a_handler_that_looks(runner: Runner, tmp_path: Path) -> None:
    link = Wire()
    task, pid = await runner.begun("work_until_told", tmp_path / "pid", link)
    link.interrupt(Interruption.CANCELLED)
    assert await task == GaveUp(None)
    assert await pid_of(runner) == pid


async def test_an_interruption_that_is_older_than_the_run_reaches_it_too(runner: Runner, tmp_path: Path) -> None:
    link = Wire()
    link.interruption = Interruption.TIMED_OUT
    outcome = await runner.run("work_until_told", link=link, file=str(tmp_path / "pid"))
    assert isinstance(outcome, Failed)
    assert "TimeLimit" in outcome.error


async def test_a_run_whose_lease_ended_while_its_child_started_never_begins(runner: Runner, tmp_path: Path) -> None:
    """A frozen worker can't tell the child that the lease has ended, so the child knows itself when the lease ends."""
    link = Wire()
    link.lease = 0.0
    outcome = await runner.run("work_until_told", link=link, file=str(tmp_path / "pid"))
    assert outcome == Released("its lease ran out before it started")
    assert not (tmp_path / "pid").exists()


async def test_a_run_whose_lease_was_renewed_while_its_child_started_begins(runner: Runner) -> None:
    """The child did not know of the renewal, so it asks the worker."""
    link = Wire()
    renewals = iter([link.began - 60.0, link.began])

    class Renewed(Wire):
        renewed = property(lambda self: next(renewals, link.began), lambda self, value: None)

    assert completed(await runner.run("add", link=Renewed(), a=1, b=1))["sum"] == 2


async def test_a_run_that_was_lost_while_its_child_started_never_begins(runner: Runner, tmp_path: Path) -> None:
    link = Wire()
    link.interruption = Interruption.LOST
    assert await runner.run("work_until_told", link=link, file=str(tmp_path / "pid")) == GaveUp(None)
    assert not (tmp_path / "pid").exists()


async def test_an_interruption_is_not_for_the_next_job(runner: Runner) -> None:
    link = Wire()
    await runner.run("add", link=link, a=1, b=1)
    link.interrupt(Interruption.CANCELLED)
    assert completed(await runner.run("tell"))["looked"] is False


async def test_cancelling_the_run_kills_the_child_first(runner: Runner, tmp_path: Path) -> None:
    task, pid = await runner.begun("work_on", tmp_path / "pid")
    await cancelled(task)
    assert not running({pid})


async def test_a_child_is_killed_with_what_it_has_started(runner: Runner, tmp_path: Path) -> None:
    task, pid = await runner.begun("work_on_in_a_program_of_its_own", tmp_path / "pid")
    await cancelled(task)
    await gone(pid)


async def test_closing_ends_what_runs(tmp_path: Path) -> None:
    async with children(deeds.jobs) as runner:
        task, pid = await runner.begun("work_on", tmp_path / "pid")
        await runner.pool.close()
        assert not running({pid})
        outcome = await task
        assert isinstance(outcome, Failed)
        assert "the worker was closed" in outcome.error


# ── Which child runs a job ──


async def test_a_child_runs_one_job_after_the_other(runner: Runner) -> None:
    assert len({completed(await runner.run("add", a=n, b=n))["pid"] for n in range(20)}) == 1


async def test_jobs_at_once_run_in_children_of_their_own(runner: Runner) -> None:
    slots = asyncio.Semaphore(4)

    async def run(n: int) -> dict[str, object]:
        async with slots:
            return completed(await runner.run("add", a=n, b=1))

    results = await asyncio.gather(*map(run, range(20)))
    assert [result["sum"] for result in results] == [n + 1 for n in range(20)]
    assert 1 < len({result["pid"] for result in results}) <= 4


async def test_a_child_is_replaced_after_so_many_jobs() -> None:
    async with children(deeds.jobs, recycle_jobs=2) as runner:
        pids = [await pid_of(runner) for _ in range(5)]
        assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]


async def test_a_child_that_has_grown_is_replaced() -> None:
    async with children(deeds.jobs, recycle_mib=200) as runner:
        pids = [await runner.run("grow", mib=mib) for mib in (1, 250, 1)]
        assert pids[0] == pids[1] != pids[2]


async def test_children_that_nobody_needs_go(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rowlock.runtime.processes._IDLE", 0.01)
    pid = await pid_of(runner)
    await gone(pid)
    assert await pid_of(runner) != pid


async def test_an_idle_child_that_was_killed_is_replaced(runner: Runner) -> None:
    for _ in range(5):
        os.kill(await pid_of(runner), signal.SIGKILL)  # the event loop has not noticed the death before the next job
        assert completed(await runner.run("add", a=2, b=2))["sum"] == 4


async def test_an_idle_child_that_was_killed_is_reaped_without_a_next_job(runner: Runner) -> None:
    pid = await pid_of(runner)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{pid}").exists() if sys.platform == "linux" else not running({pid}))


# ── Warm ──


def own_children() -> set[int]:
    return {pid for pid, parent, _ in processes() if parent == os.getpid()}


DEEDS = "tests.runtime.apps.deeds"


async def test_the_first_job_runs_in_the_child_that_was_started_for_it(runner: Runner) -> None:
    before = own_children()
    runner.pool.warm_up(DEEDS)
    await until(lambda: own_children() - before)
    [warm] = own_children() - before
    assert await pid_of(runner) == warm
    assert own_children() - before == {warm}


async def test_a_job_that_comes_at_once_starts_no_second_child(runner: Runner) -> None:
    before = own_children()
    runner.pool.warm_up(DEEDS)
    pid = await pid_of(runner)
    assert own_children() - before == {pid}


async def test_a_warm_child_has_loaded_the_application_before_a_job_comes(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "warm_app.py").write_text(f"open({str(tmp_path / 'loaded')!r}, 'w').close()\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        runner.pool.warm_up("warm_app")
        await until((tmp_path / "loaded").exists)


async def test_closing_ends_a_warm_child_that_has_nothing_to_do_and_one_that_still_loads(tmp_path: Path) -> None:
    """`children` checks that no child process is left."""
    (tmp_path / "slow_app.py").write_text(
        f"import time\nopen({str(tmp_path / 'loads')!r}, 'w').close()\ntime.sleep(600)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        async with children(deeds.jobs) as runner:
            runner.pool.warm_up("slow_app")
            await until((tmp_path / "loads").exists)
    async with children(deeds.jobs) as runner:
        runner.pool.warm_up(DEEDS)
        await until(lambda: runner.pool._idle)
    async with children(deeds.jobs) as runner:
        runner.pool.warm_up(DEEDS)  # the pool is closed before the child was started


async def test_one_warm_child_stays_and_the_others_go(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rowlock.runtime.processes._IDLE", 0.01)
    before = own_children()
    runner.pool.warm_up(DEEDS)
    results = await asyncio.gather(*(runner.run("add", a=n, b=n) for n in range(3)))
    pids = {result["pid"] for result in map(completed, results)}
    await until(lambda: len(own_children() - before) == 1)
    assert await pid_of(runner) in pids
    assert len(own_children() - before) == 1


async def test_an_application_that_cant_be_loaded_costs_the_warm_child_only(runner: Runner) -> None:
    before = own_children()
    runner.pool.warm_up("there_is_no_such_module")
    await until(lambda: own_children() - before)
    await until(lambda: not own_children() - before)
    assert completed(await runner.run("add", a=1, b=1))["sum"] == 2


@pytest.mark.parametrize("topics", [["add"], ["plain"]])
async def test_a_worker_warms_a_child_up_if_a_task_needs_one(tmp_path: Path, topics: list[str]) -> None:
    jobs = Jobs(f"sqlite:///{tmp_path}/jobs.db")
    for topic in topics:
        task = deeds.jobs.tasks[topic]
        jobs.register(topic, task.function, process=task.kind == "process")
    before = own_children()
    async with jobs:
        await jobs.start(grace=5)
        if topics == ["plain"]:
            made = await jobs.enqueue("plain")
            assert (await jobs.wait(made.id, timeout=60)).result == os.getpid()
            assert own_children() == before
        else:
            await until(lambda: own_children() - before)
        await jobs.stop()
        assert own_children() == before


# ── Which tasks can run in a child ──


async def test_a_task_of_any_kind_and_a_partial_of_a_function_can_run_in_a_child(runner: Runner) -> None:
    assert await runner.run("plain") != Completed(os.getpid())
    assert await runner.run("square", base=7) == Completed(49)


async def test_what_an_application_does_at_exit_is_done_when_the_pool_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rowlock.runtime.processes._GOODBYE", 60.0)
    monkeypatch.setattr("rowlock.runtime.process.FAREWELL", 60.0)
    async with children(deeds.jobs) as runner:
        await runner.run("say_goodbye", file=str(tmp_path / "said"))
    assert (tmp_path / "said").read_text() == "goodbye"


async def test_the_surroundings_need_not_be_unicode(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["worker", os.fsdecode(b"\xff")])
    monkeypatch.setattr(sys, "path", [*sys.path, Path("somewhere")])
    assert isinstance(await runner.run("add", a=1, b=1), Completed)


async def test_with_an_app_also_what_was_made_in_a_function_can() -> None:
    app = "tests.runtime.apps.deeds:jobs"
    async with children(deeds.jobs, app=app) as runner:
        for topic in ("nested", "lambda"):
            assert refusal(deeds.jobs.tasks[topic], app) is None
            assert isinstance(await runner.run(topic), Completed)


@pytest.mark.parametrize("topic", ["nested", "lambda"])
def test_without_an_app_what_was_made_in_a_function_is_refused(topic: str) -> None:
    assert "made inside a function" in (refusal(deeds.jobs.tasks[topic], None) or "")


def test_a_function_of_a_module_is_not_refused() -> None:
    assert refusal(deeds.add, None) is None


def test_windows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert "Windows" in (refusal(deeds.add, None) or "")


def test_a_function_of_an_interactive_session_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def typed() -> None: ...

    typed.__module__, typed.__qualname__ = "__main__", "typed"
    task = Jobs("sqlite:///deeds.db").register("typed", typed, process=True)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    assert "interactive" in (refusal(task, None) or "")
