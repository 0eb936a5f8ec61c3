"""Bodies and answers of the worker protocol."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct, UnsetType

from rowlock.core.job import MAX_TOPIC, MAX_VERSION
from rowlock.core.steps import MAX_STEPS
from rowlock.http.shapes import Asked, JobId, Reason, Retries, Seconds, StepName, StepNumber, Time, Timeout, schema

SHORTEST_LEASE, LONGEST_LEASE = 1.0, 300.0  # a rescue waits for a third of the longest: see runtime/rescue_guard.py
LONGEST_WAIT = 30.0
MOST_CLAIMED, MOST_TOPICS, MOST_RUNS, MOST_LINES, MOST_ENDS = 500, 100, 1000, 100, 500
MOST_BYTES = 16 << 20  # of payload that one claim brings, about


WorkerName = Annotated[str, schema(minLength=1, maxLength=100, pattern="^[A-Za-z0-9_.:-]+$")]
LaneName = Annotated[
    str, schema(minLength=1, maxLength=MAX_TOPIC + 8, pattern="^[A-Za-z0-9_.:/-]+(@[0-9]{1,7})?$")
]  # as Lane prints it
Version = Annotated[int, schema(minimum=1, maximum=MAX_VERSION)]
SignalName = Annotated[str, schema(minLength=1, maxLength=MAX_TOPIC)]
Lease = Annotated[float, schema(minimum=SHORTEST_LEASE, maximum=LONGEST_LEASE)]


class RunName(Asked, frozen=True, kw_only=True):
    """One run of a job. `version`: from the claim."""

    id: JobId
    version: Version


class ClaimBody(Asked, frozen=True, kw_only=True):
    """`worker`: a name that the worker chooses anew at each start. `topics`: what it runs. `mail` is version 0 of the
    topic's template, `mail@1` version 1; a worker gets no other versions than those that it names. `lease`: seconds
    until other workers may take its jobs, unless it renews the lease; default: the setting lock_duration. `wait`:
    seconds to wait for work. `runs`: all runs that the worker knows of. Runs that it holds but does not name are
    returned once more: their answer was lost."""

    worker: WorkerName
    topics: Annotated[tuple[LaneName, ...], schema(minItems=1, maxItems=MOST_TOPICS)]
    limit: Annotated[int, schema(minimum=1, maximum=MOST_CLAIMED)] = 1
    lease: Lease | None = None
    wait: Annotated[float, schema(minimum=0, maximum=LONGEST_WAIT)] = 0.0
    runs: Annotated[tuple[RunName, ...], schema(maxItems=MOST_RUNS)] | None = None


class RunBody(Struct, kw_only=True):
    """A job to run; `id` and `version` name the run. `template_version`: the version of its topic's template. `step`:
    the one that was marked last; null: no step is stored. `lease`: seconds until it must be renewed. `status`:
    processing; or cancel_requested: the job was cancelled while it waited, and runs once more to undo what its steps
    have done. Replay it, and stop where it waited."""

    id: str
    version: int
    status: Annotated[str, schema(enum=["processing", "cancel_requested"])]
    topic: str
    template_version: int
    step: str | None
    payload: dict[str, Any]
    lease: float
    timeout: float
    retries: int
    max_retries: int
    priority: int
    key: str | None
    scope: str | None
    scope_id: str | None
    tags: tuple[str, ...]
    trace: str | None
    run_at: Time
    created: Time


class ClaimAnswer(Struct, kw_only=True):
    items: list[RunBody]


class HeartbeatBody(Asked, frozen=True, kw_only=True):
    worker: WorkerName
    runs: Annotated[tuple[RunName, ...], schema(minItems=1, maxItems=MOST_RUNS)]
    lease: Lease | None = None


class HoldBody(Struct, kw_only=True):
    """`hold`: kept; cancel (the worker holds the run, but must stop it); timeout (the worker holds the run, but its
    time is over); lost (another worker holds the job, or it has ended)."""

    id: str
    version: int
    hold: Annotated[str, schema(enum=["kept", "cancel", "timeout", "lost"])]


class HeartbeatAnswer(Struct, kw_only=True):
    items: list[HoldBody]


class RunAsked(RunName, frozen=True, kw_only=True):
    worker: WorkerName


class ProgressBody(RunAsked, frozen=True, kw_only=True):
    """Fields that are left out stay as they are."""

    percent: Annotated[float, schema(minimum=0, maximum=100)] | None = None
    stage: str | None = None
    message: str | None = None


class LineBody(Asked, frozen=True, kw_only=True):
    text: str
    level: Literal["debug", "info", "warning", "error"] = "info"


class LogBody(RunAsked, frozen=True, kw_only=True):
    lines: Annotated[tuple[LineBody, ...], schema(minItems=1, maxItems=MOST_LINES)]


class StoredStepBody(Struct, kw_only=True):
    """A step as an earlier run, or this one, has stored it. `version`: the run that wrote it last."""

    name: str
    n: int
    position: int
    function: str
    state: str
    result: Any
    error: str | None
    retries: int
    cancelable: bool
    version: int
    started_at: Time
    finished_at: Time | None


class WorkerStepsAnswer(Struct, kw_only=True):
    """By position. A step that has succeeded must not run again: its result is here."""

    items: list[StoredStepBody]


class CheckpointBody(RunAsked, frozen=True, kw_only=True):
    """What became of a step. `name` and `n` identify it: the n-th call of this name. `position`: its place among all
    steps of the job, from 1. `function`: what runs under this name; default: the name. `state`: running (it starts),
    succeeded (with its `result`), failed (for good, with its `error`), pending (it failed and is tried again: then
    `retry-step`), cancelled. `retries`: of the step itself. `ran`: seconds since it began. `percent`: the job's
    progress from now on."""

    name: StepName
    n: StepNumber = 1
    position: Annotated[int, schema(minimum=1, maximum=MAX_STEPS)]
    function: StepName | None = None
    state: Literal["running", "pending", "succeeded", "failed", "cancelled"]
    result: Any = None
    error: str | None = None
    retries: Retries = 0
    cancelable: bool = True
    ran: Seconds = 0.0
    percent: Annotated[float, schema(minimum=0, maximum=100)] | None = None


class RetryStepBody(RunAsked, frozen=True, kw_only=True):
    """End the run, and run the job again after `delay` seconds, because a step failed that has retries of its own."""

    step: StepName
    delay: Seconds
    error: str
    ran: Seconds | None = None


class WaitAsked(RunAsked, frozen=True, kw_only=True):
    """The handler waits. `signal`: for this signal; or `sleep`: for so many seconds; or `until`: until this time. `n`:
    the n-th wait for this signal, or the n-th sleep. `position`: its place among all steps and waits of the job, from
    1. `timeout`: seconds until a wait for a signal ends by itself; default: never. `default`: the data that it has
    then; without it, the answer is `timed_out`. `schema`: JSON Schema of the data, checked when a signal comes. `ran`:
    seconds that the run took. `peek`: do not end the run if the wait is not over. The worker can then unwind the
    handler first, and asks again without `peek`."""

    signal: SignalName | None = None
    sleep: Seconds | None = None
    until: Time | None = None
    n: StepNumber = 1
    position: Annotated[int, schema(minimum=1, maximum=MAX_STEPS)]
    timeout: Seconds | None = None
    default: Any | UnsetType = UNSET
    schema: dict[str, Any] | None = None
    ran: Seconds | None = None
    peek: bool = False


class WaitAnswer(Struct, kw_only=True):
    """`state`: ended (the wait is over; `data` is the signal's, the default, or null after a sleep); timed_out (no
    signal came in time); cancelled (the job was cancelled: undo, then give up); waiting (the run has ended here: report
    nothing more about it; the job is claimed again when the wait is over)."""

    id: str
    version: int
    state: Annotated[str, schema(enum=["ended", "timed_out", "cancelled", "waiting"])]
    data: Any = None


class CallbackAsked(RunAsked, frozen=True, kw_only=True):
    """Ask for an address by which the outside sends a signal. `n`: the n-th address for this signal. `timeout`: seconds
    until it ends. `schema`: JSON Schema of the data."""

    signal: SignalName
    n: StepNumber = 1
    position: Annotated[int, schema(minimum=1, maximum=MAX_STEPS)]
    timeout: Timeout | None = None
    schema: dict[str, Any] | None = None


class CallbackAnswer(Struct, kw_only=True):
    """`url`: unforgeable, and the same after a replay. A caller that has it can answer once."""

    url: str


class CompleteBody(RunAsked, frozen=True, kw_only=True):
    """`ran`: seconds that the handler took; default: since the claim."""

    result: Any = None
    ran: Seconds | None = None


class FailBody(RunAsked, frozen=True, kw_only=True):
    """`type` and `traceback`: in the form of the worker's language. `final`: no retry. `delay`: seconds until the
    retry, if this server has no retry policy for the topic."""

    error: str
    type: str | None = None
    traceback: str | None = None
    final: bool = False
    delay: Seconds | None = None
    ran: Seconds | None = None


class SnoozeBody(RunAsked, frozen=True, kw_only=True):
    seconds: Seconds


class ReleaseBody(RunAsked, frozen=True, kw_only=True):
    reason: Reason | None = None


class SettledBody(Struct, kw_only=True):
    """`status`: that of the job after the run."""

    id: str
    version: int
    status: Annotated[str, schema(enum=["completed", "pending", "failed", "cancelled"])]


class EndBody(RunName, frozen=True, kw_only=True):
    """How one run has ended. `end`: the name of the single call; the other fields are those of that call."""

    end: Literal["complete", "fail", "snooze", "retry-step", "release", "give-up"]
    result: Any = None
    error: str | None = None
    type: str | None = None
    traceback: str | None = None
    final: bool = False
    delay: Seconds | None = None
    seconds: Seconds | None = None
    step: StepName | None = None
    reason: Reason | None = None
    ran: Seconds | None = None


class SettleBody(Asked, frozen=True, kw_only=True):
    worker: WorkerName
    ends: Annotated[tuple[EndBody, ...], schema(minItems=1, maxItems=MOST_ENDS)]


class EndedBody(Struct, kw_only=True):
    """`status`: that of the job after the run; lost: the worker does not hold the run (any more), and nothing was
    stored."""

    id: str
    version: int
    status: Annotated[str, schema(enum=["completed", "pending", "failed", "cancelled", "lost"])]


class SettleAnswer(Struct, kw_only=True):
    """In the order of the request."""

    items: list[EndedBody]


class GoodbyeBody(Asked, frozen=True, kw_only=True):
    worker: WorkerName
