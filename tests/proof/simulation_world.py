"""The simulated world: machines with real workers on them, a real database, one virtual clock for all."""

from __future__ import annotations

import asyncio
import contextvars
import time as real_time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from math import inf
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

import rowlock.context
import rowlock.core.job
import rowlock.run_steps
from rowlock.client import enqueue as client_enqueue
from rowlock.client.enqueue import safe_insert
from rowlock.context import Context
from rowlock.core.flows import Edge
from rowlock.core.ids import IdMaker
from rowlock.core.job import Job, NewJob, Status, new_job
from rowlock.core.retry import Quadratic
from rowlock.core.steps import StepMark, StoredStep, StoredSteps
from rowlock.core.waits import Wait
from rowlock.errors import OutcomeUnknown, StoreError
from rowlock.runtime import (
    backoff,
    claim_settle,
    executor,
    heartbeat,
    maintenance,
    outcomes,
    rescue,
    run,
    running_board,
    slots,
    worker,
)
from rowlock.runtime.settings import WorkerSettings
from rowlock.runtime.supervisor import Rescue, accuse
from rowlock.runtime.worker import Worker
from rowlock.stores.base import Awaited, Enqueued, Guard, Hold, Store
from rowlock.stores.group import Group
from rowlock.tasks import Draft, ReturnType
from tests.proof.history import Execution, Fault, Operation, StepRun
from tests.proof.simulation_database import new_database
from tests.proof.simulation_handlers import make_tasks
from tests.proof.simulation_loop import Lane, LaneLoop, LanePortal, VirtualLoop
from tests.proof.simulation_store import Line, Network, Weather

START = 1000.0  # by the loop's clock; not 0, which means "never" to a worker
EPOCH = 1_767_225_600_000_000 - int(START * 1e6)  # the zero of the loop's clock by the database's clock, microseconds
_LATE = 0.9  # seconds that a supervisor waits beyond the grace
_BACKOFF = Quadratic(unit=0.5)  # the backoff of rescues; the real one would make every run an hour long


class Machine:
    """A process with a worker in it. `heartbeat_thread` is that worker's second thread."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.stage = world
        self.line = Line(world.network, name)
        self.main = Lane(world.loop, self)
        self.heartbeat_thread = Lane(world.loop, self)
        self.born = world.loop.time()
        self.gone: float | None = None
        self.told_to_end = False
        self.group = Group(safe_insert(cast(Store, self.line)))
        self.checkpoints: Group[StepMark, Hold] = Group(lambda marks: self.line.checkpoint(marks))
        self.worker: Worker | None = None
        self._world = world

    async def start(self) -> None:
        """Start the worker as its supervisor does: try again while the database is away."""
        while True:
            made = await self.main.spawn(self._start())
            if made is not None:
                self.worker = made
                return
            await asyncio.sleep(0.5)

    async def _start(self) -> Worker | None:
        noted = running_board.RunningBoard(
            bytearray(running_board._START + 64 * running_board._ENTRY.size)
        )  # the supervisor reads it after the worker's death
        made = Worker(
            self._world.settings,
            LANES,
            (),
            self,
            cast(Any, self),  # the machine is its own Host and Stores
            _publish_nothing,
            cast(Any, NoSchedules()),
            version="0",
            board=noted,
            replace=self._replace,
        )
        made.slots.name = self.name
        try:
            await made.start()
        except StoreError:
            return None
        made.slots.loop = LaneLoop(self._world.loop, self.main)
        return made

    def kill(self) -> None:
        self.gone = self._world.loop.time()
        self.main.kill()
        self.heartbeat_thread.kill()

    def freeze(self, seconds: float) -> None:
        self.main.hold(seconds)
        self.heartbeat_thread.hold(seconds)

    def _replace(self, *, at_once: bool) -> None:
        self._world.replace(self, at_once=at_once)

    # ── The methods of client.connections.Stores that a worker needs ──

    async def handle(self) -> Any:
        return SimpleNamespace(store=self.line)

    async def close_here(self) -> None: ...

    # ── The methods of Jobs that a handler needs ──

    async def enqueue(self, topic: str, payload: Mapping[str, Any] | None = None, **options: Any) -> Enqueued:
        return await self._world.enqueue(self.group, self.name, new_job(self._world.ids.one(), topic, payload))

    async def transaction(self, guard: Guard, longest: float) -> AbstractAsyncContextManager[Any]:
        return self.line.transaction(guard, longest=longest)

    async def checkpoint(self, mark: StepMark) -> Hold:
        return await self.checkpoints.call(mark)

    async def take_signal(self, wait: Wait) -> Awaited:
        answer: Awaited = await self.line.take_signal(wait)
        return answer

    def take_signal_sync(self, wait: Wait) -> Awaited:
        raise AssertionError("handlers are async here")

    async def address(self, job_id: str, signal: str, n: int) -> str:
        return f"https://here/{job_id}/{signal}/{n}"

    def address_sync(self, job_id: str, signal: str, n: int) -> str:
        raise AssertionError("handlers are async here")

    async def start_children(self, job: Job, call: int, drafts: Sequence[Draft]) -> Hold:
        raise AssertionError("handlers start no children here")

    def start_children_sync(self, job: Job, call: int, drafts: Sequence[Draft]) -> Hold:
        raise AssertionError("handlers start no children here")

    async def children(self, job_id: str, call: int) -> list[Edge]:
        raise AssertionError("handlers start no children here")

    def children_sync(self, job_id: str, call: int) -> list[Edge]:
        raise AssertionError("handlers start no children here")

    def drafts(self, jobs: Sequence[Any]) -> list[Draft]:
        raise AssertionError("handlers start no children here")

    def returns(self, draft: Draft) -> ReturnType:
        raise AssertionError("handlers start no children here")

    async def steps(self, job_id: str) -> list[StoredStep]:
        found: dict[str, StoredSteps] = await self.line.read([job_id], StoredSteps)
        return found[job_id].items if job_id in found else []

    async def status(self, job_id: str) -> Status | None:
        found: dict[str, Status] = await self.line.read([job_id], Status)
        return found.get(job_id)

    def checkpoint_sync(self, mark: StepMark) -> Hold:
        raise AssertionError("handlers are async here")

    def steps_sync(self, job_id: str) -> list[StoredStep]:
        raise AssertionError("handlers are async here")

    def status_sync(self, job_id: str) -> Status | None:
        raise AssertionError("handlers are async here")

    @property
    def sync(self) -> Any:
        raise AssertionError("handlers are async here")

    async def fence(self, guard: Guard, conn: Any) -> None:
        raise AssertionError("not used here")

    def fence_sync(self, guard: Guard, conn: Any) -> None:
        raise AssertionError("not used here")

    def sync_transaction(self, guard: Guard, longest: float) -> Any:
        raise AssertionError("not used here")


def excuses(machine: Machine, lane: Lane) -> list[tuple[float, float]]:
    """Return the spans in which something on this machine kept this thread from the database."""
    born, gone = (-inf, machine.born), (inf if machine.gone is None else machine.gone, inf)
    return [born, gone, *lane.holds, *machine.line.disturbances]


def overlaps(spans: list[tuple[float, float]], since: float, until: float) -> bool:
    return any(start <= until and end >= since for start, end in spans)


class Run(Struct):
    """An execution under way."""

    worker: str
    job_id: str
    version: int
    begun: int
    ended: int | None = None
    result: Any = None
    error: str | None = None
    told: str | None = None


class World:
    """Everything that a run of the simulation is made of."""

    def __init__(self, seed: int, settings: WorkerSettings, weather: Weather) -> None:
        self.seed = seed
        self.settings = settings
        self.loop = VirtualLoop(START)
        self.clock_ahead = 0.0  # seconds that the database's clock has jumped
        self.machine_skew = self.chance("skew").uniform(-3600, 3600)
        self.database = new_database(self.database_clock)
        self.network = Network(self.loop, self.database, weather, self.chance("network"))
        self.network.on_commit = self._committed
        noise = self.chance("ids")
        self.ids = IdMaker(lambda: self.database_clock() * 1000, noise.randbytes)
        self.machines: dict[str, Machine] = {}
        self.runs: list[Run] = []
        self.step_runs: list[StepRun] = []
        self.step_values: list[tuple[str, str, Any]] = []  # job, name, and what ctx.step returned
        self.wait_values: list[tuple[str, str, Any]] = []  # job, signal, and what ctx.wait_for returned
        self.calls_made: list[tuple[str, str, int]] = []  # callbacks: job, signal, number
        self.signals = 0  # number of signals sent so far
        self.operations: list[Operation] = []
        self.faults: list[Fault] = []
        self.bad_stops: list[str] = []
        self.over = False

    def chance(self, name: str) -> Random:
        """Return the actor's own random stream. So one more draw by an actor changes nothing for the other actors."""
        return Random(f"{self.seed} {name}")

    def database_clock(self) -> int:
        return EPOCH + round((self.loop.time() + self.clock_ahead) * 1e6)

    def micros(self) -> int:
        """Return the clock of clients and handlers in microseconds. It never jumps."""
        return EPOCH + round(self.loop.time() * 1e6)

    def fault(self, kind: str, target: str) -> None:
        self.faults.append(Fault(self.micros(), kind, target))

    # ── Machines ──

    async def boot(self) -> Machine:
        machine = Machine(self, f"w{len(self.machines) + 1}")
        self.machines[machine.name] = machine
        await machine.start()
        return machine

    def alive(self) -> list[Machine]:
        """Return the machines whose worker has started and was not told to end."""
        there = [machine for machine in self.machines.values() if machine.gone is None]
        return [machine for machine in there if machine.worker is not None and not machine.told_to_end]

    def replace(self, machine: Machine, *, at_once: bool) -> None:
        """Replace a worker that asked for it, as the supervisor does."""
        if at_once:
            self.fault("exit", machine.name)
            machine.kill()
        else:
            self.loop.create_task(self.stop(machine), context=CONTEXT.copy())
        self.loop.create_task(self.boot(), context=CONTEXT.copy())

    async def stop(self, machine: Machine) -> None:
        """Stop a worker as the supervisor does: with SIGTERM, and with SIGKILL if it does not end in time."""
        stopping = machine.worker
        assert stopping is not None
        machine.told_to_end = True
        self.fault("term", machine.name)
        began = self.loop.time()
        ending = machine.main.spawn(stopping.stop())
        await asyncio.wait([ending], timeout=self.settings.grace + _LATE)
        left = self.database.held_by([machine.name])
        troubles = [*excuses(machine, machine.main), *self.network.outages]
        if not overlaps(troubles, began, self.loop.time()) and (left or not ending.done()):
            self.bad_stops.append(f"{machine.name} was told to end at {began}, and still holds {left}")
        machine.kill()
        self.fault("exit" if ending.done() else "kill", machine.name)
        if not ending.done() or stopping.has_left_jobs:
            await self.take_back(machine, blameless=True)

    async def take_back(self, machine: Machine, *, blameless: bool = False) -> None:
        """Take back the jobs of a dead worker, as the supervisor does."""
        assert machine.worker is not None
        order = Rescue("", machine.name, *accuse(machine.worker.slots.running_board), "was killed", blameless, 60.0)
        for _ in range(10):
            try:
                await rescue.rescue(order)
            except StoreError:
                await asyncio.sleep(0.5)
            else:
                return

    # ── Clients ──

    async def enqueue(self, group: Group[NewJob, Enqueued], client: str, job: NewJob) -> Enqueued:
        names = ("topic", "scope", "key", "max_retries", "delay")
        detail = {name: getattr(job, name) for name in names}
        with self.operation("enqueue", client, (job.id,), detail) as say:
            made = await group.call(job)
            say({"id": made.id, "existing": made.existing, "status": made.status})
        return made

    @contextmanager
    def operation(
        self, verb: str, client: str, ids: Sequence[str], detail: dict[str, Any] | None = None
    ) -> Iterator[Callable[[dict[str, Any]], None]]:
        answers: list[dict[str, Any]] = []
        n, begun, outcome = len(self.operations), self.micros(), "unknown"
        # The client may die before it gets the answer. Until then, the outcome is unknown.
        self.operations.append(Operation(client, n, verb, begun, begun, outcome, tuple(ids), None, detail))
        try:
            yield answers.append
            outcome = "ok"
        except OutcomeUnknown:
            raise
        except StoreError:
            outcome = "fail"
            raise
        finally:
            if not self.over:
                answer = answers[0] if answers else None
                self.operations[n] = replace(self.operations[n], ended=self.micros(), outcome=outcome, answer=answer)

    # ── Handlers ──

    def begins(self, worker: str, job: Job) -> int:
        self.runs.append(Run(worker, job.id, job.version, self.micros()))
        return len(self.runs) - 1

    def ends(self, n: int, ctx: Context, result: Any, error: BaseException | None) -> None:
        if self.over:
            return
        one = self.runs[n]
        told = ctx._link.interruption
        one.told = None if told is None else told.value
        if one.ended is None:
            one.ended, one.result = self.micros(), result
            one.error = None if error is None else type(error).__name__

    def _committed(self, guard: Guard) -> None:
        """A handler has completed its job in its own transaction. Whatever happens to the handler now, its run has
        ended."""
        if guard.completion is None:
            return
        [one] = [one for one in self.runs if (one.job_id, one.version) == (guard.id, guard.version)]
        one.ended, one.result, one.told = self.micros(), [guard.id, guard.version], "not yet"

    def step_begins(self, job: Job, name: str) -> None:
        self.step_runs.append(StepRun(job.id, job.version, name, 1, self.micros()))

    def step_returned(self, job: Job, name: str, value: Any) -> None:
        self.step_values.append((job.id, name, value))

    def wait_returned(self, job: Job, signal: str, value: Any) -> None:
        self.wait_values.append((job.id, signal, value))

    def calls(self, job: Job, signal: str, n: int) -> None:
        self.calls_made.append((job.id, signal, n))

    def executions(self) -> list[Execution]:
        return [
            Execution(r.worker, r.job_id, r.version, r.begun, r.ended, r.result, r.error, r.told) for r in self.runs
        ]

    def close(self) -> None:
        self.over = True
        self.loop.end([lane for machine in self.machines.values() for lane in (machine.main, machine.heartbeat_thread)])


# ── The modules of the product see the world's clock and chance, and no threads ──


class _Clock(datetime):
    world: World

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Any:
        world = cls.world
        return datetime.fromtimestamp(world.micros() / 1e6, tz or UTC) + timedelta(seconds=world.machine_skew)


_WITH_CLOCKS = (
    *(running_board, executor, heartbeat, maintenance, claim_settle, run, slots, worker),
    *(rowlock.context, rowlock.run_steps),
)


@contextmanager
def inhabited(world: World) -> Iterator[None]:
    _Clock.world = world
    clock = SimpleNamespace(monotonic=world.loop.time, time=real_time.time)
    chance = world.chance("product")
    patches: list[tuple[ModuleType | type, str, Any]] = [
        *((module, "time", clock) for module in _WITH_CLOCKS),
        *((module, "random", chance) for module in (maintenance, backoff, claim_settle, outcomes, client_enqueue)),
        (rowlock.run_steps, "random", chance),
        (slots, "datetime", _Clock),
        *((module, "DEFAULT_RETRY", _BACKOFF) for module in (maintenance, rescue)),
        (heartbeat, "Portal", LanePortal),
        (rescue, "open_store", lambda url: Line(world.network, "supervisor")),
        (run.Run, "__hash__", lambda self: hash((int(self.job.id[-12:], 16), self.job.version))),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    for owner, name, value in patches:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


CONTEXT = contextvars.Context()  # belongs to no machine
LANES = {rowlock.core.job.Lane(topic): task for topic, task in make_tasks(None).items()}


async def _publish_nothing() -> None: ...


class NoSchedules:
    """Nothing is scheduled in this world: see schedule_world.py."""

    @property
    def firing(self) -> NoSchedules:
        return self

    @property
    def set_aside(self) -> tuple[str, ...]:
        return ()

    async def find_times_anew(self, store: Any) -> int:
        return 0

    async def mark_absent(self) -> None: ...
