"""Charts: how many jobs came, ended and how, and how long they waited and ran, from rollups alone."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct, field

from rowlock.core.job import check_time
from rowlock.core.times import micros, moment
from rowlock.errors import InvalidInput
from rowlock.stores.rollups import COUNTED, KEPT, SPANS, Rollup, nothing

RANGES = {
    "15m": 900, "1h": 3600, "6h": 6 * 3600, "24h": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400, "90d": 90 * 86_400,
}  # fmt: skip
DEFAULT_RANGE = "1h"
MAX_POINTS = 1000
_ENOUGH = 300  # points at most, if the caller gives no step
_STEPS = (60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
_SHARES = (0.5, 0.95, 0.99)


class Percentiles(Struct, frozen=True):
    """Seconds, off by less than 5 %; None: there was nothing to measure."""

    p50: float | None
    p95: float | None
    p99: float | None


class Point(Struct, frozen=True, kw_only=True):
    """What happened in the `step` seconds from `at` on. `retried`: runs that failed or crashed and were put back;
    `lost`: runs that were taken from a worker that went silent; `requeued`: jobs that had ended and were put back;
    `deleted`: pending ones that were deleted. So the backlog has grown by enqueued + requeued - completed - failed -
    expired - cancelled - deleted. `wait` (from when the job was due until its start) and
    `run` are of runs that ended in that time, by completing or failing."""

    at: datetime
    enqueued: int
    completed: int
    failed: int
    expired: int
    cancelled: int
    retried: int
    lost: int
    requeued: int
    deleted: int
    wait: Percentiles
    run: Percentiles


class Series(Struct, frozen=True, kw_only=True):
    """`points`: one for every `step` seconds from `since` until `until`, the oldest first."""

    topic: str | None
    since: datetime = field(name="from")
    until: datetime
    step: int
    points: list[Point]


class Window(Struct, frozen=True):
    """The points to be made, in seconds since the epoch; and `span`, the span of the rollups that make them."""

    since: int
    until: int
    step: int
    span: int

    @property
    def times(self) -> tuple[datetime, datetime]:
        return _time(self.since), _time(self.until)


def window(
    now: datetime, range: str | None, since: datetime | None, until: datetime | None, step: int | None
) -> Window:
    """Return a window of whole steps. The last step holds `until`, or is the step that has begun now."""
    if range is not None and (since is not None or until is not None):
        raise InvalidInput("range", "both_given", "give range, or from and until, not both")
    name = DEFAULT_RANGE if range is None else range
    if name not in RANGES:
        raise InvalidInput("range", "unknown_name", f"{name!r:.40} is none of {', '.join(RANGES)}")
    end = min(_second(now if until is None else check_time(until, "until")), _second(now))
    begin = end - RANGES[name] if since is None else _second(check_time(since, "since"))
    if begin >= end:
        raise InvalidInput("since", "out_of_range", "must be before until, and before now")
    oldest = _second(now) - begin
    if step is None:
        fit = (one for one in _STEPS if (end - begin) / one <= _ENOUGH and oldest <= KEPT[_span(one)])
        step = next(fit, _STEPS[-1])
    _check_step(step)
    span = _span(step)
    if oldest > KEPT[span]:
        raise InvalidInput(
            "since",
            "out_of_range",
            f"in steps of {step} s there is nothing older than {KEPT[span] / 86_400:g} days"
            + (f": use a step of {_coarser(span)} s or a multiple of it" if _coarser(span) else ""),
        )
    # The step that has begun now belongs to the window; a step that begins at a given end doesn't.
    last = (end // step + 1) * step if end == _second(now) else -(-end // step) * step
    # A range always has the same number of points, at any time of the clock. A given beginning is in the first point.
    first = last - -(-(end - begin) // step) * step if since is None else begin // step * step
    if (last - first) // step > MAX_POINTS:
        raise InvalidInput("step", "out_of_range", f"makes more than {MAX_POINTS} points: take a longer one")
    return Window(first, last, step, span)


def _check_step(step: object) -> None:
    if isinstance(step, bool) or not isinstance(step, int) or step <= 0 or step % SPANS[0] or step > KEPT[SPANS[-1]]:
        raise InvalidInput("step", "out_of_range", f"must be a multiple of {SPANS[0]} seconds, not {step!r:.40}")


def _span(step: int) -> int:
    """Return the longest span of rollups that steps are made of."""
    return max(span for span in SPANS if step % span == 0)


def _coarser(span: int) -> int | None:
    return next((longer for longer in SPANS if longer > span), None)


def make_series(topic: str | None, window: Window, found: Iterable[tuple[int, Rollup]]) -> Series:
    """Return the chart. `found`: rollups by the second at which they begin, in any order, perhaps several of one
    second."""
    steps = {at: nothing() for at in range(window.since, window.until, window.step)}
    for at, rollup in found:
        steps[at // window.step * window.step].add(rollup)
    since, until = window.times
    points = [_point(at, rollup) for at, rollup in steps.items()]
    return Series(topic=topic, since=since, until=until, step=window.step, points=points)


def _point(at: int, rollup: Rollup) -> Point:
    return Point(
        at=_time(at),
        **dict(zip(COUNTED, rollup.counts, strict=True)),
        wait=Percentiles(*rollup.waits.quantiles(_SHARES)),
        run=Percentiles(*rollup.runs.quantiles(_SHARES)),
    )


def _second(at: datetime) -> int:
    return micros(at) // 1_000_000


def _time(second: int) -> datetime:
    return moment(second * 1_000_000)
