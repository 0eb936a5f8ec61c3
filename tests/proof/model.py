"""The small model of the protocol: what a database does with a row, as a pure function of the row, and its invariants.

The guards are those of MOVES, `decide` decides the outcomes, and `judge` judges the refusals. So this is no second
state machine, only a second reader of the same tables. A row is a tuple of small numbers. Time is a flag ("its lease
has run out") that may go up at any moment. Every change passes `_changed`, which raises Broken when an invariant
doesn't hold. A sabotage takes one guard away, so that tests can show that the guard is needed.
"""

from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

from rowlock.core.job import HELD, LIVE, Job, Status
from rowlock.core.lifecycle import (
    MOVES,
    Answer,
    Completed,
    Failed,
    GaveUp,
    Outcome,
    Released,
    Snoozed,
    Standing,
    decide,
    ended_by,
    judge,
)

NOBODY = -1
OPEN = ""  # a run that has not ended
GONE = "gone"  # in place of a status: the job was deleted
TAKEN_AWAY = frozenset({"rescued", "cancel_timed_out"})  # how a run ends without its worker
SETTLES = {  # by event: the move that a worker's settlement makes
    event: name for name, move in MOVES.items() if move.by == "worker" and move.fenced for event in move.events
}
OUTCOMES: dict[str, Outcome] = {
    "completes": Completed(),
    "fails": Failed("it broke"),
    "fails for good": Failed("it broke", final=True),
    "snoozes": Snoozed(1.0),
    "is given back": Released(),
    "gives up": GaveUp(),
}
ENDED = frozenset({status.value for status in Status if status not in LIVE} | {GONE})
_HELD = frozenset(status.value for status in HELD)
_NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Sabotage(StrEnum):
    """The guards that can be taken away."""

    SETTLE_ANY_VERSION = "settle does not look at the version"
    SETTLE_ANY_STATUS = "settle does not look at the status"
    BEAT_ANY_VERSION = "heartbeat does not look at the version"
    REPORT_ANY_VERSION = "progress does not look at the version"
    RESCUE_IN_TWO_STEPS = "rescue looks first and writes later"
    RESCUE_THE_LIVING = "rescue does not look at the lease"
    RESCUE_FORGETS_CANCEL = "rescue makes a cancelled job pending"
    RESCUE_CHARGES_ALL = "rescue charges what was not started"
    RESCUE_FORGIVES = "rescue does not charge"
    NO_RESCUE = "nobody rescues"
    CLAIM_KEEPS_VERSION = "a second claim has the version of the first"
    REQUEUE_RESETS_VERSION = "requeue resets the version"
    NO_START_MARK = "suspects start without a mark"
    JUDGE_BY_STATUS = "a repeat is known by its status"
    LOOK_BACK_AT_ANY_TIME = "lost claims are looked for while others are under way"


class Broken(Exception):
    """An invariant doesn't hold."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


class Row(NamedTuple):
    status: str = "pending"
    version: int = 0
    retries: int = 0
    suspect: bool = False  # crashes > 0
    started: int = 0  # the run that wrote the start mark; 0: there is no mark
    expired: bool = False  # its lease has run out
    holder: int = NOBODY
    ends: tuple[str, ...] = ()  # the event by which each of its runs has ended
    # Only the invariants read the fields from here on.
    began: int = 0  # bits: the runs whose handlers have begun
    running: int = 0  # bits: those of them that have not ended
    charged: int = 0  # runs that cost a retry, since the last requeue
    spared: int = 0  # runs that were rescued while their handlers ran, and not charged, since the last requeue
    reporter: int = 0  # the run whose progress the row shows


class To(NamedTuple):
    """The parts of a Transition that matter here."""

    event: str
    status: str
    retries: int | None


RELEASED = To("released", "pending", None)  # the worker writes it by itself, without an outcome of the handler


class Said(NamedTuple):
    """A Verdict, or a Hold."""

    answer: str
    status: str = ""


class Database:
    """Return one job's row after each verb. `retries` is the job's max_retries. `ignoring`: an invariant that is not
    checked, so that the model shows what its violation leads to."""

    def __init__(self, retries: int, sabotage: Sabotage | None = None, ignoring: str = "") -> None:
        self._retries = retries
        self._sabotage = sabotage
        self._ignoring = ignoring
        self._blank: dict[str, Any] = dict.fromkeys(Job.__struct_fields__) | {"id": "job", "max_retries": retries}
        # The same row occurs in many states, so everything that depends on one row alone is computed once.
        self.decide = cache(self._decide)
        self.settle = cache(self._settle)
        self.heartbeat = cache(self._heartbeat)
        self.progress = cache(self._progress)
        self.claim = cache(self._claim)
        self.rescue = cache(self._rescue)
        self.cancel_timeout = cache(self._cancel_timeout)
        self.operate = cache(self._operate)
        self.begin = cache(self._begin)
        self.finish = cache(self._finish)

    # ── Workers ──

    def _decide(self, status: str, retries: int, outcome: str) -> To:
        job = Job(**self._blank | {"status": Status(status), "retries": retries})
        to = decide(job, OUTCOMES[outcome], _NOW)
        return To(to.event, to.status.value, to.retries)

    def needs_mark(self, retries: int, suspect: bool) -> bool:
        """Return the same as Run.needs_mark."""
        return self._sabotage is not Sabotage.NO_START_MARK and (suspect or retries >= self._retries)

    def _claim(self, row: Row, worker: int, start: bool) -> Row:
        again = self._sabotage is Sabotage.CLAIM_KEEPS_VERSION and row.version > 0
        version = row.version if again else row.version + 1
        ends = row.ends if len(row.ends) >= version else (*row.ends, OPEN)
        after = row._replace(status="processing", version=version, holder=worker, ends=ends, expired=False, reporter=0)
        return self._changed("claim", row, after._replace(started=version if start else 0))

    def _begin(self, row: Row, version: int) -> Row:
        """A handler starts; the database doesn't see it."""
        if row.began >> version & 1:
            self._broken("X2", f"run {version} executes twice")
        ended = OPEN if row.status == GONE else row.ends[version - 1]
        if ended and ended not in TAKEN_AWAY:
            self._broken("X1", f"run {version} starts although it has been settled ({ended})")
        return row._replace(began=row.began | 1 << version, running=row.running | 1 << version)

    def _finish(self, row: Row, version: int) -> Row:
        """A handler has ended."""
        return row._replace(running=row.running & ~(1 << version))

    def _settle(self, row: Row, worker: int, version: int, to: To) -> tuple[Row, Said]:
        move = SETTLES[to.event]
        if not self._may(move, row, worker, version, Sabotage.SETTLE_ANY_VERSION, Sabotage.SETTLE_ANY_STATUS):
            return row, self._judge(row, worker, version, to)
        if to.event not in ("released", "cancelled") and not (row.began & ~row.running) >> version & 1:
            self._broken("X1", f"run {version} {to.event}, but its handler has not begun and ended")
        retries = row.retries if to.retries is None else to.retries
        charged = row.charged + (to.retries is not None)
        after = self._ended(row, to.event)._replace(status=to.status, retries=retries, charged=charged)
        return self._changed(move, row, after, version), Said(Answer.APPLIED)

    def _judge(self, row: Row, worker: int, version: int, to: To) -> Said:
        if row.status == GONE:
            return Said(judge(version, to.event, None).answer)
        if self._sabotage is Sabotage.JUDGE_BY_STATUS and row.status == to.status:
            return Said(Answer.ALREADY)
        history = [  # like the row's own history: without completions
            {"event": event, "version": run, "claimed_at": 0}
            for run, event in enumerate(row.ends, 1)
            if event not in (OPEN, "completed")
        ]
        status = Status(row.status)
        ended = ended_by(version, status, row.version, history)
        said = judge(version, to.event, Standing(status, row.version, ended, str(row.holder)), str(worker))
        return Said(said.answer, said.status.value if said.status else "")

    def _heartbeat(self, row: Row, worker: int, version: int, started: bool) -> tuple[Row, Said]:
        if not self._may("heartbeat", row, worker, version, Sabotage.BEAT_ANY_VERSION):
            return row, Said("lost")
        after = row._replace(expired=False, started=row.started or (version if started else 0))
        return self._changed("heartbeat", row, after, version), _hold(row)

    def _progress(self, row: Row, worker: int, version: int) -> tuple[Row, Said]:
        if not self._may("progress", row, worker, version, Sabotage.REPORT_ANY_VERSION):
            return row, Said("lost")
        return self._changed("progress", row, row._replace(reporter=version), version), _hold(row)

    # ── Maintenance ──

    def _rescue(self, row: Row, named: bool = False) -> Row:
        """Return the row after a rescue, as Store.move_due writes it. `named`: the rescue names the dead worker, so it
        does not look at the lease."""
        if row.status == "cancel_requested" and self._sabotage is not Sabotage.RESCUE_FORGETS_CANCEL:
            goal, charge = "cancelled", False
        elif not self._counts_as_started(row):
            goal, charge = "pending", False
        elif row.retries >= self._retries:
            goal, charge = "expired", False
        else:
            goal, charge = "pending", True
        if not (row.expired or named):
            self._broken("S10", f"run {row.version} was rescued although its lease had not run out")
        # A run counts as started by its mark, which is written before the handler begins. A worker that dies in between
        # is charged for a handler that never ran.
        if (charge or goal == "expired") and row.started != row.version:
            self._broken("S9", f"run {row.version} was charged, but it had no start mark of its own")
        spared = goal == "pending" and not charge and row.running >> row.version & 1
        after = self._ended(row, "rescued")._replace(
            status=goal,
            retries=row.retries + charge,
            suspect=row.suspect or not named or row.started > 0,
            charged=row.charged + charge,
            spared=row.spared + spared,
            running=row.running & ~(1 << row.version),
        )
        return self._changed("rescue", row, after)

    def _counts_as_started(self, row: Row) -> bool:
        if self._sabotage in (Sabotage.RESCUE_FORGIVES, Sabotage.RESCUE_CHARGES_ALL):
            return self._sabotage is Sabotage.RESCUE_CHARGES_ALL
        return row.started > 0

    def may_rescue(self, row: Row) -> bool:
        looks = self._sabotage is not Sabotage.RESCUE_THE_LIVING
        someone = self._sabotage is not Sabotage.NO_RESCUE
        return row.status in sources("rescue") and (row.expired or not looks) and someone

    def _cancel_timeout(self, row: Row) -> Row | None:
        if row.status not in sources("cancel_timeout"):
            return None
        return self._changed("cancel_timeout", row, self._ended(row, "cancel_timed_out")._replace(status="cancelled"))

    # ── Operators ──

    def _operate(self, row: Row, verb: str) -> Row | None:
        """Return the row after an operator's verb, or None if the verb is refused."""
        if row.status not in sources(verb):
            return None
        if verb == "cancel":
            after = row._replace(status="cancel_requested" if row.status == "processing" else "cancelled")
        elif verb == "requeue":
            version = 0 if self._sabotage is Sabotage.REQUEUE_RESETS_VERSION else row.version
            after = row._replace(
                status="pending", version=version, retries=0, suspect=False, charged=0, spared=0, reporter=0
            )
        else:
            after = row._replace(status=GONE if verb == "delete" else "expired")
        return self._changed(verb, row, after)

    # ── Guards and invariants ──

    def _may(self, move: str, row: Row, worker: int, version: int, *without: Sabotage) -> bool:
        """Return True if MOVES allow the move. The status alone guards a row without a holder. If the worker guarded it
        as well, that guard would hide a mistake in MOVES."""
        any_version = self._sabotage in without and "version" in str(self._sabotage)
        any_status = self._sabotage in without and not any_version
        unfenced = not MOVES[move].fenced or any_version
        ours = unfenced or (row.version == version and row.holder in (worker, NOBODY))
        return ours and (row.status in sources(move) or (any_status and row.status != GONE))

    def _broken(self, invariant: str, text: str) -> None:
        if invariant != self._ignoring:
            raise Broken(invariant, text)

    def _ended(self, row: Row, event: str) -> Row:
        ends = (*row.ends[: row.version - 1], event, *row.ends[row.version :])
        return row._replace(ends=ends, holder=NOBODY, expired=False, started=0)

    def _changed(self, move: str, before: Row, after: Row, writer: int | None = None) -> Row:
        """Check the invariants of a change, and return the new row. All changes pass through here. `writer`: the run
        that makes the change, if a worker makes it."""
        if after.version != before.version + (move == "claim"):
            self._broken("S4", f"{move} turned version {before.version} into {after.version}")
        if before.status in ENDED and after != before and move not in ("requeue", "delete"):
            self._broken("S7", f"{move} changed a job that was {before.status}")
        if after.ends.count("completed") > 1 or (before.status == "completed" and after.status != GONE):
            self._broken("S7", f"{move} followed a completion")
        by_this_run = after.version > 0 and after.ends[after.version - 1] == "completed"
        if after.status != GONE and (after.status == "completed") != by_this_run:
            self._broken("S7", f"{move} made it {after.status}, and its runs ended so: {after.ends}")
        if writer is not None and (writer != before.version or before.status not in _HELD):
            self._broken("S6", f"{move} of run {writer} changed run {before.version}, {before.status}")
        if any(then not in (OPEN, now) for then, now in zip(before.ends, after.ends, strict=False)):
            self._broken("S3", f"{move} ended a run that had ended: {before.ends} became {after.ends}")
        if before.status == "cancel_requested" and after.status not in ("cancel_requested", "completed", "cancelled"):
            self._broken("S3", f"{move} made a job {after.status} for which a cancel was requested")
        if after.status != GONE and after.status not in {status.value for status in MOVES[move].targets}:
            self._broken("S3", f"{move} made it {after.status}")
        if after.retries > self._retries or after.retries != after.charged:
            self._broken("S9", f"{after.retries} of {self._retries} retries, but {after.charged} runs were charged")
        if after.spared > 1:
            self._broken("S9", "a second crash was not charged")
        if after.reporter not in (0, after.version):
            self._broken("S6", f"run {after.reporter} reported as run {after.version}")
        # Forget what can't matter any more, so that more states are equal.
        return Row(GONE, ends=after.ends, began=after.began) if after.status == GONE else after


@cache
def sources(move: str) -> frozenset[str]:
    return frozenset(status.value for status in MOVES[move].sources)


def _hold(row: Row) -> Said:
    return Said("cancel" if row.status == "cancel_requested" else "kept")
