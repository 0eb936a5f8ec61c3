"""A TCP proxy between a client and a server. It can lose what they send to each other."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class _Link:
    """One connection. While it is `frozen`, it stays open on both sides, and nothing passes. While it is `choked`, the
    proxy doesn't even read, so that the client's data pile up on the client's side."""

    frozen = False
    choked = False

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self.writers = writers


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TcpProxy:
    """A server that opens a connection to the target for every client. `_carry` passes their data on."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @classmethod
    def before(cls, url: str) -> Self:
        """Return a proxy in front of the server of this database."""
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        return cls(address.hostname, address.port)

    def through(self, url: str) -> str:
        """Return the URL of the same database through this proxy."""
        return url.replace(f"{self._target[0]}:{self._target[1]}/", f"127.0.0.1:{self.port}/", 1)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            upstream = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        try:
            await self._carry((reader, writer), upstream)
        finally:
            writer.close()
            upstream[1].close()

    async def _carry(self, client: Streams, server: Streams) -> None:
        raise NotImplementedError


class Proxy(TcpProxy):
    """A proxy that can break connections. With `swallow` = n, the next n answers of the server are lost, and their
    connections are cut."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self._links: list[_Link] = []
        self.swallow = 0
        self.swallowed = 0
        self._is_cut = False

    def cut(self) -> None:
        """Break every connection, and make no other until `mend`, as if the server were stopped."""
        self._is_cut = True
        for link in self._links:
            for writer in link.writers:
                writer.transport.abort()

    def mend(self) -> None:
        self._is_cut = False

    def freeze_newest(self) -> None:
        """Freeze the newest connection, as if the other host had lost its power."""
        self._links[-1].frozen = True

    def choke_newest(self) -> None:
        """Stop reading on the newest connection, as if the other process were frozen and its kernel's buffers full. Any
        thread may call this."""
        self._links[-1].choked = True

    async def _carry(self, client: Streams, server: Streams) -> None:
        if self._is_cut:
            return
        link = _Link(client[1], server[1])
        self._links.append(link)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(link, client[0], server[1], answers=False))
                group.create_task(self._pump(link, server[0], client[1], answers=True))
        except* OSError:
            pass

    async def _pump(
        self, link: _Link, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        while data := await source.read(65536):
            if link.choked:
                await asyncio.Event().wait()
            if link.frozen:
                continue
            if answers and self.swallow:
                self.swallow -= 1
                self.swallowed += 1
                raise ConnectionAbortedError
            target.write(data)
            await target.drain()
        with suppress(OSError):
            target.write_eof()
        raise ConnectionAbortedError  # one side has closed the connection: end the other side, too
