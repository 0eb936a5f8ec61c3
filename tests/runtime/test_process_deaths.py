"""Child processes that die, are killed, can't start, or lose their worker."""

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rowlock import Completed, Failed
from rowlock.core.job import Lane
from rowlock.core.lifecycle import Settlement
from rowlock.jobs import Jobs
from rowlock.runtime import process
from rowlock.runtime.rescue import rescue
from rowlock.runtime.running_board import RunningBoard
from rowlock.runtime.supervisor import Rescue, accuse
from rowlock.stores.base import Claim, Settled
from tests.guard import processes, running
from tests.runtime.apps import deeds
from tests.runtime.children import Runner, Wire, children, gone, pid_in
from tests.runtime.running import started
from tests.waiting import cancelled, ended, until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="child processes are not supported there")


def retried(outcome: object) -> str:
    """Return the error of a failure that isn't final."""
    assert isinstance(outcome, Failed), outcome
    assert not outcome.final
    return outcome.error


# ── While the child runs a job ──


async def test_a_child_that_exits_fails_its_job_with_the_exit_code(runner: Runner) -> None:
    error = retried(await runner.run("exit_at_once", code=3))
    assert "ended with exit code 3. It ran for " in error
    assert isinstance(await runner.run("add", a=1, b=1), Completed)


async def test_a_crash_brings_the_signal_the_memory_and_the_stack(runner: Runner) -> None:
    error = retried(await runner.run("crash"))
    assert "was killed by SIGSEGV (signal 11)" in error
    assert "MiB" in error
    assert "deeds.py" in error
    assert "in crash" in error
    assert "rowlock/runtime" not in error


async def test_a_child_that_someone_kills_is_said_to_be_out_of_memory_perhaps(runner: Runner, tmp_path: Path) -> None:
    task, pid = await runner.begun("work_on", tmp_path / "pid")
    os.kill(pid, signal.SIGKILL)
    error = retried(await task)
    assert "was killed by SIGKILL (signal 9)" in error
    assert "rowlock did not do that" in error


async def test_a_signal_without_a_name_is_told_by_number(runner: Runner, tmp_path: Path) -> None:
    task, pid = await runner.begun("work_on", tmp_path / "pid")
    os.kill(pid, 40)
    assert "signal 40" in retried(await task)


async def test_a_handler_that_takes_too_much_memory_is_killed(runner: Runner) -> None:
    error = retried(await runner.run("eat"))
    assert "more than its limit of 128 MiB (memory= of the task)" in error
    assert "dmesg" not in error


async def test_what_was_committed_before_the_end_is_known(runner: Runner) -> None:
    link = Wire()
    retried(await runner.run("commit_and_die", link=link))
    assert link.completed


async def test_a_death_is_noticed_although_a_child_of_the_child_holds_its_socket(
    runner: Runner, tmp_path: Path
) -> None:
    assert "exit code 4" in retried(await runner.run("leave_a_child_that_holds_all", file=str(tmp_path / "pid")))
    await gone(await pid_in(tmp_path / "pid"))


async def test_only_one_of_two_copies_of_a_handler_answers(runner: Runner) -> None:
    child = await runner.run("plain")
    assert await runner.run("come_back_twice") == child


async def test_a_child_that_closed_its_socket_fails_its_job(runner: Runner) -> None:
    assert "had lost its connection to the worker" in retried(await runner.run("close_the_socket"))


async def test_a_child_that_may_go_and_does_not_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "FAREWELL", 0.1)
    async with children(deeds.jobs, recycle_jobs=1) as runner:
        outcome = await runner.run("stay")
        assert isinstance(outcome, Completed)
        await gone(outcome.result)


@pytest.mark.skipif(sys.platform != "linux", reason="the handler looks for the socket in /proc")
async def test_a_child_that_talks_nonsense_is_killed(runner: Runner) -> None:
    assert "written into the socket" in retried(await runner.run("write_into_the_socket"))


# ── Before the child has a job ──


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the path of a file that can be imported as `application`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "application", raising=False)
    yield tmp_path / "application.py"
    sys.modules.pop("application", None)


APPLICATION = """
from rowlock import Jobs

jobs = Jobs("sqlite:///deeds.db")

@jobs.task(process=True)
def work() -> str:
    return "done"
"""


def change(application: Path, source: str) -> None:
    application.write_text(source)


def load(application: Path, source: str, name: str = "jobs") -> Any:
    change(application, source)
    return getattr(importlib.import_module("application"), name)


@pytest.mark.parametrize(
    ("now", "error"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("def broken(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("", "registers no such task"),
        (APPLICATION.replace("def work", "def other"), "application.work"),
    ],
)
async def test_a_handler_that_cant_be_imported_fails_its_job(application: Path, now: str, error: str) -> None:
    async with children(load(application, APPLICATION)) as runner:
        change(application, now)
        said = retried(await runner.run("work"))
        assert error in said
        assert "the handler of work (application.work)" in said
        change(application, APPLICATION)
        assert await runner.run("work") == Completed("done")


async def test_of_several_jobs_with_the_same_handler_it_is_run_for_the_right_one(application: Path) -> None:
    several = """
from rowlock import Jobs
from rowlock.context import Context

def work(ctx: Context) -> str:
    return ctx._host._jobs.settings.url

every = [Jobs(f"sqlite:///nowhere/{n}.db") for n in range(5)]
for jobs in every:
    jobs.register("work", work, process=True)
"""
    for jobs in load(application, several, "every"):
        async with children(jobs) as runner:
            assert await runner.run("work") == Completed(jobs.settings.url)


async def test_an_application_that_ends_the_child_when_it_is_imported_fails_the_job(application: Path) -> None:
    async with children(load(application, APPLICATION)) as runner:
        change(application, "import os; os._exit(9)")
        assert "ended with exit code 9" in retried(await runner.run("work"))


async def test_an_app_without_the_attribute_fails_the_job(application: Path) -> None:
    async with children(load(application, APPLICATION), app="application:other.jobs") as runner:
        assert "has no attribute 'other'" in retried(await runner.run("work"))


async def test_an_interpreter_that_is_not_there_fails_the_job(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "can't be started: [Errno 2]" in retried(await runner.run("add", a=1, b=1))


async def test_an_interpreter_that_ends_at_once_fails_the_job(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "can't be started: the last of 3 ended with exit code 1" in retried(await runner.run("add", a=1, b=1))


async def test_an_interpreter_that_never_answers_fails_the_job(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nsleep 600\n")
    silent.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(silent))
    monkeypatch.setattr(process, "START_TIMEOUT", 0.2)
    assert "it did not start within 0.2 s" in retried(await runner.run("echo", text="x" * (1 << 19)))


async def test_cancelling_while_a_child_starts_leaves_none(runner: Runner) -> None:
    before = _children()  # there may be others, such as a database server
    for rounds in range(10):
        job = await runner.claimed("add", {"a": 1, "b": 1})
        task = asyncio.create_task(runner.pool.run(job, deeds.add, Wire()))
        await asyncio.sleep(rounds / 1000)
        await cancelled(task)
        await until(lambda: _children() <= before)


def _children() -> set[int]:
    return {pid for pid, parent, _ in processes() if parent == os.getpid()}


# ── Programs ──

PROGRAM = """
import asyncio, ctypes, os, sys
from pathlib import Path
from typing import Any
from rowlock import Jobs
from rowlock.runtime.processes import refusal
from tests.runtime.children import children

jobs = Jobs("sqlite:///deeds.db")

@jobs.task(process=True)
def who(file: str) -> str:
    Path(file).write_text(str(os.getpid()))
    return __name__

@jobs.task(process=True)
def forever(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(600)  # no other thread of this process runs any more, so that only the kernel can end it

async def main(topic: str, file: str) -> None:
    assert refusal(jobs.tasks[topic], None) is None
    async with children(jobs) as runner:
        print(await runner.run(topic, file=file))
"""
GUARD = """
if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
"""


def start(*argv: object, cwd: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([sys.executable, *map(str, argv)], cwd=cwd, env=environment, text=True, **pipes)


def said(*argv: object, cwd: Path) -> str:
    """Run the program until its end. Return what it printed."""
    with start(*argv, cwd=cwd) as program:
        return program.communicate(timeout=60)[0]


@pytest.mark.parametrize("argv", [["program.py"], ["-m", "program"], ["-m", "package.program"]])
def test_a_handler_may_stand_in_the_program_itself(tmp_path: Path, argv: list[str]) -> None:
    (tmp_path / "package").mkdir()
    for file in (tmp_path / "program.py", tmp_path / "package/program.py"):
        file.write_text(PROGRAM + GUARD)
    assert "Completed(result='__mp_main__')" in said(*argv, "who", tmp_path / "pid", cwd=tmp_path)


def test_a_handler_may_be_registered_by_the_program(tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text("def imported(file: str) -> str:\n    return __name__\n")
    registered = "\nimport handlers\njobs.register('imported', handlers.imported, process=True)\n"
    (tmp_path / "program.py").write_text(PROGRAM + registered + GUARD)
    assert "Completed(result='handlers')" in said("program.py", "imported", tmp_path / "pid", cwd=tmp_path)


def test_a_program_that_starts_whenever_it_is_loaded_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM + "asyncio.run(main(*sys.argv[1:]))\n")
    assert "let it do so under" in said("program.py", "who", tmp_path / "pid", cwd=tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child must be able to see that its socket was closed")
@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGTERM])
async def test_a_worker_that_is_killed_leaves_no_child(tmp_path: Path, signalled: signal.Signals) -> None:
    (tmp_path / "program.py").write_text(PROGRAM + GUARD)
    with start("program.py", "forever", tmp_path / "pid", cwd=tmp_path) as program:
        child = await pid_in(tmp_path / "pid")
        assert running({child})
        program.send_signal(signalled)
        await gone(child)


async def test_a_child_without_a_worker_ends_also_where_the_kernel_does_not_help(
    runner: Runner, tmp_path: Path
) -> None:
    task, pid = await runner.begun("work_on", tmp_path / "pid")
    [busy] = runner.pool._busy
    assert busy._transport is not None
    busy._transport.abort()  # the child sees nothing else of its worker's end
    assert "had lost its connection to the worker" in retried(await task)
    assert not running({pid})


def test_interpreter_options_are_those_of_the_worker(tmp_path: Path) -> None:
    told = textwrap.dedent("""
        @jobs.task(process=True)
        def options(file: str) -> list:
            return [sys.flags.optimize, sys.flags.utf8_mode, sys.warnoptions]
    """)
    (tmp_path / "program.py").write_text(PROGRAM + told + GUARD)
    argv = ("-O", "-X", "utf8", "-W", "ignore", "program.py", "options", "x")
    assert "Completed(result=[1, 1, ['ignore']])" in said(*argv, cwd=tmp_path)


# ── If the worker dies as well ──


def test_a_run_in_a_child_process_is_not_accused_beside_others() -> None:
    """A suspect is alone in its child process. It must not be charged repeatedly when other jobs kill the worker."""
    board = RunningBoard(bytearray(1024))
    board.put("a" * 36, 1, apart=True)
    assert accuse(board) == ([("a" * 36, 1)], [])  # no other run: it may have killed the worker
    inside = board.put("b" * 36, 1)
    assert accuse(board) == ([("b" * 36, 1)], [("a" * 36, 1)])
    often = board.put("c" * 36, 11, apart=True)
    assert accuse(board) == ([("b" * 36, 1), ("c" * 36, 11)], [("a" * 36, 1)])  # charged from its 11th run on
    board.clear(often)
    board.clear(inside)
    died = board.put("d" * 36, 1, apart=True)
    board.rejoin(died)  # its child has died, and the crash is not settled yet
    assert accuse(board) == ([("d" * 36, 1)], [("a" * 36, 1)])


async def test_a_suspect_in_its_child_is_given_back_when_its_worker_dies(jobs: Jobs, url: str) -> None:
    store = await jobs._store()
    made = [await jobs.enqueue("any", {}) for _ in range(2)]
    await store.claim(Claim("dead", (Lane("any"),), 2, 60.0, True))
    accused, suspect = [(one.id, 1) for one in made]
    assert await rescue(Rescue(url, "dead", [accused], [suspect], "exit code 3", False, 60.0)) == (2, 1)
    assert (await jobs.get(accused[0])).retries == 1
    spared = await jobs.get(suspect[0])
    assert (spared.status, spared.retries, spared.crashes) == ("pending", 0, 0)
    assert "in a child process" in str((await jobs.events(suspect[0]))[-1].data["reason"])


@pytest.mark.parametrize(("topic", "timeout"), [("exit_at_once", 600.0), ("work_on", 0.2)])
async def test_a_crash_stays_on_the_board_until_it_is_settled(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str, timeout: float
) -> None:
    """If the entry were cleared earlier and the worker died in between, the crash would not be charged."""
    board = RunningBoard(bytearray(1024))
    store = await jobs._store()
    settle, seen = store.settle, list[list[tuple[str, int]]]()

    async def watched(settlements: Sequence[Settlement], claim: Claim | None = None) -> Settled:
        seen.append(board.running())
        return await settle(settlements, claim)

    monkeypatch.setattr(store, "settle", watched)
    task = getattr(deeds, topic)
    jobs.register(topic, task.function, process=True, max_retries=0, timeout=timeout)
    payload = {"code": 3} if topic == "exit_at_once" else {"file": str(tmp_path / "pid")}
    made = await jobs.enqueue(topic, payload)
    await started(jobs, board=board)
    job = await ended(jobs, made.id)
    assert job.status == "failed"
    assert seen[0] == [(made.id, 1)]
    await until(lambda: board.running() == [])
