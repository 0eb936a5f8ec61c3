"""What a deploy does to a fleet under load:

- SIGTERM to all workers at random moments, and a second one to slow workers; - rolling restarts between two releases of
an application, there and back; - `rowlock migrate` from several processes at once; - the migrations of a future
release, while workers that don't know them carry on.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from rowlock.jobs import Jobs
from tests.faults.load import KINDS, Load
from tests.faults.places import staged
from tests.faults.results import Result
from tests.faults.stage import PATIENCE, ROOT, Stage
from tests.faults.suites import Cell
from tests.proof.history import History, Violation
from tests.proof.history_app import new_ids
from tests.proof.lives import World
from tests.proof.witness import WORKERS as REGISTER
from tests.runtime.system.fleet import WorkerProcess
from tests.waiting import until

WORKERS = 2
AT_ONCE = 3  # processes that migrate at the same time
LONG, LONG_ONES = 4.0, 3  # seconds of a long job: more than a worker's grace; long jobs before each storm
CARRIED_ON = 30  # jobs that must get done after each migration
BUSY = 4.0  # seconds that a stop may take longer than promised on a busy machine
MIGRATE = ("-m", "rowlock", "migrate")


async def run(cell: Cell) -> Result:
    times = cell.scale.stops
    async with staged(cell, app="tests.faults.deploy_app:jobs") as stage, Jobs(stage.url) as jobs:
        stage.settings["stop_slack"] = BUSY
        load = Load(stage, jobs, {**KINDS, "nap": {"seconds": 0.3}, "renewed": {"pages": 3}, "newcomer": {}})
        deploy = Deploy(stage)
        await deploy.start(2)
        async with load.going_on(rate=cell.scale.rate / 3, least=times * 100):
            for n in range(times):
                await have_long_ones(stage, jobs)
                await asyncio.gather(deploy.storm(twice=n % 2 == 1, processes=1 + n % 2), deploy.migrate_again())
            for n in range(times):
                await deploy.roll(release=1 + (n + 1) % 2)
            for n in range(1, times + 1):
                await deploy.migrate_ahead(n)
            await deploy.refused_by_the_old_one()
            await deploy.roll(release=3, APP_MIGRATIONS=str(times))
        result = await stage.finished(cell.result())
        result.violations += [*deploy.violations, *strangers(stage.histories[-1])]
        result.figures |= {"migrations": deploy.migrations, **stops(stage.histories[-1])}
        return result


async def have_long_ones(stage: Stage, jobs: Jobs) -> None:
    for _ in range(LONG_ONES):
        job_id = new_ids.one()
        with stage.record.operation("enqueue", [job_id], topic="nap", key=None) as told:
            told(await jobs.enqueue("nap", {"seconds": LONG}, id=job_id, priority="explicit"))


class Deploy:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._release = "1"
        self.migrations = 0  # runs of `rowlock migrate`
        self.violations: list[Violation] = []

    # ── Workers ──

    async def start(self, processes: int, **env: str) -> None:
        worker = self._stage.launch(processes=processes, APP_RELEASE=self._release, **env)
        await self._stage.fleet.working(worker, processes)

    async def storm(self, *, twice: bool, processes: int) -> None:
        """Stop all workers while new ones take their place. `twice`: send a second SIGTERM to workers that still run,
        so that they stop at once."""
        old = list(self._stage.workers)
        new = [self.start(processes) for _ in range(WORKERS)]
        await asyncio.gather(*(self._stop(worker, twice) for worker in old), *new)

    async def _stop(self, worker: WorkerProcess, twice: bool) -> None:
        await self._stage.pause(0.0, 1.0)
        stopping = asyncio.create_task(self._stage.stop_politely(worker))
        await self._stage.pause(0.3, 1.5)
        if twice and worker.process.poll() is None:
            for pid in worker.children():
                self._stage.record.fault("kill", pid)
            worker.signal(signal.SIGTERM)
        await stopping

    async def roll(self, release: int, **env: Any) -> None:
        """Replace the workers by this release, one after the other."""
        self._release = str(release)
        for old in list(self._stage.workers):
            await self.start(1, **env)
            await self._stage.stop_politely(old)

    # ── Migrations ──

    async def migrate_again(self) -> None:
        """Migrate from several processes when there is nothing to do. That must not disturb the workers."""
        for code, said in await asyncio.gather(*(self._run(*MIGRATE) for _ in range(AT_ONCE))):
            if code != 0 or "up to date" not in said:
                self._wrong(f"rowlock migrate ended with {code}: {said}")

    async def migrate_ahead(self, count: int) -> None:
        """Migrate from several processes that know `count` future migrations. One process applies the new one, and the
        workers carry on."""
        words = ("-m", "tests.faults.next_release", str(count))
        answers = await asyncio.gather(*(self._run(*words) for _ in range(AT_ONCE)))
        applied = [said for code, said in answers if code == 0 and "applied:" in said]
        if len(applied) != 1 or any(code != 0 for code, _ in answers):
            self._wrong(f"of {AT_ONCE} that migrate at once, one applies it: {answers}")
        done = await self._done()

        async def carried_on() -> bool:
            return await self._done() >= done + CARRIED_ON

        await until(carried_on, what="workers to carry on after a migration", patience=PATIENCE)

    async def refused_by_the_old_one(self) -> None:
        code, said = await self._run(*MIGRATE)
        if code == 0 or "upgrade rowlock" not in said:
            self._wrong(f"an old release said {said!r} about newer tables, and ended with {code}")

    async def _done(self) -> int:
        [(count,)] = await self._stage.tables.fetch("SELECT count(*) FROM _jobs_archive")
        return int(count)

    async def _run(self, *words: str) -> tuple[int, str]:
        self.migrations += 1
        known = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "ROWLOCK_URL": self._stage.url}
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, env={**os.environ, **known}, stdin=-3, stdout=-1, stderr=-2
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode or 0, said.decode(errors="replace").strip()

    def _wrong(self, text: str) -> None:
        self.violations.append(Violation("MIGRATE", None, text))


def strangers(history: History) -> Iterator[Violation]:
    """A worker only claims jobs of topics that it has registered."""
    known: dict[str, set[str]] = {}
    for change in history.changes:
        if change.table == REGISTER and change.after is not None:
            known.setdefault(change.after["name"], set()).update(change.after["topics"])
    claimed = set()
    for life in World(history).lives:
        for claim in life.claims.values():
            assert claim.after is not None
            claimed.add(claim.after["topic"])
            if claim.after["topic"] not in known.get(claim.after["locked_by"], set()):
                yield Violation("TOPICS", life.id, f"{claim}: {claim.after['locked_by']} has no handler for it")
    if not {"renewed", "newcomer"} <= claimed:
        yield Violation("TOPICS", None, "nothing was learned about topics: the new ones were never claimed")


def stops(history: History) -> dict[str, float]:
    """Return how long the longest stop by SIGTERM took, until its supervisor's end."""
    gone = {fault.target: fault.at for fault in history.faults if fault.kind == "gone"}
    took = [(gone[fault.target] - fault.at) / 1e6 for fault in history.faults if fault.kind == "term"]
    return {"s for the longest stop": max(took)}
