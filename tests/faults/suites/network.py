"""Cuts between PostgreSQL and its clients:

- A connection is reset in the middle of a statement. - A connection is half open: it stays, and nothing passes. - A
worker can't reach the server for longer than its lease. - The reply that says "committed" is lost, of an enqueue, a
settle, or an application's own transaction. - A line is slow or narrow.

Every worker has its own wire, and the clients share one. Producers repeat an unanswered enqueue with the same ids, and
each id makes one job.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from rowlock.client import enqueue
from rowlock.jobs import Jobs
from tests.faults.load import KINDS, Load
from tests.faults.places import on_server
from tests.faults.results import Result
from tests.faults.stage import PATIENCE, Stage
from tests.faults.suites import Cell
from tests.faults.wire import Link, Statement, Trap, Wire, anything, claims, enqueues, fences, settles
from tests.proof.lives import World
from tests.runtime.system.fleet import WorkerProcess
from tests.waiting import until

WORKERS = 3
LEASE = 4.0  # longer than usual: if a round trip takes 0.2 s, a heartbeat is slow
TIMEOUT = 3.0  # seconds for a statement, and for a connection
TOLD = 2.0  # seconds until OutcomeUnknown, instead of 15: so that some callers get it
AT_ONCE = 2
DELAY = 0.1  # seconds, one way
RATE = 2000.0  # bytes per second


async def run(cell: Cell) -> Result:
    enqueue._PATIENCE = TOLD
    async with on_server(cell) as (stage, server), AsyncExitStack() as stack:
        stage.settings["lease"] = LEASE
        wires = [await stack.enter_async_context(Wire(server.host, server.port)) for _ in range(WORKERS + 1)]
        options = f"?command_timeout={TIMEOUT}&connect_timeout={TIMEOUT}"
        jobs = await stack.enter_async_context(Jobs(wires[0].through(server.url()) + options))
        load = Load(stage, jobs, {**KINDS, "nap": {"seconds": 0.3}})
        launched: list[WorkerProcess] = []
        for wire in wires[1:]:
            launched.append(stage.launch("--lease", f"{LEASE}s", ROWLOCK_URL=wire.through(server.url()) + options))
        for worker in launched:
            await stage.fleet.working(worker)
        cuts = Cuts(stage, wires[0], dict(zip(wires[1:], launched, strict=True)))
        async with load.going_on(rate=cell.scale.rate / 2, least=cell.scale.cuts * 50):
            todo = cuts.chosen(cell.scale.cuts)
            await asyncio.gather(*(cuts.make(todo) for _ in range(AT_ONCE)))
        result = await stage.finished(cell.result())
        result.figures |= {
            "enqueues whose callers were told that the outcome is unknown": load.unknown,
            "runs that outlived their lease": lost(World(stage.histories[-1])),
        }
        return result


Cut = tuple[str, Callable[[], Awaitable[None]]]


class Cuts:
    """Makes the cuts, one at a time on each wire."""

    def __init__(self, stage: Stage, client: Wire, workers: dict[Wire, WorkerProcess]) -> None:
        self._stage = stage
        self._client = client
        self._workers = workers
        self._free = {client, *workers}

    def chosen(self, count: int) -> list[Cut]:
        """Return cuts in a random order, every kind equally often."""
        kinds: list[Cut] = [
            ("swallowed enqueue", lambda: self._caught("swallow", enqueues, clients=True)),
            ("swallowed settle", lambda: self._caught("swallow", settles)),
            ("swallowed commit", lambda: self._caught("swallow", fences)),
            ("reset enqueue", lambda: self._caught("early or late", enqueues, clients=True)),
            ("reset settle", lambda: self._caught("early or late", settles)),
            ("reset claim", lambda: self._caught("late", claims)),
            ("reset connection", lambda: self._caught("early", anything)),
            ("half-open client", lambda: self._half_open(clients=True)),
            ("half-open worker", lambda: self._half_open(clients=False)),
            ("cut-off worker", self._cut_off),
            ("slow line", self._slow),
            ("narrow line", self._narrow),
        ]
        found = [kinds[n % len(kinds)] for n in range(count)]
        self._stage.chance.shuffle(found)
        return found

    async def make(self, todo: list[Cut]) -> None:
        while todo:
            kind, cut = todo.pop()
            self._stage.record.fault(kind, "")
            await cut()
            await self._stage.pause(0.1, 0.5)

    async def _take(self, *, clients: bool = False) -> Wire:
        wanted = [self._client] if clients else list(self._workers)

        def free() -> list[Wire]:
            return [wire for wire in wanted if wire in self._free]

        wire: Wire = self._stage.chance.choice(await until(free, what="a wire", patience=PATIENCE))
        self._free.remove(wire)
        return wire

    async def _caught(self, how: str, on: Statement, *, clients: bool = False) -> None:
        wire = await self._take(clients=clients)
        trap = Trap(self._stage.chance.choice(how.split(" or ")), on)
        wire.traps.append(trap)
        async with asyncio.timeout(PATIENCE):
            await trap.sprung.wait()
        self._free.add(wire)

    async def _half_open(self, *, clients: bool) -> None:
        """Make the open connections half open. New connections are served."""
        wire = await self._take(clients=clients)
        frozen = wire.freeze()
        await self._stage.pause(0.5 * LEASE, LEASE)
        await self._noticed(frozen, wire)

    async def _cut_off(self) -> None:
        """Cut a worker off for longer than its leases, so that other workers take its jobs over."""
        wire = await self._take()
        wire.silent = True
        frozen = wire.freeze()
        await self._stage.pause(1.2 * LEASE, 2.0 * LEASE)
        for pid in self._workers[wire].children():
            self._stage.record.fault("cont", pid)
        wire.silent = False
        await self._noticed(frozen, wire)

    async def _noticed(self, frozen: list[Link], wire: Wire) -> None:
        """End the frozen connections on the server's side, so that the server frees their locks. The clients must find
        out by themselves."""
        for link in {*frozen, *(link for link in wire.links if link.frozen)}:
            link.lose_server()
        self._free.add(wire)

    async def _slow(self) -> None:
        wire = await self._take(clients=self._stage.chance.random() < 0.5)
        wire.delay = DELAY
        await self._stage.pause(0.5 * LEASE, LEASE)
        wire.delay = 0.0
        self._free.add(wire)

    async def _narrow(self) -> None:
        wire = await self._take(clients=self._stage.chance.random() < 0.5)
        wire.rate = RATE
        await self._stage.pause(0.5 * LEASE, LEASE)
        wire.rate = None
        self._free.add(wire)


def lost(world: World) -> int:
    """Return how many runs were rescued, because their workers could not renew the lease."""
    return sum(step.move == "rescue" and step.version in life.runs for life in world.lives for step in life.steps)
