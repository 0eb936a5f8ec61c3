"""An event loop in virtual time, for several simulated processes at once.

Time passes only when nobody has anything to do, so a minute takes milliseconds, and the same calls come in the same
order every time. A `Lane` is a thread of a simulated process: what was started in it can be held back (SIGSTOP, or a
handler that blocks) or dropped (SIGKILL), without the code in it noticing or cleaning up.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    _Base = Any  # to type checkers it is abstract: sockets, signals and subprocesses are missing, as they should be
else:
    _Base = asyncio.AbstractEventLoop

T = TypeVar("T")

MOST_TURNS = 20_000  # of the loop without time passing: somebody spins


class Stuck(Exception):
    """Nobody will ever do anything again, or somebody does so without end."""


class Handle:
    """As asyncio's, but cheap: there are thousands in a run."""

    __slots__ = ("args", "at", "callback", "context", "off")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None, at: float
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self.at = at
        self.off = False

    def __repr__(self) -> str:
        return f"<{self.callback} {self.args}>"

    def cancel(self) -> None:
        self.off = True

    def cancelled(self) -> bool:
        return self.off

    def when(self) -> float:
        return self.at


class Lane:
    """`owner`: whose thread it is."""

    def __init__(self, loop: VirtualLoop, owner: Any) -> None:
        self.owner = owner
        self.dead = False
        self.held = False
        self.holds: list[tuple[float, float]] = []  # from when to when
        self._loop = loop
        self.context = Context()  # what is called in it, and whatever comes of that, belongs to the lane
        self.context.run(CURRENT.set, self)
        self._until = 0.0
        self._backlog: list[Handle] = []

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._loop.create_task(work, context=self.context.copy())

    def hold(self, seconds: float) -> None:
        """Nothing of it runs for so long; then all that came due meanwhile."""
        self.held = True
        now = self._loop.time()
        self.holds.append((now, now + seconds))
        self._until = max(self._until, now + seconds)
        self._loop.call_at(self._until, self._release, context=Context())

    def kill(self) -> None:
        """Nothing of it runs ever again, not even what would clean up."""
        self.dead = True

    def revive(self) -> None:
        """What was held back goes on. The dead are revived only to be cancelled, when all is over."""
        self.dead = self.held = False
        backlog, self._backlog = self._backlog, []
        self._loop.ready.extend(backlog)

    def _release(self) -> None:
        if self.held and not self.dead and self._loop.time() >= self._until:
            self.revive()

    def keep(self, handle: Handle) -> None:
        self._backlog.append(handle)


CURRENT: ContextVar[Lane | None] = ContextVar("lane", default=None)


class _Task(asyncio.Task[T]):
    """Sets of tasks are iterated in the same order every time: their hash is a number, not an address."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(_Base):  # type: ignore[misc]
    """`problems`: what nobody caught."""

    def __init__(self, start: float) -> None:
        self.ready: deque[Handle] = deque()
        self.problems: list[str] = []
        self.tasks: set[asyncio.Task[Any]] = set()  # also those of the dead: collected, they would clean up
        self._now = start
        self._timers: list[tuple[float, int, Handle]] = []
        self._count = 0
        self._long_polls = 0

    # ── Running ──

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Until `main` has ended, whatever else is under way."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            task = self.create_task(main)
            while not task.done():
                self._turn()
            return task.result()
        finally:
            events._set_running_loop(before)

    def end(self, lanes: list[Lane]) -> None:
        """Cancel everything, also the dead: whoever still refuses is an error."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for _ in range(50):
                self._long_polls = 0
                for lane in lanes:
                    lane.revive()  # again: a handler that goes on may block its thread once more
                for task in list(self.tasks):
                    task.cancel()
                while self.ready:
                    self._turn()
                if not self.tasks:
                    return
            raise Stuck(f"{len(self.tasks)} tasks can't be cancelled: {self.tasks}")
        finally:
            events._set_running_loop(before)

    def _turn(self) -> None:
        if not self.ready:
            self._wait()
        self._long_polls += 1
        if self._long_polls > MOST_TURNS:
            raise Stuck(f"the loop has turned {MOST_TURNS} times without time passing; next is {self.ready[0]!r}")
        handle = self.ready.popleft()
        if handle.off:
            return
        lane = handle.context.get(CURRENT)
        if lane is None or not (lane.held or lane.dead):
            try:
                handle.context.run(handle.callback, *handle.args)
            except Exception as error:
                self.problems.append(f"{handle!r}: {error!r}")
        else:
            lane.keep(handle)

    def _wait(self) -> None:
        timers = self._timers
        while timers and timers[0][2].off:
            heapq.heappop(timers)
        if not timers:
            raise Stuck("nothing will ever happen again")
        if timers[0][0] > self._now:
            self._now = timers[0][0]
            self._long_polls = 0
        while timers and timers[0][0] <= self._now:
            self.ready.append(heapq.heappop(timers)[2])

    # ── What asyncio asks of a loop ──

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Handle:
        handle = Handle(callback, args, context, 0.0)
        self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context, when)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        task = _Task(coro, loop=self, name=name or "", context=context)
        self._count += 1
        task.number = self._count
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard, context=_NOBODY)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        future = self.create_future()
        future.set_result(func(*args))
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.problems.append(f"{context.get('message')}: {context.get('exception')!r}")


_NOBODY = Context()


class LaneLoop(_Base):  # type: ignore[misc]
    """The loop as another thread has it in hand: what is called through it runs in this lane."""

    def __init__(self, loop: VirtualLoop, lane: Lane) -> None:
        self._loop = loop
        self._lane = lane

    def time(self) -> float:
        return self._loop.time()

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self._loop.call_soon(callback, *args, context=self._lane.context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self._loop.call_later(delay, callback, *args, context=self._lane.context)

    def create_task(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        return self._lane.spawn(coro)


class LanePortal:
    """Stands in for client.portal.Portal: the thread is the heartbeat thread's lane of whoever makes it."""

    def __init__(self, name: str = "") -> None:
        here = CURRENT.get()
        assert here is not None
        running = asyncio.get_running_loop()
        assert isinstance(running, VirtualLoop)
        self.loop: LaneLoop | None = LaneLoop(running, here.owner.heartbeat_thread)

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(make(), self.loop)

    def close(self) -> None:
        self.loop = None
