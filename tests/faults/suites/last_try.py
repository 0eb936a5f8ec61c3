"""A worker claims hundreds of short jobs ahead that are on their last try. Then its supervisor and the worker are
killed in the same moment. A job whose handler had begun becomes a dead letter. All other jobs run: at most as many jobs
as the worker had slots may be charged for a run that never began (X4)."""

from rowlock.jobs import Jobs
from tests.faults.load import Load
from tests.faults.places import staged
from tests.faults.results import Result
from tests.faults.stage import PATIENCE, SLACK, Stage
from tests.faults.suites import Cell
from tests.proof.lives import World
from tests.waiting import until

AHEAD = 50  # jobs that the worker must hold when it is killed: far more than its slots


async def run(cell: Cell) -> Result:
    async with staged(cell) as stage, Jobs(stage.url) as jobs:
        load = Load(stage, jobs, {"quick": {}})
        stage.settings["stop_slack"] = SLACK
        for _ in range(cell.scale.last_tries):
            await load.pile("quick", cell.scale.on_last_try, max_retries=0)
            worker = stage.launch()
            await until(lambda: holds_many(stage), what="a worker to claim ahead", patience=PATIENCE)
            stage.kill_machine(worker)
        await stage.start_workers(1)
        result = await stage.finished(cell.result())
        result.figures |= dead_letters(World(stage.histories[-1]))
        return result


async def holds_many(stage: Stage) -> bool:
    [(held,)] = await stage.tables.fetch("SELECT count(*) FROM _jobs WHERE locked_until IS NOT NULL")
    return bool(held >= AHEAD)


def dead_letters(world: World) -> dict[str, float]:
    dead = [job_id for job_id, row in world.history.jobs.items() if row["status"] == "expired"]
    ran = {run.job_id for run in world.history.executions}
    return {"dead letters": len(dead), "of which never ran": len(set(dead) - ran)}
