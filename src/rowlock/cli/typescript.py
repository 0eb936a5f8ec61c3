"""TypeScript types from JSON Schemas: of payloads and results, and of the HTTP API (tools/js_types.py)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rowlock.core.templates import Stored

_HEAD = "// Written by `rowlock templates types`. Do not edit it: run the command again.\n"
_IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*\Z")
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def types(templates: Sequence[Stored]) -> str:
    """Return a module: an interface for each topic and version, and `Topics` with the newest enabled versions."""
    names = _Names()
    parts = [_HEAD]
    topics: list[str] = []
    newest: dict[str, tuple[int, str, str]] = {}
    for stored in sorted(templates, key=lambda one: (one.template.topic, one.template.version)):
        template = stored.template
        name = names.unused(f"{pascal(template.topic)}V{template.version}")
        note = template.description or template.title
        payload = _declared(names, f"{name}Payload", template.schema, parts, note, f"{template.id}: the payload")
        result = _declared(names, f"{name}Result", template.result, parts, None, f"{template.id}: the result")
        parts.append(f"export interface {name} {{\n  payload: {payload};\n  result: {result};\n}}\n")
        if stored.enabled:
            newest[template.topic] = template.version, name, note or ""
    for topic, (version, name, note) in newest.items():
        said = f"{note.rstrip('.')}. Version {version}." if note else f"Version {version}."
        topics += [
            *_comment(said, "  "),
            f'  {_text(topic)}: {{ payload: {name}["payload"]; result: {name}["result"] }};',
        ]
    parts.append("\n".join(["export interface Topics {", *topics, "}"]) + "\n")
    return "\n".join(parts)


class _Names:
    """Names of the module that are in use."""

    def __init__(self) -> None:
        self._used = {"Topics"}

    def unused(self, name: str) -> str:
        n, free = 1, name
        while free in self._used:
            n += 1
            free = f"{name}_{n}"
        self._used.add(free)
        return free


def _declared(
    names: _Names, name: str, schema: Mapping[str, Any] | None, parts: list[str], note: str | None, what: str
) -> str:
    """Declare a type for a schema, and types for its $defs. Return its name; without a schema, `unknown`."""
    if schema is None:
        return "unknown"
    own = names.unused(name)
    definitions = schema.get("$defs", {})
    refs = {"#": own} | {_pointer(key): names.unused(f"{name}{pascal(key)}") for key in definitions}
    parts.append(declaration(own, schema, refs, [what, *([note] if note else [])]))
    for key, one in definitions.items():
        parts.append(declaration(refs[_pointer(key)], one, refs, []))
    return own


def _pointer(key: str) -> str:
    return "#/$defs/" + key.replace("~", "~0").replace("/", "~1")


def declaration(name: str, schema: Any, refs: Mapping[str, str], notes: list[str]) -> str:
    """Return an exported interface, or a type if the schema is no object. `refs` has the type's name for each $ref."""
    said = schema.get("description") if isinstance(schema, Mapping) else None
    comment = _comment("\n".join([*notes, *([said] if said and said not in notes else [])]), "")
    text = _type(schema, refs, "")
    is_object = isinstance(schema, Mapping) and text.startswith("{") and _ends_at(text) == len(text)
    head = f"export interface {name} {text}" if is_object else f"export type {name} = {text};"
    return "\n".join([*comment, head]) + "\n"


def _ends_at(text: str) -> int:
    """Return where the first brace of the text is closed. Braces in quotes don't count."""
    depth = 0
    for found in re.finditer(r'"(?:[^"\\]|\\.)*"|/\*.*?\*/|[{}]', text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0 and found[0] == "}":
            return found.end()
    return -1


def _type(schema: Any, refs: Mapping[str, str], indent: str) -> str:
    if not isinstance(schema, Mapping):
        return "never" if schema is False else "unknown"
    parts = list(dict.fromkeys(part for part in _parts(schema, refs, indent) if part != "unknown"))
    return " & ".join(_grouped(part) if len(parts) > 1 else part for part in parts) or "unknown"


def _parts(schema: Mapping[str, Any], refs: Mapping[str, str], indent: str) -> Iterator[str]:
    """Yield the types that a value has all at once."""
    if "$ref" in schema:
        yield refs.get(str(schema["$ref"]), "unknown")
    if "const" in schema:
        yield _literal(schema["const"])
    elif "enum" in schema:
        yield _union(_literal(value) for value in schema["enum"])
    elif any(name in schema for name in ("type", "properties", "items", "prefixItems")):
        yield _by_kind(schema, refs, indent)
    for name in ("anyOf", "oneOf"):
        if name in schema:
            yield _union(_type(one, refs, indent) for one in schema[name])
    for one in schema.get("allOf", ()):
        yield _type(one, refs, indent)


def _by_kind(schema: Mapping[str, Any], refs: Mapping[str, str], indent: str) -> str:
    kinds = schema.get("type", "object" if "properties" in schema else "array")
    one_of = []
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        match kind:
            case "object":
                one_of.append(_object(schema, refs, indent))
            case "array":
                one_of.append(_array(schema, refs, indent))
            case _:
                one_of.append(_PLAIN.get(kind, "unknown"))
    if schema.get("nullable") is True:
        one_of.append("null")
    return _union(one_of)


def _array(schema: Mapping[str, Any], refs: Mapping[str, str], indent: str) -> str:
    rest = schema.get("items", True)
    first = [_type(one, refs, indent) for one in schema.get("prefixItems", ())]
    if not first:
        return f"{_grouped(_type(rest, refs, indent))}[]"
    least = schema.get("minItems", 0)
    members = [one if n < least else f"{_grouped(one)}?" for n, one in enumerate(first)]
    if rest is not False and schema.get("maxItems") != len(first):
        members.append(f"...{_grouped(_type(rest, refs, indent))}[]")
    return f"[{', '.join(members)}]"


def _object(schema: Mapping[str, Any], refs: Mapping[str, str], indent: str) -> str:
    fields = schema.get("properties", {})
    required = set(schema.get("required", ()))
    others = schema.get("additionalProperties", True)
    if not fields:
        return "Record<string, never>" if others is False else f"Record<string, {_type(others, refs, indent)}>"
    inner = indent + "  "
    lines = []
    for name, field in fields.items():
        if isinstance(field, Mapping):
            lines += _comment(_said(field), inner)
        mark = "" if name in required else "?"
        lines.append(f"{inner}{_property(name)}{mark}: {_type(field, refs, inner)};")
    if others is not False and "additionalProperties" in schema:
        lines.append(f"{inner}[name: string]: unknown;")  # fields of any type must fit it
    return "\n".join(["{", *lines, f"{indent}}}"])


def _said(field: Mapping[str, Any]) -> str:
    said = [str(field["description"])] if field.get("description") else []
    if "default" in field:
        said.append(f"Default: {_literal(field['default'])}")
    return "\n".join(said)


def _comment(text: str, indent: str) -> list[str]:
    lines = [line.strip().replace("*/", "* /") for line in text.splitlines()]
    if not any(lines):
        return []
    if len(lines) == 1:
        return [f"{indent}/** {lines[0]} */"]
    return [f"{indent}/**", *(f"{indent} * {line}".rstrip() for line in lines), f"{indent} */"]


def _union(kinds: Iterable[str]) -> str:
    different = list(dict.fromkeys(kinds))
    if "unknown" in different:
        return "unknown"
    return " | ".join(different) or "never"


def _grouped(text: str) -> str:
    """Return the type in parentheses if it has several parts."""
    return f"({text})" if re.search(r"[|&]", re.sub(r'"(?:[^"\\]|\\.)*"', "", text)) else text


def _literal(value: Any) -> str:
    """Return a JSON value as a literal type of TypeScript. Only lists and objects are written differently."""
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {'; '.join(f'{_property(name)}: {_literal(one)}' for name, one in value.items())} }}"
    return _text(value)


def _property(name: str) -> str:
    return name if _IDENTIFIER.match(name) else _text(name)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode().replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def pascal(text: str) -> str:
    """Return the words of a text as a name in PascalCase."""
    words = re.findall(r"[A-Za-z0-9]+", text)
    name = "".join(word[0].upper() + word[1:] for word in words)
    return name if name and not name[0].isdigit() else f"T{name}"
