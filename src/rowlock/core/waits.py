"""Waits: a run ends, and the job goes on when a signal comes or a time is over.

A wait is stored like a step, so that a replay finds out how it ended: under the name "@sleep" or "@signal:NAME", with
the number of the call. While it is open, its result holds the terms (`WaitTerms`); then, what the handler gets. An
address for the outside world ("@callback:NAME") is stored in the same way.

A job counts the signals that it has got. A run that finds no signal takes the count along, and the job waits only if
the count is still the same: so no signal is missed between the look and the wait.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType

from rowlock.core import codec
from rowlock.core.job import MAX_DELAY, MAX_TOPIC
from rowlock.core.times import micros, span
from rowlock.errors import InvalidInput

SLEEP = "sleep"
MAX_UNREAD = 1000  # signals of one job that no run has read
WAIT_TIMED_OUT = "The wait has timed out"
_MARK = "@"  # no name of a step begins with it


def check_signal_name(name: object, field: str = "signal") -> str:
    """Return the name. Raise InvalidInput if it can't name a signal."""
    text = codec.check_text(name, field, max_chars=MAX_TOPIC)
    if not text or text.strip() != text or not all(c.isalnum() or c in "_.:/-" for c in text):
        raise InvalidInput(field, "bad_characters", f"{text!r:.80} may only hold letters, digits and _ . : / and -")
    return text


def signal_wait(name: str) -> str:
    """Return the value of `Job.waits_for` for a job that waits for this signal."""
    return f"signal:{name}"


def signal_of(waits_for: str | None) -> str | None:
    """Return the signal that a value of `Job.waits_for` names; None: the job sleeps, or does not wait."""
    return None if waits_for is None or waits_for == SLEEP else waits_for.removeprefix("signal:")


def step_name(waits_for: str) -> str:
    """Return the name under which a wait is stored among the steps."""
    return f"{_MARK}{waits_for}"


def callback_name(signal: str) -> str:
    """Return the name under which an address for this signal is stored among the steps."""
    return f"{_MARK}callback:{signal}"


def is_step_name(name: str) -> bool:
    """Return False if it is the name of a wait or of an address."""
    return not name.startswith(_MARK)


class WaitTerms(Struct, frozen=True, omit_defaults=True):
    """The public terms of an open wait. `timeout`: seconds, None: none. `schema`: of the signal's data."""

    timeout: float | None = None
    schema: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()


def read_terms(value: Any) -> WaitTerms:
    """Return the terms from the stored result of an open wait, whatever it holds."""
    try:
        return msgspec.convert(value, WaitTerms)
    except msgspec.ValidationError:
        return WaitTerms()


class Wait(Struct, frozen=True, kw_only=True):
    """The question of a run whether it must wait. `waits_for`: as in Job. `n`, `position`: as in StepMark. `seconds`:
    the wait ends by itself after so long, counted from the first time that any run has asked; or at `until`; neither:
    never. `default`: JSON text of what the handler gets then; UNSET: an error, or nothing if it sleeps. `worker`: the
    one that must hold the job; None: any."""

    id: str
    version: int
    waits_for: str
    n: int
    position: int
    seconds: float | None = None
    until: datetime | None = None
    default: str | UnsetType | None = UNSET
    terms: str = "{}"
    worker: str | None = None

    @property
    def name(self) -> str:
        return step_name(self.waits_for)

    @property
    def signal(self) -> str | None:
        """Return the signal that it waits for; None: it sleeps."""
        return signal_of(self.waits_for)

    @property
    def fallback(self) -> str | None:
        """Return the JSON text of what the handler gets when the time is over; None: an error."""
        if self.default is UNSET:
            return "null" if self.signal is None else None
        return "null" if self.default is None else self.default

    def deadline(self, now: int) -> int | None:
        """Return when it ends by itself, in microseconds, if it begins now; None: never."""
        if self.until is not None:
            return micros(self.until)
        return None if self.seconds is None else now + span(min(max(self.seconds, 0.0), MAX_DELAY))


class WaitFacts(NamedTuple):
    """The facts about a job's waits that a move needs beside the row. A store reads them when the row is locked.

    `unread`: signals that no run has read. `is_known`: a signal with the id of this one has come before. `callback`:
    when the address in question ends, in microseconds; None: never. `has_callback`: there is such an address.
    `undoes`: a step has succeeded. `timeout`: of the open wait."""

    unread: int = 0
    is_known: bool = False
    has_callback: bool = False
    callback: int | None = None
    undoes: bool = False
    timeout: float | None = None
