"""SIGTERM when stopping is hard: while the database does not answer, and on a busy machine. A frozen process holds
SQLite's write lock, or a session locks PostgreSQL's table. The worker is gone within its grace and a second. If the
database answers, the worker leaves no lease behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import asyncpg

from rowlock.jobs import Jobs
from tests.faults.load import Load
from tests.faults.places import staged
from tests.faults.results import Result
from tests.faults.stage import GRACE, PATIENCE, Stage
from tests.faults.suites import Cell
from tests.faults.suites.deploys import have_long_ones
from tests.proof.history import Violation
from tests.waiting import until

LATE = 1.0  # seconds that a busy machine may be late in reporting the end of a process
_HOLD_LOCK = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
_BURN = "while True: pass"


async def run(cell: Cell) -> Result:
    async with staged(cell) as stage, Jobs(stage.url) as jobs:
        load = Load(stage, jobs, {"quick": {}, "nap": {"seconds": 0.3}})
        stops = Stops(stage, jobs)
        for _ in range(cell.scale.stops):
            await load.pile("quick", 50)
            await stops.while_locked()
        with burning():
            for _ in range(cell.scale.stops):
                await load.pile("quick", 50)
                await stops.while_busy()
        await stage.start_workers(1)
        result = await stage.finished(cell.result(stops=len(stops.locked + stops.busy)))
        result.violations += stops.violations
        result.figures |= {
            "s longest stop while locked": max(stops.locked),
            "s longest stop on a busy machine": max(stops.busy),
        }
        return result


class Stops:
    def __init__(self, stage: Stage, jobs: Jobs) -> None:
        self._stage = stage
        self._jobs = jobs
        self.locked: list[float] = []  # seconds
        self.busy: list[float] = []
        self.violations: list[Violation] = []

    async def while_locked(self) -> None:
        await self._work()
        async with locked(self._stage):
            await self._stop(self.locked)

    async def while_busy(self) -> None:
        await self._work()
        await self._stop(self.busy)
        left = "SELECT count(*) FROM _jobs WHERE locked_until IS NOT NULL"
        [(leases,)] = await self._stage.tables.fetch(left)
        if leases:
            self.violations.append(Violation("STOP", None, f"{leases} leases are left behind on a busy machine"))

    async def _work(self) -> None:
        """Start a worker, and let it begin jobs that take longer than its grace."""
        await self._stage.start_workers(1)
        await have_long_ones(self._stage, self._jobs)
        await until(self._stage.busy_process, what="somebody to work", patience=PATIENCE)

    async def _stop(self, took: list[float]) -> None:
        [worker] = self._stage.workers
        began = time.monotonic()
        worker.signal(signal.SIGTERM)
        await asyncio.to_thread(worker.process.wait)
        took.append(time.monotonic() - began)
        self._stage.workers.remove(worker)
        if took[-1] > GRACE + 1 + LATE:
            self.violations.append(Violation("STOP", None, f"took {took[-1]:.1f} s, with a grace of {GRACE:g} s"))


@asynccontextmanager
async def locked(stage: Stage) -> AsyncIterator[None]:
    """During the block, no process can change a job."""
    if stage.store == "postgres":
        connection = await asyncpg.connect(stage.direct)
        await connection.execute("BEGIN; LOCK TABLE _jobs IN ACCESS EXCLUSIVE MODE")
        try:
            yield
        finally:
            connection.terminate()
        return
    path = stage.direct.removeprefix("sqlite:///")
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", _HOLD_LOCK, path, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert (await holder.stdout.readline()).strip() == b"locked"
        yield
    finally:
        holder.kill()
        await holder.wait()


@contextmanager
def burning() -> Iterator[None]:
    """During the block, twice as many processes as there are cores run a busy loop."""
    burners = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
