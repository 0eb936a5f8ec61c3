"""The demo's page: a server beside it, and a link by which one is in at once."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from rowlock.config import ServerSettings
from rowlock.errors import InvalidInput

if TYPE_CHECKING:
    import socket

    from rowlock.jobs import Jobs

_EMAIL = "demo@example.com"


@asynccontextmanager
async def served(jobs: Jobs) -> AsyncIterator[str | None]:
    """The link to the page; None: what it needs is not installed."""
    if find_spec("uvicorn") is None or find_spec("argon2") is None:
        yield None
        return
    from rowlock.http import server

    settings, bound = _bind()
    link: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def ready(address: str, first: str | None) -> None:
        link.set_result(_entrance(address, first))

    serving = asyncio.create_task(server.serve(jobs, settings, bound, ready))
    either: tuple[asyncio.Future[Any], ...] = (serving, link)
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not link.done():
        link.cancel()
        await serving
        raise RuntimeError("the server ended before it began")
    try:
        yield link.result()
    finally:
        if not serving.done():
            signal.raise_signal(signal.SIGTERM)  # which is how a server is told to stop
        await serving


def _bind() -> tuple[ServerSettings, socket.socket]:
    """The usual port, or any if somebody has it."""
    from rowlock.http import server

    usual = ServerSettings()
    try:
        return usual, server.bind(usual)
    except InvalidInput:
        other = ServerSettings(port=0)
        return other, server.bind(other)


def _entrance(address: str, first: str | None) -> str:
    """Nobody has an account in a new database: the one-time link makes one, and the page types for its visitor."""
    if first is None:
        return f"{address}/_/"
    return f"{first}&{urlencode({'email': _EMAIL, 'password': secrets.token_urlsafe(12)})}"
