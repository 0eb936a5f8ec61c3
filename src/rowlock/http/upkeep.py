"""What a server does for the database beside answering. Workers do it too, but there may be none of ours."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from msgspec import Struct

from rowlock.errors import StoreClosed, StoreError
from rowlock.stores.base import Store

log = logging.getLogger("rowlock.http")

_BATCHES = 10  # of one duty in a row


class Duty(Struct, frozen=True):
    """`do` answers whether there may be more to do; any number of processes may do it at once. `every`: seconds."""

    do: Callable[[Store], Awaitable[bool]]
    every: float


async def fold_counts(store: Store) -> bool:
    return await store.fold_counts() >= 10_000


async def sweep_rollups(store: Store) -> bool:
    return await store.sweep_rollups(10_000) >= 10_000


async def sweep_records(store: Store) -> bool:
    """Tokens, sessions and links that have expired."""
    return await store.sweep_records(1000) >= 1000


async def group_failures(store: Store) -> bool:
    return await store.group_failures(200) >= 200


DUTIES = (
    Duty(fold_counts, 5.0),
    Duty(group_failures, 10.0),
    Duty(sweep_records, 60.0),
    Duty(sweep_rollups, 600.0),
)


class Upkeep:
    """For one event loop: each duty when it is due, from `start` until `stop`, or until the store is closed."""

    def __init__(self, store: Callable[[], Awaitable[Store]], duties: Sequence[Duty] = DUTIES) -> None:
        self._store = store
        self._due = {duty: time.monotonic() + duty.every for duty in duties}
        self._task: asyncio.Task[None] | None = None
        self._in_trouble = False

    def start(self) -> None:
        """Safe to call again."""
        if self._task is None and self._due:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(max(0.0, min(self._due.values()) - time.monotonic()))
            try:
                await self.do_what_is_due()
            except StoreClosed:
                return
            except StoreError as error:
                if not self._in_trouble:  # said once, however long it lasts
                    log.warning("upkeep: %s; trying again until it works", error)
                self._in_trouble = True
            except Exception:  # a mistake of one duty must not be the end of all
                log.exception("upkeep failed")
            else:
                self._in_trouble = False

    async def do_what_is_due(self) -> None:
        """Every duty has its turn, whatever becomes of the others; then the first trouble is raised."""
        trouble: list[Exception] = []
        for duty in [duty for duty, due in self._due.items() if due <= time.monotonic()]:
            try:
                store = await self._store()
                for _ in range(_BATCHES):
                    if not await duty.do(store):
                        break
            except Exception as error:
                trouble.append(error)
            self._due[duty] = time.monotonic() + duty.every
        if trouble:
            raise trouble[0]
