"""Which points a chart has: ranges, steps, and refused requests."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from rowlock.core.sketch import Sketch
from rowlock.errors import InvalidInput
from rowlock.stores.rollups import KEPT, Rollup
from rowlock.stores.series import RANGES, Window, make_series, window

NOW = datetime(2026, 3, 29, 12, 34, 20, tzinfo=UTC)  # the night before, clocks went forward in Europe
DAY = timedelta(days=1)


def asked(range: str | None = None, **more: Any) -> Window:
    given = {"since": None, "until": None, "step": None} | more
    return window(NOW, range, given["since"], given["until"], given["step"])


@pytest.mark.parametrize(
    ("range", "step", "points"),
    [
        ("15m", 60, 15), ("1h", 60, 60), ("6h", 120, 180), ("24h", 300, 288), ("7d", 3600, 168), ("30d", 14_400, 180),
        ("90d", 86_400, 90),
    ],
)  # fmt: skip
def test_a_range_is_so_many_points_of_which_the_last_has_begun(range: str, step: int, points: int) -> None:
    found = asked(range)
    assert (found.step, (found.until - found.since) // step) == (step, points)
    assert found.times[1] - timedelta(seconds=step) <= NOW < found.times[1]
    assert found.since % step == 0
    assert found.step % found.span == 0


def test_every_range_is_kept_for_long_enough() -> None:
    assert set(RANGES.values()) == {RANGES[name] for name in RANGES}
    for name, seconds in RANGES.items():
        assert KEPT[asked(name).span] >= seconds


def test_nothing_said_is_the_last_hour() -> None:
    assert asked() == asked("1h")


def test_what_has_begun_now_is_the_last_point() -> None:
    full = NOW.replace(hour=0, minute=0, second=0)
    for name in RANGES:
        begin, end = (found := window(full, name, None, None, None)).times
        assert (end - timedelta(seconds=found.step), end - begin) == (full, timedelta(seconds=RANGES[name]))
    _, end = window(full, None, full - DAY, full - timedelta(hours=1), 3600).times
    assert end == full - timedelta(hours=1)


def test_from_and_until_are_within_the_first_and_the_last_point() -> None:
    since, until = NOW - timedelta(hours=2, seconds=7), NOW - timedelta(hours=1, seconds=7)
    begin, end = asked(since=since, until=until, step=600).times
    assert begin <= since < begin + timedelta(seconds=600)
    assert end - timedelta(seconds=600) < until <= end


def test_times_of_any_zone_mean_the_same() -> None:
    since = NOW - timedelta(hours=5)
    there = since.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert asked(since=there) == asked(since=since)


def test_days_begin_at_midnight_by_utc() -> None:
    begin, end = asked("90d").times
    assert (begin.hour, begin.minute, end.hour, end - begin) == (0, 0, 0, 90 * DAY)


def test_the_future_is_not_asked_for() -> None:
    assert asked(since=NOW - DAY, until=NOW + 3000 * DAY) == asked(since=NOW - DAY)


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"range": "2h"}, "range"),
        ({"range": "1h", "since": NOW - DAY}, "range"),
        ({"range": "1h", "until": NOW}, "range"),
        ({"since": NOW}, "since"),
        ({"since": NOW + DAY}, "since"),
        ({"since": NOW - DAY, "until": NOW - 2 * DAY}, "since"),
        ({"since": NOW.replace(tzinfo=None)}, "since"),
        ({"until": NOW.replace(year=1700)}, "until"),
        ({"since": NOW - 4 * DAY, "step": 60}, "since"),
        ({"since": NOW - 50 * DAY, "step": 3600}, "since"),
        ({"since": NOW - 500 * DAY}, "since"),
        ({"step": 0}, "step"),
        ({"step": -60}, "step"),
        ({"step": 90}, "step"),
        ({"step": True}, "step"),
        ({"step": 1 << 70}, "step"),
        ({"range": "24h", "step": 60}, "step"),
    ],
)
def test_what_can_t_be_asked_for_is_named(wish: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        asked(**wish)
    assert refused.value.field == field


def test_gaps_are_filled_and_several_of_one_point_are_added() -> None:
    found = asked("15m", step=300)
    first = Rollup([1, 2, 3, 4, 5, 6, 7, 8, 9], Sketch.of([1_000_000]), Sketch.of([2_000_000]))
    points = make_series("mail", found, [(found.since, first), (found.since + 240, first)]).points
    assert [point.enqueued for point in points] == [2, 0, 0]
    assert [point.lost for point in points] == [14, 0, 0]
    assert [point.deleted for point in points] == [18, 0, 0]
    assert points[0].wait.p50 == pytest.approx(1.0, rel=0.05)
    assert points[0].run.p99 == pytest.approx(2.0, rel=0.05)
    assert (points[1].wait.p50, points[1].run.p99) == (None, None)
