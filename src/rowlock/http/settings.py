"""Settings of the server: those that belong to the machine and its secrets, not to the database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from rowlock.access.identity import Identity
from rowlock.access.jwt import Verifier
from rowlock.access.public_url import check_public_url, origin
from rowlock.errors import InvalidInput
from rowlock.http.request import Request

Hook = Callable[[Request], Awaitable[Identity | Mapping[str, Any] | None] | Identity | Mapping[str, Any] | None]


class ApiSettings(Struct, frozen=True, kw_only=True):
    """`allowed_hosts`: names that the Host header may have, without port; None: any, because the application that
    mounts this API checks it. `origins`: other origins whose pages may call (CORS). `public_url`: the URL that
    browsers use, if there is a proxy. `read_only`: refuse all changes. `insecure_http`: allow passwords over plain
    http. `authenticate`: the application's own hook; returns an Identity, claims with an `id`, or None."""

    allowed_hosts: tuple[str, ...] | None = None
    origins: tuple[str, ...] = ()
    public_url: str | None = None
    read_only: bool = False
    insecure_http: bool = False
    jwt_secret: str | None = None
    jwt_jwks: str | None = None
    jwt_issuer: str | None = None
    jwt_audience: str | None = None
    authenticate: Hook | None = None

    def __post_init__(self) -> None:
        for one in self.origins:
            scheme, sign, rest = one.partition("://")
            if scheme not in ("http", "https") or not sign or not rest or "/" in rest or "*" in rest:
                raise InvalidInput("origins", "bad_origin", f"{one!r:.80} is not an origin: https://app.example.com")
        if self.public_url is not None:
            check_public_url(self.public_url)
        self.verifier()  # refuse a bad secret here, not at the first request

    @property
    def own_origin(self) -> str | None:
        """Return the origin of our own page; None: the one that the request names."""
        return None if self.public_url is None else origin(self.public_url)

    def __repr__(self) -> str:  # the default one would show the secret
        return (
            f"ApiSettings(allowed_hosts={self.allowed_hosts!r}, origins={self.origins!r}, read_only={self.read_only})"
        )

    def verifier(self) -> Verifier | None:
        if self.jwt_secret is None and self.jwt_jwks is None:
            return None
        return Verifier(secret=self.jwt_secret, jwks=self.jwt_jwks, issuer=self.jwt_issuer, audience=self.jwt_audience)
