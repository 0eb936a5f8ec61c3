"""Maintenance of the database, by every worker and every server. Any number of them may do it at once.

A pass is bounded: it does at most ten batches of each duty.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

from rowlock.access import settings as access_settings
from rowlock.client import bulk
from rowlock.client.definitions import read_templates
from rowlock.core.job import MAX_DELAY
from rowlock.core.moves import CancelTimeout, Expire, Rescue
from rowlock.core.retry import DEFAULT_RETRY, backoff_table
from rowlock.runtime.rescue_guard import RescueGuard
from rowlock.runtime.settings import WorkerSettings
from rowlock.stores.base import Chore, Store, tidy
from rowlock.stores.queries import Retention, TopicRetention

log = logging.getLogger("rowlock")

_BATCHES = 10  # of one duty in one pass
_SHARE = 0.2  # seconds: after a batch of a bulk action that took longer, the rest waits for the next pass
_HOUSEKEEPING = 60.0  # seconds between two runs of prune and the sweeps
_DEAD = timedelta(hours=1)  # without a report, after which a worker is removed from the register


class Maintenance:
    """`by`: the name under which it changes jobs. `found_work`: called when jobs have become ready.

    `adopt`: called with the workers' part of the settings in the database. `serves_workers`: returns True if there are
    workers whose jobs need rescues; a server returns False while it has no remote worker. `runs_bulk`: run bulk
    actions, too.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        by: str,
        rescue_guard: RescueGuard,
        found_work: Callable[[], None],
        *,
        adopt: Callable[[Mapping[str, float]], None] | None = None,
        serves_workers: Callable[[], bool] = lambda: True,
        runs_bulk: bool = True,
    ) -> None:
        self._settings = settings
        self._by = by
        self._rescue_guard = rescue_guard
        self._found_work = found_work
        self._adopt = adopt
        self._serves_workers = serves_workers
        self._runs_bulk = runs_bulk
        self._backoff = backoff_table(DEFAULT_RETRY)
        self._pause = settings.maintenance
        self._next_housekeeping = time.monotonic() + random.uniform(0, _HOUSEKEEPING)  # noqa: S311 - spreads a fleet

    async def run_once(self, store: Store) -> float:
        """Do every duty that is due, even if another one fails; then raise the first error. Return the seconds until
        the next pass. They are fewer if a rescue must wait: this worker may not live for long."""
        self._store = store
        self._pause = self._settings.maintenance
        errors: list[Exception] = []
        for duty in self._duties():
            try:
                for _ in range(_BATCHES):
                    if not await duty():
                        break
            except Exception as error:
                if duty == self._rescue:
                    self._rescue_guard.broken()
                errors.append(error)
        if errors:
            raise errors[0]
        return self._pause

    def _duties(self) -> list[Callable[[], Awaitable[bool]]]:
        duties = [self._tidier("fold_counts"), self._tidier("group_failures")]
        if workers := self._serves_workers():
            duties = [self._rescue, self._promote, self._cancel_timeout, self._expire, *duties]
        if self._adopt is not None:
            duties.append(self._adopt_settings)
        if self._runs_bulk:
            duties.append(self._run_bulk)
        now = time.monotonic()
        if now >= self._next_housekeeping:
            self._next_housekeeping = now + _HOUSEKEEPING
            duties += [self._tidier("sweep_records"), self._tidier("sweep_rollups"), self._tidier("prune_bulks")]
            duties += [self._tidier("prune_fires"), self._tidier("prune_flows")]
            duties += [self._tidier("prune_throttles"), self._tidier("prune_starts")]
            if workers:
                duties += [self._prune, self._retire_dead_workers]
        return duties

    # ── Duties: each returns True if there may be more to do ──

    async def _rescue(self) -> bool:
        others = [worker.lease / 3 for worker in await self._store.workers() if worker.name != self._by]
        asked = time.monotonic()
        clock = await self._store.now()
        answered = time.monotonic()
        self._rescue_guard.contact(asked, answered, clock)
        if (wait := self._rescue_guard.wait(answered, max(others, default=0.0))) > 0:
            self._pause = min(self._pause, wait)
            return False
        # `before`: the rescue may wait for a lock, and heartbeats for the same lock. Their leases must not expire here.
        rescued = await self._store.move_due(Rescue(by=self._by, backoff=self._backoff, before=clock), 500)
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
        ended = await self._store.move_due(CancelTimeout(by=self._by, grace=self._settings.cancel_grace), 500)
        for one in ended:
            log.warning("job %s did not stop within %g s of its cancel: cancelled", one.id, self._settings.cancel_grace)
        return len(ended) == 500

    async def _expire(self) -> bool:
        return len(await self._store.move_due(Expire(by=self._by), 500)) == 500

    def _tidier(self, chore: Chore) -> Callable[[], Awaitable[bool]]:
        return lambda: tidy(self._store, chore)

    async def _prune(self) -> bool:
        return await self._store.prune(await self._retention(), 1000) >= 1000

    async def _retention(self) -> Retention:
        """Return how long finished jobs stay: the default, or as the newest template of their topic says. If a template
        can't be read, the jobs of its topic stay."""
        found = await read_templates(self._store)
        own = {topic: versions[max(versions)].template.retention for topic, versions in found.stored.items()}
        own |= dict.fromkeys(found.unreadable, MAX_DELAY)
        return Retention(
            topics={
                topic: TopicRetention(completed=seconds, cancelled=seconds, failed=seconds, expired=seconds)
                for topic, seconds in own.items()
                if seconds is not None
            }
        )

    async def _adopt_settings(self) -> bool:
        settings = (await access_settings.load(self._store)).settings
        assert self._adopt is not None  # noqa: S101 - narrows the type
        self._adopt(
            {
                "concurrency": settings.worker_pool_size,
                "poll": settings.poll_interval,
                "lease": settings.lock_duration,
            }
        )
        return False

    async def _run_bulk(self) -> bool:
        """Return False after a slow batch: the next rescue must not wait for it."""
        began = time.monotonic()
        ran = await bulk.run_some(self._store)
        if ran:
            self._found_work()
        return ran and time.monotonic() - began < _SHARE

    async def _retire_dead_workers(self) -> bool:
        now = await self._store.now()
        workers = await self._store.workers()
        dead = [worker.name for worker in workers if worker.seen is not None and now - worker.seen > _DEAD]
        if dead:
            await self._store.retire(dead)
        return False
