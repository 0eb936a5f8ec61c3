"""Everything at once, for hours: does anything break, and does anything grow?

    python -m tests.faults.soak --for 2h
    python -m tests.faults.soak --for 10m --store sqlite --seed 7

In rounds of about a minute: load, and faults of all kinds; then the queue is drained, the checker reads what happened,
and it is forgotten. Then a few seconds without faults, in which the time from due to claimed is taken. The database and
one worker, the survivor, live from beginning to end: what they need is measured after every round.
"""

import argparse
import asyncio
import json
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from multiprocessing import get_context
from pathlib import Path

import msgspec

from rowlock.jobs import Jobs
from tests.faults.forget import forget
from tests.faults.growth import Measured, latency, levels, measure, table
from tests.faults.load import KINDS, Load
from tests.faults.mixture import Mixture, options_of
from tests.faults.places import on_server, staged
from tests.faults.scale import QUICK
from tests.faults.stage import SLACK, Stage
from tests.faults.suites import BOTH, Cell
from tests.faults.wire import Wire
from tests.proof.checker import check
from tests.proof.history import Violation
from tests.proof.lives import World
from tests.servers import PostgresServer

OUT = Path("build/faults")
CALM = 5.0  # seconds without faults, after each round
RATE, CALM_RATE = 60.0, 40.0  # jobs per second
UNITS = {"s": 1, "m": 60, "h": 3600}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__.split("\n")[0])
    parser.add_argument("--for", dest="span", type=seconds, default=seconds("2h"), help="such as 90s, 10m, 2h")
    parser.add_argument(
        "--round", type=seconds, default=seconds("40s"), help="of faults; then drain, check and measure"
    )
    parser.add_argument("--store", choices=BOTH, action="append", help="default: both, side by side")
    parser.add_argument("--seed", type=int, help="default: a new one")
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder of the report (default: {OUT})")
    given = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    runs = all_of(given.store or BOTH, seed, given.span, given.round)
    given.out.mkdir(parents=True, exist_ok=True)
    document = {"seed": seed, "seconds": given.span, "runs": [msgspec.to_builtins(run) for run in runs]}
    (given.out / "soak.json").write_text(json.dumps(document, indent=1, default=repr))
    (given.out / "soak.md").write_text("\n\n".join([f"# Soak\n\nseed {seed}", *(run.text() for run in runs)]) + "\n")
    for run in runs:
        print(run.line())
        for problem in run.problems():
            print(f"  {problem}", file=sys.stderr)
    return 1 if any(run.problems() for run in runs) else 0


def seconds(text: str) -> float:
    return float(text[:-1]) * UNITS[text[-1]]


class Run(msgspec.Struct):
    store: str
    rounds: list[Measured] = msgspec.field(default_factory=list)
    counts: Counter[str] = msgspec.field(default_factory=Counter)
    violations: list[Violation] = msgspec.field(default_factory=list)
    error: str | None = None
    evidence: str | None = None
    """The folder that is left behind if something was found."""

    def problems(self) -> list[str]:
        found = [f"{one.invariant} {one.job_id or ''} {one.text}" for one in self.violations]
        found += [self.error] if self.error else []
        found += [one.text for one in levels(self.rounds) if not one.level]
        return [*found, f"see {self.evidence}"] if found and self.evidence else found

    def line(self) -> str:
        counted = ", ".join(f"{count:,} {what}" for what, count in self.counts.items())
        grown = sum(not one.level for one in levels(self.rounds))
        said = f"{len(self.rounds)} rounds, {len(self.violations)} violations, {grown} growing"
        return f"soak on {self.store}: {said}, {counted}" + (", BROKE DOWN" if self.error else "")

    def text(self) -> str:
        judged = [f"- {'level' if one.level else '**GROWS**'}: {one.text}" for one in levels(self.rounds)]
        wrong = [f"- **{problem}**" for problem in self.problems()]
        return "\n".join([f"## {self.store}", "", self.line(), "", *wrong, *judged, "", *table(self.rounds)])


def all_of(stores: list[str] | tuple[str, ...], seed: int, span: float, turn: float) -> list[Run]:
    """Run a soak per store, each in its own process: the check of one history must not block the wires of another.
    Return the runs."""
    with ProcessPoolExecutor(len(stores), get_context("spawn")) as pool:
        return list(pool.map(one, stores, [seed] * len(stores), [span] * len(stores), [turn] * len(stores)))


def one(store: str, seed: int, span: float, turn: float) -> Run:
    """Run the soak of one store. On SIGTERM it stops its workers first."""

    async def stoppable() -> Run:
        running = asyncio.ensure_future(soak(store, seed, span, turn))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        return await running

    return asyncio.run(stoppable())


async def soak(store: str, seed: int, span: float, turn: float) -> Run:
    run = Run(store)
    folder = Path(tempfile.mkdtemp(prefix=f"rowlock-soak-{store}-"))
    cell = Cell("soak", store, seed, folder, QUICK)
    try:
        async with AsyncExitStack() as stack:
            server: PostgresServer | None = None
            if store == "postgres":
                stage, server = await stack.enter_async_context(on_server(cell, settings={"max_wal_size": "256MB"}))
            else:
                stage = await stack.enter_async_context(staged(cell))
            await Soak(stage, server, run, stack).go_on(span, turn)
    except Exception:
        run.error = traceback.format_exc()[-6000:]
    if run.error or run.violations:
        run.evidence = str(folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return run


class Soak:
    def __init__(self, stage: Stage, server: PostgresServer | None, run: Run, stack: AsyncExitStack) -> None:
        self._stage = stage
        self._server = server
        self._run = run
        self._stack = stack
        stage.settings["stop_slack"] = SLACK

    async def go_on(self, span: float, turn: float) -> None:
        """Run whole rounds, until the time is over or a violation is found."""
        end = time.monotonic() + span
        wire = None
        if self._server is not None:
            wire = await self._stack.enter_async_context(Wire(self._server.host, self._server.port))
        url = options_of(self._stage.url)
        jobs = await self._stack.enter_async_context(Jobs(url))
        survivor = self._stage.launch("-t", ",".join(KINDS), ROWLOCK_URL=url)
        self._stage.workers.remove(survivor)
        [pid] = await self._stage.fleet.working(survivor)
        mixture = Mixture(self._stage, self._server, wire, jobs)
        await mixture.begin()
        while time.monotonic() < end and not self._run.violations:
            began = time.monotonic()
            await self._faults(jobs, mixture, turn)
            waits = [] if self._run.violations else await self._calm(jobs)
            assert survivor.children() == {pid}, f"the survivor has died:\n{survivor.output[-3000:]}"
            measured = await measure(self._stage, self._server, pid, waits)
            measured.seconds = time.monotonic() - began
            self._run.rounds.append(measured)
            print(f"{self._run.store} {len(self._run.rounds)}: {measured.text()}", flush=True)
        self._stage.workers.append(survivor)
        await self._stage.stop_all()

    async def _faults(self, jobs: Jobs, mixture: Mixture, turn: float) -> None:
        load = Load(self._stage, jobs, KINDS)
        async with load.going_on(rate=RATE, least=0):
            await mixture.stir(turn)
        await self._stage.drained()
        world = await self._judge()
        self._run.counts["jobs"] += len(world.by_id)
        self._run.counts["executions"] += len(world.history.executions)
        self._run.counts.update(
            f"{fault.kind}s" for fault in world.history.faults if fault.kind not in ("cont", "gone")
        )

    async def _calm(self, jobs: Jobs) -> list[float]:
        async with Load(self._stage, jobs, {"quick": {}}).going_on(rate=CALM_RATE, least=0, meddle=False):
            await asyncio.sleep(CALM)
        await self._stage.drained()
        world = await self._judge()
        self._run.counts["jobs"] += len(world.by_id)
        return latency(world)

    async def _judge(self) -> World:
        history = await self._stage.collect()
        self._stage.histories.clear()
        self._run.violations += await asyncio.to_thread(check, history)
        if self._run.violations:
            (self._stage.folder / "history.json").write_bytes(msgspec.json.encode(history, enc_hook=repr))
        else:
            await forget(self._stage)
        return World(history)


if __name__ == "__main__":
    sys.exit(main())
