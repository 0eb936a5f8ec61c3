"""Say in plain words what a value must be. msgspec itself names only its types."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Literal, NamedTuple

import msgspec

_AT = re.compile(r" - at `(?P<key>key(?:` in `| in ))?\$\.?(?P<path>.*)`\Z", re.DOTALL)
_NAMED = re.compile(r"(?P<what>unknown|missing required) field `(?P<name>.*)`", re.DOTALL)
_KINDS = re.compile(r"Expected `(?P<expected>[^`]*)`(?:, got `(?P<given>\w+)`)?(?P<rest>.*)", re.DOTALL)
_OTHERS = re.compile(r"Invalid |.*out of range")
_STEP = re.compile(r"[^.\[\]]+")
_REF = "#/{name}"
_ANY = "*"  # msgspec doesn't name the key of an object, or the place in a set

_TIME = "a time such as 2026-01-31T08:00:00Z"
# msgspec's names for what was given, and for what is expected where there is no schema to look at.
_GIVEN = {
    "null": "null", "bool": "a boolean", "int": "a whole number", "float": "a decimal number", "str": "a text",
    "array": "a list", "object": "an object",
}  # fmt: skip
_EXPECTED = {**_GIVEN, "null": "", "bool": "true or false", "float": "a number", "datetime": _TIME, "uuid": "a UUID"}
# The same for schemas.
_TYPES = {
    "boolean": "true or false", "integer": "a whole number", "number": "a number", "string": "a text",
    "object": "an object",
}  # fmt: skip
_FORMATS = {
    "date-time": _TIME, "date": "a date such as 2026-01-31", "duration": "a duration such as PT1H30M", "uuid": "a UUID",
    "decimal": "a number, or a text such as 1.50",
}  # fmt: skip


class Misfit(NamedTuple):
    """`path` is where; "" is the whole value. `problem` goes on behind a field's name and a colon."""

    path: str
    what: Literal["unknown", "missing", "wrong"]
    problem: str


def explain(error: msgspec.ValidationError, kind: Any) -> Misfit:
    """Return what is wrong with a value that should have been a `kind`."""
    text = str(error)
    at = _AT.search(text)
    path, text = at["path"] if at else "", _AT.sub("", text)
    if named := _NAMED.search(text):
        path = f"{path}.{named['name']}" if path else named["name"]
        if named["what"] == "unknown":
            return Misfit(path, "unknown", "there is no such field")
        return Misfit(path, "missing", f"is missing; it must be {_expected(kind, path) or 'there'}")
    wanted = "" if "datetime" in text else _expected(kind, path)  # of which a schema only says that it is a text
    if at and at["key"]:
        kinds = _KINDS.match(text)
        return Misfit(
            path, "wrong", f"has a key that is not {_by_name(kinds['expected']) if kinds else 'one of its type'}"
        )
    if kinds := _KINDS.match(text):
        wanted = wanted or _by_name(kinds["expected"]) or "null"
        given = f", not {_GIVEN.get(kinds['given'], kinds['given'])}" if kinds["given"] else ""
        return Misfit(path, "wrong", f"must be {wanted}{kinds['rest']}{given}")
    if _OTHERS.match(text):
        return Misfit(path, "wrong", f"must be {wanted or (_TIME if 'datetime' in text else 'another value')}")
    return Misfit(path, "wrong", text)  # the message of a class of the application


def _by_name(names: str) -> str:
    return " or ".join(filter(None, (_EXPECTED.get(name, name) for name in names.split(" | "))))


@cache
def _schemas(kind: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        [schema], components = msgspec.json.schema_components([kind], ref_template=_REF)
    except TypeError:  # a class of the application's own, which has no schema
        return {}, {}
    return schema, components


def _expected(kind: Any, path: str) -> str:
    """Describe the schema, without its limits: only an error about a limit names it."""
    schema, components = _schemas(kind)
    for step in _STEP.findall(path.replace("[...]", f"[{_ANY}]")):
        below = [_step(_resolved(one, components), step) for one in _alternatives(schema)]
        found = [one for one in below if one is not None]
        tags = [tag for one in found for tag in one.get("enum", ())]
        schema = {"enum": tags} if tags and all("enum" in one for one in found) else next(iter(found), {})
    return _words(schema, components)


def _resolved(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    return components[schema["$ref"].removeprefix("#/")] if "$ref" in schema else schema


def _step(schema: dict[str, Any], step: str) -> dict[str, Any] | None:
    if step == _ANY:
        found: Any = schema.get("additionalProperties") or schema.get("items")
    else:
        found = schema.get("items") if step.isdigit() else schema.get("properties", {}).get(step)
    return found if isinstance(found, dict) and found else None


def _alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return schema.get("anyOf") or [schema]


def _words(schema: dict[str, Any], components: dict[str, Any]) -> str:
    """Return the kinds without null, in words: a caller may leave out a value that may be null."""
    parts = [_one(_resolved(one, components), components) for one in _alternatives(schema)]
    return " or ".join(part for part in dict.fromkeys(parts) if part)


def _one(schema: dict[str, Any], components: dict[str, Any]) -> str:
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    if schema.get("contentEncoding") == "base64":
        return "a text in base64"
    if schema.get("type") == "array":
        inner = _words(schema.get("items") or {}, components)
        return f"a list, each entry {inner}" if inner else "a list"
    return _TYPES.get(schema.get("type", ""), "")
