"""TCP keep-alive: the kernel finds out that the other host is gone.

A host that has lost its power closes no connection. Without keep-alive, a client would wait for its reply for ever. A
statement that was not acknowledged would be sent again and again for a quarter of an hour.
"""

from __future__ import annotations

import math
import socket
from typing import Any


def seconds_of(silence: float) -> tuple[int, int, int]:
    """Return the seconds until the first probe and between probes, and their number: about `silence` seconds in all."""
    idle = max(1, round(silence / 2))
    interval = max(1, round(silence / 5))
    return idle, interval, max(1, math.ceil((silence - idle) / interval))


def keep_alive(sock: Any, silence: float) -> None:
    """Set the options that the platform has on a connected socket. 0: leave the system's settings."""
    if not silence or sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    idle, interval, count = seconds_of(silence)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for names, value in (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), idle),  # the second is the name on macOS
        (("TCP_KEEPINTVL",), interval),
        (("TCP_KEEPCNT",), count),
        # Keep-alive sends no probes while sent data is not acknowledged: this limit holds then.
        (("TCP_USER_TIMEOUT",), math.ceil(silence * 1000)),
    ):
        option = next((getattr(socket, name) for name in names if hasattr(socket, name)), None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def for_libpq(silence: float) -> dict[str, Any]:
    """Return the same options as parameters for libpq, which ignores those that the platform does not have."""
    if not silence:
        return {}
    idle, interval, count = seconds_of(silence)
    return {
        "keepalives": 1,
        "keepalives_idle": idle,
        "keepalives_interval": interval,
        "keepalives_count": count,
        "tcp_user_timeout": math.ceil(silence * 1000),
    }
