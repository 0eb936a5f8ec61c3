"""From JSON and query strings to checked values; what can't be read names the field."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from rowlock.http.problems import Problem

_AT = re.compile(r" - at `(?:key in )?\$\.?(?P<path>.*)`\Z", re.DOTALL)
# Half of a surrogate pair, behind which there is no room for the other: msgspec says that the input was truncated.
_HALF_AT_END = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}.{0,5}\Z", re.DOTALL)
_NAMED = re.compile(r"(?:unknown|missing required) field `(?P<name>.*)`", re.DOTALL)


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def read_body(kind: Any, data: bytes) -> Any:
    try:
        return _decoder(kind).decode(data)
    except msgspec.ValidationError as error:
        raise bad(error, "body") from None
    except msgspec.DecodeError as error:
        text = str(error)
        if "surrogate" in text or ("truncated" in text and _HALF_AT_END.search(data[-64:])):
            problem = "the body holds a lone surrogate, which is not valid Unicode"
            raise Problem("lone_surrogate", problem, field="body") from None
        code = "not_utf8" if "utf-8" in text.lower() else "bad_json"
        raise Problem(code, f"the body is not JSON: {text:.200}", field="body") from None
    except UnicodeDecodeError:
        raise Problem("not_utf8", "the body is not UTF-8", field="body") from None
    except RecursionError:
        raise Problem("too_deep", "the body is nested too deeply", field="body") from None


def read_query(kind: Any, pairs: Sequence[tuple[str, str]]) -> Any:
    """A name that may come several times is a list in `kind`."""
    several = _lists(kind)
    values: dict[str, Any] = {}
    for name, value in pairs:
        if "\0" in name or "\0" in value:
            raise Problem("nul", "holds a NUL character", field=name.replace("\0", ""))
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
        raise bad(error, "query") from None


@cache
def _lists(kind: Any) -> frozenset[str]:
    hints = get_type_hints(kind)
    return frozenset(name for name, hint in hints.items() if get_origin(hint) is tuple and len(get_args(hint)) == 2)


@cache
def _not_texts(kind: Any) -> frozenset[str]:
    """Parameters that are no texts and may be left out."""
    return frozenset(name for name, some in _unions(kind) if type(None) in some and str not in some)


@cache
def _times(kind: Any) -> frozenset[str]:
    return frozenset(name for name, some in _unions(kind) if datetime in some)


def _unions(kind: Any) -> list[tuple[str, tuple[Any, ...]]]:
    hints = get_type_hints(kind)
    names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    return [(name, get_args(hints[field])) for field, name in names]


def bad(error: msgspec.ValidationError, whole: str) -> Problem:
    text = str(error)
    at, named = _AT.search(text), _NAMED.search(_AT.sub("", text))
    steps = [step for step in (at["path"] if at else "", named["name"] if named else "") if step]
    field = ".".join(steps) or whole
    problem = _AT.sub("", text)
    problem = problem[0].lower() + problem[1:]
    code = "unknown_field" if "unknown field" in text else "missing" if "missing required" in text else "bad_value"
    return Problem(code, f"{field[:100]}: {problem:.300}", field=field[:100])
