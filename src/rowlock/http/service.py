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
from rowlock.http.routes import KNOWN, PROBE, Route, scope
from rowlock.stores.base import Store

_PATIENCE = 5.0  # seconds to wait for the database
_FRESH = 1.0  # seconds for which an answer is used again


class Up(msgspec.Struct):
    status: str


class Ready(msgspec.Struct):
    status: str
    problem: str | None = None


async def get_health(call: Call) -> Response:
    """Answer without the database: restarting this process would not repair a database."""
    return answer(Up("ok"))


async def get_readiness(call: Call) -> Response:
    """Answer whether the database works and has the tables of this version. The database is asked once a second."""
    return await call.api.readiness.get(call.store)


class Readiness:
    """For one event loop."""

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
            pending = await store.pending_migrations()
    except (RowlockError, TimeoutError):
        return answer(Ready("not ready", "the database can't be reached"), 503)
    if pending:
        return answer(Ready("not ready", "rowlock migrate has not been run"), 503)
    return answer(Ready("ok"))


async def get_metrics(call: Call) -> Response:
    return Response(await metrics.render(await call.store(), await call.api.counting.stats()), media=metrics.MEDIA)


async def get_openapi(call: Call) -> Response:
    from rowlock.http.openapi import text

    return Response(text())


ROUTES = [
    Route("GET", "/healthz", PROBE, get_health, "Does this process answer?", answers=(Up,)),
    Route("GET", "/readyz", PROBE, get_readiness, "Does the database answer, with the right tables?", answers=(Ready,)),
    Route("GET", "/metrics", scope("read"), get_metrics, "Metrics for Prometheus", media=metrics.MEDIA),
    Route("GET", "/api/openapi.json", KNOWN, get_openapi, "The OpenAPI document"),
]  # fmt: skip
