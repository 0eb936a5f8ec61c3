"""Which store serves which event loop, and what happens to them after fork()."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable

from msgspec import Struct

from rowlock.client.bell import Bell
from rowlock.client.group import Group, Insert
from rowlock.client.portal import Portal
from rowlock.errors import StoreClosed
from rowlock.stores.base import Store
from rowlock.stores.inherited import keep_for_ever

_all: weakref.WeakSet[Stores] = weakref.WeakSet()


class Handle(Struct):
    """A store, open, and what goes with it in one event loop."""

    store: Store
    group: Group
    bell: Bell


class Stores:
    """A store per event loop, or one for all where the database allows it; opened by its first use.

    A process may have several loops: the application's, the portal's, one after the other in tests.
    """

    def __init__(
        self, make: Callable[[], Store], first: Store, *, migrate: bool, insert: Callable[[Store], Insert]
    ) -> None:
        self.portal = Portal()
        self.first = first
        self._make = make
        self._migrate = migrate
        self.creates = True  # an SQLite file that is missing; False: it must be there
        self._insert = insert
        self._shared_open: asyncio.Task[None] | None = None  # a task of the portal's loop
        self._handles: dict[asyncio.AbstractEventLoop, asyncio.Task[Handle]] = {}
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        self._closed = False
        _all.add(self)

    async def handle(self) -> Handle:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise StoreClosed("these Jobs have been closed: make new ones, or call open()")
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
        if self.first.any_loop:
            await asyncio.wrap_future(self.portal.submit(self._open_shared))
            store = self.first
        else:
            store = self._make()
            await self._open_store(store)
        return Handle(store, Group(self._insert(store)), Bell(store))

    async def _open_shared(self) -> None:
        """On the portal's loop, where all loops meet: once."""
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

    def reopen(self) -> None:
        if self.portal.is_here:
            return  # whoever closes it at this moment waits for us
        with self._closing:
            if self._closed:
                self.portal = Portal()
                self._closed = False

    async def close(self) -> None:
        """Close what belongs to this loop, to the portal, and to all. Stores of other loops refuse further use."""
        self._closed = True
        await self.close_here()
        await asyncio.to_thread(self._close_portal)

    def close_from_sync(self) -> None:
        self._closed = True
        self._close_portal()

    def _close_portal(self) -> None:
        with self._closing:  # a second caller waits for the first, and finds nothing to do
            self._closed = True  # also if someone has opened it meanwhile: this portal is of no more use
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
        """Close what belongs to this loop alone."""
        opening = self._handles.pop(asyncio.get_running_loop(), None)
        if opening is None:
            return
        [result] = await asyncio.gather(opening, return_exceptions=True)
        if isinstance(result, Handle):
            await result.group.drain()
            await result.bell.stop()
            if result.store is not self.first:
                await result.store.close()

    def after_fork(self) -> None:
        """In the child: forget the parent's stores and its thread. A shared store stays, and says that it can't."""
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
