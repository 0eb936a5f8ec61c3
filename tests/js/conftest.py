"""`served`: a real `rowlock serve` over a database of each kind, for the tests in js/test. Node runs them."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from rowlock import Jobs
from rowlock.access import superusers, tokens
from tests.databases import KINDS, Databases

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "js" / "test"
OLDEST_NODE = 20
COOKIE = "rowlock_session"
BOSS, PASSWORD = "boss@example.com", "correct horse battery staple"


@functools.cache
def no_node() -> str | None:
    """Return why the tests can't run; None if they can."""
    program = shutil.which("node")
    if program is None:
        return f"there is no Node on this machine: install Node {OLDEST_NODE} or later"
    version = subprocess.check_output([program, "--version"], text=True).strip()
    if int(version.lstrip("v").partition(".")[0]) < OLDEST_NODE:
        return f"Node is {version}: install Node {OLDEST_NODE} or later"
    return None


class Served:
    """A running server, and the facts about it that a test in JavaScript needs."""

    def __init__(self, database: str, server: str, token: str) -> None:
        self.database = database
        self.server = server
        self.token = token

    def session(self) -> str:
        """Log in. Return the cookie's value."""
        answer = httpx.post(f"{self.server}/api/auth/login", json={"email": BOSS, "password": PASSWORD}, timeout=30)
        return answer.cookies[COOKIE]

    def environ(self) -> dict[str, str]:
        return {
            "ROWLOCK_URL": self.server,
            "ROWLOCK_TOKEN": self.token,
            "ROWLOCK_COOKIE": f"{COOKIE}={self.session()}",
            "ROWLOCK_SERVE": json.dumps([sys.executable, "-m", "rowlock", "serve", "--url", self.database]),
        }

    def run(self, test: str, **environ_of_test: str) -> None:
        """Run a file of JavaScript tests. If a test fails, show its output."""
        command = ["node", "--test", "--test-reporter=spec", str(TESTS / test)]
        environ = {**os.environ, **self.environ(), **environ_of_test}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        ran = re.search(r"^ℹ pass (\d+)$", done.stdout, re.MULTILINE)
        assert ran is not None, done.stdout
        assert int(ran[1]) > 0, done.stdout


@contextmanager
def serving(url: str, folder: Path, *options: str) -> Iterator[str]:
    """Run a server. Yield its address."""
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "rowlock", "serve", "--url", url, "--port", "0", *options],
            env=environ, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"(http://\S+)", line)
        assert found, line + (folder / "server.log").read_text()
        yield found[1]
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.fixture(params=KINDS)
async def served(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> AsyncIterator[Served]:
    if (reason := no_node()) is not None:
        pytest.skip(reason)
    async with databases.at(request.param, tmp_path) as url:
        async with Jobs(url) as jobs:
            store = await jobs._store()
            _, token = await tokens.create(store, "tests", ["admin"], by="test")
            await superusers.create(store, BOSS, PASSWORD, by="test")
        with serving(url, tmp_path) as address:
            yield Served(url, address, token)
