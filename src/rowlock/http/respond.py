"""Send an answer: its headers, problem+json for errors, streams, and a line in the log."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

from rowlock.access.identity import Identity
from rowlock.errors import RowlockError
from rowlock.http.filters import ONE_OF
from rowlock.http.problems import Problem, from_error, internal
from rowlock.http.request import Gone, Send
from rowlock.http.response import Response
from rowlock.http.routes import API_VERSION, API_VERSION_HEADER, Route

log = logging.getLogger("rowlock.http")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{8,64}\Z")
_PROCESS, _NUMBERS = secrets.token_hex(4), count(1)
_JSON = "application/json"
_UNCACHED = (b"cache-control", b"no-store")
_ALWAYS = [
    _UNCACHED,
    (API_VERSION_HEADER.encode(), API_VERSION.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_JSON_HEADERS = [*_ALWAYS, (b"content-type", _JSON.encode())]  # the others make no difference for data
_HEADERS = [*_ALWAYS, (b"referrer-policy", b"no-referrer"), (b"cross-origin-opener-policy", b"same-origin")]
_CSP = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_HSTS = (b"strict-transport-security", b"max-age=31536000")
_TOKEN = re.compile(r"(/callbacks/+)[^/]+")
_LONGEST_LINE = 500  # characters of a path in the log


@dataclass(slots=True)
class Passage:
    """The progress of a request through the gates: the answer and the log need it."""

    request_id: str
    origin: str | None = None
    identity: Identity | None = None
    route: Route | None = None


async def respond(
    scope: MutableMapping[str, Any], send: Send, answer: Callable[[Passage], Awaitable[Response]]
) -> None:
    began = time.perf_counter()
    passage = Passage(_request_id(scope))
    try:
        response = await _answered(scope, passage, answer)
    except Gone:
        return
    is_head = scope["method"] == "HEAD"
    try:
        headers = _headers(scope, passage, response)
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        if response.stream is not None and not is_head:
            await _flow(response.stream(), send, passage.request_id)
        await send({"type": "http.response.body", "body": b"" if is_head else response.body})
    finally:
        if response.ended is not None:
            response.ended()
    if log.isEnabledFor(logging.INFO):
        who = passage.identity.by if passage.identity else "-"
        took = (time.perf_counter() - began) * 1000
        log.info(
            "%s %s %d %.1f ms", _line(scope["method"]), _path(scope), response.status, took,
            extra={"request_id": passage.request_id, "identity": who},
        )  # fmt: skip


async def _answered(
    scope: MutableMapping[str, Any], passage: Passage, answer: Callable[[Passage], Awaitable[Response]]
) -> Response:
    """Return the handler's answer, or the problem that it raised."""
    request_id, extra = passage.request_id, {"request_id": passage.request_id}
    try:
        return await answer(passage)
    except Gone:
        raise
    except Problem as error:
        problem = error
    except RowlockError as error:
        problem = _named(from_error(error), passage.route)
        if problem.status >= 500:
            log.error("%s: %s", request_id, error, extra=extra)
    except Exception:
        log.exception("%s: %s %s", request_id, scope["method"], _path(scope), extra=extra)
        problem = internal()
    return Response(problem.body(request_id), problem.status, "application/problem+json", list(problem.headers.items()))


def _headers(scope: MutableMapping[str, Any], passage: Passage, response: Response) -> list[tuple[bytes, bytes]]:
    own = [(name.encode(), value.encode("latin-1")) for name, value in response.headers]
    names = {name for name, _ in own}
    headers = [
        *(_HEADERS if response.media != _JSON else _JSON_HEADERS),
        (b"x-request-id", passage.request_id.encode()),
    ]
    if response.media != _JSON:
        if response.media:
            headers.append((b"content-type", response.media.encode()))
        if _CSP[0] not in names:
            headers.append(_CSP)
    if scope.get("scheme") == "https":
        headers.append(_HSTS)
    if passage.origin is not None:
        headers += [(b"access-control-allow-origin", passage.origin.encode("latin-1")), (b"vary", b"Origin")]
    if _UNCACHED[0] in names:
        headers.remove(_UNCACHED)
    if response.status not in (204, 304) and response.stream is None:
        own.append((b"content-length", str(len(response.body)).encode()))
    return headers + own


async def _flow(stream: AsyncGenerator[bytes, None], send: Send, request_id: str) -> None:
    """Send a stream part by part, as fast as the client reads."""
    try:
        async with aclosing(stream):
            async for part in stream:
                await send({"type": "http.response.body", "body": part, "more_body": True})
    except Exception:
        log.exception("%s: a stream broke off", request_id, extra={"request_id": request_id})


def _request_id(scope: MutableMapping[str, Any]) -> str:
    """Return the caller's id of the request if a log can hold it, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.match(given := str(value, "latin-1")):
            return given
    return f"{_PROCESS}{next(_NUMBERS):08x}"


def _path(scope: MutableMapping[str, Any]) -> str:
    """Return the path for the log. A callback's token is a credential, and is left out."""
    return _line(_TOKEN.sub(r"\1…", scope["path"]))


def _line(text: str) -> str:
    """Return a text for the log in one line: a line break in a path must not forge a second line."""
    short = text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}…"
    return short if short.isprintable() else ascii(short)[1:-1]


def _named(problem: Problem, route: Route | None) -> Problem:
    """Give the problem's field the name that it has in the request."""
    if problem.field is not None and route is not None:
        names = _renamed(route.body) | _renamed(route.query)
        steps = problem.field.split(".")
        own = steps.index("payload") if "payload" in steps else len(steps)  # names below it are the caller's
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
    return names | {plural: one for plural, one in ONE_OF.items() if one in names}
