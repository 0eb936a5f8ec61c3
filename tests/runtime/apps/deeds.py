"""An application whose handlers harm their process in the ways in which real handlers do."""

import asyncio
import atexit
import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rowlock import Jobs
from rowlock.context import Context, SyncContext
from rowlock.errors import Cancelled, Final, Snooze

jobs = Jobs("sqlite:///deeds.db")

SEEN: list[str] = []  # topics that the middleware has seen


@jobs.on_run
def around(ctx: Context) -> Generator[None, Any, None]:
    SEEN.append(ctx.job.topic)
    yield


@jobs.task(process=True)
def add(a: int, b: int) -> dict[str, Any]:
    return {"sum": a + b, "pid": os.getpid(), "parent": os.getppid()}


@jobs.task(process=True)
def surroundings() -> dict[str, Any]:
    return {
        "cwd": str(Path.cwd()),
        "path": sys.path,
        "argv": sys.argv,
        "stdin": sys.stdin.read(),
        "variable": os.environ.get("ROWLOCK_TEST_VARIABLE"),
        "seen": SEEN,
    }


@jobs.task(process=True)
def guard(ctx: Context) -> dict[str, Any]:
    """Return the id, the version and the worker by which the transactions of this run are fenced."""
    return {name: getattr(ctx._guard(), name) for name in ("id", "version", "worker")}


@jobs.task(process=True)
def tell(ctx: Context, lines: int = 3) -> dict[str, Any]:
    for n in range(lines):
        ctx.progress(100 * n / lines, stage=f"stage {n}")
        ctx.log(f"line {n}", level="warning")
    ctx.progress(message="\0 and \ud800")
    ctx.progress(10**400)
    ctx.heartbeat()
    return {"looked": ctx.cancelled, "lease": ctx._link.lease, "began": ctx._link.began}


@jobs.task(process=True)
def chatter(ctx: Context, times: int) -> None:
    for n in range(times):
        ctx.progress(n / times * 100)


@jobs.task(process=True)
def print_much(size: int) -> None:
    print("x" * size)


@jobs.task(process=True)
def exit_at_once(code: int) -> None:
    os._exit(code)


@jobs.task(process=True)
def crash() -> None:
    ctypes.string_at(0)


@jobs.task(process=True)
def leave() -> None:
    sys.exit("leaving")


@jobs.task(process=True)
def ctrl_c() -> None:
    raise KeyboardInterrupt


@jobs.task(process=True)
async def async_ctrl_c() -> None:
    raise KeyboardInterrupt


@jobs.task(process=True)
async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


@jobs.task(process=True)
def recurse() -> None:
    recurse()


class Shy(Exception):
    def __str__(self) -> str:
        raise RuntimeError("don't look")


@jobs.task(process=True)
def shy() -> None:
    raise Shy


@jobs.task(process=True, memory=128)
def eat() -> None:
    eaten = []
    while True:
        eaten.append(b"x" * (4 << 20))


kept: list[bytes] = []


@jobs.task(process=True)
def grow(mib: int) -> int:
    kept.append(b"x" * (mib << 20))
    return os.getpid()


@jobs.task(process=True)
def unfit() -> object:
    return {"when": datetime.now(UTC)}


@jobs.task(process=True)
def big(size: int) -> str:
    return "x" * size


@jobs.task(process=True)
def echo(text: str) -> str:
    return text


@jobs.task(process=True)
def finish() -> None:
    raise Final("never again")


UNTIL = datetime(2030, 1, 2, 3, 4, tzinfo=UTC)


@jobs.task(process=True)
def snooze(how: str) -> None:
    raise Snooze(
        {
            "seconds": 30,
            "duration": timedelta(minutes=2),
            "time": UNTIL,
            "naive": UNTIL.replace(tzinfo=None),
            "nonsense": "tomorrow",
        }[how]  # type: ignore[arg-type]
    )


@jobs.task(process=True)
def give_up() -> None:
    raise Cancelled("not wanted")


@jobs.task(process=True)
def work_until_told(ctx: Context, file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    while True:
        ctx.check()
        time.sleep(0.005)


@jobs.task(process=True)
def work_on(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    while True:
        time.sleep(60)


@jobs.task(process=True)
def work_on_in_a_program_of_its_own(file: str) -> None:
    subprocess.run(
        [sys.executable, "-c", f"import os,time; open({file!r}, 'w').write(str(os.getpid())); time.sleep(600)"]
    )


@jobs.task(process=True)
def leave_a_child_that_holds_all(file: str) -> None:
    if os.fork() == 0:
        Path(file).write_text(str(os.getpid()))
        time.sleep(600)
    os._exit(4)


@jobs.task(process=True)
def come_back_twice() -> int:
    copy = os.fork()
    if copy:
        os.waitpid(copy, 0)  # the copy returns first
    return os.getpid()


@jobs.task(process=True)
def leave_a_thread_that_talks(ctx: Context) -> None:
    def talk() -> None:
        while True:
            ctx.progress(13)
            ctx.log("still here")
            ctx._link.completed = True

    threading.Thread(target=talk, daemon=True).start()


@jobs.task(process=True)
def commit_and_die(ctx: Context) -> None:
    ctx._link.completed = True
    os._exit(5)


@jobs.task(process=True)
def close_the_socket() -> None:
    os.closerange(3, 100)


@jobs.task(process=True)
def stay() -> int:
    atexit.register(time.sleep, 600)
    return os.getpid()


@jobs.task(process=True)
def interrupt_itself() -> list[int]:
    """Send Ctrl-C to this process and to one that it starts. Return this pid and the other's exit code."""
    os.kill(os.getpid(), signal.SIGINT)
    other = subprocess.run(
        [sys.executable, "-c", "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"],
        stderr=subprocess.DEVNULL,
    )
    return [os.getpid(), other.returncode]


@jobs.task(process=True)
def write_into_the_socket() -> None:
    for link in list(Path("/proc/self/fd").iterdir()):  # the socket has a high number if the worker has many files
        try:
            if int(link.name) > 2 and str(link.readlink()).startswith("socket:"):
                os.write(int(link.name), b"\xff" * 64)
        except OSError:
            pass
    time.sleep(600)


loops: list[asyncio.AbstractEventLoop] = []


@jobs.task(process=True)
async def async_add(ctx: Context, a: int, b: int) -> dict[str, Any]:
    await asyncio.sleep(0)
    loops.append(asyncio.get_running_loop())
    ctx.progress(50)
    return {"sum": a + b, "pid": os.getpid(), "same_loop": all(loop is loops[0] for loop in loops)}


@jobs.task(process=True)
def sync_context(ctx: SyncContext, n: int) -> dict[str, Any]:
    ctx.check()
    ctx.progress(50, stage="half")
    ctx.log("a line")
    return {"n": n, "kind": type(ctx).__name__, "pid": os.getpid()}


@jobs.task
def plain() -> int:
    return os.getpid()


def made_in_a_function() -> None:
    @jobs.task("nested", process=True)
    def nested() -> int:
        return os.getpid()

    jobs.register("lambda", lambda: os.getpid(), process=True)


def _power(base: int, exponent: int) -> int:
    return int(base**exponent)


jobs.register("square", functools.partial(_power, exponent=2), process=True)


@jobs.task(process=True)
def say_goodbye(file: str) -> None:
    atexit.register(Path(file).write_text, "goodbye")


made_in_a_function()
