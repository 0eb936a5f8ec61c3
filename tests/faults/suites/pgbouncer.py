"""PgBouncer in transaction mode, with fewer connections to the server than clients have to it. Workers and clients use
it as docs/stores.md says, and both workers and PgBouncer are killed under load."""

import asyncio
import os
import pwd
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from rowlock.jobs import Jobs
from tests.faults.load import Load
from tests.faults.places import on_server
from tests.faults.results import Result
from tests.faults.stage import PATIENCE, Stage
from tests.faults.suites import Cell
from tests.faults.suites.kills import are_enough, kill_busy
from tests.runtime.system.fleet import until
from tests.servers import PostgresServer, _free_port, _Guard

WORKERS, PROCESSES = 3, 2
KILLS = 9  # of workers
DEATHS = 3  # of PgBouncer
POOL = 5  # connections to the server
OPTIONS = "?statement_cache_size=0&listen=off"


async def run(cell: Cell) -> Result:
    program = shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
    if program is None:
        result = cell.result()
        result.not_run = "there is no pgbouncer on this machine"
        return result
    async with on_server(cell) as (stage, server), PgBouncer(program, server).running() as bouncer:
        url = bouncer.url
        async with Jobs(url) as jobs:
            load = Load(stage, jobs)
            survivor = stage.launch("--no-listen", ROWLOCK_URL=url)
            stage.workers.remove(survivor)
            await stage.start_workers(WORKERS, "--no-listen", processes=PROCESSES, ROWLOCK_URL=url)
            async with load.going_on(rate=cell.scale.rate / 2, least=KILLS * 100):
                for n in range(KILLS):
                    await until(lambda: are_started(stage, url), what="enough workers", patience=PATIENCE)
                    await kill_busy(stage, "--no-listen", ROWLOCK_URL=url)
                    await stage.pause(0.2, 0.8)
                    if n % (KILLS // DEATHS) == 0:
                        async with bouncer.killed() as pid:
                            stage.record.fault("pgbouncer kill", pid)
                            await stage.pause(0.0, 1.0)
            await stage.drained()
            stage.workers.append(survivor)
            await stage.stop_all()
        (cell.folder / "pgbouncer.log").write_text(bouncer.log)
        result = await stage.judged(cell.result())
        result.figures["connections for all of them"] = POOL
        result.figures["times that PgBouncer ended by itself"] = bouncer.starts - 1 - DEATHS
        return result


def are_started(stage: Stage, url: str) -> bool:
    """Start again what has ended, as a service manager does: a worker that finds no database when it starts says so
    and ends."""
    for worker in [one for one in stage.workers if one.process.poll() is not None]:
        assert "can't be reached" in worker.output, worker.output
        stage.workers.remove(worker)
        stage.launch("--no-listen", processes=PROCESSES, ROWLOCK_URL=url)
    return are_enough(stage)


class PgBouncer:
    """Owned by a guard of its own, which ends it when we end. It is no promise of ours that it never crashes: then it
    is started again, and counted."""

    def __init__(self, program: str, server: PostgresServer) -> None:
        self._program = program
        self._server = server
        self._port = _free_port()
        self._using = asyncio.Lock()  # the guard
        self.starts = 0

    @property
    def url(self) -> str:
        server = self._server
        return server.url().replace(f":{server.port}/", f":{self._port}/", 1) + OPTIONS

    @property
    def log(self) -> str:
        return (self._guard.folder / "log").read_text(errors="replace")

    @asynccontextmanager
    async def running(self) -> AsyncIterator["PgBouncer"]:
        uid = os.geteuid() or pwd.getpwnam("nobody").pw_uid  # it refuses to run as root
        self._guard = _Guard(uid, Path(tempfile.gettempdir()))
        try:
            self._configure(uid)
            await self._start()
            keeper = asyncio.create_task(self._keep())
            try:
                yield self
            finally:
                keeper.cancel()
        finally:
            self._guard.close()

    @asynccontextmanager
    async def killed(self) -> AsyncIterator[int]:
        """Inside, it is away. Tells its pid."""
        async with self._using:
            pid = self._guard("poll")
            await asyncio.to_thread(self._guard, "kill9")
            yield pid or 0
            await self._start()

    def _configure(self, uid: int) -> None:
        server, folder = self._server, self._guard.folder
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
                    f"pool_mode = transaction\ndefault_pool_size = {POOL}\nmax_client_conn = 500",
                    "",
                ]
            ),
        }
        for name, text in texts.items():
            file = folder / name
            file.write_text(text)
            os.chown(file, uid, -1)
            file.chmod(0o600)

    async def _start(self) -> None:
        """Returns when it serves."""
        await until(self._serves, what="pgbouncer")

    async def _keep(self) -> None:
        while True:
            async with self._using:
                if self._guard("poll") is None:
                    await self._start()
            await asyncio.sleep(0.1)

    async def _serves(self) -> bool:
        if self._guard("poll") is None:
            argv = [self._program, str(self._guard.folder / "pgbouncer.ini")]
            self._guard("start", argv, dict(os.environ), signal.SIGINT)
            self.starts += 1
        try:
            connection = await asyncpg.connect(self.url.removesuffix(OPTIONS), statement_cache_size=0, timeout=10)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        await connection.close()
        return True
