"""The stage of a suite: a database with a witness, workers in their own processes, clients that keep a record, and the
faults that are done to all of them. At the end, the checker reads what was witnessed.

A fault is recorded before it is done. So the checker knows exactly what may be late.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

from rowlock.errors import InvalidState
from rowlock.stores import open_store
from tests.faults.results import Result, figures
from tests.proof import history_app
from tests.proof.checker import check
from tests.proof.history import History
from tests.proof.history_app import BUSINESS, wrongly_answered, wrongly_paid
from tests.proof.recorder import Recorder
from tests.proof.witness import TablesAt, Witness
from tests.runtime.system.fleet import Fleet, WorkerProcess, opened
from tests.waiting import until

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0  # seconds to wait for something that must happen

LEASE, POLL, GRACE, MAINTENANCE = 2.0, 0.3, 2.0, 5.0
SLOTS = 4
OPTIONS = ("--lease", f"{LEASE}s", "--poll", f"{POLL}s", "--grace", f"{GRACE}s", "-c", str(SLOTS))
SLACK = 10.0  # seconds that a busy machine may be late


class Stage:
    """Workers and clients use `url`, which may lead through a proxy. `direct` leads to the database itself."""

    def __init__(self, fleet: Fleet, record: Recorder, direct: str, seed: int, app: str) -> None:
        self.fleet = fleet
        self.url = fleet.url
        self.direct = direct
        self.folder = fleet.folder
        self.record = record
        self.tables = TablesAt(direct)
        self.store = self.tables.kind
        self.chance = Random(seed)
        self.seed = seed
        self.workers: list[WorkerProcess] = []
        self.histories: list[History] = []
        self.settings = {"lease": LEASE, "poll": POLL, "grace": GRACE, "maintenance": MAINTENANCE, "slack": SLACK}
        self.settings["slots"] = SLOTS
        self._app = app

    # ── Workers ──

    async def start_workers(self, count: int, *options: str, processes: int = 1, **env: str) -> None:
        """Launch so many workers, then wait until all of them work."""
        new = [self.launch(*options, processes=processes, **env) for _ in range(count)]
        for worker in new:
            await self.fleet.working(worker, processes)

    def launch(self, *options: str, processes: int = 1, app: str | None = None, **env: str) -> WorkerProcess:
        path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        known = {"PYTHONPATH": path, "ROWLOCK_PROOF_RECORD": str(self.folder / "record"), **env}
        words = (*OPTIONS, *options, "--processes", str(processes))
        worker = self.fleet.launch(*words, app=app or self._app, **known)
        self.workers.append(worker)
        return worker

    def kill(self, *pids: int) -> None:
        """Send SIGKILL to all these processes in the same moment."""
        for pid in pids:
            self.record.fault("kill", pid)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_machine(self, worker: WorkerProcess) -> None:
        """Kill the supervisor and its children, as when the power fails: no process takes their jobs back at once."""
        worker.signal(signal.SIGSTOP)  # the supervisor must not start another child in between
        self.kill(worker.pid, *worker.children())
        worker.process.wait()
        self.workers.remove(worker)

    async def stop_politely(self, worker: WorkerProcess) -> None:
        """Stop the worker by SIGTERM to its supervisor. Record the supervisor's end for each of its processes."""
        pids = worker.children()
        for pid in pids:
            self.record.fault("term", pid)
        worker.signal(signal.SIGTERM)
        await until(lambda: worker.process.poll() is not None, what="a worker to stop", patience=PATIENCE)
        for pid in pids:
            self.record.fault("gone", pid)
        self.workers.remove(worker)

    async def busy_process(self) -> tuple[WorkerProcess, int] | None:
        """Return a worker, and the pid of a process of it that holds jobs now; None if there is none."""
        query = "SELECT DISTINCT locked_by FROM _jobs WHERE locked_until IS NOT NULL"
        holders = {int(name.split("-")[-2]) for (name,) in await self.tables.fetch(query) if name}
        found = [(worker, pid) for worker in self.workers for pid in sorted(worker.children() & holders)]
        return self.chance.choice(found) if found else None

    async def pause(self, shortest: float, longest: float) -> None:
        await asyncio.sleep(self.chance.uniform(shortest, longest))

    # ── The end ──

    async def drained(self, patience: float = PATIENCE) -> None:
        """Wait until every job has ended."""
        live = "SELECT count(*) FROM _jobs WHERE status NOT IN ('failed', 'expired', 'cancelled')"

        async def empty() -> bool:
            await self.hurry()
            [(count,)] = await self.tables.fetch(live)
            return bool(count == 0)

        try:
            await self.fleet.until(empty, what="the queue to be empty", patience=patience)
        except AssertionError as error:
            columns = "status, topic, version, retries, ready, run_at, locked_by, locked_until"
            left = await self.tables.fetch(
                f"SELECT {columns} FROM _jobs WHERE status NOT IN ('failed', 'expired', 'cancelled') LIMIT 5"
            )
            raise AssertionError(f"{str(error)[-6000:]}\nleft: {left}") from None

    async def hurry(self) -> None:
        """Make jobs due that wait after their second crash, because that may take minutes."""
        late = await self.tables.fetch("SELECT id FROM _jobs WHERE status = 'pending' AND NOT ready AND crashes > 1")
        for (job_id,) in late:
            with suppress(InvalidState, LookupError), self.record.operation("update", [str(job_id)]):
                await self.fleet.jobs.update(str(job_id), delay=0, by="ann")

    async def stop_all(self) -> None:
        await asyncio.gather(*(self.stop_politely(worker) for worker in list(self.workers)))

    async def collect(self, *, at_rest: bool = True) -> History:
        """Return the history of everything since the beginning."""
        history = History(self.tables.kind, {**self.settings, "cancel_grace": 30.0}, at_rest=at_rest)
        await Witness(self.tables).collect(self.record.load(history))
        rows = await self.tables.fetch("SELECT job_id, version FROM business")
        there = {(str(job_id), version) for job_id, version in rows}
        for operation in history.operations:
            if operation.verb == "complete" and operation.detail:
                operation.detail["row_visible"] = (operation.ids[0], operation.detail["version"]) in there
        self.histories.append(history)
        return history

    async def finished(self, result: Result) -> Result:
        """Let the workers end every job and stop. Return what the checker finds."""
        await self.drained()
        await self.stop_all()
        return await self.judged(result)

    async def judged(self, result: Result) -> Result:
        """Return the result with what the checker finds. The workers must have stopped."""
        history = await self.collect()
        result.violations += await asyncio.to_thread(check, history)
        paid = [str(job_id) for (job_id,) in await self.tables.fetch("SELECT job_id FROM paid")]
        result.violations += wrongly_paid(history, paid)
        result.violations += wrongly_answered(history)
        result.figures = {**figures([history]), **result.figures}
        if self.tables.kind == "sqlite":
            [(said,)] = await self.tables.fetch("PRAGMA integrity_check")
            assert said == "ok", f"integrity_check: {said}"
        return result


@asynccontextmanager
async def prepared(
    folder: Path,
    direct: str,
    seed: int,
    *,
    through: Callable[[str], str] | None = None,
    app: str = "history_app:jobs",
) -> AsyncIterator[Stage]:
    """Yield a stage on an empty database at `direct`. `through` makes the URL that workers and clients use."""
    await open_store(direct).migrate()
    await Witness(TablesAt(direct)).install()
    for table in BUSINESS:
        await TablesAt(direct).execute(table)
    _furnish(folder)
    async with opened(through(direct) if through else direct, folder) as fleet:
        yield Stage(fleet, Recorder(folder / "record"), direct, seed, app)


def _furnish(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record").mkdir()
    shutil.copy(history_app.__file__, folder / "history_app.py")
