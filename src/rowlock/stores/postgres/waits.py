"""Waits: one statement finds out whether a run must wait."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from rowlock.core.job import MAX_DELAY
from rowlock.core.steps import StepState
from rowlock.core.waits import WAIT_TIMED_OUT, Wait
from rowlock.stores.base import Awaited, Hold


def asked(wait: Wait) -> str:
    """Return the parameter of take_signal.sql."""
    seconds = None if wait.seconds is None else min(max(wait.seconds, 0.0), MAX_DELAY)
    said: dict[str, Any] = {"id": wait.id, "run": wait.version, "worker": wait.worker, "name": wait.name, "n": wait.n}
    said |= {"position": wait.position, "signal": wait.signal, "seconds": seconds, "until": wait.until}
    said |= {"terms": wait.terms, "fallback": wait.fallback, "error": WAIT_TIMED_OUT}
    return msgspec.json.encode(said).decode()


class Answer(NamedTuple):
    """The answer of take_signal.sql. `written`: the state of the wait is stored; else the statement must be repeated,
    if the guard holds."""

    status: str
    version: int
    worker: str | None
    written: bool
    signals: int
    state: str | None
    result: str | None
    left: float | None


def awaited(answer: Answer) -> Awaited:
    """Return the part of a written answer that the run must know."""
    state = StepState(answer.state or "")
    if state is StepState.RUNNING:
        left = None if answer.left is None else max(answer.left, 0.0)
        return Awaited(Hold.KEPT, state, None, left, answer.signals)
    return Awaited(Hold.KEPT, state, answer.result, None, answer.signals)


def read(row: Any) -> Answer:
    return Answer(*row)
