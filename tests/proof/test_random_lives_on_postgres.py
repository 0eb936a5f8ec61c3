"""Random lives on PostgreSQL: the effects of its statements on rows must satisfy the same invariants."""

import os
import time
from pathlib import Path

import pytest

from tests.databases import Databases
from tests.proof.checker import check, summary
from tests.proof.flowing_lives import FlowingLives
from tests.proof.random_lives import RandomLives
from tests.proof.waiting_lives import WaitingLives
from tests.proof.witness import Witness
from tests.stores.harness import harness_at

SEEDS = 200 if os.environ.get("ROWLOCK_PROOF") == "full" else 8
STEPS = 150


@pytest.mark.timeout(0)
@pytest.mark.parametrize("lives_of", [RandomLives, WaitingLives, FlowingLives])
async def test_random_lives_on_postgres(lives_of: type[RandomLives], databases: Databases, tmp_path: Path) -> None:
    began = time.monotonic()
    histories, found, findings = [], [], []
    seeds = SEEDS // 2 if lives_of is FlowingLives else SEEDS
    async with harness_at("postgres", databases, tmp_path, virtual=True, check=False) as harness:
        witness = await Witness(harness).install()
        for seed in range(seeds):
            await harness.reset()
            await witness.forget()
            lives = lives_of(seed, harness)
            await lives.play_on(witness, STEPS)
            histories.append(lives.history)
            found += check(lives.history)
            findings += lives.findings
    print(summary("random lives on postgres", histories, found, time.monotonic() - began, seeds=seeds))
    assert found == []
    assert findings == []
