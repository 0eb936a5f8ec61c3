"""PgBouncer in transaction mode, in front of a test server."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers import START_TIMEOUT, PostgresServer, ServerError, _free_port, _Guard

PLACES = ("/usr/sbin",)  # a folder that a user's PATH may lack
POOL = 5  # connections to the server for each database


def find_pgbouncer() -> str | None:
    return shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), *PLACES]))


class PgBouncer:
    """A PgBouncer with its own guard, which stops it when the tests end. `with PgBouncer(program, server) as
    bouncer:`"""

    def __init__(self, program: str, server: PostgresServer, *, pool: int = POOL) -> None:
        self._program = program
        self._server = server
        self._pool = pool
        self._port = _free_port()
        said = subprocess.check_output([program, "--version"], text=True)
        # 1.21 is the first version that renames prepared statements, and prepares them on each server connection.
        self.keeps_statements = tuple(map(int, re.findall(r"\d+", said)[:2])) >= (1, 21)
        self._guard: _Guard | None = None
        self.starts = 0

    def through(self, url: str) -> str:
        """Return the URL of the same database through PgBouncer."""
        return url.replace(f"@{self._server.host}:{self._server.port}/", f"@127.0.0.1:{self._port}/", 1)

    @property
    def log(self) -> str:
        return (self.guard.folder / "log").read_text(errors="replace")

    @property
    def guard(self) -> _Guard:
        assert self._guard is not None, "it was not started"
        return self._guard

    def start(self) -> None:
        """Start, or start again after it has ended. Return when it takes connections."""
        if self._guard is None:
            uid = os.geteuid() or pwd.getpwnam("nobody").pw_uid  # PgBouncer refuses to run as root
            self._guard = _Guard(uid, Path(tempfile.gettempdir()))
            self._configure(uid)
        deadline = time.monotonic() + START_TIMEOUT
        while not self._serves():
            if time.monotonic() > deadline:
                raise ServerError(f"PgBouncer did not start:\n{self.log}")
            time.sleep(0.02)

    def kill9(self) -> None:
        self.guard("kill9")

    @property
    def pid(self) -> int | None:
        """The pid of PgBouncer; None if it doesn't run."""
        pid: int | None = self.guard("poll")
        return pid

    def close(self) -> None:
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _serves(self) -> bool:
        if self.pid is None:
            argv = [self._program, str(self.guard.folder / "pgbouncer.ini")]
            self.guard("start", argv, dict(os.environ), signal.SIGINT)
            self.starts += 1
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=10).close()
        except OSError:
            return False
        return True

    def _configure(self, uid: int) -> None:
        server, folder = self._server, self.guard.folder
        password = server.url().partition(f"//{server.user}:")[2].partition("@")[0]
        texts = {
            "users": f'"{server.user}" "{password}"\n',
            "pgbouncer.ini": "\n".join(
                [
                    "[databases]",
                    f"* = host={server.host} port={server.port}",
                    "[pgbouncer]",
                    f"listen_addr = 127.0.0.1\nlisten_port = {self._port}\nunix_socket_dir =",
                    f"auth_type = scram-sha-256\nauth_file = {folder}/users",
                    f"pool_mode = transaction\ndefault_pool_size = {self._pool}\nmax_client_conn = 500",
                    "max_prepared_statements = 100" if self.keeps_statements else "",
                    "",
                ]
            ),
        }
        for name, text in texts.items():
            file = folder / name
            file.write_text(text)
            os.chown(file, uid, -1)
            file.chmod(0o600)
