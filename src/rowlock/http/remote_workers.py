"""Workers that talk to this server over HTTP: their long polls for work, and their entries in the register."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from math import inf
from typing import Any

from msgspec.structs import replace

from rowlock import __version__
from rowlock.core import codec
from rowlock.core.job import Job
from rowlock.core.steps import MAX_STEP_BYTES, MAX_STEPS, MarkingRun, StepMark
from rowlock.http.long_polls import LongPolls
from rowlock.http.problems import Problem
from rowlock.runtime.periodic import Loop
from rowlock.stores import reading
from rowlock.stores.base import Beat, Claim, Hold, Store, WorkerInfo
from rowlock.stores.queries import State

MOST_WAITING = 1000  # long polls
_POLL = 1.0  # seconds between two looks for work while the doorbell is silent
_SOON = 0.05  # seconds until the next look if other workers had locked all jobs that are due
_BREATH = 0.02  # seconds between two looks, however often the doorbell rings
_REPORT = 10.0  # seconds between two reports of a worker to the register, unless its lease is short
_LINGER = 60.0  # seconds after the last lease for which this server still does maintenance for remote workers
_KNOWN = 10_000  # workers that are remembered
_MOST_TIMEOUTS = 100_000
_MOST_COUNTED = 1000  # runs whose steps are counted


class RemoteWorkers:
    """The remote workers of one event loop."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store
        self._long_polls = LongPolls()
        self._polls = 0  # claims that wait, or are about to look for work
        self.timeouts = Timeouts()
        self.steps = StepCounts()
        self._known: dict[str, WorkerInfo] = {}
        self._reports: dict[str, float] = {}  # worker → when its next report is due
        self._until = 0.0  # until then this server does maintenance for them
        self._alarm: asyncio.TimerHandle | None = None
        self._listener = Loop("waiting for work for remote workers", self._wait_for_work, longest=_POLL)
        self._limited = False  # some topics have limits
        self._stopping = False

    @property
    def waiting(self) -> int:
        return len(self._long_polls)

    def are_there(self) -> bool:
        """True while remote workers may hold jobs, and for a while after: their jobs may need a rescue."""
        return not self._stopping and time.monotonic() < self._until

    async def claim(self, wanted: Claim, wait: float, host: str, gone: asyncio.Future[Any]) -> list[Job]:
        """Return jobs that are there, or come within `wait` seconds. None for a client that is `gone` by then."""
        if wait and self._polls >= MOST_WAITING:
            raise Problem("too_many_waiting", "too many workers wait already", headers={"retry-after": "5"})
        self._polls += 1
        try:
            return await self._claim(wanted, wait, host, gone)
        finally:
            self._polls -= 1

    async def _claim(self, wanted: Claim, wait: float, host: str, gone: asyncio.Future[Any]) -> list[Job]:
        store = await self._store()
        info = WorkerInfo(
            name=wanted.worker, host=host, pid=0, topics=tuple(map(str, sorted(wanted.lanes))),
            concurrency=wanted.limit, running=0, lease=wanted.lease, rowlock=f"http {__version__}",
        )  # fmt: skip
        deadline = time.monotonic() + wait
        await self._see(store, info)
        while not (self._stopping or gone.done()):
            rings = self._long_polls.rings
            claimed = await store.claim(wanted)
            self._limited = claimed.limited
            if claimed.next_start is not None:  # a rate lets the next job start then, maybe for another worker
                self._ring_in(max(claimed.next_start, _SOON))
            if claimed.jobs:
                if len(claimed.jobs) == wanted.limit:
                    self._long_polls.next(wanted.lanes)
                self.timeouts.begin(claimed.jobs)
                return claimed.jobs
            due = claimed.next_due
            if due is not None and due <= 0 and await store.promote():
                continue
            if self._long_polls.rings != rings and time.monotonic() < deadline:
                continue
            if due is not None:
                self._ring_in(max(due, _SOON))
            until = min(deadline, time.monotonic() + _SOON) if claimed.contended else deadline
            if not await self._turn(store, wanted, info, until, gone) and time.monotonic() >= deadline:
                break
        return []

    async def _turn(
        self, store: Store, wanted: Claim, info: WorkerInfo, until: float, gone: asyncio.Future[Any]
    ) -> bool:
        """Return True when it is this claim's turn to look for work. Meanwhile its worker is reported as alive."""
        while (left := until - time.monotonic()) > 0 and not (self._stopping or gone.done()):
            self._listener.start()
            if await self._long_polls.wait(wanted.lanes, min(left, _report_after(info)), gone):
                return True
            await self._see(store, info)
        return False

    async def renewed(self, worker: str, lease: float) -> None:
        """Record the heartbeat of a worker: it is alive, even if it doesn't claim."""
        store = await self._store()
        info = self._known.get(worker)
        if info is None:  # it has claimed at another server process, or before this one was started
            info = next((one for one in await store.workers() if one.name == worker), None)
        if info is not None:
            await self._see(store, replace(info, lease=lease))

    async def leave(self, worker: str) -> None:
        self._known.pop(worker, None)
        self._reports.pop(worker, None)
        await (await self._store()).retire([worker])

    def have_ended(self) -> None:
        """Wake waiting workers after runs have ended: that may make room in a limit."""
        if self._limited:
            self.ring()

    def ring(self) -> None:
        self._long_polls.ring()

    def stop(self) -> None:
        """Answer all long polls now, with nothing."""
        self._stopping = True
        self._long_polls.dismiss()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._listener.task is not None:
            self._listener.task.cancel()

    # ── The register: it shows operators which workers there are ──

    async def _see(self, store: Store, info: WorkerInfo) -> None:
        now = time.monotonic()
        self._until = max(self._until, now + info.lease + _LINGER)
        if now < self._reports.get(info.name, 0.0) and info.topics == self._known[info.name].topics:
            return
        if len(self._known) >= _KNOWN:
            self._known.clear()
            self._reports.clear()
        self._known[info.name] = info
        self._reports[info.name] = now + _report_after(info)
        await store.report(replace(info, running=len(await store.held_by([info.name]))))

    def _ring_in(self, seconds: float) -> None:
        """Ring when a job becomes due, or may start. All long polls share one alarm, the earliest."""
        loop = asyncio.get_running_loop()
        if self._alarm is None or self._alarm.when() < loop.time() or self._alarm.when() > loop.time() + seconds:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = loop.call_later(seconds, self.ring)

    async def _wait_for_work(self) -> float | None:
        if not self.waiting:
            return None
        try:
            await (await self._store()).wait_for_work(_POLL)
        finally:  # also after an error: the long polls meet it themselves, and answer with it
            self._long_polls.ring()
        return _BREATH


def _report_after(info: WorkerInfo) -> float:
    return min(_REPORT, info.lease / 3)


class Timeouts:
    """The times at which runs of remote workers reach their timeouts, by this process's monotonic clock. Runs that were
    claimed elsewhere are read once."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int], float] = {}

    def begin(self, jobs: Iterable[Job]) -> None:
        now = time.monotonic()
        for job in jobs:
            self._remember(job, now + job.timeout)

    def forget(self, job_id: str, version: int) -> None:
        self._ends.pop((job_id, version), None)

    async def overdue(self, store: Store, worker: str, runs: Sequence[Beat]) -> list[float]:
        """Return by how many seconds each run is over its timeout; negative: seconds left."""
        if unknown := {(run.id, run.version) for run in runs if (run.id, run.version) not in self._ends}:
            await self._look_up(store, worker, unknown)
        now = time.monotonic()
        return [now - self._ends.get((run.id, run.version), inf) for run in runs]  # inf: the run is lost

    async def _look_up(self, store: Store, worker: str, unknown: set[tuple[str, int]]) -> None:
        """Read runs that this worker holds. It may name any run, so the other runs are ignored."""
        ids = [run.id for run in await store.held_by([worker]) if (run.id, run.version) in unknown]
        if not ids:
            return
        clock, now = await store.now(), time.monotonic()
        for state in (await store.read(ids, State)).values():
            began = state.started_at or state.claimed_at
            if began is not None:
                self._remember(state, now + state.timeout - (clock - began).total_seconds())

    def _remember(self, job: Job | State, end: float) -> None:
        if len(self._ends) >= _MOST_TIMEOUTS:
            del self._ends[next(iter(self._ends))]
        self._ends[job.id, job.version] = end


class StepCounts:
    """The number of steps that runs of remote workers have stored, and the sizes of results. A run that is new to this
    process is read once. With several servers, each counts only the requests that it gets itself."""

    def __init__(self) -> None:
        self._sizes: dict[MarkingRun, dict[tuple[str, int], int]] = {}  # by run, then by name and number

    async def knows(self, store: Store, run: Beat) -> bool:
        """Read the steps of a run that this process has not heard of. Return False if its worker does not hold it."""
        if (key := MarkingRun(run.id, run.version, run.worker)) in self._sizes:
            return True
        [hold] = await store.look([run])
        if hold is Hold.LOST:
            return False
        sizes = {(one.name, one.n): _size(one.result) for one in await reading.steps(store, run.id)}
        while len(self._sizes) >= _MOST_COUNTED:
            del self._sizes[next(iter(self._sizes))]
        self._sizes.setdefault(key, sizes)  # two requests of the run may have come at the same time
        return True

    def take(self, mark: StepMark) -> None:
        """Count a mark that is about to be stored. Refuse a step that is one too many, or whose result is too large
        beside the others."""
        sizes, step = self._sizes.get(mark.run, {}), (mark.name, mark.n)
        if step not in sizes and len(sizes) >= MAX_STEPS:
            raise Problem("too_many_steps", f"the job has {MAX_STEPS:,} steps already: fail it as final", field="name")
        if sum(sizes.values()) - sizes.get(step, 0) + _length(mark) > MAX_STEP_BYTES:
            text = f"the results of all steps would have more than {MAX_STEP_BYTES >> 20} MiB"
            raise Problem("steps_too_large", f"{text}: fail the job as final, and store references", field="result")
        sizes[step] = max(sizes.get(step, 0), _length(mark))  # an end that is stored stays

    def forget(self, run: Beat) -> None:
        self._sizes.pop(MarkingRun(run.id, run.version, run.worker), None)


def _length(mark: StepMark) -> int:
    return len((mark.result or "").encode())


def _size(result: Any) -> int:
    return 0 if result is None else len(codec.encode(result, "result").encode())
