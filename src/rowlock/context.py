"""Context: lets a handler report, log, enqueue, and write in a fenced transaction. The worker fills in a parameter of
this type.

@jobs.task
def embed(ctx: Context, file_id: str) -> int:
    for n, page in enumerate(pages):
        ctx.check()
        ctx.progress(100 * n / len(pages), stage="embedding")
    return len(pages)
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload

from msgspec import UNSET, UnsetType

from rowlock.core import codec
from rowlock.core.flows import Edge, derived_id
from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Settlement, Transition
from rowlock.core.steps import StepMark, StoredStep
from rowlock.core.waits import Wait
from rowlock.errors import (
    Cancelled,
    ChildFailed,
    InvalidInput,
    LeaseLost,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TimeLimit,
    WorkerStopping,
    WrongContext,
)
from rowlock.stores.base import Awaited, Enqueued, Guard, Hold
from rowlock.tasks import Draft, EnqueueOptions, Enqueues, ReturnType, Task

if TYPE_CHECKING:
    from rowlock.run_steps import RunSteps, StepCall
    from rowlock.signals import Callback, Signal
    from rowlock.steps import Running, Step

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D")


class Interruption(StrEnum):
    """The reason why a run must end. The first reason is kept. Only LOST replaces it: it tells the current state of the
    lease."""

    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    STOPPING = "stopping"
    LOST = "lost"


class Link(Protocol):
    """Connects a handler to the worker that holds its lease: in the same process, or over a pipe.

    Its methods may be called from any thread. They only record something; the worker does the rest.
    """

    interruption: Interruption | None
    looks: bool  # the handler checks by itself whether it must end
    completed: bool  # the handler has completed the job in a transaction

    @property
    def began(self) -> float:
        """Return when the handler was started, by time.monotonic()."""
        ...

    @property
    def lease(self) -> float: ...

    def report(self, percent: float | None, stage: str | None, message: str | None) -> None: ...

    def log(self, level: str, text: str) -> None: ...

    def beat(self) -> None: ...

    def mark(self, mark: StepMark) -> None:
        """Write this mark of a step soon. A later mark of the same step replaces it."""
        ...

    def unmark(self, name: str, n: int) -> None:
        """Drop a mark that is not written yet."""
        ...

    def hear_cancel(self) -> None:
        """Record that the handler has heard by itself that its job is cancelled. From now on the cancel is in force."""
        ...

    def shield(self, change: int) -> None:
        """Record that a step that can't be cancelled begins (1), or has ended (-1). In between, a cancel doesn't end
        the handler by force."""
        ...


class Host(Enqueues, Protocol):
    """The services that a Context needs from `Jobs`."""

    async def fence(self, guard: Guard, conn: Any) -> None: ...

    def fence_sync(self, guard: Guard, conn: Any) -> None: ...

    async def checkpoint(self, mark: StepMark) -> Hold: ...

    def checkpoint_sync(self, mark: StepMark) -> Hold: ...

    async def take_signal(self, wait: Wait) -> Awaited: ...

    def take_signal_sync(self, wait: Wait) -> Awaited: ...

    async def address(self, job_id: str, signal: str, n: int) -> str: ...

    def address_sync(self, job_id: str, signal: str, n: int) -> str: ...

    async def steps(self, job_id: str) -> list[StoredStep]: ...

    def steps_sync(self, job_id: str) -> list[StoredStep]: ...

    async def start_children(self, job: Job, call: int, drafts: Sequence[Draft]) -> Hold: ...

    def start_children_sync(self, job: Job, call: int, drafts: Sequence[Draft]) -> Hold: ...

    async def children(self, job_id: str, call: int) -> list[Edge]: ...

    def children_sync(self, job_id: str, call: int) -> list[Edge]: ...

    def drafts(self, jobs: Sequence[Any]) -> list[Draft]: ...

    def returns(self, draft: Draft) -> ReturnType: ...

    async def status(self, job_id: str) -> Status | None: ...

    def status_sync(self, job_id: str) -> Status | None: ...

    async def transaction(self, guard: Guard, longest: float) -> AbstractAsyncContextManager[Any]: ...

    def sync_transaction(self, guard: Guard, longest: float) -> AbstractContextManager[Any]: ...


class AnyContext:
    """The common part of Context and SyncContext: everything that needs neither `await` nor a transaction."""

    def __init__(self, job: Job, link: Link, host: Host) -> None:
        self.job = job
        self._link = link
        self._host = host

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of run {self.job.version} of {self.job.topic} {self.job.id}>"

    # ── Must the run end? ──

    @property
    def cancelled(self) -> bool:
        """True if the run must end: the job was cancelled, its timeout or its lease is over, or the worker stops."""
        self._link.looks = True
        call = self._step_here()
        if call is not None and call.late:
            return True
        why = self._link.interruption
        return why is not None and not _may_go_on(call, why)

    def check(self) -> None:
        """Raise if the run must end: Cancelled, TimeLimit, LeaseLost or WorkerStopping. It is cheap: no I/O."""
        self._link.looks = True
        call = self._step_here()
        if call is not None:
            call.check()
        self.must_end(call)

    def must_end(self, call: StepCall | None = None) -> None:
        """Raise if the run must end. `call`: the step that is about to run, or runs."""
        match self._link.interruption:
            case Interruption.CANCELLED if _may_go_on(call, Interruption.CANCELLED):
                pass
            case Interruption.CANCELLED:
                raise Cancelled(self.job.cancel_reason)
            case Interruption.TIMED_OUT:
                raise TimeLimit(self.job.timeout)
            case Interruption.LOST:
                raise LeaseLost(self.job.id, self.job.version)
            case Interruption.STOPPING:
                raise WorkerStopping
            case None:
                pass

    @property
    def is_undo(self) -> bool:
        """True if the job was cancelled while it waited: this run is to undo what earlier ones have done."""
        return self.job.status is Status.CANCEL_REQUESTED

    def begin_anew(self, call: StepCall | None = None) -> None:
        """Record that the handler has come to a step or a wait of which no end is stored. Raise if the run must end. If
        it is to undo something, the cancel is in force from here on. `call`: the step that is about to run."""
        if self.is_undo and self._link.interruption is None:
            self._link.hear_cancel()
        self.must_end(call)

    def heartbeat(self) -> None:
        """Renew the lease now. Rarely needed: the worker renews it by itself, also while a handler blocks."""
        self._link.beat()

    # ── Report ──

    def progress(self, percent: float | None = None, *, stage: str | None = None, message: str | None = None) -> None:
        """Report the progress, 0 to 100. Call it as often as you like: the worker writes it a few times a second."""
        if percent is not None and (isinstance(percent, bool) or not isinstance(percent, int | float)):
            raise InvalidInput("percent", "not_a_number", f"must be a number from 0 to 100, not {percent!r:.40}")
        if percent is not None and (call := self._step_here()) is not None:
            percent = call.steps.percent_within(call, percent)
        self._link.report(percent, None if stage is None else str(stage), None if message is None else str(message))

    def log(self, text: object, *, level: str = "info") -> None:
        """Add a line to the job's log. The newest 200 lines are kept."""
        self._link.log(str(level), str(text))

    # ── For both ──

    def _step_here(self) -> StepCall | None:
        """Return the step in which this is called; None: outside of steps."""
        raise NotImplementedError

    def _guard(self) -> Guard:
        if lost := self._lost():
            raise lost
        return Guard(self.job.id, self.job.version, worker=self.job.locked_by)

    def _lost(self) -> LeaseLost | None:
        """Return the error if the worker knows that the lease is lost. The database may not know it: another run of the
        same worker may have got the same version."""
        if self._link.interruption is Interruption.LOST:
            return LeaseLost(self.job.id, self.job.version)
        return None

    def _inherit(self, options: EnqueueOptions) -> EnqueueOptions:
        inherited: dict[str, Any] = {
            name: value for name in ("scope", "scope_id", "trace") if (value := getattr(self.job, name)) is not None
        }
        return {**inherited, **options}  # type: ignore[typeddict-item]


def _may_go_on(call: StepCall | None, why: Interruption) -> bool:
    """True if this step may go on all the same: it can't be cancelled."""
    return why is Interruption.CANCELLED and call is not None and not call.step.cancelable


class Context(AnyContext):
    """One run of a job. Only the handler that got it may use it, and only while it runs. A sync handler may take a
    SyncContext instead."""

    _open: tuple[Guard, ...] = ()  # the guards of open transactions
    is_unfinished = False  # call `finish` when the handler has ended
    _outage: BaseException | None = None  # the error that the handler got when the jobs' database went away
    _fenced = False  # the handler has completed the job in a transaction of its own, which may be committed or not
    _steps: RunSteps | None = None  # the steps of this run, once there are any
    _call: StepCall | None = None  # the step that this Context is bound to …
    _handlers: Context | None = None  # … and the Context of its handler
    task: Task[..., Any] | None = None
    home: asyncio.Task[Any] | threading.Thread | None = None  # in which the handler is called
    has_ended = False  # the handler has returned or raised

    def __init__(self, job: Job, link: Link, host: Host) -> None:
        super().__init__(job, link, host)
        self._enqueued: dict[str, int] = {}  # how often this run has enqueued the same content

    @property
    def may_be_completed(self) -> bool:
        """True if a transaction of the handler's own completes the job, once it is committed."""
        return self._fenced

    @property
    def sync(self) -> SyncContext:
        """Return the same Context for handlers that can't `await`."""
        return SyncContext(self)

    # ── Steps ──

    @overload
    def step(self, function: Step[P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> Running[R]: ...

    @overload
    def step(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Running[R]: ...

    @overload
    def step(
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Running[R]: ...

    @overload
    def step(
        self, function: Callable[Concatenate[Context, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Running[R]: ...

    @overload
    def step(
        self, function: Callable[Concatenate[SyncContext, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Running[R]: ...

    @overload
    def step(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Running[R]: ...

    def step(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Run a step and store its result; if it is stored, return it. A later run of the job does not run it again.

            prepared = await ctx.step(prepare, target)

        The step is found by the function's name and the number of the call. Call steps in the same order in each run. A
        first parameter of type Context is filled in with one that is bound to the step.
        """
        steps = self._ready_for("step", is_async=True)
        return steps.run(steps.begin(function, args, kwargs))

    # ── Waits ──

    def sleep(self, seconds: float | timedelta | None = None, *, until: datetime | None = None) -> Running[None]:
        """End the run, and go on after so many seconds, or at a time. The job is `waiting`: it holds no slot, and the
        time counts towards no timeout.

            await ctx.sleep(3600)

        The next run starts the handler from the top. Steps and waits that are done return what is stored. `finally`
        blocks run at every wait.
        """
        steps = self._ready_for("sleep", is_async=True)
        return steps.run(steps.begin_sleep(seconds, until))

    @overload
    def wait_for(self, signal: Signal[T], *, timeout: float | timedelta | None = None) -> Running[T]: ...

    @overload
    def wait_for(
        self, signal: Signal[T], *, timeout: float | timedelta | None = None, default: D
    ) -> Running[T | D]: ...

    @overload
    def wait_for(
        self, signal: str, *, timeout: float | timedelta | None = None, default: Any = UNSET
    ) -> Running[Any]: ...

    def wait_for(
        self, signal: Signal[Any] | str, *, timeout: float | timedelta | None = None, default: Any = UNSET
    ) -> Running[Any]:
        """Return the data of the next signal of this name. If there is none, end the run as `sleep` does, until one
        comes.

            got = await ctx.wait_for(decision, timeout=86400, default=None)

        After `timeout` seconds without a signal, return `default`; without a default, raise WaitTimeout. Signals are
        read in the order in which they came, also those that came before the wait.
        """
        steps = self._ready_for("wait_for", is_async=True)
        return steps.run(steps.begin_wait(signal, timeout, default))

    def callback(self, signal: Signal[Any] | str, *, timeout: float | timedelta | None = None) -> Running[Callback]:
        """Return an address for the outside world. A POST to its `url` sends this signal to the job, once. A later run
        gets the same address. It ends after `timeout` seconds."""
        steps = self._ready_for("callback", is_async=True)
        return steps.run(steps.begin_callback(signal, timeout))

    # ── Children ──

    @overload
    def gather(self, jobs: Sequence[Draft[R]], *, if_failed: Literal["raise"] = "raise") -> Running[list[R]]: ...

    @overload
    def gather(self, jobs: Sequence[Draft[R]], *, if_failed: Literal["return"]) -> Running[list[R | ChildFailed]]: ...

    @overload
    def gather(self, jobs: Sequence[Any], *, if_failed: Literal["raise", "return"] = "raise") -> Running[list[Any]]: ...

    def gather(self, jobs: Sequence[Any], *, if_failed: Literal["raise", "return"] = "raise") -> Running[list[Any]]:
        """Start other jobs, wait until all of them have ended, and return their results, in the same order. The run
        ends as in `sleep`: no slot is held meanwhile.

            vectors = await ctx.gather([embed.draft(document, n) for n in range(count)])

        The jobs inherit scope, scope_id and trace. A later run of this job finds them again: none is started twice. If
        one failed, expired or was cancelled, raise ChildFailed after all have ended; `if_failed="return"` puts a
        ChildFailed in its place instead. A cancel of this job reaches them.
        """
        steps = self._ready_for("gather", is_async=True)
        return steps.run(steps.begin_gather(jobs, if_failed))

    @overload
    async def run(self, job: Draft[R]) -> R: ...

    @overload
    async def run(self, job: Any) -> Any: ...

    async def run(self, job: Any) -> Any:
        """Start another job, wait until it has ended, and return its result. See `gather`.

        film = await ctx.run(render.draft("s3://…"))
        """
        return (await self.gather([job]))[0]

    def _ready_for(self, verb: str, *, is_async: bool = False) -> RunSteps:
        """Return the steps of this run. Raise if the handler may not call ctx.VERB here."""
        if is_async:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                raise WrongContext(
                    f"this handler is not async: annotate its ctx with SyncContext, or call ctx.sync.{verb}(…)"
                ) from None
        if (self._handlers or self).has_ended:
            raise WrongContext(f"ctx.{verb}: the handler has ended")
        if self._link.completed:
            raise WrongContext(
                f"ctx.{verb}: the handler has completed the job. Call ctx.complete() after the last step"
            )
        if (here := self._step_here()) is not None:
            raise WrongContext(f"ctx.{verb} inside of the step {here}: only the handler may call it")
        if self._open:
            way_out = "end the transaction first" + (", or let the step open it" if verb == "step" else "")
            raise WrongContext(f"ctx.{verb} inside of ctx.transaction(): {way_out}")
        if self._steps is None:
            from rowlock.run_steps import RunSteps  # that module imports this one; most handlers have no steps

            self._steps = RunSteps(self)
            self.is_unfinished = True
        return self._steps

    async def finish(self, error: BaseException | None = None) -> None:
        """Finish the run's steps after the handler has ended: with `error`, or by returning. Raise if it must not have
        ended in this way."""
        if self._steps is not None:
            await self._steps.finish(cancel=isinstance(error, asyncio.CancelledError))
        if self._fenced and not self._link.completed and not isinstance(error, asyncio.CancelledError):
            with suppress(StoreError) if error is not None else nullcontext():
                self._link.completed = await self._host.status(self.job.id) is Status.COMPLETED
        if error is None:
            self._check_end()

    def finish_sync(self, error: BaseException | None = None) -> None:
        """See `finish`."""
        if self._steps is not None:
            self._steps.finish_sync()
        if self._fenced and not self._link.completed:
            with suppress(StoreError) if error is not None else nullcontext():
                self._link.completed = self._host.status_sync(self.job.id) is Status.COMPLETED
        if error is None:
            self._check_end()

    def _check_end(self) -> None:
        if self._steps is not None:
            self._steps.refuse_swallowed()
        if self._fenced and not self._link.completed:
            raise WrongContext(
                "the handler has called ctx.fence(conn, complete=…), but its transaction is not committed: commit it "
                "before the handler returns"
            )

    def bind(self, call: StepCall) -> Context:
        """Return a Context for the function of a step."""
        bound = Context(self.job, self._link, self._host)
        bound._call, bound._handlers, bound._steps, bound.task = call, self, self._steps, self.task
        return bound

    def _step_here(self) -> StepCall | None:
        return self._call if self._call is not None or self._steps is None else self._steps.current(self)

    def _here(self) -> Context:
        """Return the Context of the step in which this is called; else this one."""
        call = self._step_here()
        return self if call is None else call.context

    # ── Write ──

    async def enqueue(
        self, topic: str, payload: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued:
        """Enqueue another job. It inherits scope, scope_id and trace. With `conn=`, it is part of that transaction.

        Its id follows from this job, from its content and from how often this run has enqueued the same. So a later run
        of this job that enqueues the same finds the job that is there. Give an `id` to decide yourself.
        """
        with self.noticing_outages():
            return await self._host.enqueue(topic, payload, **self._identified(topic, payload, options))

    def _identified(self, topic: str, payload: Mapping[str, Any] | None, options: EnqueueOptions) -> EnqueueOptions:
        """Return the options with an id that a later run of this job gets as well for the same content."""
        inherited = self._inherit(options)
        if "id" in options:
            return inherited
        handlers = self._handlers or self
        codec.check_object(payload)
        try:
            content = codec.encode([str(topic), dict(payload or {}), options.get("key")], "payload")
        except InvalidInput:
            codec.encode_payload(payload)  # names the field
            raise
        n = handlers._enqueued[content] = handlers._enqueued.get(content, 0) + 1
        inherited["id"] = derived_id(self.job.id, "enqueue", content, n)
        return inherited

    async def fence(self, conn: Any, *, complete: Any = UNSET) -> None:
        """Check the lease in your own transaction, as its last statement before COMMIT.

        Raise LeaseLost if this run has lost the job; then let the transaction roll back. Until the transaction ends, no
        other worker can take the job. `complete`: the transaction also completes the step in which this is called, or
        the job, with this result.
        """
        call = self._here()._call
        if call is not None and call.fenced and complete is not UNSET:
            await call.steps.look(call)  # if the first transaction is committed, another one must not complete it again
        guard = self._here().guard_for(complete)
        with self.noticing_outages():
            await self._host.fence(guard, conn)
        self._here().note_fence(guard)

    def guard_for(self, complete: Any) -> Guard:
        """Return the guard of a transaction. `complete`: as in `fence`."""
        guard = self._guard()
        if not isinstance(complete, UnsetType):
            self._complete(guard, complete)
        return guard

    def note_fence(self, guard: Guard) -> None:
        """Record that the caller's own transaction has the guard's writes. Whether it commits is found out later."""
        if guard.checkpoint is not None and self._call is not None:
            self._call.fenced = True
        if guard.completion is not None:
            self._fenced = self.is_unfinished = True

    def transaction(self) -> FencedTransaction:
        """Open a transaction on the jobs' database. It commits only if this run still holds its lease.

            async with ctx.transaction() as conn:      # in a sync handler: with ctx.transaction() as conn:
                await conn.execute("UPDATE accounts SET …")

        `conn` is from asyncpg on PostgreSQL (psycopg in sync handlers), from sqlite3 on SQLite. On SQLite it holds the
        write lock: keep it short.
        """
        return FencedTransaction(self._here(), self._host, self._guard(), self._link.lease / 3)

    def complete(self, result: Any = None) -> None:
        """Complete the job with this result in the COMMIT of the open `transaction()`; inside a step, the step. Then
        the writes and the completion happen together, once, or not at all. What the handler, or the step, returns is
        ignored."""
        here = self._here()
        if len(here._open) != 1:
            raise WrongContext("call ctx.complete() inside exactly one `with ctx.transaction():` block")
        [guard] = here._open
        here._complete(guard, result)

    def _complete(self, guard: Guard, result: Any) -> None:
        if self._call is not None:
            guard.checkpoint = self._call.success(result)
            return
        done = Transition(
            event="completed",
            status=Status.COMPLETED,
            result=None if result is None else codec.encode(result, "result"),
            ran=time.monotonic() - self._link.began,
        )
        guard.completion = Settlement(guard.id, guard.version, done, guard.worker)

    # ── The database goes away ──

    @contextmanager
    def noticing_outages(self) -> Iterator[None]:
        """Remember an error of the database, away or full: such a failure costs the job no retry."""
        try:
            yield
        except (StoreUnavailable, StoreFull) as error:
            (self._handlers or self)._outage = error
            raise

    def is_cut_off(self, error: BaseException) -> bool:
        """True if the handler raised this because the jobs' own database went away."""
        while self._outage is not None and error is not self._outage:
            following = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
            if following is None:
                return False
            error = following
        return self._outage is not None

    def _begun(self, guard: Guard) -> None:
        self._open = (*self._open, guard)

    def _ended(self, guard: Guard, *, committed: bool, error: BaseException | None) -> None:
        self._open = tuple(one for one in self._open if one is not guard)
        if guard.outage and error is not None:
            (self._handlers or self)._outage = error
        if committed and guard.completion is not None:
            self._link.completed = True
        if committed and guard.checkpoint is not None and self._call is not None:
            self._call.has_stored(guard.checkpoint)


class SyncContext(AnyContext):
    """The Context of a sync handler: the same without `await`. The worker fills in a parameter of this type, in a
    thread and in a child process. `ctx.sync` is one too.

    @jobs.task
    def book(ctx: SyncContext, order: int) -> None:
        with ctx.transaction() as conn:
            conn.execute("INSERT INTO bookings VALUES (?)", (order,))
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context.job, context._link, context._host)
        self._context = context  # only it knows the open transactions, and the outages that the handler saw

    def enqueue(
        self, topic: str, payload: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued:
        """See Context.enqueue."""
        with self._context.noticing_outages():
            return self._host.sync.enqueue(topic, payload, **self._context._identified(topic, payload, options))

    @overload
    def gather(self, jobs: Sequence[Draft[R]], *, if_failed: Literal["raise"] = "raise") -> list[R]: ...

    @overload
    def gather(self, jobs: Sequence[Draft[R]], *, if_failed: Literal["return"]) -> list[R | ChildFailed]: ...

    @overload
    def gather(self, jobs: Sequence[Any], *, if_failed: Literal["raise", "return"] = "raise") -> list[Any]: ...

    def gather(self, jobs: Sequence[Any], *, if_failed: Literal["raise", "return"] = "raise") -> list[Any]:
        """See Context.gather."""
        steps = self._context._ready_for("gather")
        results: list[Any] = steps.run_sync(steps.begin_gather(jobs, if_failed))
        return results

    @overload
    def run(self, job: Draft[R]) -> R: ...

    @overload
    def run(self, job: Any) -> Any: ...

    def run(self, job: Any) -> Any:
        """See Context.run."""
        return self.gather([job])[0]

    @overload
    def step(self, function: Step[P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def step(self, function: Callable[Concatenate[SyncContext, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def step(self, function: Callable[Concatenate[Context, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def step(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def step(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """See Context.step."""
        steps = self._context._ready_for("step")
        return steps.run_sync(steps.begin(function, args, kwargs))

    def sleep(self, seconds: float | timedelta | None = None, *, until: datetime | None = None) -> None:
        """See Context.sleep."""
        steps = self._context._ready_for("sleep")
        steps.run_sync(steps.begin_sleep(seconds, until))

    @overload
    def wait_for(self, signal: Signal[T], *, timeout: float | timedelta | None = None) -> T: ...

    @overload
    def wait_for(self, signal: Signal[T], *, timeout: float | timedelta | None = None, default: D) -> T | D: ...

    @overload
    def wait_for(self, signal: str, *, timeout: float | timedelta | None = None, default: Any = UNSET) -> Any: ...

    def wait_for(
        self, signal: Signal[Any] | str, *, timeout: float | timedelta | None = None, default: Any = UNSET
    ) -> Any:
        """See Context.wait_for."""
        steps = self._context._ready_for("wait_for")
        return steps.run_sync(steps.begin_wait(signal, timeout, default))

    def callback(self, signal: Signal[Any] | str, *, timeout: float | timedelta | None = None) -> Callback:
        """See Context.callback."""
        steps = self._context._ready_for("callback")
        found: Callback = steps.run_sync(steps.begin_callback(signal, timeout))
        return found

    def _step_here(self) -> StepCall | None:
        return self._context._step_here()

    def fence(self, conn: Any, *, complete: Any = UNSET) -> None:
        """See Context.fence."""
        context = self._context._here()
        call = context._call
        if call is not None and call.fenced and complete is not UNSET:
            call.steps.look_sync(call)
        guard = context.guard_for(complete)
        with context.noticing_outages():
            self._host.fence_sync(guard, conn)
        context.note_fence(guard)

    def transaction(self) -> SyncTransaction:
        """See Context.transaction. It is for `with` only; `conn` is from psycopg on PostgreSQL, from sqlite3 on
        SQLite."""
        return SyncTransaction(self._context._here(), self._host, self._guard(), self._link.lease / 3)

    def complete(self, result: Any = None) -> None:
        """See Context.complete."""
        self._context.complete(result)


class SyncTransaction:
    """Made by `SyncContext.transaction()`; for `with`."""

    def __init__(self, context: Context, host: Host, guard: Guard, longest: float) -> None:
        self._context = context
        self._host = host
        self._guard = guard
        self._longest = longest
        self._entered: Any = None

    def __enter__(self) -> Any:
        with self._context.noticing_outages():
            self._entered = self._host.sync_transaction(self._guard, self._longest)
            conn = self._entered.__enter__()
        self._context._begun(self._guard)
        return conn

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._end(error) as lost:
            self._entered.__exit__(*((type(lost), lost, None) if lost else (kind, error, trace)))

    @contextmanager
    def _end(self, error: BaseException | None) -> Iterator[LeaseLost | None]:
        """Run the end of the transaction in this block. Yields the error if the lease is lost: then the transaction
        must roll back, and the error is raised."""
        committed = False
        lost = self._context._lost() if error is None else None
        try:
            with self._context.noticing_outages():
                yield lost
            committed = error is None and lost is None
        finally:
            self._context._ended(self._guard, committed=committed, error=error)
        if lost:
            raise lost


class FencedTransaction(SyncTransaction):
    """Made by `Context.transaction()`; for `with` and `async with`."""

    async def __aenter__(self) -> Any:
        with self._context.noticing_outages():
            self._entered = await self._host.transaction(self._guard, self._longest)
            conn = await self._entered.__aenter__()
        self._context._begun(self._guard)
        return conn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._end(error) as lost:
            await self._entered.__aexit__(*((type(lost), lost, None) if lost else (kind, error, trace)))
