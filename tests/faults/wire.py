"""A wire: a proxy between PostgreSQL and its clients. A test can cut it at the worst moment.

The wire reads which statements the client sends, and which of them a reply is about to acknowledge as committed. So a
test can reset a connection in the middle of a chosen statement, or lose the very reply that says "committed".
"""

import asyncio
import re
import socket
import struct
from collections.abc import Callable
from contextlib import nullcontext, suppress

from tests.proxy import Streams, TcpProxy

Statement = Callable[[str], bool]

_SSL, _GSS = 80877103, 80877104  # requests that a client may send before its startup message
_LINGER_NOT = struct.pack("ii", 1, 0)


def enqueues(text: str) -> bool:
    return re.search(r"INSERT INTO \S*_jobs \(", text) is not None


def settles(text: str) -> bool:
    return "settle_summary" in text


def claims(text: str) -> bool:
    return "claim_summary" in text


def fences(text: str) -> bool:
    """True if the statement is part of an application's own transaction."""
    return "business" in text


def anything(text: str) -> bool:
    return True


class Trap:
    """A trap that springs when a client sends a matching statement, and then sets `sprung`. `how` says what it does:
    "early" resets the connection when half of the statement was sent, "late" when all of it was sent. "swallow" resets
    it when the server has committed the statement, before the client gets the reply. "hold" keeps the statement on the
    line until `release` is set, even if the client goes away, and sets `answered` when the server is done with it.
    "part" holds it as well, and resets the client's connection at once."""

    def __init__(self, how: str, on: Statement) -> None:
        self.how = how
        self.on = on
        self.sprung = asyncio.Event()
        self.release = asyncio.Event()
        self.answered = asyncio.Event()


class Wire(TcpProxy):
    """A wire. `delay`: seconds that data take, one way. `rate`: bytes per second, on each connection. While it is
    `silent`, new connections are accepted, and nothing passes on them."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.links: list[Link] = []
        self.traps: list[Trap] = []
        self.delay = 0.0
        self.rate: float | None = None
        self.silent = False

    def freeze(self) -> list["Link"]:
        """Make the connections half open: they stay open, and nothing passes. Return those that were frozen."""
        found = [link for link in self.links if not link.frozen]
        for link in found:
            link.frozen = True
        return found

    async def _carry(self, client: Streams, server: Streams) -> None:
        link = Link(self, client, server)
        link.frozen = self.silent
        self.links.append(link)
        try:
            with suppress(asyncio.CancelledError):  # cancelled only when the wire closes
                await link.run()
        finally:
            self.links.remove(link)


class Link:
    """One connection. While it is `frozen`, it stays open on both sides, and nothing passes."""

    def __init__(self, wire: Wire, client: Streams, server: Streams) -> None:
        self._wire = wire
        self._client = client
        self._server = server
        self._asked = _Asked()
        self._answered = _Answered()
        self._swallowing: Trap | None = None
        self._holding: Trap | None = None
        self.frozen = False

    @property
    def listens(self) -> bool:
        return self._asked.listens

    @property
    def rounds(self) -> int:
        return self._asked.rounds

    def reset(self) -> None:
        """Send RST to both sides."""
        _reset(self._client[1])
        _reset(self._server[1])

    def lose_server(self) -> None:
        """Reset the server's side only. The client must find out by itself that the connection is dead."""
        _reset(self._server[1])

    async def run(self) -> None:
        with suppress(OSError):
            await asyncio.gather(self._requests(), self._replies())

    async def _requests(self) -> None:
        reader, target = self._client[0], self._server[1]
        while data := await self._read(reader):
            self._asked.feed(data, self._answered)
            trap = self._caught()
            if trap is not None and trap.how == "early":
                await self._send(target, data[: len(data) // 2])
                trap.sprung.set()
                self.reset()
                return
            if trap is not None and trap.how == "swallow":
                self._swallowing = trap
            if trap is not None and trap.how in ("hold", "part"):
                trap.sprung.set()
                if trap.how == "part":
                    _reset(self._client[1])
                await trap.release.wait()
                self._holding = trap
            await self._send(target, data)
            if self._holding is not None:
                await self._holding.answered.wait()
                self._holding = None
            if trap is not None and trap.how == "late":
                trap.sprung.set()
                self.reset()
                return
        if not self.frozen:
            self._server[1].close()

    async def _replies(self) -> None:
        reader, target = self._server[0], self._client[1]
        while data := await self._read(reader):
            status = self._answered.feed(data)
            if self._holding is not None and status is not None:
                self._holding.answered.set()
            if self._swallowing is None:
                # The client of a held statement may be gone. Read on: the rest tells when the server is done.
                with suppress(OSError) if self._holding is not None else nullcontext():
                    await self._send(target, data)
            elif status is not None:  # the statement is done
                self._swallowing.sprung.set()
                self.reset()
                return
        if not self.frozen:
            target.close()

    def _caught(self) -> Trap | None:
        for trap in self._wire.traps:
            asked = self._asked.committing if trap.how == "swallow" else self._asked.newest
            if any(map(trap.on, asked)):
                self._wire.traps.remove(trap)
                return trap
        return None

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        while True:
            data = await reader.read(65536)
            if not data or not self.frozen:
                return data

    async def _send(self, target: asyncio.StreamWriter, data: bytes) -> None:
        wire = self._wire
        if wire.delay or wire.rate:
            await asyncio.sleep(wire.delay + (len(data) / wire.rate if wire.rate else 0.0))
        if not self.frozen:
            target.write(data)
            await target.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
    writer.transport.abort()


class _Asked:
    """Parses what a client sends. `newest`: the statements in the last data. `committing`: the statements that the last
    data will commit. `rounds`: how often the client has waited for the server."""

    def __init__(self) -> None:
        self._rest = b""
        self._greeted = False
        self._prepared: dict[bytes, str] = {}
        self._open: list[str] = []  # statements of the open transaction
        self.listens = False
        self.rounds = 0
        self.newest: list[str] = []
        self.committing: list[str] = []

    def feed(self, data: bytes, answered: "_Answered") -> None:
        self.newest, self.committing = [], []
        self._rest += data
        while not self._greeted and len(self._rest) >= 8:
            size, code = struct.unpack("!ii", self._rest[:8])
            if len(self._rest) < size:
                return
            self._rest = self._rest[size:]
            if code in (_SSL, _GSS):
                answered.bare += 1
            else:
                self._greeted = True
        if not self._greeted:
            return
        while message := _next(self._rest):
            kind, body = message
            self._rest = self._rest[5 + len(body) :]
            self.rounds += kind in (b"S", b"H", b"Q")  # Sync, Flush, or a statement as text
            if kind == b"P":
                name, text = body.split(b"\0")[:2]
                self._prepared[name] = text.decode()
            elif kind == b"B":
                self._say(self._prepared.get(body.split(b"\0")[1], ""), answered)
            elif kind == b"Q":
                self._say(body.rstrip(b"\0").decode(), answered)

    def _say(self, text: str, answered: "_Answered") -> None:
        self.newest.append(text)
        self.listens = self.listens or text.startswith("LISTEN")
        if text.startswith(("BEGIN", "START")):
            self._open = [text]
        elif text.startswith("COMMIT"):
            self.committing, self._open = [*self._open, text], []
        elif answered.status == b"T":
            self._open.append(text)
        else:
            self.committing = [text]


class _Answered:
    """Parses what the server sends. `status`: the transaction status that the server reported last. `bare`: how many of
    the next answers are one byte without a frame."""

    def __init__(self) -> None:
        self._rest = b""
        self.bare = 0
        self.status = b"I"

    def feed(self, data: bytes) -> bytes | None:
        """Read more data. Return the transaction status if these data report it."""
        found = None
        if self.bare:
            data, self.bare = data[self.bare :], 0
        self._rest += data
        while message := _next(self._rest):
            kind, body = message
            self._rest = self._rest[5 + len(body) :]
            if kind == b"Z":
                self.status = found = body
        return found


def _next(data: bytes) -> tuple[bytes, bytes] | None:
    if len(data) < 5:
        return None
    size = int(struct.unpack("!i", data[1:5])[0])
    return (data[:1], data[5 : 1 + size]) if len(data) > size else None
