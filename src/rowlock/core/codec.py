"""ONE encoder for payload, result and error text, so that every store keeps and returns exactly the same value.

Each database has its own edges: PostgreSQL refuses \\u0000, SQLite cuts text at NUL and turns 2**63 into a float,
msgspec writes NaN as null. This encoder refuses what any of them can't keep, and names the path of the offending value.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import msgspec

from rowlock.errors import InvalidInput

MAX_BYTES = 1 << 20
MAX_DEPTH = 64
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1

JSON = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_ESCAPED_NUL = b"\\u0000"


def encode_payload(payload: Mapping[str, Any] | None) -> str:
    """Return the canonical JSON text of a job's payload. None is an empty object."""
    if type(payload) is dict:
        return encode(payload, "payload") if payload else "{}"
    check_object(payload)
    return encode(dict(payload), "payload") if payload else "{}"


def check_object(payload: object) -> None:
    if type(payload) is not dict and payload is not None and not isinstance(payload, Mapping):
        raise InvalidInput("payload", "not_an_object", f"must be a JSON object (a dict), not {type(payload).__name__}")


def encode(value: Any, field: str) -> str:
    """Return the canonical JSON text of any value. Raise InvalidInput with the path of a wrong value in `field`."""
    if _is_usual(value, MAX_DEPTH):
        try:
            data = _encode(value)
        except UnicodeEncodeError:
            data = _ESCAPED_NUL  # refused as well
        if len(data) <= MAX_BYTES and _ESCAPED_NUL not in data:
            return data.decode()
    return _encode_checked(value, field)


def _encode_checked(value: Any, field: str) -> str:
    """Check every value, so that the error can name the one that is wrong."""
    root: _Path = (None, field)
    _check(value, root, MAX_DEPTH)
    try:
        data = _encode(value)
    except UnicodeEncodeError:
        path = _render(_find_surrogate(value, root) or root)
        raise InvalidInput(path, "lone_surrogate", "holds a lone surrogate, which is not valid Unicode") from None
    except TypeError:  # a subclass of a JSON type that msgspec doesn't know
        raise _not_json(root, value) from None
    if len(data) > MAX_BYTES:
        raise InvalidInput(
            field,
            "too_large",
            f"is {len(data):,} bytes as JSON, at most {MAX_BYTES:,} are allowed. "
            "Queue references, not blobs: store the data elsewhere and pass its id",
        )
    return data.decode()


def decode(text: str | bytes) -> Any:
    return _decode(text)


def clean_text(text: str, limit: int = MAX_BYTES) -> str:
    """Return a text that every store can keep: NUL and lone surrogates replaced, the middle cut out if it is too long.

    For errors and log lines, which must never be lost because of what is in them.
    """
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > limit:
        half = max(0, (limit - 64) // 2)
        head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore") if half else ""
        text = f"{head}\n… {len(data) - 2 * half:,} bytes left out …\n{tail}"
    return text.encode("utf-8", "replace").decode("utf-8")


def check_text(value: object, field: str, *, max_chars: int) -> str:
    """Return a short text from the caller (key, scope, reason, …), checked: every store can keep it."""
    if not isinstance(value, str):
        raise InvalidInput(field, "not_text", f"must be a string, not {type(value).__name__}")
    if not value or len(value) > max_chars:
        raise InvalidInput(field, "bad_length", f"must be 1 to {max_chars} characters, not {len(value)}")
    if "\0" in value:
        raise InvalidInput(field, "nul", "holds a NUL character (\\u0000)")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(field, "lone_surrogate", "holds a lone surrogate, which is not valid Unicode") from None
    return plain_text(value)


def plain_text(value: str) -> str:
    """Return the text as a plain str: not every encoder and driver takes a subclass of str."""
    return str.__str__(value)


def _is_usual(value: Any, depth_left: int) -> bool:
    """True if the value has plain JSON types within their limits. A quick look: NUL is found in the encoded text.
    If it is False, `_check` decides."""
    kind = type(value)
    if kind is dict:
        if not depth_left:
            return False
        for key, item in value.items():
            if type(key) is not str:
                return False
            kind = type(item)  # most values are text and numbers: this saves a call for each of them
            if kind is str or (kind is int and INT_MIN <= item <= INT_MAX):
                continue
            if not _is_usual(item, depth_left - 1):
                return False
        return True
    if kind is list:
        return depth_left > 0 and all(_is_usual(item, depth_left - 1) for item in value)
    if kind is int:
        return bool(INT_MIN <= value <= INT_MAX)
    return isfinite(value) if kind is float else kind is str or kind is bool or value is None


# Where a value stands: (parent, key or index). Rendered only when something is wrong with it.
_Path = tuple["_Path | None", str | int]


def _check(value: Any, path: _Path, depth_left: int) -> None:
    """Refuse values that one of the databases couldn't keep."""
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidInput(_render(path), "nul", "holds a NUL character (\\u0000)")
    elif isinstance(value, float):
        if not isfinite(value):
            raise InvalidInput(_render(path), "not_finite", f"is {value}, which JSON can't express; use null or text")
    elif isinstance(value, int):
        if not INT_MIN <= value <= INT_MAX:
            raise InvalidInput(_render(path), "integer_range", "is an integer beyond 64 bits; pass it as a string")
    elif isinstance(value, dict):
        if not depth_left:
            raise _too_deep(path)
        for key, item in value.items():
            if type(key) is not str:
                raise InvalidInput(_render(path), "key_not_text", f"has a key {key!r:.40} that is not a string")
            if "\0" in key:
                raise InvalidInput(_render(path), "nul", f"has a key {key!r:.40} with a NUL character (\\u0000)")
            _check(item, (path, key), depth_left - 1)
    elif isinstance(value, list | tuple):
        if not depth_left:
            raise _too_deep(path)
        for i, item in enumerate(value):
            _check(item, (path, i), depth_left - 1)
    elif value is not None:
        raise _not_json(path, value)


def _not_json(path: _Path, value: object) -> InvalidInput:
    kind = type(value)
    usual = f"is a {kind.__name__}, which is not a JSON value; convert it first"
    return InvalidInput(_render(path), "not_json", getattr(kind, "__not_json__", usual))


def _too_deep(path: _Path) -> InvalidInput:
    return InvalidInput(_render(path), "too_deep", f"is nested deeper than {MAX_DEPTH} levels")


def _render(path: _Path) -> str:
    parts: list[str] = []
    at: _Path | None = path
    while at is not None:
        at, step = at
        parts.append(f"[{step}]" if isinstance(step, int) else f".{step}")
    text = "".join(reversed(parts))[1:].encode("ascii", "backslashreplace").decode()
    return text if len(text) <= 120 else f"{text[:60]}…{text[-59:]}"


def _find_surrogate(value: Any, path: _Path) -> _Path | None:
    if isinstance(value, str):
        return None if _is_unicode(value) else path
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        if not all(map(_is_unicode, value)):
            return path
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    return next((found for key, item in items if (found := _find_surrogate(item, (path, key)))), None)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_storable(text: str) -> bool:
    """True if databases and answers can hold the text: it has no NUL and no lone surrogate."""
    return "\0" not in text and (text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text))
