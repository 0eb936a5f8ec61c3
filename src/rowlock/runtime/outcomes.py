"""Outcomes: decide what the end of a handler means for its job."""

from __future__ import annotations

import logging
import random
from datetime import UTC, datetime

from rowlock.core.lifecycle import Completed, CutOff, Failed, Outcome, Released, Transition, Waits, decide
from rowlock.runtime.run import Run
from rowlock.runtime.slots import Slots

log = logging.getLogger("rowlock")

_FREE_OUTAGES = 10  # runs of a job in a row that may lose the database without costing a retry
_MOST_CUT_OFF = 10_000  # jobs for which the worker counts such runs
UNDO_LATER = Waits("", None, 0, undoes=True)
_ANY_TIME = datetime.min.replace(tzinfo=UTC)


def undo_later(run: Run, outcome: Outcome) -> Outcome:
    """Return the outcome. If the run was to undo something and ended before it came to that, return UNDO_LATER: another
    run undoes it. A worker that stops must not turn an undo into a plain cancel. The grace of the cancel bounds it."""
    return UNDO_LATER if run.undoes and isinstance(outcome, Released | CutOff) else outcome


class Outcomes:
    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.cut_off: dict[str, int] = {}  # job → how many of its runs in a row have lost the database

    def bound(self, run: Run, outcome: Outcome) -> Outcome:
        """Return the outcome; for a job whose runs lose the database again and again, a failure. A handler whose own
        statement takes the database down must become a dead letter, too."""
        if not isinstance(outcome, CutOff):
            self.cut_off.pop(run.job.id, None)
            return outcome
        if len(self.cut_off) >= _MOST_CUT_OFF:
            self.cut_off.clear()
        times = self.cut_off[run.job.id] = self.cut_off.get(run.job.id, 0) + 1
        return outcome if times <= _FREE_OUTAGES else Failed(f"The database was away {times} times: {outcome.error}")

    def decide(self, run: Run, outcome: Outcome) -> Transition:
        outcome = undo_later(run, outcome)
        now, chance = _ANY_TIME, 0.0
        if not isinstance(outcome, Completed):  # a completion needs neither time nor jitter
            now, chance = self._slots.now(), random.random()  # noqa: S311 - jitter
        try:
            return decide(run.job, outcome, now, retry=run.task.retry, chance=chance, ran=run.ran)
        except Exception as error:  # whatever the handler has put into its outcome, the job must come to an end
            log.exception("%r: its outcome makes no sense", run)
            return decide(run.job, Failed(f"The outcome makes no sense: {error!r:.200}", final=True), now, ran=run.ran)
