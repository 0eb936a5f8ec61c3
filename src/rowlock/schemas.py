"""JSON Schemas of payloads and results: made from type hints, and used to check payloads of topics without a task here.

The schemas are of draft 2020-12. jsonschema-rs knows all of its keywords and formats.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
from msgspec import inspect

from rowlock.core import codec
from rowlock.errors import InvalidInput

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def payload_schema(kind: Any, *, is_open: bool, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of the payloads that a handler takes. `kind`: a TypedDict of its arguments. `is_open`: it takes
    other fields, too. `defaults`: what it takes for fields that are missing."""
    schema = _schema_of(kind)
    schema.pop("title", None)
    schema["additionalProperties"] = is_open
    for name, default in defaults.items():
        field = schema.get("properties", {}).get(name)
        if isinstance(field, dict) and "default" not in field:
            try:
                plain = msgspec.to_builtins(default, str_keys=True)
                codec.encode(plain, name)
            except (TypeError, InvalidInput, msgspec.ValidationError):
                continue  # a default that is no JSON is for Python callers only
            field["default"] = plain
    return schema


def result_schema(hint: Any) -> dict[str, Any] | None:
    """Return the schema of what a handler returns; None if its annotation says nothing."""
    if hint is Any:
        return None
    try:
        return _schema_of(hint)
    except (TypeError, NotImplementedError):
        return None


def _schema_of(hint: Any) -> dict[str, Any]:
    """Return msgspec's schema of a type, with all definitions under $defs at the top."""
    (root,), definitions = msgspec.json.schema_components(
        [hint], schema_hook=_model_schema, ref_template="#/$defs/{name}"
    )
    _Details(definitions).add(msgspec.inspect.type_info(hint), root)
    for definition in [root, *definitions.values()]:
        definitions = definitions | _hoisted(definition)
    if set(root) == {"$ref"} and (name := root["$ref"].removeprefix("#/$defs/")) in definitions:
        root = definitions[name]
        if not _refers(definitions, name):
            definitions = {key: value for key, value in definitions.items() if key != name}
    return {**root, "$defs": definitions} if definitions else dict(root)


class _Details:
    """Adds to msgspec's schema what it leaves out, so that the schema accepts exactly what the type hints accept. See
    FORMATS. `definitions`: what the schema refers to."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._done: set[str] = set()

    def add(self, kind: inspect.Type, schema: dict[str, Any]) -> None:
        if (name := schema.get("$ref", "").removeprefix("#/$defs/")) in self._definitions:
            if name not in self._done:
                self._done.add(name)
                self.add(kind, self._definitions[name])
            return
        match kind:
            case inspect.Metadata():
                self.add(kind.type, schema)
            case inspect.DateTimeType(tz=None):
                schema["format"] = "datetime"
            case inspect.TimeType(tz=None):
                schema["format"] = "time-of-day"
            case inspect.TimeDeltaType():
                schema["format"] = "timedelta"
            case inspect.BytesType() | inspect.ByteArrayType() | inspect.MemoryViewType():
                schema["format"] = "base64"
            case inspect.DecimalType():
                del schema["type"], schema["format"]
                schema["anyOf"] = [{"type": "string", "format": "decimal"}, {"type": "number"}]
            case inspect.CollectionType():
                schema.pop("uniqueItems", None)  # a set is made of any list
                if isinstance(kind, inspect.SetType | inspect.FrozenSetType) and "items" not in schema:
                    schema["items"] = {"type": ["string", "number", "boolean", "null"]}
                self._add_to_member(kind.item_type, schema, "items")
            case inspect.TupleType():
                for inner, part in zip(kind.item_types, schema.get("prefixItems", ()), strict=False):
                    self.add(inner, part)
            case inspect.DictType():
                if (names := _names(kind.key_type)) is not None:
                    schema["propertyNames"] = names
                self._add_to_member(kind.value_type, schema, "additionalProperties")
            case inspect.UnionType():
                self._add_to_union(kind, schema)
            case inspect.StructType(array_like=True) | inspect.NamedTupleType():
                tagged = len(schema.get("prefixItems", ())) - len(kind.fields)
                for field, part in zip(kind.fields, schema.get("prefixItems", ())[tagged:], strict=False):
                    self.add(field.type, part)
            case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
                for field in kind.fields:
                    self._add_to_member(field.type, schema.get("properties", {}), field.encode_name)
            case _:
                pass  # msgspec's schema says all

    def _add_to_member(self, kind: inspect.Type, schema: dict[str, Any], name: str) -> None:
        if isinstance(member := schema.get(name), dict):
            self.add(kind, member)

    def _add_to_union(self, kind: inspect.UnionType, schema: dict[str, Any]) -> None:
        """Add details to the schema of a union. msgspec puts structs behind the other types, and null to the end."""
        structs = [one for one in kind.types if isinstance(one, inspect.StructType) and not one.array_like]
        others = [one for one in kind.types if one not in structs and not isinstance(one, inspect.NoneType)]
        options = schema.get("anyOf", [])
        for inner, part in zip(others, options, strict=False):
            self.add(inner, part)
        rest = options[len(others) :]
        for inner, part in zip(structs, rest[0].get("anyOf", rest) if rest else (), strict=False):
            self.add(inner, part)


def _names(kind: inspect.Type) -> dict[str, Any] | None:
    """Return the schema of an object's field names, which are texts; None: any text, or what msgspec has said."""
    match kind:
        case inspect.Metadata():
            return _names(kind.type)
        case inspect.IntType():
            return {"format": "integer-text"}
        case inspect.FloatType():
            return {"format": "number-text"}
        case inspect.DateTimeType(tz=None):
            return {"format": "datetime"}
        case inspect.TimeType(tz=None):
            return {"format": "time-of-day"}
        case inspect.DateType():
            return {"format": "date"}
        case inspect.TimeDeltaType():
            return {"format": "timedelta"}
        case inspect.UUIDType():
            return {"format": "uuid"}
        case inspect.DecimalType():
            return {"format": "decimal"}
        case inspect.BytesType():
            return {"format": "base64"}
        case inspect.EnumType():
            return {"enum": sorted(str(one.value) for one in kind.cls)}
        case inspect.LiteralType():
            return {"enum": sorted(map(str, kind.values))}
        case _:
            return None


def _fits(kind: Any) -> Callable[[str], bool]:
    def fits(text: str) -> bool:
        try:
            msgspec.convert({text: None}, dict[kind, None], str_keys=True)
        except (msgspec.ValidationError, UnicodeEncodeError):
            return False
        return True

    return fits


# Formats of texts that the type hints of a handler accept, and for which JSON Schema has no name. Other validators
# ignore them. `uuid` also accepts 32 digits without hyphens, as Python does.
FORMATS: dict[str, Callable[[str], bool]] = {
    "datetime": _fits(datetime),
    "time-of-day": _fits(time),
    "timedelta": _fits(timedelta),
    "base64": _fits(bytes),
    "decimal": _fits(Decimal),
    "integer-text": _fits(int),
    "number-text": _fits(float),
    "uuid": _fits(UUID),
}


_WORDS = {
    "datetime": "time such as 2026-01-31T08:00:00Z",
    "time-of-day": "time such as 08:00:00",
    "timedelta": "duration such as PT1H30M",
    "base64": "base64",
    "decimal": "number such as 1.50",
    "integer-text": "whole number",
    "number-text": "number",
}


def is_pydantic(hint: Any) -> bool:
    pydantic = sys.modules.get("pydantic")  # a program that has a model has imported pydantic
    return pydantic is not None and isinstance(hint, type) and issubclass(hint, pydantic.BaseModel)


def _model_schema(hint: type[Any]) -> dict[str, Any]:
    if is_pydantic(hint):
        schema: dict[str, Any] = hint.model_json_schema(ref_template="#/$defs/{model}")
        return schema
    raise NotImplementedError


def _hoisted(schema: Any) -> dict[str, Any]:
    """Take $defs out of the parts of a schema, where pydantic leaves them, and return them."""
    found: dict[str, Any] = {}
    if isinstance(schema, dict):
        found |= schema.pop("$defs", {})
        for value in [*schema.values(), *found.values()]:
            found |= _hoisted(value)
    elif isinstance(schema, list):
        for value in schema:
            found |= _hoisted(value)
    return found


def _refers(definitions: Mapping[str, Any], name: str) -> bool:
    return f'"#/$defs/{name}"' in msgspec.json.encode(definitions).decode()


def check_schema(schema: Mapping[str, Any], field: str = "schema") -> None:
    """Raise InvalidInput if it is no JSON Schema, or refers to anything outside."""
    import jsonschema_rs  # not above: a process without stored schemas does not load it

    try:
        jsonschema_rs.meta.validate({**schema, "$schema": DRAFT})
        Validator(schema)
    except jsonschema_rs.ValidationError as error:
        place = ".".join([field, *map(str, error.instance_path)])
        raise InvalidInput(place, "bad_schema", f"is no JSON Schema of draft 2020-12: {_cut(error.message)}") from None
    except BadSchema as error:
        raise InvalidInput(field, "bad_schema", f"is no JSON Schema of draft 2020-12: {error}") from None


def _refuse_outside(uri: str) -> Any:
    raise ValueError(f"{uri} is outside the schema: put it into $defs")


class BadSchema(ValueError):
    """It is no JSON Schema, or refers to anything outside."""


class Validator:
    """Checks payloads by a stored schema. Raise BadSchema if it can't."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        import jsonschema_rs

        self._kinds = jsonschema_rs.ValidationErrorKind
        try:
            self._validator = jsonschema_rs.Draft202012Validator(
                dict(schema), validate_formats=True, formats=FORMATS, retriever=_refuse_outside
            )
        except (ValueError, TypeError) as error:
            raise BadSchema(_cut(str(error))) from None

    def check(self, payload: Any) -> None:
        """Raise InvalidInput with the path of the field that doesn't fit, and what was expected."""
        if (misfit := self._misfit(payload, "payload")) is not None:
            raise InvalidInput(misfit[0], "bad_payload", misfit[1])

    def check_data(self, data: Any) -> None:
        """Check the data of a signal in the same way."""
        if (misfit := self._misfit(data, "data")) is not None:
            raise InvalidInput(misfit[0], "bad_data", misfit[1])

    def _misfit(self, payload: Any, root: str) -> tuple[str, str] | None:
        """Return the path of the field that doesn't fit, and what was expected. `root`: how the path begins."""
        try:
            if self._validator.is_valid(payload):
                return None
            error = self._telling(self._validator.iter_errors(payload))
        except (ValueError, TypeError, RecursionError):
            codec.encode(payload, root)  # raises an error that names the value that is no JSON
            raise
        path = root + "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in error.instance_path)
        match error.kind:
            case self._kinds.Required(property=name):
                path, problem = f"{path}.{name}", "is missing"
            case self._kinds.AdditionalProperties(unexpected=names):
                path, problem = f"{path}.{names[0]}", "there is no such field"
            case self._kinds.PropertyNames(error=wrong):
                problem = f"has a key that does not fit: {self._problem(wrong)}"
            case _:
                problem = self._problem(error)
        return path, problem

    def _problem(self, error: Any) -> str:
        given = _cut(msgspec.json.encode(error.instance).decode())
        match error.kind:
            case self._kinds.AnyOf(context=context) | self._kinds.OneOfNotValid(context=context):
                types = [one.kind.types for one in self._of_type(error, context)]
                if len(types) < len(context):
                    return f"{given} fits no alternative of the schema"
                named = dict.fromkeys(f'"{name}"' for one in types for name in one)
                return f"{given} is not of type {' or '.join(named)}"
            case self._kinds.Format(format=name) if name in _WORDS:
                return f"{given} is no {_WORDS[name]}"
            case _:
                return _cut(error.message)

    def _telling(self, errors: Iterable[Any]) -> Any:
        """Return the error that says the most: the deepest one. In a choice, that of the alternative that is meant: the
        only one whose type and tag fit."""
        error = max(errors, key=lambda one: len(one.instance_path))
        match error.kind:
            case self._kinds.AnyOf(context=context) | self._kinds.OneOfNotValid(context=context):
                meant = [one for one in context if not self._of_type(error, [one]) and not self._is_tagged(one)]
                return self._telling(meant[0]) if len(meant) == 1 else error
            case _:
                return error

    def _of_type(self, error: Any, alternatives: Iterable[Any]) -> list[Any]:
        """Return the errors that say that the whole value has the wrong type."""
        return [
            one
            for alternative in alternatives
            for one in alternative
            if one.instance_path == error.instance_path and isinstance(one.kind, self._kinds.Type)
        ]

    def _is_tagged(self, alternative: Iterable[Any]) -> bool:
        """True if a constant differs: the value is meant for another alternative."""
        return any(isinstance(one.kind, self._kinds.Constant | self._kinds.Enum) for one in alternative)


def _cut(message: str) -> str:
    """Return the validator's own message, cut: it repeats the value, which may be long."""
    return message if len(message) <= 300 else f"{message[:140]} … {message[-140:]}"
