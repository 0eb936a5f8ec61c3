"""JSON Schemas of payloads and results: made from type hints, and used to check payloads of topics without a task here.

The schemas are of draft 2020-12. jsonschema-rs knows all of its keywords and formats.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

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
    """msgspec's schema of a type, with all definitions under $defs at the top."""
    (root,), definitions = msgspec.json.schema_components(
        [hint], schema_hook=_model_schema, ref_template="#/$defs/{name}"
    )
    for definition in [root, *definitions.values()]:
        definitions = definitions | _hoisted(definition)
    if set(root) == {"$ref"} and (name := root["$ref"].removeprefix("#/$defs/")) in definitions:
        root = definitions[name]
        if not _refers(definitions, name):
            definitions = {key: value for key, value in definitions.items() if key != name}
    return {**root, "$defs": definitions} if definitions else dict(root)


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


def _refuse_outside(uri: str) -> Any:
    raise ValueError(f"{uri} is outside the schema: put it into $defs")


class Validator:
    """Checks payloads by a stored schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        import jsonschema_rs

        self._kinds = jsonschema_rs.ValidationErrorKind
        self._validator = jsonschema_rs.Draft202012Validator(
            dict(schema), validate_formats=True, retriever=_refuse_outside
        )

    def check(self, payload: Mapping[str, Any]) -> None:
        """Raise InvalidInput with the path of the field that doesn't fit, and what was expected."""
        if self._validator.is_valid(payload):
            return
        # The deepest error says the most.
        error = max(self._validator.iter_errors(payload), key=lambda one: len(one.instance_path))
        path = "payload" + "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in error.instance_path)
        match error.kind:
            case self._kinds.Required(property=name):
                path, problem = f"{path}.{name}", "is missing"
            case self._kinds.AdditionalProperties(unexpected=names):
                path, problem = f"{path}.{names[0]}", "there is no such field"
            case _:
                problem = _cut(error.message)
        raise InvalidInput(path, "bad_payload", problem)


def _cut(message: str) -> str:
    """The validator's own words. They repeat the value, which may be long."""
    return message if len(message) <= 300 else f"{message[:140]} … {message[-140:]}"
