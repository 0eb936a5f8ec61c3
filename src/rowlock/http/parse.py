"""Read JSON bodies and query strings into structs. A problem names the field that is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from rowlock.core.expected import explain
from rowlock.core.repeated import repeated_key
from rowlock.http.problems import Problem
from rowlock.http.request import Request

# Half of a surrogate pair, behind which there is no room for the other: msgspec says that the input was truncated.
_HALF_AT_END = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}.{0,5}\Z", re.DOTALL)
_BYTE = re.compile(r"\(byte (\d+)\)")

_LONGEST_NAME = 100  # characters of the client's own names in a problem

_decode = msgspec.json.Decoder().decode


def read_body(kind: Any, data: bytes) -> Any:
    """Return a `kind`. Its fields may be spelled in snake_case or camelCase, each in either way."""
    value = _parsed(data)
    _check_repeated(data, value)
    try:
        return msgspec.convert(_respelled(kind, value), kind)
    except msgspec.ValidationError as error:
        raise _refusal(error, kind, "body") from None


def read_object(data: bytes) -> dict[str, Any]:
    """Return a JSON object as it came. The caller checks its fields."""
    value = _parsed(data)
    _check_repeated(data, value)
    if not isinstance(value, dict):
        raise Problem("not_an_object", "the body must be a JSON object", field="body")
    return value


async def read_value(request: Request) -> Any:
    """Return the JSON value in the body, of any kind; None if there is no body."""
    if await request.is_empty():
        return None
    data = await request.body()
    value = _parsed(data)
    _check_repeated(data, value)
    return value


def _check_repeated(data: bytes, value: Any) -> None:
    try:
        twice = repeated_key(data, value)
    except RecursionError:
        raise _too_deep() from None
    if twice is not None:
        field = twice[:_LONGEST_NAME]
        raise Problem("duplicate_key", f"{field}: this key is there twice", field=field)


def _parsed(data: bytes) -> Any:
    try:
        return _decode(data)
    except msgspec.ValidationError:
        raise Problem("bad_value", "the body holds a number that is out of range", field="body") from None
    except msgspec.DecodeError as error:
        raise _not_json(str(error), data) from None
    except UnicodeDecodeError:
        raise Problem("not_utf8", "the body is not UTF-8", field="body") from None
    except RecursionError:
        raise _too_deep() from None


def _not_json(text: str, data: bytes) -> Problem:
    if "surrogate" in text or ("truncated" in text and _HALF_AT_END.search(data[-64:])):
        return Problem("lone_surrogate", "the body holds a lone surrogate, which is not valid Unicode", field="body")
    if "utf-8" in text.lower():
        return Problem("not_utf8", "the body is not UTF-8", field="body")
    at = _BYTE.search(text)
    where = f"it goes wrong near byte {at[1]}" if at else "it ends too early"
    return Problem("bad_json", f"the body is not JSON: {where}", field="body")


def _too_deep() -> Problem:
    return Problem("too_deep", "the body is nested too deeply", field="body")


def read_query(kind: Any, pairs: Sequence[tuple[str, str]]) -> Any:
    """Return a `kind`. Parameters that may come several times are lists in it."""
    several, snake = _lists(kind), spelling(kind).snake
    values: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for given, value in pairs:
        name = snake.get(given, given)
        if "\0" in given or "\0" in value:
            raise Problem("nul", "holds a NUL character", field=given.replace("\0", ""))
        if spelled.setdefault(name, given) != given:
            raise _both_spellings(name, spelled[name], given)
        if name in several:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise Problem("given_twice", f"{name:.40} is given twice", field=name)
        elif value.lower() == "null" and name in _not_texts(kind):  # for msgspec it would be as if it were not given
            raise Problem("bad_value", f"{name}: null is no value", field=name)
        elif ":" not in value and name in _times(kind):  # it would take a number, too
            raise Problem("bad_value", f"{name}: must be a time such as 2026-01-31T08:00:00Z", field=name)
        else:
            values[name] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _refusal(error, kind, "query") from None


def _refusal(error: msgspec.ValidationError, kind: Any, whole: str) -> Problem:
    """Return the problem for a value that does not fit. `whole`: its field, if no inner one is to blame."""
    misfit = explain(error, kind)
    field = misfit.path[:_LONGEST_NAME] or whole
    detail = f"{field}: {misfit.problem}"
    if misfit.what == "unknown":
        return Problem("unknown_field", detail, field=field)
    if misfit.what == "missing":
        return Problem("missing", detail, field=field)
    # Every value of a query is text, so don't say "not text".
    return Problem("bad_value", detail.partition(", not ")[0] if whole == "query" else detail, field=field)


# ── Two spellings of one name ──


class Spelling(Struct, frozen=True):
    """`snake`: the names of a shape by their camelCase, where it is another. `inner`: its fields that are shapes, or
    lists of shapes, with such names of their own. Everything else in a request is the caller's own, and not renamed."""

    snake: Mapping[str, str]
    inner: Mapping[str, Any]


@cache
def spelling(kind: type[Struct]) -> Spelling:
    names = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    hints = get_type_hints(kind)
    inner = {names[field]: shape for field in names if (shape := _shape_in(hints[field])) is not None}
    return Spelling(
        snake={camel(name): name for name in names.values() if camel(name) != name},
        inner={name: shape for name, shape in inner.items() if spelling(shape).snake or spelling(shape).inner},
    )


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _shape_in(hint: Any) -> Any:
    """Return the struct that a field holds, or holds a list of."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return hint
    return next((shape for part in get_args(hint) if (shape := _shape_in(part)) is not None), None)


def _respelled(kind: type[Struct], value: Any, path: str = "") -> Any:
    """Return the value with names in snake_case. msgspec refuses values of the wrong kind later."""
    if type(value) is not dict:
        return value
    known = spelling(kind)
    if not known.snake.keys().isdisjoint(value):
        value = renamed(known.snake, value, path)
    for name, shape in known.inner.items():
        below = value.get(name)
        if type(below) is list:
            value[name] = [_respelled(shape, one, f"{path}{name}[{n}].") for n, one in enumerate(below)]
        elif below is not None:
            value[name] = _respelled(shape, below, f"{path}{name}.")
    return value


def renamed(snake: Mapping[str, str], value: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return `value` with its names as `snake` has them. `path` comes before a name in a refusal."""
    named: dict[str, Any] = {}
    for given, item in value.items():
        name = snake.get(given, given)
        if name in named:
            other = next(one for one in value if snake.get(one, one) == name)
            raise _both_spellings(f"{path}{name}", other, given)
        named[name] = item
    return named


def _both_spellings(field: str, one: str, other: str) -> Problem:
    return Problem("given_twice", f"{field}: give {one} or {other}, not both", field=field)


# ── Kinds of parameters ──


@cache
def _lists(kind: Any) -> frozenset[str]:
    hints = get_type_hints(kind)
    return frozenset(name for name, hint in hints.items() if get_origin(hint) is tuple and len(get_args(hint)) == 2)


@cache
def _not_texts(kind: Any) -> frozenset[str]:
    """Return the optional parameters that are not texts."""
    return frozenset(name for name, some in _unions(kind) if type(None) in some and str not in some)


@cache
def _times(kind: Any) -> frozenset[str]:
    return frozenset(name for name, some in _unions(kind) if datetime in some)


def _unions(kind: Any) -> list[tuple[str, tuple[Any, ...]]]:
    hints = get_type_hints(kind)
    names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    return [(name, get_args(hints[field])) for field, name in names]
