"""Worker: fills its slots with jobs, until it is told to stop.

Rounds talk to the database, the executor runs handlers, the keeper does what must go on while a handler blocks the
event loop. Everything here belongs to that loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from rowlock.client.connections import Stores
from rowlock.context import Host, Interruption
from rowlock.core.job import Job
from rowlock.core.lifecycle import Completed, CutOff, Failed, Outcome, Released, Transition, decide
from rowlock.errors import InvalidInput
from rowlock.runtime.ahead import Ahead
from rowlock.runtime.board import Board
from rowlock.runtime.executor import Executor
from rowlock.runtime.handlers import RunMiddleware
from rowlock.runtime.keeper import Keeper
from rowlock.runtime.rounds import AHEAD_BYTES, Rounds
from rowlock.runtime.run import Run
from rowlock.runtime.settings import WorkerSettings
from rowlock.stores.base import Claimed
from rowlock.tasks import Task

log = logging.getLogger("rowlock")


def _name_job(record: logging.LogRecord) -> bool:
    """A line about a run carries its job as fields, for logs that machines read (rowlock.logs): as `extra=` would, but
    for whatever part of the runtime logs it, and only if it is logged at all."""
    for one in record.args if isinstance(record.args, tuple) else ():
        if isinstance(one, Run):
            record.job_id, record.topic, record.version = one.job.id, one.job.topic, one.job.version
            record.worker = one.job.locked_by
    return True


log.addFilter(_name_job)

_MOST_AHEAD = 1000  # jobs claimed ahead, however short they are: two batches
_STALE = 1.0  # seconds after which a job that was claimed ahead and not started is given back
_WARNING = 2.0  # seconds before the grace ends at which handlers are told
_FREE_OUTAGES = 10  # runs of a job in a row that may be cut off from the database for nothing
_MOST_CUT_OFF = 10_000  # jobs of which that is known
_ANY_TIME = datetime.min.replace(tzinfo=UTC)
_LAST_SETTLES = 0.5  # seconds of the grace, at most, that are kept for the last settlements …
_PARTING = 0.3  # … and seconds after it


class Replace(Protocol):
    def __call__(self, *, at_once: bool) -> None:
        """`at_once`: the event loop is stuck, and everything has been settled."""


class Worker:
    """`app`: how a child process finds the tasks, "module:attribute"; None: by the modules of their functions.
    `replace`: asks for a new process in place of this one, because too many handlers can't be stopped."""

    def __init__(
        self,
        settings: WorkerSettings,
        tasks: Mapping[str, Task[..., Any]],
        middleware: Sequence[RunMiddleware],
        host: Host,
        stores: Stores,
        *,
        version: str,
        app: str | None = None,
        board: Board | None = None,
        replace: Replace | None = None,
    ) -> None:
        self.settings = settings
        self.pid = os.getpid()
        self.name = f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"
        self.tasks = _chosen(tasks, settings.topics, app)
        self.runs: dict[tuple[str, int], Run] = {}  # all that we hold, also what has finished and is not settled yet
        # Runs of claims that this loop had not heard of. The keeper has renewed them, and knows which were cancelled.
        self.renewed_unheard: dict[tuple[str, int], float] = {}
        self.cancelled_unheard: frozenset[tuple[str, int]] = frozenset()
        self.board = board or Board.private()
        self.stopping = False
        self.replace = replace
        self.version = version
        self.clock_zero = datetime.now(UTC) - timedelta(seconds=time.monotonic())  # the database's, when ours was 0
        self.last_turn = time.monotonic()  # of the event loop
        self._middleware = middleware
        self._host = host
        self._stores = stores
        self._app = app
        self._ahead = Ahead()
        self._startable = self._ahead.startable
        self._asks = False  # start marks are about to be asked for
        self._running = 0
        self._mean: float | None = None  # seconds that a handler runs
        self._size = 0.0  # bytes of a payload
        self._last_end = 0.0  # when one last ended
        self._cut_off: dict[str, int] = {}  # how often in a row the database was away when these jobs used it
        self._quiet = asyncio.Event()  # stopping, and nothing runs any more
        self._life = asyncio.Lock()
        self.started = False
        self._ending: asyncio.Task[None] | None = None
        self._complained = False

    # ── Life ──

    async def start(self) -> None:
        """Connect, or say what is wrong; then work."""
        self.loop = asyncio.get_running_loop()
        async with self._life:
            await self._start()

    async def _start(self) -> None:
        self.rounds = Rounds(self, (await self._stores.handle()).store)
        self._executor = Executor(
            self.settings,
            self._host,
            self._middleware,
            self._begins,
            self._done,
            self._fill,
            self._following,
            lambda: self.rounds.abandoned,
            app=self._app,
        )
        self._keeper = Keeper(self, self._stores)
        await self._keeper.start()
        self.rounds.start()
        self.started = True
        self._executor.warm_up(self.tasks.values())

    async def stop(self, grace: float | None = None) -> None:
        """Claim nothing more, let what runs finish within the grace, give back the rest. Costs no job a retry."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._stop(grace))
        await asyncio.shield(self._ending)

    async def _stop(self, grace: float | None) -> None:
        async with self._life:  # a start that is under way comes to its end first
            if self.started:
                await self._wind_down(grace)

    async def _wind_down(self, grace: float | None) -> None:
        grace = self.settings.grace if grace is None else grace
        end = time.monotonic() + grace
        deadline = end - min(_LAST_SETTLES, grace / 8)
        self.stopping = True
        self._give_back(list(self._ahead), "shutdown")
        self.look_around()
        given = deadline - time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._at(deadline - min(_WARNING, given / 5))):
                await self._quiet.wait()
        for run in list(self.runs.values()):
            self._executor.interrupt(run, Interruption.STOPPING)  # who asks has a moment to stop by itself
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._at(deadline)):
                await self._quiet.wait()
        for run in list(self.runs.values()):
            self._executor.end(run)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._at(max(end, time.monotonic()) + _PARTING)):
                await self._quiet.wait()
        await self.rounds.stop()
        if self.runs:
            log.warning("worker %s leaves %d jobs to be rescued: they could not be settled", self.name, len(self.runs))
        await asyncio.gather(self._executor.close(), self._keeper.stop(end - time.monotonic()))

    def evacuate(self, seconds: float) -> None:
        """From another thread, because the event loop is stuck: settle everything, before this process ends."""
        self._keeper.evacuate_from(seconds)

    def _at(self, monotonic: float) -> float:
        return self.loop.time() + monotonic - time.monotonic()

    @property
    def has_left_jobs(self) -> bool:
        """After `stop`: does it hold jobs that someone else could give back at once? Not if the database is away."""
        return (bool(self.runs) or self.rounds.claim_lost) and not self.rounds.in_trouble

    @property
    def running(self) -> int:
        return self._running

    @property
    def is_brisk(self) -> bool:
        """Do handlers end one after the other at this moment, without waiting for anything?"""
        return self._executor.chains

    @property
    def waits_for_marks(self) -> bool:
        """Are there runs that can't start before their start marks are written?"""
        return self._ahead.waits_for_marks

    @property
    def leaked(self) -> int:
        return self._executor.leaked

    def nudge(self) -> None:
        """From any thread: there may be work, or slots for it."""
        with suppress(RuntimeError):  # the loop has been closed
            self.loop.call_soon_threadsafe(self._nudged)

    def _nudged(self) -> None:
        self._fill()  # there may be more slots, for what was claimed when there were not
        self.rounds.wake()

    def tick(self) -> None:
        """The claim loop turns."""
        self.board.tick(self._running, self.leaked)

    # ── Slots ──

    def room(self) -> int:
        """How many jobs we may hold beyond those that we have."""
        return 0 if self.stopping else self.free() + self._lookahead()

    def free(self) -> int:
        """Slots for which there is no job."""
        return self._slots() - self._running - len(self._ahead)

    def _slots(self) -> int:
        return max(0, self.settings.concurrency - self._executor.leaked)

    def _lookahead(self) -> int:
        """Jobs worth a tenth of a second by what was measured, so that slots don't wait for round trips; none if jobs
        take longer than that."""
        if self._mean is None or self._mean >= self.settings.ahead:
            return 0
        if self._running >= self._slots() and time.monotonic() - self._last_end > self.settings.ahead:
            return 0  # what was measured is over: long jobs have come
        seconds = max(self._mean, self.rounds.marking if self._ahead.wants_marks else 1e-6)
        by_time = self.settings.ahead * self.settings.concurrency / seconds
        return min(_MOST_AHEAD, int(by_time), int(AHEAD_BYTES / max(self._size, 1.0)))

    def weigh(self, claimed: Claimed) -> None:
        """How large payloads are. A claim that brings larger ones counts at once."""
        if claimed.jobs:
            size = claimed.size / len(claimed.jobs)
            self._size = max(size, 0.9 * self._size + 0.1 * size)

    def hold(self, jobs: Iterable[Job], *, lease: float, marked: bool, sent: float) -> list[Run]:
        """They are ours from now on. `sent`: when the claim was; `marked`: the claim was the start mark as well."""
        held, tasks, said = self.runs, self.tasks, self._keeper.said
        runs = [Run(job, tasks[job.topic], lease=lease, claimed=sent, marked=marked, said=said) for job in jobs]
        renewed = self.renewed_unheard
        for run in runs:
            if renewed:
                run.renewed = renewed.get(run.key, sent)
            older = held.get(run.key)
            held[run.key] = run
            if older is not None:
                self._replaced(older)
        return runs

    def _replaced(self, run: Run) -> None:
        """The database has given us its version again: it has lost that claim, as after a failover."""
        log.warning("%r has been claimed anew: what comes of it is dropped", run)
        if run.interrupt(Interruption.LOST):
            self.interrupted(run)

    def admit(self, runs: list[Run]) -> None:
        """They may start, in their turn."""
        self._ahead.add(runs)
        if cancelled := self.cancelled_unheard:
            for run in runs:
                if run.key in cancelled and run.interrupt(Interruption.CANCELLED):
                    self.interrupted(run)
        if self.stopping:  # we asked for them before we knew
            self._give_back(runs, "shutdown")
        self._fill()

    def marked(self) -> None:
        """The start marks that we have asked for are written, or the runs concluded."""
        self._ahead.marked()
        if self.stopping:
            self._give_back(list(self._ahead), "shutdown")
        self._fill()

    def _fill(self) -> None:
        waiting = self._startable
        while waiting and not self._executor.comes_to(waiting[0]) and (run := self._following()) is not None:
            self._executor.start(run)
        if self._ahead.unmarked:
            self._ask_for_marks()
        self.rounds.turn()

    def _ask_for_marks(self) -> None:
        """At the end of this turn of the loop: short handlers have ended by then, and there is room for more."""
        if not self._asks:
            self._asks = True
            self.loop.call_soon(self._ask_for_marks_now)

    def _ask_for_marks_now(self) -> None:
        self._asks = False
        # A run that has its slot may not have begun either: a child process takes a while to start.
        if runs := self._ahead.to_mark(self._slots() - self._running - self.rounds.starting):
            self.rounds.mark(runs)

    def _following(self) -> Run | None:
        """The run that is to start next, if there is a slot for it, which is its own from now on."""
        slots = self.settings.concurrency - self._executor.leaked
        while self._startable and self._running < slots:
            run = self._startable.popleft()
            if run.concluded or run.interruption is not None:
                continue
            if run.lease_is_over:  # this process was held up
                self.conclude(run, Released("its lease ran out before it started"))
                continue
            self._running += 1
            return run
        return None

    def _begins(self, run: Run) -> None:
        """It is on the board from here until its settle is acknowledged: what a handler leaves behind may kill this
        process after it has returned. Not from when it got its slot: if a neighbour kills this process before its turn
        comes, it has done nothing."""
        run.slot = self.board.put(run.job.id, run.job.version, apart=run.kind == "process")

    def _done(self, run: Run, outcome: Outcome | None) -> None:
        """A handler has ended, or was left behind."""
        self._running -= 1
        if run.kind == "process" and run.slot is not None:
            self.board.rejoin(run.slot)
        assert run.ran is not None  # noqa: S101 - narrows the type
        self._last_end = run.began + run.ran
        self._mean = run.ran if self._mean is None else 0.9 * self._mean + 0.1 * run.ran
        if outcome is None:
            self.forget(run)
        else:
            self.conclude(run, outcome)
        if self._executor.leaked:
            self._check_leaks()
        if self._startable and not self._executor.comes_to(self._startable[0]):
            self._fill()
        elif self._ahead.unmarked:
            self._ask_for_marks()

    def clear(self, run: Run) -> None:
        """If this process dies from now on, this run is not charged for it."""
        if run.slot is not None:
            self.board.clear(run.slot)
            run.slot = None
        if run.when_settled is not None:
            run.when_settled()
            run.when_settled = None

    def conclude(self, run: Run, outcome: Outcome) -> None:
        """What it means for the job; to be settled with the next round."""
        run.concluded = True
        if self._cut_off or isinstance(outcome, CutOff):
            outcome = self._bounded(run, outcome)
        run.outcome = outcome
        if self.stopping and isinstance(outcome, Released):
            self.clear(run)  # a stop costs nothing, even if this process dies before it is settled
        to = self._decide(run, outcome)
        self.rounds.settle(run, to)
        if to.error is not None:
            log.warning("%r %s: %s", run, to.event, to.error.rstrip().rpartition("\n")[2][:300])
        else:
            log.debug("%r %s", run, to.event)

    def _bounded(self, run: Run, outcome: Outcome) -> Outcome:
        """A handler whose own statement takes the database down must end as a dead letter, too. So not every run that
        is cut off is free."""
        if not isinstance(outcome, CutOff):
            self._cut_off.pop(run.job.id, None)
            return outcome
        if len(self._cut_off) >= _MOST_CUT_OFF:
            self._cut_off.clear()
        times = self._cut_off[run.job.id] = self._cut_off.get(run.job.id, 0) + 1
        return outcome if times <= _FREE_OUTAGES else Failed(f"The database was away {times} times: {outcome.error}")

    def _decide(self, run: Run, outcome: Outcome) -> Transition:
        now, chance = _ANY_TIME, 0.0
        if not isinstance(outcome, Completed):  # which asks neither clock nor chance
            now, chance = self.now(), random.random()  # noqa: S311 - jitter
        try:
            return decide(run.job, outcome, now, retry=run.task.policy.retry, chance=chance, ran=run.ran)
        except Exception as error:  # whatever the handler has put into its outcome, the job must come to an end
            log.exception("%r: its outcome makes no sense", run)
            return decide(run.job, Failed(f"The outcome makes no sense: {error!r:.200}", final=True), now, ran=run.ran)

    def now(self) -> datetime:
        """By the database's clock. Counted on by the monotonic one: this machine's own may be set at any moment."""
        return self.clock_zero + timedelta(seconds=time.monotonic())

    def forget(self, run: Run) -> None:
        run.concluded = True
        self.clear(run)
        if self.runs.get(run.key) is run:  # and not a newer one in its place
            del self.runs[run.key]
        self.look_around()

    def look_around(self) -> None:
        """Something has ended."""
        self.rounds.turn()
        if self.stopping and not self.runs and not self.rounds.under_way and not self.rounds.claim_lost:
            self._quiet.set()

    def _check_leaks(self) -> None:
        leaked = self.leaked
        if self._complained or self.stopping or 2 * leaked < self.settings.concurrency:
            return
        self._complained = True
        log.error("worker %s: %d handlers can't be stopped and keep their slots", self.name, leaked)
        if self.replace is not None:
            self.replace(at_once=False)

    # ── Called by the keeper, in our loop ──

    def turned(self) -> None:
        """Now and then, so that the coordinator turns too, and shows that it does."""
        self.last_turn = time.monotonic()
        self.rounds.turn()

    def interrupted(self, run: Run) -> None:
        """run.interrupt() has been called."""
        if run.began:
            self._executor.enforce(run)
        elif not run.concluded:  # claimed ahead
            self._ahead.drop([run])
            if run.interruption is Interruption.LOST:
                self.forget(run)
            else:
                self.conclude(run, Released("cancelled before it started"))

    def give_back(self, paused: set[str]) -> None:
        """What was claimed ahead and waits for too long, or whose topic has been paused."""
        now = time.monotonic()
        waiting = list(self._ahead)
        without_slot = waiting[max(0, self._slots() - self._running) :]  # the others are about to start
        self._give_back([run for run in waiting if run.job.topic in paused], "paused")
        late = [run for run in without_slot if now - run.claimed > _STALE and run.job.topic not in paused]
        self._give_back(late, "late")

    def _give_back(self, runs: list[Run], reason: str) -> None:
        if runs:
            self._ahead.drop(runs)
            for run in runs:
                self.conclude(run, Released(reason))


def _chosen(
    tasks: Mapping[str, Task[..., Any]], topics: tuple[str, ...] | None, app: str | None
) -> dict[str, Task[..., Any]]:
    """The tasks of these topics; None: all of them."""
    if not tasks:
        raise InvalidInput("tasks", "none", _no_tasks(app))
    if topics is None:
        return dict(tasks)
    if unknown := sorted(set(topics) - set(tasks)):
        known = ", ".join(sorted(tasks))
        raise InvalidInput("topics", "unknown", f"no handler for {', '.join(unknown)}; there are handlers for: {known}")
    return {topic: tasks[topic] for topic in topics}


def _no_tasks(app: str | None) -> str:
    """How to get some. A decorator runs when its module is imported, and nothing imports a module by itself."""
    if app is None:
        return "there is nothing to run. Import the modules that have the tasks (@jobs.task) before start()"
    module = app.partition(":")[0]
    return (
        f"there is nothing to run: importing {module} registers no task. Import the modules that have the tasks "
        f"(@jobs.task) in {module}, below jobs = Jobs(…). Or name a module that does: rowlock worker MODULE:jobs"
    )
