"""Callbacks: addresses by which an external system answers a job that waits.

An address ends in a token that names the job, the signal and the number of the callback. The token hides them, and only
this database's key makes one (a synthetic IV: the seal of the text is the nonce of the keystream). The same callback
always has the same token, so a replay gets the same address. Nothing is stored for it but the key.
"""

from __future__ import annotations

import base64
import hmac
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from rowlock.access import settings
from rowlock.config import PREFIX
from rowlock.core.ids import check_id
from rowlock.core.waits import check_signal_name
from rowlock.errors import InvalidInput
from rowlock.stores.base import Store
from rowlock.stores.records import Write

PATH = "/api/callbacks/"
KIND, ID = "secret", "callbacks"
_TAG = 20  # bytes: 160 bits
_LONGEST = 1024  # characters of a token: a signal's name is the longest part
_FRESH = 60.0  # seconds until the key is read again: a database may have been restored from a backup
_TEXT = re.compile(r"[0-9A-Za-z_-]+\Z")


class Callback(NamedTuple):
    """The content of a token. `n`: the number of the call of ctx.callback for this signal, from 1."""

    job_id: str
    signal: str
    n: int

    @property
    def signal_id(self) -> str:
        """Return the id of the signal that answers it. It counts once per job, so a callback is answered once."""
        return f"@callback:{self.signal}#{self.n}"


class Callbacks:
    """`public_url`: from arguments, environment or file; None: the one that is stored in the database counts."""

    def __init__(self, store: Callable[[], Awaitable[Store]], public_url: str | None) -> None:
        self._store = store
        self._public_url = public_url
        self._keys: tuple[bytes, bytes] | None = None  # for the seal, and for the keystream
        self._until = 0.0

    async def address(self, job_id: str, signal: str, n: int, *, base: str | None = None) -> str:
        """Return the address by which an external system answers the job's n-th callback for this signal. `base`: the
        URL to use if these Jobs have no public_url. Raise InvalidInput if the database has none either."""
        base = self._public_url or base or (await settings.load(await self._store())).settings.public_url
        if not base:
            problem = (
                "is not set, so a callback has no address. Give the URL under which others reach the HTTP API: "
                f'Jobs(…, public_url="https://jobs.example.com"), or {PREFIX}PUBLIC_URL, or a line in rowlock.toml, '
                "or the setting in the database"
            )
            raise InvalidInput("public_url", "missing", problem)
        return f"{base}{PATH}{await self.token(Callback(job_id, signal, n))}"

    async def token(self, callback: Callback) -> str:
        while (keys := await self._read()) is None:  # the first process makes the key, and all use it
            key = {"key": secrets.token_hex(32)}
            await (await self._store()).write_records([Write(KIND, ID, key, revision=0)])
            self._until = 0.0
        text = f"{callback.job_id} {callback.n} {callback.signal}".encode()
        tag = _mac(keys[0], text)[:_TAG]
        return _text(tag + _mixed(keys[1], tag, text))

    async def read(self, token: str) -> Callback | None:
        """Return the callback that a token names; None if it was not made with this database's key."""
        keys = await self._read()
        raw = _raw(token)
        if keys is None:
            return None
        tag, text = raw[:_TAG], _mixed(keys[1], raw[:_TAG], raw[_TAG:])
        if not hmac.compare_digest(tag, _mac(keys[0], text)[:_TAG]):
            return None
        job_id, n, signal = text.decode().split(" ")
        return Callback(check_id(job_id), check_signal_name(signal), int(n))

    async def _read(self) -> tuple[bytes, bytes] | None:
        """Return the keys; None if the database has none yet."""
        if self._keys is None or time.monotonic() >= self._until:
            found = await (await self._store()).records(KIND, [ID])
            key = bytes.fromhex(found[0].data["key"]) if found else b""
            self._keys = (_mac(key, b"seal"), _mac(key, b"stream")) if found else None
            self._until = time.monotonic() + _FRESH
        return self._keys


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _mixed(key: bytes, nonce: bytes, data: bytes) -> bytes:
    """Return data mixed with the keystream: encrypts and decrypts."""
    blocks = range(-(-len(data) // 32))
    stream = b"".join(_mac(key, nonce + number.to_bytes(4, "big")) for number in blocks)
    return bytes(one ^ other for one, other in zip(data, stream, strict=False))


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _raw(token: str) -> bytes:
    """Return the bytes of a token; empty if it can't be one of ours."""
    if len(token) > _LONGEST or _TEXT.match(token) is None or len(token) % 4 == 1:
        return b""
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    return raw if _text(raw) == token else b""
