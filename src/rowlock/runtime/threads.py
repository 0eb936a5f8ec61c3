"""Threads for sync handlers. They may be left behind; the standard pool would wait for them when the program ends."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar, cast

T = TypeVar("T")

_BREATH = 0.01  # seconds to wait for memory

_Work = tuple[contextvars.Context, Callable[[], object], "asyncio.Future[object]"]


class Threads:
    """As many threads as are needed at once; idle threads are used again. Belongs to an event loop.

    `leaks`: called with 1 when a thread goes on with a cancelled function, and with -1 when that function returns.
    """

    def __init__(self, leaks: Callable[[int], None]) -> None:
        self._leaks = leaks
        self._idle: list[_Thread] = []
        self._closed = False

    async def run(self, function: Callable[[], T]) -> T:
        """Return what `function` returns; it must not raise. If this is cancelled the function goes on: nothing can
        stop a thread."""
        loop = asyncio.get_running_loop()
        thread = self._idle.pop() if self._idle else _Thread()
        future: asyncio.Future[T] = loop.create_future()
        ended = thread.work(contextvars.copy_context(), function, future)
        try:
            result = await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # the answer came in the same moment
                self._keep(thread)
                return future.result()
            self._leaks(1)
            ended.add_done_callback(lambda _: self._returned(thread))
            raise
        self._keep(thread)
        return result

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().stop()

    def _returned(self, thread: _Thread) -> None:
        self._keep(thread)
        self._leaks(-1)

    def _keep(self, thread: _Thread) -> None:
        if self._closed:
            thread.stop()
        else:
            self._idle.append(thread)


class _Thread:
    """A daemon: it must not keep the program from ending."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="rowlock-handler", daemon=True).start()

    def work(
        self, context: contextvars.Context, function: Callable[[], T], future: asyncio.Future[T]
    ) -> asyncio.Future[None]:
        """Run `function` and set the result of `future`, unless it was cancelled. Return a future that is done then, in
        any case."""
        loop = future.get_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def answer(result: T | None, error: BaseException | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(cast(T, result))
                else:
                    future.set_exception(RuntimeError(f"{type(error).__name__} in a thread"))
            ended.set_result(None)

        def run() -> None:
            result, problem = None, None
            try:
                result = context.run(function)
            except (
                BaseException
            ) as error:  # it must not raise; but if the thread ended here, the worker would wait for ever
                problem = error
            while True:
                try:
                    with suppress(RuntimeError):  # the event loop has been closed
                        loop.call_soon_threadsafe(answer, result, problem)
                    return
                except MemoryError:  # the handler has used all of it, and is about to release it
                    time.sleep(_BREATH)

        self._queue.put(run)
        return ended

    def stop(self) -> None:
        self._queue.put(None)

    def _work(self) -> None:
        while (run := self._queue.get()) is not None:
            run()
            del run  # or its objects would live until the next one
