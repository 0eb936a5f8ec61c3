"""Threads for sync handlers. The standard pool waits for its threads when the program ends; ours may be left behind."""

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
    """As many as are needed at once; idle ones are used again. Belongs to an event loop. `found`: called when a thread
    that had leaked is there again."""

    def __init__(self, found: Callable[[], None]) -> None:
        self._found = found
        self._idle: list[_Thread] = []
        self._closed = False
        self.leaked = 0  # still running a function that nobody waits for

    async def run(self, function: Callable[[], T]) -> T:
        """`function` must not raise. If this is cancelled the function runs on: nothing can stop a thread."""
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
            self.leaked += 1
            ended.add_done_callback(lambda _: self._returned(thread))
            raise
        self._keep(thread)
        return result

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().stop()

    def _returned(self, thread: _Thread) -> None:
        self.leaked -= 1
        self._keep(thread)
        self._found()

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
        """Answers `future` if it still waits, and then the future that is returned, in any case."""
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
            except BaseException as error:  # it must not: but a dead thread would answer nobody
                problem = error
            while True:
                try:
                    with suppress(RuntimeError):  # the loop has been closed: nobody waits
                        loop.call_soon_threadsafe(answer, result, problem)
                    return
                except MemoryError:  # the handler ate it all, and lets go of it now
                    time.sleep(_BREATH)

        self._queue.put(run)
        return ended

    def stop(self) -> None:
        self._queue.put(None)

    def _work(self) -> None:
        while (run := self._queue.get()) is not None:
            run()
            del run  # or what it holds would live until the next one
