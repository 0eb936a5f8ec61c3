"""Upkeep: what nobody in particular does. Any number of workers may do it at once; each pass is bounded."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

from rowlock.access import settings as access_settings
from rowlock.client import bulk
from rowlock.core.retry import DEFAULT_RETRY, backoff_table
from rowlock.errors import AccessDenied, StoreError
from rowlock.runtime.settings import WorkerSettings
from rowlock.runtime.trust import Trust
from rowlock.stores.base import Store
from rowlock.stores.reading import Retention

log = logging.getLogger("rowlock")

_BATCHES = 10  # of one duty in one pass
_SHARE = 0.2  # seconds of one batch of a bulk action, beyond which it is left to the next pass
_HOUSEKEEPING = 60.0  # seconds between prunings
_PARTITIONS = 600.0  # seconds between looks at the archive's parts
_GONE = timedelta(hours=1)  # after which a worker that was not seen is taken off the register


class Maintenance:
    """`found_work`: called when there are jobs to claim that were not there before. `adopt`: with the workers' part of
    the settings that are kept in the database."""

    def __init__(
        self,
        store: Store,
        settings: WorkerSettings,
        by: str,
        trust: Trust,
        found_work: Callable[[], None],
        adopt: Callable[[Mapping[str, float]], None],
    ) -> None:
        self._store = store
        self._settings = settings
        self._by = by
        self._trust = trust
        self._found_work = found_work
        self._adopt = adopt
        self._backoff = backoff_table(DEFAULT_RETRY)
        self._retention = Retention()
        self._pause = settings.maintenance
        self._next_housekeeping = time.monotonic() + random.uniform(0, _HOUSEKEEPING)  # noqa: S311 - spreads a fleet
        self._next_partitions = 0.0
        self._may_partition = True

    async def run_once(self) -> float:
        """Every duty has its turn, whatever becomes of the others; then the first trouble is raised. Seconds until the
        next pass: where workers die young, someone must come to rescue before it dies itself."""
        self._pause = self._settings.maintenance
        trouble: list[StoreError] = []
        for duty in self._duties():
            try:
                for _ in range(_BATCHES):  # until nothing is left of it, or it has had its share of the pass
                    if not await duty():
                        break
            except StoreError as error:
                if duty == self._rescue:
                    self._trust.broken()
                trouble.append(error)
        if trouble:
            raise trouble[0]
        return self._pause

    def _duties(self) -> list[Callable[[], Awaitable[bool]]]:
        duties: list[Callable[[], Awaitable[bool]]] = [
            self._rescue, self._promote, self._cancel_timeout, self._expire, self._fold_counts, self._adopt_settings,
            self._group_failures,
            self._run_bulk,
        ]  # fmt: skip
        now = time.monotonic()
        if now >= self._next_housekeeping:
            self._next_housekeeping = now + _HOUSEKEEPING
            duties += [
                self._prune, self._strike_the_gone, self._sweep_records, self._sweep_rollups, self._sweep_bulk,
            ]  # fmt: skip
        if now >= self._next_partitions and self._may_partition:
            self._next_partitions = now + _PARTITIONS
            duties.append(self._keep_partitions)
        return duties

    # ── Each answers whether there may be more ──

    async def _rescue(self) -> bool:
        others = [worker.lease / 3 for worker in await self._store.workers() if worker.name != self._by]
        asked = time.monotonic()
        clock = await self._store.now()
        answered = time.monotonic()
        self._trust.contact(asked, answered, clock)
        if (wait := self._trust.wait(answered, max(others, default=0.0))) > 0:
            self._pause = min(self._pause, wait)
            return False
        # What had expired when we asked: this may wait for a lock as long as the heartbeats of others do.
        rescued = await self._store.rescue(by=self._by, backoff=self._backoff, limit=500, before=clock)
        for one in rescued:
            log.warning(
                "rescued job %s (%s): its worker went silent in run %d; now %s",
                one.id,
                one.topic,
                one.version,
                one.status,
            )
        if rescued:
            self._found_work()
        return len(rescued) == 500

    async def _promote(self) -> bool:
        promoted = await self._store.promote(1000)
        if promoted:
            self._found_work()
        return promoted == 1000

    async def _cancel_timeout(self) -> bool:
        ended = await self._store.cancel_timeout(by=self._by, grace=self._settings.cancel_grace, limit=500)
        for job_id in ended:
            log.warning("job %s did not stop within %g s of its cancel: cancelled", job_id, self._settings.cancel_grace)
        return len(ended) == 500

    async def _expire(self) -> bool:
        return len(await self._store.expire(by=self._by, limit=500)) == 500

    async def _fold_counts(self) -> bool:
        return await self._store.fold_counts() >= 10_000

    async def _group_failures(self) -> bool:
        return await self._store.group_failures(200) >= 200

    async def _prune(self) -> bool:
        return await self._store.prune(self._retention, 1000) >= 1000

    async def _adopt_settings(self) -> bool:
        settings = (await access_settings.load(self._store)).settings
        self._adopt(
            {
                "concurrency": settings.worker_pool_size,
                "poll": settings.poll_interval,
                "lease": settings.lock_duration,
            }
        )
        return False

    async def _run_bulk(self) -> bool:
        """Not for long: others may have to be rescued."""
        began = time.monotonic()
        ran = await bulk.run_some(self._store)
        if ran:
            self._found_work()
        return ran and time.monotonic() - began < _SHARE

    # ── Now and then ──

    async def _sweep_bulk(self) -> bool:
        return await bulk.sweep(self._store)

    async def _sweep_records(self) -> bool:
        """Sessions, tokens and links whose time is over."""
        return await self._store.sweep_records(1000) >= 1000

    async def _sweep_rollups(self) -> bool:
        return await self._store.sweep_rollups(10_000) >= 10_000

    async def _strike_the_gone(self) -> bool:
        now = await self._store.now()
        workers = await self._store.workers()
        gone = [worker.name for worker in workers if worker.seen is not None and now - worker.seen > _GONE]
        if gone:
            await self._store.retire(gone)
        return False

    async def _keep_partitions(self) -> bool:
        try:
            await self._store.keep_partitions(self._retention)
        except AccessDenied as error:  # only the tables' owner may: say it once, the default part takes everything
            self._may_partition = False
            log.warning("the archive's daily parts can't be kept: %s", error)
        return False
