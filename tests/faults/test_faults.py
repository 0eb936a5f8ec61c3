"""What `make faults` does in full, in small: two workers, one of them killed, and a server that is killed as well."""

from pathlib import Path

import pytest

from rowlock.jobs import Jobs
from tests.faults.load import Load
from tests.faults.places import on_server, staged
from tests.faults.results import Result
from tests.faults.scale import Scale
from tests.faults.stage import SLACK, Stage
from tests.faults.suites import Cell
from tests.runtime.system.fleet import until
from tests.servers import PostgresServer

SMALL = Scale(jobs=150, rate=60.0)


async def tormented(cell: Cell, stage: Stage, server: PostgresServer | None) -> Result:
    """One worker is killed with all its processes while it holds jobs, and another takes its place."""
    stage.settings["stop_slack"] = SLACK
    async with Jobs(stage.url) as jobs:
        load = Load(stage, jobs)
        await stage.start_workers(2)
        async with load.going_on(rate=cell.scale.rate, least=cell.scale.jobs):
            worker, _ = await until(stage.busy_process, what="somebody to work")
            stage.kill_machine(worker)
            stage.launch()
            if server is not None:
                await until(stage.busy_process, what="somebody to work")
                stage.record.fault("outage", "kill9")
                server.kill9()
                server.start()
        await stage.drained()
        await stage.stop_all()
        return await stage.judged(cell.result())


def check(result: Result) -> None:
    print(result.line())
    assert result.violations == []
    assert result.figures["jobs"] >= SMALL.jobs
    assert result.figures["kills"] >= 2


@pytest.mark.timeout(180)
async def test_two_workers_one_of_them_killed_on_sqlite(tmp_path: Path) -> None:
    cell = Cell("small", "sqlite", 1, tmp_path / "stage", SMALL)
    async with staged(cell) as stage:
        check(await tormented(cell, stage, None))


@pytest.mark.timeout(180)
async def test_two_workers_one_of_them_killed_and_the_server_too(tmp_path: Path) -> None:
    cell = Cell("small", "postgres", 1, tmp_path / "stage", SMALL)
    async with on_server(cell) as (stage, server):
        check(await tormented(cell, stage, server))
