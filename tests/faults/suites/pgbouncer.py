"""PgBouncer in transaction mode. It has fewer connections to the server than clients have to PgBouncer. Workers and
clients use it as docs/stores.md says. Both workers and PgBouncer are killed under load."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rowlock.jobs import Jobs
from tests.faults.load import Load
from tests.faults.places import on_server
from tests.faults.results import Result
from tests.faults.stage import PATIENCE, Stage
from tests.faults.suites import Cell
from tests.faults.suites.kills import are_enough, kill_busy
from tests.pgbouncer import POOL, PgBouncer, find_pgbouncer
from tests.servers import PostgresServer
from tests.waiting import until

WORKERS, PROCESSES = 3, 2
KILLS = 9  # kills of workers
DEATHS = 3  # kills of PgBouncer
OPTIONS = "?statement_cache_size=0&listen=off"


async def run(cell: Cell) -> Result:
    program = find_pgbouncer()
    if program is None:
        result = cell.result()
        result.not_run = "there is no pgbouncer on this machine"
        return result
    async with on_server(cell) as (stage, server), Kept(program, server).running() as bouncer:
        url = bouncer.through(server.url()) + OPTIONS
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
    """Return True if enough processes run. First restart the workers that have ended, as a service manager does: a
    worker ends if it finds no database at its start."""
    for worker in [one for one in stage.workers if one.process.poll() is not None]:
        assert "can't be reached" in worker.output, worker.output
        stage.workers.remove(worker)
        stage.launch("--no-listen", processes=PROCESSES, ROWLOCK_URL=url)
    return are_enough(stage)


class Kept(PgBouncer):
    """A PgBouncer that is started again when it crashes. rowlock doesn't promise that PgBouncer never crashes."""

    def __init__(self, program: str, server: PostgresServer) -> None:
        super().__init__(program, server)
        self._using = asyncio.Lock()  # held by the task that starts or kills PgBouncer

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Kept"]:
        try:
            await asyncio.to_thread(self.start)
            heartbeat_thread = asyncio.create_task(self._keep())
            try:
                yield self
            finally:
                heartbeat_thread.cancel()
                await asyncio.wait([heartbeat_thread])
        finally:
            self.close()

    @asynccontextmanager
    async def killed(self) -> AsyncIterator[int]:
        """Kill PgBouncer, and start it again after the block. Yield the pid that it had."""
        async with self._using:
            pid = self.pid
            await asyncio.to_thread(self.kill9)
            yield pid or 0
            await asyncio.to_thread(self.start)

    async def _keep(self) -> None:
        while True:
            async with self._using:
                if self.pid is None:
                    await asyncio.to_thread(self.start)
            await asyncio.sleep(0.1)
