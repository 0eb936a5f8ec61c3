"""The fault runs in small, with the same stage, load and checker: one worker is killed, the database is restarted."""

import asyncio
from pathlib import Path

import pytest

from rowlock.jobs import Jobs
from tests.faults.load import KINDS, Load
from tests.faults.places import on_server, staged
from tests.faults.results import Result
from tests.faults.scale import SMALL
from tests.faults.stage import SLACK, Stage
from tests.faults.suites import Cell, borrowed
from tests.faults.suites.outages import Outage, suffer
from tests.servers import PostgresServer
from tests.waiting import until


@pytest.mark.timeout(180)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_worker_is_killed_and_the_server_too(store: str, tmp_path: Path) -> None:
    cell = Cell("small", store, 1, tmp_path / "cell", SMALL)
    if store == "sqlite":
        async with staged(cell) as stage:
            result = await endure(cell, stage, None)
    else:
        async with on_server(cell) as (stage, server):
            result = await endure(cell, stage, server)
    print(result.line())
    assert not result.bad, result.details()
    assert result.figures["kills"] == cell.scale.kills
    assert result.figures["jobs"] >= cell.scale.jobs


async def endure(cell: Cell, stage: Stage, server: PostgresServer | None) -> Result:
    stage.settings["stop_slack"] = SLACK
    async with Jobs(stage.url) as jobs:
        await stage.start_workers(2)
        load = Load(stage, jobs, {**KINDS, "nap": {"seconds": 0.3}})
        async with load.going_on(rate=cell.scale.rate, least=cell.scale.jobs):
            for _ in range(cell.scale.kills):
                _, pid = await until(stage.busy_process, what="somebody to work")
                stage.kill(pid)
            if server is not None:
                for _ in range(cell.scale.restarts):
                    await asyncio.sleep(0.5)
                    await suffer(stage, server, Outage("server kill"))
        return await stage.finished(cell.result())


@pytest.mark.parametrize(
    ("said", "code", "violations", "figures"),
    [
        ("simulation: 0 violations, 2,000 seeds, 7 calls, 1.5 s of a processor", 0, 0, {"seeds": 2000, "calls": 7}),
        (
            "a, b: 0 violations, 3 points, 1 s\nc: 0 violations, 4 points, 1 s\n2 passed in 1 s",
            0,
            0,
            {"points": 7, "tests": 2},
        ),
        ("FAILED tests/a.py::test_b - it broke\n1 failed, 2 passed in 1 s", 1, 1, {"tests": 2}),
        ("simulation: 1 violations, 2 seeds\nseed 7: S5 it broke", 1, 1, {"seeds": 2}),
        ("simulation: 1 violations, 2 seeds", 0, 1, {"seeds": 2}),
        ("1 passed in 1 s", 3, 1, {"tests": 1}),
    ],
)
def test_what_other_suites_say_is_read(said: str, code: int, violations: int, figures: dict[str, float]) -> None:
    result = borrowed.read(Result("s", "all", 1), said, code)
    assert len(result.violations) == violations
    assert result.figures == figures
    assert result.error is None


def test_a_suite_that_says_nothing_has_broken_down() -> None:
    assert borrowed.read(Result("s", "all", 1), "no tests ran", 0).bad
