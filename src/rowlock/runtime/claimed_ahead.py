"""ClaimedAhead: runs that are claimed and not started, in the order in which they are to start.

A run whose crash must be charged (see Run.needs_mark) may not start before the database has its start mark. Marks are
written right before the start, for at most as many runs as there are slots. If the worker dies, no more jobs than that
are charged for a run that never began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime

from rowlock.runtime.run import Run


class ClaimedAhead:
    """Belongs to the worker's event loop. `startable`: runs that may start now. It is always the same deque, because
    the worker takes runs from it."""

    def __init__(self) -> None:
        self.startable: deque[Run] = deque()
        self.unmarked: deque[Run] = deque()  # need a start mark that was not asked for yet
        self._marking: list[Run] = []  # their start marks are being written
        self.wants_marks = False  # the last jobs that were claimed ahead needed start marks

    def __len__(self) -> int:
        return len(self.startable) + len(self.unmarked) + len(self._marking)

    def __iter__(self) -> Iterator[Run]:
        """Yield all runs; those that may start come first."""
        return iter((*self.startable, *self._marking, *self.unmarked))

    @property
    def waits_for_marks(self) -> bool:
        return bool(self._marking or self.unmarked)

    def add(self, runs: list[Run]) -> None:
        if unmarked := [run for run in runs if run.needs_mark]:
            self.wants_marks = True
            _merge(self.unmarked, unmarked)
            runs = [run for run in runs if not run.needs_mark]
        elif runs and not runs[0].marked:
            self.wants_marks = False
        _merge(self.startable, runs)

    def drop(self, runs: Iterable[Run]) -> None:
        """Remove runs that will not start. `marked` leaves out those whose mark is being written: they are
        concluded."""
        gone = {id(run) for run in runs}
        for waiting in (self.startable, self.unmarked):
            kept = [run for run in waiting if id(run) not in gone]
            waiting.clear()
            waiting.extend(kept)

    def to_mark(self, free: int) -> list[Run]:
        """Return the runs whose start marks are to be written now, for so many free slots. Call `marked` after that.

        Empty while other marks are being written. To write one half while the other half runs was tried: with ten slots
        it is a quarter slower, because there are twice as many statements."""
        room = free - len(self.startable)
        if self._marking or room <= 0:
            return []
        self._marking = [self.unmarked.popleft() for _ in range(min(room, len(self.unmarked)))]
        return list(self._marking)

    def marked(self) -> None:
        """Record that the runs of `to_mark` have their start marks, or are concluded without them."""
        runs, self._marking = self._marking, []
        _merge(self.startable, [run for run in runs if not run.concluded])


def _merge(waiting: deque[Run], runs: list[Run]) -> None:
    """Add the runs of a claim, which come in order. Sort only if some are more urgent than those that wait."""
    in_order = not waiting or not runs or _turn(waiting[-1]) <= _turn(runs[0])
    waiting.extend(runs)
    if not in_order:
        runs = sorted(waiting, key=_turn)
        waiting.clear()
        waiting.extend(runs)


def _turn(run: Run) -> tuple[int, datetime, str]:
    return -run.job.priority, run.job.run_at, run.job.id
