"""Every move of a job that is not on the hot path, decided once for all stores.

A store locks rows and reads them as `Row`. `move` decides what an order means for a row. The store writes the patches,
in the same transaction. A new order is a class with a `patch` method, here; it needs no SQL.

Times are integer microseconds, by the database's clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, NamedTuple

from msgspec import UNSET, Raw, Struct, UnsetType

from rowlock.core.codec import clean_text, decode, encode
from rowlock.core.debounce import DEBOUNCE, debounced_until
from rowlock.core.job import LIVE, LiveKey, NewJob, Status, own_line, owner_of
from rowlock.core.lifecycle import CRASH_ERROR, CRASH_UNSEEN, EXPIRED_ERROR, MOVES
from rowlock.core.steps import StepPlace
from rowlock.core.times import micros, span
from rowlock.core.waits import MAX_UNREAD, SLEEP, WaitFacts, callback_name, signal_wait, step_name

MAX_DETAIL = 2000  # bytes of how a worker died; the text goes into the history too
# The counters that a move can change, in the order of their columns.
COUNTERS = ("failed", "expired", "cancelled", "retried", "lost", "deleted")


# Held by only one live job: a key; or the line of jobs with debounce, of which one is open (`Row.is_open`).
Held = LiveKey | str | None


class Row(NamedTuple):
    """A job's row as a store has locked it. The stores select the columns in this order."""

    id: str
    topic: str
    status: Status
    template_version: int
    version: int
    priority: int
    run_at: int
    retries: int
    max_retries: int
    crashes: int
    created: int
    claimed_at: int | None
    started_at: int | None
    finished_at: int | None
    locked_by: str | None
    scope: str | None
    scope_id: str | None
    key: str | None
    if_live: str | None
    line: str | None
    line_seq: int | None  # its place there
    fingerprint: str | None
    step: str | None  # the last one that a run has marked; None: nothing is stored of its steps
    waits_for: str | None
    signals: int  # that it has got so far
    events: int  # grows with everything that happens to the job
    tags: str | None  # JSON text
    payload: str | None  # JSON text; None unless the order changes the payload
    place: Any  # where the store finds the row again

    @property
    def template_id(self) -> str:
        return f"{self.topic}@{self.template_version}"

    def is_older(self, other: Row) -> bool:
        """True if it stands before the other job of its line."""
        return (self.line_seq or 0) < (other.line_seq or 0)

    @property
    def has_run(self) -> bool:
        """True if a run has started, now or earlier."""
        return self.started_at is not None or self.retries > 0 or self.crashes > 0

    @property
    def has_live_key(self) -> bool:
        """True if at most one live job may have its key. Jobs of a line share theirs."""
        return self.key is not None and (self.line_seq is None or self.is_open)

    @property
    def live_key(self) -> Held:
        return self.line if self.is_open else LiveKey(self.topic, self.scope, self.scope_id, self.key)

    @property
    def is_open(self) -> bool:
        """True if, while it is pending or blocked, a newer enqueue replaces its payload. A line has one such job."""
        return self.if_live == DEBOUNCE and self.version == 0


class SignalSent(Struct, frozen=True):
    """A signal for a job. `id`: counts once per job. `data`: JSON text."""

    name: str
    data: str
    id: str | None = None


class Patch(Struct, frozen=True, kw_only=True):
    """The change that a store writes for one job. `status` None: it deletes the row."""

    status: Status | None
    columns: dict[str, Any] = {}
    entry: dict[str, Any] = {}  # for the job's history
    counts: dict[str, int] = {}  # see COUNTERS
    audit: dict[str, Any] = {}  # data for the audit, which has a line for every move of an operator
    to_end: bool = False  # the job goes to the end of its line
    is_noted: bool = False  # `advance` looks at its line, although it has not ended
    drops_children: bool = False  # the job forgets the jobs that it has started by ctx.gather
    forgives: bool = False  # parents of its flow that have ended don't keep it from running any more
    first_failure: tuple[str, int] | None = None  # the job leaves the group of this fingerprint; it failed then
    dropped_steps: Sequence[StepPlace] = ()  # what is stored of these steps is removed; with the row: of all steps
    signal: SignalSent | None = None  # it is stored, as number `signals` of the job
    deadlines: Mapping[str, int | None] = {}  # by name of a wait or callback that is open: when it ends, from now on


class Refusal(Struct, frozen=True):
    """Nothing is written. `status` is the reason, or `holder`: the live job that has the key, or `steps`: the names of
    all stored steps, none of which is the one that was asked for, or `why`: "known" (the signal has come before),
    "full" (too many unread signals), "late" (the address has ended), "gone" (there is no such address any more),
    "awaited" (other jobs wait for its end, or are held because of it), "not_held" (nothing holds it)."""

    status: Status
    holder: str | None = None
    steps: tuple[str, ...] | None = None
    why: str | None = None


Decision = tuple[Row, Patch | Refusal]


class Edit(Struct, frozen=True, kw_only=True):
    """The changes of `update`, or of a requeue; UNSET stays. Values are checked and encoded already (see core.job)."""

    priority: int | UnsetType = UNSET
    run_at: datetime | UnsetType = UNSET
    delay: float | UnsetType = UNSET  # seconds from the database's clock; excludes run_at
    payload: str | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET
    share: str | UnsetType | None = UNSET  # follows from the payload (core.limits.share_of)

    @property
    def implied(self) -> dict[str, Any]:
        """Return the columns that follow from those that it sets."""
        return {} if self.share is UNSET else {"share": self.share}

    def columns(self, now: int) -> dict[str, Any]:
        """Return the columns that it sets, sorted by name. Tags and payload are JSON texts."""
        columns: dict[str, Any] = {}
        if self.payload is not UNSET:
            columns["payload"] = self.payload
        if self.priority is not UNSET:
            columns["priority"] = self.priority
        if self.run_at is not UNSET:
            columns["run_at"] = micros(self.run_at)
        if self.delay is not UNSET:
            columns["run_at"] = now + span(self.delay)
        if self.tags is not UNSET:
            columns["tags"] = encode(list(self.tags), "tags") if self.tags else None
        return columns


# ── Orders ──


class Order(Struct, frozen=True, kw_only=True):
    """A move that jobs are to make, with its author and reason. `verb` names the move in MOVES."""

    verb: ClassVar[str]
    by: str
    reason: str | None = None
    bulk: str | None = None  # the bulk action that it is part of

    @property
    def is_audited(self) -> bool:
        return MOVES[self.verb].by == "operator"

    @property
    def takes_key(self) -> bool:
        """True if a job that had ended is live again: no other live job may have its key."""
        return False

    @property
    def is_whole(self) -> bool:
        """True if no job is moved when one of them is refused because of its key."""
        return False

    @property
    def reads_payload(self) -> bool:
        return False

    @property
    def reads_steps(self) -> bool:
        """True if the store must fill in what is stored of the jobs' steps: `steps` of an Update."""
        return False

    def patch(self, row: Row, now: int, holder: str | None) -> Patch | Refusal:
        """Return what the order does to a job whose status allows it. `holder`: the live job with the row's key."""
        raise NotImplementedError

    def _entry(self, row: Row, now: int, event: str, status: Status, **rest: Any) -> dict[str, Any]:
        """Return a history entry. Values that are not known are left out."""
        known = {"by": self.by, "reason": self.reason, **rest}
        entry = {"at": now, "event": event, "status": status, "version": row.version}
        return entry | {name: value for name, value in known.items() if value is not None}


class WaitOrder(Order, frozen=True, kw_only=True):
    """An order that must know of waits. `facts`: by id of a job; the store fills them in, about the callback and the
    signal's id that the order asks for."""

    facts: Mapping[str, WaitFacts] = {}

    @property
    def callback(self) -> tuple[str, int] | None:
        """Return name and number of the stored callback; None: the callback of the signal that the job waits for."""
        return None

    @property
    def signal_id(self) -> str | None:
        return None

    def _facts(self, row: Row) -> WaitFacts:
        return self.facts.get(row.id, _NO_FACTS)


_NO_FACTS = WaitFacts()


class Cancel(WaitOrder, frozen=True, kw_only=True):
    """A second cancel of a cancel_requested job changes nothing. `unsupported`: the templates whose jobs can't be
    cancelled once a run has started.

    A waiting job is cancelled at once, unless there is something to undo: if steps are done, its handler runs once
    more; if an external system works on it, that system may say that it has stopped. CancelTimeout bounds both."""

    verb = "cancel"
    unsupported: frozenset[str] = frozenset()

    def patch(self, row: Row, now: int, holder: str | None) -> Patch | Refusal:
        if row.has_run and row.template_id in self.unsupported:
            return Refusal(row.status)
        undoes = row.status is Status.WAITING and self._facts(row).undoes
        ends = row.status is not Status.PROCESSING and not undoes and not self._is_outside(row, now)
        status = Status.CANCELLED if ends else Status.CANCEL_REQUESTED
        columns = {"status": status, "ready": undoes, "finished_at": now if ends else None, "updated": now}
        columns |= {"cancel_requested_at": now, "cancel_reason": self.reason}
        if row.status is Status.WAITING:
            columns |= {"run_at": now}
            if undoes or ends:
                columns["waits_for"] = None
        entry = self._entry(row, now, status, status)
        return Patch(status=status, columns=columns, entry=entry, counts={"cancelled": 1} if ends else {})

    def _is_outside(self, row: Row, now: int) -> bool:
        """True if it waits for an answer to a callback that is still open."""
        if row.status is not Status.WAITING:
            return False
        facts = self._facts(row)
        return facts.has_callback and (facts.callback is None or facts.callback > now)


class Replace(Cancel, frozen=True, kw_only=True):
    """Cancels a job, because a newer job of the same line takes its place."""

    verb = "replace"


class Unblock(Order, frozen=True, kw_only=True):
    """Makes a job ready that is the head of its line now. It becomes due now: claims have passed its old place."""

    verb = "unblock"

    def patch(self, row: Row, now: int, holder: str | None) -> Patch:
        run_at = max(row.run_at, now)
        columns = {"status": Status.PENDING, "run_at": run_at, "ready": run_at <= now, "updated": now}
        return Patch(status=Status.PENDING, columns=columns, entry=self._entry(row, now, "unblocked", Status.PENDING))


class Debounced(Order, frozen=True, kw_only=True):
    """Replaces a job after a newer enqueue with the same key. The job gets the content of the new one. It keeps its id,
    its place and the time when it was first enqueued. Not if a worker has ever claimed it: a run has one payload."""

    verb = "debounce"
    by: str = "client"
    job: NewJob

    def patch(self, row: Row, now: int, holder: str | None) -> Patch | Refusal:
        new, window = self.job, self.job.debounce
        if not row.is_open or window is None:
            return Refusal(row.status)
        run_at = debounced_until(window, row.created, row.run_at, now)
        columns = {name: getattr(new, name) for name in _ENQUEUED}
        columns |= {"expires_at": None if new.expires_at is None else micros(new.expires_at)}
        columns |= {"tags": encode(list(new.tags), "tags") if new.tags else None}
        columns["updated"] = now
        if run_at != row.run_at:
            columns |= {"run_at": run_at, "ready": row.status is Status.PENDING and run_at <= now}
        entry = self._entry(row, now, "debounced", row.status)
        return Patch(status=row.status, columns=columns, entry=entry)


# The columns that a newer enqueue replaces, beside the times and the tags.
_ENQUEUED = ("payload", "priority", "template_version", "max_retries", "timeout", "trace", "share")


class Update(Order, frozen=True, kw_only=True):
    """Changes fields of jobs. Another payload makes the results of steps worthless: all are removed. `steps`: the
    stored steps of the jobs, by id, in the order of their places; the store fills it in."""

    verb = "update"
    edit: Edit
    steps: Mapping[str, Sequence[StepPlace]] = {}

    @property
    def reads_payload(self) -> bool:
        return self.edit.payload is not UNSET

    @property
    def reads_steps(self) -> bool:
        return self.reads_payload

    def patch(self, row: Row, now: int, holder: str | None) -> Patch | Refusal:
        wanted = self.edit.columns(now)
        columns = wanted | self.edit.implied | {"updated": now}
        if "run_at" in wanted:
            columns["ready"] = wanted["run_at"] <= now
        dropped = self.steps.get(row.id, ()) if _is_other_payload(row, wanted) else ()
        if dropped:
            columns |= {"step": None, "progress": 0}
        entry = self._entry(row, now, "updated", row.status, changed=list(wanted), **_counted(dropped))
        return Patch(
            status=row.status,
            columns=columns,
            entry=entry,
            audit=_compared(row, wanted) | _named(dropped),
            dropped_steps=dropped,
            drops_children=_is_other_payload(row, wanted),
        )


class Requeue(Update, frozen=True, kw_only=True):
    """Retries, crashes, progress and cancel request are reset, run_at is now (unless the edit says when), expires_at is
    cleared. Refused while another live job has the key. `version`: only if the job still has it. `undo`: a cancel is
    undone, so time, retries, expiry and steps stay.

    Results of steps that succeeded are kept, and the progress with them; whatever else is stored of steps is removed.
    `from_step`: "name" or "name#n": this step and those behind it run again. Refused if no such step is stored.
    `keep_steps` False, or another payload: all run again."""

    verb = "requeue"
    edit: Edit = Edit()
    version: int | None = None
    undo: bool = False
    from_step: str | None = None
    keep_steps: bool = True

    @property
    def takes_key(self) -> bool:
        return True

    @property
    def reads_steps(self) -> bool:
        return not self.undo

    def patch(self, row: Row, now: int, holder: str | None) -> Patch | Refusal:
        if self.version is not None and row.version != self.version:
            return Refusal(row.status)
        if holder is not None:
            return Refusal(row.status, holder)
        wanted = self.edit.columns(now)
        steps = self.steps.get(row.id, ())
        first = None
        if self.from_step is not None:
            first = min((step.position for step in steps if step.answers_to(self.from_step)), default=None)
            if first is None:
                return Refusal(row.status, steps=tuple(dict.fromkeys(step.label for step in steps)))
        kept = [step for step in steps if self.keep_steps and step.is_kept(first)]
        if _is_other_payload(row, wanted):
            kept = []
        dropped = [step for step in steps if step not in kept]
        run_at = wanted.get("run_at", row.run_at if self.undo else now)
        in_line, in_own = row.line is not None, owner_of(row.line) is not None
        status = Status.BLOCKED if in_line else Status.PENDING
        columns: dict[str, Any] = dict.fromkeys(_CLEARED)
        columns |= {"status": status, "run_at": run_at, "updated": now}
        if in_own:
            columns["line"] = row.line
        columns["ready"] = run_at <= now and not in_line
        if not self.undo:
            columns |= {"retries": 0, "crashes": 0, "expires_at": None}
        if kept:
            columns["step"] = kept[-1].name
        elif row.step is None or not self.undo:
            columns |= {"step": None, "progress": 0}
        failed = None if row.fingerprint is None or row.finished_at is None else (row.fingerprint, row.finished_at)
        told = {"changed": list(wanted) or None, "from_step": self.from_step, **_counted(dropped)}
        told["keep_steps"] = None if self.keep_steps or not dropped else False
        return Patch(
            status=status,
            columns=columns | wanted | self.edit.implied,
            entry=self._entry(row, now, "requeued", status, **told),
            counts={row.status.value: -1},
            audit=(_compared(row, wanted) if wanted else {}) | _named(dropped),
            first_failure=failed,
            to_end=in_line and not in_own,
            is_noted=in_own,
            forgives=in_own,
            dropped_steps=dropped,
            drops_children=not self.keep_steps or _is_other_payload(row, wanted),
        )


# The columns that a requeue clears.
_CLEARED = (
    "stage", "message", "result", "finished_at", "cancel_requested_at", "cancel_reason", "fingerprint", "waits_for",
)  # fmt: skip


class Delete(Order, frozen=True, kw_only=True):
    """Delete jobs, also archived ones. The audit's entry stays. `awaited`: jobs of flows that may not be deleted,
    because other jobs wait for their end or are held because of it; the store fills them in."""

    verb = "delete"
    awaited: frozenset[str] = frozenset()

    def patch(self, row: Row, now: int, holder: str | None) -> Patch | Refusal:
        if row.id in self.awaited:
            return Refusal(row.status, why="awaited")
        counts = {"deleted": 1} if row.status is Status.PENDING else {}
        return Patch(status=None, counts=counts, audit={"status": row.status})


class Expire(Order, frozen=True, kw_only=True):
    verb = "expire"

    def patch(self, row: Row, now: int, holder: str | None) -> Patch:
        columns = {"status": Status.EXPIRED, "ready": False, "finished_at": now, "updated": now}
        columns |= {"last_error": EXPIRED_ERROR, "fingerprint": None}  # `group_failures` writes the fingerprint
        entry = self._entry(row, now, "expired", Status.EXPIRED)
        return Patch(status=Status.EXPIRED, columns=columns, entry=entry, counts={"expired": 1})


class CancelTimeout(Order, frozen=True, kw_only=True):
    """`grace`: the seconds that a worker has to stop a job, from the request on, unless the job's template has a grace
    of its own. `shielded`: jobs with a live lease whose run is in a step that is not cancelable; the store fills them
    in."""

    verb = "cancel_timeout"
    grace: float = 30.0
    shielded: frozenset[str] = frozenset()

    def patch(self, row: Row, now: int, holder: str | None) -> Patch | Refusal:
        if row.id in self.shielded:
            return Refusal(row.status)
        columns = _FREED | {"status": Status.CANCELLED, "finished_at": now, "updated": now}
        columns |= {"ready": False, "waits_for": None}  # it may not have been claimed yet
        run = _run(row) if row.locked_by is not None else {}
        entry = self._entry(row, now, "cancel_timed_out", Status.CANCELLED, **run)
        return Patch(status=Status.CANCELLED, columns=columns, entry=entry, counts={"cancelled": 1})


class Rescue(Order, frozen=True, kw_only=True):
    """Take jobs from workers whose leases have expired; or, with `workers`, from these dead workers.

    Charged if the handler had started: one more retry, pending after a backoff (at once on the first crash), or expired
    when no retry is left. Not started: pending, not charged. cancel_requested: cancelled.

    `crashes` grows by one: the job is a suspect from now on. With `workers`, only if the handler had started: a
    supervisor that names dead workers has marked what they had started. `detail` says how they died, for the error.

    `before`: only leases that had expired by then; the store may wait for a lock while their owners do so as well.
    `backoff`: the seconds to wait after each crash but the first. `tables`: those of topics that have a table of their
    own (`set_backoff`); the store fills them in."""

    verb = "rescue"
    backoff: Sequence[float]
    tables: Mapping[str, Sequence[float]] = {}
    workers: Sequence[str] | None = None
    detail: str | None = None
    before: datetime | None = None

    @property
    def seen(self) -> bool:
        """True if the workers are known to be dead, and what they had started is marked."""
        return self.workers is not None

    def patch(self, row: Row, now: int, holder: str | None) -> Patch:
        started = row.started_at is not None
        columns = _FREED | {"crashes": row.crashes + (started or not self.seen), "fingerprint": None, "updated": now}
        status, delay, error, counts = Status.PENDING, 0.0, None, {"lost": 1}
        if row.status is Status.CANCEL_REQUESTED:
            status = Status.CANCELLED
        elif started:
            columns["last_error"] = error = f"{CRASH_ERROR}: worker {row.locked_by}{self._death()}"
            if row.retries >= row.max_retries:
                status = Status.EXPIRED
            else:
                columns |= {"retries": row.retries + 1, "expires_at": None}  # that bounds the first start
                counts["retried"] = 1
                if row.crashes:  # after the first crash the job is ready at once, in its old place
                    table = self.tables.get(row.topic, self.backoff)
                    delay = table[min(row.retries + 1, len(table)) - 1]
                    columns["run_at"] = now + span(delay)
        ended = status is not Status.PENDING
        if ended:
            counts[status.value] = 1
        columns |= {"status": status, "ready": not ended and not delay, "finished_at": now if ended else None}
        entry = self._entry(row, now, "rescued", status, **_run(row), delay=delay or None, error=error)
        return Patch(status=status, columns=columns, entry=entry, counts=counts)

    def _death(self) -> str:
        how = f", {clean_text(self.detail, MAX_DETAIL)}" if self.detail else ""
        return how if self.seen else f"{how}{CRASH_UNSEEN}"


class Resume(Order, frozen=True, kw_only=True):
    """Resumes a job, because the time of its wait is over."""

    verb = "resume"

    def patch(self, row: Row, now: int, holder: str | None) -> Patch:
        return _resumed(self, row, now)


class Wake(Resume, frozen=True, kw_only=True):
    """Ends a wait now for an operator, as if its time were over."""

    verb = "wake"

    def patch(self, row: Row, now: int, holder: str | None) -> Patch:
        return _resumed(self, row, now, deadlines={step_name(row.waits_for or SLEEP): now})


class Signal(WaitOrder, frozen=True, kw_only=True):
    """Stores a signal. A job that waits for it is resumed. `number`: of the callback by which it comes; None: it
    comes from the application, or from an operator. The signal's id counts once per job: a callback is answered
    once."""

    verb = "signal"
    sent: SignalSent
    number: int | None = None

    @property
    def is_audited(self) -> bool:
        return self.number is None

    @property
    def callback(self) -> tuple[str, int] | None:
        return None if self.number is None else (callback_name(self.sent.name), self.number)

    @property
    def signal_id(self) -> str | None:
        return self.sent.id

    def patch(self, row: Row, now: int, holder: str | None) -> Patch | Refusal:
        facts = self._facts(row)
        if facts.is_known:
            return Refusal(row.status, why="known")
        if self.number is not None and not facts.has_callback:
            return Refusal(row.status, why="gone")
        if self.number is not None and facts.callback is not None and facts.callback <= now:
            return Refusal(row.status, why="late")
        if facts.unread >= MAX_UNREAD:
            return Refusal(row.status, why="full")
        said = {"signal": self.sent.name, "id": self.sent.id}
        if row.status is Status.WAITING and row.waits_for == signal_wait(self.sent.name):
            return _resumed(self, row, now, signal=self.sent, said=said)
        columns = {"signals": row.signals + 1, "updated": now}
        entry = self._entry(row, now, "signalled", row.status, **said)
        audit = said if self.is_audited else {}
        return Patch(status=row.status, columns=columns, entry=entry, signal=self.sent, audit=audit)


def _resumed(
    order: Order,
    row: Row,
    now: int,
    *,
    signal: SignalSent | None = None,
    said: Mapping[str, Any] | None = None,
    deadlines: Mapping[str, int | None] | None = None,
) -> Patch:
    # Due now: claims have passed its old place.
    columns = {"status": Status.PENDING, "ready": True, "run_at": now, "waits_for": None, "updated": now}
    if signal is not None:
        columns["signals"] = row.signals + 1
    known = {"waits_for": row.waits_for, **(said or {})}
    return Patch(
        status=Status.PENDING,
        columns=columns,
        entry=order._entry(row, now, "resumed", Status.PENDING, **known),
        audit=dict(said or {}) if order.is_audited else {},
        signal=signal,
        deadlines=deadlines or {},
    )


class ReportCallback(WaitOrder, frozen=True, kw_only=True):
    """Records that an external system works on it: the deadlines of the callback, and of the wait for its signal, begin
    anew. `percent`, `stage`, `message` None: they stay. `timeout`: of the callback, in seconds; None: it has none."""

    verb = "report_callback"
    signal: str
    number: int
    timeout: float | None = None
    percent: float | None = None
    stage: str | None = None
    message: str | None = None

    @property
    def callback(self) -> tuple[str, int] | None:
        return callback_name(self.signal), self.number

    def patch(self, row: Row, now: int, holder: str | None) -> Patch | Refusal:
        facts = self._facts(row)
        if not facts.has_callback:
            return Refusal(row.status, why="gone")
        if facts.callback is not None and facts.callback <= now:
            return Refusal(row.status, why="late")
        said = {"progress": self.percent, "stage": self.stage, "message": self.message}
        columns: dict[str, Any] = {name: value for name, value in said.items() if value is not None} | {"updated": now}
        deadlines: dict[str, int | None] = {}
        if self.timeout is not None:
            deadlines[callback_name(self.signal)] = now + span(self.timeout)
        waits_for = signal_wait(self.signal)
        if row.waits_for == waits_for and facts.timeout is not None:
            deadlines[step_name(waits_for)] = columns["run_at"] = now + span(facts.timeout)
        return Patch(status=row.status, columns=columns, deadlines=deadlines)


class AcknowledgeCallback(WaitOrder, frozen=True, kw_only=True):
    """Records that an external system has stopped working on a job that is cancelled. Refused while a worker has the
    job, or is to get it."""

    verb = "acknowledge_callback"
    signal: str
    number: int

    @property
    def callback(self) -> tuple[str, int] | None:
        return callback_name(self.signal), self.number

    def patch(self, row: Row, now: int, holder: str | None) -> Patch | Refusal:
        if not self._facts(row).has_callback:
            return Refusal(row.status, why="gone")
        if row.waits_for is None:  # it is about to run once more, or runs
            return Refusal(row.status)
        columns = {"status": Status.CANCELLED, "waits_for": None, "finished_at": now, "updated": now}
        entry = self._entry(row, now, "cancelled", Status.CANCELLED)
        return Patch(status=Status.CANCELLED, columns=columns, entry=entry, counts={"cancelled": 1})


Due = Expire | CancelTimeout | Rescue | Resume  # orders that name no jobs: a store finds those that are due

_FREED: dict[str, Any] = {"locked_by": None, "locked_until": None}  # a run is taken from its worker


def _run(row: Row) -> dict[str, Any]:
    """Return the part of the history entry of a move that takes a run from its worker."""
    return {"worker": row.locked_by, "claimed_at": row.claimed_at, "started_at": row.started_at}


def _compared(row: Row, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the edited columns before and after, for the audit."""
    before = {name: _plain(name, getattr(row, name)) for name in wanted}
    return {"before": before, "after": {name: _plain(name, value) for name, value in wanted.items()}}


def _is_other_payload(row: Row, wanted: dict[str, Any]) -> bool:
    return "payload" in wanted and wanted["payload"] != row.payload


def _counted(dropped: Sequence[StepPlace]) -> dict[str, Any]:
    """Return the part of the history entry of a move that removes steps."""
    return {"dropped_steps": len(dropped) or None}


def _named(dropped: Sequence[StepPlace]) -> dict[str, Any]:
    """Return the audit's data of a move that removes steps."""
    return {"dropped_steps": [step.label for step in dropped]} if dropped else {}


def _plain(name: str, value: Any) -> Any:
    if name == "payload":
        return Raw(value.encode())  # as it is: a decoder and an encoder might write a number in another way
    return decode(value or "[]") if name == "tags" else value


# ── Deciding ──


def move(row: Row, order: Order, now: int, holder: str | None = None) -> Patch | Refusal:
    """Return what the order means for the job. MOVES says in which statuses it may be done."""
    if row.status not in MOVES[order.verb].sources:
        return Refusal(row.status)
    return order.patch(row, now, holder)


def move_all(rows: Iterable[Row], order: Order, now: int, holders: Mapping[Held, str] | None = None) -> list[Decision]:
    """Return the same for a batch. `holders`: the live jobs that have the rows' keys. Of two rows with the same key the
    first gets it."""
    taken = dict(holders or {})
    decided: list[Decision] = []
    for row in rows:
        answer = move(row, order, now, taken.get(row.live_key) if row.has_live_key else None)
        if row.has_live_key and isinstance(answer, Patch) and answer.status in LIVE:
            taken[row.live_key] = row.id
        decided.append((row, answer))
    if order.is_whole and any(isinstance(answer, Refusal) and answer.holder is not None for _, answer in decided):
        return [(row, Refusal(row.status) if isinstance(answer, Patch) else answer) for row, answer in decided]
    return decided


def patches(decided: Iterable[Decision]) -> list[tuple[Row, Patch]]:
    """Return the decisions that are not refusals."""
    return [(row, answer) for row, answer in decided if isinstance(answer, Patch)]


def lines(written: Iterable[tuple[Row, Patch]]) -> list[str]:
    """Return the lines in which a job has ended, or has come to the end: `advance` looks at them. Of flows also those
    of jobs that are to be cancelled: the cancel reaches the jobs that they have started."""
    return sorted({row.line for row, patch in written if row.line is not None and _is_noted(row, patch)})


def lined(rows: Sequence[Row], waited: Collection[str]) -> list[Row]:
    """Return the rows; those of `waited` stand in lines of their own again, which they left when they started."""
    return [row._replace(line=own_line(row.id)) if row.line is None and row.id in waited else row for row in rows]


def _is_noted(row: Row, patch: Patch) -> bool:
    if patch.to_end or patch.is_noted or patch.status not in LIVE:
        return True
    return patch.status is Status.CANCEL_REQUESTED and owner_of(row.line) is not None


class Advance(Struct, frozen=True):
    """The decision about a line. `replaced`: these are cancelled, because of the job `by`; None: because of a newer
    job. `head`: this one becomes the head. `again`: look at the line once more, because something was locked, or there
    was too much."""

    replaced: list[Row] = []
    by: str | None = None
    head: Row | None = None
    again: bool = False


def advance(head: Row | None, held: Row | None, blocked: Sequence[Row], most: int) -> Advance:
    """Decide what happens in a line. `held`: the head as it was locked; None: another transaction has it, or it need
    not be locked. `blocked`: its blocked jobs in their order: the first, and all up to the newest job with "replace",
    which may be the head. At most `most` + 1, of which the last stands for those that follow.

    Places count, not commits. A job whose transaction commits late can have a lower place than the head. Such a job is
    older, so it doesn't replace the head; but a head with "replace" replaces it."""
    if len(blocked) > most:
        return Advance(list(blocked[:most]), again=True)
    if head is not None and head.if_live == "replace" and blocked and blocked[-1].is_older(head):
        return Advance(list(blocked), head.id)
    newest = blocked[-1] if blocked and blocked[-1].if_live == "replace" else None
    if newest is None:
        return Advance(head=blocked[0] if blocked and head is None else None)
    older = list(blocked[:-1])
    if head is not None and newest.is_older(head):
        return Advance(older, newest.id)
    if held is None:
        return Advance(older, newest.id, again=True) if head else Advance(older, newest.id, newest)
    if held.status is Status.CANCEL_REQUESTED:
        return Advance(older, newest.id)
    if held.status is Status.WAITING:  # it ends at once, or its handler undoes something first
        return Advance([*older, held], newest.id, again=True)
    return Advance([*older, held], newest.id, None if held.status is Status.PROCESSING else newest)


def tally(written: Iterable[tuple[Row, Patch]]) -> dict[str, Counter[str]]:
    """Return the sums of the counters that the patches change, by topic."""
    topics: dict[str, Counter[str]] = {}
    for row, patch in written:
        if patch.counts:
            topics.setdefault(row.topic, Counter()).update(patch.counts)
    return topics
