"""The stores of a Jobs object: one per event loop, or one for all. Also after fork()."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from rowlock.client.bell import Bell
from rowlock.client.portal import Portal
from rowlock.core.job import NewJob
from rowlock.core.steps import StepMark, StoredStep, StoredSteps
from rowlock.errors import StoreBusy, StoreClosed
from rowlock.stores.after_fork import keep_for_ever
from rowlock.stores.base import Enqueued, Hold, Home, Store
from rowlock.stores.group import Group

Insert = Callable[[Sequence[NewJob]], Awaitable[list[Enqueued]]]

_PATIENCE_IN_TRANSACTION = 5.0  # seconds to open the database while a caller's transaction may lock it

_all: weakref.WeakSet[Stores] = weakref.WeakSet()


class Handle(Struct):
    """An open store, with its bell, for one event loop. Concurrent inserts share a commit (`group`). So do the marks of
    steps (`checkpoints`). Concurrent reads of steps share a statement (`steps`)."""

    store: Store
    group: Group[NewJob, Enqueued]
    bell: Bell
    checkpoints: Group[StepMark, Hold]
    steps: Group[str, list[StoredStep]]


class Stores:
    """One store per event loop, or one for all loops where the database allows it. The first use opens it.

    A process may have several loops: the application's, the portal's, one after the other in tests.
    """

    def __init__(
        self, make: Callable[[], Store], first: Store, *, migrate: bool, insert: Callable[[Store], Insert]
    ) -> None:
        self.portal = Portal()
        self.first = first
        self._make = make
        self._migrate = migrate
        self.creates = True  # creates a missing SQLite file; False: raises if it is missing
        self._insert = insert
        self._shared_open: asyncio.Task[None] | None = None  # a task of the portal's loop
        self._handles: dict[asyncio.AbstractEventLoop, asyncio.Task[Handle]] = {}
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        self._closed = False
        self._home: Home | None = None
        _all.add(self)

    async def handle(self) -> Handle:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise StoreClosed("these Jobs were closed: call open(), or create new ones")
        opening = self._handles.get(loop)
        if opening is None:
            with self._lock:
                for old in [old for old in self._handles if old.is_closed()]:
                    del self._handles[old]
                opening = self._handles[loop] = loop.create_task(self._open())
        elif opening.done() and not opening.cancelled() and opening.exception() is None:
            return opening.result()  # the usual case, without another turn of the loop
        try:
            return await asyncio.shield(opening)
        except BaseException:
            if opening.done() and self._handles.get(loop) is opening:
                del self._handles[loop]  # the next call tries again
            raise

    async def _open(self) -> Handle:
        if self.first.traits.any_loop:
            await asyncio.wrap_future(self.portal.submit(self._open_shared))
            store = self.first
        else:
            store = self._make()
            await self._open_store(store)

        async def steps(ids: Sequence[str]) -> list[list[StoredStep]]:
            found = await store.read(ids, StoredSteps)
            return [found[job_id].items if job_id in found else [] for job_id in ids]

        return Handle(
            store, Group(self._insert(store)), Bell(store), Group(store.checkpoint), Group(steps, largest=200)
        )

    async def _open_shared(self) -> None:
        """Open the shared store once, on the portal's loop."""
        if self._shared_open is None:
            self._shared_open = asyncio.create_task(self._open_store(self.first))
        try:
            await asyncio.shield(self._shared_open)
        except BaseException:
            if self._shared_open.done():
                self._shared_open = None  # the next call tries again
            raise

    async def _open_store(self, store: Store) -> None:
        if self._migrate:
            await store.migrate(create=self.creates)
        await store.open()

    async def home(self) -> Home:
        """Return which database this is. It is known after the first call, so that a sync caller need not wait."""
        if not self.knows_home:
            patience = _PATIENCE_IN_TRANSACTION if self.first.traits.any_loop else None  # SQLite locks the file
            try:
                async with asyncio.timeout(patience):
                    self._home = await (await self.handle()).store.home()
            except TimeoutError:
                raise StoreBusy(
                    "these Jobs were first used inside a transaction, which keeps them from opening the database. "
                    "Call jobs.open() or jobs.sync.open() once, when the program starts."
                ) from None
        assert self._home is not None  # noqa: S101 - narrows the type
        return self._home

    @property
    def knows_home(self) -> bool:
        return self._home is not None and self._home.is_current()

    def reopen(self) -> None:
        self._home = None
        if self.portal.is_here:
            return  # a thread that is closing it waits for this call
        with self._closing:
            if self._closed:
                self.portal = Portal()
                self._closed = False

    async def close(self) -> None:
        """Close the stores of this loop and of the portal, and the shared one. Stores of other loops refuse further
        use."""
        self._closed = True
        await self.close_here()
        await asyncio.to_thread(self._close_portal)

    def close_from_sync(self) -> None:
        self._closed = True
        self._close_portal()

    def _close_portal(self) -> None:
        with self._closing:  # a second caller waits for the first, then has nothing to do
            self._closed = True  # also if another thread has called open() meanwhile: this portal is closing
            if self.portal.started:
                self.portal.submit(self._close_shared).result()
            self.portal.close()

    async def _close_shared(self) -> None:
        await self.close_here()
        opening, self._shared_open = self._shared_open, None
        if opening is not None:
            await asyncio.wait([opening])
            await self.first.close()
            self.first = self._make()

    async def close_here(self) -> None:
        """Close the store of this loop."""
        opening = self._handles.pop(asyncio.get_running_loop(), None)
        if opening is None:
            return
        [result] = await asyncio.gather(opening, return_exceptions=True)
        if isinstance(result, Handle):
            await result.group.drain()
            await result.checkpoints.drain()
            await result.steps.drain()
            await result.bell.stop()
            if result.store is not self.first:
                await result.store.close()

    def after_fork(self) -> None:
        """Forget the parent's stores and its thread, in the child process. A shared store stays; its verbs raise
        ForkedStore."""
        keep_for_ever((self._handles, self.portal, self._shared_open))
        self._handles = {}
        self._lock, self._closing = threading.Lock(), threading.Lock()
        self._shared_open = None
        self.portal = Portal()


def _after_fork() -> None:
    for stores in list(_all):
        stores.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
