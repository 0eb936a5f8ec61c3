"""Routes of the admin page: files that `make ui` builds from ui/. Anyone may read them: they hold no data.

Their addresses are relative, and the page keeps its state in the URL's fragment, so it works behind any prefix.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib.resources import files

from msgspec import Struct

from rowlock.access import superusers
from rowlock.http.call import Call
from rowlock.http.problems import Problem
from rowlock.http.response import Response
from rowlock.http.routes import PAGE, PUBLIC, Routes
from rowlock.http.sessions import MeBody, me_body

ROUTES = Routes()

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_MEDIA = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_FOREVER = "public, max-age=31536000, immutable"  # for names with a hash of the content after a dash


class File(Struct, frozen=True):
    plain: bytes
    packed: bytes
    media: str
    tag: str


@cache
def _files() -> dict[str, File]:
    """Return the page's files by name. Other paths are not among them, so nothing outside of the folder is served."""
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


@ROUTES.add("GET", "/", PAGE, "To the admin page", status=307, media="")
async def get_root(call: Call) -> Response:
    return _moved("_/")


@ROUTES.add("GET", "/_", PAGE, "The admin page", media="text/html")
async def get_page(call: Call) -> Response:
    """Redirect a path without the slash at its end: relative addresses need it."""
    asked = call.request.scope.get("raw_path") or call.request.scope["path"].encode()
    return _answer(call, "index.html", "no-cache") if asked.endswith(b"/") else _moved("_/")


@ROUTES.add("GET", "/_/setup", PAGE, "The page behind the one-time link", media="text/html")
async def get_setup_page(call: Call) -> Response:
    """Serve the form behind the one-time link. The secret is in the URL's fragment, which browsers never send. The page
    says so if the link was used before."""
    return _answer(call, "index.html", "no-cache")


@ROUTES.add("GET", "/_/me", PUBLIC, "The caller's account, if there is one")
async def get_me(call: Call) -> MeBody:
    """Return the caller. For an anonymous one, the page shows the login, or how to create the first account."""
    body = me_body(call)
    if call.identity.kind == "anonymous":
        body.set_up = await superusers.is_set_up(await call.store())
    return body


@ROUTES.add("GET", "/_/{name}", PAGE, "Its scripts and styles", media="text/javascript")
async def get_file(call: Call) -> Response:
    name = call.parameters["name"]
    if name.isascii() and name.isalpha():  # a person has typed the name of a screen: /_/jobs
        return _moved(f"./#/{name}")
    return _answer(call, name, _FOREVER if "-" in name else "no-cache")
