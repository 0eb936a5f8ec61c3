"""Routes of the admin page: files that `make ui` has built from ui/ and that anyone may have, for they hold no data.

Their addresses are relative, and what the page shows is in the URL's fragment: so it works behind any prefix, and no
proxy needs to know about it.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib.resources import files

from msgspec import Struct

from rowlock.access import superusers
from rowlock.http import shapes
from rowlock.http.call import Call
from rowlock.http.problems import Problem
from rowlock.http.response import Response, answer
from rowlock.http.routes import PAGE, PUBLIC, Route
from rowlock.http.sessions import me_body

_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    ]
)
_MEDIA = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_FOREVER = "public, max-age=31536000, immutable"  # of names that have a hash of the content behind a dash


class File(Struct, frozen=True):
    plain: bytes
    packed: bytes
    media: str
    tag: str


@cache
def _files() -> dict[str, File]:
    """By name, read once. What is not a page's file is not here: nobody gets out of the folder."""
    found = {}
    for entry in (files("rowlock.http") / "pages").iterdir():
        media = _MEDIA.get(entry.name.rpartition(".")[2])
        if media is not None:
            plain = entry.read_bytes()
            tag = f'"{hashlib.sha256(plain).hexdigest()[:20]}"'
            found[entry.name] = File(plain, gzip.compress(plain, 9, mtime=0), media, tag)
    return found


def _answer(call: Call, name: str, caching: str) -> Response:
    file = _files().get(name)
    if file is None:
        raise Problem("no_such_path", "there is nothing at this path")
    headers = [("cache-control", caching), ("etag", file.tag), ("vary", "Accept-Encoding")]
    headers.append(("content-security-policy", _POLICY))
    if file.tag in call.request.headers.get("if-none-match", ""):
        return Response(status=304, media="", headers=headers)
    if "gzip" not in call.request.headers.get("accept-encoding", ""):
        return Response(file.plain, media=file.media, headers=headers)
    return Response(file.packed, media=file.media, headers=[*headers, ("content-encoding", "gzip")])


def _moved(place: str) -> Response:
    return Response(status=307, media="", headers=[("location", place)])


async def get_root(call: Call) -> Response:
    return _moved("_/")


async def get_page(call: Call) -> Response:
    """Without the slash, relative addresses would lead elsewhere."""
    asked = call.request.scope.get("raw_path") or call.request.scope["path"].encode()
    return _answer(call, "index.html", "no-cache") if asked.endswith(b"/") else _moved("_/")


async def get_setup_page(call: Call) -> Response:
    """The form behind the one-time link. The secret is in the URL's fragment, which browsers keep to themselves. A
    used link opens it as well: the page then says so."""
    return _answer(call, "index.html", "no-cache")


async def get_me(call: Call) -> Response:
    """Who looks at the page? Nobody is an answer: then it shows the login, or says how to make the first account."""
    body = me_body(call)
    if call.identity.kind == "anonymous":
        body.set_up = await superusers.is_set_up(await call.store())
    return answer(body)


async def get_file(call: Call) -> Response:
    name = call.parameters["name"]
    if name.isascii() and name.isalpha():  # somebody has typed the name of a screen: /_/jobs
        return _moved(f"./#/{name}")
    return _answer(call, name, _FOREVER if "-" in name else "no-cache")


ROUTES = [
    Route(
        method="GET", path="/", access=PAGE, handler=get_root, summary="To the admin page", status=307, media="",
    ),
    Route(
        method="GET", path="/_", access=PAGE, handler=get_page, summary="The admin page", media="text/html",
    ),
    Route(
        method="GET", path="/_/setup", access=PAGE, handler=get_setup_page, media="text/html",
        summary="The page behind the one-time link",
    ),
    Route(
        method="GET", path="/_/me", access=PUBLIC, handler=get_me, summary="Who looks at the page, if anyone",
        answers=(shapes.MeBody,),
    ),
    Route(
        method="GET", path="/_/{name}", access=PAGE, handler=get_file, summary="Its scripts and styles",
        media="text/javascript", errors=(404,),
    ),
]  # fmt: skip
