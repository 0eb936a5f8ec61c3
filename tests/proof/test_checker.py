"""Tests of the checker: it accepts random valid lives, and each planted violation is caught by its own invariant."""

import asyncio
import functools
import os
import time
from contextlib import suppress
from typing import Any

import pytest

from tests.proof import (
    planted_debounce,
    planted_flows,
    planted_limits,
    planted_lines,
    planted_runs,
    planted_schedules,
    planted_waits,
)
from tests.proof.checker import INVARIANTS, NOT_APPLICABLE, check, summary
from tests.proof.checker_moves import moves
from tests.proof.flowing_lives import FlowingLives
from tests.proof.history import Execution, History, Violation
from tests.proof.limited_lives import LimitedLives
from tests.proof.lives import Life, Step, World
from tests.proof.planted import PLANTS
from tests.proof.planting import SAID, Barren, Garden
from tests.proof.random_lives import DebouncedLives, PlainLives, RandomLives
from tests.proof.scheduled_lives import ScheduledLives
from tests.proof.waiting_lives import WaitingLives

SEEDS = 1000 if os.environ.get("ROWLOCK_PROOF") == "full" else 30
STEPS = 150

pytestmark = pytest.mark.timeout(3600)  # a thousand lives take long


@functools.cache
def played(seed: int, lives_of: type[RandomLives] = RandomLives) -> RandomLives:
    lives = lives_of(seed)
    asyncio.run(lives.play(STEPS))
    return lives


MOVES = {
    *("enqueue", "claim", "heartbeat", "progress", "complete", "fail", "snooze", "release", "acknowledge_cancel"),
    *("cancel", "cancel_timeout", "promote", "rescue", "expire", "update", "requeue", "delete", "prune"),
    *("checkpoint", "retry_step"),
}
LINES = {"unblock", "replace"}
FLOWS = {"unblock", "stop", "block", "release_hold"}
LIMITED = MOVES - {"progress", "expire", "delete", "prune", "checkpoint"}
WAITS = {"wait", "cancel_wait", "signal", "wake", "resume", "report_callback", "acknowledge_callback"}


@pytest.mark.parametrize(
    ("lives_of", "made"),
    [
        (RandomLives, MOVES | LINES),
        (DebouncedLives, MOVES | LINES | {"debounce"}),
        (WaitingLives, MOVES | WAITS),
        (ScheduledLives, MOVES | {"unblock"}),
        (FlowingLives, (MOVES - {"update"}) | FLOWS),
        (LimitedLives, LIMITED),
    ],
)
def test_random_valid_lives_pass_and_make_every_move(lives_of: type[RandomLives], made: set[str]) -> None:
    began = time.monotonic()
    kind: Any = lives_of
    seeds = SEEDS // {FlowingLives: 2, DebouncedLives: 2, LimitedLives: 5}.get(lives_of, 1)
    many = [played(seed, kind) for seed in range(seeds)]
    valid = [lives.history for lives in many]
    found = [violation for history in valid for violation in check(history)]
    print(summary("random lives", valid, found, time.monotonic() - began, seeds=seeds))
    assert found == []
    assert [finding for lives in many for finding in lives.findings] == []  # of `rowlock verify`
    assert set().union(*(moves(World(history).lives) for history in valid)) == made


LIVES = {
    planted_flows.__name__: FlowingLives,
    planted_debounce.__name__: DebouncedLives,
    planted_limits.__name__: LimitedLives,
    planted_lines.__name__: RandomLives,
    planted_schedules.__name__: ScheduledLives,
    planted_waits.__name__: WaitingLives,
}


@pytest.mark.parametrize("name", PLANTS)
def test_what_is_planted_is_caught_by_its_own_invariant(name: str) -> None:
    invariant, plant = PLANTS[name]
    lives_of = LIVES.get(plant.__module__, PlainLives)
    for seed in range(SEEDS):
        garden = Garden(played(seed, lives_of).history)
        try:
            plant(garden)
        except Barren:
            continue
        found = check(garden.history)
        texts = [violation.text for violation in found if violation.invariant == invariant]
        assert any(SAID.get(name, "") in text for text in texts), _told(found)
        return
    pytest.fail("no history has a place for it")


def test_a_worker_that_was_killed_may_be_cleaned_up_after_its_end() -> None:
    """A short-lived process may give back a killed worker's jobs within 5 s, as docs/guarantees.md says."""
    for seed in range(SEEDS):
        garden = Garden(played(seed, PlainLives).history)
        with suppress(Barren):
            planted_runs.given_back_after(garden, "term", "kill", seconds=4, reason=planted_runs.CLEANED_UP)
            assert "L6" not in {violation.invariant for violation in check(garden.history)}
            return
    pytest.fail("no history has a place for it")


def test_starts_that_come_as_soon_as_they_may_are_lawful() -> None:
    for seed in range(SEEDS):
        garden = Garden(played(seed, LimitedLives).history)
        with suppress(Barren):
            planted_limits.starts_came_as_soon_as_they_might(garden)
            assert "S12" not in {violation.invariant for violation in check(garden.history)}
            return
    pytest.fail("no history has a place for it")


@pytest.mark.parametrize("apart", [3_000, 100_000])
def test_runs_of_an_id_that_is_used_again_belong_to_their_own_jobs(apart: int) -> None:
    """Also if the clocks can't tell which of the two jobs was claimed before a run."""
    world = World(History("sqlite", {"monotonic_offset": 1}))
    for claimed in (10**9, 10**9 + apart):
        row = {"claimed_at": claimed, "locked_by": "w", "version": 1}
        world.by_id["j"].append(Life("j", [Step("claim", 1, claimed, 1, row, row, [])]))
    first, second = world.by_id["j"]
    for life, claimed in ((first, 10**9), (second, 10**9 + apart)):
        run = Execution("w", "j", 1, begun=claimed + 500, ended=claimed + 900)
        assert world._life_of(run) is life
        life.runs[1] = [run]


def _told(found: list[Violation]) -> str:
    return "\n".join(f"{one.invariant} {one.job_id}: {one.text}" for one in found) or "nothing was found"


def test_every_invariant_has_something_planted_against_it() -> None:
    assert {invariant for invariant, _ in PLANTS.values()} == set(INVARIANTS)


def test_every_invariant_is_checked_or_said_not_to_apply() -> None:
    wanted = {*(f"S{n}" for n in range(1, 23)), "X1", "X2", "X3", "X4", *(f"L{n}" for n in range(1, 7)), "EVENTS"}
    assert INVARIANTS.keys() | NOT_APPLICABLE.keys() == wanted
    assert not INVARIANTS.keys() & NOT_APPLICABLE.keys()
