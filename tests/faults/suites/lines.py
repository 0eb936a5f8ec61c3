"""Sixteen connections in four processes enqueue jobs with the same keys, under all policies, some of them in the
callers' open transactions. Meanwhile workers are killed and replaced. A key that rejects has one live job. A line has
one head and keeps its order. No job is lost, and none stays blocked."""

import asyncio
import os
import sys
from asyncio.subprocess import Process

from tests.faults.liner import POLICIES
from tests.faults.places import staged
from tests.faults.results import Result
from tests.faults.stage import PATIENCE, ROOT, SLACK, Stage
from tests.faults.suites import Cell
from tests.faults.suites.kills import PROCESSES, kill_busy
from tests.proof.history import History, Violation
from tests.proof.lives import World
from tests.waiting import until

PRODUCERS, CLIENTS = 4, 4
WORKERS = 2
LONGEST_SETTLE = SLACK  # seconds


async def run(cell: Cell) -> Result:
    async with staged(cell) as stage:
        survivor = stage.launch()  # one worker must live long enough to take jobs back
        stage.workers.remove(survivor)
        await stage.start_workers(WORKERS, processes=PROCESSES)
        producers = [await launch(stage, cell, n) for n in range(PRODUCERS)]
        try:
            for _ in range(cell.scale.lined_kills):
                await until(lambda: any(one.children() for one in stage.workers), what="workers", patience=PATIENCE)
                await kill_busy(stage)
                await stage.pause(0.2, 0.8)
            codes = await asyncio.gather(*(one.wait() for one in producers))
        finally:
            for one in producers:
                if one.returncode is None:
                    one.kill()
                    await one.wait()
        assert codes == [0] * PRODUCERS
        await stage.drained(5 * PATIENCE)
        stage.workers.append(survivor)
        await stage.stop_all()
        result = await stage.judged(cell.result())
        return await told(stage, result)


async def launch(stage: Stage, cell: Cell, n: int) -> Process:
    known = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    share = cell.scale.lined // (PRODUCERS * CLIENTS)
    words = (stage.url, str(stage.folder / "record"), str(cell.seed * PRODUCERS + n), str(CLIENTS), str(share))
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.faults.liner", *words, env=known)


async def told(stage: Stage, result: Result) -> Result:
    history = stage.histories[-1]
    longest = longest_settle(history)
    if longest > LONGEST_SETTLE:
        result.violations.append(Violation("LINES", None, f"a run was settled {longest:.1f} s after its end"))
    if stage.store == "postgres":
        deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        [(count,)] = await stage.tables.fetch(deadlocks)
        if count:
            result.violations.append(Violation("LINES", None, f"{count} deadlocks"))
    rows = [*history.jobs.values(), *history.archive.values()]
    for policy in POLICIES:
        result.figures[f"jobs of {policy}"] = sum(str(row["key"]).startswith(policy) for row in rows)
    back = [one for one in history.operations if one.verb == "transaction" and one.outcome == "fail"]
    result.figures |= {"rolled back": len(back), "s to settle (longest)": longest}
    return result


def longest_settle(history: History) -> float:
    """Return the longest time from the end of a handler until its worker settled the run, in seconds."""
    world, longest = World(history), 0.0
    for life in world.lives:
        for version, runs in life.runs.items():
            end, ended = life.ends.get(version), runs[-1].ended
            if end is None or ended is None or end.move not in ("complete", "fail", "acknowledge_cancel"):
                continue
            at = world.by_database(ended)
            longest = max(longest, 0.0 if at is None else (end.at - at) / 1e6)
    return longest
