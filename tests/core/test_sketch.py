"""Sketches of durations are small and add up. Their percentiles are off by less than 5 %."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.core.sketch import LONGEST, SHORTEST, Sketch, bucket

SHARES = (0.5, 0.95, 0.99)
durations = st.lists(st.integers(min_value=1, max_value=10**14), max_size=200)


def exact(microseconds: list[int], share: float) -> float:
    """Return the percentile by rank, in seconds."""
    ordered = sorted(microseconds)
    return ordered[max(0, -(-round(share * 100) * len(ordered) // 100) - 1)] / 1e6


@given(durations.filter(bool))
def test_a_percentile_is_off_by_less_than_five_percent(microseconds: list[int]) -> None:
    for share, told in zip(SHARES, Sketch.of(microseconds).quantiles(SHARES), strict=True):
        assert told == pytest.approx(exact(microseconds, share), rel=0.05)


@given(durations, durations)
def test_two_add_up_to_the_sketch_of_both_in_any_order(some: list[int], more: list[int]) -> None:
    left, right = Sketch.of(some), Sketch.of(more)
    left.merge(Sketch.of(more))
    right.merge(Sketch.of(some))
    assert left == right == Sketch.of(some + more)
    assert len(left) == len(some) + len(more)


@given(durations)
def test_it_is_packed_and_unpacked_without_loss(microseconds: list[int]) -> None:
    sketch = Sketch.of(microseconds)
    assert Sketch.unpack(sketch.pack()) == sketch
    assert Sketch.unpack(None) == Sketch()


@given(durations.filter(bool))
def test_many_at_once_are_the_same_as_one_by_one(microseconds: list[int]) -> None:
    alone = Sketch()
    for one in microseconds:
        alone.merge(Sketch([(bucket(one / 1e6), 1)]))
    together = Sketch.of(microseconds)
    # For a value at the end of a bucket, rounding may choose either of two buckets.
    assert len(together) == len(alone)
    assert together.quantiles(SHARES) == pytest.approx(alone.quantiles(SHARES), rel=0.11)


def test_of_nothing_there_is_no_percentile() -> None:
    assert Sketch().quantiles(SHARES) == [None, None, None]
    assert not Sketch()


@pytest.mark.parametrize(("seconds", "counts_as"), [(0.0, SHORTEST), (-5.0, SHORTEST), (1e12, LONGEST)])
def test_what_no_clock_should_say_counts_as_the_nearest_that_can_be(seconds: float, counts_as: float) -> None:
    assert bucket(seconds) == bucket(counts_as)
    [told] = Sketch.of([round(seconds * 1e6)]).quantiles([0.5])
    assert told == pytest.approx(counts_as, rel=0.05)


def test_a_thousand_durations_take_few_bytes() -> None:
    chance = random.Random(7)
    sketch = Sketch.of([round(1e6 * chance.lognormvariate(-2, 1)) for _ in range(1000)])
    assert len(sketch.pack()) < 200
