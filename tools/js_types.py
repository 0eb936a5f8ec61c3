"""Writes the types of the HTTP API in TypeScript, from docs/openapi.json: those that the npm package uses, and all of
them for the page. With --check it exits with 1 if a file is out of date."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rowlock.cli.typescript import declaration, pascal

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "openapi.json"
PACKAGE = ROOT / "js" / "src" / "api.ts"
PAGE = ROOT / "ui" / "src" / "lib" / "shapes.ts"
IMPORT = re.compile(r'import type \{([^}]*)\} from "[./]*/api\.ts"')
HEAD = "// The shapes of the HTTP API. `make format` writes this file from docs/openapi.json. Do not edit it.\n"
PREFIX = "#/components/schemas/"
TIME = {"$ref": f"{PREFIX}Time"}

JSON = dict[str, Any]


def types(document: JSON, wanted: set[str] | None = None) -> str:
    """Return a module: a type for each schema, and one for the query of each operation that takes parameters. With
    `wanted`, only these types and those that they refer to."""
    schemas: JSON = document["components"]["schemas"]
    used = set(schemas) if wanted is None else _reached(schemas, wanted)
    refs = {PREFIX + name: _name(name) for name in schemas} | {PREFIX + "Time": "Time"}
    parts = [HEAD, declaration("Time", {"type": "string", "description": "RFC 3339, in UTC."}, refs, [])]
    parts += [declaration(_name(name), _told(schemas[name]), refs, []) for name in schemas if name in used]
    for name, address, query in _queries(document):
        if wanted is None or name in wanted:
            parts.append(declaration(name, _told(query), refs, [f"The query of {address}"]))
    return "\n".join(parts)


def imported() -> set[str]:
    """Return the names of the types that the sources of the package import."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "js" / "src").rglob("*.ts")]
    lists = [names for text in sources for names in IMPORT.findall(text)]
    return {name.split()[0] for names in lists for name in names.split(",") if name.strip()}


def _queries(document: JSON) -> Iterator[tuple[str, str, JSON]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            fields = {one["name"]: one["schema"] for one in operation.get("parameters", ()) if one["in"] == "query"}
            if fields:
                name = f"{pascal(operation['operationId'].replace('_', ' '))}Query"
                yield name, f"{method.upper()} {path}", {"type": "object", "properties": fields}


def _reached(schemas: JSON, wanted: set[str]) -> set[str]:
    """Return the names of the schemas of these types, and of those that they refer to."""
    found: set[str] = set()
    todo = [name for name in schemas if _name(name) in wanted]
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            todo += _refs(schemas[name])
    return found


def _refs(anything: Any) -> Iterator[str]:
    if isinstance(anything, list):
        for one in anything:
            yield from _refs(one)
    elif isinstance(anything, dict):
        for name, one in anything.items():
            if name == "$ref" and one.startswith(PREFIX):
                yield one.removeprefix(PREFIX)
            else:
                yield from _refs(one)


def _name(schema: str) -> str:
    """Return the name of a type. A schema has its module in its name if two modules have one of that name."""
    *modules, name = schema.split(".")
    return name if not modules or modules[-1] == "shapes" else pascal(modules[-1]) + name


def _told(schema: Any) -> Any:
    """Return the schema with `Time` for times, and without defaults that only say that a field may be left out."""
    if isinstance(schema, list):
        return [_told(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "date-time":
        return {**TIME, **{name: schema[name] for name in schema.keys() & {"description"}}}
    return {name: _told(one) for name, one in schema.items() if name != "default" or one not in (None, [], {})}


def main() -> int:
    document = json.loads(DOCUMENT.read_bytes())
    files = {PACKAGE: types(document, imported()), PAGE: types(document)}
    if sys.argv[1:] == ["--check"]:
        stale = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run `make format`", file=sys.stderr)
        return 1 if stale else 0
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
