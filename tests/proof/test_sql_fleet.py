"""A fleet of SQL clients under fire, judged by the witness and the checker."""

import os
import time
from collections import Counter

import pytest

from rowlock.stores.postgres.store import PostgresStore
from tests.proof.checker import check, summary
from tests.proof.checker_moves import moves
from tests.proof.lives import World
from tests.proof.sql_fleet import SqlFleet
from tests.servers import Databases

SEEDS, JOBS = (6, 200) if os.environ.get("ROWLOCK_PROOF") == "full" else (1, 80)


@pytest.mark.timeout(0)
async def test_a_fleet_of_sql_clients(postgres_databases: Databases) -> None:
    began = time.monotonic()
    histories, found, wrong = [], [], []
    cuts, made = 0, Counter[str]()
    for seed in range(SEEDS):
        async with postgres_databases.fresh() as url:
            await PostgresStore(url).migrate()
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
