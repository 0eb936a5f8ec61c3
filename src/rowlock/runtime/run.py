"""Run: one job that this worker holds, from the claim to the settled outcome."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from msgspec.structs import replace

from rowlock.context import Interruption
from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Outcome
from rowlock.core.steps import StepMark
from rowlock.stores.base import MAX_LOG_LINES, Hold, NewLine, Progress, Store
from rowlock.tasks import Kind, Task

_MARK_AFTER = 0.25  # seconds that a step runs before the database hears of it
_saying = threading.Lock()  # handlers report from any thread, the heartbeat thread collects; held for a moment


class Run:
    """Implements rowlock.context.Link. It belongs to the event loop; any thread may interrupt it, and report for it."""

    # Class attributes, because most runs end before more than a few of these were changed: __init__ sets fewer.
    hasty = False  # the handler asked for a heartbeat
    began = 0.0  # 0: not started
    ran: float | None = None
    interruption: Interruption | None = None
    looks = False
    completed = False
    concluded = False  # its outcome is known; the handler may still run, if it can't be stopped
    outcome: Outcome | None = None
    refusals = 0  # how often the database has refused to settle it
    fiber: asyncio.Task[None] | None = None
    deadline = 0  # see Deadlines
    slot: int | None = None  # on the running board
    when_settled: Callable[[], None] | None = None  # called when it is settled or lost
    waited = False  # its handler has waited for something
    spoke = False  # the handler has reported something at some time
    writing: Future[None] | None = None  # its reports are on their way to the database
    _watcher: Callable[[Interruption], None] | None = None
    _told = False
    _percent: float | None = None
    _stage: str | None = None
    _text: str | None = None
    _lines: Sequence[tuple[float, str, str]] = ()
    _marks: dict[tuple[str, int], tuple[float, StepMark]] | None = None  # of steps, not written yet; since when
    no_shield = False  # it must end, whatever it does
    is_cut_short = False  # the worker stops, and has no more time for it
    _shields = 0  # steps that run and can't be cancelled
    _when_open: Callable[[], None] | None = None  # called when the last one has ended
    is_undo = False  # the job was cancelled while it waited: this run is to undo what it has done

    def __init__(
        self,
        job: Job,
        task: Task[..., Any],
        *,
        lease: float,
        claimed: float,
        marked: bool,
        said: Callable[[Run], None],
        heard: Callable[[Run], None],
    ) -> None:
        """`said`: called when there is something to `collect`, once until it is collected. `heard`: called when the
        handler has heard of a cancel by itself. Both are called from any thread."""
        self.job = job
        self.task = task
        self.key = (job.id, job.version)
        self.kind: Kind = task.kind  # how it is run: a suspect as "process", whatever its task says
        self.lease = lease
        self.claimed = claimed  # when the claim was sent, by time.monotonic()
        self.renewed = claimed  # … and the last renewal
        self.marked = marked  # the database knows that the handler has started
        self._said = said
        self._heard = heard
        if job.status is Status.CANCEL_REQUESTED:
            self.is_undo = True

    def __repr__(self) -> str:
        return f"<run {self.job.version} of {self.job.topic} {self.job.id}>"

    @property
    def is_suspect(self) -> bool:
        """True if a worker has died while it held this job: the job may be the cause."""
        return self.job.crashes > 0

    @property
    def needs_mark(self) -> bool:
        """True if the start mark must be written before the handler starts. The next crash must be charged, because the
        job is a suspect, or has no retry left."""
        return not self.marked and (self.is_suspect or self.job.retries >= self.job.max_retries)

    @property
    def overdue(self) -> float:
        """Return the seconds since the timeout was over; negative before that, and while the handler does not run."""
        if not self.began or self.concluded:
            return -1.0
        return time.monotonic() - self.began - self.job.timeout

    @property
    def lease_is_over(self) -> bool:
        """True if the lease has expired: another worker may have the job by now."""
        return time.monotonic() - self.renewed >= self.lease

    @property
    def undoes(self) -> bool:
        """True if the job was cancelled while it waited, and the handler has not come to that wait yet. Until then no
        cancel may interrupt the handler: it replays its steps, to find out what it has to undo."""
        return self.is_undo and self.interruption is not Interruption.CANCELLED

    # ── Interruption ──

    def interrupt(self, why: Interruption) -> bool:
        """Tell the run to end. Any thread may call it. Return False if the run was to end anyway."""
        if self.interruption is Interruption.LOST or (self.interruption is not None and why is not Interruption.LOST):
            return False
        self.interruption = why
        if why is Interruption.CANCELLED:
            self.job = replace(self.job, status=Status.CANCEL_REQUESTED)
        return True

    def hear_cancel(self) -> None:
        self.looks = True  # the handler gets an error that it can catch
        if self.interrupt(Interruption.CANCELLED):
            self._heard(self)

    def announce(self) -> None:
        """Tell the child process. Called in the event loop, after `interrupt`."""
        if self._watcher is not None and self.interruption is not None:
            self._watcher(self.interruption)

    def watch(self, callback: Callable[[Interruption], None]) -> None:
        self._watcher = callback
        self.announce()

    # ── Steps ──

    def shield(self, change: int) -> None:
        with _saying:
            self._shields += change
            if self._shields:
                return
            when_open, self._when_open = self._when_open, None
        if when_open is not None:
            when_open()

    def is_shielded(self, then: Callable[[], None]) -> bool:
        """True if a step runs that a cancel must not end. `then` is called when it has ended, from any thread."""
        if self.interruption is not Interruption.CANCELLED or self.no_shield:
            return False
        with _saying:
            if self._shields:
                self._when_open = then
            return self._shields > 0

    def mark(self, mark: StepMark) -> None:
        with _saying:
            if self._marks is None:
                self._marks = {}
            self._marks[mark.name, mark.n] = (time.monotonic(), mark)
        self.spoke = True  # not _tell: the mark of a short step is dropped before it is written

    def unmark(self, name: str, n: int) -> None:
        with _saying:
            if self._marks:
                self._marks.pop((name, n), None)

    def has_old_marks(self, now: float) -> bool:
        """True if a step has run for a while and its mark is not written."""
        if not self._marks:
            return False
        with _saying:
            return any(now - since > _MARK_AFTER for since, _ in self._marks.values())

    def collect_marks(self) -> list[StepMark]:
        """Return the marks that are not written yet, once. If they can't be written they are lost: they only
        show operators what the run does."""
        if not self._marks:
            return []
        with _saying:
            marks, self._marks = self._marks, None
        now = time.monotonic()
        return [replace(mark, age=mark.age + now - since) for since, mark in marks.values()]

    # ── Progress and logs ──

    def report(self, percent: float | None, stage: str | None, message: str | None) -> None:
        with _saying:
            self._percent = self._percent if percent is None else percent
            self._stage = self._stage if stage is None else stage
            self._text = self._text if message is None else message
        self._tell()

    def log(self, level: str, text: str) -> None:
        with _saying:
            if not isinstance(self._lines, deque):
                self._lines = deque(maxlen=2 * MAX_LOG_LINES)  # faster than they can be written: the oldest get lost
            self._lines.append((time.monotonic(), level, text[: 1 << 16]))
        self._tell()

    def beat(self) -> None:
        self.hasty = True
        self._tell()

    def _tell(self) -> None:
        self.spoke = True
        if not self._told:
            self._told = True
            self._said(self)

    @property
    def has_said(self) -> bool:
        """True if there are reports that are not written yet."""
        with _saying:  # `collect` takes them out before `writing` is set
            said = self._percent is not None or self._stage is not None or self._text is not None
            return said or bool(self._lines) or bool(self._marks) or self.writing is not None

    def collect(self) -> Progress | None:
        """Return what was reported since the last call, None if nothing was. Then call `written`: before that, every
        further call returns None."""
        with _saying:
            self._told = False
            if self.writing is not None:
                return None
            said = (self._percent, self._stage, self._text)
            lines, self._lines = self._lines, ()
            self._percent = self._stage = self._text = None
            if not lines and said == (None, None, None):
                return None
            self.writing = Future()
        now = time.monotonic()
        aged = tuple(NewLine(max(0.0, now - at), level, text) for at, level, text in lines)
        return Progress(self.job.id, self.job.version, *said, aged, self.job.locked_by)

    def written(self, report: Progress, *, kept: bool) -> None:
        """Record that the report was written. `kept` False: it was not, so it is put back, below newer reports."""
        now = time.monotonic()
        writing = self.writing
        with _saying:
            self.writing = None
            if not kept:
                self._put_back(report, now)
        if writing is not None:
            writing.set_result(None)

    def _put_back(self, report: Progress, now: float) -> None:
        self._percent = report.percent if self._percent is None else self._percent
        self._stage = report.stage if self._stage is None else self._stage
        self._text = report.message if self._text is None else self._text
        lines = [(now - line.age, line.level, line.text) for line in report.lines]
        self._lines = deque([*lines, *self._lines], maxlen=2 * MAX_LOG_LINES)


async def write_reports(store: Store, runs: Iterable[Run]) -> dict[Run, Hold]:
    """Write progress and log lines, guarded by version and worker like every write of a run.

    Return what the database answers for each run that had something to write. Reports that are not written stay with
    their run: after an error all of them, else those of locked jobs (UNSEEN)."""
    runs = list(runs)
    if marks := [mark for run in runs for mark in run.collect_marks()]:
        await store.checkpoint(marks)
    said = {run: report for run in runs if (report := run.collect()) is not None}
    if not said:
        return {}
    holds: list[Hold] = []
    try:
        holds = await store.progress(list(said.values()))
    finally:
        answers = dict(zip(said, holds, strict=True)) if holds else {}
        for run, report in said.items():
            run.written(report, kept=answers.get(run, Hold.UNSEEN) is not Hold.UNSEEN)
    return answers
