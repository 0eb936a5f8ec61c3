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
        self._connecting: asyncio.Task[None] | None = None

    async def wait(self, timeout: float) -> bool:
        """True if it rang. A listener that can't be had is no error: the caller polls anyway."""
        deaf = self._listener is None or self._listener.is_closed()
        if deaf and self._connecting is None:  # connecting may take longer than this wait
            self._connecting = asyncio.create_task(self._listen())
        try:
            async with asyncio.timeout(timeout):
                await self._rang.wait()
        except TimeoutError:
            return False
        self._rang.clear()
        self._connections.check()  # closed while we waited
        return True

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        listener, self._listener = self._listener, None
        self._rang.set()
        if listener is not None:
            listener.terminate()

    async def _listen(self) -> None:
        listener: Any = None
        try:
            listener = await self._connections.connect()
            # Whoever waits looks again: rings may have been missed while nobody listened, before now or after a loss.
            listener.add_termination_listener(lambda _connection: self._rang.set())
            await listener.add_listener(self._channel, lambda *_: self._rang.set())
            self._listener, listener = listener, None
            self._rang.set()
        except errors.StoreError as error:
            log.warning("no LISTEN connection, polling only: %s", error)
        except Exception:
            log.warning("no LISTEN connection, polling only", exc_info=True)
        finally:
            self._connecting = None
            if listener is not None:
                listener.terminate()
