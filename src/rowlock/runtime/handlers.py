"""Call a handler and return its outcome, whatever it does: in the event loop, in a thread, or in a child process."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from types import CoroutineType, coroutine
from typing import Any

from rowlock.context import Context
from rowlock.core.lifecycle import Completed, CutOff, Failed, GaveUp, Outcome, Snoozed
from rowlock.errors import Cancelled, Final, InvalidInput, Snooze, suspension
from rowlock.signals import own_job
from rowlock.tasks import Task
from rowlock.tracebacks import error_text

RunMiddleware = Callable[[Context], Generator[None, Any, None] | None]


def call_sync(task: Task[..., Any], context: Context, middleware: Sequence[RunMiddleware]) -> Outcome:
    """Call a sync handler in this thread. Never raises, not even for sys.exit()."""
    context.home = threading.current_thread()
    around = Around(middleware, context) if middleware else None
    token = own_job.set(context.job.id)
    try:
        try:
            values = _arguments(task, context)
            if around is not None:
                around.enter()
            result = task.function(**values)
            context.has_ended = True
            if inspect.isawaitable(result):
                result.close() if inspect.iscoroutine(result) else None
                raise Final(f"{task.topic} returned a coroutine without being one: declare it with `async def`")
            if context.is_unfinished:
                context.finish_sync()
        except BaseException as error:
            context.has_ended = True
            if context.is_unfinished:
                context.finish_sync(error)
            if around is not None:
                around.failed(error)
            raise
        if around is not None:
            around.returned(result)
        result = task.arguments.returns.storable(result)
    except BaseException as error:
        return _outcome(error, context)
    finally:
        with suppress(ValueError):  # an ending event loop closes coroutines from another context
            own_job.reset(token)
    return Completed(result)


async def call_async(
    task: Task[..., Any], context: Context, middleware: Sequence[RunMiddleware], waits: Callable[[], None] | None = None
) -> Outcome:
    """Call an async handler. Raises only KeyboardInterrupt, and CancelledError if this task was cancelled. `waits`:
    called when the handler waits for something, for the first time."""
    context.home = asyncio.current_task()
    around = Around(middleware, context) if middleware else None
    token = own_job.set(context.job.id)
    try:
        try:
            values = _arguments(task, context)
            if around is not None:
                around.enter()
            working = task.function(**values)
            if waits is not None and type(working) is CoroutineType:
                result = await _step(working, waits)
            else:
                if waits is not None:
                    waits()  # it may wait: there is no way to notice
                result = await working
            context.has_ended = True
            if context.is_unfinished:
                await context.finish()
        except BaseException as error:
            context.has_ended = True
            if context.is_unfinished:
                await context.finish(error)
            if around is not None:
                around.failed(error)
            raise
        if around is not None:
            around.returned(result)
        result = task.arguments.returns.storable(result)
    except KeyboardInterrupt:
        raise
    except asyncio.CancelledError as error:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        return outcome_of(error)  # something that the handler awaited was cancelled, not the handler
    except BaseException as error:
        return _outcome(error, context)
    finally:
        with suppress(ValueError):  # an ending event loop closes coroutines from another context
            own_job.reset(token)
    return Completed(result)


def _arguments(task: Task[..., Any], context: Context) -> dict[str, Any]:
    """Return the arguments. They are checked first: no middleware sees a run whose payload does not fit."""
    job = context.job
    context.task = task
    try:
        return task.arguments.call(job.payload, job, context)
    except InvalidInput as error:
        raise BadPayload(f"{task.topic} can't be called with this payload: {error}") from None


@coroutine
def _step(working: CoroutineType[Any, Any, Any], waits: Callable[[], None]) -> Generator[Any, Any, Any]:
    """Do `await working`, and call `waits` if it waits. Only the first step is made here; later steps cost nothing."""
    try:
        awaited = working.send(None)
    except StopIteration as end:
        return end.value
    waits()
    while True:
        try:
            yield awaited
        except BaseException as error:  # a cancel of this task cancels the handler
            try:
                awaited = working.throw(error)
            except StopIteration as end:
                return end.value
        else:
            del awaited  # or it would live as long as the handler runs
            return (yield from working)  # type: ignore[misc] # @coroutine allows it


class Around:
    """Runs the middleware around one run; the last registered stands nearest to the handler."""

    def __init__(self, middleware: Sequence[RunMiddleware], context: Context) -> None:
        self._middleware = middleware
        self._context = context
        self._begun: list[Generator[None, Any, None]] = []

    def enter(self) -> None:
        for function in self._middleware:
            running = function(self._context)
            if running is not None:
                next(running, None)
                self._begun.append(running)

    def returned(self, result: Any) -> None:
        """End the middleware. It may raise: then the run has failed."""
        self._end(lambda running: running.send(result))

    def failed(self, error: BaseException) -> None:
        """Raise the error in each middleware. It may raise another error instead, but not suppress it. A run that goes
        on later has neither failed nor succeeded: its middleware is closed."""
        if suspension(error) is None:
            self._end(lambda running: running.throw(error), error)
        else:
            self._end(lambda running: running.close())

    def _end(self, step: Callable[[Generator[None, Any, None]], object], error: BaseException | None = None) -> None:
        while self._begun:
            running = self._begun.pop()
            try:
                step(running)
                running.close()
            except StopIteration:
                pass
            except BaseException as raised:
                if raised is not error:
                    self.failed(raised)
                    raise


class BadPayload(Exception):
    """Retried, not final: a worker with newer code may accept the payload."""


def _outcome(error: BaseException, context: Context) -> Outcome:
    outcome = outcome_of(error)
    if isinstance(outcome, Failed) and not outcome.final and context.is_cut_off(error):
        return CutOff(outcome.error.rpartition("\n")[2])
    return outcome


def outcome_of(error: BaseException) -> Outcome:
    if (suspend := suspension(error)) is not None:
        return suspend.outcome
    match error:
        # A subclass may have forgotten to call our __init__.
        case Snooze():
            return Snoozed(getattr(error, "until", 0.0))
        case Cancelled():
            return GaveUp(getattr(error, "reason", None))
        case BadPayload():
            return Failed(str(error), error)
        case _:
            return Failed(error_text(error), error, final=isinstance(error, Final))
