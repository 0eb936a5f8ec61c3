"""Among good jobs, some jobs kill the worker that runs them, or use up its memory. Each such job becomes a dead letter
when all its tries are charged. The good jobs are completed, also those that ran beside it, and the workers live on."""

import asyncio
from collections.abc import Iterator

from rowlock.core.ids import IdMaker
from rowlock.jobs import Jobs
from tests.faults.load import Load
from tests.faults.places import staged
from tests.faults.results import Result
from tests.faults.stage import PATIENCE, SLACK, Stage
from tests.faults.suites import Cell
from tests.proof.history import Violation
from tests.proof.history_app import new_ids
from tests.proof.lives import Life, World
from tests.waiting import until

WORKERS, PROCESSES = 2, 2
GOOD = {
    "quick": {}, "nap": {"seconds": 0.05}, "threaded": {}, "snoozing": {}, "owning": {}, "parent": {}, "apart": {},
}  # fmt: skip
POISONS = ("exits", "segfaults", "hogs", "exits_apart", "segfaults_apart", "hogs_apart")


async def run(cell: Cell) -> Result:
    async with staged(cell, app="tests.faults.poison_app:jobs") as stage, Jobs(stage.url) as jobs:
        load = Load(stage, jobs, GOOD)
        stage.settings["stop_slack"] = SLACK
        await stage.start_workers(WORKERS, processes=PROCESSES)
        async with load.going_on(rate=cell.scale.rate / 4, least=cell.scale.around_poison, meddle=False):
            doses = await administer(stage, jobs, cell.scale.poison, new_ids)
        await stage.drained()
        await until(lambda: all(alive(stage)), what="every worker to be whole again", patience=PATIENCE)
        await stage.stop_all()
        result = await stage.judged(cell.result(poisonous=len(doses)))
        world = World(stage.histories[-1])
        result.violations += await asyncio.to_thread(lambda: [*survived(world, doses), *died(world, doses)])
        result.figures |= harm(world, doses)
        return result


async def administer(stage: Stage, jobs: Jobs, count: int, ids: IdMaker) -> dict[str, int]:
    """Enqueue jobs that do harm. Return the number of retries of each, by its id."""
    doses: dict[str, int] = {}
    for n in range(count):
        topic, job_id, retries = POISONS[n % len(POISONS)], ids.one(), stage.chance.randrange(3)
        with stage.record.operation("enqueue", [job_id], topic=topic, key=None) as told:
            told(await jobs.enqueue(topic, id=job_id, max_retries=retries))
        doses[job_id] = retries
        await stage.pause(0.2, 0.8)
    return doses


def alive(stage: Stage, processes: int = PROCESSES) -> Iterator[bool]:
    for worker in stage.workers:
        assert worker.process.poll() is None, f"the supervisor has ended:\n{worker.output[-4000:]}"
        yield len(worker.children()) >= processes


def died(world: World, doses: dict[str, int]) -> Iterator[Violation]:
    for job_id, retries in doses.items():
        row = world.history.jobs.get(job_id)
        status = None if row is None else row["status"]
        if status not in ("failed", "expired"):
            yield Violation("POISON", job_id, f"is {status} in the end")
        if (cost := charged(world.by_id[job_id][-1])) != retries + 1:
            yield Violation("POISON", job_id, f"was charged {cost} times, with max_retries {retries}")


def charged(life: Life) -> int:
    """Return how many runs were charged, including the last one."""
    return sum(
        step.move == "fail"
        or (step.move == "rescue" and step.before is not None and step.before["started_at"] is not None)
        for step in life.steps
    )


def survived(world: World, doses: dict[str, int]) -> Iterator[Violation]:
    for job_id in world.by_id.keys() - doses.keys():
        if job_id not in world.history.archive:
            row = world.history.jobs.get(job_id, {})
            yield Violation("INNOCENT", job_id, f"is {row.get('status')} in the end: {row.get('last_error')}")


def harm(world: World, doses: dict[str, int]) -> dict[str, float]:
    beside = [
        life for life in world.lives if life.id not in doses and any(step.move == "rescue" for step in life.steps)
    ]
    return {
        "charged runs of them": sum(charged(world.by_id[one][-1]) for one in doses),
        "good ones that ran beside a crash": len(beside),
    }
