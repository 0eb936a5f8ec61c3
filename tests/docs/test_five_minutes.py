"""The README's first five minutes, as a newcomer would type them."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
APP = re.compile(r"Put this into `app.py`:\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^## Five minutes\n(.*?)^## ", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def from_readme(pattern: re.Pattern[str]) -> str:
    found = pattern.search((ROOT / "README.md").read_text("utf-8"))
    assert found
    return found[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(from_readme(APP))
    return tmp_path


def run(folder: Path, *command: str) -> str:
    environ = {**os.environ, "ROWLOCK_URL": "sqlite:///jobs.db"}
    ended = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture
def worker(folder: Path) -> Iterator[None]:
    run(folder, sys.executable, "app.py")
    running = subprocess.Popen([sys.executable, "-m", "rowlock", "worker", "app:jobs"], cwd=folder)
    try:
        yield
    finally:
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0


def test_every_command_of_the_page_is_tried_here() -> None:
    blocks = "\n".join(SHELL.findall(from_readme(SECTION)))
    commands = set(re.findall(r"\browlock ([a-z]+)", blocks))
    assert commands == {"worker", "enqueue", "jobs", "top", "why"}


def test_enqueue_run_look(folder: Path, worker: None) -> None:
    rowlock = [sys.executable, "-m", "rowlock"]
    result = run(folder, *rowlock, "enqueue", "render", '{"pages": 1000}', "--wait", "-o", "json")
    assert json.loads(result)["result"] == {"pages": 1000}
    jobs = json.loads(run(folder, *rowlock, "jobs", "list", "-o", "json"))["items"]
    assert sorted(job["topic"] for job in jobs) == ["render", "render", "send_mail", "send_mail"]
    [later] = [job for job in jobs if job["status"] == "pending"]
    assert later["key"] == "welcome-ada"
    assert "due" in run(folder, *rowlock, "why", later["id"])
    assert "send_mail" in run(folder, *rowlock, "top", "--once")
