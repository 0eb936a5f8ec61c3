"""Workers over HTTP (the example in plain Python) in their own processes. They are killed, frozen for two to five
leases, and cut off, because their server is killed and started again. There are no other workers: the server takes back
the jobs of lost workers."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from rowlock.access import tokens
from rowlock.jobs import Jobs
from tests.faults.load import Load
from tests.faults.places import staged
from tests.faults.results import Result
from tests.faults.stage import LEASE, PATIENCE, ROOT, Stage
from tests.faults.suites import Cell
from tests.waiting import until

WORKERS = 4
TRUST = 15.0  # seconds until a server that has just started rescues jobs
SERVER_KILLS = 0.1  # share of faults that kill the server

Process = subprocess.Popen[bytes]


class Remote:
    """The server, and the workers that talk to it: here, the example. `app`: the server knows the policies of its
    tasks."""

    def __init__(self, stage: Stage, token: str, *, app: str | None = None) -> None:
        self.stage = stage
        self.token = token
        self._app = [app] if app else []
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.workers: list[Process] = []
        self.in_trouble: set[int] = set()  # pids that suffer a fault already
        self.serve()

    def start(self, *command: str, **environ: str) -> Process:
        known = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "ROWLOCK_URL": self.stage.url}
        known["ROWLOCK_PROOF_RECORD"] = str(self.stage.folder / "record")
        with (self.stage.folder / "remote.log").open("ab") as log:
            return subprocess.Popen(command, env={**os.environ, **known, **environ}, stdout=log, stderr=log)

    def serve(self) -> None:
        self.server = self.start(sys.executable, "-m", "rowlock", "serve", *self._app, "--port", str(self.port))

    def hire(self) -> None:
        api = f"http://127.0.0.1:{self.port}"
        environ = {"ROWLOCK_API": api, "ROWLOCK_TOKEN": self.token, "ROWLOCK_LEASE": str(LEASE)}
        worker = str(ROOT / "examples" / "worker" / "worker.py")
        self.workers.append(self.start(sys.executable, worker, "greet", **environ))

    async def busy(self, topic: str | None = None) -> Process | None:
        """Return a worker that holds a job (of this topic) at this moment, and suffers no fault; None if there is
        none."""
        rows = await self.stage.tables.fetch("SELECT locked_by, topic FROM _jobs")
        names = [name for name, its in rows if name and topic in (None, its)]
        found = [
            one
            for one in self.workers
            if one.pid not in self.in_trouble and any(f"-{one.pid}-" in name for name in names)
        ]
        return self.stage.chance.choice(found) if found else None

    @asynccontextmanager
    async def victim(self) -> AsyncIterator[Process]:
        """Yield a busy worker. It suffers no other fault during the block."""
        worker = await until(self.busy, what="somebody to work", patience=PATIENCE)
        with self.trouble(worker):
            yield worker

    @contextmanager
    def trouble(self, worker: Process) -> Iterator[None]:
        """The worker suffers no other fault during the block."""
        self.in_trouble.add(worker.pid)
        try:
            yield
        finally:
            self.in_trouble.discard(worker.pid)

    async def kill_server(self) -> None:
        """Kill the server, and start it again within a lease."""
        self.server.kill()
        self.server.wait()
        await self.stage.pause(0.0, LEASE)
        self.serve()

    def kill(self, worker: Process) -> None:
        """Kill the worker by SIGKILL, and start another one in its place."""
        self.stage.kill(worker.pid)
        worker.wait()
        self.workers.remove(worker)
        self.hire()

    async def freeze(self, worker: Process) -> None:
        """Freeze the worker for longer than its leases, so that other workers take its jobs over."""
        self.stage.record.fault("stop", worker.pid)
        worker.send_signal(signal.SIGSTOP)
        await self.stage.pause(2 * LEASE, 5 * LEASE)
        self.stage.record.fault("cont", worker.pid)
        worker.send_signal(signal.SIGCONT)

    async def misfortune(self) -> None:
        chance = self.stage.chance.random()
        if chance < SERVER_KILLS:
            await self.kill_server()
            return
        async with self.victim() as worker:
            if chance < 0.55:
                self.kill(worker)
            else:
                await self.freeze(worker)

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
