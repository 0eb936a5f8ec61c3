"""Handlers return, and then their process dies of what they have left behind. They cancel all tasks, close all
descriptors, or end the process a moment later. Each of these jobs comes to its end, and so do the good jobs beside
them."""

import asyncio
from collections.abc import Iterator

from rowlock.jobs import Jobs
from tests.faults.load import Load
from tests.faults.places import staged
from tests.faults.results import Result
from tests.faults.stage import PATIENCE, SLACK, Stage
from tests.faults.suites import Cell
from tests.faults.suites.poison import alive, survived
from tests.proof.history import Violation
from tests.proof.history_app import new_ids
from tests.proof.lives import World
from tests.waiting import until

WORKERS = 3
GOOD = {"quick": {}, "nap": {"seconds": 0.05}, "threaded": {}}
HARMFUL = ("cancels_all", "closes_all", "exits_after", "exits_soon_after")
RETRIES = 3  # if the cause of a crash is unknown, it may be charged to the good jobs beside it, too


async def run(cell: Cell) -> Result:
    async with staged(cell, app="tests.faults.after_effects_app:jobs") as stage, Jobs(stage.url) as jobs:
        load = Load(stage, jobs, GOOD)
        stage.settings["stop_slack"] = SLACK
        await stage.start_workers(WORKERS, processes=1)
        async with load.going_on(rate=cell.scale.rate / 4, least=cell.scale.around_poison // 2, meddle=False):
            harmful = await administer(stage, jobs, cell.scale.after_effects)
        await stage.drained()
        await until(lambda: all(alive(stage, 1)), what="every worker to be whole again", patience=PATIENCE)
        await stage.stop_all()
        result = await stage.judged(cell.result(harmful=len(harmful)))
        world = World(stage.histories[-1])
        result.violations += await asyncio.to_thread(lambda: [*survived(world, harmful), *bounded(world, harmful)])
        return result


async def administer(stage: Stage, jobs: Jobs, count: int) -> dict[str, int]:
    harmful: dict[str, int] = {}
    for n in range(count):
        topic, job_id = HARMFUL[n % len(HARMFUL)], new_ids.one()
        with stage.record.operation("enqueue", [job_id], topic=topic, key=None) as told:
            told(await jobs.enqueue(topic, id=job_id, max_retries=RETRIES))
        harmful[job_id] = RETRIES
        await stage.pause(0.2, 0.8)
    return harmful


def bounded(world: World, harmful: dict[str, int]) -> Iterator[Violation]:
    """No job runs more often than it may be charged. One more run is free: a job with retries left may start without a
    start mark. If its supervisor dies as well, nothing in the database shows that run."""
    for job_id, retries in harmful.items():
        runs = sum(run.job_id == job_id for run in world.history.executions)
        if runs > retries + 2:
            yield Violation("AFTER", job_id, f"ran {runs} times, with max_retries {retries}")
