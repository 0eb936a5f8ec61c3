"""The table of routes. Each declares its allowed callers; a route without that is an error at start-up."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from msgspec import Struct, structs

from rowlock.access.identity import SCOPES
from rowlock.access.settings import GRANTED_BY
from rowlock.http.problems import Problem
from rowlock.http.response import Response

Handler = Callable[..., Awaitable[Any]]
H = TypeVar("H", bound=Handler)
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

# Raised when something is removed or changes its meaning. Additions don't raise it.
API_VERSION = "1"
API_VERSION_HEADER = "rowlock-api-version"


class Access(Struct, frozen=True):
    """The callers that may use a route.

    `callback`: everyone who has the right token in the path; no other credential is looked at.
    `probe`: everyone, even if the API is switched off. `page`: everyone, also while the database is away: files that
    hold no data. `public`: everyone. `known`: every caller who is not anonymous. `enqueue`: callers with the scope
    enqueue, or whom enqueue_rule allows. `jobs`: callers with the scope, or whom a rule allows it for single jobs, and
    only for those jobs. `scope`: callers with the scope.
    """

    kind: Literal["probe", "page", "public", "callback", "known", "enqueue", "jobs", "scope"]
    scope: str = ""
    bounded: bool = False  # also a token for some topics, one scope or one job: the handler checks which
    writes: bool | None = None  # None: every method but GET does
    or_scope: str = ""  # `scope` only: this one is enough as well

    def __post_init__(self) -> None:
        known = {"jobs": tuple(GRANTED_BY), "scope": SCOPES}.get(self.kind)
        if known is not None and self.scope not in known:
            raise TypeError(f"{self.kind} needs one of {', '.join(known)}")


PROBE = Access("probe")
PAGE = Access("page")
PUBLIC = Access("public")
CALLBACK = Access("callback")
KNOWN = Access("known", bounded=True)
ENQUEUE = Access("enqueue", bounded=True)
SEE_JOBS = Access("jobs", "read", bounded=True)
CANCEL_JOBS = Access("jobs", "cancel", bounded=True)
MANAGE_JOBS = Access("jobs", "manage", bounded=True)


def scope(name: str, *, bounded: bool = False, writes: bool | None = None, or_scope: str = "") -> Access:
    return Access("scope", name, bounded, writes, or_scope)


class Route(Struct, frozen=True):
    """`path`: {name} is one step, {name*} may be several, {name#} is a number. `query` and `body`: what the route
    reads. `answers`: what it returns. `body_optional`: no body means {}. `raw_body`: the handler gets the JSON object
    as it came, and checks it itself. `any_body`: the body is any JSON value, and the handler reads it.
    `errors`: statuses beside those that every route has."""

    method: Method
    path: str
    access: Access
    handler: Handler
    summary: str
    query: Any = None
    body: Any = None
    body_optional: bool = False
    raw_body: bool = False
    any_body: bool = False
    answers: tuple[Any, ...] = ()
    status: int = 200
    media: str = "application/json"
    errors: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.access, Access):
            raise TypeError(f"{self.method} {self.path} doesn't say who may call it")

    @property
    def writes(self) -> bool:
        return self.method != "GET" if self.access.writes is None else self.access.writes

    @property
    def documented(self) -> bool:
        """Return False for pages: they are for people, and no part of the API."""
        return self.path != "/" and not self.path.startswith("/_")

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def parameters(self) -> list[str]:
        return [name.rstrip("*#") for name in re.findall(r"\{([a-z_]+[*#]?)\}", self.path)]


class Routes(list[Route]):
    """The routes of one file."""

    def add(self, method: Method, path: str, access: Access, summary: str, **more: Any) -> Callable[[H], H]:
        """Make a function the handler of a route. Its annotations say what the route reads and answers: `asked` is the
        body, or the query of a GET or DELETE. A POST without required fields needs no body. A handler that returns None
        sends no content. A handler that sends headers, a stream or another status returns a Response, and the route
        names the `answers`."""

        def added(handler: H) -> H:
            hints = get_type_hints(handler)
            asked, answer = hints.get("asked"), hints["return"]
            reads = {"query" if method in ("GET", "DELETE") else "body": asked}
            if method == "POST" and asked is not None and "body" not in more:
                reads["body_optional"] = not any(field.required for field in structs.fields(asked))
            if answer is type(None):
                says: dict[str, Any] = {"status": 204}
            else:
                says = {} if answer is Response else {"answers": get_args(answer) or (answer,)}
            self.append(Route(method, path, access, handler, summary, **{**reads, **says, **more}))
            return handler

        return added


class Table:
    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = list(routes)
        self._exact: dict[str, dict[str, Route]] = {}
        self._patterns: list[tuple[re.Pattern[str], dict[str, Route]]] = []
        patterns: dict[str, dict[str, Route]] = {}
        for route in routes:
            of = self._exact if "{" not in route.path else patterns
            methods = of.setdefault(route.path, {})
            if route.method in methods:
                raise TypeError(f"{route.method} {route.path} is there twice")
            methods[route.method] = route
        for path, methods in patterns.items():
            pattern = re.sub(r"\{([a-z_]+)\*\}", r"(?P<\1>.+)", path)
            pattern = re.sub(r"\{([a-z_]+)#\}", r"(?P<\1>[0-9]{1,9})", pattern)
            pattern = re.sub(r"\{([a-z_]+)\}", r"(?P<\1>[^/]+)", pattern)
            self._patterns.append((re.compile(rf"{pattern}\Z", re.DOTALL), methods))

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        wanted, others = "GET" if method == "HEAD" else method, set[str]()
        for methods, parameters in self._matching(path):
            if wanted in methods:
                return methods[wanted], parameters
            others |= methods.keys()
        if not others:
            raise Problem("no_such_path", "there is nothing at this path")
        allow = ", ".join(sorted(others))
        raise Problem("wrong_method", f"this path takes {allow}", headers={"allow": allow})

    def _matching(self, path: str) -> Iterator[tuple[dict[str, Route], dict[str, str]]]:
        """Yield the routes of this path. The first that has the method counts: a topic may end like another path."""
        if path in self._exact:
            yield self._exact[path], {}
            return
        for pattern, methods in self._patterns:
            if found := pattern.match(path):
                yield methods, found.groupdict()
