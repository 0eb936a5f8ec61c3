"""One thread per connection: SQLite's calls block, and the event loop must not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
Answer = tuple["asyncio.Future[Any]", Any, BaseException | None]

_BREATH = 0.01  # seconds to wait for memory


class Worker:
    """Runs functions in the order in which they came in, on a daemon thread. So a store that was never closed doesn't
    keep the process alive. SQLite rolls back a transaction that was cut off."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._busy = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        """Return about how many functions wait or run."""
        return self._queue.qsize() + self._busy

    def submit(self, function: Callable[[], None]) -> None:
        """Run the function later, without an answer. It must not raise."""
        self._queue.put(function)

    async def call(self, function: Callable[[], T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def run() -> None:
            if future.cancelled():  # the caller was cancelled before this began
                return
            result, problem = None, None
            try:
                result = function()
            except BaseException as error:  # raised where the answer is awaited
                problem = error
            self._busy = False  # before the answer is delivered: its receiver must find this thread idle
            while True:
                try:
                    deliver([(future, result, problem)])
                    return
                except MemoryError:  # else the caller would wait for ever
                    time.sleep(_BREATH)

        self._queue.put(run)
        return await future

    def submit_stop(self) -> None:
        """Let the thread end after the queued functions."""
        self._queue.put(None)

    def stop(self) -> None:
        """End the thread after the queued functions, and wait for its end."""
        self.submit_stop()
        self._thread.join()

    def _work(self) -> None:
        while True:
            try:
                if (function := self._queue.get()) is None:
                    return
                self._busy = True
                function()
                del function  # or its result would live until the next call
            except MemoryError:  # a handler took all memory; if this thread ended, its connection would stay locked
                time.sleep(_BREATH)
            self._busy = False


def deliver(answers: Iterable[Answer]) -> None:
    """Hand answers to the event loops that wait for them: one wake-up per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
    for answer in answers:
        by_loop.setdefault(answer[0].get_loop(), []).append(answer)
    for loop, batch in by_loop.items():
        with suppress(RuntimeError):  # the loop has been closed, so no task waits
            loop.call_soon_threadsafe(_resolve, batch)


def _resolve(answers: list[Answer]) -> None:
    for future, result, error in answers:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
