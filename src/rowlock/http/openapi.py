"""OpenAPI 3.1, made from the table of routes and the shapes that they read and write."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from rowlock import __version__
from rowlock.access.settings import GRANTED_BY
from rowlock.core.templates import MAX_TEMPLATE_VERSION
from rowlock.http.examples import EXAMPLES
from rowlock.http.problems import TITLES, ProblemBody
from rowlock.http.routes import API_VERSION, API_VERSION_HEADER, Access, Route
from rowlock.http.streams import EVENTS

_REF = "#/components/schemas/{name}"
_VERSION = {"description": "The version of this API.", "required": True, "schema": {"const": API_VERSION}}
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API token, or the application's JWT."},
    "session": {"type": "apiKey", "in": "cookie", "name": "rowlock_session", "description": "By logging in."},
}
_IN_PATH: dict[str, dict[str, Any]] = {
    "id": {"type": "string", "format": "uuid"},  # see app.py
    "version": {"type": "integer", "minimum": 0, "maximum": MAX_TEMPLATE_VERSION},
}


_ANY = {"description": "The data of the signal: any JSON value. No body is null."}


@cache
def text() -> bytes:
    return msgspec.json.format(msgspec.json.encode(document(), order="sorted"), indent=1) + b"\n"


def document() -> dict[str, Any]:
    from rowlock.http.app import ROUTES

    routes = [route for route in ROUTES if route.documented]
    shapes = [shape for route in routes for shape in (route.body, *route.answers) if shape is not None]
    _, components = msgspec.json.schema_components([*shapes, ProblemBody], ref_template=_REF)
    for name in components.keys() & EXAMPLES.keys():
        components[name]["examples"] = [EXAMPLES[name]]
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = route.path.replace("*}", "}").replace("#}", "}")
        paths.setdefault(path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rowlock",
            "version": API_VERSION,
            "x-rowlock-version": __version__,
            "description": "Jobs that live in your own database. Names are snake_case. Requests may spell each name in "
            "camelCase instead, runAt for run_at, in bodies and queries; not in both ways at once. Times are RFC 3339 "
            f"in UTC, durations seconds; errors are problem+json. Each answer has the header {API_VERSION_HEADER}.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": components, "headers": {"ApiVersion": _VERSION}, "securitySchemes": _SECURITY},
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
    if route.access.kind in ("probe", "public", "callback"):
        told["security"] = []
    elif route.access.kind in ("enqueue", "jobs"):
        told["security"] = [{}, {"bearer": []}, {"session": []}]  # a rule may allow everyone
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _IN_PATH.get(name, {"type": "string", "minLength": 1})}
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
    elif route.any_body:
        told["requestBody"] = {"required": False, "content": {"application/json": {"schema": _ANY}}}
    return told


def _ref(shape: Any) -> dict[str, Any]:
    return {"$ref": _REF.format(name=shape.__name__)}


def _who(access: Access) -> str:
    match access.kind:
        case "probe" | "page" | "public":
            return "everyone"
        case "callback":
            return "everyone who has the address"
        case "known":
            return "every caller who is logged in or has a token"
        case "enqueue":
            return "superusers, tokens with the scope enqueue, and callers whom enqueue_rule allows"
        case "jobs":
            rules = " or ".join(GRANTED_BY[access.scope])
            return f"superusers, tokens with the scope {access.scope}, and callers whom {rules} allows"
        case "scope":
            either = f" or {access.or_scope}" if access.or_scope else ""
            return f"superusers, and tokens with the scope {access.scope}{either}"


def _query(shape: Any) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([shape], ref_template=_REF)
    properties = components[shape.__name__]["properties"]
    return [
        {"name": name, "in": "query", "required": False, "schema": _without_null(one), **_style(one)}
        for name, one in properties.items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without null: a parameter is left out instead."""
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
    headers = {API_VERSION_HEADER: {"$ref": "#/components/headers/ApiVersion"}}
    told: dict[str, Any] = {str(route.status): {"description": "Done", "headers": headers, **content}}
    for status in sorted(_errors(route)):
        told[str(status)] = {
            "description": TITLES[status],
            "content": {"application/problem+json": {"schema": {"$ref": _REF.format(name="ProblemBody")}}},
        }
    if route.path == "/readyz":
        told["503"] = {"description": "Not ready", "content": {"application/json": {"schema": _ref(route.answers[0])}}}
    return told


def _event(shape: Any) -> dict[str, Any]:
    """Return the schema of one event of a stream."""
    [name] = [name for name, one in EVENTS.items() if one is shape]
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": _ref(shape)}
    return {
        "type": "object",
        "properties": {"event": {"const": name}, "data": data},
        "required": ["event", "data"],
    }


def _loose(route: Route) -> dict[str, Any]:
    return {"type": "object"} if route.media == "application/json" else {"type": "string"}


def _errors(route: Route) -> set[int]:
    """Return the statuses of errors that a route may answer."""
    if route.access.kind == "probe":
        return set()
    found = {400, 403, 404, 421, 500, 503, *route.errors}
    if "#}" in route.path:  # without a number it is another path, which may take other methods only
        found.add(405)
    if route.access.kind not in ("public", "callback"):
        found.add(401)
    if route.body is not None or route.any_body:
        found |= {408, 413, 415}
    return found
