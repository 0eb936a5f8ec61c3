"""Steps: parts of a handler whose results are stored. Here are the marks that a run writes, and the stored steps.

A run is the only writer of its job's steps, because every mark is guarded by version and worker. So the run itself may
number its steps, count them and add up their sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from rowlock.core.codec import clean_text
from rowlock.core.job import Event, Status
from rowlock.core.waits import is_step_name

MAX_STEPS = 1000  # of one job
MAX_EVENT_ERROR = 4096  # bytes of a step's error in its event
MAX_STEP_BYTES = 16 << 20  # of all stored results of one job; each may have as much as a job's result


class StepState(StrEnum):
    PENDING = "pending"  # declared and not reached yet; or it failed, and is tried again after its own backoff
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"  # declared, but the job ended without it; never stored
    CANCELLED = "cancelled"


STEP_ENDS = frozenset({StepState.SUCCEEDED, StepState.FAILED})  # a replay does not run these again


class StepMark(Struct, frozen=True, kw_only=True):
    """A mark that a run writes about one of its steps: that it runs, or how it ended.

    `name` and `n` identify it: the n-th call of this name in the handler, from 1. `position`: the place among all steps
    of the job, in the order in which the handler called them, from 1. `function`: the name of the function, so that
    another function under a stored name is noticed. `retries`: of the step's own retry policy. `age`: seconds since it
    began. `percent`: the job's progress from now on; None: unchanged. `worker`: who must hold the job; None: any.

    An end (SUCCEEDED, FAILED) that is stored stays as it is: no mark replaces it. Only a requeue removes it. RUNNING
    replaces nothing that the same run has stored: it is written by another thread, and may come after what follows it.
    """

    id: str
    version: int
    name: str
    n: int
    position: int
    function: str
    state: StepState
    result: str | None = None  # canonical JSON text
    error: str | None = None
    retries: int = 0
    cancelable: bool = True
    age: float = 0.0
    percent: float | None = None
    worker: str | None = None
    lasts: float | None = None  # of a callback: seconds until its address ends; None: never

    def __post_init__(self) -> None:
        # One mark must not fail the others in its batch.
        if self.percent is not None:
            percent = self.percent if self.percent == self.percent else 0.0
            force_setattr(self, "percent", float(min(max(percent, 0.0), 100.0)))
        if self.error is not None:
            force_setattr(self, "error", clean_text(self.error))
        if not self.age >= 0:
            force_setattr(self, "age", 0.0)

    @property
    def run(self) -> MarkingRun:
        return MarkingRun(self.id, self.version, self.worker)


class StoredStep(Struct, frozen=True, kw_only=True):
    """A step of a job, as the database has it. `version`: the run that wrote it last."""

    job_id: str
    name: str
    n: int
    position: int
    function: str
    state: StepState
    result: Any = None
    error: str | None = None
    retries: int = 0
    cancelable: bool = True
    version: int = 0
    started_at: datetime
    finished_at: datetime | None = None
    deadline: datetime | None = None  # of a wait or a callback: when it ends by itself


class StoredSteps(Struct, frozen=True):
    """The stored steps of a job, by position."""

    items: list[StoredStep]


class StepPlace(NamedTuple):
    """A step's identity, and its place among the job's steps."""

    name: str
    n: int
    position: int
    state: str

    @property
    def label(self) -> str:
        return self.name if self.n == 1 else f"{self.name}#{self.n}"

    def answers_to(self, said: str) -> bool:
        """True if `said` names it: "name", which is the first call of this name, or "name#n"."""
        return said in (self.label, f"{self.name}#{self.n}")

    def is_kept(self, first: int | None) -> bool:
        """True if its result survives a requeue. `first`: the place from which on all steps run again; None: none."""
        return self.state == StepState.SUCCEEDED and (first is None or self.position < first)


# ── Marks, made ready for any store ──


class MarkingRun(NamedTuple):
    """The run that must hold a job for its marks to be written."""

    id: str
    version: int
    worker: str | None


class RunMarks(NamedTuple):
    """The marks of a run together: one mark for each step. `step` and `percent` are for the job's row; None: it
    stays."""

    step: str
    percent: float | None
    marks: list[StepMark]


def marks_by_run(marks: Sequence[StepMark]) -> dict[MarkingRun, RunMarks]:
    """Return what is to be written for each run, as if its marks had been written one after the other."""
    runs: dict[MarkingRun, list[StepMark]] = {}
    for mark in marks:
        runs.setdefault(mark.run, []).append(mark)
    return {run: _merged(said) for run, said in runs.items()}


def _merged(marks: list[StepMark]) -> RunMarks:
    steps: dict[tuple[str, int], StepMark] = {}
    percent = None
    for mark in marks:
        before = steps.get((mark.name, mark.n))
        if before is None or (before.state not in STEP_ENDS and mark.state is not StepState.RUNNING):
            steps[mark.name, mark.n] = mark
        percent = percent if mark.percent is None else mark.percent
    return RunMarks(marks[-1].name, percent, list(steps.values()))


# ── Events ──


def with_step_events(events: Sequence[Event], steps: Sequence[StoredStep]) -> list[Event]:
    """Return a job's events with those of its steps among them, which are not stored: how each step ended, in its own
    run. `seq` counts them; events that come later change no earlier one. Waits and callbacks are told by the job's own
    events."""
    left = sorted(
        (
            step
            for step in steps
            if step.state in STEP_ENDS and step.finished_at is not None and is_step_name(step.name)
        ),
        key=lambda step: (step.finished_at, step.position, step.name, step.n),
    )
    merged: list[Event] = []
    added = 0

    def add(step: StoredStep) -> None:
        nonlocal added
        added += 1
        merged.append(_step_event(step, merged[-1].seq + 1 if merged else 0))

    for event in events:
        for step in [step for step in left if _is_before(step, event)]:
            left.remove(step)
            add(step)
        merged.append(replace(event, seq=event.seq + added))
    for step in left:
        add(step)
    return merged


def _is_before(step: StoredStep, event: Event) -> bool:
    """True if the step ended before the event. With equal times, it ended after the claim of its run, and before the
    end of its run."""
    assert step.finished_at is not None  # noqa: S101 - narrows the type
    if event.version != step.version:
        return event.version > step.version
    ends_run = event.event == "completed" or "claimed_at" in event.data
    return ends_run or (event.at > step.finished_at and event.event != "claimed")


def _step_event(step: StoredStep, seq: int) -> Event:
    assert step.finished_at is not None  # noqa: S101 - narrows the type
    data: dict[str, Any] = {"step": step.name, "n": step.n, "position": step.position}
    if step.error is not None:
        data["error"] = clean_text(step.error, MAX_EVENT_ERROR)
    return Event(
        job_id=step.job_id,
        seq=seq,
        at=step.finished_at,
        event=f"step_{step.state}",
        status=Status.PROCESSING,
        version=step.version,
        by=None,
        data=data,
    )
