"""Slots: the jobs that a worker holds, and its room for more. Worker, ClaimSettle, Executor and HeartbeatThread share
it.

It belongs to the worker's event loop. Comments name what the heartbeat thread reads or writes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from rowlock.core.job import Job, Lane
from rowlock.runtime.claimed_ahead import ClaimedAhead
from rowlock.runtime.run import Run
from rowlock.runtime.running_board import RunningBoard
from rowlock.runtime.settings import WorkerSettings
from rowlock.stores.base import Claimed
from rowlock.tasks import Task

AHEAD_BYTES = 16 << 20  # of payload that one claim brings, and that is claimed ahead, about
_MOST_AHEAD = 1000  # jobs claimed ahead, however short they are: two batches


class Slots:
    def __init__(
        self, settings: WorkerSettings, name: str, lanes: Mapping[Lane, Task[..., Any]], board: RunningBoard
    ) -> None:
        self.settings = settings
        self.name = name
        self.lanes = lanes
        self._tasks = {(lane.topic, lane.template_version): task for lane, task in lanes.items()}
        self.running_board = board
        self.loop: asyncio.AbstractEventLoop
        self.changed = asyncio.Event()  # the claim loop looks again at what there is to do
        self.stopping = False
        self.runs: dict[tuple[str, int], Run] = {}  # all that are not settled yet; the heartbeat thread reads it
        self.ahead = ClaimedAhead()
        self.running = 0  # slots in use
        self.leaked = 0  # slots whose handlers can't be stopped, although their runs are settled
        self.chaining = False  # handlers end one after the other at this moment, without waiting for anything
        self.marking = 0.002  # seconds that it takes to write start marks
        self._mean: float | None = None  # seconds that a handler runs
        self._size = 0.0  # bytes of a payload
        self._last_end = 0.0  # when a handler last ended
        # Runs whose claim has not been answered in this loop. The heartbeat thread has renewed them, and writes these.
        self.renewed_unheard: dict[tuple[str, int], float] = {}
        self.cancelled_unheard: frozenset[tuple[str, int]] = frozenset()
        # The database's time when the monotonic clock was 0. The heartbeat thread writes it.
        self.clock_zero = datetime.now(UTC) - timedelta(seconds=time.monotonic())

    # ── Room ──

    @property
    def usable(self) -> int:
        return max(0, self.settings.concurrency - self.leaked)

    def free(self) -> int:
        """Return the number of slots for which there is no job."""
        return self.usable - self.running - len(self.ahead)

    def room(self) -> int:
        """Return how many more jobs this worker may hold."""
        return 0 if self.stopping else self.free() + self.lookahead()

    def lookahead(self) -> int:
        """Return how many jobs to claim ahead, so that slots don't wait for round trips. They are worth a tenth of a
        second, by the measured duration of handlers; none if handlers take longer than that."""
        ahead = self.settings.ahead
        if self._mean is None or self._mean >= ahead:
            return 0
        if self.running >= self.usable and time.monotonic() - self._last_end > ahead:
            return 0  # no handler has ended for a while: these take longer than the measured ones
        seconds = max(self._mean, self.marking if self.ahead.wants_marks else 1e-6)
        by_time = ahead * self.settings.concurrency / seconds
        return min(_MOST_AHEAD, int(by_time), int(AHEAD_BYTES / max(self._size, 1.0)))

    def weigh(self, claimed: Claimed) -> None:
        """Measure the size of payloads. A claim that brings larger ones counts at once."""
        if claimed.jobs:
            size = claimed.size / len(claimed.jobs)
            self._size = max(size, 0.9 * self._size + 0.1 * size)

    # ── Runs, in the order of their life ──

    def hold(
        self,
        jobs: Iterable[Job],
        *,
        lease: float,
        marked: bool,
        sent: float,
        said: Callable[[Run], None],
        heard: Callable[[Run], None],
    ) -> tuple[list[Run], list[Run]]:
        """Return the runs of these jobs, and older runs of the same versions, if there are any. `sent`: when the claim
        was sent. `marked`: the claim was the start mark as well. `said`, `heard`: see Run."""
        held, tasks, renewed = self.runs, self._tasks, self.renewed_unheard
        older = []
        runs = [
            Run(
                job,
                tasks[job.topic, job.template_version],
                lease=lease,
                claimed=sent,
                marked=marked,
                said=said,
                heard=heard,
            )
            for job in jobs
        ]
        for run in runs:
            if renewed:
                run.renewed = renewed.get(run.key, sent)
            if (before := held.get(run.key)) is not None:
                older.append(before)
            held[run.key] = run
        return runs, older

    def begin(self, run: Run) -> None:
        """Put the run on the running board, right before its handler is called.

        It stays there until its settlement is acknowledged: after a handler has returned, it may still kill this
        process. It is not put there when it gets its slot: if another handler kills the process before this one was
        called, this one is not to blame.
        """
        run.slot = self.running_board.put(run.job.id, run.job.version, apart=run.kind == "process")

    def ended(self, run: Run) -> None:
        """Free the slot of a run whose handler has ended, or was left behind."""
        self.running -= 1
        if run.kind == "process" and run.slot is not None:
            self.running_board.rejoin(run.slot)
        assert run.ran is not None  # noqa: S101 - narrows the type
        self._last_end = run.began + run.ran
        self._mean = run.ran if self._mean is None else 0.9 * self._mean + 0.1 * run.ran

    def clear(self, run: Run) -> None:
        """Take the run off the running board: if this process dies from now on, the run is not charged for it."""
        if run.slot is not None:
            self.running_board.clear(run.slot)
            run.slot = None
        if run.when_settled is not None:
            run.when_settled()
            run.when_settled = None

    def forget(self, run: Run) -> None:
        """Forget a run that is settled, or was lost."""
        run.concluded = True
        self.clear(run)
        if self.runs.get(run.key) is run:  # and not a newer one in its place
            del self.runs[run.key]
        self.changed.set()

    # ── Clock ──

    def now(self) -> datetime:
        """Return the database's time. It is counted with the monotonic clock: this machine's clock may be set at any
        moment."""
        return self.clock_zero + timedelta(seconds=time.monotonic())
