"""The services that a handler's Context needs from its Jobs: enqueue, fence, transactions, steps, addresses of
callbacks. Every kind of handler uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Unpack

from rowlock.client.callbacks import Callbacks
from rowlock.client.children import Children, drafts_of
from rowlock.client.connections import Stores
from rowlock.client.enqueue import Draftable
from rowlock.client.portal import running_loop
from rowlock.core.flows import Edge
from rowlock.core.job import Job, Status
from rowlock.core.steps import StepMark, StoredStep
from rowlock.core.waits import Wait
from rowlock.errors import WrongContext
from rowlock.stores.base import Awaited, Enqueued, Guard, Hold
from rowlock.stores.callers import SyncCaller, caller_for
from rowlock.tasks import Draft, EnqueueOptions, Enqueues, ReturnType, SyncEnqueues


class ContextHost:
    """Implements rowlock.context.Host."""

    def __init__(self, jobs: Enqueues, stores: Stores, callbacks: Callbacks, children: Children) -> None:
        self._jobs = jobs
        self._stores = stores
        self._callbacks = callbacks
        self._children = children

    @property
    def sync(self) -> SyncEnqueues:
        return self._jobs.sync

    async def enqueue(
        self, topic: str, payload: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued:
        return await self._jobs.enqueue(topic, payload, **options)

    async def fence(self, guard: Guard, conn: Any) -> None:
        caller = caller_for(conn, await self._stores.home())
        if isinstance(caller, SyncCaller) and caller.never_waits:
            raise WrongContext(
                "the connection of ctx.transaction() has the fence at its COMMIT: leave out ctx.fence, and call "
                "ctx.complete(value) to complete"
            )
        if isinstance(caller, SyncCaller):
            raise WrongContext(
                f"{caller.kind} would block the event loop. Use another one, or `async with ctx.transaction()`; "
                "or do all of it in a step that is not async, with a SyncContext"
            )
        await caller.fence(guard)

    def fence_sync(self, guard: Guard, conn: Any) -> None:
        if running_loop() is not None:
            raise WrongContext("ctx.sync.fence would block the event loop: use `await ctx.fence(conn)` here")
        caller = caller_for(conn, self._stores.portal.run(self._stores.home))
        if not isinstance(caller, SyncCaller):
            raise WrongContext(f"{caller.kind} needs an event loop: use `await ctx.fence(conn)` in an async handler")
        caller.fence(guard)

    async def checkpoint(self, mark: StepMark) -> Hold:
        return await (await self._stores.handle()).checkpoints.call(mark)

    def checkpoint_sync(self, mark: StepMark) -> Hold:
        return self._stores.portal.run(lambda: self.checkpoint(mark))

    async def take_signal(self, wait: Wait) -> Awaited:
        return await (await self._stores.handle()).store.take_signal(wait)

    def take_signal_sync(self, wait: Wait) -> Awaited:
        return self._stores.portal.run(lambda: self.take_signal(wait))

    async def steps(self, job_id: str) -> list[StoredStep]:
        return await (await self._stores.handle()).steps.call(job_id)

    def steps_sync(self, job_id: str) -> list[StoredStep]:
        return self._stores.portal.run(lambda: self.steps(job_id))

    async def start_children(self, job: Job, call: int, drafts: Sequence[Draft]) -> Hold:
        return await self._children.start(job, call, drafts)

    def start_children_sync(self, job: Job, call: int, drafts: Sequence[Draft]) -> Hold:
        return self._stores.portal.run(lambda: self.start_children(job, call, drafts))

    async def children(self, job_id: str, call: int) -> list[Edge]:
        return await self._children.ends(job_id, call)

    def children_sync(self, job_id: str, call: int) -> list[Edge]:
        return self._stores.portal.run(lambda: self.children(job_id, call))

    def drafts(self, jobs: Sequence[Draftable]) -> list[Draft]:
        """Return the checked list of a call of ctx.gather."""
        return drafts_of(jobs)

    def returns(self, draft: Draft) -> ReturnType:
        return self._children.returns(draft)

    async def status(self, job_id: str) -> Status | None:
        return (await (await self._stores.handle()).store.read([job_id], Status)).get(job_id)

    def status_sync(self, job_id: str) -> Status | None:
        return self._stores.portal.run(lambda: self.status(job_id))

    async def address(self, job_id: str, signal: str, n: int) -> str:
        """Return the address by which an external system answers the job's n-th callback for this signal."""
        return await self._callbacks.address(job_id, signal, n)

    def address_sync(self, job_id: str, signal: str, n: int) -> str:
        return self._stores.portal.run(lambda: self.address(job_id, signal, n))

    async def transaction(self, guard: Guard, longest: float) -> AbstractAsyncContextManager[Any]:
        return (await self._stores.handle()).store.transaction(guard, longest=longest)

    def sync_transaction(self, guard: Guard, longest: float) -> AbstractContextManager[Any]:
        if running_loop() is not None:
            raise WrongContext("this handler is async: use `async with ctx.transaction()`")
        return self._stores.first.sync_transaction(guard, longest=longest)
