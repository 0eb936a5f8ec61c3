"""Where workers come that are not ours: they wait here for jobs, are put on the register, and have somebody who looks
after what they leave behind, because nobody else may be there to do it."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rowlock import __version__
from rowlock.core.job import Job
from rowlock.errors import StoreError
from rowlock.http.problems import Problem
from rowlock.runtime.maintenance import Maintenance
from rowlock.runtime.settings import WorkerSettings
from rowlock.runtime.trust import Trust
from rowlock.stores.base import Claim, Store, WorkerInfo

log = logging.getLogger("rowlock.http")

_POLL = 1.0  # seconds between looks for work when nobody rings
_REPORT = 10.0  # seconds between reports of a worker that claims
_IDLE = 60.0  # seconds without a claim after which nobody is looked after any more
MOST = 1000  # who wait at once
_KEPT = 10_000


class Desk:
    """For one event loop."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store
        self._waiting: set[asyncio.Future[None]] = set()
        self._reported: dict[str, float] = {}
        self._last = 0.0  # claim
        self._loops: list[asyncio.Task[None]] = []
        self._stopping = False

    async def seen(self, worker: str, host: str, topics: Sequence[str], limit: int, lease: float) -> None:
        """It is alive: for the register, so that people see who works, and know why nobody does."""
        now = time.monotonic()
        if now < self._reported.get(worker, 0.0):
            return
        if len(self._reported) >= _KEPT:
            self._reported.clear()
        self._reported[worker] = now + min(_REPORT, lease / 3)
        info = WorkerInfo(
            name=worker, host=host, pid=0, topics=tuple(sorted(topics)), concurrency=limit, running=0, lease=lease,
            rowlock=f"http {__version__}",
        )  # fmt: skip
        await (await self._store()).report(info)

    async def claim(self, wanted: Claim, wait: float, gone: asyncio.Future[Any] | None) -> list[Job]:
        self._last = time.monotonic()
        self._look_after()
        store = await self._store()
        deadline = time.monotonic() + wait
        while True:
            claimed = await store.claim(wanted)
            if not claimed.jobs and claimed.next_due is not None and claimed.next_due <= 0 and await store.promote():
                continue
            left = deadline - time.monotonic()
            if claimed.jobs or left <= 0 or self._stopping or (gone is not None and gone.done()):
                return claimed.jobs
            if len(self._waiting) >= MOST:
                raise Problem(429, "too_many_waiting", "too many wait already", headers={"retry-after": "5"})
            soon = left if claimed.next_due is None else min(left, max(claimed.next_due, 0.01))
            await self._rung(0.01 if claimed.contended else min(soon, _POLL), gone)

    def stop(self) -> None:
        self._stopping = True
        self._ring()
        for loop in self._loops:
            loop.cancel()

    async def _rung(self, timeout: float, gone: asyncio.Future[Any] | None) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait([future, *([gone] if gone is not None else [])], timeout=timeout,
                               return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
        finally:
            self._waiting.discard(future)
            future.cancel()

    def _ring(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    # ── While there are such workers ──

    def _look_after(self) -> None:
        if not self._loops and not self._stopping:
            self._loops = [asyncio.create_task(self._listen()), asyncio.create_task(self._maintain())]

    @property
    def _is_idle(self) -> bool:
        return not self._waiting and time.monotonic() - self._last > _IDLE

    async def _listen(self) -> None:
        while not self._is_idle:
            try:
                if await (await self._store()).wait_for_work(_POLL):
                    self._ring()
            except StoreError:
                await asyncio.sleep(_POLL)
        self._loops = []

    async def _maintain(self) -> None:
        settings = WorkerSettings()
        by = f"{socket.gethostname()[:64]}-{os.getpid()}-http-{secrets.token_hex(4)}"
        upkeep = Maintenance(await self._store(), settings, by, Trust(settings.beat), self._ring, lambda _: None)
        while not self._is_idle:
            try:
                pause = await upkeep.run_once()
            except StoreError as error:
                log.warning("upkeep for workers over HTTP: %s", error)
                pause = settings.maintenance
            await asyncio.sleep(pause)
