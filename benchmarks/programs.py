"""Starts the programs of systems, and ends them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.systems.base import System

ROOT = Path(__file__).parent.parent
STOPPING = 10.0  # seconds from SIGTERM to the end of a worker
LONGEST = 300.0  # seconds that a verb may take
MEMORY = Path("/dev/shm")


class Failed(Exception):
    """A system failed its verb."""


@dataclass(frozen=True)
class Task:
    """A system, its database, and the parameters of its verb."""

    system: System
    url: str
    n: int = 0
    marks: Path = Path()
    batch: int = 1000
    callers: int = 100
    gap: float = 0.02
    options: Mapping[str, Any] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "BENCH_URL": self.url,
            "BENCH_N": str(self.n),
            "BENCH_CALLERS": str(self.callers),
            "BENCH_BATCH": str(self.batch),
            "BENCH_MARKS": str(self.marks),
            "BENCH_GAP": str(self.gap),
            "BENCH_OPTIONS": json.dumps({**self.system.options, **self.options}),
        }


@contextlib.contextmanager
def marks_folder() -> Iterator[Path]:
    """Yield a folder, in memory where possible, so that marks don't compete with the databases for the disk."""
    base = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="rowlock-bench-", dir=base) as folder:
        yield Path(folder)


def run(task: Task, verb: str) -> dict[str, Any]:
    """Run the program to its end, and return the object that it printed."""
    with start(task, verb) as program:
        return finish(program)


def finish(program: Program) -> dict[str, Any]:
    try:
        code = program.process.wait(LONGEST)
    except subprocess.TimeoutExpired:
        raise Failed(f"{program.name} took more than {LONGEST:.0f} s") from None
    if code:
        raise Failed(f"{program.name} ended with {code}: {program.tail()}")
    lines = program.output.read_text().splitlines()
    answers = [line for line in lines if line.startswith("{")]
    return json.loads(answers[-1]) if answers else {}


@dataclass(frozen=True)
class Program:
    name: str
    process: subprocess.Popen[bytes]
    output: Path

    def tail(self) -> str:
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-15:])

    def check(self) -> None:
        """Raise if the program is not running."""
        if self.process.poll() is not None:
            raise Failed(f"{self.name} ended by itself with {self.process.returncode}: {self.tail()}")


@contextlib.contextmanager
def start(task: Task, verb: str) -> Iterator[Program]:
    """Run the program in the background. At the end stop it, first with SIGTERM."""
    with working(task, verb, 1) as (program,):
        yield program


@contextlib.contextmanager
def working(task: Task, verb: str = "worker", count: int = 1) -> Iterator[list[Program]]:
    folder = Path(tempfile.mkdtemp(prefix="rowlock-bench-"))
    programs: list[Program] = []
    try:
        for n in range(count):
            output = folder / f"{verb}-{n}"
            with output.open("wb") as file:
                process = subprocess.Popen(
                    task.system.command(verb),
                    cwd=ROOT,
                    env=task.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # so that stop() can also end the processes that it starts
                )
            programs.append(Program(f"{task.system.name} {verb}", process, output))
        yield programs
    finally:
        stop(programs)
        shutil.rmtree(folder, ignore_errors=True)


def stop(programs: list[Program]) -> None:
    for program in programs:
        if program.process.poll() is None:
            program.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + STOPPING
    for program in programs:
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.process.wait(max(deadline - time.monotonic(), 0.01))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.process.pid, signal.SIGKILL)
        program.process.wait()
