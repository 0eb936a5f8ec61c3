"""RunSteps: the steps and waits of one run. Finds what is stored of a step, or runs it and stores its result. Finds out
how a wait has ended, or ends the run.

A generator decides what to do, and yields what it needs (`_Ask`). Async and sync handlers carry that out in their own
ways.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime, timedelta
from inspect import isawaitable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from rowlock.context import AnyContext, Context, Interruption
from rowlock.core import codec
from rowlock.core.flows import Edge, children_signal
from rowlock.core.job import Status, check_delay, check_time, check_timeout
from rowlock.core.lifecycle import StepRetry, Waits
from rowlock.core.retry import FinalType, retry_delay
from rowlock.core.steps import MAX_STEP_BYTES, MAX_STEPS, STEP_ENDS, StepMark, StepState, StoredStep
from rowlock.core.waits import SLEEP, Wait, WaitTerms, callback_name, is_step_name, signal_wait, step_name
from rowlock.errors import (
    Cancelled,
    ChildFailed,
    Final,
    Interrupted,
    InvalidInput,
    LeaseLost,
    Snooze,
    StepChanged,
    StepFailed,
    StepLimit,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    Suspend,
    WaitTimeout,
    WrongContext,
    plain_number,
)
from rowlock.signals import Callback, Signal, signal_of
from rowlock.steps import Step, step_of
from rowlock.stores.base import Awaited, Hold
from rowlock.tasks import Draft, Misfit, ReturnType
from rowlock.tracebacks import error_text

if TYPE_CHECKING:
    from rowlock.core.job import Job

_FIRST_PAUSE, _LAST_PAUSE = 0.05, 1.0  # seconds between tries to store a result while the database is away
_TURNS = 10  # of the event loop, until a task that waited for a step has gone on: asyncio.gather takes three
CHILDREN = "@children"  # under which calls of ctx.gather are counted
_current: ContextVar[StepCall] = ContextVar("rowlock-step")


class _Load(Struct, frozen=True):
    """Read the stored steps. `anew`: read them again."""

    anew: bool = False


class _Store(Struct, frozen=True):
    """Write a mark; answers whether the run still holds its job."""

    mark: StepMark


class _Take(Struct, frozen=True):
    """Ask whether the run has to wait."""

    wait: Wait


class _Start(Struct, frozen=True):
    """Start the children of a call; answers whether the run still holds its job."""

    call: int
    drafts: Sequence[Draft]


class _Ends(Struct, frozen=True):
    """Read the edges of the children of a call."""

    call: int


class _Address(Struct, frozen=True):
    """Make the address of a callback."""

    signal: str
    n: int


class _Call(Struct, frozen=True):
    """Call the function; answers what it returns."""


class _Pause(Struct, frozen=True):
    seconds: float


class _Quiet(Struct, frozen=True):
    """Wait until the other steps of this run have ended."""


_Ask = _Load | _Store | _Take | _Start | _Ends | _Address | _Call | _Pause | _Quiet
_Asks = Generator[_Ask, Any, Any]


class _Stored:
    """A call of the handler that is stored under `name`. `n`: the number of the call of this name, from 1. `position`:
    among all such calls, from 1."""

    name: str
    n: int
    position: int
    task: asyncio.Task[Any] | None = None  # of an async handler

    def __str__(self) -> str:
        return self.name if self.n == 1 else f"{self.name}#{self.n}"

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.n


class StepCall(_Stored):
    """One call of a step.

    `stored`: its result is in the database. `fenced`: its result is part of the caller's own transaction, which may be
    committed or not."""

    began = 0.0
    retries = 0
    result: str | None = None  # canonical JSON text; None: null
    stored = False
    fenced = False
    has_reported = False  # the function has reported some progress

    def __init__(
        self,
        steps: RunSteps,
        step: Step[..., Any],
        n: int,
        position: int,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.steps = steps
        self.step = step
        self.name = step.name
        self.n = n
        self.position = position
        self._args = args
        self._kwargs = kwargs
        self.context = steps.context.bind(self)

    def invoke(self) -> Any:
        """Call the function. It gets a Context that is bound to this step, if it wants one."""
        takes = self.step.takes
        if takes is None:
            try:
                return self.step.function(*self._args, **self._kwargs)
            except TypeError as error:
                if self.step.seems_to_take_context and _is_by_call(error):
                    raise TypeError(
                        f"{error}: ctx.step fills in the Context if it is the first parameter, and is annotated: "
                        f"def {self.step.function_name}(ctx: Context, …)"
                    ) from None
                raise
        if self._args and isinstance(self._args[0], AnyContext):
            raise WrongContext(f"the step {self} gets its Context from ctx.step: leave it out of the arguments")
        context = self.context if isinstance(self.context, takes) else self.context.sync
        return self.step.function(context, *self._args, **self._kwargs)

    def mark(self, state: StepState, **rest: Any) -> StepMark:
        job = self.steps.job
        return StepMark(
            id=job.id,
            version=job.version,
            name=self.name,
            n=self.n,
            position=self.position,
            function=self.step.function_name,
            state=state,
            retries=self.retries,
            cancelable=self.step.cancelable,
            age=max(0.0, time.monotonic() - self.began),
            worker=job.locked_by,
            **rest,
        )

    def success(self, value: Any) -> StepMark:
        """Return the mark that stores this value as the result. Raise Final if it can't be stored."""
        if self.stored:
            raise WrongContext(f"the step {self} has been completed before")
        try:
            text = None if value is None else codec.encode(self.step.returns.storable(value), "result")
        except InvalidInput as unfit:
            raise StepLimit(f"the result of the step {self} can't be stored: {unfit}") from None
        self._read(text)
        self.steps.weigh(self, text)
        return self.mark(StepState.SUCCEEDED, result=text, percent=self.steps.percent_after(self))

    def has_stored(self, mark: StepMark) -> None:
        """Record that its result is in the database."""
        self.stored = True
        self.result = mark.result
        self.steps.count(self, mark)

    def value(self) -> Any:
        """Return the stored result as a replay sees it."""
        return self._read(self.result)

    def _read(self, text: str | None) -> Any:
        try:
            return self.step.returns.read(None if text is None else codec.decode(text))
        except Misfit as misfit:
            raise Final(f"the step {self} returned a value that does not fit its annotation: {misfit}") from None

    @property
    def late(self) -> bool:
        """True if it has taken longer than its timeout."""
        timeout = self.step.timeout
        return timeout is not None and time.monotonic() - self.began > timeout

    def check(self) -> None:
        if self.late:
            raise self.timeout_error()

    def timeout_error(self) -> TimeoutError:
        return TimeoutError(
            f"the step {self} has taken longer than its timeout of {plain_number(self.step.timeout or 0)} s"
        )


class _Caller:
    """A task or thread, other than the handler's own, that has called steps. `names`: their names. `beside`: callers
    that were alive at the same time. `taken`: names that the handler itself has called meanwhile."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.beside: list[_Caller] = []
        self.taken: set[str] = set()


class _Callers:
    """Refuses calls of one step by tasks or threads that run at the same time. Which of them comes first depends on
    timing, and so would the number of the call: after a retry, each could get the result of another."""

    def __init__(self, home: asyncio.Task[Any] | threading.Thread | None) -> None:
        self._home = home  # the handler's own task or thread
        self._others: WeakKeyDictionary[asyncio.Task[Any] | threading.Thread, _Caller] = WeakKeyDictionary()

    def note(self, name: str) -> None:
        """Note that a step of this name is called here. Raise if it must not be."""
        if (who := _this_caller()) is self._home:
            living = [caller for other, caller in self._others.items() if _is_alive(other)]
            if any(name in caller.names for caller in living):
                raise _ambiguous(name)
            for caller in living:
                caller.taken.add(name)
            return
        me = self._others.get(who)
        if me is None:
            me = _Caller()
            for other, caller in self._others.items():
                if _is_alive(other):
                    me.beside.append(caller)
                    caller.beside.append(me)
            self._others[who] = me
        if name in me.taken or any(name in caller.names for caller in me.beside):
            raise _ambiguous(name)
        me.names.add(name)


class WaitCall(_Stored):
    """One call of ctx.sleep (`signal` is None) or ctx.wait_for. `seconds`, `until`: when it ends by itself."""

    def __init__(
        self,
        signal: Signal[Any] | None,
        seconds: float | None,
        until: datetime | None = None,
        default: Any = UNSET,
    ) -> None:
        self.signal = signal
        self.seconds = seconds
        self._until = until
        self._default = default
        self._default_text = _default_text(default)
        self.waits_for = SLEEP if signal is None else signal_wait(signal.name)
        self.name = step_name(self.waits_for)

    @property
    def text(self) -> str:
        """Return the call as the handler has written it."""
        return "ctx.sleep" if self.signal is None else f"ctx.wait_for({self.signal.name})"

    def wait(self, job: Job) -> Wait:
        terms = WaitTerms(self.seconds, None if self.signal is None else self.signal.schema)
        return Wait(
            id=job.id,
            version=job.version,
            waits_for=self.waits_for,
            n=self.n,
            position=self.position,
            seconds=self.seconds,
            until=self._until,
            default=self._default_text,
            terms=terms.text,
            worker=job.locked_by,
        )

    def over(self, job: Job) -> StepMark:
        """Return the mark of a sleep that is over. What is stored keeps its start and its deadline."""
        return StepMark(
            id=job.id,
            version=job.version,
            name=self.name,
            n=self.n,
            position=self.position,
            function=self.name,
            state=StepState.SUCCEEDED,
            result="null",
            worker=job.locked_by,
        )

    def read(self, value: Any) -> Any:
        """Return the stored value as the handler gets it. Raise InvalidInput if it does not fit the signal's type."""
        if self.signal is None:
            return None
        text = None if value is None else codec.encode(value, "data")
        return self._default if text == self._default_text else self.signal.read(value)

    def skip(self) -> None:
        """Go on to the next signal. The skipped one stays stored under a number of its own. No other call has the next
        number, and a replay finds the same one."""
        self.n += MAX_STEPS


class CallbackCall(_Stored):
    """One call of ctx.callback."""

    def __init__(self, signal: Signal[Any], timeout: float | None) -> None:
        self.signal = signal
        self.timeout = timeout
        self.name = callback_name(signal.name)

    def mark(self, job: Job) -> StepMark:
        return StepMark(
            id=job.id,
            version=job.version,
            name=self.name,
            n=self.n,
            position=self.position,
            function=self.name,
            state=StepState.SUCCEEDED,
            result=WaitTerms(self.timeout, self.signal.schema).text,
            worker=job.locked_by,
            lasts=self.timeout,
        )


class _ChildrenSignal(Signal[Any]):
    """The signal by which a job hears that the children of a call have ended. No application can send it."""

    def __init__(self, call: int) -> None:
        self.name = children_signal(call)
        self._data = ReturnType(Any)


class GatherCall(_Stored):
    """One call of ctx.gather. `n`: the number of the call."""

    def __init__(self, drafts: Sequence[Draft], returned: bool) -> None:
        self.name = CHILDREN
        self.drafts = drafts
        self.returned = returned

    def __str__(self) -> str:
        return f"ctx.gather #{self.n}"

    def wait(self) -> WaitCall:
        """Return the wait for the ends of the children."""
        call = WaitCall(_ChildrenSignal(self.n), None)
        call.n, call.position = 1, self.position
        return call


def _was_over(row: StoredStep, job: Job) -> bool:
    """True if a stored wait had ended by itself when this run was claimed."""
    return row.deadline is not None and job.claimed_at is not None and row.deadline <= job.claimed_at


def _default_text(default: Any) -> str | UnsetType | None:
    if default is None or isinstance(default, UnsetType):
        return default
    return codec.encode(ReturnType(type(default)).storable(default), "default")


_AnyCall = StepCall | WaitCall | CallbackCall | GatherCall


class RunSteps:
    """Made by the first ctx.step, or wait, of a run. `context` is the handler's."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.job: Job = context.job
        self._link = context._link
        self._host = context._host
        self._rows: dict[tuple[str, int], StoredStep] | None = {} if self.job.step is None else None
        self._reading = threading.Lock()
        self._reading_async = asyncio.Lock()
        self._turn = threading.Lock()
        self._calls: dict[str, int] = {}  # how often a name was called
        self._callers = _Callers(context.home)
        self._known: set[tuple[str, int]] = set()
        self._position = 0
        self._bytes = 0  # of all stored results
        self._running: set[_Stored] = set()
        self._open_waits: dict[WaitCall, Awaited] = {}
        self._suspends: list[Suspend] = []
        self._taken: dict[tuple[str, int], StepCall] = {}  # stored steps, and the calls that they belong to
        self._spoiled: Final | None = None  # the job must fail by this error
        self._when_quiet: list[Callable[[], None]] = []
        declared = () if context.task is None else context.task.template.steps
        self._weights = {info.name: info.weight for info in declared}
        self._total = sum(self._weights.values())
        self._done: set[str] = set()  # names of steps that have succeeded
        self._shares: dict[str, float] = {}  # of steps that run, 0 to 1: how much of it is done

    @staticmethod
    def current(context: Context) -> StepCall | None:
        """Return the step of this run in which the caller is."""
        call = _current.get(None)
        return call if call is not None and call.steps is context._steps else None

    @property
    def is_cancelled(self) -> bool:
        return self._link.interruption is Interruption.CANCELLED

    # ── The call ──

    def begin(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> StepCall:
        step = step_of(function)
        return StepCall(self, step, *self._number(step.name, f"ctx.step({step.name})"), args, kwargs)

    def begin_sleep(self, seconds: float | timedelta | None, until: datetime | None) -> WaitCall:
        if (seconds is None) == (until is None):
            raise InvalidInput("seconds", "one_of_two", "ctx.sleep needs either seconds or until=, and not both")
        if seconds is not None:
            return self._begin_wait(WaitCall(None, check_delay(seconds, "seconds")))
        return self._begin_wait(WaitCall(None, None, check_time(until, "until")))

    def begin_wait(self, signal: Signal[Any] | str, timeout: float | timedelta | None, default: Any) -> WaitCall:
        seconds = None if timeout is None else check_delay(timeout, "timeout")
        return self._begin_wait(WaitCall(signal_of(signal), seconds, default=default))

    def _begin_wait(self, call: WaitCall) -> WaitCall:
        call.n, call.position = self._number(call.name, call.text)
        return call

    def begin_callback(self, signal: Signal[Any] | str, timeout: float | timedelta | None) -> CallbackCall:
        call = CallbackCall(signal_of(signal), None if timeout is None else check_timeout(timeout))
        call.n, call.position = self._number(call.name, f"ctx.callback({call.signal.name})")
        return call

    def begin_gather(self, jobs: Sequence[Any], if_failed: str) -> GatherCall:
        if if_failed not in ("raise", "return"):
            raise InvalidInput("if_failed", "bad_value", f'must be "raise" or "return", not {if_failed!r:.40}')
        call = GatherCall(self._host.drafts(jobs), if_failed == "return")
        call.n, call.position = self._number(call.name, "ctx.gather")
        return call

    def _number(self, name: str, text: str) -> tuple[int, int]:
        """Number a call: at once, so that the order of the calls counts and not the order in which they end. Return its
        number among those of this name, and its position among all."""
        with self._turn:
            self._callers.note(name)
            n = self._calls[name] = self._calls.get(name, 0) + 1
            self._position += 1
            return n, self._position

    def _asks(self, call: _AnyCall) -> _Asks:
        match call:
            case StepCall():
                return self._steps(call)
            case WaitCall():
                return self._wait(call)
            case CallbackCall():
                return self._call_back(call)
            case GatherCall():
                return self._gather(call)

    async def run(self, call: _AnyCall) -> Any:
        call.task = asyncio.current_task()
        asks = self._asks(call)
        try:
            ask = next(asks)
            while True:
                try:
                    answer = await self._do(call, ask)
                except BaseException as error:
                    ask = asks.throw(error)
                else:
                    ask = asks.send(answer)
        except StopIteration as end:
            return end.value
        finally:
            asks.close()

    def run_sync(self, call: _AnyCall) -> Any:
        asks = self._asks(call)
        try:
            ask = next(asks)
            while True:
                try:
                    answer = self._do_sync(call, ask)
                except BaseException as error:
                    ask = asks.throw(error)
                else:
                    ask = asks.send(answer)
        except StopIteration as end:
            return end.value
        finally:
            asks.close()

    def _steps(self, call: StepCall) -> _Asks:
        """Return the stored result, or run the step. An error that no handler can mend is kept: a handler that catches
        it must not end as a success."""
        try:
            return (yield from self._find_or_run(call))
        except Final as error:
            if self._spoiled is None and (
                isinstance(error, StepChanged) or isinstance(error.__cause__ or error, StepLimit)
            ):
                self._spoiled = error
            raise

    def _find_or_run(self, call: StepCall) -> _Asks:
        if self.context.has_ended:  # ctx.step was called before, but not awaited
            raise WrongContext(f"the step {call} begins after the handler has ended: await ctx.step in the handler")
        if self._rows is None:
            yield _Load()
        row = self._find(call)
        if row is not None:
            if row.state is StepState.SUCCEEDED:
                return self._replay(call, row)
            if row.state is StepState.FAILED:
                raise StepFailed(str(call), row.error or "")
            call.retries = row.retries
        self._check_count(call)
        if self._suspends:  # the handler has caught it
            raise self._suspends[0]
        self.context.begin_anew(call)
        return (yield from self._run(call))

    def _run(self, call: StepCall) -> _Asks:
        call.began = time.monotonic()
        shielded = not call.step.cancelable
        if shielded:
            self._link.shield(1)
        with self._turn:
            self._running.add(call)
        try:
            if self.context.may_be_completed:
                yield from self._refuse_completed(call)
            elif shielded:
                yield from self._persist(call.mark(StepState.RUNNING))
            else:
                self._link.mark(call.mark(StepState.RUNNING))
            call.began = time.monotonic()
            try:
                value = yield _Call()
                if call.late and not (call.stored or call.fenced):
                    raise call.timeout_error()
                yield from self._succeed(call, value)
            except asyncio.CancelledError:
                if not (call.step.cancelable and self.is_cancelled):
                    self._link.mark(call.mark(StepState.PENDING))
                    raise
                # The executor has cancelled the task. The handler gets an error that it can catch, to undo.
                _uncancel()
                self._link.mark(call.mark(StepState.CANCELLED))
                raise Cancelled(self.job.cancel_reason) from None
            except BaseException as error:
                yield from self._fail(call, error)
                raise
            self._link.unmark(call.name, call.n)
            return call.value()
        finally:
            self._leave(call)
            if shielded:
                self._link.shield(-1)

    def _refuse_completed(self, call: StepCall) -> _Asks:
        """Raise if a transaction of the handler's own has completed the job: then nothing can be stored of the step."""
        try:
            yield from self._persist(call.mark(StepState.RUNNING))
        except LeaseLost:
            raise WrongContext(
                f"the step {call} is called after ctx.fence(conn, complete=…), which has completed the job: call it "
                "before"
            ) from None

    def _succeed(self, call: StepCall, value: Any) -> _Asks:
        if call.fenced and not call.stored:
            yield from self._look(call)
            if not call.stored:
                raise WrongContext(
                    f"the step {call} has called ctx.fence(conn, complete=…), but its transaction is not committed: "
                    "commit it before the step returns"
                )
        if not call.stored:
            mark = call.success(value)
            yield from self._persist(mark)
            call.has_stored(mark)

    def _fail(self, call: StepCall, error: BaseException) -> _Asks:
        """Store what the failure means. Raise the error that the handler is to see instead; else it sees the error
        itself."""
        if call.fenced and not call.stored and isinstance(error, Exception):
            with suppress(StoreError):
                yield from self._look(call)
        self._link.unmark(call.name, call.n)
        if not isinstance(error, Exception):
            return
        interruption = self._interruption(call, error)
        if call.stored or self.context.is_cut_off(error):
            pass
        elif interruption is not None or isinstance(error, Snooze | Interrupted) or not call.step.has_policy:
            state = StepState.CANCELLED if self.is_cancelled else StepState.PENDING
            mark = call.mark(state, error=error_text(error))
            if call.step.cancelable:
                self._link.mark(mark)
            else:  # a cancel must not wait for it any longer
                with suppress(StoreError, LeaseLost):
                    yield from self._persist(mark)
        else:
            yield from self._fail_by_policy(call, error)
        if interruption is not None:
            raise interruption from error

    def _interruption(self, call: StepCall, error: Exception) -> Interrupted | None:
        """Return the exception that the handler is to see instead of the error, because the run must end. A step with a
        policy of its own is not charged then: the error may be a consequence."""
        try:
            self.context.must_end(call)
        except Interrupted as interruption:
            if isinstance(error, Interrupted):
                return None
            if isinstance(interruption, Cancelled):
                if call.task is not None:  # the step may have turned the CancelledError of the executor into this error
                    _uncancel()
                return interruption
            return interruption if call.step.has_policy else None
        return None

    def _fail_by_policy(self, call: StepCall, error: Exception) -> _Asks:
        text = error_text(error)
        if call.retries < call.step.max_retries and not isinstance(error, Final):
            tried = replace(self.job, retries=call.retries)
            delay = retry_delay(call.step.retry, tried, error, random.random())  # noqa: S311 - jitter
            if not isinstance(delay, FinalType):
                call.retries += 1
                yield from self._persist(call.mark(StepState.PENDING, error=text))
                yield from self._suspend(call, delay, text)
        yield from self._persist(call.mark(StepState.FAILED, error=text))
        raise StepFailed(str(call), text) from error

    def _suspend(self, call: StepCall, delay: float, text: str) -> _Asks:
        """End the run, after the steps that run beside this one. It goes on when every step that has failed may be
        tried again."""
        self._suspends.append(Suspend(StepRetry(delay, text, str(call)), f"the step {call}"))
        self._leave(call)
        yield _Quiet()
        raise self._suspension() from None

    def _suspension(self) -> Suspend:
        """Return how the run ends. Steps that are tried again come before waits, which the next run finds open."""
        retries = [(one.outcome.delay, n) for n, one in enumerate(self._suspends) if isinstance(one.outcome, StepRetry)]
        return self._suspends[max(retries)[1] if retries else 0]

    def _persist(self, mark: StepMark) -> _Asks:
        """Write the mark."""
        if (yield from self._insist(_Store(mark), cancelable=mark.cancelable)) is Hold.LOST:
            raise LeaseLost(mark.id, mark.version)

    def _insist(self, ask: _Store | _Take | _Start | _Ends, *, cancelable: bool = True) -> _Asks:
        """Return the answer. A database that is away for a moment must not cost the work of a long step."""
        end = time.monotonic() + self._link.lease
        pause = _FIRST_PAUSE
        while True:
            try:
                return (yield ask)
            except (StoreUnavailable, StoreBusy):
                must_end = self._link.interruption is not None and (cancelable or not self.is_cancelled)
                if must_end or time.monotonic() + pause > end:
                    raise
            yield _Pause(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads callers, no secret
            pause = min(2 * pause, _LAST_PAUSE)

    # ── Waits ──

    def _wait(self, call: WaitCall) -> _Asks:
        """Return the result of the wait. If it is open, end the run."""
        try:
            if self._rows is None:
                yield _Load()
            while True:
                self._check_count(call)
                row = self._ended_row(call)
                state, value = (yield from self._take_signal(call)) if row is None else (row.state, row.result)
                if state is StepState.FAILED:
                    raise WaitTimeout("" if call.signal is None else call.signal.name, call.seconds)
                try:
                    return call.read(value)
                except InvalidInput as misfit:
                    self._misfits(call, misfit, is_new=row is None)
        except asyncio.CancelledError:
            if not self.is_cancelled:
                raise
            _uncancel()  # the executor has cancelled the task: see _run
            raise Cancelled(self.job.cancel_reason) from None

    def _ended_row(self, call: _Stored) -> StoredStep | None:
        row = (self._rows or {}).get(call.key)
        return row if row is not None and row.state in STEP_ENDS else None

    def _misfits(self, call: WaitCall, misfit: InvalidInput, *, is_new: bool) -> None:
        """Skip a signal that does not fit: it came before its wait, so it was not checked. Data that an earlier run has
        got must fit, unless that run has skipped it."""
        stored = str(call)
        call.skip()
        if is_new:
            self.context.log(f"{call.text} skips a signal that does not fit: {misfit}", level="warning")
        elif call.key not in (self._rows or {}):
            raise StepChanged(
                stored,
                f"the signal that is stored for {call.text} does not fit its type: {misfit}",
                "Let the type accept what is stored",
            ) from None

    def _take_signal(self, call: WaitCall) -> Generator[_Ask, Any, tuple[StepState, Any]]:
        """Return how the wait has ended. If it is open, end the run as soon as no step runs beside it. That includes
        steps that follow those at once."""
        try:
            while True:
                if self._suspends:
                    raise self._suspension()
                # A worker that stops need not be waited for: the run ends here anyway.
                if self.context.is_undo or self._link.interruption is not Interruption.STOPPING:
                    self.context.begin_anew()
                found: Awaited = yield from self._beside(call, self._ask(call))
                if found.hold is Hold.LOST:
                    raise LeaseLost(self.job.id, self.job.version)
                if found.hold is Hold.CANCEL:
                    self._link.hear_cancel()
                    self.context.must_end()
                    raise Cancelled(self.job.cancel_reason)
                if found.state is not StepState.RUNNING:
                    self._bytes += len(found.result or "")
                    return found.state, None if found.result is None else codec.decode(found.result)
                self._open_waits[call] = found
                if not self._running:
                    self._suspends.append(self._suspended_by_waits())
                    self._link.looks = True  # a cancel must not cut short `finally` blocks: they have the whole grace
                else:
                    yield _Quiet()
        finally:
            self._open_waits.pop(call, None)

    def _ask(self, call: WaitCall) -> Generator[_Ask, Any, Awaited]:
        """Return how the wait stands. A sleep that was over when the run was claimed, by the database's clock, needs no
        question: that is stored as the end of a step is, in one statement for many jobs. So 10,000 timers that are due
        together take 4.3 instead of 12.2 seconds on a busy machine."""
        row = (self._rows or {}).get(call.key)
        if row is None or call.signal is not None or self.context.is_undo or not _was_over(row, self.job):
            answer: Awaited = yield from self._insist(_Take(call.wait(self.job)))
            return answer
        return Awaited((yield from self._insist(_Store(call.over(self.job)))), StepState.SUCCEEDED, "null")

    def _suspended_by_waits(self) -> Suspend:
        """Return the Suspend for all open waits of this run. The job waits for the first signal, until the first of
        them ends."""
        first = min(self._open_waits, key=lambda call: (call.signal is None, call.position))
        left = [found.left for found in self._open_waits.values() if found.left is not None]
        waits = Waits(
            first.waits_for,
            min(left, default=None),
            min(found.seen for found in self._open_waits.values()),
            undoes=any(map(is_step_name, self._done)),
        )
        return Suspend(waits, first.text)

    def _beside(self, call: _Stored, work: _Asks) -> _Asks:
        """Do the work. The run doesn't end before it is done."""
        with self._turn:
            if self.context.has_ended:
                raise WrongContext(f"{call}: the handler has ended")
            self._running.add(call)
        try:
            return (yield from work)
        finally:
            self._leave(call)

    def _call_back(self, call: CallbackCall) -> _Asks:
        """Return the callback, and store that there is one."""
        if self._rows is None:
            yield _Load()
        self._check_count(call)
        url = yield _Address(call.signal.name, call.n)  # first: it may be refused
        if self._ended_row(call) is None:
            if self._suspends:
                raise self._suspends[0]
            self.context.begin_anew()
            yield from self._beside(call, self._persist(call.mark(self.job)))
        return Callback(call.signal.name, url)

    # ── Children ──

    def _gather(self, call: GatherCall) -> _Asks:
        """Return the results of the children. If one has not ended, end the run until all have."""
        if not call.drafts:
            return []
        if self._rows is None:
            yield _Load()
        edges: list[Edge] = yield from self._insist(_Ends(call.n))
        if not edges:
            yield from self._start_children(call)
            edges = yield from self._insist(_Ends(call.n))
        self._check_children(call, edges)
        wait = call.wait()
        while any(edge.is_open for edge in edges):
            with suppress(WaitTimeout):  # an operator has woken the job: it goes on waiting
                yield from self._wait(wait)
            wait.skip()
            edges = yield from self._insist(_Ends(call.n))
        return self._results(call, edges)

    def _start_children(self, call: GatherCall) -> _Asks:
        if self._suspends:  # the handler has caught it
            raise self._suspends[0]
        self.context.begin_anew()
        hold = yield from self._beside(call, self._insist(_Start(call.n, call.drafts)))
        if hold is Hold.LOST:
            raise LeaseLost(self.job.id, self.job.version)
        if hold is Hold.CANCEL:
            self._link.hear_cancel()
            self.context.must_end()
            raise Cancelled(self.job.cancel_reason)

    def _check_children(self, call: GatherCall, edges: Sequence[Edge]) -> None:
        """Raise StepChanged if an earlier run has started other jobs by this call."""
        old, new = [edge.name for edge in edges], [draft.topic for draft in call.drafts]
        if old == new:
            return
        if len(old) == len(new):
            started, asked = (f"a job of the topic {topic}" for topic in _first_others(old, new))
        else:
            started, asked = (f"{len(topics)} job{'s' * (len(topics) != 1)}" for topics in (old, new))
        self._spoiled = StepChanged(
            str(call),
            f"an earlier run has started {started} by this call, and now it asks for {asked}",
            "Let each run ask for the same jobs: store what decides about them by ctx.step",
        )
        raise self._spoiled

    def _results(self, call: GatherCall, edges: Sequence[Edge]) -> list[Any]:
        failed = [(edge.parent, edge.ended or "", edge.error) for edge in edges if edge.ended != Status.COMPLETED]
        if failed and not call.returned:
            raise ChildFailed(failed, len(edges))
        return [self._result(call, edge, draft) for edge, draft in zip(edges, call.drafts, strict=True)]

    def _result(self, call: GatherCall, edge: Edge, draft: Draft) -> Any:
        if edge.ended != Status.COMPLETED:
            return ChildFailed([(edge.parent, edge.ended or "", edge.error)], 1)
        try:
            return self._host.returns(draft).read(None if edge.result is None else codec.decode(edge.result))
        except Misfit as misfit:
            raise Final(
                f"{call}: the result of job {edge.parent} does not fit the annotation of {draft.topic}: {misfit}"
            ) from None

    # ── What is stored ──

    def _find(self, call: StepCall) -> StoredStep | None:
        rows = self._rows or {}
        for name in (call.name, *call.step.was):
            row = rows.get((name, call.n))
            if row is None:
                continue
            with self._turn:
                other = self._taken.setdefault((name, call.n), call)
            if other is not call:
                raise StepChanged(
                    str(call),
                    f"by was=, it would get the stored result of {other}, which the step {other.step.name} has got in "
                    "this run already",
                    f"Take {name!r} out of was= of the step that is not the renamed one",
                )
            call.name = name  # it stays stored under the name that it had
            if row.function not in (call.step.function_name, *call.step.was):
                raise StepChanged(
                    str(call),
                    f"a result of the function {row.function} is stored under this name, and {call.step.function_name} "
                    "is called",
                    f"Rename it with @step(was={row.function!r}) if it does the same, or call it with "
                    '.using(name="…") if it does not',
                )
            return row
        return None

    def _replay(self, call: StepCall, row: StoredStep) -> Any:
        self._done.add(call.step.name)
        try:
            return call.step.returns.read(row.result)
        except Misfit as misfit:
            raise StepChanged(
                str(call),
                f"its stored result does not fit the annotation of {call.step.function_name}: {misfit}",
                "Let the annotation accept what is stored",
            ) from None

    def _take(self, rows: Sequence[StoredStep]) -> None:
        found = {(row.name, row.n): row for row in rows}
        self._known.update(found)
        for row in rows:
            if row.state is StepState.SUCCEEDED:
                self._done.add(row.name)
                self._bytes += 0 if row.result is None else len(codec.encode(row.result, "result").encode())
        self._rows = found

    def _look(self, call: StepCall) -> _Asks:
        """Find out whether the caller's own transaction has stored the result."""
        self._take_fenced(call, (yield _Load(anew=True)))

    async def look(self, call: StepCall) -> None:
        self._take_fenced(call, await self._do(call, _Load(anew=True)))

    def look_sync(self, call: StepCall) -> None:
        self._take_fenced(call, self._do_sync(call, _Load(anew=True)))

    def _take_fenced(self, call: StepCall, rows: Sequence[StoredStep]) -> None:
        for row in rows:
            if (row.name, row.n) == call.key and row.state is StepState.SUCCEEDED and row.version == self.job.version:
                result = None if row.result is None else codec.encode(row.result, "result")
                call.has_stored(call.mark(StepState.SUCCEEDED, result=result))

    # ── Limits ──

    def _check_count(self, call: _Stored) -> None:
        with self._turn:
            self._known.add(call.key)
            if len(self._known) > MAX_STEPS:
                raise StepLimit(
                    f"a job may have at most {MAX_STEPS:,} steps, and {call} is one more: let a step do more, or "
                    "enqueue other jobs"
                )

    def weigh(self, call: StepCall, text: str | None) -> None:
        if text is not None and self._bytes + len(text.encode()) > MAX_STEP_BYTES:
            raise StepLimit(
                f"the result of the step {call} is too much: the stored results of a job may have at most "
                f"{MAX_STEP_BYTES >> 20} MiB together. Store the data elsewhere and return its id"
            )

    def count(self, call: StepCall, mark: StepMark) -> None:
        self._done.add(call.step.name)
        self._bytes += 0 if mark.result is None else len(mark.result.encode())
        if call.has_reported:  # what the step has reported may not be written yet: it must not come after this
            self._link.report(mark.percent, None, None)

    # ── Progress ──

    def percent_after(self, call: StepCall) -> float | None:
        """Return the job's progress when this step is done; None: steps don't change it."""
        return self._percent(self._done | {call.step.name})

    def percent_within(self, call: StepCall, percent: float) -> float | None:
        """Return the job's progress when so much of this step is done. None: leave it as it is."""
        if not self._total:
            return percent
        call.has_reported = True
        if call.step.name not in self._weights:
            return None
        self._shares[call.step.name] = min(max(percent, 0), 100) / 100
        return self._percent(self._done)

    def _percent(self, done: Set[str]) -> float | None:
        if not self._total:
            return None
        shares = {**self._shares, **dict.fromkeys(done, 1.0)}
        return 100 * sum(weight * shares.get(name, 0.0) for name, weight in self._weights.items()) / self._total

    # ── The end ──

    def _leave(self, call: _Stored) -> None:
        """Record that the step has ended, or waits for the other steps to end."""
        with self._turn:
            self._running.discard(call)
            quiet = [] if self._running else self._when_quiet
            if quiet:
                self._when_quiet = []
        for callback in quiet:
            callback()

    def _call_when_quiet(self, callback: Callable[[], None]) -> None:
        with self._turn:
            if self._running:
                self._when_quiet.append(callback)
                return
        callback()

    async def finish(self, *, cancel: bool = False) -> None:
        """Wait for steps that the handler has left behind when it ended: their results are to be stored, and they must
        not run beside the next run. `cancel`, or a cancel of this task: cancel them."""
        if not self._running:
            return
        if cancel:
            self._cancel_all()
        try:
            await self._do(None, _Quiet())
        except asyncio.CancelledError:
            self._cancel_all()
            raise

    def _cancel_all(self) -> None:
        for call in tuple(self._running):
            if call.task is not None:
                call.task.cancel()

    def finish_sync(self) -> None:
        if self._running:
            self._do_sync(None, _Quiet())

    def refuse_swallowed(self) -> None:
        """Raise if the handler returned although a step or a wait has suspended the run, or has spoiled the job."""
        if self._spoiled is not None:
            raise self._spoiled
        if self._suspends:
            raise Final(
                f"the handler has caught Suspend, by which {self._suspends[0].text} ends the run, so that the job goes "
                "on later: don't catch BaseException around it, or raise it again. Where steps or waits run "
                "beside each other, use asyncio.TaskGroup: asyncio.gather drops Suspend with return_exceptions=True, "
                "and if the handler catches the error of another one"
            )

    # ── Carry out ──

    async def _do(self, call: _Stored | None, ask: _Ask) -> Any:
        match ask:
            case _Call():
                assert isinstance(call, StepCall)  # noqa: S101 - narrows the type
                return await self._call(call)
            case _Take(wait):
                with self.context.noticing_outages():
                    return await self._host.take_signal(wait)
            case _Start(n, drafts):
                with self.context.noticing_outages():
                    return await self._host.start_children(self.job, n, drafts)
            case _Ends(n):
                with self.context.noticing_outages():
                    return await self._host.children(self.job.id, n)
            case _Address(signal, n):
                with self.context.noticing_outages():
                    return await self._host.address(self.job.id, signal, n)
            case _Store(mark):
                with self.context.noticing_outages():
                    return await self._host.checkpoint(mark)
            case _Load(anew):
                async with self._reading_async:
                    if anew or self._rows is None:
                        with self.context.noticing_outages():
                            rows = await self._host.steps(self.job.id)
                        if anew:
                            return rows
                        self._take(rows)
            case _Pause(seconds):
                await asyncio.sleep(seconds)
            case _Quiet():
                quiet = asyncio.get_running_loop().create_future()
                self._call_when_quiet(lambda: None if quiet.done() else quiet.set_result(None))
                await quiet
                for _ in range(_TURNS):  # a step that follows at once begins now
                    await asyncio.sleep(0)
        return None

    def _do_sync(self, call: _Stored | None, ask: _Ask) -> Any:
        match ask:
            case _Call():
                assert isinstance(call, StepCall)  # noqa: S101 - narrows the type
                return self._call_sync(call)
            case _Take(wait):
                with self.context.noticing_outages():
                    return self._host.take_signal_sync(wait)
            case _Start(n, drafts):
                with self.context.noticing_outages():
                    return self._host.start_children_sync(self.job, n, drafts)
            case _Ends(n):
                with self.context.noticing_outages():
                    return self._host.children_sync(self.job.id, n)
            case _Address(signal, n):
                with self.context.noticing_outages():
                    return self._host.address_sync(self.job.id, signal, n)
            case _Store(mark):
                with self.context.noticing_outages():
                    return self._host.checkpoint_sync(mark)
            case _Load(anew):
                with self._reading:
                    if anew or self._rows is None:
                        with self.context.noticing_outages():
                            rows = self._host.steps_sync(self.job.id)
                        if anew:
                            return rows
                        self._take(rows)
            case _Pause(seconds):
                time.sleep(seconds)
            case _Quiet():
                quiet = threading.Event()
                self._call_when_quiet(quiet.set)
                quiet.wait()
        return None

    async def _call(self, call: StepCall) -> Any:
        """Call the function: a sync one in a thread of its own. Past its timeout an async one is cancelled."""
        token = _current.set(call)
        deadline = asyncio.timeout(None)
        try:
            if not call.step.is_async:
                value = await self._in_thread(call.invoke)
                if not isawaitable(value):
                    return value
            else:
                if call.step.takes is not None and not isinstance(call.context, call.step.takes):
                    raise WrongContext(f"the step {call} is async: annotate its ctx with Context, not SyncContext")
                value = call.invoke()
            left = None if call.step.timeout is None else call.began + call.step.timeout - time.monotonic()
            deadline = asyncio.timeout(left)
            async with deadline:
                return await value
        except TimeoutError as error:
            if deadline.expired():
                raise call.timeout_error() from error
            raise
        finally:
            with suppress(ValueError):  # an ending event loop closes coroutines from another context
                _current.reset(token)

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        """Call the function in a thread, which nothing can stop. A cancel of the job waits for the thread: the handler
        must not undo something while it runs. The executor leaves the run behind if that takes too long."""
        future = _start_thread(function)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if future.done() or not self.is_cancelled:
                raise
        await asyncio.wait({future})
        _uncancel()
        return future.result()

    def _call_sync(self, call: StepCall) -> Any:
        if call.step.is_async:
            raise WrongContext(
                f"the step {call} is async, and this handler is not: declare the handler with `async def`"
            )
        token = _current.set(call)
        try:
            value = call.invoke()
            if isawaitable(value):
                value.close() if hasattr(value, "close") else None
                raise WrongContext(f"the step {call} returned a coroutine: declare the handler with `async def`")
            return value
        finally:
            _current.reset(token)


def _first_others(old: Sequence[str], new: Sequence[str]) -> tuple[str, str]:
    """Return the first pair that differs."""
    return next(pair for pair in zip(old, new, strict=True) if pair[0] != pair[1])


def _this_caller() -> asyncio.Task[Any] | threading.Thread:
    """Return the task in which this is called; the thread, if there is none."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:  # no event loop
        return threading.current_thread()


def _is_by_call(error: TypeError) -> bool:
    """True if the arguments didn't fit: the function itself has not begun."""
    return error.__traceback__ is None or error.__traceback__.tb_next is None


def _is_alive(caller: asyncio.Task[Any] | threading.Thread) -> bool:
    return caller.is_alive() if isinstance(caller, threading.Thread) else not caller.done()


def _ambiguous(name: str) -> WrongContext:
    return WrongContext(
        f"the step {name} is called by several tasks or threads at the same time: a retry could mix up their results. "
        f'Give each call a name of its own: ctx.step({name}.using(name=f"{name} {{x}}"), …)'
    )


def _uncancel() -> None:
    """Take back the cancel of this task, because it has had its effect."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _start_thread(function: Callable[[], Any]) -> asyncio.Future[Any]:
    """Start a daemon thread for a call: a pool would limit how many run at once, and keep the program from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def answer(result: Any, error: BaseException | None) -> None:
        if future.done():
            return  # the run did not wait for it
        if isinstance(error, StopIteration):
            future.set_exception(RuntimeError("the step raised StopIteration"))
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def work() -> None:
        result, problem = None, None
        try:
            result = context.run(function)
        except BaseException as error:
            problem = error
        with suppress(RuntimeError):  # the event loop has been closed
            loop.call_soon_threadsafe(answer, result, problem)

    threading.Thread(target=work, name="rowlock-step", daemon=True).start()
    return future
