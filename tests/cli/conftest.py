"""Run `rowlock` in this process, or as a process of its own, as a person would type it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner, Result

from rowlock.cli import cli
from rowlock.core.job import Lane
from rowlock.core.lifecycle import Outcome, Settlement, decide
from rowlock.jobs import Jobs
from rowlock.stores.base import Claim

T = TypeVar("T")


class Shell:
    """The command on one database, and direct access to that database."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder

    def __call__(self, *arguments: str, code: int = 0, **options: Any) -> Result:
        result = CliRunner(env={"ROWLOCK_URL": self.url}).invoke(cli, list(arguments), **options)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    def json(self, *arguments: str, code: int = 0, **options: Any) -> Any:
        return json.loads(self(*arguments, "-o", "json", code=code, **options).stdout)

    def add(self, topic: str = "mail", payload: str = "{}", *options: str) -> str:
        return self("enqueue", topic, payload, *options).stdout.strip()

    def do(self, work: Callable[[Jobs], Awaitable[T]]) -> T:
        async def connected() -> T:
            async with Jobs(self.url) as jobs:
                return await work(jobs)

        return asyncio.run(connected())

    def start(self, topic: str = "mail") -> str:
        """Let a worker claim the next job of a topic. Return its id."""

        async def claim(jobs: Jobs) -> str:
            claim = Claim("w1", (Lane(topic),), 1, 30.0)
            [job] = (await (await jobs._store()).claim(claim)).jobs
            return job.id

        return self.do(claim)

    def finish(self, outcome: Outcome, topic: str = "mail") -> str:
        """Let a worker run the next job of a topic to this outcome. Return its id."""

        async def work(jobs: Jobs) -> str:
            store = await jobs._store()
            [job] = (await store.claim(Claim("w1", (Lane(topic),), 1, 30.0))).jobs
            await store.settle([Settlement(job.id, job.version, decide(job, outcome, await store.now(), ran=0.01))])
            return job.id

        return self.do(work)

    def status(self, job_id: str) -> str:
        return str(self.json("jobs", "show", job_id)["status"])


@pytest.fixture
def shell(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROWLOCK_TRACEBACK", raising=False)
    return Shell(url, tmp_path)


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ROWLOCK_")} | more


def start(*arguments: str, cwd: Path, stdin: Any = subprocess.DEVNULL, **environ: str) -> "subprocess.Popen[str]":
    """Start `rowlock` as a process that runs beside the test. Return the process."""
    pipes: Any = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "rowlock", *arguments]
    return subprocess.Popen(command, cwd=cwd, env=environment(**environ), text=True, **pipes)


def rowlock(*arguments: str, cwd: Path, stdin: str | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rowlock", *arguments],
        cwd=cwd,
        env=environment(**environ),
        capture_output=True,
        input=stdin,
        text=True,
        timeout=60,
    )
