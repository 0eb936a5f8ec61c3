"""ClaimSettle: the worker settles and claims jobs in rounds. A round is one round trip to the database.

A round settles the runs that have finished and claims as many jobs as there is room for. While rounds are under way,
the next batch gathers. So a single job is settled at once, and ten thousand jobs are settled in hundreds.

One coroutine (`_coordinate`) starts the rounds. It waits for `Slots.changed` while there is nothing to do.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from msgspec.structs import replace

from rowlock.context import Interruption
from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import APPLIED, Answer, CutOff, Failed, Outcome, Released, Settlement, Transition, Verdict
from rowlock.errors import OutcomeUnknown, StoreError, last_line
from rowlock.runtime.backoff import Backoff
from rowlock.runtime.give_back import give_back
from rowlock.runtime.outcomes import Outcomes
from rowlock.runtime.run import Run, write_reports
from rowlock.runtime.slots import AHEAD_BYTES, Slots
from rowlock.stores.base import Beat, Claim, Claimed, Hold, Store

log = logging.getLogger("rowlock")

_ROUNDS = 2  # under way at once: the database works on one while the worker works on the other
_BATCH = 500  # settlements in a round, and jobs that it claims
_PROMOTED = 1000  # jobs made ready in one statement
_FEW = 100  # settlements that are worth a round while other runs wait for their start marks
_TRIES = 5  # to settle a run that the database refuses
_SHORT = 0.01  # seconds
_LAST_WORDS = 5.0  # seconds to wait for the lock of a job whose last reports are not written yet

Settling = tuple[Run, Transition]


class Admit(Protocol):
    def __call__(self, jobs: Iterable[Job], *, lease: float, marked: bool, sent: float) -> None:
        """Take the jobs of a claim. `sent`: when it was sent. `marked`: it was the start mark as well."""


class ClaimSettle:
    """Belongs to the worker's event loop. `marked`: called when the start marks that `mark` was asked for are written,
    or their runs were given back."""

    def __init__(self, slots: Slots, store: Store, admit: Admit, marked: Callable[[], None]) -> None:
        self._slots = slots
        self._settings = slots.settings
        self._store = store
        self._admit = admit
        self._marked = marked
        self._outcomes = Outcomes(slots)
        self._lanes = tuple(sorted(slots.lanes))
        self._backoff = Backoff(f"worker {slots.name}", min(5.0, self._settings.beat / 2))
        self._finished: deque[Settling] = deque()
        self._alone: deque[Settling] = deque()  # settled one by one, because the database has refused their batch
        self._asked = 0  # jobs that claims under way may bring
        self.starting = 0  # … by claims that are the start mark as well
        self._may_have_work = True
        self._last_claim_was_full = False  # it brought all that it asked for: there is more, so two may be under way
        self._limited = False  # some topics have limits
        self._rings = 0  # how often `wake` was called
        self.claim_lost = False  # a claim's reply was lost: the worker may hold jobs that it does not know
        self.under_way = 0
        self.quiet = asyncio.Event()  # the worker is stopping and holds no job any more
        self._resting = False  # after a failure
        self._changed = slots.changed
        self._bell: asyncio.Task[None] | None = None
        self._due: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._rated: asyncio.TimerHandle | None = None  # when a rate lets a job start
        self._rated_at = 0.0
        self._again: asyncio.TimerHandle | None = None
        self._gathering: asyncio.TimerHandle | None = None
        self._gathered = 0.0  # when the last round began
        self._in_vain = 0  # claims in a row that found only jobs that other workers had locked
        self._promoted_in_vain = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._coordinator = self._spawn(self._coordinate())

    @property
    def abandoned(self) -> bool:
        """True if the event loop ends without a stop. It cancels all tasks at once."""
        return not self._slots.stopping and self._coordinator.cancelling() > 0

    async def stop(self) -> None:
        """End all rounds. Runs that are not settled stay so."""
        for timer in (self._due, self._rated, self._again, self._gathering):
            if timer is not None:
                timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def in_trouble(self) -> bool:
        """True if the last round has failed."""
        return self._backoff.in_trouble

    def conclude(self, run: Run, outcome: Outcome) -> None:
        """Decide what the outcome means for the job. The next round settles it."""
        run.concluded = True
        if self._outcomes.cut_off or isinstance(outcome, CutOff):
            outcome = self._outcomes.bound(run, outcome)
        run.outcome = outcome
        if self._slots.stopping and isinstance(outcome, Released):
            self._slots.clear(run)  # a stop costs no retry, even if this process dies before the settlement
        to = self._outcomes.decide(run, outcome)
        self._finished.append((run, to))
        if self._limited:
            self.wake()  # its end makes room in a limit
        self._changed.set()
        if to.error is not None:
            log.warning("%r %s: %s", run, to.event, last_line(to.error)[:300])
        else:
            log.debug("%r %s", run, to.event)

    def wake(self) -> None:
        """Look for work in the next round."""
        self._rings += 1
        self._may_have_work = True
        self._changed.set()

    # ── Which round is next? ──

    async def _coordinate(self) -> None:
        slots = self._slots
        while True:
            self._changed.clear()
            slots.running_board.tick(slots.running, slots.leaked)
            if self._wants_round():
                self._spawn(self._round())
                await asyncio.sleep(0)  # let the round take its batch
                continue
            if not self._may_have_work and self._room() > 0 and self._bell is None:
                self._bell = self._spawn(self._wait_for_work())
            if slots.stopping and not slots.runs and not self.under_way and not self.claim_lost:
                self.quiet.set()
            await self._changed.wait()

    def _wants_round(self) -> bool:
        if self._resting or self.under_way >= _ROUNDS:
            return False
        # Handlers end one after the other at this moment, and the database is at work. All will have ended in a few
        # milliseconds: waiting for them makes half as many rounds, of twice the size.
        if self.under_way and self._slots.chaining and len(self._finished) < _BATCH and not self._alone:
            return False
        if self._slots.ahead.waits_for_marks and self._gathers():
            return False
        if self._finished or self._alone:
            return True
        # After a lost claim the next round looks for it, alone. A second round could claim nothing, and would loop.
        if self.claim_lost:
            return not self.under_way
        return self._may_claim()

    def _gathers(self) -> bool:
        """Return True if the next round has to wait. Runs that need start marks end a few at a time. A round for each
        few would cost three times as much as all the rest. So there is one every 10 ms, or for a hundred of them."""
        wait = self._gathered + _SHORT - time.monotonic()
        if wait <= 0 or len(self._finished) >= _FEW or self._alone:
            return False
        if self._gathering is None:
            self._gathering = self._slots.loop.call_later(wait, self._have_gathered)
        return True

    def _have_gathered(self) -> None:
        self._gathering = None
        self._changed.set()

    def _may_claim(self) -> bool:
        if self.claim_lost or not self._may_have_work or self._room() <= 0:
            return False
        return self._last_claim_was_full or not self._asked

    def _room(self) -> int:
        """Return how many jobs may be claimed now."""
        return min(_BATCH, self._slots.room() - self._asked)

    async def _wait_for_work(self) -> None:
        """Wait for the doorbell, at most for the polling interval: a ring may get lost."""
        pause = self._settings.poll * random.uniform(0.8, 1.0)  # noqa: S311 - spreads workers, no secret
        try:
            await (self._store.wait_for_work(pause) if self._settings.listen else asyncio.sleep(pause))
        except StoreError as error:
            await asyncio.sleep(self._backoff.failed(error))
        finally:
            self._bell = None
            self.wake()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ── Rounds ──

    async def _round(self) -> None:
        looks_back = self.claim_lost and not self.under_way  # alone: a claim under way would look like a lost one
        claim = None if self._alone else self._next_claim()
        batch = [] if looks_back else self._next_batch()
        asked = claim.limit if claim else 0
        starting = asked if claim and claim.start else 0
        self._asked += asked
        self.starting += starting
        self.under_way += 1
        rings = self._rings
        self._gathered = sent = time.monotonic()
        try:
            if looks_back:
                await self._find_lost_claims()
            claimed = await self._settle(batch, claim)
            if any(to.waits_for is not None or to.status is Status.CANCEL_REQUESTED for _, to in batch):
                self.wake()  # it may be ready already: a signal has come meanwhile, or it is to undo something
            if not looks_back:  # a look for lost claims works on a full disk, too: it proves nothing
                self._backoff.worked()
            if claimed is not None and claim is not None:
                await self._take(claimed, claim, sent, rings)
        except StoreError as error:
            self._rest(error)
        except Exception as error:
            log.exception("worker %s: a round failed", self._slots.name)
            self._rest(error)
        finally:
            self._asked -= asked
            self.starting -= starting
            self.under_way -= 1
            self._changed.set()

    def _next_batch(self) -> list[Settling]:
        if self._alone:
            batch = [self._alone.popleft()]
        else:
            batch = [self._finished.popleft() for _ in range(min(_BATCH, len(self._finished)))]
        lost = [run for run, _ in batch if run.interruption is Interruption.LOST]
        if not lost:
            return batch
        # The loss was noticed after these runs had ended. This worker may hold a newer run of the same version: their
        # outcome would settle that run.
        for run in lost:
            log.warning("%r is not ours any more: its outcome is dropped", run)
            self._slots.forget(run)
        return [(run, to) for run, to in batch if run.interruption is not Interruption.LOST]

    def _next_claim(self) -> Claim | None:
        if not self._may_claim():
            return None
        room = self._room()
        # If all of them start at once, the claim itself is the start mark.
        free = self._slots.free() - self._asked
        lanes, lease = self._lanes, self._settings.lease
        return Claim(self._slots.name, lanes, room, lease, room <= free, AHEAD_BYTES, max(0, free))

    async def _settle(self, batch: list[Settling], claim: Claim | None) -> Claimed | None:
        settlements = [Settlement(run.job.id, run.job.version, to, run.job.locked_by) for run, to in batch]
        try:
            if not batch:
                return None if claim is None else await self._store.claim(claim)
            await self._write_last_words(run for run, _ in batch)
            settled = await self._store.settle(settlements, claim)
        except BaseException as error:
            if claim is not None and not (isinstance(error, StoreError) and not isinstance(error, OutcomeUnknown)):
                self.claim_lost = True
            if type(error) is StoreError and batch:
                self._refused(batch, claim, error)
            else:
                self._finished.extendleft(reversed(batch))
            raise
        runs = self._slots.runs
        for (run, to), verdict in zip(batch, settled.verdicts, strict=True):
            if verdict is APPLIED:
                if run.slot is not None:
                    self._slots.clear(run)
                if runs.get(run.key) is run:
                    del runs[run.key]
            else:
                self._judged(run, to, verdict)
        return settled.claimed

    async def _write_last_words(self, runs: Iterable[Run]) -> None:
        """Write the last reports of handlers before the settle: after it, the database would refuse them."""
        end = time.monotonic() + _LAST_WORDS
        tries, pause = 0, 0.001
        talked = [run for run in runs if run.spoke]
        while tries < _TRIES and (talked := [run for run in talked if run.has_said]):
            # The heartbeat thread writes what it has collected: wait for it, then look again.
            if writing := [asyncio.wrap_future(one) for run in talked if (one := run.writing) is not None]:
                await asyncio.wait(writing, timeout=max(0.0, end - time.monotonic()))
            try:
                answers = await write_reports(self._store, talked)
            except StoreError as error:
                if type(error) is not StoreError:
                    raise
                log.error("the last reports of %d jobs can't be stored: %s", len(talked), error)
                return  # the outcome matters more
            locked = sum(hold is Hold.UNSEEN for hold in answers.values())
            if not locked:
                tries += 1  # a handler that couldn't be stopped may go on reporting
            elif time.monotonic() > end:
                log.warning("the last reports of %d jobs are lost: other connections have locked the jobs", locked)
                return
            else:  # a heartbeat is being committed, or another connection holds the lock
                await asyncio.sleep(pause)
                pause = min(2 * pause, _SHORT)

    def _refused(self, batch: list[Settling], claim: Claim | None, error: StoreError) -> None:
        """Handle a batch that the database refuses. Settle each run alone and without a claim, so that only the refused
        run fails. It fails after several refusals: the first refusal may have another reason."""
        if len(batch) > 1 or claim is not None:
            self._alone.extend(batch)
            return
        [(run, to)] = batch
        run.refusals += 1
        if run.refusals % _TRIES:
            self._alone.append((run, to))
        elif run.refusals == _TRIES:
            log.error("%r can't be settled as %s: %s", run, to.status, error)
            self.conclude(run, Failed(f"The outcome could not be stored: {error}", final=True))
        else:
            log.error("%r can't be settled at all: its lease runs out, and a rescue decides: %s", run, error)
            self._slots.forget(run)

    def _judged(self, run: Run, to: Transition, verdict: Verdict) -> None:
        match verdict.answer:
            case Answer.CHANGED if verdict.status is not None and run.outcome is not None:
                run.job = replace(run.job, status=verdict.status)  # a cancel came in between: decide again
                self.conclude(run, run.outcome)
            case Answer.LOST:
                log.warning("%r is not ours any more: its outcome (%s) is dropped", run, to.event)
                self._slots.forget(run)
            case _:
                self._slots.forget(run)

    async def _take(self, claimed: Claimed, claim: Claim, sent: float, rings: int) -> None:
        self._last_claim_was_full = len(claimed.jobs) == claim.limit
        if not self._last_claim_was_full and not (claimed.contended and claimed.jobs):
            self._may_have_work = self._rings > rings  # the doorbell has rung since the claim was sent
            if claimed.contended:  # other workers have locked all jobs that are due: don't ask all the time
                if self._again is not None:
                    self._again.cancel()
                self._again = self._slots.loop.call_later(self._pause(self._in_vain), self.wake)
        else:
            self._may_have_work = True
        self._in_vain = self._in_vain + 1 if claimed.contended and not claimed.jobs else 0
        self._promote_in(claimed.next_due)
        self._start_in(claimed.next_start)
        self._limited = claimed.limited
        self._slots.weigh(claimed)
        marked = claim.start if claimed.start is None else claimed.start
        self._admit(claimed.jobs, lease=claim.lease, marked=marked, sent=sent)

    # ── Start marks ──

    def mark(self, runs: list[Run]) -> None:
        """Write their start marks, then call `marked`. A run that can't be marked is given back."""
        self._spawn(self._mark(runs))

    async def _mark(self, runs: list[Run]) -> None:
        sent = time.monotonic()
        try:
            beats = [Beat(run.job.id, run.job.version, True, run.job.locked_by) for run in runs]
            holds = await self._store.heartbeat(beats, 0.0)  # the lease stays as it is, so no index changes
        except Exception as error:
            if not isinstance(error, StoreError):
                log.exception("worker %s: start marks can't be written", self._slots.name)
            holds = [Hold.UNSEEN] * len(runs)
        for run, hold in zip(runs, holds, strict=True):
            if run.concluded:  # cancelled, or given back, in the meantime
                continue
            if hold in (Hold.KEPT, Hold.CANCEL):
                run.marked = True
            elif hold is Hold.LOST:
                self._slots.forget(run)
            else:
                self.conclude(run, Released("no start mark"))
        self._slots.marking = 0.9 * self._slots.marking + 0.1 * (time.monotonic() - sent)
        self._marked()

    # ── Claims whose reply was lost ──

    def look_for_lost_claims(self) -> None:
        self.claim_lost = True
        self._changed.set()

    async def _find_lost_claims(self) -> None:
        """Give back the jobs of a claim whose reply never came, so that they don't wait for their leases to run out."""
        held = await self._store.held_by([self._slots.name])
        known = {key for key, run in self._slots.runs.items() if run.interruption is not Interruption.LOST}
        unknown = [beat for beat in held if (beat.id, beat.version) not in known]
        if unknown:
            log.warning("worker %s gives back %d jobs of a claim whose reply was lost", self._slots.name, len(unknown))
            await give_back(self._store, unknown, "the reply to the claim was lost")
        self.claim_lost = False

    def _rest(self, error: Exception) -> None:
        self._may_have_work = True
        self._last_claim_was_full = False
        pause = self._backoff.failed(error)
        if not self._resting:  # one pause for both rounds: each pause ends with two more of them
            self._resting = True
            self._slots.loop.call_later(pause, self._rested)

    def _rested(self) -> None:
        self._resting = False
        self._changed.set()

    # ── Promotion: a job whose run_at has come must be made ready ──

    def _promote_in(self, seconds: float | None) -> None:
        if seconds is None or seconds >= 3600:
            return
        # Jobs that other connections have locked stay due.
        wait = max(seconds, self._pause(self._promoted_in_vain) if self._promoted_in_vain else 0.0)
        at = time.monotonic() + wait
        if self._due is not None and self._due_at <= at:
            return  # the earlier one stays: later claims must not put it off for ever
        if self._due is not None:
            self._due.cancel()
        self._due, self._due_at = self._slots.loop.call_later(wait, self._promote_now), at

    def _start_in(self, seconds: float | None) -> None:
        """Claim again when a rate lets a job start. The earlier time stays: the claim at that time tells the next."""
        if seconds is None or seconds >= 3600:
            return
        at = time.monotonic() + seconds
        if self._rated is not None and self._rated_at <= at:
            return
        if self._rated is not None:
            self._rated.cancel()
        self._rated, self._rated_at = self._slots.loop.call_later(seconds, self._start_now), at

    def _start_now(self) -> None:
        self._rated = None
        self.wake()

    def _promote_now(self) -> None:
        self._due = None
        self._spawn(self._promote())

    def _pause(self, times: int) -> float:
        """Return the seconds to wait after so many tries in vain."""
        return min(self._settings.poll, _SHORT * 2.0 ** min(times, 20))

    async def _promote(self) -> None:
        try:
            while (promoted := await self._store.promote(_PROMOTED)) == _PROMOTED and not self._slots.stopping:
                self.wake()
            self._promoted_in_vain = 0 if promoted else self._promoted_in_vain + 1
        except StoreError as error:
            log.debug("promote: %s; maintenance will do it", error)
        self.wake()
