"""A session holds an old snapshot open. So PostgreSQL can't vacuum away the rows of jobs that have ended since, and
every claim must get past them. Meanwhile workers die."""

import asyncio
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rowlock.jobs import Jobs
from tests.closing import connected
from tests.faults.load import Load
from tests.faults.places import on_server
from tests.faults.results import Result
from tests.faults.stage import PATIENCE, SLACK, Stage
from tests.faults.suites import Cell
from tests.proof.lives import World
from tests.proof.recorder import now
from tests.waiting import until

WORKERS, PROCESSES = 2, 2
KILLS = 2


async def run(cell: Cell) -> Result:
    seconds = cell.scale.pinned
    async with on_server(cell) as (stage, _server), Jobs(stage.url) as jobs:
        load = Load(stage, jobs)
        stage.settings["stop_slack"] = SLACK
        await stage.start_workers(WORKERS, processes=PROCESSES)
        async with load.going_on(rate=cell.scale.rate, least=0):
            began = now()
            async with pinned(stage):
                for _ in range(KILLS):
                    await asyncio.sleep(seconds / (KILLS + 1))
                    await kill_one(stage)
                await asyncio.sleep(max(0.0, seconds - (now() - began) / 1e6))
            ended = now()
        result = await stage.finished(cell.result())
        result.figures["s it was held"] = round((ended - began) / 1e6, 1)
        result.figures |= await asyncio.to_thread(thirds, World(stage.histories[-1]), began, ended)
        return result


@asynccontextmanager
async def pinned(stage: Stage) -> AsyncIterator[None]:
    """While the block runs, the database keeps every row version that was visible at its beginning or came later."""
    old: Any = {"isolation": "repeatable_read", "readonly": True}
    async with connected(stage.direct) as connection, connection.transaction(**old):
        stage.record.fault("snapshot", "held")
        horizon = await connection.fetchval("SELECT backend_xmin FROM pg_stat_activity WHERE pid = pg_backend_pid()")
        seen = await connection.fetchval("SELECT count(*) FROM _jobs_archive")
        yield
        assert horizon is not None, "the snapshot holds nothing back"
        assert seen == await connection.fetchval("SELECT count(*) FROM _jobs_archive"), "the snapshot was not held"


async def kill_one(stage: Stage) -> None:
    _worker, pid = await until(stage.busy_process, what="a process that holds jobs", patience=PATIENCE)
    stage.kill(pid)


def thirds(world: World, began: int, ended: int) -> dict[str, float]:
    """Return, for the first and the last third of that time, claims per second, and how long jobs had been due."""
    start, end = world.by_database(began), world.by_database(ended)
    assert start is not None
    assert end is not None
    third = (end - start) / 3
    found: dict[str, float] = {}
    for name, since in (("first", start), ("last", end - third)):
        claims = [step for life in world.lives for step in life.claims.values() if since <= step.at < since + third]
        waits = [step.after["claimed_at"] - step.before["run_at"] for step in claims if step.before and step.after]
        found[f"claims/s in the {name} third"] = round(len(claims) / third * 1e6)
        found[f"ms from due to claimed there ({name})"] = round(statistics.median(waits) / 1000, 1) if waits else 0.0
    return found
