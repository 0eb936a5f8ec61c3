"""Routes to log in and out, to list sessions, and to create the first superuser."""

from __future__ import annotations

import logging

from msgspec import UNSET, Struct, UnsetType

from rowlock.access import secrets, sessions, superusers
from rowlock.access.identity import shown_name
from rowlock.http import cursors
from rowlock.http.call import Call
from rowlock.http.problems import Problem
from rowlock.http.request import Request
from rowlock.http.response import Response, answer
from rowlock.http.routes import KNOWN, PUBLIC, Access, Routes, scope
from rowlock.http.shapes import Asked, PageQuery, Time, copied

ROUTES = Routes()

log = logging.getLogger("rowlock.http")

# Allowed on a read-only server: a login changes no jobs.
LOGIN = Access("public", writes=False)
LOGOUT = Access("known", bounded=True, writes=False)


class LoginBody(Asked, frozen=True, kw_only=True):
    email: str
    password: str


class SetupBody(Asked, frozen=True, kw_only=True):
    token: str
    email: str
    password: str


class MeBody(Struct, kw_only=True):
    """`can`: what the caller may do to all jobs, or by a rule to some: read, enqueue, cancel, manage. `set_up`: the
    first superuser exists; only in the page's own request, before a login."""

    kind: str
    id: str
    name: str
    scopes: list[str]
    topics: tuple[str, ...] | None
    can: list[str]
    read_only: bool
    set_up: bool | UnsetType = UNSET


class SessionBody(Struct, kw_only=True):
    id: str
    email: str
    created: Time
    seen: Time
    ends: Time
    client: str


class SessionsAnswer(Struct, kw_only=True):
    items: list[SessionBody]
    next: str | None


def cookie_name(request: Request) -> str:
    """Return the name of the cookie. Over https, __Host- keeps other hosts of the same domain from setting it. Browsers
    refuse such a cookie over plain http."""
    return "__Host-rowlock" if request.is_secure else "rowlock_session"


def shown_session(request: Request) -> secrets.Shown | None:
    return secrets.read("session", request.cookie(cookie_name(request)))


def _set_cookie(request: Request, text: str) -> tuple[str, str]:
    secure = "; Secure" if request.is_secure else ""
    age = "; Max-Age=0" if not text else f"; Max-Age={int(sessions.ABSOLUTE.total_seconds())}"
    return "set-cookie", f"{cookie_name(request)}={text}; Path=/; HttpOnly; SameSite=Strict{secure}{age}"


@ROUTES.add("POST", "/api/auth/login", LOGIN, "Log in as a superuser", answers=(MeBody,), errors=(401, 429))
async def log_in(call: Call, asked: LoginBody) -> Response:
    request = call.request
    _check_transport(call)
    store = await call.store()
    call.api.state.hashing.check(request.network)
    call.api.attempts.begin(request.network, asked.email)
    async with call.api.state.hashing.turn(request.network):
        found = await superusers.authenticate(store, asked.email, asked.password)
    if found is None:
        # Without the name: people type their password there.
        log.warning("%s: a login from %s failed", request.id, request.client, extra={"request_id": request.id})
        raise Problem("wrong_login", "no superuser has this e-mail address and password")
    call.api.attempts.succeeded(request.network, asked.email)
    return await _begin(call, found)


async def _begin(call: Call, found: superusers.Superuser) -> Response:
    request = call.request
    client = f"{request.client} {request.headers.get('user-agent', '')}"
    client = "".join(char for char in client if char.isprintable())
    issued = await sessions.begin(await call.store(), found, client=client, old=shown_session(request))
    call.identity = found.identity
    return answer(me_body(call), headers=[_set_cookie(request, issued.text)])


def _check_transport(call: Call) -> None:
    if not call.request.is_secure and not call.api.settings.insecure_http and not call.api.is_loopback(call.request):
        text = "a password must not go over plain http: use https, or localhost, or a token"
        raise Problem("insecure", text)


@ROUTES.add(
    "POST", "/api/auth/setup", PUBLIC, "Create the first superuser, by the one-time link",
    answers=(MeBody,), errors=(429,),
)  # fmt: skip
async def set_up(call: Call, asked: SetupBody) -> Response:
    """Create the first superuser, by the one-time link. Afterwards this path answers 404."""
    _check_transport(call)
    store = await call.store()
    if await superusers.is_set_up(store):
        raise Problem("no_such_path", "there is nothing at this path")
    address = call.request.network
    call.api.state.hashing.check(address)
    call.api.attempts.begin(address)
    shown = secrets.read("link", asked.token)
    async with call.api.state.hashing.turn(address):
        made = shown is not None and await superusers.create(
            store, asked.email, asked.password, by="one-time link", link=shown
        )
    if not made:
        raise Problem("bad_link", "this link is used up or too old: the console has a new one after a restart")
    call.api.attempts.succeeded(address)
    [found] = [one for one in await superusers.every(store) if one.email == asked.email.lower()]
    return await _begin(call, found)


@ROUTES.add("POST", "/api/auth/logout", LOGOUT, "End this session", status=204)
async def log_out(call: Call) -> Response:
    shown = shown_session(call.request)
    if shown is not None and call.identity.kind == "superuser":
        await sessions.end(await call.store(), shown.id, by=call.by)
    return answer(None, headers=[_set_cookie(call.request, "")])


@ROUTES.add("GET", "/api/auth/me", KNOWN, "Who am I?")
async def get_me(call: Call) -> MeBody:
    return me_body(call)


def me_body(call: Call) -> MeBody:
    identity = call.identity
    more = {"name": shown_name(identity), "scopes": sorted(identity.scopes), "can": call.can(), "set_up": UNSET}
    return copied(MeBody, identity, **more)


@ROUTES.add("GET", "/api/sessions", scope("admin"), "Who is logged in")
async def list_sessions(call: Call, asked: PageQuery) -> SessionsAnswer:
    store = await call.store()
    found, following = await cursors.page(
        call, lambda after, count: sessions.every(store, after=after, limit=count), lambda session: session.id
    )
    return SessionsAnswer(items=[copied(SessionBody, one) for one in found], next=following)


@ROUTES.add("DELETE", "/api/sessions/{session_id}", scope("admin"), "End a session")
async def end_session(call: Call) -> None:
    if not await sessions.end(await call.store(), call.parameters["session_id"], by=call.by):
        raise Problem("not_found", "there is no such session (any more)")
