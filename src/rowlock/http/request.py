"""A request. Its headers, query and body have limits, which are checked while it comes in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Network, ip_address
from typing import Any
from urllib.parse import parse_qsl

from rowlock.http.problems import Problem

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LARGEST_BODY = (1 << 20) + (64 << 10)  # a payload of 1 MiB, and the JSON around it
MOST_PARAMETERS = 100
LARGEST_HEADERS = 64 << 10  # bytes, with 32 for each
PATIENCE = 30.0  # seconds for a body to come in
LONGEST_QUERY = 16_384


class Gone(Exception):
    """The client has hung up."""


class Request:
    """`path` begins behind the prefix at which the application is mounted. `scope` is ASGI's."""

    __slots__ = ("_receive", "headers", "id", "method", "path", "scope")

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, request_id: str) -> None:
        self.scope = scope
        self._receive = receive
        self.id = request_id
        self.method: str = scope["method"]
        self.headers: dict[str, str] = {}
        size = 0
        for name, value in scope["headers"]:
            size += len(value) + 32
            if size > LARGEST_HEADERS:
                raise Problem("headers_too_large", f"the headers may have {LARGEST_HEADERS:,} bytes")
            key = name.decode("latin-1")
            if key in self.headers:
                if key in _ONCE:
                    raise Problem("header_twice", f"the header {key} is there twice", field=key)
                self.headers[key] += f"{'; ' if key == 'cookie' else ', '}{value.decode('latin-1')}"
            else:
                self.headers[key] = value.decode("latin-1")
        path: str = scope["path"]
        root: str = scope.get("root_path", "").rstrip("/")
        path = path[len(root) :] if root and path.startswith(f"{root}/") else path
        self.path = path.removesuffix("/") or "/"  # Litestar adds one to whatever it mounts

    @property
    def client(self) -> str:
        """Return the address from which it came."""
        address = self.scope.get("client")
        return str(address[0]) if address else "unknown"

    @property
    def network(self) -> str:
        """Return the address for counting; of IPv6 the first 64 bits: one subscriber has all addresses below them."""
        return _network(self.client)

    @property
    def is_secure(self) -> bool:
        return bool(self.scope.get("scheme") == "https")

    @property
    def host(self) -> str:
        return self.headers.get("host", "").lower()

    def cookie(self, name: str) -> str | None:
        for part in self.headers.get("cookie", "").split(";"):
            key, _, value = part.strip().partition("=")
            if key == name:
                return value
        return None

    def query(self) -> list[tuple[str, str]]:
        raw: bytes = self.scope.get("query_string", b"")
        if not raw:
            return []
        if len(raw) > LONGEST_QUERY:
            raise Problem("query_too_long", f"the query has more than {LONGEST_QUERY:,} bytes")
        try:
            return parse_qsl(
                raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST_PARAMETERS
            )
        except UnicodeDecodeError:
            raise Problem("not_utf8", "the query is not UTF-8") from None
        except ValueError:
            raise Problem("too_many_parameters", f"more than {MOST_PARAMETERS} parameters") from None

    async def body(self) -> bytes:
        """Return the JSON body. Refuse it as soon as it is known to be too large."""
        if not _is_json(self.headers.get("content-type", "")):
            raise Problem("wrong_content_type", "send JSON, with content-type: application/json", field="content-type")
        if self.headers.get("content-encoding", "identity") != "identity":
            raise Problem("encoded", "send the body as it is, not compressed", field="content-encoding")
        told = self.headers.get("content-length", "")
        if told.isdigit() and (len(told) > 15 or int(told) > LARGEST_BODY):
            raise _too_large()
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._read()
        except TimeoutError:
            text = f"the body took longer than {PATIENCE:g} s"
            raise Problem("too_slow", text, headers={"connection": "close"}) from None

    async def is_empty(self) -> bool:
        """True if there is no body. Without a Content-Length, the first part is read, and kept for `body`."""
        if (told := self.headers.get("content-length")) is not None:
            return told == "0"
        if "transfer-encoding" not in self.headers:
            first = await self._receive()
            if not first.get("body") and not first.get("more_body"):
                return True
            self._receive = _after(first, self._receive)
        return False

    async def _read(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            part = message.get("body", b"")
            size += len(part)
            if size > LARGEST_BODY:
                raise _too_large()
            parts.append(part)
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def hung_up(self) -> None:
        """Return when the client has gone. Only for requests without a body, or after it was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


_ONCE = ("authorization", "content-length", "content-type", "host", "origin", "transfer-encoding")
_CHARSETS = ("", "charset=utf-8", 'charset="utf-8"')


@lru_cache(1000)
def _network(address: str) -> str:
    try:
        known = ip_address(address)
    except ValueError:
        return address
    if isinstance(known, IPv4Address):
        return address
    return str(known.ipv4_mapped or IPv6Network((known.packed[:8] + bytes(8), 64)))


def _after(first: Message, rest: Receive) -> Receive:
    waiting = [first]

    async def receive() -> Message:
        return waiting.pop() if waiting else await rest()

    return receive


@lru_cache(100)
def _is_json(media: str) -> bool:
    kind, _, parameters = media.partition(";")
    return kind.strip().lower() == "application/json" and parameters.strip().lower() in _CHARSETS


def _too_large() -> Problem:
    return Problem("too_large", f"the body may have {LARGEST_BODY:,} bytes", headers={"connection": "close"})
