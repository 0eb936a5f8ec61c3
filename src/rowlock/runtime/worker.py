"""Worker: fills its slots with jobs until it is told to stop.

It puts the parts together: ClaimSettle talks to the database, Executor runs handlers, HeartbeatThread renews leases
while a handler blocks the event loop. They share Slots. Everything here belongs to the worker's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rowlock.client.connections import Stores
from rowlock.client.schedules import Schedules
from rowlock.context import Host, Interruption
from rowlock.core.job import Job, Lane
from rowlock.core.lifecycle import Outcome, Released
from rowlock.errors import AccessDenied, InvalidInput
from rowlock.runtime.claim_settle import ClaimSettle
from rowlock.runtime.executor import Executor
from rowlock.runtime.handlers import RunMiddleware
from rowlock.runtime.heartbeat import HeartbeatThread, Replace
from rowlock.runtime.periodic import is_set_within
from rowlock.runtime.run import Run
from rowlock.runtime.running_board import RunningBoard
from rowlock.runtime.settings import WorkerSettings
from rowlock.runtime.slots import Slots
from rowlock.tasks import Task

log = logging.getLogger("rowlock")


def _name_job(record: logging.LogRecord) -> bool:
    """Add the job as fields to a log line that names a run, as `extra=` would, for JSON logs (rowlock.logs). Every part
    of the runtime logs through it, and a line that is not logged costs nothing."""
    for one in record.args if isinstance(record.args, tuple) else ():
        if isinstance(one, Run):
            record.job_id, record.topic, record.version = one.job.id, one.job.topic, one.job.version
            record.worker = one.job.locked_by
    return True


log.addFilter(_name_job)

_STALE = 1.0  # seconds after which a job that was claimed ahead and not started is given back
_WARNING = 2.0  # seconds before the end of the grace at which handlers are told that the worker stops
_LAST_SETTLES = 0.5  # seconds of the grace, at most, that are kept for the last settlements …
_PARTING = 0.3  # … and seconds after it


class Worker:
    """`publish`: stores the definitions of the tasks. `schedules`: makes jobs at their times. `app`:
    "module:attribute", by which a child process finds the tasks; None: by the modules of their functions. `replace`:
    asks for a new process in place of this one, because too many handlers can't be stopped."""

    def __init__(
        self,
        settings: WorkerSettings,
        lanes: Mapping[Lane, Task[..., Any]],
        middleware: Sequence[RunMiddleware],
        host: Host,
        stores: Stores,
        publish: Callable[[], Awaitable[object]],
        schedules: Schedules,
        *,
        version: str,
        app: str | None = None,
        board: RunningBoard | None = None,
        replace: Replace | None = None,
    ) -> None:
        self.settings = settings
        self.pid = os.getpid()
        name = f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"
        self.slots = Slots(settings, name, _chosen(lanes, settings.topics, app), board or RunningBoard.private())
        self._ahead = self.slots.ahead
        self._startable = self._ahead.startable
        self._replace = replace
        self._version = version
        self._middleware = middleware
        self._host = host
        self._stores = stores
        self._publish = publish
        self._schedules = schedules
        self._app = app
        self._asks = False  # start marks are about to be asked for
        self._life = asyncio.Lock()
        self.started = False
        self._ending: asyncio.Task[None] | None = None
        self._complained = False

    # ── Life ──

    async def start(self) -> None:
        """Connect, then begin to work. Raise what keeps it from connecting."""
        self.slots.loop = asyncio.get_running_loop()
        async with self._life:
            await self._start()

    async def _start(self) -> None:
        store = (await self._stores.handle()).store  # raises what keeps it from connecting
        try:
            await self._publish()
        except AccessDenied as error:
            log.warning("worker %s: its templates are not published: %s", self.name, error)
        self.claim_settle = ClaimSettle(self.slots, store, self._take, self._marked)
        self._executor = Executor(
            self.slots,
            self._host,
            self._middleware,
            self._done,
            self._fill,
            self._following,
            lambda: self.claim_settle.abandoned,
            app=self._app,
        )
        self._heartbeat_thread = HeartbeatThread(
            self.slots,
            self._stores,
            self._schedules,
            version=self._version,
            nudge=self.nudge,
            interrupted=self._interrupted,
            give_back=self._give_back_ahead,
            look_for_lost_claims=self.claim_settle.look_for_lost_claims,
            replace=self._replace,
        )
        await self._heartbeat_thread.start()
        self.claim_settle.start()
        self.started = True
        self._executor.warm_up(self.slots.lanes.values())

    async def stop(self, grace: float | None = None) -> None:
        """Claim no more jobs, let running handlers end within the grace, give back the rest. Costs no job a retry."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._stop(grace))
        await asyncio.shield(self._ending)

    async def _stop(self, grace: float | None) -> None:
        async with self._life:  # a start that is under way ends first
            if self.started:
                await self._wind_down(grace)

    async def _wind_down(self, grace: float | None) -> None:
        grace = self.settings.grace if grace is None else grace
        end = time.monotonic() + grace
        deadline = end - min(_LAST_SETTLES, grace / 8)
        runs = self.slots.runs
        self.slots.stopping = True
        self._give_back(list(self._ahead), "shutdown")
        self.slots.changed.set()
        await self._quiet(deadline - min(_WARNING, (deadline - time.monotonic()) / 5))
        for run in list(runs.values()):
            self._executor.interrupt(run, Interruption.STOPPING)  # a handler that asks has a moment to end by itself
        await self._quiet(deadline)
        for run in list(runs.values()):
            self._executor.end(run)
        await self._quiet(max(end, time.monotonic()) + _PARTING)
        await self.claim_settle.stop()
        if runs:
            log.warning("worker %s leaves %d jobs to be rescued: they could not be settled", self.name, len(runs))
        await asyncio.gather(self._executor.close(), self._heartbeat_thread.stop(end - time.monotonic()))

    async def _quiet(self, until: float) -> None:
        """Wait until the worker holds no job any more, or until then, by time.monotonic()."""
        await is_set_within(self.claim_settle.quiet, until - time.monotonic())

    def evacuate(self, seconds: float) -> None:
        """Settle everything before this process ends. Another thread calls this, because the event loop is stuck."""
        self._heartbeat_thread.evacuate_from(seconds)

    @property
    def has_left_jobs(self) -> bool:
        """After `stop`: True if it holds jobs that the supervisor could give back at once. Not if the database is
        away."""
        return (bool(self.slots.runs) or self.claim_settle.claim_lost) and not self.claim_settle.in_trouble

    @property
    def name(self) -> str:
        return self.slots.name

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.slots.loop

    @property
    def running(self) -> int:
        return self.slots.running

    def nudge(self) -> None:
        """Look again for work, and for slots for it. Any thread may call it."""
        with suppress(RuntimeError):  # the loop has been closed
            self.slots.loop.call_soon_threadsafe(self._nudged)

    def _nudged(self) -> None:
        self._fill()  # there may be more slots now, for jobs that were claimed ahead
        self.claim_settle.wake()

    # ── From the claim to the handler ──

    def _take(self, jobs: Iterable[Job], *, lease: float, marked: bool, sent: float) -> None:
        """Hold the jobs of a claim, and start them when it is their turn."""
        said = self._heartbeat_thread.said
        runs, older = self.slots.hold(
            jobs, lease=lease, marked=marked, sent=sent, said=said, heard=self._heard_of_cancel
        )
        for run in older:
            self._replaced(run)
        self._ahead.add(runs)
        if cancelled := self.slots.cancelled_unheard:
            for run in runs:
                if run.key in cancelled and not run.undoes and run.interrupt(Interruption.CANCELLED):
                    self._interrupted(run)
        if self.slots.stopping:  # the claim was sent before the stop
            self._give_back(runs, "shutdown")
        self._fill()

    def _replaced(self, run: Run) -> None:
        """Interrupt an older run. The database has lost its claim, as after a failover, and has reused its version."""
        log.warning("%r has been claimed again: the outcome of the older run is dropped", run)
        if run.interrupt(Interruption.LOST):
            self._interrupted(run)

    def _marked(self) -> None:
        """Go on after the start marks that were asked for are written, or their runs are concluded."""
        self._ahead.marked()
        if self.slots.stopping:
            self._give_back(list(self._ahead), "shutdown")
        self._fill()

    def _fill(self) -> None:
        """Start runs while there are slots for them."""
        waiting = self._startable
        while waiting and not self._executor.comes_to(waiting[0]) and (run := self._following()) is not None:
            self._executor.start(run)
        if self._ahead.unmarked:
            self._ask_for_marks()
        self.slots.changed.set()

    def _ask_for_marks(self) -> None:
        """Ask at the end of this turn of the event loop: short handlers have ended by then, and free slots for more."""
        if not self._asks:
            self._asks = True
            self.slots.loop.call_soon(self._ask_for_marks_now)

    def _ask_for_marks_now(self) -> None:
        self._asks = False
        # A run that has its slot may not have begun either: a child process takes a while to start.
        if runs := self._ahead.to_mark(self.slots.usable - self.slots.running - self.claim_settle.starting):
            self.claim_settle.mark(runs)

    def _following(self) -> Run | None:
        """Return the run that is to start next and give it a slot; None if there is no run, or no slot."""
        slots = self.slots
        usable = self.settings.concurrency - slots.leaked
        while self._startable and slots.running < usable:
            run = self._startable.popleft()
            if run.concluded or run.interruption is not None:
                continue
            if run.lease_is_over:  # this process was held up
                self.claim_settle.conclude(run, Released("its lease ran out before it started"))
                continue
            slots.running += 1
            return run
        return None

    # ── From the handler to the settlement ──

    def _done(self, run: Run, outcome: Outcome | None) -> None:
        """Conclude the run of a handler that has ended, or was left behind."""
        slots = self.slots
        slots.ended(run)
        if outcome is None:
            slots.forget(run)
        else:
            self.claim_settle.conclude(run, outcome)
        if slots.leaked:
            self._check_leaks()
        if self._startable and not self._executor.comes_to(self._startable[0]):
            self._fill()
        elif self._ahead.unmarked:
            self._ask_for_marks()

    def _check_leaks(self) -> None:
        leaked = self.slots.leaked
        if self._complained or self.slots.stopping or 2 * leaked < self.settings.concurrency:
            return
        self._complained = True
        log.error("worker %s: %d handlers can't be stopped and keep their slots", self.name, leaked)
        if self._replace is not None:
            self._replace(at_once=False)

    def _heard_of_cancel(self, run: Run) -> None:
        """Record from any thread that the handler has heard of a cancel by itself."""
        with suppress(RuntimeError):  # the loop has been closed
            self.slots.loop.call_soon_threadsafe(self._interrupted, run)

    def _interrupted(self, run: Run) -> None:
        """Make sure that an interrupted run ends. Called after run.interrupt()."""
        if run.began:
            self._executor.enforce(run)
        elif not run.concluded:  # claimed ahead
            self._ahead.drop([run])
            if run.interruption is Interruption.LOST:
                self.slots.forget(run)
            else:
                self.claim_settle.conclude(run, Released("cancelled before it started"))

    def _give_back_ahead(self, paused: set[str]) -> None:
        """Give back jobs that were claimed ahead: those that wait for too long, and those of paused topics."""
        now = time.monotonic()
        waiting = list(self._ahead)
        without_slot = waiting[max(0, self.slots.usable - self.slots.running) :]  # the other runs are about to start
        self._give_back([run for run in waiting if run.job.topic in paused], "paused")
        late = [run for run in without_slot if now - run.claimed > _STALE and run.job.topic not in paused]
        self._give_back(late, "late")

    def _give_back(self, runs: list[Run], reason: str) -> None:
        if runs:
            self._ahead.drop(runs)
            for run in runs:
                self.claim_settle.conclude(run, Released(reason))


def _chosen(
    lanes: Mapping[Lane, Task[..., Any]], topics: tuple[str, ...] | None, app: str | None
) -> dict[Lane, Task[..., Any]]:
    """Return the lanes of these topics; None: all lanes. External topics are left out: remote workers run them."""
    if not lanes:
        raise InvalidInput("tasks", "none", _no_tasks(app))
    external = {lane.topic for lane, task in lanes.items() if task.is_external}
    lanes = {lane: task for lane, task in lanes.items() if not task.is_external}
    if not lanes:
        raise InvalidInput("tasks", "none", _external(sorted(external)))
    if topics is None:
        return dict(lanes)
    if elsewhere := sorted(external.intersection(topics) - {lane.topic for lane in lanes}):
        raise InvalidInput("topics", "external", _external(elsewhere))
    handled = {lane.topic for lane in lanes}
    if unknown := sorted(set(topics) - handled):
        known = ", ".join(sorted(handled))
        raise InvalidInput("topics", "unknown", f"no handler for {', '.join(unknown)}; there are handlers for: {known}")
    return {lane: task for lane, task in lanes.items() if lane.topic in topics}


def _external(topics: Sequence[str]) -> str:
    are = "is an external topic" if len(topics) == 1 else "are external topics"
    return f"{', '.join(topics)} {are}: only workers that speak the worker protocol run its jobs, not this one"


def _no_tasks(app: str | None) -> str:
    """Return the error message: how to get tasks. A decorator runs when its module is imported."""
    if app is None:
        return "there is nothing to run. Import the modules that have the tasks (@jobs.task) before start()"
    module = app.partition(":")[0]
    return (
        f"there is nothing to run: importing {module} registers no task. Import the modules that have the tasks "
        f"(@jobs.task) in {module}, below jobs = Jobs(…). Or name a module that does: rowlock worker MODULE:jobs"
    )
