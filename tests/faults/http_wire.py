"""A wire: a proxy between a server and the worker that talks to it over HTTP. A test can cut it in the middle of a
chosen request, or of its answer."""

import asyncio
import re
from collections.abc import Container
from contextlib import suppress

from tests.faults.wire import _reset as reset
from tests.proxy import Streams, TcpProxy

_REQUEST = re.compile(rb"POST /[\w/]*?api/worker/([a-z-]+) HTTP")


class HttpTrap:
    """A trap that springs at the next request of one of these calls, and then sets `sprung`. `how` says what it does:
    "request" resets the connection while the request is half sent. "answer" resets it when the server has answered,
    before the worker gets the answer. "half answer" closes it after half of the answer was passed on."""

    def __init__(self, how: str, calls: Container[str]) -> None:
        self.how = how
        self.calls = calls
        self.sprung = asyncio.Event()


class HttpWire(TcpProxy):
    """A wire. While it is `silent`, new connections are accepted, and nothing passes on them."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.links: list[HttpLink] = []
        self.traps: list[HttpTrap] = []
        self.silent = False

    def freeze(self) -> list["HttpLink"]:
        """Make the connections half open: they stay open, and nothing passes. Return those that were frozen."""
        found = [link for link in self.links if not link.frozen]
        for link in found:
            link.frozen = True
        return found

    def caught(self, call: str) -> HttpTrap | None:
        for trap in self.traps:
            if call in trap.calls:
                self.traps.remove(trap)
                return trap
        return None

    async def _carry(self, client: Streams, server: Streams) -> None:
        link = HttpLink(self, client, server)
        link.frozen = self.silent
        self.links.append(link)
        try:
            with suppress(OSError, asyncio.CancelledError):  # cancelled only when the wire closes
                await asyncio.gather(link.requests(), link.answers())
        finally:
            self.links.remove(link)
            if link.trap is not None and not link.trap.sprung.is_set():
                self.traps.append(link.trap)  # the connection broke by itself, before the answer


class HttpLink:
    """One connection. While it is `frozen`, it stays open on both sides, and nothing passes."""

    def __init__(self, wire: HttpWire, client: Streams, server: Streams) -> None:
        self._wire = wire
        self._client = client
        self._server = server
        self.trap: HttpTrap | None = None  # the trap that keeps back the next answer
        self.frozen = False

    def reset(self) -> None:
        """Send RST to both sides."""
        reset(self._client[1])
        reset(self._server[1])

    def lose_server(self) -> None:
        """Reset the server's side only. The worker must find out by itself that the connection is dead."""
        reset(self._server[1])

    async def requests(self) -> None:
        reader, target = self._client[0], self._server[1]
        while data := await reader.read(65536):
            if self.frozen:
                continue
            asked = _REQUEST.search(data)
            trap = self._wire.caught(asked[1].decode()) if asked else None
            if trap is not None and trap.how == "request":
                target.write(data[: len(data) // 2])
                await target.drain()
                self._spring(trap)
                return
            self.trap = trap or self.trap
            target.write(data)
            await target.drain()
        self.lose_server()

    async def answers(self) -> None:
        reader, target = self._server[0], self._client[1]
        while data := await reader.read(65536):
            if self.frozen:
                continue
            if self.trap is not None:
                if self.trap.how == "half answer":
                    target.write(data[: len(data) // 2])
                    target.close()  # with FIN: after RST the worker might not read the half
                self._spring(self.trap)
                return
            target.write(data)
            await target.drain()
        if not self.frozen:
            reset(target)

    def _spring(self, trap: HttpTrap) -> None:
        trap.sprung.set()
        if trap.how == "half answer":
            self.lose_server()
        else:
            self.reset()
