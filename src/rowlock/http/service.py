"""Routes about the server: health, readiness, metrics, and the OpenAPI document."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from rowlock.errors import RowlockError
from rowlock.http import metrics
from rowlock.http.call import Call
from rowlock.http.response import Response, answer
from rowlock.http.routes import KNOWN, PROBE, Routes, scope
from rowlock.stores.base import Store

ROUTES = Routes()

_PATIENCE = 5.0  # seconds to wait for the database
_FRESH = 1.0  # seconds for which an answer is used again


class Up(msgspec.Struct):
    status: str


class Ready(msgspec.Struct):
    status: str
    problem: str | None = None


@ROUTES.add("GET", "/healthz", PROBE, "Does this process answer?")
async def get_health(call: Call) -> Up:
    """Answer without the database: restarting this process would not repair a database."""
    return Up("ok")


@ROUTES.add("GET", "/readyz", PROBE, "Does the database answer, with the right tables?", answers=(Ready,))
async def get_readiness(call: Call) -> Response:
    """Answer whether the database works and has the tables of this version. The database is asked once a second."""
    return await call.api.state.readiness.get(call.store)


class Readiness:
    """The readiness of the server, for one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._answer: Response | None = None
        self._until = 0.0

    async def get(self, store: Callable[[], Awaitable[Store]]) -> Response:
        async with self._lock:
            if self._answer is None or time.monotonic() >= self._until:
                self._answer = await _look(store)
                self._until = time.monotonic() + _FRESH
            return self._answer


async def _look(get_store: Callable[[], Awaitable[Store]]) -> Response:
    try:
        async with asyncio.timeout(_PATIENCE):
            store = await get_store()
            await store.now()
            pending = (await store.pending_migrations()).migrations
    except (RowlockError, TimeoutError):
        return answer(Ready("not ready", "the database can't be reached"), 503)
    if pending:
        return answer(Ready("not ready", "rowlock migrate has not been run"), 503)
    return answer(Ready("ok"))


@ROUTES.add("GET", "/metrics", scope("read"), "Metrics for Prometheus", media=metrics.MEDIA)
async def get_metrics(call: Call) -> Response:
    return Response(
        await metrics.render(await call.store(), await call.api.state.counting.stats()), media=metrics.MEDIA
    )


@ROUTES.add("GET", "/api/openapi.json", KNOWN, "The OpenAPI document")
async def get_openapi(call: Call) -> Response:
    from rowlock.http.openapi import text

    return Response(text())
