"""Five workers fire about thirty schedules with all policies. An operator puts, edits, pauses, resumes, deletes, runs
and backfills schedules. Workers are killed and frozen, PostgreSQL is killed and restarted, and clocks are moved by an
hour. Once no worker runs for three hours, in which the clocks of Berlin may change. Each nominal time is decided once,
as the policies say, and makes at most one job (S14).

The clock shim moves the database's clock: that of PostgreSQL's processes, or, for SQLite, that of all workers and the
operator together. On PostgreSQL each worker has its own clock, which is set all the time.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil

from tests.faults import schedules_judge
from tests.faults.clocks import HOUR, Clock, compiled, why_not
from tests.faults.results import Result, figures
from tests.faults.schedules_judge import Judge
from tests.faults.stage import LEASE, PATIENCE, ROOT, Stage, prepared
from tests.faults.suites import Cell
from tests.faults.suites.outages import Outage, suffer
from tests.proof import checker
from tests.proof.history import Violation
from tests.proof.lives import World
from tests.runtime.system.fleet import WorkerProcess
from tests.servers import PostgresServer
from tests.waiting import until

APP = "tests.faults.schedules_app:jobs"
WORKERS = 5
MACHINES = 0.4  # share of kills that kill a supervisor and its children
AWAY = 3 * HOUR
SETTLED = 30.0  # seconds in which all due times are decided, after the faults have ended
LOCKED_FOR = 14.0  # seconds; the server ends idle transactions after 10
STALLED = (
    "SELECT client_port FROM pg_stat_activity WHERE application_name = 'rowlock' AND wait_event = 'PgSleep' LIMIT 1"
)
# A trigger makes a scheduler's transaction last as long as the table `stalled` says.
STALLING = (
    "CREATE TABLE stalled (seconds float8)",
    """CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_sleep(seconds) FROM stalled; RETURN NULL; END $$""",
    "CREATE TRIGGER stall BEFORE INSERT ON _jobs_fires FOR EACH STATEMENT EXECUTE FUNCTION stall()",
)
# Only some of the checker's invariants apply. The database's clock is moved here, so no times can be compared. And no
# client has asked for these jobs.
INVARIANTS = ("S3", "S4", "S6", "S7", "S8", "S13", "S15", "X1", "X2")

# The database's time when a run begins: the real one, or two and a half hours before Berlin changes its clocks.
BEGINNINGS = (None, datetime(2027, 3, 27, 22, 30, tzinfo=UTC), datetime(2026, 10, 24, 22, 30, tzinfo=UTC))


class ClockedServer(PostgresServer):
    """A PostgreSQL whose clock can be set."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(durable=True)
        self._env |= clock.env


async def run(cell: Cell) -> Result:
    if said := why_not():
        result = cell.result()
        result.not_run = said
        return result
    async with furnished(cell) as scene:
        await scene.play()
        return await scene.judged(cell.result())


class Scene:
    """A stage with an operator and clocks. `clock` is the database's clock, `clocks` are those of the workers."""

    def __init__(self, stage: Stage, server: PostgresServer | None, clock: Clock, clocks: list[Clock]) -> None:
        self.stage = stage
        self.chance = stage.chance
        self._server = server
        self._clock = clock
        self._clocks = clocks
        self._base = clock.wrong
        self._operator: Process | None = None
        self._order = asyncio.Lock()
        self._names: list[str] = []
        self._restless: list[str] = []
        self._asleep: set[int] = set()
        self._numbers: dict[int, int] = {}  # by pid: the number of the worker's clock
        self._new = 0
        self.answers: Counter[str] = Counter()
        self.settled_after = self.locked_for = 0.0

    # ── The run ──

    async def play(self) -> None:
        await schedules_judge.watch(self.stage.tables)
        for statement in STALLING if self._server is not None else ():
            await self.stage.tables.execute(statement)
        async with self._operating():
            await self._furnish()
            for n in range(WORKERS):
                self._launch(n)
            await self._all_at_work()
            async with self._restlessness():
                await self._kill_and_freeze(kills=5, zombies=3, restarts=2)
                await self._set_the_clock()
                await self._kill_and_freeze(kills=2, zombies=1, restarts=1)
            await self._be_away()
            async with self._restlessness():
                for n in range(WORKERS):
                    self._launch(n)
                await self._kill_and_freeze(kills=3, zombies=1, restarts=1)
            await self._all_at_work()
            if self._server is not None:
                await self._freeze_in_transaction()
            await self._settle()
            await self.stage.stop_all()

    async def judged(self, result: Result) -> Result:
        stage = self.stage
        history = await stage.collect(at_rest=False)
        del history.settings["monotonic_offset"]  # no clock can be compared with the database's: that was moved
        world = World(schedules_judge.without_marks(history))
        for name in INVARIANTS:
            result.violations += [Violation(name, *found) for found in checker.INVARIANTS[name](world)]
        judge = Judge(await schedules_judge.collect(stage.tables), history)
        result.violations += await asyncio.to_thread(judge.violations)
        if self.settled_after > SETTLED:
            text = f"what was due was not decided within {self.settled_after:.1f} s after the faults"
            result.violations.append(Violation("L1", None, text))
        if self.locked_for > LOCKED_FOR:
            text = f"a worker that was stopped in a transaction kept schedules locked for {self.locked_for:.1f} s"
            result.violations.append(Violation("LOCKED", None, text))
        refused = sum(count for said, count in self.answers.items() if said != "ok")
        told = figures([history])
        kept = {name: value for name, value in told.items() if not name.startswith("s ") and name != "jobs"}
        result.figures |= judge.figures() | {"orders": self.answers.total(), "orders that failed": refused} | kept
        result.figures["s until all was decided after the faults"] = round(self.settled_after, 2)
        result.figures["s that a stopped worker kept schedules locked"] = round(self.locked_for, 1)
        return result

    # ── Workers ──

    def _launch(self, n: int) -> WorkerProcess:
        worker = self.stage.launch(processes=1, app=None, **self._clocks[n % len(self._clocks)].env)
        self._numbers[worker.pid] = n
        return worker

    async def _all_at_work(self) -> None:
        """Wait until each worker has a process that is registered in the database."""

        async def found() -> bool:
            rows = await self.stage.tables.fetch("SELECT pid FROM _jobs_workers")
            known = {pid for (pid,) in rows}
            return len(self.stage.workers) == WORKERS and all(one.children() & known for one in self.stage.workers)

        await self.stage.fleet.until(found, what="all workers to work", patience=PATIENCE)

    async def _kill_and_freeze(self, *, kills: int, zombies: int, restarts: int) -> None:
        """Make all these faults in a random order. Frozen workers sleep while the other faults go on."""
        faults = ["kill"] * kills + ["zombie"] * zombies + ["restart"] * (restarts if self._server else 0)
        self.chance.shuffle(faults)
        sleeping = []
        for fault in faults:
            await self.stage.pause(0.2, 1.2)
            if fault == "kill":
                await self._kill()
            elif fault == "zombie":
                sleeping.append(asyncio.ensure_future(self._freeze(self.chance.uniform(1 * LEASE, 3 * LEASE))))
            else:
                assert self._server is not None
                kind = self.chance.choice(["server kill", "server kill", "backend kill"])
                await suffer(self.stage, self._server, Outage(kind))
        await asyncio.gather(*sleeping)

    async def _kill(self) -> None:
        able = [one for one in self.stage.workers if one.children() and not one.children() & self._asleep]
        if not able:
            return
        worker = self.chance.choice(able)
        if self.chance.random() < MACHINES:
            n = self._numbers[worker.pid]
            self.stage.kill_machine(worker)
            self._launch(n)
        else:
            self.stage.kill(*worker.children())

    async def _freeze(self, seconds: float) -> None:
        pids = self._pids()
        if not pids:
            return
        pid = self.chance.choice(pids)
        self._asleep.add(pid)
        self.stage.record.fault("stop", pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self.stage.record.fault("cont", pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        self._asleep.discard(pid)

    async def _freeze_in_transaction(self) -> None:
        """Freeze a worker while it has locked the schedules that are due. The server must free them."""
        tables = self.stage.tables
        await tables.execute("INSERT INTO stalled VALUES (1.0)")
        [(port,)] = await until(lambda: tables.fetch(STALLED), what="a scheduler to be in a transaction")
        pid = next(one for one in self._pids() if port in ports(one))
        self.stage.record.fault("stop", pid)
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        await tables.execute("DELETE FROM stalled")
        late = "SELECT 1 FROM _jobs_schedules WHERE next_run_at < clock_timestamp() - interval '3 s' LIMIT 1"
        await until(lambda: tables.fetch(late), what="the schedules to be late")

        async def freed() -> bool:
            return time.monotonic() - began > LOCKED_FOR or not await tables.fetch(late)

        await until(freed, every=0.2)
        self.locked_for = time.monotonic() - began
        self.stage.record.fault("cont", pid)
        os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        return [pid for worker in self.stage.workers for pid in sorted(worker.children() - self._asleep)]

    # ── Clocks ──

    async def _set_the_clock(self) -> None:
        """Set the database's clock an hour back, then right again, then an hour ahead, where it stays."""
        self._set(self._clock, self._base - HOUR)
        await asyncio.sleep(4.0)
        self._set(self._clock, self._base)
        await asyncio.sleep(3.0)
        self._set(self._clock, self._base + HOUR)
        await asyncio.sleep(3.0)

    async def _step_workers(self) -> None:
        """Set each worker's clock again and again, if it is not the database's clock."""
        while True:
            for clock in self._clocks:
                if clock is not self._clock:
                    self._set(clock, self._clock.wrong + self.chance.choice((0.0, HOUR, -HOUR, 30.0, -30.0)))
            await self.stage.pause(0.5, 2.0)

    def _set(self, clock: Clock, wrong: float) -> None:
        self.stage.record.fault("clock step", clock.name)
        clock.wrong = wrong

    async def _be_away(self) -> None:
        """Stop all workers for three hours, in which an operator edits, pauses and deletes schedules."""
        workers = list(self.stage.workers)
        self.chance.shuffle(workers)
        for worker in workers[:3]:
            self.stage.kill_machine(worker)
        await self.stage.stop_all()
        await self._tell("pause", "every-3-all")
        self._set(self._clock, self._clock.wrong + AWAY)
        if self._server is not None:
            await suffer(self.stage, self._server, Outage("server kill"))
        await self._tell("put", "every-5-all", definition=defined({"every": 4.0}, missed="all", most=7))
        await self._tell("put", "every-2-last", definition=defined({"every": 2.0}, missed="skip"))  # same times
        await self._tell("resume", "every-3-all")
        await self._tell("pause", "every-4-last")
        await self._tell("delete", "every-5-skip")

    async def _settle(self) -> None:
        """Wait until every time that is due now is decided. Later times are decided meanwhile."""
        began = time.monotonic()
        wanted = (self._clock.wrong + time.time()) * 1e6
        at = "next_run_at" if self.stage.store == "sqlite" else "_jobs_us(next_run_at)"

        async def decided() -> bool:
            [(count,)] = await self.stage.tables.fetch(
                f"SELECT count(*) FROM _jobs_schedules WHERE {at} < {wanted:.0f}"
            )
            return bool(count == 0)

        await self.stage.fleet.until(decided, what="all times to be decided", patience=PATIENCE)
        self.settled_after = time.monotonic() - began

    # ── The operator ──

    @asynccontextmanager
    async def _operating(self) -> AsyncIterator[None]:
        path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        known = {"PYTHONPATH": path, "ROWLOCK_URL": self.stage.url, **self._clock_of_operator}
        known["ROWLOCK_PROOF_RECORD"] = str(self.stage.folder / "record")
        self._operator = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.faults.schedules_app", env={**os.environ, **known}, stdin=PIPE, stdout=PIPE
        )
        try:
            yield
        finally:
            await self._operator.communicate(b"")

    @property
    def _clock_of_operator(self) -> Mapping[str, str]:
        return self._clocks[0].env

    async def _tell(self, verb: str, name: str, **more: Any) -> str:
        """Give the operator an order. Return its answer: ok, or the error."""
        assert self._operator is not None
        assert self._operator.stdin is not None
        assert self._operator.stdout is not None
        async with self._order:
            order = {"verb": verb, "name": name, **more}
            self._operator.stdin.write(msgspec.json.encode(order) + b"\n")
            said = (await asyncio.wait_for(self._operator.stdout.readline(), PATIENCE)).decode().strip()
        assert said, "the operator is gone"
        self.answers[said.partition(":")[0]] += 1
        return said

    async def _furnish(self) -> None:
        for name, definition in schedules(self.chance.randrange(10), self._clock.wrong + time.time()):
            said = await self._tell("put", name, definition=definition)
            assert said == "ok", f"{name}: {said}"
            self._names.append(name)
        self._restless = self.chance.sample(self._names, 10)

    @asynccontextmanager
    async def _restlessness(self) -> AsyncIterator[None]:
        """While the block runs, the operator changes some schedules, and the workers' clocks are set."""
        over = asyncio.Event()
        stepping = asyncio.ensure_future(self._step_workers())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._meddle(over))
            try:
                yield
            finally:
                over.set()
                stepping.cancel()
                await asyncio.gather(stepping, return_exceptions=True)

    async def _meddle(self, over: asyncio.Event) -> None:
        verbs = ["new", "edit", "edit", "policy", "pause", "resume", "resume", "delete", "run_now", "backfill"]
        while not over.is_set():
            await self.stage.pause(0.05, 0.4)
            verb, name = self.chance.choice(verbs), self.chance.choice(self._restless)
            if verb == "new":
                self._new += 1
                name = f"new-{self._new}"
                self._restless.append(name)
            if verb == "delete" and len(self._restless) > 6:
                self._restless.remove(name)
            if verb in ("new", "edit", "policy"):
                await self._tell("put", name, definition=self._any_definition())
            elif verb == "backfill":
                await self._tell(verb, name, seconds=self.chance.choice([3.0, 30.0]))
            else:
                await self._tell(verb, name)

    def _any_definition(self) -> dict[str, Any]:
        every = self.chance.choice([1.0, 2.0, 2.5, 3.0, 5.0])
        when = self.chance.choice(
            [{"every": every}, {"every": every}, cron("* * * * *"), cron("*/7 * * * *", "Asia/Kolkata")]
        )
        if_live = self.chance.choice(["allow", "allow", "reject", "queue", "replace"])
        missed = self.chance.choice(["last", "skip", "all"])
        return defined(when, if_live=if_live, missed=missed, most=self.chance.choice([2, 5, 20]))


# ── Schedules ──


def schedules(turn: int, now: float) -> list[tuple[str, dict[str, Any]]]:
    """Return names and definitions of schedules. `turn` decides how the policies are combined."""
    policies = ["allow", "reject", "queue", "replace"]
    found: list[tuple[str, dict[str, Any]]] = []
    for seconds in range(1, 6):
        for n, missed in enumerate(("last", "skip", "all")):
            if_live = policies[(seconds + n + turn) % len(policies)]
            more: dict[str, Any] = {"most": (3, 20, 100)[turn % 3], "within": (None, 30.0, 600.0)[(seconds + turn) % 3]}
            if if_live != "allow":
                more["most"] = 5
            found.append((f"every-{seconds}-{missed}", defined({"every": float(seconds)}, missed, if_live, **more)))
    crons = [
        cron("* * * * *"),
        cron("* * * * *", "Europe/Berlin"),
        cron("*/2 * * * *", "Asia/Kolkata"),
        cron("1-59/3 * * * *"),
        cron("*/5 * * * *", "Australia/Lord_Howe"),
        cron("15,45 * * * *", "Europe/Berlin"),
        cron("30 2 * * *", "Europe/Berlin"),
        cron("30 2 * * *", "Europe/Berlin", gap="skip", overlap="both"),
        cron("*/10 2 * * *", "Europe/Berlin", overlap="second"),
    ]
    for n, when in enumerate(crons):
        missed, if_live = ("all", "last", "skip")[(n + turn) % 3], policies[(n + turn) % len(policies)]
        found.append((f"cron-{n}", defined(when, missed, if_live)))
    soon = datetime.fromtimestamp(now + 6.0, UTC).isoformat()
    later = datetime.fromtimestamp(now + 20.0, UTC).isoformat()
    found += [
        ("jitter", defined({"every": 1.0}, jitter=0.5)),
        ("half", defined({"every": 2.5, "anchor": "2026-01-01T00:00:00.700000Z"}, "all", most=1000)),
        ("starts", defined({"every": 1.5}, start=soon)),
        ("ends", defined({"every": 1.0}, "all", end=later)),
        ("minute", defined({"every": 60.0}, "all", within=5000.0)),
        ("hour", defined({"every": 3600.0, "anchor": "2026-01-01T00:13:00Z"}, "skip")),
    ]
    return found


def defined(when: dict[str, Any], missed: str = "last", if_live: str = "allow", **more: Any) -> dict[str, Any]:
    payload: dict[str, Any] = {"at": "{{fire_at}}", "schedule": "{{schedule}}"}
    if if_live != "allow":
        payload["seconds"] = 1.2 * min(when.get("every", 3.0), 3.0)
    topic = "tick" if if_live == "allow" else "slow"
    own = {name: value for name, value in more.items() if value is not None}
    return {"topic": topic, "when": when, "payload": payload, "missed": missed, "if_live": if_live, **own}


def cron(expression: str, zone: str = "UTC", gap: str = "next", overlap: str = "first") -> dict[str, Any]:
    return {"cron": expression, "zone": zone, "gap": gap, "overlap": overlap}


# ── The scene ──


def ports(pid: int) -> set[int]:
    """Return the local ports of a process's connections."""
    return {one.laddr.port for one in psutil.Process(pid).net_connections("tcp") if one.laddr}


def clock_folder() -> Path:
    """Return a new folder. Every user may read it, because PostgreSQL runs as another user and must load the shim."""
    folder = Path(tempfile.mkdtemp(prefix="rowlock-clocks-"))
    folder.chmod(0o755)
    return folder


@asynccontextmanager
async def furnished(cell: Cell) -> AsyncIterator[Scene]:
    """Yield a scene: a stage on a database whose clock can be set, and clocks for the workers."""
    beginning = BEGINNINGS[cell.seed % len(BEGINNINGS)]
    base = 0.0 if beginning is None else beginning.timestamp() - time.time()
    place = clock_folder()
    try:
        library = compiled(place)
        clock = Clock(library, place / "database")
        await clock.prove()
        clock.wrong = base
        own = [Clock(library, place / f"worker-{n}") for n in range(WORKERS)] if cell.store == "postgres" else [clock]
        for one in own:
            one.wrong = base
        with ClockedServer(clock) if cell.store == "postgres" else nullcontext() as server:
            cell.folder.mkdir(parents=True, exist_ok=True)
            url = server.url() if server is not None else f"sqlite:///{cell.folder}/jobs.db"
            async with prepared(cell.folder, url, cell.seed, app=APP) as stage:
                yield Scene(stage, server, clock, own)
    finally:
        shutil.rmtree(place, ignore_errors=True)
