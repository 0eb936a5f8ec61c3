"""Waking up: in this process by a call, across processes by watching PRAGMA data_version.

Where the system reports writes to the write-ahead log, the watcher looks after each report; else every now and then.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from rowlock.errors import StoreClosed, StoreError, StoreUnavailable
from rowlock.stores.sqlite import filewatch
from rowlock.stores.sqlite.threads import deliver

# Seconds between looks where the system doesn't report writes: _OFTEN just after a change, growing to _SELDOM after
# _CALM seconds without one. A look costs about 0.1 ms of CPU, nearly all of it for waking up.
_OFTEN, _SELDOM, _CALM = 0.01, 0.05, 1.0
# Where the system reports writes: a transaction is written some time before it is committed, so look every _SOON
# seconds for a _MOMENT. Look every _RARELY seconds in any case, because some mounts report nothing.
_SOON, _MOMENT, _RARELY = 0.0005, 0.02, 0.25


class Doorbell:
    """Rings are counted, so that one between two waits is not missed. Any thread may ring."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rings = 0
        self._heard = 0
        self._waiters: set[asyncio.Future[bool]] = set()
        self._closed: StoreClosed | None = None
        self.awaited = threading.Event()  # a task waits, or the doorbell was closed

    def ring(self) -> None:
        with self._lock:
            self._rings += 1
            waiters = self._take_waiters()
        deliver([(waiter, True, None) for waiter in waiters])

    def close(self, error: StoreClosed) -> None:
        with self._lock:
            self._closed = error
            waiters = self._take_waiters()
            self.awaited.set()
        deliver([(waiter, None, error) for waiter in waiters])

    async def wait(self, timeout: float) -> bool:
        with self._lock:
            if self._closed is not None:
                raise self._closed
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
                if not self._waiters and self._closed is None:
                    self.awaited.clear()

    def _take_waiters(self) -> list[asyncio.Future[bool]]:
        waiters = list(self._waiters)
        self._waiters.clear()
        if self._closed is None:
            self.awaited.clear()
        return waiters


class Look(NamedTuple):
    """`reopened`: how often another file has taken the place of the one that was watched. `version`: changes with every
    commit of other connections."""

    reopened: int
    version: int


class Watcher:
    """A thread that looks for commits of other connections, as long as a task waits for them."""

    def __init__(
        self, doorbell: Doorbell, look: Callable[[], Look], close: Callable[[], None], log: str | None
    ) -> None:
        """`log`: the path of the write-ahead log."""
        self._doorbell = doorbell
        self._log = log
        self._written = None if log is None else filewatch.watch(log)
        self._turn = threading.Lock()  # for changing `_written`
        self._look = look
        self._close = close
        self._stopped = threading.Event()
        self._seen = look()
        self._thread = threading.Thread(target=self._watch, name="rowlock-sqlite-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, after the doorbell was closed, and wait for its end, which takes no time. Its connection
        must be closed before the last connection of the store."""
        with self._turn:
            self._stopped.set()
            if self._written is not None:
                self._written.wake()
        self._thread.join()
        if self._written is not None:  # not by the thread: it may end before it is woken, and descriptors are reused
            self._written.close()

    def _watch(self) -> None:
        changed = soon = time.monotonic()
        while self._doorbell.awaited.wait() and not self._stopped.is_set():
            if self._has_changed():
                changed = time.monotonic()
                self._doorbell.ring()
                continue
            if self._written is None:
                calm = min((time.monotonic() - changed) / _CALM, 1.0)
                self._stopped.wait(_OFTEN + (_SELDOM - _OFTEN) * calm)
            elif time.monotonic() < soon:
                self._stopped.wait(_SOON)
            elif self._written.wait(_RARELY):
                soon = time.monotonic() + _MOMENT
        self._close()

    def _has_changed(self) -> bool:
        """Return True if something was committed. A False may be wrong: waiting workers poll as well."""
        try:
            seen = self._look()
        except StoreError as error:
            if isinstance(error, StoreUnavailable):  # the file may be gone: the waiting tasks look, and get the error
                self._doorbell.ring()
            return False
        before, self._seen = self._seen, seen
        if seen.reopened != before.reopened:
            self._watch_anew()
        return seen != before

    def _watch_anew(self) -> None:
        """Watch the log anew: another file has another log."""
        with self._turn:
            if self._written is not None and self._log is not None and not self._stopped.is_set():
                self._written.close()
                self._written = filewatch.watch(self._log)
