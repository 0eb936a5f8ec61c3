"""The answer of a handler."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

_encode = msgspec.json.Encoder().encode


class Response(Struct):
    """`stream`: parts to send instead of the body. `ended`: called at the end, also after an error."""

    body: bytes = b""
    status: int = 200
    media: str = "application/json"
    headers: list[tuple[str, str]] = []
    stream: Callable[[], AsyncGenerator[bytes, None]] | None = None
    ended: Callable[[], None] | None = None


def answer(value: Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Response:
    """Return the answer with this value; None: without any content."""
    if value is None:
        return Response(status=204, media="", headers=[*headers])
    return Response(_encode(value), status, headers=[*headers])
