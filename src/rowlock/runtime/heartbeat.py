"""HeartbeatThread: renews leases, even while a handler blocks the worker's event loop. It has an event loop and a
connection of its own.

It also notices cancelled and lost jobs, writes the progress and logs of handlers, reports the worker to the register,
does the maintenance, and fires schedules.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import Protocol

from rowlock.client.connections import Stores
from rowlock.client.portal import Portal
from rowlock.client.schedules import Schedules
from rowlock.context import Interruption
from rowlock.core.lifecycle import Released, Settlement, TimedOut, Transition, decide
from rowlock.errors import StoreError, StoreUnavailable
from rowlock.runtime.give_back import give_back
from rowlock.runtime.maintenance import Maintenance
from rowlock.runtime.outcomes import undo_later
from rowlock.runtime.periodic import Loop
from rowlock.runtime.rescue_guard import RescueGuard
from rowlock.runtime.run import Run, write_reports
from rowlock.runtime.scheduler import Scheduler
from rowlock.runtime.slots import Slots
from rowlock.stores.base import Beat, Hold, Store, WorkerInfo

log = logging.getLogger("rowlock")

_REPORT = 10.0  # seconds between two reports, at most: a worker without reports is taken for dead, whatever its lease
# Seconds for removing the worker from the register: at least, and at most if the grace is long enough. Maintenance does
# it in the end.
_GOODBYE, _LONG_GOODBYE = 0.3, 3.0
_PAUSE = 0.2  # seconds between two writes of progress and logs
_MARK_AFTER = 0.25  # seconds after which a job that was claimed ahead and started gets its start mark


class Replace(Protocol):
    def __call__(self, *, at_once: bool) -> None:
        """Ask for a new process. `at_once`: the event loop is stuck, and everything has been settled."""


class HeartbeatThread:
    """It calls in the worker's event loop: `interrupted` after run.interrupt(); `give_back` with the paused topics,
    while jobs are claimed ahead; `look_for_lost_claims` if the database knows runs that the worker does not.
    It calls in its own thread: `nudge` if there may be work; `replace` if the worker's event loop is stuck."""

    def __init__(
        self,
        slots: Slots,
        stores: Stores,
        schedules: Schedules,
        *,
        version: str,
        nudge: Callable[[], None],
        interrupted: Callable[[Run], None],
        give_back: Callable[[set[str]], None],
        look_for_lost_claims: Callable[[], None],
        replace: Replace | None,
    ) -> None:
        self._slots = slots
        self._settings = slots.settings
        self._stores = stores
        self._schedules = schedules
        self._version = version
        self._nudge = nudge
        self._interrupted = interrupted
        self._give_back = give_back
        self._look_for_lost_claims = look_for_lost_claims
        self._replace = replace
        self._thread = Portal(f"rowlock-heartbeat_thread-{os.getpid()}")
        self._rescue_guard = RescueGuard(self._settings.beat)
        self._talking: set[Run] = set()  # have reports that are not collected yet
        self._reported = 0.0
        self._compared = 0.0  # when the database was last asked for the runs of this worker …
        self._unheard: list[Beat] = []  # … and those that the worker's event loop did not know
        self._retired = False
        self._asked = 0.0  # when the worker's event loop was asked to turn …
        self._turned = time.monotonic()  # … and when it did
        self._complained = False

    async def start(self) -> None:
        """Connect and report the worker, or raise what is wrong."""
        try:
            await asyncio.wrap_future(self._thread.submit(self._begin))
        except BaseException:
            await asyncio.to_thread(self._thread.close)
            raise

    async def stop(self, seconds: float = 0.0) -> None:
        """Stop the thread. `seconds`: the rest of the grace."""
        goodbye = min(max(seconds, _GOODBYE), _LONG_GOODBYE)
        await asyncio.wrap_future(self._thread.submit(lambda: self._end(goodbye)))
        await asyncio.to_thread(self._thread.close)

    def said(self, run: Run) -> None:
        """Note from any thread that the handler of this run has reported something."""
        loop = self._thread.loop
        with suppress(RuntimeError):  # ended
            if loop is not None:
                loop.call_soon_threadsafe(self._note, run)

    # ── In the thread ──

    async def _begin(self) -> None:
        self._store: Store = (await self._stores.handle()).store
        self._register = asyncio.Lock()
        try:
            await self._report()
        except BaseException:
            await self._stores.close_here()
            raise
        name, longest = self._slots.name, min(2.0, self._settings.beat / 2)
        maintenance = Maintenance(self._settings, name, self._rescue_guard, self._nudge, adopt=self._adopt)
        scheduler = Scheduler(
            self._schedules.firing, self._nudge, lambda: self._settings.poll, self._schedules.mark_absent
        )
        self._collector = Loop(f"progress and logs of {name}", self._collect, longest=longest, shortest=_PAUSE)
        self._loops = [
            Loop(f"heartbeats of {name}", self._renew, longest=longest),
            Loop(f"the watch of {name}", self._watch_loop, longest=longest),
            self._collector,
            Loop(f"maintenance by {name}", lambda: maintenance.run_once(self._store), longest=longest),
            Loop(f"schedules by {name}", lambda: scheduler.run_once(self._store), longest=longest),
        ]
        for loop in self._loops:
            loop.start()

    async def _end(self, goodbye: float) -> None:
        end = time.monotonic() + goodbye
        with suppress(StoreError, TimeoutError):
            # Lines of handlers that completed their jobs in a transaction. Those of other handlers are written before
            # their jobs are settled.
            async with asyncio.timeout(goodbye / 2):
                await self._collector.stop(finish=True)
                await self._collect()
        await self._retire(end - time.monotonic())
        await self._stop_loops()
        await self._stores.close_here()

    async def _retire(self, seconds: float) -> None:
        """Remove the worker from the register, after its last report. A report that is under way would add it again,
        even if it was cancelled here: the database may have it already."""
        self._retired = True
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(seconds), self._register:
                await self._store.retire([self._slots.name])

    async def _stop_loops(self) -> None:
        """Stop all loops except the one that calls this."""
        others = [loop for loop in self._loops if loop.task is not asyncio.current_task()]
        await asyncio.gather(*(loop.stop() for loop in others))

    async def _report(self) -> None:
        slots = self._slots
        info = WorkerInfo(
            name=slots.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            topics=tuple(sorted(map(str, slots.lanes))),
            concurrency=self._settings.concurrency,
            running=slots.running,
            lease=self._settings.lease,
            stopping=slots.stopping,
            rowlock=self._version,
        )
        asked = time.monotonic()
        async with self._register:
            if self._retired:
                return
            clock = await self._store.report(info)
        self._reported = time.monotonic()
        self._rescue_guard.contact(asked, self._reported, clock)
        slots.clock_zero = clock - timedelta(seconds=self._reported)

    def _adopt(self, wanted: Mapping[str, float]) -> None:
        if changed := self._settings.adopt(wanted):
            log.info("worker %s: the settings have changed: %s", self._slots.name, ", ".join(changed))
            self._rescue_guard.interval = self._settings.beat
            self._reported = 0.0  # other workers judge this one by the lease that it has reported: report it at once
            self._nudge()

    # ── Leases ──

    async def _renew(self) -> float:
        """Renew the leases within a beat, else raise: a connection that has gone silent must not cost the leases."""
        beat = min((run.lease / 3 for run in self._held()), default=self._settings.beat)
        try:
            async with asyncio.timeout(beat):
                await self._renew_all()
        except StoreError:
            self._rescue_guard.broken()
            raise
        except TimeoutError:
            self._rescue_guard.broken()
            raise StoreUnavailable(f"no answer within {beat:g} s") from None
        return self._settings.look

    async def _renew_all(self) -> None:
        """Renew the leases that are due, look at the other runs. A run that is past its timeout and grace is wedged, so
        its lease is not renewed. But its handler may still ask whether it is to end, once it goes on."""
        now = time.monotonic()
        beats, looks = [], []
        for run in self._held():
            if run.completed or run.interruption is Interruption.LOST:
                continue
            if run.has_old_marks(now):
                self._note(run)
            late_mark = run.began and not run.marked and now - run.began > _MARK_AFTER
            due = late_mark or run.hasty or now - run.renewed >= run.lease / 3 - self._settings.look
            if due and run.overdue <= self._settings.wedged:
                beats.append(run)
            elif now - run.renewed >= self._settings.look and not run.concluded:
                looks.append(run)
        if beats:
            await self._beat(beats)
        if looks:
            holds = await self._store.look([_beat(run) for run in looks])
            self._tell(looks, holds)
        if now - self._compared >= self._settings.beat - self._settings.look:
            await self._renew_unheard()
            self._compared = now
        if now - self._reported >= min(self._settings.beat, _REPORT):
            await self._report()
        if any(not run.began and not run.concluded for run in self._held()):
            paused = {pause.topic for pause in await self._store.paused()}
            self._in_worker(lambda: self._give_back(paused))

    async def _renew_unheard(self) -> None:
        """Renew runs that the database knows and the worker's event loop does not. A blocked loop does not get the
        reply to its claim.

        If a run stays unknown for two beats, the reply may be lost, or the database has carried out the claim too late.
        The worker's loop looks into it when it turns. If a handler is wedged the loop may never turn, so the leases run
        out."""
        before, self._unheard = self._unheard, await self._held_unheard()
        renewed: dict[tuple[str, int], float] = {}
        cancelled: frozenset[tuple[str, int]] = frozenset()
        if self._unheard and not self._wedged():
            sent = time.monotonic()
            holds = await self._store.heartbeat(self._unheard, self._settings.lease)
            kept = [(beat.id, beat.version, hold) for beat, hold in zip(self._unheard, holds, strict=True)]
            renewed = {(job_id, version): sent for job_id, version, hold in kept if hold in (Hold.KEPT, Hold.CANCEL)}
            cancelled = frozenset((job_id, version) for job_id, version, hold in kept if hold is Hold.CANCEL)
        self._slots.cancelled_unheard = cancelled
        self._slots.renewed_unheard = renewed
        if {(beat.id, beat.version) for beat in before} & {(beat.id, beat.version) for beat in self._unheard}:
            self._in_worker(self._look_for_lost_claims)

    async def _held_unheard(self) -> list[Beat]:
        held = await self._store.held_by([self._slots.name])
        runs = self._slots.runs
        return [Beat(beat.id, beat.version, False, beat.worker) for beat in held if (beat.id, beat.version) not in runs]

    def _wedged(self) -> list[Run]:
        return [run for run in self._held() if run.overdue > self._settings.wedged]

    async def _beat(self, runs: list[Run]) -> None:
        sent = time.monotonic()
        beats = [_beat(run) for run in runs]
        for run in runs:
            run.hasty = False
        lease = self._settings.lease
        holds = await self._store.heartbeat(beats, lease)
        for run, beat, hold in zip(runs, beats, holds, strict=True):
            if hold in (Hold.KEPT, Hold.CANCEL):
                run.lease = max(lease, run.lease - (sent - run.renewed))  # a heartbeat never shortens it
                run.renewed = sent
                run.marked = run.marked or beat.started
        self._tell(runs, holds)

    def _held(self) -> list[Run]:
        while True:
            try:
                return list(self._slots.runs.values())
            except RuntimeError:  # the worker's thread has changed it meanwhile
                continue

    def _tell(self, runs: list[Run], holds: list[Hold]) -> None:
        for run, hold in zip(runs, holds, strict=True):
            match hold:
                case Hold.LOST if not run.concluded and not run.completed:
                    self._interrupt(run, Interruption.LOST)
                case Hold.CANCEL if not run.concluded and not run.undoes:
                    self._interrupt(run, Interruption.CANCELLED)
                case _:
                    pass

    def _interrupt(self, run: Run, why: Interruption) -> None:
        if run.interrupt(why):  # at once: a handler that blocks the loop may still ask
            log.info("%r: %s", run, "lease lost" if why is Interruption.LOST else "cancel requested")
            self._in_worker(lambda: self._interrupted(run))

    def _in_worker(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # its loop has been closed
            self._slots.loop.call_soon_threadsafe(function)

    # ── Progress and logs ──

    def _note(self, run: Run) -> None:
        self._talking.add(run)
        self._collector.wake()

    async def _collect(self) -> float:
        runs = {run for run in self._talking if run.interruption is not Interruption.LOST}
        self._talking = set()
        try:
            if hasty := [run for run in runs if run.hasty]:
                await self._beat(hasty)
            answers = await write_reports(self._store, runs)
        except StoreError:
            for run in runs:
                self._note(run)
            raise
        for run, hold in answers.items():
            if hold is Hold.UNSEEN:  # another connection had locked the row: next time
                self._note(run)
        self._tell(list(answers), list(answers.values()))
        return inf

    # ── When the worker's loop is stuck ──

    async def _watch_loop(self) -> float:
        """If a handler that is past its timeout and grace blocks the event loop, ask for a new process: nothing else
        helps. It uses the database only then: a database that is away must not make the loop look stuck."""
        if self._slots.loop.is_closed():
            await self._leave()
        now = time.monotonic()
        if self._turned >= self._asked:
            self._asked = now
            self._in_worker(self._turn)
        stuck = now - self._asked
        wedged = self._wedged()
        if not wedged or stuck < max(1.0, 4 * self._settings.look):
            self._complained = False
            return self._settings.look
        if not self._complained:
            self._complained = True
            log.error("worker %s: its event loop has been blocked for %.0f s by %r", self._slots.name, stuck, wedged)
        if self._replace is not None:
            await self.evacuate()
            self._replace(at_once=True)
        return self._settings.look

    def _turn(self) -> None:
        """Record in the worker's event loop that it turns. The claim loop turns, too, and shows it on the running
        board."""
        self._turned = time.monotonic()
        self._slots.changed.set()

    async def _leave(self) -> None:
        """Give back all jobs after the program has ended its event loop without a stop. No handler runs, so no lease is
        renewed any more."""
        log.warning("worker %s: its event loop has ended without stop(); its jobs are given back", self._slots.name)
        await self._stop_loops()
        with suppress(StoreError):  # then their leases run out
            await self.evacuate()
        await self._stores.close_here()
        self._thread.close()

    async def evacuate(self) -> None:
        """Settle everything from this thread, because the worker's loop can't: this process is about to end."""
        held = [run for run in self._held() if not run.completed and run.interruption is not Interruption.LOST]
        settlements = [Settlement(run.job.id, run.job.version, self._last_word(run), run.job.locked_by) for run in held]
        if settlements:
            await self._store.settle(settlements)
        await give_back(self._store, await self._held_unheard(), "the worker is stuck")
        self._slots.running_board.wipe()
        await self._retire(_GOODBYE)

    def _last_word(self, run: Run) -> Transition:
        if run.outcome is not None:
            outcome = run.outcome
        else:
            outcome = TimedOut(run.job.timeout) if run.overdue > 0 else Released("the worker is stuck")
        ran = time.monotonic() - run.began if run.began and run.ran is None else run.ran
        return decide(run.job, undo_later(run, outcome), self._slots.now(), retry=run.task.retry, ran=ran)

    def evacuate_from(self, seconds: float) -> None:
        """Evacuate from any thread, within so many seconds."""
        self._thread.submit(self.evacuate).result(seconds)


def _beat(run: Run) -> Beat:
    return Beat(run.job.id, run.job.version, bool(run.began), run.job.locked_by)
