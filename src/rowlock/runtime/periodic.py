"""Loop: calls a function again and again, with a pause after each call. Worker and server use it for periodic work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from math import inf

from rowlock.errors import StoreClosed, StoreError
from rowlock.runtime.backoff import Backoff

log = logging.getLogger("rowlock")

_AFTER_A_MISTAKE = 1.0  # seconds, at least, after an error that is none of the store's


class Loop:
    """Calls `once`, which returns the seconds until the next call, or None to end the loop.
    It may return inf: then `wake` starts the next call.

    The first of several failures in a row is logged. After each failure the pause grows, up to `longest` seconds.
    `shortest`: seconds between two calls, however often `wake` is called. The loop also ends if the store is closed.
    """

    def __init__(
        self, name: str, once: Callable[[], Awaitable[float | None]], *, longest: float = 2.0, shortest: float = 0.0
    ) -> None:
        self._name = name
        self._once = once
        self._shortest = shortest
        self._backoff = Backoff(name, longest)
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._in_call = False
        self._ending = False

    @property
    def task(self) -> asyncio.Task[None] | None:
        """None if the loop was not started, or has ended."""
        return None if self._task is None or self._task.done() else self._task

    def start(self, delay: float = 0.0) -> None:
        """Make the first call after `delay` seconds. Does nothing while the loop runs."""
        if self.task is None and not self._ending:
            self._task = asyncio.create_task(self._run(delay))

    def wake(self) -> None:
        """End the pause, or leave out the next one. The pause after a failure is not cut short."""
        self._woken.set()

    async def stop(self, *, finish: bool = False) -> None:
        """End the loop for good. `finish`: wait for the call that is under way instead of cancelling it."""
        self._ending = True
        task = self.task
        if task is None or task is asyncio.current_task():
            return
        if not (finish and self._in_call):
            task.cancel()
        await asyncio.wait([task])

    async def _run(self, delay: float) -> None:
        await self._wait(delay)
        while (pause := await self._call()) is not None and not self._ending:
            await asyncio.sleep(min(self._shortest, pause))
            await self._wait(pause - self._shortest)

    async def _call(self) -> float | None:
        """Return the seconds to wait, None to end."""
        self._woken.clear()
        self._in_call = True
        try:
            pause = await self._once()
            self._backoff.worked()
        except StoreClosed:
            return None
        except StoreError as error:
            await self._fail(self._backoff.failed(error))
            return 0.0
        except Exception as error:
            log.exception("%s: unexpected error", self._name)
            await self._fail(max(_AFTER_A_MISTAKE, self._backoff.failed(error)))
            return 0.0
        finally:
            self._in_call = False
        return pause

    async def _fail(self, seconds: float) -> None:
        self._in_call = False
        if not self._ending:
            await asyncio.sleep(seconds)

    async def _wait(self, seconds: float) -> None:
        if seconds > 0:
            await is_set_within(self._woken, seconds)


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, for at most so many seconds. Return False if it was not set by then."""
    try:
        async with asyncio.timeout(None if seconds == inf else seconds):
            return await event.wait()
    except TimeoutError:
        return False
