"""The test servers themselves: they answer, survive what crash tests do to them, and leave nothing behind."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from tests.closing import connected
from tests.guard import processes, running
from tests.servers import PostgresServer, ServerError, copy_programs, find_postgres
from tests.waiting import wait_until

ROOT = Path(__file__).parent.parent
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can switch users")

# A small test run: it starts a server, prints its folder and pid, and waits. Its fork outlives it, and holds its pipes.
RUN = """
import os, sys
from tests.servers import PostgresServer
with PostgresServer() as server:
    if os.fork() == 0:
        os._exit(len(sys.stdin.read()))
    print(server.folder, server.pid, flush=True)
    sys.stdin.read()
"""


def family(pid: int) -> set[int]:
    return {pid} | {child for child, parent, _ in processes() if parent == pid}


async def fetch(url: str, query: str) -> object:
    async with connected(url) as connection:
        return await connection.fetchval(query)


async def test_each_test_has_a_database_of_its_own(postgres: PostgresServer, postgres_url: str) -> None:
    name = await fetch(postgres_url, "SELECT current_database()")
    assert postgres_url == postgres.url(str(name))
    assert name != "postgres"


async def test_the_password_is_asked_for(postgres: PostgresServer) -> None:
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(host=postgres.host, port=postgres.port, user=postgres.user, password="guess")


async def test_commits_survive_kill9_and_restart() -> None:
    with PostgresServer(durable=True) as server:
        assert await fetch(server.url(), "SHOW fsync") == "on"
        await server.execute("CREATE TABLE kept (id int)", "INSERT INTO kept VALUES (1)")
        pid = server.pid
        assert pid
        killed = family(pid)
        assert len(killed) > 3
        server.kill9()
        assert server.pid is None
        assert not running(killed)
        server.start()
        await server.execute("INSERT INTO kept VALUES (2)")
        server.restart()
        assert await fetch(server.url(), "SELECT count(*) FROM kept") == 2


def test_close_after_kill9_removes_every_trace() -> None:
    with PostgresServer() as server:
        folder = server.folder
        segment = (folder / "data" / "postmaster.pid").read_text().splitlines()[6].split()[-1]
        server.kill9()
    assert not folder.exists()
    if shutil.which("ipcs"):
        shared_memory = subprocess.check_output(["ipcs", "-m"], text=True)
        assert segment not in [word for line in shared_memory.splitlines() for word in line.split()[1:2]]


def test_a_taken_port_is_tried_again_elsewhere(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    free = postgres.port + 1
    ports = iter([postgres.port, free, *range(free + 1, free + 10)])
    monkeypatch.setattr("tests.servers._free_port", lambda: next(ports))
    with PostgresServer() as server:
        assert server.port >= free


def test_a_server_that_cannot_start_says_why() -> None:
    server = PostgresServer(settings={"no_such_setting": "1"})
    with pytest.raises(ServerError, match="no_such_setting"), server:
        pass


@needs_root
def test_programs_in_a_private_folder_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = copy_programs(find_postgres(), tmp_path / "private")
    (tmp_path / "private").chmod(0o700)
    monkeypatch.setenv("ROWLOCK_TEST_PG_BIN", str(private))
    with PostgresServer() as server:
        assert server.pid


def python_for(user: str | None) -> str:
    """Return a Python that this user can run here: the tests' own may be in a private home folder."""
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            if not subprocess.run([python, "-c", "import tests.servers"], cwd=ROOT, user=user, check=False).returncode:
                return python
    pytest.skip(f"{user} cannot run Python here")


@pytest.mark.parametrize("user", [None, pytest.param("nobody", marks=needs_root)])
def test_nothing_is_left_when_the_test_run_is_killed(user: str | None) -> None:
    """The run is started by the user of the tests, who may be root, and by an unprivileged user."""
    group = None if user is None else pwd.getpwnam(user).pw_gid
    with subprocess.Popen(
        [python_for(user), "-c", RUN],
        cwd=ROOT,
        env=os.environ | {"ROWLOCK_TEST_PG_BIN": str(find_postgres())},  # only the tests' Python may have the wheel
        user=user,
        group=group,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout
        folder, pid = run.stdout.readline().split()
        server = family(int(pid))
        assert running(server) == server
        run.send_signal(signal.SIGKILL)
        wait_until(lambda: not running(server))
        wait_until(lambda: not Path(folder).exists())
