"""Debounce and throttle, and their effects on a job that is about to be enqueued.

Debounce: a newer enqueue replaces the payload and the time of the job with its key that no worker has claimed yet.
Throttle: one job per key and window; the first counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from msgspec import Struct

from rowlock.core import codec
from rowlock.core.times import span
from rowlock.errors import InvalidInput

MAX_WINDOW = 366 * 86_400.0  # seconds
DEBOUNCE = "debounce"  # `if_live` of a job that was enqueued with debounce


class Debounce(Struct, frozen=True):
    """The job runs `seconds` after the last enqueue with its key, but not later than `at_most` seconds after the first
    one. `at_most` None: each enqueue delays it further."""

    seconds: float | timedelta
    at_most: float | timedelta | None = None


class Window(Struct, frozen=True, forbid_unknown_fields=True):
    """A checked Debounce, as a template stores it."""

    seconds: float
    at_most: float | None = None


class Throttle(Struct, frozen=True):
    """A job's throttle. `line` identifies the key, see `line_of`."""

    line: str
    seconds: float


class Slot(Struct, frozen=True):
    """The last job that was made with a throttled key, and when. `job_id` None: none was made yet. Times are integer
    microseconds."""

    job_id: str | None
    at: int


def check_debounce(value: object, field: str = "debounce") -> Window:
    """Check a Debounce, or the same as a mapping; InvalidInput names the field."""
    if isinstance(value, Mapping):
        if unknown := [name for name in value if name not in Window.__struct_fields__]:
            raise InvalidInput(f"{field}.{unknown[0]}", "unknown_field", "is neither seconds nor at_most")
        if "seconds" not in value:
            raise InvalidInput(f"{field}.seconds", "missing", "is missing: how long to wait after the last enqueue")
        given: Any = Debounce(value["seconds"], value.get("at_most"))
    elif isinstance(value, Debounce | Window):
        given = value
    else:
        what = "must be Debounce(seconds, at_most=…), over HTTP {seconds, at_most}"
        raise InvalidInput(field, "bad_value", f"{what}, not {value!r:.40}")
    seconds = check_window(given.seconds, f"{field}.seconds")
    if given.at_most is None:
        return Window(seconds)
    at_most = check_window(given.at_most, f"{field}.at_most")
    if at_most < seconds:
        problem = f"must be at least seconds ({seconds:g}), not {at_most:g}: it bounds the whole delay"
        raise InvalidInput(f"{field}.at_most", "out_of_range", problem)
    return Window(seconds, at_most)


def check_window(value: object, field: str) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidInput(field, "not_a_number", f"must be seconds or a timedelta, not {type(value).__name__}")
    if not 0 < seconds <= MAX_WINDOW:  # also refuses NaN
        problem = f"must be more than 0 and at most {MAX_WINDOW:.0f} seconds (366 days), not {seconds}"
        raise InvalidInput(field, "out_of_range", problem)
    return float(seconds)


def check_alone(window: Window | None, throttle: float | None, *, if_live: str | None, once: bool, topic: str) -> None:
    """Raise InvalidInput if policies are given that exclude each other."""
    if window is not None and throttle is not None:
        problem = f"{topic} has debounce and throttle, which exclude each other: leave out one of them"
        raise InvalidInput("throttle", "with_debounce", problem)
    if window is not None and if_live is not None:
        problem = f'"{if_live}" does not go with debounce, which says itself what happens: leave out one of them'
        raise InvalidInput("if_live", "with_debounce", problem)
    if once and (window is not None or throttle is not None):
        name = "throttle" if window is None else DEBOUNCE
        raise InvalidInput(name, "with_once", "does not go with once, which allows one job per key: leave out one")


def debounce_line(topic: str, scope: str | None, scope_id: str | None, key: str) -> str:
    """Return the line in which the jobs with this key stand that were enqueued with debounce. It is another one than
    that of "queue" and "replace"."""
    text = codec.encode([topic, scope, scope_id, key, DEBOUNCE], "key")
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def debounced_until(window: Window, created: int, run_at: int, now: int) -> int:
    """Return when a job runs that is enqueued again now. A job that is due because of `at_most` stays so, and keeps its
    place among those that are due. Else the time is never in the past: claims have passed those places."""
    until = now + span(window.seconds)
    if window.at_most is not None:
        until = min(until, created + span(window.at_most))
    return until if until > now else min(run_at, now)


def held_by(slot: Slot | None, throttle: Throttle, job_id: str, now: int) -> str | None:
    """Return the job that answers instead of a new one; None if the window is over. A repeat is answered by its own
    job, however late it comes."""
    if slot is None or slot.job_id is None:
        return None
    return slot.job_id if slot.job_id == job_id or slot.at + span(throttle.seconds) > now else None
