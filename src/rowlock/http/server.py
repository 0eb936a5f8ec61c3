"""The server of `rowlock serve` and `rowlock dev`: uvicorn around the application, until it is told to stop."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rowlock.access import superusers
from rowlock.config import ServerSettings
from rowlock.errors import InvalidInput, MissingExtra
from rowlock.http.app import Api
from rowlock.http.doorkeeper import LOOPBACK
from rowlock.http.settings import ApiSettings
from rowlock.stores.postgres.keepalive import keep_alive

if TYPE_CHECKING:
    from rowlock.jobs import Jobs

log = logging.getLogger("rowlock.http")

_GRACE = 10  # seconds for requests that are under way when it is told to stop
_MOST_CONNECTIONS = 2000
_SILENCE = 30.0  # seconds after which a client that acknowledges nothing is gone


def api_settings(settings: ServerSettings) -> ApiSettings:
    """Refuses what would put passwords and tokens on the network in plain text without anyone having said so."""
    own = (*LOOPBACK, settings.host.lower()) if is_loopback(settings.host) else settings.allowed_hosts
    if not is_loopback(settings.host):
        if not (settings.certificate or settings.trusted_proxies or settings.insecure_http):
            raise InvalidInput(
                "host",
                "exposed",
                f"{settings.host} is reachable by others: give certificate and certificate_key, or trusted_proxies "
                "(who ends TLS in front of this), or say insecure_http",
            )
        if not settings.allowed_hosts:
            text = "say by which names this server is called (the Host header), such as jobs.example.com"
            raise InvalidInput("allowed_hosts", "missing", text)
    return ApiSettings(
        allowed_hosts=tuple(name.lower() for name in (*own, *settings.allowed_hosts)),
        origins=settings.origins,
        public_url=settings.public_url,
        read_only=settings.read_only,
        insecure_http=settings.insecure_http,
        jwt_secret=settings.jwt_secret,
        jwt_jwks=settings.jwt_jwks,
        jwt_issuer=settings.jwt_issuer,
        jwt_audience=settings.jwt_audience,
    )


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def bind(settings: ServerSettings) -> socket.socket:
    """Before anything else, so that a port that is taken is said at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        bound = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        where = f"{settings.host}:{settings.port}"
        raise InvalidInput("port", "not_free", f"{where} can't be used: {error}; --port names another one") from None
    # Connections inherit it: one whose client has vanished without a word is closed, and its stream ends.
    keep_alive(bound, _SILENCE)
    return bound


async def serve(
    jobs: Jobs, settings: ServerSettings, bound: socket.socket, ready: Callable[[str, str | None], Awaitable[None]]
) -> None:
    """Until SIGTERM or Ctrl-C. `ready` is told the address, and the one-time link if nobody has an account yet."""
    try:
        import uvicorn
    except ImportError:
        raise MissingExtra("server", "uvicorn") from None
    api = Api(jobs, api_settings(settings))

    link = await superusers.first_link(await jobs._store()) if not settings.read_only else None
    address = _address(settings, bound)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                await ready(address, None if link is None else f"{address}/_/setup#{link.text}")

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            api.stop()  # whoever waits for something is told how it stands, now
            await super().shutdown(sockets)

    options: dict[str, Any] = {}
    if settings.certificate:
        options = {"ssl_certfile": settings.certificate, "ssl_keyfile": settings.certificate_key}
    config = uvicorn.Config(
        api,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_graceful_shutdown=_GRACE,
        limit_concurrency=_MOST_CONNECTIONS,
        ws="none",
        **options,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    await Server(config).serve(sockets=[bound])


def _address(settings: ServerSettings, bound: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return settings.public_url or f"{'https' if settings.certificate else 'http'}://{host}:{bound.getsockname()[1]}"
