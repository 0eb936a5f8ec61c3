"""Faults of all kinds, one after the other in a random order. Frozen workers sleep while the other faults happen."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from rowlock.errors import StoreError
from rowlock.jobs import Jobs
from tests.faults.stage import LEASE, PATIENCE, Stage
from tests.faults.suites.outages import BACKENDS, welcome
from tests.faults.wire import Wire
from tests.proof.history_app import new_ids
from tests.runtime.system.fleet import WorkerProcess
from tests.servers import PostgresServer
from tests.waiting import until

WORKERS, PROCESSES = 3, 2
TIMEOUT = 3.0  # seconds for a statement, and for a connection
LISTENERS = f"{BACKENDS} AND query ~ '^LISTEN|rowlock[.]listener|pg_advisory_(un)?lock_shared'"

Fault = Callable[[], Awaitable[None]]


def options_of(url: str) -> str:
    return url if url.startswith("sqlite") else f"{url}?command_timeout={TIMEOUT:g}&connect_timeout={TIMEOUT:g}"


class Mixture:
    """Faults for a stage. Those workers that may be harmed reach the server by `wire`."""

    def __init__(self, stage: Stage, server: PostgresServer | None, wire: Wire | None, jobs: Jobs) -> None:
        self._stage = stage
        self._server = server
        self._wire = wire
        self._jobs = jobs
        self._asleep: dict[int, asyncio.Task[None]] = {}
        self._menu: list[tuple[int, Fault]] = [(4, self._kill), (2, self._kill_machine), (2, self._sleep)]
        self._menu += [(1, self._replace), (1, self._poison)]
        if wire is not None:
            self._menu += [(1, self._restart), (2, self._reset), (1, self._half_open), (1, self._deafen)]

    async def begin(self) -> None:
        for worker in [self._launch() for _ in range(WORKERS)]:
            await self._stage.fleet.working(worker, PROCESSES)

    async def stir(self, seconds: float) -> None:
        """Make faults for so many seconds. Return when all frozen workers are awake again."""
        end = time.monotonic() + seconds
        faults = [fault for weight, fault in self._menu for _ in range(weight)]
        while time.monotonic() < end:
            await self._stage.chance.choice(faults)()
            await self._stage.pause(0.5, 2.0)
        await asyncio.gather(*self._asleep.values())

    # ── Workers ──

    def _launch(self) -> WorkerProcess:
        url = options_of(self._wire.through(self._stage.url) if self._wire else self._stage.url)
        return self._stage.launch(processes=PROCESSES, ROWLOCK_URL=url)

    async def _busy(self) -> tuple[WorkerProcess, int] | None:
        """Return a worker, and a process of it that holds jobs and is not frozen; None if there is none."""
        found = await self._stage.busy_process()
        return None if found is None or found[1] in self._asleep else found

    async def _kill(self) -> None:
        if found := await self._busy():
            self._stage.kill(found[1])

    async def _kill_machine(self) -> None:
        if found := await self._busy():
            self._stage.kill_machine(found[0])
            self._launch()

    async def _replace(self) -> None:
        """Start a new worker, and stop an old one by SIGTERM."""
        awake = [worker for worker in self._stage.workers if not worker.children() & self._asleep.keys()]
        if awake:
            worker = self._stage.chance.choice(awake)
            self._launch()
            await self._stage.stop_politely(worker)

    async def _poison(self) -> None:
        """Enqueue a job that kills the worker that runs it."""
        job_id = new_ids.one()
        with suppress(StoreError), self._stage.record.operation("enqueue", [job_id], topic="deadly", key=None) as told:
            told(await self._jobs.enqueue("deadly", id=job_id))

    async def _sleep(self) -> None:
        found = await self._busy()
        if found is None:
            return
        _, pid = found
        self._stage.record.fault("stop", pid)
        os.kill(pid, signal.SIGSTOP)
        self._asleep[pid] = asyncio.create_task(self._wake(pid, self._stage.chance.uniform(LEASE, 3 * LEASE)))

    async def _wake(self, pid: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._stage.record.fault("cont", pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(1.0)  # right after SIGCONT, the process may not react to SIGTERM yet
        del self._asleep[pid]

    # ── The server, and the ways to it ──

    async def _restart(self) -> None:
        assert self._server is not None
        kind = self._stage.chance.choice(["server kill", "server stop"])
        self._stage.record.fault(kind, self._server.pid or 0)
        await asyncio.to_thread(self._server.kill9 if kind == "server kill" else self._server.stop)
        await asyncio.to_thread(self._server.start)
        await until(lambda: welcome(self._stage.direct), what="the server to take connections", patience=PATIENCE)

    async def _reset(self) -> None:
        assert self._wire is not None
        links = [link for link in self._wire.links if not link.frozen]
        self._stage.record.fault("reset", len(links))
        for link in links:
            if self._stage.chance.random() < 0.5:
                link.reset()

    async def _half_open(self) -> None:
        """Make all connections half open. Return when the workers have noticed: until then, none may be stopped."""
        assert self._wire is not None
        self._stage.record.fault("half-open line", "")
        frozen = self._wire.freeze()
        await self._stage.pause(0.5, 1.5 * LEASE)
        for link in frozen:
            link.lose_server()
        await asyncio.sleep(2 * TIMEOUT)

    async def _deafen(self) -> None:
        for (pid,) in await self._stage.tables.fetch(LISTENERS):
            self._stage.record.fault("terminated listener", pid)
            await self._stage.tables.fetch(f"SELECT pg_terminate_backend({pid})")
