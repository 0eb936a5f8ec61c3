"""A fleet of SQL clients whose connections are cut, judged by the witness and the checker."""

import os
import time
from collections import Counter

import pytest

from tests.databases import Databases
from tests.proof.checker import check, summary
from tests.proof.checker_moves import moves
from tests.proof.lives import World
from tests.proof.sql_fleet import SqlFleet

SEEDS, JOBS = (6, 200) if os.environ.get("ROWLOCK_PROOF") == "full" else (1, 80)


@pytest.mark.timeout(0)
async def test_a_fleet_of_sql_clients(databases: Databases) -> None:
    began = time.monotonic()
    histories, found, wrong = [], [], []
    cuts, made = 0, Counter[str]()
    for seed in range(SEEDS):
        async with databases.fresh() as url:
            fleet = SqlFleet(url, seed, JOBS)
            histories.append(await fleet.run())
        found += check(histories[-1])
        wrong += fleet.wrong
        cuts += fleet.cuts
        made += moves(World(histories[-1]).lives)
    print(summary("fleet of sql clients", histories, found, time.monotonic() - began, seeds=SEEDS, cuts=cuts))
    assert found == []
    assert wrong == []
    assert made.keys() >= {"enqueue", "claim", "complete", "fail", "rescue"}
