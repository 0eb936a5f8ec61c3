"""Bulk actions, worked off by this process: at once when one is started here, and what others have left behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rowlock.client import bulk
from rowlock.errors import StoreClosed, StoreError
from rowlock.stores.base import Store

log = logging.getLogger("rowlock.http")

_LOOK = 5.0  # seconds between looks for what others have left
_SWEEP = 12  # looks between two sweeps


class BulkRunner:
    """For one event loop: it looks until `close`, or until the store is closed."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store
        self._work: asyncio.Task[None] | None = None
        self._looks: asyncio.Task[None] | None = None
        self._wanted = False
        self._stopping = False

    def nudge(self) -> None:
        """There may be something to do."""
        self._wanted = True
        if self._work is None and not self._stopping:
            self._work = asyncio.create_task(self._run())

    def open(self) -> None:
        self._looks = self._looks or asyncio.create_task(self._look())

    async def close(self) -> None:
        """A batch that is under way comes to its end; the rest is for others, or for later."""
        self._stopping = True
        self._look_no_more()
        await asyncio.gather(*filter(None, (self._looks, self._work)), return_exceptions=True)

    async def _run(self) -> None:
        try:
            store = await self._store()
            while self._wanted:
                self._wanted = False
                while await bulk.run_some(store):
                    if self._stopping:
                        return
        except StoreClosed:
            self._look_no_more()
        except StoreError as error:  # the next look tries again, here or elsewhere
            log.warning("a bulk action waits: %s", error)
        except Exception:  # a mistake must not be the end of all looks
            log.exception("a bulk action failed")
        finally:
            self._work = None

    def _look_no_more(self) -> None:
        if self._looks is not None:
            self._looks.cancel()

    async def _look(self) -> None:
        looks = 0
        while True:
            self.nudge()
            if looks % _SWEEP == 0:
                await self._sweep()
            looks += 1
            await asyncio.sleep(_LOOK)

    async def _sweep(self) -> None:
        try:
            while await bulk.sweep(await self._store()):
                pass
        except StoreError as error:
            log.debug("bulk actions are swept later: %s", error)
        except Exception:
            log.exception("bulk actions could not be swept")
