"""Workers over HTTP (the example in plain Python), in processes of their own: killed, frozen for two to five leases,
and cut off, because the server that they talk to is killed and started again. Nobody else works here: the server takes
back what is left behind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from rowlock.access import tokens
from rowlock.jobs import Jobs
from tests.faults.load import Load
from tests.faults.places import staged
from tests.faults.results import Result
from tests.faults.stage import LEASE, PATIENCE, ROOT, Stage
from tests.faults.suites import Cell
from tests.waiting import until

WORKERS = 4
TRUST = 15.0  # seconds until a server that has just started rescues anybody's jobs
SERVER_KILLS = 0.1  # of all faults


class Remote:
    """The server, and who works for it."""

    def __init__(self, stage: Stage, token: str) -> None:
        self.stage = stage
        self._token = token
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.workers: list[subprocess.Popen[bytes]] = []
        self.frozen: set[int] = set()
        self.serve()

    def _start(self, *command: str, **environ: str) -> subprocess.Popen[bytes]:
        known = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "ROWLOCK_URL": self.stage.url}
        with (self.stage.folder / "remote.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *command], env={**os.environ, **known, **environ}, stdout=log, stderr=log
            )

    def serve(self) -> None:
        self.server = self._start("-m", "rowlock", "serve", "--port", str(self._port))

    def hire(self) -> None:
        api = f"http://127.0.0.1:{self._port}"
        environ = {"ROWLOCK_API": api, "ROWLOCK_TOKEN": self._token, "ROWLOCK_LEASE": str(LEASE)}
        self.workers.append(self._start(str(ROOT / "examples" / "worker" / "worker.py"), "greet", **environ))

    async def busy(self) -> subprocess.Popen[bytes] | None:
        """One that holds a job at this moment."""
        names = [name for (name,) in await self.stage.tables.fetch("SELECT locked_by FROM _jobs") if name]
        found = [
            one for one in self.workers if one.pid not in self.frozen and any(f"-{one.pid}-" in name for name in names)
        ]
        return self.stage.chance.choice(found) if found else None

    async def misfortune(self) -> None:
        chance = self.stage.chance.random()
        if chance < SERVER_KILLS:
            self.server.kill()
            self.server.wait()
            await self.stage.pause(0.0, LEASE)
            self.serve()
            return
        worker = await until(self.busy, what="somebody to work", patience=PATIENCE)
        if chance < 0.55:
            self.stage.kill(worker.pid)
            worker.wait()
            self.workers.remove(worker)
            self.hire()
        else:
            await self._freeze(worker.pid)

    async def _freeze(self, pid: int) -> None:
        self.frozen.add(pid)
        self.stage.record.fault("stop", pid)
        os.kill(pid, signal.SIGSTOP)
        await self.stage.pause(2 * LEASE, 5 * LEASE)
        self.stage.record.fault("cont", pid)
        os.kill(pid, signal.SIGCONT)
        self.frozen.discard(pid)

    def stop(self) -> None:
        for process in [*self.workers, self.server]:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()


async def run(cell: Cell) -> Result:
    async with staged(cell) as stage, Jobs(stage.url) as jobs, hired(stage, jobs) as remote:
        stage.settings["slack"] += TRUST
        load = Load(stage, jobs, {"greet": {"name": "ada", "seconds": 0.2}})
        faults = cell.scale.zombies
        async with load.going_on(rate=WORKERS * 2.0, least=faults * 5):
            turns = [faults // 2 + (n < faults % 2) for n in range(2)]
            await asyncio.gather(*(suffer(remote, turn) for turn in turns))
        await stage.drained()
        return await stage.judged(cell.result())


async def suffer(remote: Remote, times: int) -> None:
    for _ in range(times):
        await remote.misfortune()
        await remote.stage.pause(0.2, 1.0)


@asynccontextmanager
async def hired(stage: Stage, jobs: Jobs) -> AsyncIterator[Remote]:
    _, token = await tokens.create(await jobs._store(), "remote", ["worker"], by="test")
    remote = Remote(stage, token)
    try:
        for _ in range(WORKERS):
            remote.hire()
        yield remote
    finally:
        remote.stop()
