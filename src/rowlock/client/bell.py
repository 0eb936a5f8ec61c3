"""Ring the store's doorbell after commits, which wakes workers: at once, then at most every few milliseconds."""

from __future__ import annotations

import asyncio
import logging

from rowlock.errors import StoreError
from rowlock.stores.base import Store

log = logging.getLogger("rowlock")

PAUSE = 0.01  # seconds between rings: a NOTIFY takes a global lock when it commits


class Bell:
    """Belongs to one event loop. It does nothing where workers notice commits by themselves."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wanted = False
        self._ringer: asyncio.Task[None] | None = None

    def ring(self) -> None:
        if self._store.traits.watches_commits:
            return
        self._wanted = True
        if self._ringer is None:
            self._ringer = asyncio.create_task(self._ring())

    async def stop(self) -> None:
        """Stop at once. A ring is only a hint, so none is waited for."""
        if self._ringer is not None:
            self._ringer.cancel()
            await asyncio.wait([self._ringer])

    async def _ring(self) -> None:
        try:
            while self._wanted:
                self._wanted = False
                await self._store.ring()
                await asyncio.sleep(PAUSE)
        except StoreError as error:
            log.debug("the doorbell failed; workers find new jobs by polling: %s", error)
        finally:
            self._ringer = None
