"""Watch: a thread that interrupts modules whose runs must end. It lives only while modules run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from rowlock.errors import Cancelled, Interrupted
from rowlock.wasm.guest import Guest

_LOOK_EVERY = 0.05  # seconds
_LINGER = 1.0  # seconds that the thread waits for another call: one thread per call would cost more than a short call


class _Watched:
    def __init__(self, guest: Guest, interrupt: Callable[[], None], patience: float) -> None:
        self._guest = guest
        self._interrupt = interrupt
        self._patience = patience
        self._heard: float | None = None  # when the job was seen to be cancelled

    def check(self) -> None:
        """Interrupt the module if its run must end. This is repeated until it has ended."""
        try:
            self._guest.ctx.check()
        except Cancelled:
            self._heard = self._heard or time.monotonic()
            if time.monotonic() - self._heard < self._patience:
                return
        except Interrupted:
            pass
        else:
            return
        self._guest.interrupted.set()
        self._interrupt()


class Watch:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[Guest, _Watched] = {}
        self._came = threading.Event()
        self._has_thread = False

    def add(self, guest: Guest, interrupt: Callable[[], None], patience: float) -> None:
        """Call `interrupt` when the run must end. `patience`: seconds after a cancel in which the module may end by
        itself."""
        with self._lock:
            self._watched[guest] = _Watched(guest, interrupt, patience)
            self._came.set()
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._look, name="rowlock-wasm-watch", daemon=True).start()

    def remove(self, guest: Guest) -> None:
        """Never call its `interrupt` again: the next call on the same engine has nothing to do with it."""
        with self._lock:
            del self._watched[guest]

    def _look(self) -> None:
        while True:
            with self._lock:
                self._came.clear()
                for watched in self._watched.values():
                    watched.check()
                busy = bool(self._watched)
            if busy:
                time.sleep(_LOOK_EVERY)
            elif not self._came.wait(_LINGER):
                with self._lock:
                    self._has_thread = bool(self._watched)
                    if not self._has_thread:
                        return


_watch = Watch()


def _start_anew() -> None:
    """Make a new Watch in a child after fork(): the thread, and the calls that it watched, are in the parent only."""
    global _watch
    _watch = Watch()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_start_anew)


def watch() -> Watch:
    """Return the Watch of this process."""
    return _watch
