"""Context: what a handler may do beside its work. A parameter with this type is filled in by the worker.

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
    """Why a run is to end. The first one stays, but LOST: that one is about the present."""

    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    STOPPING = "stopping"
    LOST = "lost"


class Link(Protocol):
    """What joins a handler to the worker that holds its lease: in the same process, or over a pipe.

    Its methods only note something down, from any thread; the worker does the rest.
    """

    interruption: Interruption | None
    looks: bool  # the handler asks by itself whether it is to end
    completed: bool  # the job was completed in a transaction of the handler's

    @property
    def began(self) -> float:
        """When the handler was started, by time.monotonic()."""
        ...

    @property
    def lease(self) -> float: ...

    def report(self, percent: float | None, stage: str | None, message: str | None) -> None: ...

    def log(self, level: str, text: str) -> None: ...

    def beat(self) -> None: ...


class Host(Enqueues, Protocol):
    """What a Context needs of `Jobs`."""

    async def fence(self, guard: Guard, conn: Any) -> None: ...

    def fence_sync(self, guard: Guard, conn: Any) -> None: ...

    async def transaction(self, guard: Guard, longest: float) -> AbstractAsyncContextManager[Any]: ...

    def sync_transaction(self, guard: Guard, longest: float) -> AbstractContextManager[Any]: ...


class Context:
    """One run of a job. Belongs to the handler it was given to, for as long as that runs."""

    _open: tuple[Guard, ...] = ()  # of transactions
    _outage: BaseException | None = None  # what the handler heard when the jobs' database went away

    def __init__(self, job: Job, link: Link, host: Host) -> None:
        self.job = job
        self._link = link
        self._host = host

    def __repr__(self) -> str:
        return f"<Context of run {self.job.version} of {self.job.topic} {self.job.id}>"

    @property
    def sync(self) -> SyncContext:
        """For handlers that can't `await`."""
        return SyncContext(self)

    # ── Is anyone still waiting for this? ──

    @property
    def cancelled(self) -> bool:
        """Is the run to end? Because the job was cancelled, its time is up, its lease is lost, or the worker stops."""
        self._link.looks = True
        return self._link.interruption is not None

    def check(self) -> None:
        """Raise if the run is to end: Cancelled, TimeLimit, LeaseLost or WorkerStopping. Costs nothing."""
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
        """Renew the lease now. Hardly ever needed: the worker does it by itself, also while a handler blocks."""
        self._link.beat()

    # ── What is it doing? ──

    def progress(self, percent: float | None = None, *, stage: str | None = None, message: str | None = None) -> None:
        """Say how far it is, 0 to 100. Call it as often as you like: it is written a few times a second."""
        if percent is not None and (isinstance(percent, bool) or not isinstance(percent, int | float)):
            raise InvalidInput("percent", "not_a_number", f"must be a number from 0 to 100, not {percent!r:.40}")
        self._link.report(percent, None if stage is None else str(stage), None if message is None else str(message))

    def log(self, text: object, *, level: str = "info") -> None:
        """Keep a line with the job, for whoever looks at it later. The newest 200 are kept."""
        self._link.log(str(level), str(text))

    # ── What it leaves behind ──

    async def enqueue(
        self, topic: str, payload: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued:
        """Enqueue another job, which inherits scope, scope_id and trace. With `conn=`, in that transaction."""
        with self.noticing_outages():
            return await self._host.enqueue(topic, payload, **self._inherit(options))

    async def fence(self, conn: Any) -> None:
        """Last statement before COMMIT in a transaction of yours: LeaseLost if this run is not the job's any more. Then
        let it roll back. Nobody can take the job from here to the end of the transaction."""
        with self.noticing_outages():
            await self._host.fence(self._guard(), conn)

    def transaction(self) -> FencedTransaction:
        """A connection to the jobs' database, in a transaction that only commits while this run holds its lease.

            async with ctx.transaction() as conn:      # in a sync handler: with ctx.transaction() as conn:
                await conn.execute("UPDATE accounts SET …")

        asyncpg on PostgreSQL (psycopg in sync handlers), sqlite3 on SQLite, where it holds the write lock: be quick.
        """
        return FencedTransaction(self, self._host, self._guard(), self._link.lease / 3)

    def complete(self, result: Any = None) -> None:
        """Inside `transaction()`: its COMMIT also completes the job, with this result. So the writes and the completion
        happen both or not at all, and once. What the handler returns later is ignored."""
        if len(self._open) != 1:
            raise WrongContext("ctx.complete() belongs inside one `with ctx.transaction():` block")
        [guard] = self._open
        done = Transition(
            event="completed",
            status=Status.COMPLETED,
            result=None if result is None else codec.encode(result, "result"),
            ran=time.monotonic() - self._link.began,
        )
        guard.completion = Settlement(guard.id, guard.version, done, guard.worker)

    def _guard(self) -> Guard:
        if lost := self._lost():
            raise lost
        return Guard(self.job.id, self.job.version, worker=self.job.locked_by)

    def _lost(self) -> LeaseLost | None:
        """What the worker knows, the database may not: another run of the same worker may have been given this
        version."""
        if self._link.interruption is Interruption.LOST:
            return LeaseLost(self.job.id, self.job.version)
        return None

    def _inherit(self, options: EnqueueOptions) -> EnqueueOptions:
        inherited: dict[str, Any] = {
            name: value for name in ("scope", "scope_id", "trace") if (value := getattr(self.job, name)) is not None
        }
        return {**inherited, **options}  # type: ignore[typeddict-item]

    # ── The database goes away ──

    @contextmanager
    def noticing_outages(self) -> Iterator[None]:
        """What is raised in here because the database is away, or full, is not the handler's fault."""
        try:
            yield
        except (StoreUnavailable, StoreFull) as error:
            self._outage = error
            raise

    def is_cut_off(self, error: BaseException) -> bool:
        """Did the handler raise this because the jobs' own database went away?"""
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


class SyncContext:
    """`ctx.sync`: what needs `await` on Context, for handlers without it."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def enqueue(
        self, topic: str, payload: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued:
        """See Context.enqueue."""
        with self._context.noticing_outages():
            return self._context._host.sync.enqueue(topic, payload, **self._context._inherit(options))

    def fence(self, conn: Any) -> None:
        """See Context.fence."""
        with self._context.noticing_outages():
            self._context._host.fence_sync(self._context._guard(), conn)


class FencedTransaction:
    """Made by `ctx.transaction()`; for `with` and `async with`."""

    def __init__(self, context: Context, host: Host, guard: Guard, longest: float) -> None:
        self._context = context
        self._host = host
        self._guard = guard
        self._longest = longest
        self._entered: Any = None

    async def __aenter__(self) -> Any:
        with self._context.noticing_outages():
            self._entered = await self._host.transaction(self._guard, self._longest)
            conn = await self._entered.__aenter__()
        self._context._begun(self._guard)
        return conn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        committed = False
        lost = self._context._lost() if error is None else None
        try:
            with self._context.noticing_outages():
                await self._entered.__aexit__(*((type(lost), lost, None) if lost else (kind, error, trace)))
            committed = error is None and lost is None
        finally:
            self._context._ended(self._guard, committed=committed, error=error)
        if lost:
            raise lost

    def __enter__(self) -> Any:
        with self._context.noticing_outages():
            self._entered = self._host.sync_transaction(self._guard, self._longest)
            conn = self._entered.__enter__()
        self._context._begun(self._guard)
        return conn

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        committed = False
        lost = self._context._lost() if error is None else None
        try:
            with self._context.noticing_outages():
                self._entered.__exit__(*((type(lost), lost, None) if lost else (kind, error, trace)))
            committed = error is None and lost is None
        finally:
            self._context._ended(self._guard, committed=committed, error=error)
        if lost:
            raise lost
