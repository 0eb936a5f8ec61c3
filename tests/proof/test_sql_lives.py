"""Random lives by the SQL functions on PostgreSQL must satisfy the same invariants as those by the store."""

import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.databases import Databases
from tests.proof.checker import check, summary
from tests.proof.checker_moves import moves
from tests.proof.lives import World
from tests.proof.sql_lives import SqlLives
from tests.proof.sql_sabotage import GUARDS, Guard, sabotaged
from tests.proof.witness import Witness
from tests.stores.harness import PostgresHarness, harness_at

SEEDS = 200 if os.environ.get("ROWLOCK_PROOF") == "full" else 6
STEPS = 150
SEEDS_TO_NOTICE = 20  # a sabotage must be found within so many seeds


@pytest.fixture
async def watched(databases: Databases, tmp_path: Path) -> AsyncIterator[tuple[PostgresHarness, Witness]]:
    async with harness_at("postgres", databases, tmp_path, virtual=True, check=False) as harness:
        yield harness, await Witness(harness).install()


async def lived(seed: int, harness: PostgresHarness, witness: Witness) -> SqlLives:
    await harness.reset()
    await witness.forget()
    lives = SqlLives(seed, harness)
    try:
        await lives.play_on(witness, STEPS)
    finally:
        await lives.close()
    return lives


@pytest.mark.timeout(0)
async def test_random_lives_by_sql(watched: tuple[PostgresHarness, Witness]) -> None:
    began = time.monotonic()
    histories, found, others = [], [], []
    figures, made = Counter(seeds=SEEDS), Counter[str]()
    harness, witness = watched
    for seed in range(SEEDS):
        lives = await lived(seed, harness, witness)
        histories.append(lives.history)
        found += check(lives.history)
        others += [*lives.findings, *lives.wrong]
        figures.update(cuts=lives.cuts, replays=lives.replays)
        made += moves(World(lives.history).lives)
    print(summary("random lives by sql", histories, found, time.monotonic() - began, **figures))
    assert found == []
    assert others == []
    wanted = {"enqueue", "claim", "heartbeat", "complete", "fail", "release", "acknowledge_cancel", "rescue"}
    assert made.keys() >= wanted


@pytest.mark.parametrize("guard", GUARDS, ids=str)
def test_a_guard_is_there_to_be_taken_out(guard: Guard) -> None:
    """This fails at once if a guard's text has changed. The tests without the guards, below, run only as proofs."""
    assert sabotaged(guard)


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("guard", GUARDS, ids=str)
async def test_no_guard_can_be_missing_unnoticed(guard: Guard, watched: tuple[PostgresHarness, Witness]) -> None:
    harness, witness = watched
    await harness.execute(sabotaged(guard))
    for seed in range(SEEDS_TO_NOTICE):
        try:
            lives = await lived(seed, harness, witness)
        except Exception as error:  # the database or the test's client did not expect what happened
            print(f"{guard}: seed {seed}: {error!r:.200}")
            return
        found = check(lives.history)
        if found or lives.findings or lives.wrong:
            print(f"{guard}: seed {seed}: {[*found, *lives.findings, *lives.wrong][0]}")
            return
    pytest.fail(f"nobody has noticed that it is missing: {guard}")
