"""StepStatus: a step of a job as `jobs.steps` shows it, from what is stored and what the template declares."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from rowlock.core.job import HELD, Job, Status
from rowlock.core.steps import STEP_ENDS, StepState, StoredStep
from rowlock.core.templates import StepInfo


class StepStatus(Struct, frozen=True, kw_only=True):
    """`n`: the number of the call of this name, from 1. `position`: the place among the job's steps; None: not called.
    `retries`: of the step's own policy. `title`, `timeout`, `weight` and `max_retries` are those that the template
    declares."""

    name: str
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


def _state(job: Job, row: StoredStep) -> StepState:
    """What is stored may be out of date: a run that is killed can't say so."""
    if row.state in STEP_ENDS:
        return row.state
    if not job.is_live:
        return StepState.CANCELLED if job.status is Status.CANCELLED else StepState.FAILED
    runs = job.status in HELD and row.version == job.version
    return row.state if runs else StepState.PENDING
