"""The portal: a thread with an event loop, for callers that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from rowlock.errors import OutcomeUnknown, StoreClosed, WrongContext

T = TypeVar("T")


class Portal:
    """Starts with the first call. Its thread is a daemon, so the process can end at any time."""

    def __init__(self, name: str = "rowlock") -> None:
        self._name = name
        self._lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def started(self) -> bool:
        return self.loop is not None

    @property
    def is_here(self) -> bool:
        """True in the portal's own thread."""
        return threading.current_thread() is self._thread

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the portal's thread and wait for it. Any number of threads may call at once."""
        refuse_in_loop()
        future = self.submit(make)
        try:
            return future.result()
        except CancelledError:
            raise OutcomeUnknown(
                "these Jobs were closed during this call: it may have been carried out, or not"
            ) from None
        except BaseException:
            future.cancel()  # the caller was interrupted, and does not wait for the answer
            raise

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        with self._lock:
            if self._closed:
                raise StoreClosed("these Jobs were closed: call open(), or create new ones")
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._work, args=(self.loop,), name=self._name, daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(make(), self.loop)

    def close(self) -> None:
        """Stop the loop. Waiting calls raise OutcomeUnknown."""
        with self._lock:
            self._closed = True
            loop, self.loop = self.loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            if self._thread is not threading.current_thread():
                self._thread.join()

    @staticmethod
    def _work(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def refuse_in_loop() -> None:
    if running_loop() is not None:
        raise WrongContext(
            "jobs.sync would block the event loop that runs in this thread: use `await jobs.…` here, "
            "or call it from a thread (asyncio.to_thread)"
        )


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits in this thread. A sync driver's `conn=` must be used in its own thread."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise AssertionError("a coroutine for a sync connection has waited for something")
