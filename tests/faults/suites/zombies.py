"""SIGSTOP freezes a worker for two to five leases. Other workers take its jobs over. When it wakes (a zombie), the
store refuses everything that it writes for these jobs."""

import asyncio
import os
import signal

from rowlock.jobs import Jobs
from tests.faults.load import KINDS, Load
from tests.faults.places import staged
from tests.faults.results import Result
from tests.faults.stage import LEASE, Stage
from tests.faults.suites import Cell

WORKERS = 3
AT_ONCE = 2  # so that a worker is always awake


async def run(cell: Cell) -> Result:
    async with staged(cell) as stage, Jobs(stage.url) as jobs:
        load = Load(stage, jobs, {**KINDS, "nap": {"seconds": 0.3}})
        await stage.start_workers(WORKERS)
        zombies = cell.scale.zombies
        asleep: set[int] = set()
        async with load.going_on(rate=cell.scale.rate / 2, least=zombies * 50):
            turns = [zombies // AT_ONCE + (n < zombies % AT_ONCE) for n in range(AT_ONCE)]
            await asyncio.gather(*(freeze(stage, asleep, turn) for turn in turns))
        result = await stage.finished(cell.result())
        result.figures["stale runs that ended"] = stale(stage)
        return result


async def freeze(stage: Stage, asleep: set[int], times: int) -> None:
    for _ in range(times):
        found = await stage.busy_process()
        while found is None or found[1] in asleep:
            await asyncio.sleep(0.02)
            found = await stage.busy_process()
        _worker, pid = found
        asleep.add(pid)
        stage.record.fault("stop", pid)
        os.kill(pid, signal.SIGSTOP)
        await stage.pause(2 * LEASE, 5 * LEASE)
        stage.record.fault("cont", pid)
        os.kill(pid, signal.SIGCONT)
        asleep.discard(pid)
        await stage.pause(0.2, 1.0)


def stale(stage: Stage) -> int:
    """Return how many runs ended after the job's next run had begun: each had an outcome that must be refused."""
    history = stage.histories[-1]
    newest: dict[str, int] = {}
    for run in history.executions:
        newest[run.job_id] = max(newest.get(run.job_id, 0), run.begun)
    return sum(one.ended is not None and one.begun < newest[one.job_id] < one.ended for one in history.executions)
