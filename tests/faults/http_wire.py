"""A wire between a server and the worker that talks to it over HTTP. It can be cut in the middle of a chosen request,
or of its answer."""

import asyncio
import re
from collections.abc import Container
from contextlib import suppress

from tests.faults.wire import _reset as reset
from tests.proxy import Streams, TcpProxy

_REQUEST = re.compile(rb"POST /[\w/]*?api/worker/([a-z-]+) HTTP")


class HttpTrap:
    """Springs at the next request of one of these calls: `sprung` tells. `how`: "request" resets the connection while
    the request is half sent; "answer" when the server has answered, before the worker hears of it; "half answer"
    closes it when half of the answer was sent on."""

    def __init__(self, how: str, calls: Container[str]) -> None:
        self.how = how
        self.calls = calls
        self.sprung = asyncio.Event()


class HttpWire(TcpProxy):
    """`silent`: nothing passes on the connections that are made now, and nobody is told."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.links: list[HttpLink] = []
        self.traps: list[HttpTrap] = []
        self.silent = False

    def freeze(self) -> list["HttpLink"]:
        """Half open: what is connected stays so, and nothing passes. Return what was frozen."""
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
            with suppress(OSError, asyncio.CancelledError):  # by nobody but ourselves, at the end
                await asyncio.gather(link.requests(), link.answers())
        finally:
            self.links.remove(link)
            if link.trap is not None and not link.trap.sprung.is_set():
                self.traps.append(link.trap)  # the connection broke by itself, before the answer


class HttpLink:
    """One connection. `frozen`: it stays open on both sides, and nothing passes any more."""

    def __init__(self, wire: HttpWire, client: Streams, server: Streams) -> None:
        self._wire = wire
        self._client = client
        self._server = server
        self.trap: HttpTrap | None = None  # whose answer does not arrive
        self.frozen = False

    def reset(self) -> None:
        """RST, to both sides."""
        reset(self._client[1])
        reset(self._server[1])

    def lose_server(self) -> None:
        """The server has found out that nobody is there. The worker must do so by itself."""
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
                    target.close()  # with FIN: after RST the worker might not get to read the half
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
