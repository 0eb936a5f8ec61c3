"""Own a database server for a test run, and live just longer than the run, to clean up.

A script: `python guard.py BASE UID`. It makes a folder under BASE, owned by UID, and obeys one JSON list per line on
stdin with one JSON value per line on stdout. When stdin ends or its parent is gone, even by kill -9, it stops the
server and removes the folder. It knows nothing of PostgreSQL and imports nothing but the standard library.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GRACE = 10.0  # seconds a server has to follow its stop signal before it is killed


def processes() -> Iterator[tuple[int, int, str]]:
    """Yield (pid, parent, state) of every process. Read /proc if it exists, because a slim container has no ps."""
    if not Path("/proc/self/stat").exists():
        for line in subprocess.check_output(["ps", "-axo", "pid=,ppid=,stat="], text=True).splitlines():
            pid, parent, state = line.split()
            yield int(pid), int(parent), state[0]
        return
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended in the meantime
            state, parent = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]
            yield int(stat.parent.name), int(parent), state


def running(pids: set[int]) -> set[int]:
    """Return those of `pids` that still run. A zombie doesn't count: it holds no memory, lock or socket."""
    return {pid for pid, _, state in processes() if pid in pids and state != "Z"}


class Guard:
    def __init__(self, folder: Path, uid: int) -> None:
        self.folder = folder
        self.uid = uid
        self.server: subprocess.Popen[bytes] | None = None
        self.stop_signal = signal.SIGTERM

    def _popen(self, argv: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        # Only root can switch users; without root, `uid` is the guard's own. The caller shows the log after a failure.
        switch: dict[str, Any] = {"user": self.uid, "group": self.uid, "extra_groups": []} if os.geteuid() == 0 else {}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                argv, env=env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **switch
            )

    def run(self, argv: list[str], env: dict[str, str]) -> int:
        """Run a program to its end. Return its exit code."""
        return self._popen(argv, env).wait()

    def start(self, argv: list[str], env: dict[str, str], stop_signal: int) -> int:
        """Start the server, and return its pid. `stop_signal` stops the server when the test run is gone."""
        if self.poll() is not None:
            raise RuntimeError("the server runs already")
        self.stop_signal = signal.Signals(stop_signal)
        self.server = self._popen(argv, env)
        return self.server.pid

    def poll(self) -> int | None:
        """Return the server's pid; None if it doesn't run."""
        return self.server.pid if self.server and self.server.poll() is None else None

    def stop(self, with_signal: int) -> None:
        if self.server is None or self.poll() is None:
            return
        self.server.send_signal(with_signal)
        self.server.send_signal(signal.SIGCONT)  # a test may have frozen it
        try:
            self.server.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.kill9()

    def kill9(self) -> None:
        """Kill the server and all its children by SIGKILL. Return when none of them runs."""
        if self.server is None or self.poll() is None:
            return
        self.server.send_signal(signal.SIGSTOP)  # so that it forks no further child meanwhile
        children = {pid for pid, parent, _ in processes() if parent == self.server.pid}
        self.server.kill()
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.server.wait()
        while running(children):
            time.sleep(0.01)


def serve(guard: Guard, parent: int) -> None:
    """Obey requests until stdin ends or the parent is gone. A fork of a dead parent may still hold the pipe open."""
    requests = sys.stdin.buffer
    while os.getppid() == parent:
        if not select.select([requests], [], [], 0.5)[0]:
            continue
        line = requests.readline()
        if not line:
            return
        verb, *arguments = json.loads(line)
        print(json.dumps(getattr(guard, verb)(*arguments)), flush=True)


def main() -> None:
    parent = os.getppid()
    base, uid = sys.argv[1], int(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix="rowlock-", dir=base))
    guard = Guard(folder, uid)
    try:
        os.chown(folder, uid, -1)
        print(json.dumps(str(folder)), flush=True)
        serve(guard, parent)
    finally:
        guard.stop(guard.stop_signal)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
