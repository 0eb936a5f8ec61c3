"""Steps: parts of a handler whose results are stored. What a run writes about them, and what the database knows of them.

A run is the only writer of its job's steps, because every mark is guarded by version and worker. So the run itself may
number its steps, count them and add up their sizes.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct

MAX_STEPS = 1000  # of one job
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
    """What a run writes about one of its steps: that it runs, or how it ended.

    `name` and `n` identify it: the n-th call of this name in the handler, from 1. `position`: the place among all steps
    of the job, in the order in which the handler called them, from 1. `function`: the name of the function, so that
    another function under a stored name is noticed. `retries`: of the step's own retry policy. `age`: seconds since it
    began. `percent`: the job's progress from now on; None: unchanged. `worker`: who must hold the job; None: any.

    A mark that a step runs (RUNNING) never replaces an end that the same run, or an earlier one, has stored.
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
