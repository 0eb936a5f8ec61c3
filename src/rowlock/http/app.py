"""The ASGI application: every request passes the same gates in the same order, then its route's handler.

Host, route, settings, origin, identity, access, query, body. What any of them refuses is a problem+json with the
request's id, and nothing has been done.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, MutableMapping
from contextlib import aclosing, suppress
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

from rowlock.access import settings as access_settings
from rowlock.access.identity import ANONYMOUS, Identity
from rowlock.errors import RowlockError
from rowlock.http import (
    access,
    bulk,
    failures,
    jobs,
    operators,
    redacting,
    series,
    service,
    sessions,
    streams,
    ui,
    workers,
)
from rowlock.http.bulk_runner import BulkRunner
from rowlock.http.call import Call, denied, needs
from rowlock.http.counting import Counting
from rowlock.http.desk import Desk
from rowlock.http.doorkeeper import LOOPBACK, Doorkeeper, host_name
from rowlock.http.ends import Ends
from rowlock.http.live import Live
from rowlock.http.problems import Problem, from_error, internal
from rowlock.http.reading import read_body, read_query
from rowlock.http.request import Gone, Receive, Request, Send
from rowlock.http.response import Response
from rowlock.http.room import Room
from rowlock.http.routes import Access, Route, Table
from rowlock.http.settings import ApiSettings
from rowlock.http.shapes import ONE_OF, BatchBody, EnqueueBody
from rowlock.http.upkeep import Upkeep

if TYPE_CHECKING:
    from rowlock.jobs import Jobs

log = logging.getLogger("rowlock.http")

_PARTS = (jobs, redacting, bulk, streams, series, failures, operators, workers, access, sessions, service, ui)
ROUTES = [route for part in _PARTS for route in part.ROUTES]
_FRESH = 1.0  # seconds after which settings that another process has changed apply here
_PAGE_PATIENCE = 0.5  # seconds that a page's file waits for the settings
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{8,64}\Z")
_PROCESS, _NUMBERS = secrets.token_hex(4), count(1)
_JSON = "application/json"
_UNCACHED = (b"cache-control", b"no-store")
_ALWAYS = [
    _UNCACHED,
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_JSON_HEADERS = [*_ALWAYS, (b"content-type", _JSON.encode())]  # data has no use for the others
_HEADERS = [*_ALWAYS, (b"referrer-policy", b"no-referrer"), (b"cross-origin-opener-policy", b"same-origin")]
_CSP = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_LONGEST_LINE = 500  # characters of a path in the log
_HSTS = (b"strict-transport-security", b"max-age=31536000")


class Api:
    """`jobs.asgi()` makes it."""

    def __init__(self, jobs: Jobs, settings: ApiSettings | None = None) -> None:
        self.jobs = jobs
        self.settings = settings or ApiSettings()
        self.table = Table(ROUTES)
        self.attempts = sessions.Attempts()
        self._rooms: dict[asyncio.AbstractEventLoop, Room] = {}
        self._latest = Room(self.settings, jobs._store)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                self._settle_in()
                await self._serve(scope, receive, send)
            case "lifespan":
                await self._live(receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1008})

    def _settle_in(self) -> None:
        """What belongs to an event loop is made when its first request comes, and is there again for the next one,
        whatever other loops ask in between."""
        loop = asyncio.get_running_loop()
        room = self._rooms.get(loop)
        if room is None:
            for old in list(self._rooms):
                if old.is_closed():
                    self._rooms.pop(old, None)
            room = self._rooms[loop] = Room(self.settings, self.jobs._store)
            if not self.settings.read_only:
                room.upkeep.start()
                room.bulk.open()
        self._loop, self._latest = loop, room

    @property
    def _room(self) -> Room:
        """That of the running loop; for those who only look on from elsewhere, the one that was used last."""
        try:
            return self._rooms.get(asyncio.get_running_loop(), self._latest)
        except RuntimeError:  # there is no loop
            return self._latest

    @property
    def hashing(self) -> asyncio.Semaphore:
        return self._room.hashing

    @property
    def readiness(self) -> service.Readiness:
        return self._room.readiness

    @property
    def ends(self) -> Ends:
        return self._room.ends

    @property
    def counting(self) -> Counting:
        return self._room.counting

    @property
    def live(self) -> Live:
        return self._room.live

    @property
    def desk(self) -> Desk:
        return self._room.desk

    @property
    def upkeep(self) -> Upkeep:
        return self._room.upkeep

    @property
    def bulk(self) -> BulkRunner:
        return self._room.bulk

    @property
    def _doorkeeper(self) -> Doorkeeper:
        return self._room.doorkeeper

    def stop(self) -> None:
        """Whoever waits for something in this loop is told how it stands, now."""
        self.ends.stop()
        self.desk.stop()
        self.live.stop()

    async def _live(self, receive: Receive, send: Send) -> None:
        # Cancelled by a second Ctrl-C: the event loop ends without a shutdown, and servers would print where we were.
        with suppress(asyncio.CancelledError):
            while (await receive())["type"] == "lifespan.startup":
                self._settle_in()
                await send({"type": "lifespan.startup.complete"})
            self.stop()
            await self.upkeep.stop()
            await self.bulk.close()
            await send({"type": "lifespan.shutdown.complete"})

    # ── A request ──

    async def _serve(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        request_id = _request_id(scope)
        passage = _Passage()
        try:
            response = await self._answer(scope, receive, request_id, passage)
        except Gone:
            return
        except Problem as problem:
            response = _told(problem, request_id)
        except RowlockError as error:
            told = from_error(error)
            if told.status >= 500:
                log.error("%s: %s", request_id, error, extra={"request_id": request_id})
            response = _told(_named(told, passage.route), request_id)
        except Exception:
            extra = {"request_id": request_id}
            log.exception("%s: %s %s", request_id, scope["method"], _line(scope["path"]), extra=extra)
            response = _told(internal(), request_id)
        headers = [*(_HEADERS if response.media != _JSON else _JSON_HEADERS), (b"x-request-id", request_id.encode())]
        if response.media != _JSON:
            if response.media:
                headers.append((b"content-type", response.media.encode()))
            if not any(name == "content-security-policy" for name, _ in response.headers):
                headers.append(_CSP)
        if scope.get("scheme") == "https":
            headers.append(_HSTS)
        if passage.origin is not None:
            headers += [(b"access-control-allow-origin", passage.origin.encode("latin-1")), (b"vary", b"Origin")]
        if response.headers:
            if any(name == "cache-control" for name, _ in response.headers):
                headers.remove(_UNCACHED)
            headers += [(name.encode(), value.encode("latin-1")) for name, value in response.headers]
        body = b"" if scope["method"] == "HEAD" else response.body
        stream = None if scope["method"] == "HEAD" else response.stream
        if response.status not in (204, 304) and response.stream is None:
            headers.append((b"content-length", str(len(response.body)).encode()))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        if stream is not None:
            await _flow(stream(), send, request_id)
        await send({"type": "http.response.body", "body": body})
        if log.isEnabledFor(logging.INFO):
            who = passage.identity.by if passage.identity else "-"
            took = (time.perf_counter() - began) * 1000
            log.info(
                "%s %s %d %.1f ms", _line(scope["method"]), _line(scope["path"]), response.status, took,
                extra={"request_id": request_id, "identity": who},
            )  # fmt: skip

    async def _answer(
        self, scope: MutableMapping[str, Any], receive: Receive, request_id: str, passage: _Passage
    ) -> Response:
        request = Request(scope, receive, request_id)
        if request.method == "OPTIONS":
            return await self._preflight(request, passage)
        route, parameters = self.table.find(request.method, request.path)
        passage.route = route
        if route.access.kind == "probe":
            return await route.handler(Call(self, request, ANONYMOUS, access_settings.NOTHING, parameters, route))
        self._doorkeeper.check_host(request)
        if route.access.kind == "page":
            passage.origin = self._doorkeeper.check_origin(request)
            await self._page_enabled()
            return await route.handler(Call(self, request, ANONYMOUS, access_settings.NOTHING, parameters, route))
        await self._enabled()
        passage.origin = self._doorkeeper.check_origin(request)
        call = await self.admit(route, request, parameters, passage)
        if route.query is not None:
            call.query = read_query(route.query, request.query())
        elif scope.get("query_string") and request.query():
            raise Problem(400, "unknown_field", "this path takes no parameters", field=request.query()[0][0][:100])
        if route.body is not None:
            call.body = await self._body(route, request)
        return await route.handler(call)

    async def admit(
        self, route: Route, request: Request, parameters: Mapping[str, str], passage: _Passage | None = None
    ) -> Call:
        """Who asks, and may they? By the settings, sessions and tokens of this moment."""
        current = await self._enabled()
        identity = await self._doorkeeper.identify(request)
        if passage is not None:
            passage.identity = identity
        call = Call(self, request, identity, current, parameters, route)
        self._authorize(route, call)
        return call

    async def _body(self, route: Route, request: Request) -> Any:
        if route.body_optional and await request.is_empty():
            return route.body()
        return read_body(route.body, await request.body())

    async def admit_again(self, call: Call) -> None:
        """For long polls: what let it in may have been revoked or switched off since."""
        call.settings = await self._enabled()
        call.identity = await self._doorkeeper.identify(call.request)
        self._authorize(self.table.find(call.request.method, call.request.path)[0], call)

    async def _enabled(self) -> access_settings.Current:
        return _check_enabled(await self.current())

    async def _page_enabled(self) -> None:
        """While the database is away, the settings that were read last count. The page then says what is wrong."""
        try:
            async with asyncio.timeout(_PAGE_PATIENCE):
                await self._enabled()
        except (RowlockError, TimeoutError):
            if self._room.current is not None:
                _check_enabled(self._room.current)

    async def _preflight(self, request: Request, passage: _Passage) -> Response:
        """May a page of another origin call this? By default none may."""
        self._doorkeeper.check_host(request)
        await self._enabled()
        passage.origin = self._doorkeeper.check_origin(request)
        allowed = [] if passage.origin is None else [
            ("access-control-allow-methods", "GET, POST, PATCH, DELETE"),
            ("access-control-allow-headers", "authorization, content-type, x-request-id"),
            ("access-control-max-age", "600"),
        ]  # fmt: skip
        return Response(status=204, media="", headers=allowed)

    # ── May it? ──

    def _authorize(self, route: Route, call: Call) -> None:
        wanted, identity = route.access, call.identity
        if route.writes and (self.settings.read_only or identity.read_only):
            whose = "this server" if self.settings.read_only else "this account"
            raise Problem(403, "read_only", f"{whose} is read-only")
        # What is not about single jobs is nothing for a token that is for one.
        if identity.is_bounded and (not wanted.bounded or (identity.job is not None and wanted.kind == "scope")):
            raise denied(identity, "this token is for some topics or one job only")
        if not _is_allowed(wanted, call):
            raise denied(identity, _needs(wanted))

    def is_loopback(self, request: Request) -> bool:
        return host_name(request.host) in LOOPBACK

    async def current(self) -> access_settings.Current:
        room = self._room
        if room.current is None or time.monotonic() - room.read_at > _FRESH:
            asked = time.monotonic()
            record = await room.records.get(access_settings.ID)
            if room.current is None or room.current.revision != (0 if record is None else record.revision):
                room.current = access_settings.read(record)
            room.read_at = asked
        return room.current

    def forget_settings(self) -> None:
        for room in list(self._rooms.values()):
            room.current = None


def _check_enabled(current: access_settings.Current) -> access_settings.Current:
    if not current.settings.http_enabled:
        raise Problem(404, "http_disabled", "the HTTP API is switched off: rowlock settings set http_enabled=true")
    return current


async def _flow(stream: AsyncGenerator[bytes, None], send: Send, request_id: str) -> None:
    """Part by part, as fast as the reader reads."""
    try:
        async with aclosing(stream):
            async for part in stream:
                await send({"type": "http.response.body", "body": part, "more_body": True})
    except Exception:
        log.exception("%s: a stream broke off", request_id, extra={"request_id": request_id})


def _request_id(scope: MutableMapping[str, Any]) -> str:
    """The caller's, if it can stand in a log; else one of our own."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.match(given := str(value, "latin-1")):
            return given
    return f"{_PROCESS}{next(_NUMBERS):08x}"


class _Passage:
    """How far a request has come, for the answer."""

    __slots__ = ("identity", "origin", "route")

    def __init__(self) -> None:
        self.origin: str | None = None
        self.identity: Identity | None = None
        self.route: Route | None = None


def _line(text: str) -> str:
    """For the log: nobody writes a second line into it by a line break in a path."""
    short = text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}…"
    return short if short.isprintable() else ascii(short)[1:-1]


def _is_allowed(wanted: Access, call: Call) -> bool:
    identity = call.identity
    match wanted.kind:
        case "probe" | "page" | "public":
            return True
        case "known":
            return identity.kind != "anonymous"
        case "enqueue":
            return identity.has("enqueue") or call.settings.granted("enqueue", identity.claims) is not False
        case "jobs":
            return call.reach(wanted.scope) is not False
        case "scope":
            return identity.has(wanted.scope)


def _needs(wanted: Access) -> str:
    match wanted.kind:
        case "enqueue":
            return "this needs the scope enqueue, or an enqueue_rule that lets you"
        case "jobs":
            return needs(wanted.scope)
        case _:
            return f"this needs the scope {wanted.scope}"


def _named(problem: Problem, route: Route | None) -> Problem:
    """A field has the name that it has in the request."""
    if problem.field is not None and route is not None:
        names = _renamed(route.body) | _renamed(route.query)
        steps = problem.field.split(".")
        own = next(
            (n for n, step in enumerate(steps) if step == "payload"), len(steps)
        )  # what is below is the caller's
        if route.query is not None:
            steps = [step.partition("[")[0] for step in steps]
        field = ".".join([*(names.get(step, step) for step in steps[:own]), *steps[own:]])
        problem.detail = problem.detail.replace(problem.field, field, 1)
        problem.field = field
    return problem


@cache
def _renamed(shape: Any) -> dict[str, str]:
    if shape is None:
        return {}
    names = dict(zip(shape.__struct_fields__, shape.__struct_encode_fields__, strict=True))
    if shape is BatchBody:
        return names | _renamed(EnqueueBody)
    # Of a list, a query names one at a time.
    return names | {plural: one for plural, one in ONE_OF.items() if one in names}


def _told(problem: Problem, request_id: str) -> Response:
    return Response(problem.body(request_id), problem.status, "application/problem+json", list(problem.headers.items()))
