"""`jobs.topics`: pause and resume topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from rowlock.client.audit import Actor, check_reason
from rowlock.client.connections import Handle, Stores
from rowlock.core.job import check_time, check_topic
from rowlock.stores.base import Pause


class Topics:
    """`jobs.topics`. `announce` wakes the workers."""

    def __init__(self, stores: Stores, actor: Actor, announce: Callable[[Handle], None]) -> None:
        self._stores = stores
        self._actor = actor
        self._announce = announce

    async def pause(
        self, topic: str, *, reason: str | None = None, until: datetime | None = None, by: str | None = None
    ) -> None:
        """Start no more jobs of this topic, until `resume` or until the time `until`. Running jobs continue."""
        end = None if until is None else check_time(until, "until")
        store = (await self._stores.handle()).store
        await store.steer_topic(check_topic(topic), "pause", by=self._actor(by), reason=check_reason(reason), until=end)

    async def resume(self, topic: str, *, reason: str | None = None, by: str | None = None) -> bool:
        """Start jobs of this topic again. Return False if it was not paused."""
        handle = await self._stores.handle()
        resumed = await handle.store.steer_topic(
            check_topic(topic), "resume", by=self._actor(by), reason=check_reason(reason)
        )
        self._announce(handle)
        return resumed

    async def paused(self) -> Sequence[Pause]:
        """Return the paused topics: who paused each of them, why, and until when."""
        return await (await self._stores.handle()).store.paused()
