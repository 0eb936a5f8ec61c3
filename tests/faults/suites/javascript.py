"""Workers in JavaScript work over HTTP. Each has its own process, ten slots, and its own wire to the server. At first
handlers block their event loops for two leases, and nothing else happens: no job may be taken from its worker. Then
workers are killed, frozen for two to five leases, and stopped by SIGTERM while they hold jobs. The server is killed and
started again. Connections break in the middle of a request or of its answer, or stay half open. A worker can't reach
the server for longer than its lease. Handlers go on blocking, and a thousand jobs are on their last try.

Handlers leave the same record as those in Python, so the checker asks the same questions, except these:

- Has a step that was begun and not stored done its work twice? It may, and its record is the only work that it does.
- Did a handler stop when the worker told it to? JavaScript can't stop it. The checker asks only whether it was told.
- Was the handler of a charged run about to start? X4 asks that of workers that die once. Here a worker may lose its
  leases several times, so the suite asks how many runs that never began the worker held at once.
- Does a live worker keep its jobs while faults happen? A busy machine may lose a lease. Only the first part asks that.
- Was it right to start a handler again within its run? That happens when a signal comes while a wait stops the handler.
  The record has one run then.
- Are log lines and progress complete? The run that holds the job writes them, at least once.
- What happens to handlers that take longer than their timeouts, and to cancels whose grace ends? No job here takes that
  long.
- Do other runtimes (Deno, Bun), TLS, several servers, or a buffering proxy work as well?
"""

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Any

from rowlock.access import tokens
from rowlock.jobs import Jobs
from tests.faults.http_wire import HttpLink, HttpTrap, HttpWire
from tests.faults.load import Load
from tests.faults.places import staged
from tests.faults.results import Result
from tests.faults.stage import GRACE, LEASE, PATIENCE, ROOT, SLACK, Stage
from tests.faults.suites import Cell
from tests.faults.suites.last_try import dead_letters
from tests.faults.suites.remote import TRUST, Process, Remote
from tests.faults.suites.zombies import stale
from tests.proof.history import Execution, Violation
from tests.proof.history_app import new_ids
from tests.proof.lives import Step, World
from tests.proof.recorder import now
from tests.waiting import until

PACKAGE = Path("js")
COMMAND = PACKAGE / "dist" / "bin" / "rowlock-worker.js"
HANDLERS = Path("tests") / "faults"
APP = "javascript_app.mjs"
OLDEST_NODE = 20
WORKERS, SLOTS = 5, 10
CALM_BLOCKS = 3  # handlers that block before anything else happens
PILE = 50  # jobs on their last try that come at once
AT_ONCE = 2  # so that a worker is always awake

KINDS: dict[str, dict[str, Any]] = {
    "quick": {},
    "brief": {"seconds": 0.02},
    "nap": {"seconds": 0.3},
    "deaf": {"seconds": 1.5 * LEASE},
    "flaky": {"good_from": 2},
    "hopeless": {},
    "snoozing": {},
    "giving_up": {},
    "stepping": {},
    "napping": {},
    "waiting": {},
}
TOPICS = ",".join([*KINDS, "blocks"])
ENDS = frozenset({"settle", "complete", "fail", "snooze", "release", "give-up", "retry-step"})
CALLS = (frozenset({"claim"}), ENDS, frozenset({"checkpoint"}), frozenset({"wait"}), frozenset({"heartbeat"}))
CUTS = [(how, calls) for how in ("request", "answer", "half answer") for calls in CALLS]


class NodeWorkers(Remote):
    """JavaScript workers, each with its own wire. `owner` follows the worker's name in its leases. They run copies of
    the package and of this module of handlers, so that a rebuild can't change these during the run."""

    def __init__(self, stage: Stage, token: str, owner: str, handlers: str) -> None:
        super().__init__(stage, token, app="tests.proof.history_app:jobs")
        self._environ = {"ROWLOCK_TOKEN": token, "ROWLOCK_PROOF_OWNER": owner}
        self._command = stage.folder / COMMAND
        self._handlers = stage.folder / HANDLERS / handlers
        shutil.copytree(ROOT / PACKAGE / "dist", stage.folder / PACKAGE / "dist")
        shutil.copy(ROOT / PACKAGE / "package.json", stage.folder / PACKAGE)
        self._handlers.parent.mkdir(parents=True)
        for module in (ROOT / HANDLERS).glob("*.mjs"):
            shutil.copy(module, self._handlers.parent)
        self._wires: list[HttpWire] = []
        self._wire_of: dict[int, HttpWire] = {}
        self._outage = asyncio.Lock()  # no worker can give back its jobs while the server is away
        self.away = 0.0  # seconds without a server
        self.given_up = 0.0  # the longest time until a worker gave up a half-open connection

    async def string(self, stack: AsyncExitStack, count: int) -> None:
        self._wires += [await stack.enter_async_context(HttpWire("127.0.0.1", self.port)) for _ in range(count)]

    def hire(self) -> None:
        taken = {self._wire_of[worker.pid] for worker in self.workers}
        wire = next(wire for wire in self._wires if wire not in taken)
        node = shutil.which("node")
        assert node is not None
        words = [node, str(self._command), str(self._handlers)]
        words += ["--url", f"http://127.0.0.1:{wire.port}", "--topics", TOPICS]
        words += ["--concurrency", str(SLOTS), "--lease", f"{LEASE:g}", "--grace", f"{GRACE:g}"]
        worker = self.start(*words, **self._environ)
        self.workers.append(worker)
        self._wire_of[worker.pid] = wire

    async def busy(self, topic: str | None = None) -> Process | None:
        for worker in self.workers:
            if worker.pid not in self.in_trouble:
                assert worker.poll() is None, f"worker {worker.pid} has ended by itself, with {worker.returncode}"
        return await super().busy(topic)

    async def answers(self) -> None:
        """Wait until the server takes connections."""

        def connects() -> bool:
            with socket.socket() as one:
                return one.connect_ex(("127.0.0.1", self.port)) == 0

        await until(connects, what="the server to start", patience=PATIENCE)

    # ── Faults ──

    async def lose_server(self) -> None:
        async with self._outage:
            self.stage.record.fault("server kill", "")
            began = now()
            await self.kill_server()
            await self.answers()
            self.away += (now() - began) / 1e6

    async def kill_one(self) -> None:
        async with self.victim() as worker:
            self.kill(worker)

    async def freeze_one(self) -> None:
        async with self.victim() as worker:
            await self.freeze(worker)

    async def replace_one(self) -> None:
        """Stop a worker by SIGTERM while it holds jobs, and start another one."""
        async with self._outage, self.victim() as worker:
            await self.dismiss(worker)
            self.hire()

    async def dismiss(self, worker: Process) -> None:
        self.stage.record.fault("term", worker.pid)
        worker.send_signal(signal.SIGTERM)
        await until(lambda: worker.poll() is not None, what="a worker to stop", patience=PATIENCE)
        self.stage.record.fault("gone", worker.pid)
        assert worker.returncode == 0, f"after SIGTERM the worker ended with {worker.returncode}"
        self.workers.remove(worker)

    async def cut_one(self, how: str, calls: frozenset[str]) -> None:
        async with self.victim() as worker:
            self.stage.record.fault(f"cut {how}", "")
            trap = HttpTrap(how, calls)
            self._wire_of[worker.pid].traps.append(trap)
            async with asyncio.timeout(PATIENCE):
                await trap.sprung.wait()

    async def cut_one_off(self) -> None:
        """Cut a worker off for longer than its leases, so that other workers take its jobs over."""
        async with self.victim() as worker:
            self.stage.record.fault("cut off", "")
            wire = self._wire_of[worker.pid]
            wire.silent = True
            wire.freeze()
            await self.stage.pause(1.2 * LEASE, 2 * LEASE)
            self.stage.record.fault("cont", worker.pid)
            wire.silent = False
            for link in list(wire.links):
                link.reset()

    async def leave_half_open(self) -> None:
        """Make a worker's connections half open. It must find out by itself. Its new connections are served."""
        async with self.victim() as worker:
            self.stage.record.fault("half-open worker", "")
            wire, began = self._wire_of[worker.pid], now()
            frozen = wire.freeze()
            for link in frozen:
                link.lose_server()
            noticed = partial(_are_gone, frozen, wire)
            await until(noticed, what="a worker to hang up", patience=PATIENCE)
            self.given_up = max(self.given_up, (now() - began) / 1e6)


def _are_gone(links: list[HttpLink], wire: HttpWire) -> bool:
    return not any(link in wire.links for link in links)


Fault = Callable[[], Awaitable[None]]


def chosen(workers: NodeWorkers, scale: int) -> list[Fault]:
    """Return faults of every kind, in a random order."""
    cuts = [CUTS[n % len(CUTS)] for n in range(scale)]
    todo: list[Fault] = [lambda cut=cut: workers.cut_one(*cut) for cut in cuts]  # type: ignore[misc]
    todo += [workers.kill_one] * scale
    todo += [workers.freeze_one] * (scale // 4)
    todo += [workers.replace_one] * (scale // 3)
    todo += [workers.cut_one_off] * (scale // 6)
    workers.stage.chance.shuffle(todo)
    return todo


async def run(cell: Cell) -> Result:
    result = cell.result()
    if (why := cannot_run()) is not None:
        result.not_run = why
        return result
    async with staged(cell) as stage, Jobs(stage.url) as jobs, hired(stage, jobs) as workers:
        load = Load(stage, jobs, KINDS)
        faults, scale = chosen(workers, cell.scale.zombies), cell.scale
        async with load.going_on(rate=scale.rate / 3, least=scale.jobs // 2):
            await block(workers, jobs, CALM_BLOCKS, freeze=False)
            await stage.pause(2 * LEASE, 2 * LEASE)
            calm_until = now()
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(suffer(stage, faults))
                group.create_task(block(workers, jobs, scale.blocks - CALM_BLOCKS, freeze=True))
                group.create_task(pile_last_tries(stage, load, scale.on_last_try // 2))
                group.create_task(lose_servers(workers, scale.zombies // 7))
                group.create_task(workers.leave_half_open())
        result = await finished(workers, result)
        world = World(stage.histories[-1])
        result.violations += [*robbed(world, calm_until), *overcharged(world, SLOTS)]
        result.figures |= {"blocks": scale.blocks, "stale runs that ended": stale(stage), **dead_letters(world)}
        result.figures["s until a half-open connection was given up"] = workers.given_up
        return result


def cannot_run() -> str | None:
    """Return why the suite can't run here; None if it can."""
    node = shutil.which("node")
    if node is None:
        return f"there is no Node {OLDEST_NODE}"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < OLDEST_NODE:
        return f"Node is {version}, and {OLDEST_NODE} is needed"
    return None if (ROOT / COMMAND).exists() else "js/dist is not built: run `npm ci && npm run build` in js"


async def suffer(stage: Stage, faults: list[Fault]) -> None:
    while faults:
        await faults.pop()()
        await stage.pause(0.1, 0.6)


async def lose_servers(workers: NodeWorkers, times: int) -> None:
    """Kill the server so many times, so far apart that it can rescue jobs in between."""
    for _ in range(times):
        await workers.stage.pause(1.5 * TRUST, 2 * TRUST)
        await workers.lose_server()


async def block(workers: NodeWorkers, jobs: Jobs, times: int, *, freeze: bool) -> None:
    """Enqueue jobs that block their worker's event loop. Every other one is on its last try. `freeze`: also freeze some
    workers while they are blocked. Then jobs that they have not begun wait behind the blocking handler."""
    stage = workers.stage
    for n in range(times):
        job_id = new_ids.one()
        with stage.record.operation("enqueue", [job_id], topic="blocks", key=None) as told:
            own: Any = {"id": job_id, "priority": 150, "max_retries": 0 if n % 2 else 3}
            told(await jobs.enqueue("blocks", {"seconds": 2 * LEASE}, **own))
        await stage.pause(LEASE / 4, LEASE)
        if freeze and (worker := await workers.busy("blocks")):
            with workers.trouble(worker):
                await workers.freeze(worker)
        else:
            await stage.pause(LEASE / 4, 2 * LEASE)


async def pile_last_tries(stage: Stage, load: Load, count: int) -> None:
    """Enqueue about `count` jobs on their last try, a pile at a time, so that a worker that dies holds some of them."""
    for n in range(count // PILE):
        await load.pile("nap" if n % 2 else "brief", PILE, max_retries=0, priority=110)
        await stage.pause(0.5 * LEASE, 2 * LEASE)


@asynccontextmanager
async def hired(stage: Stage, jobs: Jobs, *, count: int = WORKERS, handlers: str = APP) -> AsyncIterator[NodeWorkers]:
    """Yield workers with these handlers. `count` of them are started."""
    # X4 counts all runs of a worker, as if it died once. Here a worker may lose its leases often: see `overcharged`.
    stage.settings |= {"slots": inf, "stop_slack": SLACK, "slack": SLACK + TRUST}
    known, token = await tokens.create(await jobs._store(), "remote", ["worker"], by="test")
    workers = NodeWorkers(stage, token, f"token:{known.id}", handlers)
    async with AsyncExitStack() as stack:
        stack.callback(workers.stop)
        await workers.string(stack, WORKERS)
        await workers.answers()
        for _ in range(count):
            workers.hire()
        yield workers


async def finished(workers: NodeWorkers, result: Result) -> Result:
    """Let the workers end every job and stop. Return what the checker finds."""
    await workers.busy()
    await workers.stage.drained(3 * PATIENCE)
    workers.stage.settings["slack"] += workers.away  # without a server, no job is taken back
    await asyncio.gather(*(workers.dismiss(worker) for worker in list(workers.workers)))
    return await workers.stage.judged(result)


def robbed(world: World, until: int, topic: str = "blocks") -> list[Violation]:
    """Return the rescues, until then, from workers whose handlers of this topic blocked them. If a worker
    that was not blocked lost a job as well, the machine was too slow for its leases: then return none."""
    blocking: dict[str, list[Execution]] = {}
    for life in world.lives:
        if life.steps[0].new["topic"] == topic:
            for run in (run for runs in life.runs.values() for run in runs):
                blocking.setdefault(run.worker, []).append(run)
    end = world.by_database(until)
    steps = ((life, step) for life in world.lives for step in life.steps if step.move == "rescue")
    found = [(life, step) for life, step in steps if end is not None and step.at < end]
    if not all(_was_blocked(world, step, blocking.get(step.old["locked_by"], [])) for _, step in found):
        return []
    text = "its worker lives, and nothing but its event loop is blocked"
    return [Violation("ROBBED", life.id, f"{step}: {text}") for life, step in found]


def _was_blocked(world: World, rescue: Step, blocking: list[Execution]) -> bool:
    """True if one of these runs of the worker went on during the last lease before the rescue."""
    last, lease = rescue.old["locked_until"], int(LEASE * 1e6)
    times = [(world.by_database(run.begun) or 0, world.by_database(run.ended or sys.maxsize) or 0) for run in blocking]
    return any(begun <= last and ended >= last - lease for begun, ended in times)


def overcharged(world: World, slots: int) -> Iterator[Violation]:
    """A worker claims no more jobs than it has free slots. So, at one moment, it may hold at most as many leases of
    runs that were charged and never began as it has slots. If the answer to a claim is lost, the worker doesn't know of
    those leases, and they end."""
    never_ran: dict[str, list[tuple[int, int]]] = {}  # by worker: times at which the number of such runs grows or falls
    for life in world.lives:
        for step in life.steps:
            row = step.before or {}
            charged = step.move == "rescue" and row["started_at"] is not None and row["status"] == "processing"
            if charged and row["version"] not in life.runs:
                never_ran.setdefault(row["locked_by"], []).extend([(row["claimed_at"], 1), (row["locked_until"], -1)])
    for worker, changes in never_ran.items():
        most = max(accumulate(change for _, change in sorted(changes)))
        if most > slots:
            text = f"{worker} held {most} runs at once that were charged and never began; it had {slots} slots"
            yield Violation("SLOTS", None, text)
