"""The random lives on PostgreSQL: what its statements do to rows, held against the same invariants."""

import os
import time

import pytest

from rowlock.stores.postgres.store import PostgresStore
from tests.proof.checker import check, summary
from tests.proof.random_lives import RandomLives
from tests.proof.witness import Witness
from tests.servers import Databases, PostgresServer
from tests.stores.harness import TEST_CLOCK, PostgresHarness

SEEDS = 200 if os.environ.get("ROWLOCK_PROOF") == "full" else 8
STEPS = 150


class LivesDatabases(Databases):
    TEMPLATE = "lives_template"


@pytest.mark.timeout(0)
async def test_random_lives_on_postgres(postgres: PostgresServer) -> None:
    async def make_template(url: str) -> None:
        await postgres.execute(TEST_CLOCK, dbname=LivesDatabases.TEMPLATE)
        await PostgresStore(url).migrate()

    began = time.monotonic()
    histories, found, findings = [], [], []
    async with LivesDatabases(postgres, make_template).fresh() as url:
        harness = PostgresHarness(url, virtual=True)
        await harness.open()
        try:
            witness = await Witness(harness).install()
            for seed in range(SEEDS):
                await harness.reset()
                await witness.forget()
                lives = RandomLives(seed, harness)
                await lives.play_on(witness, STEPS)
                histories.append(lives.history)
                found += check(lives.history)
                findings += lives.findings
        finally:
            await harness.close()
    print(summary("random lives on postgres", histories, found, time.monotonic() - began, seeds=SEEDS))
    assert found == []
    assert findings == []
