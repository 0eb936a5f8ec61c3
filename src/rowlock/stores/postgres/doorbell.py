"""LISTEN on a connection of its own: a hint that there may be work. Polling is the truth."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from rowlock import errors
from rowlock.stores.postgres.connections import Connections

log = logging.getLogger("rowlock")


class Doorbell:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._channel = connections.target.channel
        self._rang = asyncio.Event()
        self._listener: Any = None
        self._connecting = asyncio.Lock()

    def ring(self) -> None:
        """Wake the waiters of this process."""
        self._rang.set()

    async def wait(self, timeout: float) -> bool:
        """True if it rang. A listener that can't be had is no error: the caller polls anyway."""
        try:
            async with asyncio.timeout(timeout):
                await self._listen()
                await self._rang.wait()
        except TimeoutError:
            return False
        self._rang.clear()
        self._connections.check()  # closed while we waited
        return True

    async def close(self) -> None:
        listener, self._listener = self._listener, None
        self._rang.set()
        if listener is not None and not listener.is_closed():
            listener.terminate()

    async def _listen(self) -> None:
        if self._listener is not None and not self._listener.is_closed():
            return
        async with self._connecting:
            if self._listener is not None and not self._listener.is_closed():
                return
            self._connections.check()
            try:
                listener: Any = await self._connections.connect()
            except errors.StoreUnavailable as error:
                log.warning("no LISTEN connection, polling only: %s", error)
                return
            # Whoever waits looks again: rings may have been missed while nobody listened, before now or after a loss.
            listener.add_termination_listener(lambda _connection: self._rang.set())
            await listener.add_listener(self._channel, lambda *_: self._rang.set())
            self._listener = listener
            self._rang.set()
