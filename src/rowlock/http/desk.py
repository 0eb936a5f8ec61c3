"""Where workers come that are not ours. They wait here for jobs and are put on the register; and while there are any,
somebody is here who looks after what they leave behind, because nobody else may be there to do it."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from rowlock import __version__
from rowlock.core.job import Job
from rowlock.errors import StoreClosed, StoreError
from rowlock.http.problems import Problem
from rowlock.http.timeouts import Timeouts
from rowlock.http.turns import Turns
from rowlock.runtime.maintenance import Maintenance
from rowlock.runtime.settings import WorkerSettings
from rowlock.runtime.trust import Trust
from rowlock.stores.base import Claim, Store, WorkerInfo

log = logging.getLogger("rowlock.http")

UPKEEP = WorkerSettings()
MOST_WAITING = 1000
_POLL = 1.0  # seconds between looks for work when nobody rings
_SOON = 0.05  # seconds until a look that others were in the way of is worth another one
_BREATH = 0.02  # seconds between looks when it rings all the time
_REPORT = 10.0  # seconds between reports to the register, unless a lease is short
_LINGER = 60.0  # seconds for which somebody looks after what is left, when the last lease is over
_KNOWN = 10_000  # workers


class Desk:
    """For one event loop."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store
        self._turns = Turns()
        self._polls = 0  # who waits, or is about to look
        self.timeouts = Timeouts()
        self._known: dict[str, WorkerInfo] = {}
        self._reports: dict[str, float] = {}  # when the next one is due
        self._until = 0.0  # what workers have left behind is looked after
        self._alarm: asyncio.TimerHandle | None = None
        self._listener: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def waiting(self) -> int:
        return len(self._turns)

    async def claim(self, wanted: Claim, wait: float, host: str, gone: asyncio.Future[Any]) -> list[Job]:
        """What there is, or what comes within `wait` seconds; nothing for those who are `gone` by then."""
        if wait and self._polls >= MOST_WAITING:
            raise Problem("too_many_waiting", "too many wait already", headers={"retry-after": "5"})
        self._polls += 1
        try:
            return await self._claim(wanted, wait, host, gone)
        finally:
            self._polls -= 1

    async def _claim(self, wanted: Claim, wait: float, host: str, gone: asyncio.Future[Any]) -> list[Job]:
        store = await self._store()
        info = WorkerInfo(
            name=wanted.worker, host=host, pid=0, topics=tuple(sorted(lane.topic for lane in wanted.lanes)),
            concurrency=wanted.limit, running=0, lease=wanted.lease, rowlock=f"http {__version__}",
        )  # fmt: skip
        deadline = time.monotonic() + wait
        await self._see(store, info)
        while not (self._stopping or gone.done()):
            rings = self._turns.rings
            claimed = await store.claim(wanted)
            if claimed.jobs:
                if len(claimed.jobs) == wanted.limit:
                    self._turns.next(wanted.lanes)
                self.timeouts.begin(claimed.jobs)
                return claimed.jobs
            due = claimed.next_due
            if due is not None and due <= 0 and await store.promote():
                continue
            if self._turns.rings != rings and time.monotonic() < deadline:
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
        """Is it their turn to look? Meanwhile they are alive, and said to be."""
        while (left := until - time.monotonic()) > 0 and not (self._stopping or gone.done()):
            self._listen(store)
            if await self._turns.wait(wanted.lanes, min(left, _report_after(info)), gone):
                return True
            await self._see(store, info)
        return False

    async def renewed(self, worker: str, lease: float) -> None:
        """It has kept its runs: also one that has no time to claim is alive."""
        store = await self._store()
        info = self._known.get(worker)
        if info is None:  # it was another process, or an earlier one, where it claimed
            info = next((one for one in await store.workers() if one.name == worker), None)
        if info is not None:
            await self._see(store, replace(info, lease=lease))

    async def leave(self, worker: str) -> None:
        self._known.pop(worker, None)
        self._reports.pop(worker, None)
        await (await self._store()).retire([worker])

    def ring(self) -> None:
        self._turns.ring()

    def stop(self) -> None:
        """Everyone is told that there is nothing, now."""
        self._stopping = True
        self._turns.dismiss()
        if self._alarm is not None:
            self._alarm.cancel()
        for task in (self._listener, self._keeper):
            if task is not None:
                task.cancel()

    # ── The register, so that people see who works, and know why nobody does ──

    async def _see(self, store: Store, info: WorkerInfo) -> None:
        now = time.monotonic()
        self._until = max(self._until, now + info.lease + _LINGER)
        self._keep(store)
        if now < self._reports.get(info.name, 0.0) and info.topics == self._known[info.name].topics:
            return
        if len(self._known) >= _KNOWN:
            self._known.clear()
            self._reports.clear()
        self._known[info.name] = info
        self._reports[info.name] = now + _report_after(info)
        await store.report(replace(info, running=len(await store.held_by(info.name))))

    # ── While there are such workers ──

    def _ring_in(self, seconds: float) -> None:
        """A job becomes due: one alarm for everyone, the first that is wanted."""
        loop = asyncio.get_running_loop()
        if self._alarm is None or self._alarm.when() < loop.time() or self._alarm.when() > loop.time() + seconds:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = loop.call_later(seconds, self.ring)

    def _listen(self, store: Store) -> None:
        if self._listener is None:
            self._listener = asyncio.create_task(self._ring_for_work(store))

    async def _ring_for_work(self, store: Store) -> None:
        try:
            while self.waiting:
                try:
                    await store.wait_for_work(_POLL)
                except StoreClosed:
                    break
                except StoreError:
                    await asyncio.sleep(_POLL)
                self._turns.ring()
                await asyncio.sleep(_BREATH)
        finally:
            self._listener = None
            self._turns.ring()  # if anybody is left, the database is gone: they find out

    def _keep(self, store: Store) -> None:
        if self._keeper is None and not self._stopping:
            self._keeper = asyncio.create_task(self._look_after(store))

    async def _look_after(self, store: Store) -> None:
        by = f"{socket.gethostname()[:64]}-{os.getpid()}-http-{secrets.token_hex(4)}"
        trust = Trust(max(UPKEEP.maintenance, 1.0))  # its passes are its own contacts: it has no heartbeats
        upkeep = Maintenance(store, UPKEEP, by, trust, self.ring, lambda _: None)
        try:
            while time.monotonic() < self._until:
                pause = UPKEEP.maintenance
                try:
                    pause = await upkeep.run_once()
                except StoreClosed:
                    break
                except StoreError as error:
                    log.warning("upkeep for workers over HTTP: %s", error)
                await asyncio.sleep(pause)
        finally:
            self._keeper = None


def _report_after(info: WorkerInfo) -> float:
    return min(_REPORT, info.lease / 3)
