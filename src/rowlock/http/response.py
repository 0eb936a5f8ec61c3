"""An answer."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

_encode = msgspec.json.Encoder().encode


class Response(Struct):
    body: bytes = b""
    status: int = 200
    media: str = "application/json"
    headers: list[tuple[str, str]] = []


def answer(value: Any, status: int = 200) -> Response:
    return Response(_encode(value), status)


def nothing() -> Response:
    return Response(status=204, media="")
