"""Cursors: the places where pages ended, encrypted and authenticated.

A page of jobs may end at a job that the caller may not see, so the cursor must not
show its place. The cursor is bound to the caller and to the question: another caller can't use it, nor can
the same caller on another route or with another filter.

The key is a record of the database, so all servers of one database understand each other's cursors. The standard
library has no cipher: HMAC-SHA256 in counter mode is the keystream, and another HMAC the seal (encrypt, then
authenticate).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from rowlock.errors import InvalidInput
from rowlock.stores.base import Store
from rowlock.stores.queries import check_limit
from rowlock.stores.records import Write

if TYPE_CHECKING:
    from rowlock.http.call import Call

T = TypeVar("T")

KIND, ID = "secret", "cursors"
_NONCE, _TAG = 16, 16
_LONGEST = 4096  # characters of a cursor: the name of a worker is the longest place there is
_FRESH = 60.0  # seconds until the key is read again: a database may have been restored from a backup
_PLACE = ("cursor", "limit", "offset")  # what may change from page to page


class Cursors:
    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store
        self._keys: tuple[bytes, bytes] | None = None  # for the keystream, and for the seal
        self._until = 0.0

    async def seal(self, call: Call, place: str | None) -> str | None:
        """Return the cursor of the page that begins after this place. None: there is no such page."""
        if place is None:
            return None
        while (keys := await self._read()) is None:  # the first server makes the key, and all use it
            key = {"key": secrets.token_hex(32)}
            await (await self._store()).write_records([Write(KIND, ID, key, revision=0)])
        nonce = secrets.token_bytes(_NONCE)
        hidden = _mixed(keys[0], nonce, place.encode())
        return _text(nonce + hidden + _tag(keys[1], nonce, call, hidden))

    async def open(self, call: Call, cursor: str | None) -> str | None:
        """Return the place of a cursor that `seal` made for this caller and question."""
        if cursor is None:
            return None
        raw = _raw(cursor)
        nonce, hidden, tag = raw[:_NONCE], raw[_NONCE:-_TAG], raw[-_TAG:]
        keys = await self._read() if len(raw) >= _NONCE + _TAG else None
        if keys is None or not hmac.compare_digest(tag, _tag(keys[1], nonce, call, hidden)):
            problem = "is not what an earlier page gave you as next for the same question: leave it out to begin anew"
            raise InvalidInput("cursor", "bad_cursor", problem)
        return _mixed(keys[0], nonce, hidden).decode()

    async def _read(self) -> tuple[bytes, bytes] | None:
        """Return the keys; None if the database has none yet."""
        if self._keys is None or time.monotonic() >= self._until:
            found = await (await self._store()).records(KIND, [ID])
            key = bytes.fromhex(found[0].data["key"]) if found else b""
            self._keys = (_mac(key, b"stream"), _mac(key, b"seal")) if found else None
            self._until = time.monotonic() + _FRESH
        return self._keys


async def page(
    call: Call, read: Callable[[str | None, int], Awaitable[Sequence[T]]], place: Callable[[T], str]
) -> tuple[Sequence[T], str | None]:
    """Return the page that the query asks for, and the cursor of the next. `read`: returns rows after a place."""
    limit, after = check_limit(call.query.limit), await call.api.cursors.open(call, call.query.cursor)
    rows = await read(after, limit + 1)
    return rows[:limit], await call.api.cursors.seal(call, place(rows[limit - 1]) if len(rows) > limit else None)


async def page_of(call: Call, rows: Sequence[T], place: Callable[[T], str]) -> tuple[Sequence[T], str | None]:
    """Return a page of rows that are all in memory, in the order of their places."""

    async def read(after: str | None, count: int) -> Sequence[T]:
        return [row for row in rows if after is None or place(row) > after][:count]

    return await page(call, read, place)


def _question(call: Call) -> bytes:
    """Return the binding of a cursor: the caller, the route and the query."""
    asked = {name: value for name, value in msgspec.structs.asdict(call.query).items() if name not in _PLACE}
    of = dict(call.parameters)
    return msgspec.json.encode([call.route.method, call.route.path, of, *call.identity.caller, asked])


def _tag(key: bytes, nonce: bytes, call: Call, hidden: bytes) -> bytes:
    return _mac(key, nonce + hashlib.sha256(_question(call)).digest() + hidden)[:_TAG]


def _mixed(key: bytes, nonce: bytes, data: bytes) -> bytes:
    """Return data mixed with the keystream: encrypts and decrypts."""
    blocks = range(-(-len(data) // 32))
    stream = b"".join(_mac(key, nonce + number.to_bytes(4, "big")) for number in blocks)
    return bytes(one ^ other for one, other in zip(data, stream, strict=False))


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _raw(cursor: str) -> bytes:
    """Return the bytes of a cursor; empty if it can't be one of ours."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return b""
    return raw if len(cursor) <= _LONGEST and _text(raw) == cursor else b""
