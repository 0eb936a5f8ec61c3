"""JSON Web Tokens of the application's own users. `sub` becomes @request.auth.id; all claims are in @request.auth.

A shared secret allows only HS256. A key set (JWKS, a file or a URL) allows only RS256 and ES256, so that an attacker
can't use a public key as a shared secret.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rowlock.access.identity import Identity, is_name, user
from rowlock.errors import InvalidInput, MissingExtra

log = logging.getLogger("rowlock")

SHORTEST_SECRET = 32
LONGEST_TOKEN = 8192
_LEEWAY = 30  # seconds that clocks may be apart
_LAST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
_FRESH = 600.0  # seconds until a key set is read again …
_AGAIN = 10.0  # … or, for an unknown key
_LARGEST_SET = 1 << 20


class BadClaim(Exception):
    """The signature is right, but a claim can't be used. The caller may know the details: it has a valid signature."""

    def __init__(self, claim: str, code: str, problem: str) -> None:
        self.claim = claim
        self.code = code
        super().__init__(f"{claim}: {problem}")


class Verifier:
    def __init__(
        self,
        *,
        secret: str | None = None,
        jwks: str | None = None,
        issuer: str | None = None,
        audience: str | None = None,
    ) -> None:
        try:
            import jwt
        except ImportError:
            raise MissingExtra("server", "pyjwt") from None
        if (secret is None) == (jwks is None):
            raise InvalidInput("jwt_secret", "both_given", "give jwt_secret or jwt_jwks, not both")
        if secret is not None and len(secret.encode()) < SHORTEST_SECRET:
            raise InvalidInput("jwt_secret", "too_short", f"must have at least {SHORTEST_SECRET} bytes")
        self._jwt = jwt
        self._secret = secret
        self._set = None if jwks is None else KeySet(jwks)
        self._issuer = issuer
        self._audience = audience

    async def identify(self, text: str) -> Identity | None:
        """Return the user; None if the token is not valid. BadClaim: the application signs tokens that can't be
        used."""
        if len(text) > LONGEST_TOKEN:
            return None
        try:
            key = self._secret if self._set is None else await self._set.key(self._jwt.get_unverified_header(text))
            if key is None:
                return None
            claims: Mapping[str, Any] = self._jwt.decode(
                text,
                key,
                algorithms=["HS256"] if self._set is None else ["RS256", "ES256"],
                issuer=self._issuer,
                audience=self._audience,
                options={"require": ["exp", "sub"], "verify_exp": False, "verify_nbf": False, "verify_iat": False},
            )
        except self._jwt.InvalidAudienceError:
            what = "is not what jwt_audience says" if self._audience else "is given, but jwt_audience is not set here"
            raise BadClaim("aud", "wrong_audience", f"{what}: the token is for another service") from None
        except (self._jwt.PyJWTError, ValueError, TypeError, RecursionError):
            return None
        name = claims["sub"]
        if not is_valid_at(time.time(), claims) or not isinstance(name, str) or not is_name(name):
            return None
        return user({**claims, "id": name}, expires_at=datetime.fromtimestamp(claims["exp"], UTC))


def is_valid_at(now: float, claims: Mapping[str, Any]) -> bool:
    """True if the token is valid now. The library is not used for this: it accepts texts as times, and fails for some
    numbers."""
    for name in ("exp", "nbf", "iat"):
        moment = claims.get(name, now)
        is_number = isinstance(moment, int | float) and not isinstance(moment, bool)
        if not is_number or not 0 <= moment <= _LAST:  # also refuses NaN
            raise BadClaim(name, "bad_claim", "must be a number: seconds since 1970, before the year 10000")
    is_over = claims["exp"] <= now - _LEEWAY
    return not is_over and max(claims.get("nbf", 0), claims.get("iat", 0)) <= now + _LEEWAY


class KeySet:
    """Public keys by their ids. They are read again when they are old, or when a token has an unknown key."""

    def __init__(self, place: str) -> None:
        parts = urlsplit(place)
        loopback = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if parts.scheme == "http" and not loopback:
            raise InvalidInput("jwt_jwks", "not_https", "must be https://…, or a file")
        self._url = place if parts.scheme in ("http", "https") else None
        self._file = Path(place)
        self._keys: dict[str | None, Any] = {}
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def key(self, header: Mapping[str, Any]) -> Any:
        """Return the key of a token; None if there is no such key."""
        wanted = header.get("kid")
        if wanted in self._keys and time.monotonic() - self._read_at <= _FRESH:
            return self._keys[
                wanted
            ]  # a token with an invented key makes the server read again, but other requests don't wait
        async with self._lock:
            age = time.monotonic() - self._read_at
            if age > _FRESH or (wanted not in self._keys and age > _AGAIN):
                self._read_at = time.monotonic()
                try:
                    self._keys = await asyncio.to_thread(self._read)
                except (OSError, ValueError, HTTPException) as error:  # the known keys stay valid
                    log.error("the key set %s can't be read: %s", self._url or self._file, error)
        return self._keys.get(wanted)

    def _read(self) -> dict[str | None, Any]:
        import jwt

        if self._url is None:
            text = self._file.read_bytes()
        else:
            with urllib.request.build_opener(_NoDetours).open(self._url, timeout=5) as answer:
                text = answer.read(_LARGEST_SET)
        found = json.loads(text)
        listed = found.get("keys") if isinstance(found, dict) else None
        if not isinstance(listed, list):
            raise ValueError("it has no list of keys")
        keys: dict[str | None, Any] = {}
        for one in listed:
            if isinstance(one, dict) and one.get("kty") in ("RSA", "EC") and one.get("use", "sig") == "sig":
                try:
                    keys[one.get("kid")] = jwt.PyJWK(one)
                except (jwt.PyJWTError, ValueError, TypeError, KeyError):
                    continue  # not a key that we support; the other keys are used
        if listed and not keys:
            raise ValueError("none of its keys is one that we take")
        return keys


class _NoDetours(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they could lead to plain http, or to an internal address."""

    def redirect_request(self, *arguments: Any) -> None:
        return None
