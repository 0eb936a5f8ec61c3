"""Routes of logging in and out, and of the first superuser."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict

import msgspec

from rowlock.access import secrets, sessions, superusers
from rowlock.access.identity import shown_name
from rowlock.http import shapes
from rowlock.http.call import Call
from rowlock.http.problems import Problem
from rowlock.http.request import Request
from rowlock.http.response import Response, answer, nothing
from rowlock.http.routes import KNOWN, Access, Route, scope

log = logging.getLogger("rowlock.http")

# A login changes nothing that read-only is to protect.
LOGIN = Access("public", writes=False)
LOGOUT = Access("known", bounded=True, writes=False)


def cookie_name(request: Request) -> str:
    """Over https, __Host- keeps other hosts of the same domain from putting one there. Browsers take no such cookie
    over plain http."""
    return "__Host-rowlock" if request.is_secure else "rowlock_session"


def shown_session(request: Request) -> secrets.Shown | None:
    return secrets.read("session", request.cookie(cookie_name(request)))


def _set_cookie(request: Request, text: str) -> tuple[str, str]:
    secure = "; Secure" if request.is_secure else ""
    age = "; Max-Age=0" if not text else f"; Max-Age={int(sessions.ABSOLUTE.total_seconds())}"
    return "set-cookie", f"{cookie_name(request)}={text}; Path=/; HttpOnly; SameSite=Strict{secure}{age}"


class Attempts:
    """Failed logins by account and address: after a few, each makes the next one wait for longer."""

    FREE = 5
    LONGEST = 300.0
    _KEPT = 10_000

    def __init__(self) -> None:
        self._failed: OrderedDict[tuple[str, str], tuple[int, float]] = (
            OrderedDict()
        )  # how often, and when it may again

    def check(self, keys: list[tuple[str, str]]) -> None:
        wait = max(self._failed.get(key, (0, 0.0))[1] - time.monotonic() for key in keys)
        if wait > 0:
            seconds = int(wait) + 1
            text = f"too many failed logins: try again in {seconds} s"
            raise Problem(429, "too_many_logins", text, headers={"retry-after": str(seconds)})

    def failed(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            count = self._failed.pop(key, (0, 0.0))[0] + 1
            many = count - self.FREE * (1 if key[0] else 10)  # many may log in from one address
            pause = min(self.LONGEST, 2.0 ** min(many, 20)) if many >= 0 else 0.0
            self._failed[key] = (count, time.monotonic() + pause)
        while len(self._failed) > self._KEPT:
            self._failed.popitem(last=False)

    def succeeded(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            self._failed.pop(key, None)


async def log_in(call: Call) -> Response:
    asked: shapes.LoginBody = call.body
    request = call.request
    _check_transport(call)
    keys = [(asked.email.lower()[:250], request.client), ("", request.client)]
    call.api.attempts.check(keys)
    call.api.attempts.failed(keys)  # until it is known to be right: those that come at the same moment count as well
    store = await call.store()
    async with call.api.hashing:
        found = await superusers.authenticate(store, asked.email, asked.password)
    if found is None:
        # Not the name: people type their password there.
        log.warning("%s: a login from %s failed", request.id, request.client, extra={"request_id": request.id})
        raise Problem(401, "wrong_login", "no superuser has this e-mail address and password")
    call.api.attempts.succeeded(keys)
    return await _begin(call, found)


async def _begin(call: Call, found: superusers.Superuser) -> Response:
    request = call.request
    client = f"{request.client} {request.headers.get('user-agent', '')}"
    client = "".join(char for char in client if char.isprintable())
    issued = await sessions.begin(await call.store(), found, client=client, old=shown_session(request))
    call.identity = found.identity
    response = answer(me_body(call))
    response.headers = [_set_cookie(request, issued.text)]
    return response


def _check_transport(call: Call) -> None:
    if not call.request.is_secure and not call.api.settings.insecure_http and not call.api.is_loopback(call.request):
        text = "a password must not go over plain http: use https, or localhost, or a token"
        raise Problem(403, "insecure", text)


async def set_up(call: Call) -> Response:
    """The first superuser, by the one-time link. Afterwards there is nothing here any more."""
    asked: shapes.SetupBody = call.body
    _check_transport(call)
    store = await call.store()
    if await superusers.is_set_up(store):
        raise Problem(404, "no_such_path", "there is nothing at this path")
    keys = [("", call.request.client)]
    call.api.attempts.check(keys)
    shown = secrets.read("link", asked.token)
    async with call.api.hashing:
        made = shown is not None and await superusers.create(
            store, asked.email, asked.password, by="one-time link", link=shown
        )
    if not made:
        call.api.attempts.failed(keys)
        raise Problem(403, "bad_link", "this link is used up or too old: the console has a new one after a restart")
    [found] = [one for one in await superusers.every(store) if one.email == asked.email.lower()]
    return await _begin(call, found)


async def log_out(call: Call) -> Response:
    shown = shown_session(call.request)
    if shown is not None and call.identity.kind == "superuser":
        await sessions.end(await call.store(), shown.id, by=call.by)
    response = nothing()
    response.headers = [_set_cookie(call.request, "")]
    return response


async def get_me(call: Call) -> Response:
    return answer(me_body(call))


def me_body(call: Call) -> shapes.MeBody:
    identity = call.identity
    return shapes.MeBody(
        kind=identity.kind,
        id=identity.id,
        name=shown_name(identity),
        scopes=sorted(identity.scopes),
        topics=identity.topics,
        can=call.can(),
        read_only=identity.read_only,
    )


async def list_sessions(call: Call) -> Response:
    items = []
    for one in await sessions.every(await call.store()):
        told = msgspec.structs.asdict(one)
        del told["stamp"]
        items.append(shapes.SessionBody(**told))
    return answer(shapes.SessionsAnswer(items=items))


async def end_session(call: Call) -> Response:
    if not await sessions.end(await call.store(), call.parameters["id"], by=call.by):
        raise Problem(404, "not_found", "there is no such session (any more)")
    return nothing()


ROUTES = [
    Route(
        method="POST", path="/api/auth/login", access=LOGIN, handler=log_in, summary="Log in as a superuser",
        body=shapes.LoginBody, answers=(shapes.MeBody,), errors=(401, 429),
    ),
    Route(
        method="POST", path="/api/auth/setup", access=Access("public"), handler=set_up,
        summary="Make the first superuser, by the one-time link", body=shapes.SetupBody, answers=(shapes.MeBody,),
        errors=(404, 429),
    ),
    Route(
        method="POST", path="/api/auth/logout", access=LOGOUT, handler=log_out, summary="End this session", status=204,
    ),
    Route(
        method="GET", path="/api/auth/me", access=KNOWN, handler=get_me, summary="Who am I?", answers=(shapes.MeBody,),
    ),
    Route(
        method="GET", path="/api/sessions", access=scope("admin"), handler=list_sessions, summary="Who is logged in",
        answers=(shapes.SessionsAnswer,),
    ),
    Route(
        method="DELETE", path="/api/sessions/{id}", access=scope("admin"), handler=end_session, summary="End a session",
        status=204, errors=(404,),
    ),
]  # fmt: skip
