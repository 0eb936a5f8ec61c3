"""Workers that hold jobs are killed at random by SIGKILL. Either only a child process dies, and its supervisor takes
the jobs back at once. Or the supervisor and all its children die in the same moment, as when a machine dies."""

from rowlock.jobs import Jobs
from tests.faults.load import Load
from tests.faults.places import staged
from tests.faults.results import Result
from tests.faults.stage import PATIENCE, Stage
from tests.faults.suites import Cell
from tests.waiting import until

WORKERS, PROCESSES = 3, 2
MACHINES = 0.4  # share of kills that kill a supervisor and its children
ALIVE = 4  # processes that must live before the next kill


async def run(cell: Cell) -> Result:
    async with staged(cell) as stage, Jobs(stage.url) as jobs:
        load = Load(stage, jobs)
        survivor = stage.launch()  # one worker must live long enough to take jobs back
        stage.workers.remove(survivor)
        await stage.start_workers(WORKERS, processes=PROCESSES)
        async with load.going_on(rate=cell.scale.rate / 2, least=cell.scale.jobs):
            for _ in range(cell.scale.kills):
                await kill_one(stage)
                await stage.pause(0.2, 0.8)
        await stage.drained()
        stage.workers.append(survivor)
        await stage.stop_all()
        return await stage.judged(cell.result())


async def kill_one(stage: Stage, *options: str, **env: str) -> None:
    """Kill a worker as soon as it holds jobs and enough processes live. `options`, `env`: for its replacement."""
    await until(lambda: are_enough(stage), what="enough workers", patience=PATIENCE)
    await kill_busy(stage, *options, **env)


async def kill_busy(stage: Stage, *options: str, **env: str) -> None:
    worker, pid = await until(stage.busy_process, what="somebody to work", patience=PATIENCE)
    if stage.chance.random() < MACHINES:
        stage.kill_machine(worker)
        stage.launch(*options, processes=PROCESSES, **env)
    else:
        stage.kill(pid)


def are_enough(stage: Stage) -> bool:
    return sum(len(worker.children()) for worker in stage.workers) >= ALIVE
