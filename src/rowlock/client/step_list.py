"""StepStatus: a step of a job as `jobs.steps` shows it, from what is stored and what the template declares."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from rowlock.core.job import HELD, Job, Status
from rowlock.core.steps import STEP_ENDS, StepState, StoredStep
from rowlock.core.templates import StepInfo
from rowlock.core.waits import SLEEP, WaitTerms, is_step_name, read_terms

StepKind = Literal["step", "sleep", "signal", "callback"]


class StepStatus(Struct, frozen=True, kw_only=True):
    """`n`: the number of the call of this name, from 1. `position`: the place among the job's steps; None: not called.
    `retries`: of the step's own policy. `title`, `timeout`, `weight` and `max_retries` are those that the template
    declares.

    `kind`: a wait is listed, too ("sleep", "signal"), and an address for answers ("callback"). `name` is then that
    of the signal, `result` the signal's data, `timeout` that of the wait. `deadline`: when it ends by itself. `schema`:
    of the data, while it is open."""

    name: str
    kind: StepKind = "step"
    n: int = 1
    position: int | None = None
    state: StepState
    title: str | None = None
    result: Any = None
    error: str | None = None
    retries: int = 0
    max_retries: int | None = None
    timeout: float | None = None
    weight: float | None = None
    cancelable: bool = True
    started_at: datetime | None = None
    finished_at: datetime | None = None
    deadline: datetime | None = None
    schema: dict[str, Any] | None = None

    @property
    def waits_for(self) -> str:
        """Return the value of Job.waits_for while the job waits for this."""
        return SLEEP if self.kind == "sleep" else f"{self.kind}:{self.name}"

    @property
    def label(self) -> str:
        """Return the name by which a requeue from a step finds it."""
        stored = self.name if self.kind == "step" else f"@{self.waits_for}"
        return stored if self.n == 1 else f"{stored}#{self.n}"

    @property
    def is_open_wait(self) -> bool:
        """True if the job waits, or is about to."""
        return self.kind in ("sleep", "signal") and self.state is StepState.RUNNING


def listed(job: Job, stored: Sequence[StoredStep], declared: Sequence[StepInfo]) -> list[StepStatus]:
    """Return the steps that were called, in their order, then the declared ones that were not."""
    infos = {info.name: info for info in declared}
    called = {row.name for row in stored}
    unmet = StepState.PENDING if job.is_live else StepState.SKIPPED
    return [
        *(_status(job, row, infos.get(row.name)) for row in stored),
        *(
            StepStatus(
                name=info.name,
                state=unmet,
                title=info.title,
                max_retries=info.max_retries,
                timeout=info.timeout,
                weight=info.weight,
                cancelable=info.cancelable,
            )
            for info in declared
            if info.name not in called
        ),
    ]


def _status(job: Job, row: StoredStep, info: StepInfo | None) -> StepStatus:
    if not is_step_name(row.name):
        return _wait(job, row)
    return StepStatus(
        name=row.name,
        n=row.n,
        position=row.position,
        state=_state(job, row),
        title=None if info is None else info.title,
        result=row.result,
        error=row.error,
        retries=row.retries,
        max_retries=None if info is None else info.max_retries,
        timeout=None if info is None else info.timeout,
        weight=None if info is None else info.weight,
        cancelable=row.cancelable,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def _wait(job: Job, row: StoredStep) -> StepStatus:
    """Return the status of a wait, or of a callback. The stored result of an open wait holds its terms."""
    kind, _, signal = row.name.removeprefix("@").partition(":")
    is_open = row.state is StepState.RUNNING
    terms = read_terms(row.result) if is_open or kind == "callback" else WaitTerms()
    return StepStatus(
        name=signal or kind,
        kind=_KINDS.get(kind, "signal"),
        n=row.n,
        position=row.position,
        state=row.state if is_open and job.is_live else _state(job, row),
        result=None if is_open or kind == "callback" else row.result,
        error=row.error,
        timeout=terms.timeout,
        started_at=row.started_at,
        finished_at=row.finished_at,
        deadline=row.deadline,
        schema=terms.schema,
    )


_KINDS: dict[str, StepKind] = {"sleep": "sleep", "signal": "signal", "callback": "callback"}


def _state(job: Job, row: StoredStep) -> StepState:
    """Return the state as it is now. The stored one may be out of date: a run that is killed can't write it."""
    if row.state in STEP_ENDS:
        return row.state
    if not job.is_live:
        return StepState.CANCELLED if job.status is Status.CANCELLED else StepState.FAILED
    runs = job.status in HELD and row.version == job.version
    return row.state if runs else StepState.PENDING
