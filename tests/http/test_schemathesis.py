"""The promises of the OpenAPI document, checked against the server: generated requests, valid and invalid ones."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from rowlock import Jobs
from rowlock.access import passwords
from rowlock.access import settings as access_settings
from rowlock.core.limits import Concurrency
from rowlock.http.openapi import document
from rowlock.http.routes import Route
from tests.http.harness import A, Place, Server, Who, World, cheap_hasher
from tests.http.oracle import by_name

pytestmark = pytest.mark.sampled(4)  # one operation in four
CHECKS: Any = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
EXAMPLES = 8  # generated requests of each kind
EXAMPLES_OF_EDITS = 24  # a change of a job is valid only by luck
OF_A_RUN = [
    f"/api/worker/{verb}"
    for verb in (
        "steps",
        "checkpoint",
        "wait",
        "callback",
        "complete",
        "fail",
        "retry-step",
        "snooze",
        "release",
        "give-up",
    )
]
ABOUT_SCHEDULES = [f"/api/schedules{path}" for path in ("", "/preview", "/{id}", "/{id}/backfill")]
OPERATIONS = [(method.upper(), path) for path, methods in document()["paths"].items() for method in methods]


class Stage:
    """The database of a server, and its callers; made once for all operations."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "jobs.db"
        self.url = f"sqlite:///{self.file}"
        self.who: dict[str, Who] = {}
        self.ended: list[str] = []
        self.reached: dict[str, set[int]] = {}  # the statuses that each operation has answered with
        self.schema: Any = schemathesis.openapi.from_dict(document())

    async def populate(self) -> None:
        async with Jobs(self.url) as jobs:
            world = World(Place("sqlite", self.url), jobs)
            await world.populate()
            self.ended = [await world.ended(A, "ended"), await world.ended(A, "failing", error="Boom: 1")]
            self.who = world.who
            await jobs.limits.put("limited", Concurrency(5), by="test")
            rule = "scope_id = @request.auth.id"
            await access_settings.change(await jobs._store(), {"enqueue_rule": rule, "manage_rule": rule}, by="test")
        self._data = self._settings("SELECT data FROM _jobs_records WHERE kind = 'settings'")[0][0]

    def reset(self) -> None:
        """Restore the settings, because a request may have switched off the server or let no caller in."""
        self._settings("UPDATE _jobs_records SET data = ? WHERE kind = 'settings'", self._data)

    def _settings(self, statement: str, *values: str) -> list[Any]:
        with closing(sqlite3.connect(self.file, timeout=30.0)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    def jobs(self, server: Server, method: str) -> Iterator[str | None]:
        """Yield ids of jobs in one state after the other, new jobs where possible. None: use a made-up id."""
        url, headers = f"{server.url}/api/jobs", dict(self.who["admin token"].headers)
        while True:
            for wanted in (
                ("pending", "pending", None) if method == "PATCH" else ("pending", "cancelled", *self.ended, None)
            ):
                if wanted not in ("pending", "cancelled"):
                    yield wanted
                    continue
                made = requests.post(f"{url}/enqueue", json={"topic": "t", "scopeId": A}, headers=headers, timeout=30)
                job_id = made.json()["id"]
                if wanted == "cancelled":
                    requests.post(f"{url}/{job_id}/cancel", headers=headers, timeout=30)
                yield job_id

    def bulks(self, server: Server) -> Iterator[str | None]:
        """Yield ids of bulk actions that have nothing to do. None: use a made-up id."""
        url, headers = f"{server.url}/api/bulk", dict(self.who["admin token"].headers)
        while True:
            for dry_run in (True, False):
                body = {"action": "cancel", "filter": {"topic": ["none"]}, "dryRun": dry_run}
                yield requests.post(url, json=body, headers=headers, timeout=30).json()["id"]
            yield None

    def flows(self, server: Server) -> Iterator[str | None]:
        """Yield ids of new flows, live ones and cancelled ones. None: use a made-up id."""
        url, headers = f"{server.url}/api/flows", dict(self.who["admin token"].headers)
        for n in count():
            body: Any = {"name": "made", "jobs": [{"topic": "t"}]}
            made = requests.post(url, json=body, headers=headers, timeout=30).json()["id"]
            if n % 2:
                requests.post(f"{url}/{made}/cancel", headers=headers, timeout=30)
            yield made
            if n % 4 == 3:
                yield None

    def schedules(self, server: Server) -> Iterator[str | None]:
        """Yield ids of new schedules. None: use a made-up id."""
        url, headers = f"{server.url}/api/schedules", dict(self.who["admin token"].headers)
        for n in count():
            body: Any = {"name": f"made {n} {uuid4()}", "topic": "t", "when": {"every": 3600}}
            yield requests.post(url, json=body, headers=headers, timeout=30).json()["id"]
            if n % 4 == 3:
                yield None


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    stage = Stage(tmp_path_factory.mktemp("schemathesis"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "_hasher", cheap_hasher)
        asyncio.run(stage.populate())
    return stage


@pytest.fixture(scope="module")
def server(stage: Stage) -> Iterator[Server]:
    with Server.running(stage.url) as server:
        yield server


def check(stage: Stage, server: Server, method: str, path: str, who: Who, mode: GenerationMode) -> None:
    operation = stage.schema[path][method]
    ids = stage.jobs(server, method)
    if path.startswith("/api/bulk"):
        ids = stage.bulks(server)
    elif path.startswith("/api/schedules"):
        ids = stage.schedules(server)
    elif path.startswith("/api/flows"):
        ids = stage.flows(server)
    session = requests.Session()

    @settings(
        max_examples=EXAMPLES_OF_EDITS if method == "PATCH" or path.endswith("/requeue") else EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(mode))
    def one(case: Any) -> None:
        of_one = ("/api/jobs/{id}", "/api/bulk/{id}", "/api/schedules/{id}", "/api/flows/{id}")
        if path.startswith(of_one) and (known := next(ids)):
            case.path_parameters["id"] = known  # a made-up id is never there
        if path == "/api/bulk" and mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            # A schema can't say which fields go together.
            kept = {name: value for name, value in case.body.items() if name in ("dryRun", "reason")}
            case.body = {**kept, "action": "cancel", "filter": {"topic": ["none"]}}
        if path in ABOUT_SCHEDULES and mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body = _possible(path, case.body)
        if path.startswith("/api/flows") and mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            # The names in a flow must fit each other.
            kept = {name: value for name, value in case.body.items() if name in ("reason", "name")}
            case.body = {**kept, "jobs": [{"topic": "t", "name": "a"}]} if path == "/api/flows" else kept
        if path.startswith("/api/limits/") and mode is GenerationMode.POSITIVE:
            case.path_parameters["name"] = "limited"
            if isinstance(case.body, dict):
                # The limits of one name must fit each other, and the value must fit one of them.
                reason = {name: value for name, value in case.body.items() if name == "reason"}
                case.body = {"limit": {"kind": "concurrency", "max": 5}, **reason}
        if path == "/api/jobs/enqueue" and who.kind == "user" and isinstance(case.body, dict):
            case.body["scopeId"] = A
        if path.endswith("/wait"):
            case.query = {**(case.query or {}), "timeout": 0}
        if path == "/api/events":
            case.query = {**(case.query or {}), "seconds": 0}
        if path.endswith("/claim") and isinstance(case.body, dict):
            case.body.pop("wait", None)
        answer = case.call(base_url=server.url, session=session, headers=dict(who.headers))
        stage.reached.setdefault(f"{method} {path}", set()).add(answer.status_code)
        case.validate_response(answer, checks=CHECKS)
        if path == "/api/settings":
            stage.reset()

    with session:
        one()


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=str)
def test_an_admin_gets_what_the_document_says(stage: Stage, server: Server, method: str, path: str) -> None:
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        if mode is GenerationMode.POSITIVE or _can_be_wrong(method, path):
            check(stage, server, method, path, stage.who["admin token"], mode)
    # The test can't make up these: passwords, links, ids of tokens, sessions and runs, fingerprints, addresses of
    # callbacks, names of signals, jobs that wait, jobs that a flow holds.
    made_up = ("/api/tokens/{token_id}", "/api/sessions/{session_id}", "/api/failures/{fingerprint}", *OF_A_RUN)
    made_up = (*made_up, *(path for _, path in OPERATIONS if path.startswith("/api/templates/{topic}")))  # and versions
    made_up = (*made_up, *(path for _, path in OPERATIONS if "/callbacks/" in path or "/signals/" in path))
    made_up = (*made_up, "/api/jobs/{id}/wake", "/api/jobs/{id}/release")
    if "/auth/" not in path and path not in made_up:
        assert any(status < 300 for status in stage.reached[f"{method} {path}"]), "it was refused each time"


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=str)
def test_a_user_gets_what_the_document_says(stage: Stage, server: Server, method: str, path: str) -> None:
    check(stage, server, method, path, stage.who["user A"], GenerationMode.POSITIVE)


def _possible(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return a valid request about schedules. A schema can't say which fields go together: times in their order, one of
    cron and every, …"""
    names = ["missed", "most", "within", "jitter", "limit", "dry_run"]
    kept: dict[str, Any] = {name: body[name] for name in names if name in body}
    if path.endswith("/backfill"):
        return {**kept, "start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"}
    if path.endswith("/preview"):
        return {**kept, "when": {"every": 3600}}
    which = {"revision": 1} if "{id}" in path else {"name": f"made {uuid4()}"}
    return {**kept, **which, "topic": "t", "when": {"every": 3600}}


def _operation(route: Route) -> tuple[str, str]:
    """Return the method and path as the document names them."""
    return route.method, route.path.replace("*}", "}").replace("#}", "}")


def _can_be_wrong(method: str, path: str) -> bool:
    route = next(one for one in by_name().values() if _operation(one) == (method, path))
    return route.query is not None or route.body is not None


def test_every_route_is_in_the_document() -> None:
    routes = [route for route in by_name().values() if route.documented]
    assert {_operation(route) for route in routes} == set(OPERATIONS)
