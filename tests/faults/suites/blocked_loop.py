"""Handlers block their worker's event loop for two to four leases. No worker dies, so no job may be taken from a
worker: not even a job whose claim was answered while the loop was blocked."""

import asyncio
from collections.abc import Iterator

from rowlock.jobs import Jobs
from tests.faults.load import Load
from tests.faults.places import staged
from tests.faults.results import Result
from tests.faults.stage import LEASE, SLACK
from tests.faults.suites import Cell
from tests.proof.history import Violation
from tests.proof.history_app import new_ids
from tests.proof.lives import World

WORKERS = 2
GOOD = {"quick": {}, "nap": {"seconds": 0.01}}


async def run(cell: Cell) -> Result:
    async with staged(cell, app="tests.faults.blocking_app:jobs") as stage, Jobs(stage.url) as jobs:
        load = Load(stage, jobs, GOOD)
        stage.settings["stop_slack"] = SLACK
        await stage.start_workers(WORKERS)
        async with load.going_on(rate=3 * cell.scale.rate, least=cell.scale.jobs // 2, meddle=False):
            for _ in range(cell.scale.blocks):
                job_id, seconds = new_ids.one(), LEASE * stage.chance.uniform(2, 4)
                with stage.record.operation("enqueue", [job_id], topic="blocks", key=None) as told:
                    told(await jobs.enqueue("blocks", {"seconds": seconds}, id=job_id, max_retries=0, priority=150))
                await stage.pause(LEASE / 2, 3 * LEASE)
        result = await stage.finished(cell.result(blocks=cell.scale.blocks))
        result.violations += await asyncio.to_thread(lambda: [*robbed(World(stage.histories[-1]))])
        return result


def robbed(world: World) -> Iterator[Violation]:
    for life in world.lives:
        for step in life.steps:
            if step.move == "rescue":
                yield Violation(
                    "ROBBED", life.id, f"{step}: its worker lives, and nothing but its event loop is blocked"
                )
