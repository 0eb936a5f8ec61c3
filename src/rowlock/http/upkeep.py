"""The work of a server for the database beside answering: maintenance, bulk actions and schedules. Workers do all of
it, too, but the server may be the only process."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Awaitable, Callable

from rowlock.client import bulk
from rowlock.client.firing import Firing
from rowlock.http.remote_workers import RemoteWorkers
from rowlock.runtime.maintenance import Maintenance
from rowlock.runtime.periodic import Loop
from rowlock.runtime.rescue_guard import RescueGuard
from rowlock.runtime.scheduler import Scheduler
from rowlock.runtime.settings import WorkerSettings
from rowlock.stores.base import Store

SETTINGS = WorkerSettings()
LOOK = 5.0  # seconds between two looks for bulk actions that were started elsewhere


class Upkeep:
    """Runs in one event loop, from `start` until `stop`, or until the store is closed."""

    def __init__(self, store: Callable[[], Awaitable[Store]], remote_workers: RemoteWorkers, firing: Firing) -> None:
        self._store = store
        name = f"{socket.gethostname()[:64]}-{os.getpid()}-http-{secrets.token_hex(4)}"
        self._maintenance = Maintenance(
            SETTINGS,
            name,
            RescueGuard(max(SETTINGS.maintenance, 1.0)),  # a server has no heartbeats: its passes are its contacts
            remote_workers.ring,
            serves_workers=remote_workers.are_there,
            runs_bulk=False,
        )
        self.maintenance_loop = Loop(f"maintenance by {name}", self._maintain, longest=SETTINGS.maintenance)
        scheduler = Scheduler(firing, remote_workers.ring, lambda: SETTINGS.poll)

        async def fire() -> float:
            return await scheduler.run_once(await store())

        self.schedule_loop = Loop(f"schedules by {name}", fire, longest=SETTINGS.maintenance)
        self.bulk_loop = Loop(f"bulk actions by {name}", self._run_bulk, longest=LOOK)

    def start(self) -> None:
        """Start the loops. Does nothing if they were started before."""
        self.maintenance_loop.start(delay=SETTINGS.maintenance)
        self.bulk_loop.start()
        self.schedule_loop.start()

    def run_bulk_now(self) -> None:
        """Run a bulk action that has been started here."""
        self.bulk_loop.wake()
        self.bulk_loop.start()

    async def stop(self) -> None:
        """Complete the batch of a bulk action that is under way. The rest waits for another process, or the next
        start."""
        await self.maintenance_loop.stop()
        await self.schedule_loop.stop()
        await self.bulk_loop.stop(finish=True)

    async def _maintain(self) -> float:
        return await self._maintenance.run_once(await self._store())

    async def _run_bulk(self) -> float:
        """Run one batch of a bulk action, so that a stop waits for one batch at most."""
        return 0.0 if await bulk.run_some(await self._store()) else LOOK
