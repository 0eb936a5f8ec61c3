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

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from enum import StrEnum
from types import TracebackType
from typing import Any, Protocol, Unpack

from rowlock.core import codec
from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Settlement, Transition
from rowlock.errors import (
    Cancelled,
    InvalidInput,
    LeaseLost,
    StoreFull,
    StoreUnavailable,
    TimeLimit,
    WorkerStopping,
    WrongContext,
)
from rowlock.stores.base import Enqueued, Guard
from rowlock.tasks import EnqueueOptions, Enqueues


class Interruption(StrEnum):
    """Why a run must end. The first reason is kept. Only LOST replaces it: it says how the lease is now."""

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


class Host(Enqueues, Protocol):
    """What a Context needs from `Jobs`."""

    async def fence(self, guard: Guard, conn: Any) -> None: ...

    def fence_sync(self, guard: Guard, conn: Any) -> None: ...

    async def transaction(self, guard: Guard, longest: float) -> AbstractAsyncContextManager[Any]: ...

    def sync_transaction(self, guard: Guard, longest: float) -> AbstractContextManager[Any]: ...


class AnyContext:
    """What Context and SyncContext share: everything that needs neither `await` nor a transaction."""

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
        return self._link.interruption is not None

    def check(self) -> None:
        """Raise if the run must end: Cancelled, TimeLimit, LeaseLost or WorkerStopping. It is cheap: no I/O."""
        self._link.looks = True
        match self._link.interruption:
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

    def heartbeat(self) -> None:
        """Renew the lease now. Rarely needed: the worker renews it by itself, also while a handler blocks."""
        self._link.beat()

    # ── Report ──

    def progress(self, percent: float | None = None, *, stage: str | None = None, message: str | None = None) -> None:
        """Report the progress, 0 to 100. Call it as often as you like: the worker writes it a few times a second."""
        if percent is not None and (isinstance(percent, bool) or not isinstance(percent, int | float)):
            raise InvalidInput("percent", "not_a_number", f"must be a number from 0 to 100, not {percent!r:.40}")
        self._link.report(percent, None if stage is None else str(stage), None if message is None else str(message))

    def log(self, text: object, *, level: str = "info") -> None:
        """Add a line to the job's log. The newest 200 lines are kept."""
        self._link.log(str(level), str(text))

    # ── For both ──

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


class Context(AnyContext):
    """One run of a job. Only the handler that got it may use it, and only while it runs. A sync handler may take a
    SyncContext instead."""

    _open: tuple[Guard, ...] = ()  # the guards of open transactions
    _outage: BaseException | None = None  # the error that the handler got when the jobs' database went away

    @property
    def sync(self) -> SyncContext:
        """The same for handlers that can't `await`."""
        return SyncContext(self)

    # ── Write ──

    async def enqueue(
        self, topic: str, payload: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued:
        """Enqueue another job. It inherits scope, scope_id and trace. With `conn=`, it is part of that transaction."""
        with self.noticing_outages():
            return await self._host.enqueue(topic, payload, **self._inherit(options))

    async def fence(self, conn: Any) -> None:
        """Check the lease in your own transaction, as its last statement before COMMIT.

        Raise LeaseLost if this run has lost the job; then let the transaction roll back. Until the transaction ends, no
        other worker can take the job.
        """
        with self.noticing_outages():
            await self._host.fence(self._guard(), conn)

    def transaction(self) -> FencedTransaction:
        """Open a transaction on the jobs' database. It commits only if this run still holds its lease.

            async with ctx.transaction() as conn:      # in a sync handler: with ctx.transaction() as conn:
                await conn.execute("UPDATE accounts SET …")

        `conn` is from asyncpg on PostgreSQL (psycopg in sync handlers), from sqlite3 on SQLite. On SQLite it holds the
        write lock: keep it short.
        """
        return FencedTransaction(self, self._host, self._guard(), self._link.lease / 3)

    def complete(self, result: Any = None) -> None:
        """Complete the job with this result in the COMMIT of the open `transaction()`. Then the writes and the
        completion happen together, once, or not at all. The handler's return value is ignored."""
        if len(self._open) != 1:
            raise WrongContext("call ctx.complete() inside exactly one `with ctx.transaction():` block")
        [guard] = self._open
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
            self._outage = error
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
            self._outage = error
        if committed and guard.completion is not None:
            self._link.completed = True


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
        self._context = context  # it alone knows the open transactions, and what the handler saw of an outage

    def enqueue(
        self, topic: str, payload: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued:
        """See Context.enqueue."""
        with self._context.noticing_outages():
            return self._host.sync.enqueue(topic, payload, **self._inherit(options))

    def fence(self, conn: Any) -> None:
        """See Context.fence."""
        with self._context.noticing_outages():
            self._host.fence_sync(self._guard(), conn)

    def transaction(self) -> SyncTransaction:
        """See Context.transaction. It is for `with` only; `conn` is from psycopg on PostgreSQL, from sqlite3 on
        SQLite."""
        return SyncTransaction(self._context, self._host, self._guard(), self._link.lease / 3)

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
        """Around the end of the transaction. Yields the error if the lease is lost: then the transaction must roll
        back, and the error is raised."""
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
