"""Waking up: in this process by a call, across processes by watching PRAGMA data_version."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from rowlock.errors import StoreClosed, StoreError
from rowlock.stores.sqlite.threads import deliver

_INTERVAL = 0.005  # seconds between looks. 15 µs each: 0.3 % of a core while somebody waits, nothing while nobody does


class Doorbell:
    """Rings are counted, so that one between two waits is not missed. Any thread may ring."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rings = 0
        self._heard = 0
        self._waiters: set[asyncio.Future[bool]] = set()
        self.awaited = threading.Event()

    def ring(self) -> None:
        with self._lock:
            self._rings += 1
            waiters = self._take_waiters()
        deliver([(waiter, True, None) for waiter in waiters])

    def close(self, error: StoreClosed) -> None:
        with self._lock:
            waiters = self._take_waiters()
        deliver([(waiter, None, error) for waiter in waiters])

    async def wait(self, timeout: float) -> bool:
        with self._lock:
            if self._rings != self._heard:
                self._heard = self._rings
                return True
            waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            self.awaited.set()
        try:
            async with asyncio.timeout(timeout):
                await waiter
            return True
        except TimeoutError:
            return self._rings != self._heard  # it may have rung at the last moment
        finally:
            with self._lock:
                self._heard = self._rings
                self._waiters.discard(waiter)
                if not self._waiters:
                    self.awaited.clear()

    def _take_waiters(self) -> list[asyncio.Future[bool]]:
        waiters = list(self._waiters)
        self._waiters.clear()
        self.awaited.clear()
        return waiters


class Watcher:
    """A thread that looks for commits of other connections, as long as somebody waits for them."""

    def __init__(self, doorbell: Doorbell, data_version: Callable[[], int], close: Callable[[], None]) -> None:
        self._doorbell = doorbell
        self._data_version = data_version
        self._close = close
        self._stopped = False
        self._seen = data_version()
        self._thread = threading.Thread(target=self._watch, name="rowlock-sqlite-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._doorbell.awaited.set()

    def _watch(self) -> None:
        while self._doorbell.awaited.wait() and not self._stopped:
            with suppress(StoreError):  # a hint, never the truth: whoever waits polls as well
                version = self._data_version()
                if version != self._seen:
                    self._seen = version
                    self._doorbell.ring()
                    continue
            time.sleep(_INTERVAL)
        self._close()
