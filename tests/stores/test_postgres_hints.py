"""The lower bound of a claim's scan: kept for longer where a scan without it takes long."""

import time

import pytest

from rowlock.core.job import Lane
from rowlock.stores.base import Claim
from rowlock.stores.postgres.hints import LaneHints
from tests.core.test_lifecycle import a_job

CLAIM = Claim("w", (Lane("t"),), 50, 30.0, True)
JOBS = [a_job(topic="t")] * 50


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(("scan", "kept"), [(0.02, 0.1), (0.05, 0.4), (5.0, 1.0)])
def test_a_bound_is_kept_by_what_a_claim_without_it_costs(clock: list[float], scan: float, kept: float) -> None:
    hints = LaneHints()
    hints.learn(CLAIM, JOBS, bounded=True, seconds=0.01)
    hints.forget()
    hints.learn(CLAIM, JOBS, bounded=False, seconds=scan)
    clock[0] += kept - 0.01
    assert set(hints.bounds(CLAIM)) == {Lane("t")}
    clock[0] += 0.02
    assert not hints.bounds(CLAIM)


def test_a_claim_that_comes_back_short_drops_it() -> None:
    hints = LaneHints()
    hints.learn(CLAIM, JOBS, bounded=False, seconds=0.01)
    hints.learn(CLAIM, JOBS[1:], bounded=True, seconds=0.01)
    assert not hints.bounds(CLAIM)
