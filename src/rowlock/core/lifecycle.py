"""The life of a job: the moves that exist, and the meaning of a run's outcome.

`MOVES` is the one list of legal moves. Stores guard every statement by it, and tests check that they do.
`decide` turns the outcome of a run into a Transition; a store applies it, guarded by status, version AND worker.
`judge` says what became of a Transition that a store could not apply.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, assert_never

from msgspec import Struct

from rowlock.core import codec
from rowlock.core.fingerprint import UNSEEN_START, fingerprint
from rowlock.core.job import HELD, MAX_DELAY, Job, Status
from rowlock.core.retry import DEFAULT_RETRY, FinalType, RetryPolicy, retry_delay
from rowlock.errors import InvalidInput

PENDING, BLOCKED, PROCESSING, WAITING = Status.PENDING, Status.BLOCKED, Status.PROCESSING, Status.WAITING
CANCEL_REQUESTED, COMPLETED = Status.CANCEL_REQUESTED, Status.COMPLETED
FAILED, EXPIRED, CANCELLED = Status.FAILED, Status.EXPIRED, Status.CANCELLED

MAX_HISTORY = 100  # entries kept on the row; what is dropped is counted
MAX_HISTORY_ERROR = 4096  # bytes of an error that go into its history entry; last_error has it whole
OUTAGE_DELAY = 2.0  # seconds until a job that was cut off from the database runs again
CRASH_ERROR = "Task timed out (worker crashed?)"  # then the worker's name, and how it died
# This follows if the lease ran out: the start mark is written a moment before the handler begins.
CRASH_UNSEEN = UNSEEN_START
EXPIRED_ERROR = "Expired: not started before expires_at"


class Move(Struct, frozen=True):
    """A legal move: from any of `sources` to one of `targets`, writing one of `events`.

    `fenced`: made by a worker, and guarded by its name and the version it was given in the claim.
    """

    by: Literal["client", "worker", "operator", "maintenance", "callback"]
    sources: frozenset[Status]
    targets: frozenset[Status]
    events: tuple[str, ...]
    fenced: bool = False


def _move(
    by: Literal["client", "worker", "operator", "maintenance", "callback"],
    sources: tuple[Status, ...],
    targets: tuple[Status, ...],
    *events: str,
    fenced: bool = False,
) -> Move:
    return Move(by, frozenset(sources), frozenset(targets), events, fenced)


MOVES: dict[str, Move] = {
    "enqueue": _move("client", (), (PENDING, BLOCKED), "enqueued"),
    # A waiting job that is cancelled runs once more, to undo what it has done: it stays CANCEL_REQUESTED.
    "claim": _move("worker", (PENDING, CANCEL_REQUESTED), (PROCESSING, CANCEL_REQUESTED), "claimed"),
    "heartbeat": _move("worker", (PROCESSING, CANCEL_REQUESTED), (PROCESSING, CANCEL_REQUESTED), fenced=True),
    "progress": _move("worker", (PROCESSING, CANCEL_REQUESTED), (PROCESSING, CANCEL_REQUESTED), fenced=True),
    "checkpoint": _move("worker", (PROCESSING, CANCEL_REQUESTED), (PROCESSING, CANCEL_REQUESTED), fenced=True),
    "complete": _move("worker", (PROCESSING, CANCEL_REQUESTED), (COMPLETED,), "completed", fenced=True),
    "fail": _move("worker", (PROCESSING,), (PENDING, FAILED), "retried", "failed", fenced=True),
    "retry_step": _move("worker", (PROCESSING,), (PENDING,), "step_retried", fenced=True),
    "snooze": _move("worker", (PROCESSING,), (PENDING,), "snoozed", fenced=True),
    "release": _move("worker", (PROCESSING,), (PENDING,), "released", fenced=True),
    # PENDING: a signal has come since the run looked.
    "wait": _move("worker", (PROCESSING,), (WAITING, PENDING), "waited", fenced=True),
    # The cancel came when the handler was about to wait. It runs once more, to undo what it has done.
    "cancel_wait": _move("worker", (CANCEL_REQUESTED,), (CANCEL_REQUESTED,), "wait_cancelled", fenced=True),
    # Its time has come; or an operator ends the wait now.
    "resume": _move("maintenance", (WAITING,), (PENDING,), "resumed"),
    "wake": _move("operator", (WAITING,), (PENDING,), "resumed"),
    "signal": _move(
        "callback",
        (PENDING, BLOCKED, PROCESSING, WAITING),
        (PENDING, BLOCKED, PROCESSING, WAITING),
        "signalled",
        "resumed",
    ),
    # What the outside reports while a job waits for it.
    "report_callback": _move("callback", (WAITING,), (WAITING,)),
    "acknowledge_callback": _move("callback", (CANCEL_REQUESTED,), (CANCELLED,), "cancelled"),
    # A handler may also give up by itself (raise Cancelled) without having been asked to.
    "acknowledge_cancel": _move("worker", (PROCESSING, CANCEL_REQUESTED), (CANCELLED,), "cancelled", fenced=True),
    "cancel": _move(
        "operator",
        (PENDING, BLOCKED, WAITING, PROCESSING),
        (CANCELLED, CANCEL_REQUESTED),
        "cancelled",
        "cancel_requested",
    ),
    # A newer job of the line takes its place.
    "replace": _move(
        "maintenance",
        (PENDING, BLOCKED, WAITING, PROCESSING),
        (CANCELLED, CANCEL_REQUESTED),
        "cancelled",
        "cancel_requested",
    ),
    "unblock": _move("maintenance", (BLOCKED,), (PENDING,), "unblocked"),
    # A newer enqueue replaces the payload and the time of a job that no worker has claimed yet.
    "debounce": _move("client", (PENDING, BLOCKED), (PENDING, BLOCKED), "debounced"),
    # A parent in its flow has failed, or no condition is true; and a parent that had failed is live again.
    "stop": _move("maintenance", (BLOCKED,), (CANCELLED,), "cancelled"),
    # It stays cancelled if a live job has its key meanwhile.
    "block": _move("maintenance", (CANCELLED,), (BLOCKED, CANCELLED), "blocked", "block_refused"),
    # A person lets a job run that a failed parent holds.
    "release_hold": _move("operator", (BLOCKED,), (BLOCKED,), "hold_released"),
    "cancel_timeout": _move("maintenance", (CANCEL_REQUESTED,), (CANCELLED,), "cancel_timed_out"),
    "promote": _move("maintenance", (PENDING,), (PENDING,)),
    "rescue": _move("maintenance", (PROCESSING, CANCEL_REQUESTED), (PENDING, EXPIRED, CANCELLED), "rescued"),
    "expire": _move("maintenance", (PENDING,), (EXPIRED,), "expired"),
    "update": _move("operator", (PENDING,), (PENDING,), "updated"),
    "requeue": _move("operator", (FAILED, EXPIRED, CANCELLED), (PENDING, BLOCKED), "requeued"),
    "delete": _move("operator", (PENDING, FAILED, CANCELLED, EXPIRED, COMPLETED), (), "deleted"),
    "prune": _move("maintenance", (COMPLETED, CANCELLED, FAILED, EXPIRED), ()),
}


# ── Outcomes: what a run came to ──────────────────────────────────────────────────────────────────────────────────


class Completed(Struct, frozen=True):
    result: Any = None


class Failed(Struct, frozen=True):
    """The handler raised. `final`: the handler itself asked for no retry."""

    error: str
    exception: BaseException | None = None
    final: bool = False


class Died(Failed, frozen=True):
    """The handler ended its child process."""


class TimedOut(Struct, frozen=True):
    after: float


class StepRetry(Struct, frozen=True):
    """A step failed that has a retry policy of its own: run the job again after so many seconds. Costs the job no
    retry, because the step counts its own."""

    delay: float
    error: str
    step: str


class Snoozed(Struct, frozen=True):
    """The handler asked to run later, after so many seconds or at a time. Costs no retry."""

    until: float | timedelta | datetime


class Waits(Struct, frozen=True):
    """The handler waits: for a signal, or until a time. Costs no retry.

    `waits_for`: as in Job. `seconds`: until the wait ends by itself; None: never. `seen`: how many signals the job had
    got when the run looked; if there are more by now, it does not wait. `undoes`: steps are done, so that the handler
    must run once more if the job is cancelled."""

    waits_for: str
    seconds: float | None
    seen: int
    undoes: bool = False


class Released(Struct, frozen=True):
    """Given back by a worker that is stopping, or that claimed ahead and didn't start. Costs no retry."""

    reason: str = "shutdown"


class CutOff(Struct, frozen=True):
    """The jobs' own database went away while the handler used it through its Context. Costs no retry."""

    error: str


class GaveUp(Struct, frozen=True):
    """The handler stopped because the job was cancelled, or cancelled itself."""

    reason: str | None = None


Outcome = Completed | Failed | TimedOut | StepRetry | Snoozed | Waits | Released | CutOff | GaveUp


class Transition(Struct, frozen=True, kw_only=True):
    """The change that a store writes. It carries delays, never times: the store adds them to its own clock."""

    event: str
    status: Status
    # None: run_at stays, so that a job that was given back keeps its place. WAITING: seconds until the wait ends by
    # itself, None: never.
    delay: float | None = 0.0
    retries: int | None = None  # None: unchanged
    error: str | None = None  # None: last_error unchanged
    result: str | None = None  # canonical JSON text
    ran: float | None = None  # seconds the handler ran; None: it never started
    reason: str | None = None
    fingerprint: str | None = None  # of a dead letter
    waits_for: str | None = None  # WAITING only
    seen: int = 0  # WAITING only: if the job has got more signals than these, it is PENDING and ready instead

    @property
    def from_cancel_requested(self) -> bool:
        """True if it may be applied after a cancel request. Any other transition must be decided again."""
        return self.status in (COMPLETED, CANCELLED, CANCEL_REQUESTED)

    def entry(self, version: int) -> dict[str, Any]:
        """Return the part of the history entry that the store doesn't know by itself."""
        entry: dict[str, Any] = {"event": self.event, "status": self.status, "version": version}
        if self.delay:
            entry["delay"] = self.delay
        if self.error is not None:
            entry["error"] = codec.clean_text(self.error, MAX_HISTORY_ERROR)
        if self.reason is not None:
            entry["reason"] = self.reason
        if self.waits_for is not None:
            entry["waits_for"] = self.waits_for
        return entry


def decide(
    job: Job,
    outcome: Outcome,
    now: datetime,
    *,
    retry: RetryPolicy = DEFAULT_RETRY,
    chance: float = 0.0,
    ran: float | None = None,
) -> Transition:
    """Return what the outcome of a run means for the job. Never raises for anything a handler may have produced.

    `now` turns a snooze until a time into a delay. `chance` (0 to 1) feeds the jitter. `ran` is how long the handler
    ran, in seconds; None if it never started.
    """
    if isinstance(outcome, Completed):
        done = completion(outcome, ran)
        if isinstance(done, Transition):
            return done
        outcome = done
    if job.status is CANCEL_REQUESTED:
        if isinstance(outcome, Waits) and outcome.undoes:
            return Transition(event="wait_cancelled", status=CANCEL_REQUESTED, ran=ran)
        # A handler that finishes first completes (above); every other outcome means that the cancel won.
        return Transition(event="cancelled", status=CANCELLED, ran=ran, error=_error_text(outcome))
    match outcome:
        case Failed() | TimedOut():
            return _fail(job, outcome, retry, chance, ran)
        case StepRetry():
            return Transition(
                event="step_retried",
                status=PENDING,
                delay=_wait(outcome.delay, now),
                error=_error_text(outcome),
                ran=ran,
                reason=codec.clean_text(outcome.step, MAX_HISTORY_ERROR),
            )
        case Snoozed():
            try:
                delay = _wait(outcome.until, now)
            except (TypeError, ValueError, OverflowError):
                return _fail(job, unfit_snooze(outcome.until), retry, chance, ran)
            return Transition(event="snoozed", status=PENDING, delay=delay, ran=ran)
        case Waits():
            return Transition(
                event="waited",
                status=WAITING,
                delay=None if outcome.seconds is None else _wait(outcome.seconds, now),
                ran=ran,
                waits_for=outcome.waits_for,
                seen=outcome.seen,
            )
        case Released():
            reason = codec.clean_text(outcome.reason, MAX_HISTORY_ERROR)
            return Transition(event="released", status=PENDING, delay=None, ran=ran, reason=reason)
        case CutOff():
            reason = codec.clean_text(f"The database was away: {outcome.error}", MAX_HISTORY_ERROR)
            return Transition(event="released", status=PENDING, delay=OUTAGE_DELAY, ran=ran, reason=reason)
        case GaveUp():
            said = None if outcome.reason is None else codec.clean_text(str(outcome.reason), MAX_HISTORY_ERROR)
            return Transition(event="cancelled", status=CANCELLED, ran=ran, reason=said)
        case _:
            assert_never(outcome)


def completion(outcome: Completed, ran: float | None) -> Transition | Failed:
    """Return what a success means for any job. A result that can't be stored is a failure."""
    try:
        result = None if outcome.result is None else codec.encode(outcome.result, "result")
    except InvalidInput as unfit:
        return unfit_result(unfit)
    return Transition(event="completed", status=COMPLETED, result=result, ran=ran)


def unfit_result(problem: InvalidInput) -> Failed:
    return Failed(f"The handler's result can't be stored: {problem}", final=True)


def unfit_snooze(until: object) -> Failed:
    return Failed(f"The handler can't snooze until {until!r:.80}", final=True)


def _fail(job: Job, outcome: Failed | TimedOut, retry: RetryPolicy, chance: float, ran: float | None) -> Transition:
    text = _error_text(outcome)
    assert text is not None  # noqa: S101 - narrows the type: both kinds have a text
    if isinstance(outcome, Failed) and outcome.final:
        return _dead(job, text, ran)
    if job.retries >= job.max_retries:
        return _dead(job, codec.clean_text(f"Max retries exceeded: {text}"), ran)
    cause = outcome.exception if isinstance(outcome, Failed) and outcome.exception is not None else text
    delay = retry_delay(retry, job, cause, chance)
    if isinstance(delay, FinalType):
        return _dead(job, text, ran)
    return Transition(event="retried", status=PENDING, delay=delay, retries=job.retries + 1, error=text, ran=ran)


def _dead(job: Job, error: str, ran: float | None) -> Transition:
    return Transition(event="failed", status=FAILED, error=error, ran=ran, fingerprint=fingerprint(job.topic, error))


def _error_text(outcome: Outcome) -> str | None:
    match outcome:
        case Failed() | StepRetry():
            return codec.clean_text(outcome.error)
        case TimedOut():
            return f"Timed out: the handler ran for more than {outcome.after:g} s"
        case _:
            return None


def _wait(until: float | timedelta | datetime, now: datetime) -> float:
    if isinstance(until, datetime):
        until = (until if until.tzinfo else until.replace(tzinfo=UTC)) - now
    delay = until.total_seconds() if isinstance(until, timedelta) else float(until)
    return min(max(delay, 0.0), MAX_DELAY) if delay == delay else 0.0  # NaN is now


# ── Verdicts: what a store answers ────────────────────────────────────────────────────────────────────────────────


class Settlement(Struct, frozen=True):
    """A worker's wish: apply `transition` to run `version` of job `id`, if `worker` has it; None: if any worker has it.

    A version may be given twice: by a database that has lost its last claims (a failover, a restored backup), or to a
    job whose id was used before.
    """

    id: str
    version: int
    transition: Transition
    worker: str | None = None


class Answer(StrEnum):
    APPLIED = "applied"
    ALREADY = "already"  # this version had already reached this outcome: a repeat after an unknown COMMIT
    CHANGED = "changed"  # the run is still ours, but the status moved: decide again with `status`
    LOST = "lost"  # this run is over; another run or an operator decides


class Verdict(Struct, frozen=True):
    answer: Answer
    status: Status | None = None


APPLIED = Verdict(Answer.APPLIED)
LOST = Verdict(Answer.LOST)


class Standing(Struct, frozen=True):
    """The state of a job now, for judging a refused write. `ended` is the event by which the run in question ended,
    `worker` has the job now; None: no worker, so that no run is open."""

    status: Status
    version: int
    ended: str | None
    worker: str | None = None


def judge(version: int, event: str, standing: Standing | None, worker: str | None = None) -> Verdict:
    """Return why a settlement was refused. `standing` is read after the refusal; None means that the job is gone.

    The event, not the status, tells a repeat of our own write from another move: a rescue also makes a job pending.
    """
    if standing is None:
        return LOST
    if standing.ended == event:
        return Verdict(Answer.ALREADY, standing.status)
    if standing.version == version and standing.status in HELD and standing.worker is not None:
        return Verdict(Answer.CHANGED, standing.status) if same_worker(worker, standing.worker) else LOST
    return LOST


def ended_by(
    version: int,
    status: Status,
    current: int,
    history: list[dict[str, Any]],
    worker: str | None = None,
    holder: str | None = None,
) -> str | None:
    """Return the event by which run `version` of `worker` ended, from the row's columns and its history; None if it is
    open or unknown. `holder`: locked_by; of a completed job, the worker that completed it."""
    if status is COMPLETED and current == version and same_worker(worker, holder):
        return "completed"
    for entry in reversed(history):
        # A move that takes a run away names its worker. A worker that ends its own run is `by`.
        whose = entry.get("worker", entry.get("by"))
        if entry.get("version") == version and "claimed_at" in entry and same_worker(worker, whose):
            event: str = entry["event"]
            return event
    return None


def same_worker(asked: str | None, holder: str | None) -> bool:
    """True if the guard by worker holds. None asks for no particular worker."""
    return asked is None or asked == holder
