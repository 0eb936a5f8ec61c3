"""Keeper: what must go on while a handler blocks the event loop, in a thread with a loop and a connection of its own.

It renews leases, looks whether jobs were cancelled or lost, writes down what handlers say, reports that the worker
lives, and does the maintenance.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from rowlock.client.connections import Stores
from rowlock.client.portal import Portal
from rowlock.context import Interruption
from rowlock.core.lifecycle import Released, Settlement, TimedOut, Transition, decide
from rowlock.core.retry import kept_table
from rowlock.errors import AccessDenied, StoreError, StoreUnavailable
from rowlock.runtime.give_back import give_back
from rowlock.runtime.maintenance import Maintenance
from rowlock.runtime.patience import Patience
from rowlock.runtime.reports import write_reports
from rowlock.runtime.run import Run
from rowlock.runtime.trust import Trust
from rowlock.stores.base import Beat, Hold, Store, WorkerInfo

if TYPE_CHECKING:
    from rowlock.runtime.worker import Worker

log = logging.getLogger("rowlock")

_REPORT = 10.0  # seconds between reports at most: who is not seen for long is taken for dead, whatever its lease
# Seconds for taking our name off the register: at least, and at most if the grace has them. Others do it in the end.
_GOODBYE, _LONG_GOODBYE = 0.3, 3.0
_PAUSE = 0.2  # seconds between writes of what handlers say
_MARK_AFTER = 0.25  # seconds after which a job that was claimed ahead and started gets its start mark


class Keeper:
    def __init__(self, worker: Worker, stores: Stores) -> None:
        self._worker = worker
        self._stores = stores
        self._settings = worker.settings
        self._thread = Portal(f"rowlock-keeper-{os.getpid()}")
        self._trust = Trust(self._settings.beat)
        self._talking: set[Run] = set()  # have said something
        self._reported = 0.0
        self._compared = 0.0  # when we last asked the database what we hold …
        self._unheard: list[Beat] = []  # … and what of it the worker's loop did not know
        self._retired = False
        self._asked = 0.0  # when the worker's loop was asked to turn
        self._complained = False

    async def start(self) -> None:
        """Connect and report, or say what is wrong."""
        try:
            await asyncio.wrap_future(self._thread.submit(self._begin))
        except BaseException:
            await asyncio.to_thread(self._thread.close)
            raise

    async def stop(self, seconds: float = 0.0) -> None:
        """`seconds`: there is no hurry for so long."""
        goodbye = min(max(seconds, _GOODBYE), _LONG_GOODBYE)
        await asyncio.wrap_future(self._thread.submit(lambda: self._end(goodbye)))
        await asyncio.to_thread(self._thread.close)

    def said(self, run: Run) -> None:
        """From any thread: there is something to collect."""
        loop = self._thread.loop
        with suppress(RuntimeError):  # ended
            if loop is not None:
                loop.call_soon_threadsafe(self._note, run)

    # ── In the thread ──

    async def _begin(self) -> None:
        self._store: Store = (await self._stores.handle()).store
        self._rang = asyncio.Event()
        self._register = asyncio.Lock()
        try:
            await self._report()
            await self._publish()
        except BaseException:
            await self._stores.close_here()
            raise
        maintenance = Maintenance(
            self._store, self._settings, self._worker.name, self._trust, self._worker.nudge, self._adopt
        )
        self._loops = [
            asyncio.create_task(self._repeat(self._renew, self._look, trusted=True)),
            asyncio.create_task(self._repeat(self._watch_loop, self._look)),
            asyncio.create_task(self._repeat(self._collect, None)),
            asyncio.create_task(self._repeat(maintenance.run_once, None)),
        ]

    async def _end(self, goodbye: float) -> None:
        await self._retire(goodbye)
        await self._rest()
        await self._stores.close_here()

    async def _retire(self, seconds: float) -> None:
        """Off the register, after the last report. One that is under way would put us back on it, even if we cancelled
        it: the server may have it already."""
        self._retired = True
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(seconds), self._register:
                await self._store.retire([self._worker.name])

    async def _rest(self) -> None:
        others = [loop for loop in self._loops if loop is not asyncio.current_task()]
        for loop in others:
            loop.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _repeat(
        self, once: Callable[[], Awaitable[float | None]], pause: Callable[[], float] | None, *, trusted: bool = False
    ) -> None:
        """For ever; a failure is said once, and the pause grows. `pause` None: it waits by itself, or says how long.
        `trusted`: who fails in this may not rescue others for a while."""
        patience = Patience(f"{once.__qualname__} of {self._worker.name}", min(2.0, self._settings.beat / 2))
        while True:
            try:
                wanted = await once()
                patience.worked()
                wait = wanted or (pause() if pause is not None else 0.0)
            except StoreError as error:
                if trusted:
                    self._trust.broken()
                wait = patience.failed(error)
            except Exception as error:
                log.exception("%s: unexpected", once.__qualname__)
                wait = max(1.0, patience.failed(error))
            await asyncio.sleep(wait)

    def _look(self) -> float:
        return self._settings.look

    async def _report(self) -> None:
        worker = self._worker
        info = WorkerInfo(
            name=worker.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            topics=tuple(sorted(worker.tasks)),
            concurrency=self._settings.concurrency,
            running=worker.running,
            lease=self._settings.lease,
            stopping=worker.stopping,
            rowlock=worker.version,
        )
        asked = time.monotonic()
        async with self._register:
            if self._retired:
                return
            clock = await self._store.report(info)
        self._reported = time.monotonic()
        self._trust.contact(asked, self._reported, clock)
        worker.clock_zero = clock - timedelta(seconds=self._reported)

    async def _publish(self) -> None:
        """Tell those who will rescue our jobs how long each has to wait: they may not have our tasks."""
        tables = {topic: kept_table(task.policy.retry) for topic, task in self._worker.tasks.items()}
        try:
            await self._store.set_backoff(tables)
        except AccessDenied as error:
            log.warning("worker %s: after a crash, its jobs wait as by default: %s", self._worker.name, error)

    def _adopt(self, wanted: Mapping[str, float]) -> None:
        if changed := self._settings.adopt(wanted):
            log.info("worker %s: the settings have changed: %s", self._worker.name, ", ".join(changed))
            self._trust.interval = self._settings.beat
            self._reported = 0.0  # others judge us by the lease that we have reported: say the new one at once
            self._worker.nudge()

    # ── Leases ──

    async def _renew(self) -> None:
        """Not longer than a beat: a connection that has gone silent must not cost the leases."""
        beat = min((run.lease / 3 for run in self._held()), default=self._settings.beat)
        try:
            async with asyncio.timeout(beat):
                await self._renew_all()
        except TimeoutError:
            raise StoreUnavailable(f"no answer within {beat:g} s") from None

    async def _renew_all(self) -> None:
        """Renew what is due, look at the rest. A run that is past its timeout and grace is not renewed: alive but
        wedged is not alive. But it may still ask whether it is to end, once it goes on."""
        now = time.monotonic()
        beats, looks = [], []
        for run in self._held():
            if run.completed or run.interruption is Interruption.LOST:
                continue
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
            self._in_worker(lambda: self._worker.give_back(paused))

    async def _renew_unheard(self) -> None:
        """Renew what we hold by the record, and have not heard of: a blocked loop does not hear the reply to its claim.
        What it has not heard of for two beats may be a claim whose reply was lost, or that the server carried out too
        late: the loop looks into it once it turns. If a handler is wedged, the loop may never turn: the leases run
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
        self._worker.cancelled_unheard = cancelled
        self._worker.renewed_unheard = renewed
        if {(beat.id, beat.version) for beat in before} & {(beat.id, beat.version) for beat in self._unheard}:
            self._in_worker(self._worker.rounds.look_for_lost_claims)

    async def _held_unheard(self) -> list[Beat]:
        held = await self._store.held_by(self._worker.name)
        runs = self._worker.runs
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
                return list(self._worker.runs.values())
            except RuntimeError:  # it changed while we looked
                continue

    def _tell(self, runs: list[Run], holds: list[Hold]) -> None:
        for run, hold in zip(runs, holds, strict=True):
            match hold:
                case Hold.LOST if not run.concluded and not run.completed:
                    self._interrupt(run, Interruption.LOST)
                case Hold.CANCEL if not run.concluded:
                    self._interrupt(run, Interruption.CANCELLED)
                case _:
                    pass

    def _interrupt(self, run: Run, why: Interruption) -> None:
        if run.interrupt(why):  # at once: a handler that blocks the loop may still ask
            log.info("%r: %s", run, "lease lost" if why is Interruption.LOST else "cancel requested")
            self._in_worker(lambda: self._worker.interrupted(run))

    def _in_worker(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # its loop has been closed
            self._worker.loop.call_soon_threadsafe(function)

    # ── What handlers say ──

    def _note(self, run: Run) -> None:
        self._talking.add(run)
        self._rang.set()

    async def _collect(self) -> None:
        await self._rang.wait()
        self._rang.clear()
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
            if hold is Hold.UNSEEN:  # someone had the row locked: next time
                self._note(run)
        self._tell(list(answers), list(answers.values()))
        await asyncio.sleep(_PAUSE)

    # ── When the worker's loop is stuck ──

    async def _watch_loop(self) -> None:
        """A handler blocks the loop and is past its timeout and grace: nothing but a new process helps. Asks nothing of
        the database before that: one that is away must not make the loop look stuck."""
        if self._worker.loop.is_closed():
            await self._leave()
        now = time.monotonic()
        if self._worker.last_turn >= self._asked:
            self._asked = now
            self._in_worker(self._worker.turned)
        stuck = now - self._asked
        wedged = self._wedged()
        if not wedged or stuck < max(1.0, 4 * self._settings.look):
            self._complained = False
            return
        if not self._complained:
            self._complained = True
            log.error("worker %s: its event loop has been blocked for %.0f s by %r", self._worker.name, stuck, wedged)
        if self._worker.replace is not None:
            await self.evacuate()
            self._worker.replace(at_once=True)

    async def _leave(self) -> None:
        """The program has ended its event loop without a stop: nobody runs our jobs, so nobody may renew them."""
        log.warning("worker %s: its event loop has ended without stop(); its jobs are given back", self._worker.name)
        await self._rest()
        with suppress(StoreError):  # then their leases run out
            await self.evacuate()
        await self._stores.close_here()
        self._thread.close()

    async def evacuate(self) -> None:
        """Settle everything from here, because the worker's loop can't: this process is about to end."""
        held = [run for run in self._held() if not run.completed and run.interruption is not Interruption.LOST]
        settlements = [Settlement(run.job.id, run.job.version, self._last_word(run), run.job.locked_by) for run in held]
        if settlements:
            await self._store.settle(settlements)
        await give_back(self._store, await self._held_unheard(), "the worker is stuck")
        self._worker.board.wipe()
        await self._retire(_GOODBYE)

    def _last_word(self, run: Run) -> Transition:
        if run.outcome is not None:
            outcome = run.outcome
        else:
            outcome = TimedOut(run.job.timeout) if run.overdue > 0 else Released("the worker is stuck")
        ran = time.monotonic() - run.began if run.began and run.ran is None else run.ran
        return decide(run.job, outcome, self._worker.now(), retry=run.task.policy.retry, ran=ran)

    def evacuate_from(self, seconds: float) -> None:
        """From any thread, within so many seconds."""
        self._thread.submit(self.evacuate).result(seconds)


def _beat(run: Run) -> Beat:
    return Beat(run.job.id, run.job.version, bool(run.began), run.job.locked_by)
