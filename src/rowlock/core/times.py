"""Times as integer microseconds since the epoch: exact, and the same on every store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# The end of a wait that never ends by itself: no time of a job is as late (check_time in core.job).
NEVER_AT = datetime.max.replace(tzinfo=UTC)
NEVER = (NEVER_AT - _EPOCH) // _MICROSECOND


def micros(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


def moment(at: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at)


def span(seconds: float) -> int:
    """Return seconds as microseconds, rounded just as datetime does it (halves to even, apart from whole seconds), in a
    third of its time."""
    whole = int(seconds)
    return whole * 1_000_000 + round((seconds - whole) * 1e6)
