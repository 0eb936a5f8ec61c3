"""The demo's page: an HTTP server, and a link that logs the visitor in."""

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
    """Yield the link to the page, None if the packages that it needs are not installed."""
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
        raise RuntimeError("the server ended before it was ready")
    try:
        yield link.result()
    finally:
        if not serving.done():
            signal.raise_signal(signal.SIGTERM)  # the server stops on this signal
        await serving


def _bind() -> tuple[ServerSettings, socket.socket]:
    """Bind the usual port, or any free one if it is taken."""
    from rowlock.http import server

    usual = ServerSettings()
    try:
        return usual, server.bind(usual)
    except InvalidInput:
        other = ServerSettings(port=0)
        return other, server.bind(other)


def _entrance(address: str, first: str | None) -> str:
    """Return the link. A new database has no account: the one-time link creates one, with an e-mail and a password that
    the page fills in."""
    if first is None:
        return f"{address}/_/"
    return f"{first}&{urlencode({'email': _EMAIL, 'password': secrets.token_urlsafe(12)})}"
