"""Workers over HTTP must satisfy the same invariants as all other workers."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from rowlock.core.lifecycle import Settlement, decide
from rowlock.http import workers
from tests.databases import Databases
from tests.proof.checker import check, summary
from tests.proof.remote_lives import RemoteLives
from tests.proof.witness import Witness
from tests.stores.harness import harness_at

FULL = os.environ.get("ROWLOCK_PROOF") == "full"
STEPS = 150


def judge(name: str, lives: list[RemoteLives], began: float) -> None:
    found = [one for life in lives for one in check(life.history)]
    figures = {"seeds": len(lives), "requests": sum(len(life.said) for life in lives)}
    print(summary(name, [life.history for life in lives], found, time.monotonic() - began, **figures))
    assert found == []
    assert [text for life in lives for text in life.wrong] == []
    assert [text for life in lives for text in life.findings] == []


@pytest.mark.timeout(0)
async def test_remote_lives() -> None:
    began, lives = time.monotonic(), []
    for seed in range(400 if FULL else 6):
        life = RemoteLives(seed)
        await life.play(STEPS)
        lives.append(life)
    judge("remote workers", lives, began)


@pytest.mark.timeout(0)
async def test_remote_lives_on_postgres(databases: Databases, tmp_path: Path) -> None:
    began, lives = time.monotonic(), []
    async with harness_at("postgres", databases, tmp_path, virtual=True, check=False) as harness:
        witness = await Witness(harness).install()
        for seed in range(100 if FULL else 3):
            await harness.reset()
            await witness.forget()
            life = RemoteLives(seed, harness)
            await life.play_on(witness, STEPS)
            lives.append(life)
    judge("remote workers on postgres", lives, began)


# ── The tests find a broken server ──


def without_a_fence(patch: pytest.MonkeyPatch) -> None:
    """Let any worker that reports the end of a run settle the job's current run."""
    current: dict[str, int] = {}

    def noting(job: Any, *arguments: Any, **options: Any) -> Any:
        current[job.id] = job.version
        return decide(job, *arguments, **options)

    patch.setattr(workers, "decide", noting)
    patch.setattr(workers, "Settlement", lambda id, version, to, worker: Settlement(id, current[id], to, None))


def without_repeats(patch: pytest.MonkeyPatch) -> None:
    async def forgetful(*arguments: Any) -> Any:
        raise workers._lost()

    patch.setattr(workers, "_repeated", forgetful)


def with_claims_given_again(patch: pytest.MonkeyPatch) -> None:
    """Let a claim give a worker all jobs that it holds, even those that it has said it runs."""
    real = workers._runs
    patch.setattr(workers, "_runs", lambda asked, least, worker: real(asked, least, worker) if least else [])


@pytest.mark.parametrize("sabotage", [without_a_fence, without_repeats, with_claims_given_again])
async def test_what_is_broken_is_found(sabotage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    for seed in range(20):
        life = RemoteLives(seed)
        await life.play(STEPS)
        if life.wrong or check(life.history):
            return
    pytest.fail("nobody has noticed")
