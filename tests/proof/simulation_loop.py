"""An event loop in virtual time, for several simulated processes at once.

Time passes only when no task has anything to do. So a minute takes milliseconds, and the same calls come in the same
order every time. A `Lane` is a thread of a simulated process. The simulation can hold back its tasks (SIGSTOP, or a
handler that blocks) or drop them (SIGKILL). The code in them does not notice this, and does not clean up.
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
    _Base = Any  # for type checkers the loop is abstract: it has no sockets, signals and subprocesses, on purpose
else:
    _Base = asyncio.AbstractEventLoop

T = TypeVar("T")

MOST_TURNS = 20_000  # turns of the loop without time passing; if there are more, a task spins


class Stuck(Exception):
    """No task will ever do anything again, or a task runs without end."""


class Handle:
    """Like asyncio's Handle, but cheap: there are thousands in a run."""

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
    """A thread of the simulated process `owner`."""

    def __init__(self, loop: VirtualLoop, owner: Any) -> None:
        self.owner = owner
        self.dead = False
        self.held = False
        self.holds: list[tuple[float, float]] = []  # the spans in which it was held
        self._loop = loop
        self.context = Context()  # all calls in it, and the calls that these make, belong to the lane
        self.context.run(CURRENT.set, self)
        self._until = 0.0
        self._backlog: list[Handle] = []

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._loop.create_task(work, context=self.context.copy())

    def hold(self, seconds: float) -> None:
        """Hold all calls of the lane for so long. Then run those that came due meanwhile."""
        self.held = True
        now = self._loop.time()
        self.holds.append((now, now + seconds))
        self._until = max(self._until, now + seconds)
        self._loop.call_at(self._until, self._release, context=Context())

    def kill(self) -> None:
        """Never run any call of the lane again, not even those that would clean up."""
        self.dead = True

    def revive(self) -> None:
        """Run the calls that were held back. Dead lanes are revived only at the end, to be cancelled."""
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
    """A task whose hash is a number, not an address. So sets of tasks are iterated in the same order every time."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(_Base):  # type: ignore[misc]
    """An event loop in virtual time. `problems`: the errors that no code caught."""

    def __init__(self, start: float) -> None:
        self.ready: deque[Handle] = deque()
        self.problems: list[str] = []
        self.tasks: set[asyncio.Task[Any]] = set()  # also of dead lanes: the garbage collector would have them clean up
        self._now = start
        self._timers: list[tuple[float, int, Handle]] = []
        self._count = 0
        self._long_polls = 0

    # ── Running ──

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run until `main` has ended, whatever else is under way, and return its result."""
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
        """Cancel all tasks, also those of dead lanes. Raise Stuck if a task can't be cancelled."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for _ in range(50):
                self._long_polls = 0
                for lane in lanes:
                    lane.revive()  # in each round: a handler that goes on may block its thread once more
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

    # ── The methods that asyncio needs of a loop ──

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
    """The loop, as another thread uses it: all calls through it run in this lane."""

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
    """Stands in for client.portal.Portal. Its thread is the heartbeat thread's lane of the machine that makes it."""

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
