"""The ASGI application: every request passes the same gates in the same order, then its route's handler.

Route, host, settings, origin, identity, access, query, body. A gate that refuses a request answers problem+json with
the request's id, and nothing has been done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from rowlock.access import settings as access_settings
from rowlock.access.identity import ANONYMOUS
from rowlock.core.ids import check_id
from rowlock.errors import InvalidInput, RowlockError
from rowlock.http import (
    access,
    bulk,
    callbacks,
    enqueue,
    failures,
    flows,
    jobs,
    limits,
    operators,
    redacting,
    schedules,
    service,
    sessions,
    signals,
    stats,
    streams,
    templates,
    tokens,
    ui,
    workers,
)
from rowlock.http.authenticate import LOOPBACK, host_name
from rowlock.http.call import Call, denied, needs
from rowlock.http.callback_limits import CallbackLimits
from rowlock.http.cursors import Cursors
from rowlock.http.login_attempts import Attempts
from rowlock.http.loop_state import LoopState
from rowlock.http.parse import read_body, read_object, read_query
from rowlock.http.problems import Problem
from rowlock.http.request import Receive, Request, Send
from rowlock.http.respond import Passage, respond
from rowlock.http.response import Response, answer
from rowlock.http.routes import Access, Route, Table
from rowlock.http.settings import ApiSettings
from rowlock.http.upkeep import Upkeep

if TYPE_CHECKING:
    from rowlock.jobs import Jobs


_RESOURCES = (
    enqueue, jobs, signals, redacting, stats, bulk, streams, failures, operators, templates, schedules, flows,
    limits, workers, callbacks, tokens, access, sessions, service, ui,
)  # fmt: skip
ROUTES = [route for resource in _RESOURCES for route in resource.ROUTES]
_FRESH = 1.0  # seconds until settings that another process has changed apply here
_PAGE_PATIENCE = 0.5  # seconds that a page's file waits for the settings


class Api:
    """The application that `jobs.asgi()` returns."""

    def __init__(self, jobs: Jobs, settings: ApiSettings | None = None) -> None:
        self.jobs = jobs
        self.settings = settings or ApiSettings()
        self.table = Table(ROUTES)
        self.attempts = Attempts()
        self.callback_limits = CallbackLimits()
        self.cursors = Cursors(jobs._store)
        self._loop_states: dict[asyncio.AbstractEventLoop, LoopState] = {}
        self._latest = LoopState(self.settings, jobs._store, jobs.schedules.firing)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                self._settle_in()
                await respond(scope, send, partial(self._answer, scope, receive))
            case "lifespan":
                await self._live(receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1008})

    def _settle_in(self) -> None:
        """Make the state of this event loop at its first request. All later requests use the same state."""
        loop = asyncio.get_running_loop()
        loop_state = self._loop_states.get(loop)
        if loop_state is None:
            for old in list(self._loop_states):
                if old.is_closed():
                    self._loop_states.pop(old, None)
            loop_state = self._loop_states[loop] = LoopState(
                self.settings, self.jobs._store, self.jobs.schedules.firing
            )
            if not self.settings.read_only:
                loop_state.upkeep.start()
        self._latest = loop_state

    @property
    def state(self) -> LoopState:
        """Return the state of the running loop. Outside of any loop: the state that was used last."""
        try:
            return self._loop_states.get(asyncio.get_running_loop(), self._latest)
        except RuntimeError:  # there is no loop
            return self._latest

    @property
    def upkeep(self) -> Upkeep:
        return self.state.upkeep

    def stop(self) -> None:
        """Answer all requests that wait in this loop, now."""
        self.state.wait_for_end.stop()
        self.state.remote_workers.stop()
        self.state.live.stop()

    async def _live(self, receive: Receive, send: Send) -> None:
        # Cancelled by a second Ctrl-C: the event loop ends without a shutdown, and servers would print a traceback.
        with suppress(asyncio.CancelledError):
            while (await receive())["type"] == "lifespan.startup":
                self._settle_in()
                await send({"type": "lifespan.startup.complete"})
            self.stop()
            await self.upkeep.stop()
            await send({"type": "lifespan.shutdown.complete"})

    # ── A request, gate by gate ──

    async def _answer(self, scope: MutableMapping[str, Any], receive: Receive, passage: Passage) -> Response:
        """Take a request through all gates. Each raises a Problem for what it refuses, before anything is done."""
        request = Request(scope, receive, passage.request_id)
        if request.method == "OPTIONS":
            return await self._preflight(request, passage)
        route, parameters = self.table.find(request.method, request.path)
        passage.route = route
        if route.access.kind == "probe":
            return await self._handled(Call(self, request, ANONYMOUS, access_settings.NOTHING, parameters, route))
        self.state.authenticator.check_host(request)
        self.state.authenticator.note_proxy(request)
        if route.access.kind == "page":
            passage.origin = self.state.authenticator.check_origin(request)
            await self._page_enabled()
            return await self._handled(Call(self, request, ANONYMOUS, access_settings.NOTHING, parameters, route))
        await self._enabled()
        passage.origin = self.state.authenticator.check_origin(request)
        call = await self.admit(route, request, parameters, passage)
        _check_id(parameters)
        if route.query is not None:
            call.query = read_query(route.query, request.query())
            return await self._handled(call, call.query)
        if scope.get("query_string") and request.query():
            raise Problem("unknown_field", "this path takes no parameters", field=request.query()[0][0][:100])
        if route.body is None:
            return await self._handled(call)
        if route.raw_body:
            return await self._handled(call, read_object(await request.body()))
        is_empty = route.body_optional and await request.is_empty()
        return await self._handled(call, route.body() if is_empty else read_body(route.body, await request.body()))

    async def _handled(self, call: Call, *asked: Any) -> Response:
        told = await call.route.handler(call, *asked)
        return told if isinstance(told, Response) else answer(told, call.route.status)

    async def admit(
        self, route: Route, request: Request, parameters: Mapping[str, str], passage: Passage | None = None
    ) -> Call:
        """Return the call if the caller may make it, by the settings, sessions and tokens of this moment."""
        current = await self._enabled()
        known = route.access.kind != "callback"  # its token is the only credential; the others are not looked at
        identity = await self.state.authenticator.identify(request) if known else ANONYMOUS
        if passage is not None:
            passage.identity = identity
        call = Call(self, request, identity, current, parameters, route)
        self._authorize(route, call)
        return call

    async def _enabled(self) -> access_settings.Current:
        return _check_enabled(await self.current())

    async def _page_enabled(self) -> None:
        """Use the settings that were read last while the database is away. The page then says what is wrong."""
        try:
            async with asyncio.timeout(_PAGE_PATIENCE):
                await self._enabled()
        except (RowlockError, TimeoutError):
            if self.state.current is not None:
                _check_enabled(self.state.current)

    async def _preflight(self, request: Request, passage: Passage) -> Response:
        """Tell a browser whether a page of another origin may call this. By default none may."""
        self.state.authenticator.check_host(request)
        await self._enabled()
        passage.origin = self.state.authenticator.check_origin(request)
        allowed = [] if passage.origin is None else [
            ("access-control-allow-methods", "GET, POST, PUT, PATCH, DELETE"),
            ("access-control-allow-headers", "authorization, content-type, x-request-id"),
            ("access-control-max-age", "600"),
        ]  # fmt: skip
        return Response(status=204, media="", headers=allowed)

    # ── Access ──

    def _authorize(self, route: Route, call: Call) -> None:
        wanted, identity = route.access, call.identity
        if route.writes and (self.settings.read_only or identity.read_only):
            whose = "this server" if self.settings.read_only else "this account"
            raise Problem("read_only", f"{whose} is read-only")
        # A token for one job or one scope may only use routes about single jobs.
        if identity.is_bounded and (not wanted.bounded or (identity.is_narrow and wanted.kind == "scope")):
            raise denied(identity, "this token is for some topics, one scope or one job only")
        if not _is_allowed(wanted, call):
            raise denied(identity, _needs(wanted))

    def is_loopback(self, request: Request) -> bool:
        return host_name(request.host) in LOOPBACK

    async def current(self) -> access_settings.Current:
        state = self.state
        if state.current is None or time.monotonic() - state.read_at > _FRESH:
            asked = time.monotonic()
            record = await state.records.get(access_settings.ID)
            if state.current is None or state.current.revision != (0 if record is None else record.revision):
                state.current = access_settings.read(record)
            state.read_at = asked
        return state.current

    def forget_settings(self) -> None:
        for loop_state in list(self._loop_states.values()):
            loop_state.current = None


def _check_enabled(current: access_settings.Current) -> access_settings.Current:
    if not current.settings.http_enabled:
        raise Problem("http_disabled", "the HTTP API is switched off: rowlock settings set http_enabled=true")
    return current


def _is_allowed(wanted: Access, call: Call) -> bool:
    identity = call.identity
    match wanted.kind:
        case "probe" | "page" | "public" | "callback":
            return True
        case "known":
            return identity.kind != "anonymous"
        case "enqueue":
            return identity.has("enqueue") or call.granted("enqueue") is not False
        case "jobs":
            return call.reach(wanted.scope) is not False
        case "scope":
            return identity.has(wanted.scope) or (bool(wanted.or_scope) and identity.has(wanted.or_scope))


def _needs(wanted: Access) -> str:
    match wanted.kind:
        case "enqueue":
            return "this needs the scope enqueue, or an enqueue_rule that lets you"
        case "jobs":
            return needs(wanted.scope)
        case _:
            either = f" or {wanted.or_scope}" if wanted.or_scope else ""
            return f"this needs the scope {wanted.scope}{either}"


def _check_id(parameters: Mapping[str, str]) -> None:
    """Answer 404 if the `id` in the path is not a UUID: nothing has such an id."""
    if "id" in parameters:
        try:
            check_id(parameters["id"])
        except InvalidInput:
            raise Problem("not_found", "nothing has this id, which is not a UUID") from None
