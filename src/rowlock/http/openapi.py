"""OpenAPI 3.1, made from the table of routes and the shapes that they read and write."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from rowlock import __version__
from rowlock.access.settings import GRANTED_BY
from rowlock.http import shapes
from rowlock.http.problems import TITLES, ProblemBody
from rowlock.http.routes import Access, Route

_REF = "#/components/schemas/{name}"


@cache
def text() -> bytes:
    return msgspec.json.format(msgspec.json.encode(document(), order="sorted"), indent=1) + b"\n"


def document() -> dict[str, Any]:
    from rowlock.http.app import ROUTES

    routes = [route for route in ROUTES if route.documented]
    shapes = [shape for route in routes for shape in (route.body, *route.answers) if shape is not None]
    _, components = msgspec.json.schema_components([*shapes, ProblemBody], ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = route.path.replace("*}", "}")
        paths.setdefault(path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rowlock",
            "version": __version__,
            "description": "Jobs that live in your own database. Requests are camelCase, answers snake_case; times are "
            "RFC 3339 in UTC, durations seconds; errors are problem+json.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API token, or the application's JWT.",
                },
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "rowlock_session",
                    "description": "By logging in.",
                },
            },
        },
        "security": [{"bearer": []}, {"session": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "description": f"Who may: {_who(route.access)}.",
        "tags": [route.path.split("/")[2] if route.path.startswith("/api/") else "service"],
        "responses": _responses(route),
    }
    if route.access.kind in ("probe", "public"):
        told["security"] = []
    elif route.access.kind in ("enqueue", "jobs"):
        told["security"] = [{}, {"bearer": []}, {"session": []}]  # a rule may let everyone
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in route.parameters
    ]
    if route.query is not None:
        parameters += _query(route.query)
    if parameters:
        told["parameters"] = parameters
    if route.body is not None:
        told["requestBody"] = {
            "required": not route.body_optional,
            "content": {"application/json": {"schema": _ref(route.body)}},
        }
    return told


def _ref(shape: Any) -> dict[str, Any]:
    return {"$ref": _REF.format(name=shape.__name__)}


def _who(access: Access) -> str:
    match access.kind:
        case "probe" | "page" | "public":
            return "everyone"
        case "known":
            return "whoever is logged in or has a token"
        case "enqueue":
            return "superusers, tokens with the scope enqueue, and whom enqueue_rule lets"
        case "jobs":
            rules = " or ".join(GRANTED_BY[access.scope])
            return f"superusers, tokens with the scope {access.scope}, and whom {rules} lets"
        case "scope":
            return f"superusers, and tokens with the scope {access.scope}"


def _query(shape: Any) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([shape], ref_template=_REF)
    properties = components[shape.__name__]["properties"]
    return [
        {"name": name, "in": "query", "required": False, "schema": _without_null(one), **_style(one)}
        for name, one in properties.items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter that is not given is not there: null is no value of it."""
    kinds = [one for one in schema.get("anyOf", []) if one != {"type": "null"}]
    if len(kinds) == 1:
        return dict(kinds[0])
    return {name: value for name, value in schema.items() if name != "default" or value is not None}


def _style(schema: dict[str, Any]) -> dict[str, Any]:
    return {"style": "form", "explode": True} if schema.get("type") == "array" else {}


def _responses(route: Route) -> dict[str, Any]:
    if route.status == 204:
        content: dict[str, Any] = {}
    else:
        several = [_ref(shape) if route.media != "text/event-stream" else _event(shape) for shape in route.answers]
        schema = {"anyOf": several} if len(several) > 1 else several[0] if several else _loose(route)
        content = {"content": {route.media.partition(";")[0]: {"schema": schema}}}
    told: dict[str, Any] = {str(route.status): {"description": "Done", **content}}
    for status in sorted(_errors(route)):
        told[str(status)] = {
            "description": TITLES[status],
            "content": {"application/problem+json": {"schema": {"$ref": _REF.format(name="ProblemBody")}}},
        }
    if route.path == "/readyz":
        told["503"] = {"description": "Not ready", "content": {"application/json": {"schema": _ref(route.answers[0])}}}
    return told


def _event(shape: Any) -> dict[str, Any]:
    """One of a stream."""
    [name] = [name for name, one in shapes.EVENTS.items() if one is shape]
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": _ref(shape)}
    return {
        "type": "object",
        "properties": {"event": {"const": name}, "data": data},
        "required": ["event", "data"],
    }


def _loose(route: Route) -> dict[str, Any]:
    return {"type": "object"} if route.media == "application/json" else {"type": "string"}


def _errors(route: Route) -> set[int]:
    """What it may answer beside what it is for."""
    if route.access.kind == "probe":
        return set()
    found = {400, 403, 404, 421, 500, 503, *route.errors}
    if route.access.kind != "public":
        found.add(401)
    if route.body is not None:
        found |= {408, 413, 415}
    return found
