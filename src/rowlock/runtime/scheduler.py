"""Scheduler: fires schedules on time. Every worker and every server has one; there is no leader."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from rowlock.client.firing import Firing, made
from rowlock.errors import StoreError
from rowlock.stores.base import Store

log = logging.getLogger("rowlock")

_ZONES = 3600.0  # seconds between two looks for next times that were found by older time zone data
_ABSENT = 60.0  # seconds between two looks for schedules that the code does not declare any more


class Scheduler:
    """`look`: the seconds between two looks at the schedules; one that was put meanwhile is found by the next look.
    `found_work`: called when jobs have been made. `mark_absent`: pauses schedules that the code of this worker does not
    declare any more; a server has none."""

    def __init__(
        self,
        firing: Firing,
        found_work: Callable[[], None],
        look: Callable[[], float],
        mark_absent: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._firing = firing
        self._found_work = found_work
        self._look = look
        self._mark_absent = mark_absent
        self._next_zones = 0.0
        self._next_absent = time.monotonic() + _ABSENT  # the worker has looked when it was started

    async def run_once(self, store: Store) -> float:
        """Fire what is due. Return the seconds until the next look: it comes right on time for the next schedule."""
        if time.monotonic() >= self._next_zones:
            if changed := await self._firing.find_times_anew(store):
                log.info("newer time zone data: %d schedules have another next time", changed)
            self._next_zones = time.monotonic() + _ZONES
        if self._mark_absent is not None and time.monotonic() >= self._next_absent:
            await self._mark_absent()
            self._next_absent = time.monotonic() + _ABSENT
        seconds = await store.next_fire(skip=self._firing.set_aside)
        if seconds is not None and seconds <= 0:
            decided = await self._firing.fire_due(store)
            if made(decided):
                await self._announce(store)
            if decided:
                return 0.0
            # Other processes fire what is due, or a transaction holds it: that must not make the next one late.
            seconds = await store.next_fire(later=True)
        return self._look() if seconds is None else min(seconds, self._look())

    async def _announce(self, store: Store) -> None:
        self._found_work()
        if not store.traits.watches_commits:
            try:
                await store.ring()
            except StoreError as error:
                log.debug("the doorbell failed; workers find new jobs by polling: %s", error)
