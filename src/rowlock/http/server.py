"""The server of `rowlock serve` and `rowlock dev`: runs the application in uvicorn."""

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
from rowlock.http.authenticate import LOOPBACK
from rowlock.http.settings import ApiSettings
from rowlock.stores.postgres.keepalive import keep_alive

if TYPE_CHECKING:
    from rowlock.jobs import Jobs

log = logging.getLogger("rowlock.http")

_GRACE = 10  # seconds for open requests when the server stops
_MOST_CONNECTIONS = 2000
_SILENCE = 30.0  # seconds without an acknowledgement after which a client counts as gone


def api_settings(settings: ServerSettings) -> ApiSettings:
    """Return the API's settings. Refuse settings that would send passwords and tokens in plain text, unless
    insecure_http allows it."""
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
    same = {name: getattr(settings, name) for name in ApiSettings.__struct_fields__ if hasattr(settings, name)}
    return ApiSettings(**same | {"allowed_hosts": tuple(name.lower() for name in (*own, *settings.allowed_hosts))})


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def bind(settings: ServerSettings) -> socket.socket:
    """Return the listening socket. Called first, so that a taken port fails at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        bound = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        where = f"{settings.host}:{settings.port}"
        raise InvalidInput("port", "not_free", f"{where} can't be used: {error}; --port names another one") from None
    # Connections inherit it: the connection of a vanished client is closed, and its stream ends.
    keep_alive(bound, _SILENCE)
    return bound


async def serve(
    jobs: Jobs, settings: ServerSettings, bound: socket.socket, ready: Callable[[str, str | None], Awaitable[None]]
) -> None:
    """Serve until SIGTERM or Ctrl-C. `ready` gets the address, and the one-time link if there is no superuser yet."""
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
            api.stop()  # answers all waiting requests
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
