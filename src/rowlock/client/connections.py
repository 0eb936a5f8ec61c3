"""Which store serves which event loop, and what happens to them after fork()."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable

from msgspec import Struct

from rowlock.client.bell import Bell
from rowlock.client.group import Group, Insert
from rowlock.client.portal import Portal
from rowlock.errors import StoreClosed
from rowlock.stores.base import Store

# What a fork() left in a child. Letting go of it there would reach into the parent's event loop: keep it for ever.
_inherited: list[object] = []
_all: weakref.WeakSet[Stores] = weakref.WeakSet()


class Handle(Struct):
    """A store, open, and what goes with it in one event loop."""

    store: Store
    group: Group
    bell: Bell


class Stores:
    """A store per event loop, opened by its first use; one for all loops if it is in memory.

    A process may have several loops: the application's, the portal's, one after the other in tests.
    """

    def __init__(self, make: Callable[[], Store], *, migrate: bool, in_memory: bool, insert: Callable[[Store], Insert]):
        self.portal = Portal()
        self._make = make
        self._migrate = migrate
        self._insert = insert
        self._memory = make() if in_memory else None
        self._memory_lock: asyncio.Lock | None = None  # of the portal's loop
        self._memory_open = False
        self._handles: dict[asyncio.AbstractEventLoop, asyncio.Task[Handle]] = {}
        self._closed = False
        _all.add(self)

    async def handle(self) -> Handle:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise StoreClosed("these Jobs have been closed: make new ones, or call open()")
        opening = self._handles.get(loop)
        if opening is None:
            self._handles = {old: task for old, task in self._handles.items() if not old.is_closed()}
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
        if self._memory is not None:
            await asyncio.wrap_future(self.portal.submit(self._open_memory))
            store = self._memory
        else:
            store = self._make()
            if self._migrate:
                await store.migrate()
            await store.open()
        return Handle(store, Group(self._insert(store)), Bell(store))

    async def _open_memory(self) -> None:
        assert self._memory is not None  # noqa: S101 - narrows the type
        self._memory_lock = self._memory_lock or asyncio.Lock()
        async with self._memory_lock:
            if not self._memory_open:
                await self._memory.migrate()
                await self._memory.open()
                self._memory_open = True

    def reopen(self) -> None:
        if self._closed:
            self._closed = False
            self.portal = Portal()

    async def close(self) -> None:
        """Close what belongs to this loop and to the portal. Stores of other loops refuse further use."""
        self._closed = True
        await self._close_here()
        if self.portal.started and asyncio.get_running_loop() is not self.portal.loop:
            await asyncio.wrap_future(self.portal.submit(self._close_here))
            await asyncio.to_thread(self.portal.close)

    def close_from_sync(self) -> None:
        self._closed = True
        if self.portal.started:
            self.portal.run(self._close_here)
            self.portal.close()

    async def _close_here(self) -> None:
        opening = self._handles.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            [result] = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(result, Handle):
                await result.group.drain()
                await result.bell.drain()
                if result.store is not self._memory:
                    await result.store.close()
        if self._memory is not None and self._memory_open:
            self._memory_open = False
            await self._memory.close()
            self._memory = self._make()

    def after_fork(self) -> None:
        """In the child: forget the parent's stores and its thread. A store in memory stays, and says that it can't."""
        _inherited.append((self._handles, self.portal))
        self._handles = {}
        self.portal = Portal()


def _after_fork() -> None:
    for stores in list(_all):
        stores.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
