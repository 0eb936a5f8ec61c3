"""The examples of the OpenAPI document: every body and answer has one, they fit their schemas, and they work."""

from typing import Any

import jsonschema_rs
import msgspec
import pytest

from rowlock.http.app import ROUTES
from rowlock.http.examples import EXAMPLES
from rowlock.http.openapi import document
from rowlock.http.parse import read_body
from rowlock.http.problems import ProblemBody
from rowlock.http.routes import API_VERSION, API_VERSION_HEADER
from rowlock.http.shapes import Asked
from tests.http.harness import World

DOCUMENT = document()
SHAPES = {
    shape.__name__: shape
    for route in ROUTES
    if route.documented
    for shape in (route.body, *route.answers, ProblemBody)
    if shape is not None
}


def test_every_body_and_answer_has_an_example() -> None:
    assert EXAMPLES.keys() == SHAPES.keys(), "give each an example in http/examples.py"


@pytest.mark.parametrize("name", SHAPES)
def test_an_example_is_right_by_its_schema(name: str) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    [example] = DOCUMENT["components"]["schemas"][name]["examples"]
    jsonschema_rs.validator_for(schema, validate_formats=True).validate(example)
    shape = SHAPES[name]
    assert example.keys() <= set(shape.__struct_encode_fields__), "it has what the shape has not"
    if issubclass(shape, Asked):
        read_body(shape, msgspec.json.encode(example))
    else:
        msgspec.convert(example, shape)


async def test_the_example_of_an_enqueue_works(world: World) -> None:
    asked = EXAMPLES["EnqueueBody"]
    answer = await world.post("enqueue token", "/api/jobs/enqueue", asked)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told.keys() == EXAMPLES["EnqueuedBody"].keys()
    job = (await world.get("superuser", f"/api/jobs/{told['id']}")).json()
    assert asked.items() <= job.items()
    assert {*job, "steps"} == {*EXAMPLES["JobBody"]}  # this job has no steps


BODIES = {
    ("POST", "/api/jobs/enqueue/batch"): "BatchBody", ("POST", "/api/bulk"): "BulkBody",
    ("POST", "/api/tokens"): "TokenCreateBody", ("PATCH", "/api/settings"): "SettingsPatch",
    ("POST", "/api/access/explain"): "ExplainBody", ("POST", "/api/topics/send_mail/pause"): "PauseBody",
    ("POST", "/api/worker/claim"): "ClaimBody", ("POST", "/api/worker/heartbeat"): "HeartbeatBody",
    ("POST", "/api/worker/goodbye"): "GoodbyeBody",
}  # fmt: skip


@pytest.mark.parametrize(("method", "path"), BODIES)
async def test_the_example_of_a_request_works(sqlite_world: World, method: str, path: str) -> None:
    body = dict(EXAMPLES[BODIES[method, path]])
    body.pop("wait", None)
    answer = await sqlite_world.call("admin token", method, path, body)
    assert answer.is_success, answer.text


# ── The version of the API ──


@pytest.mark.parametrize(
    "path", ["/healthz", "/api/jobs", "/api/jobs/7", "/nothing", "/api/openapi.json", "/metrics", "/_/"]
)
async def test_every_answer_says_which_version_it_is_of(sqlite_world: World, path: str) -> None:
    answer = await sqlite_world.get("superuser", path)
    assert answer.headers[API_VERSION_HEADER] == API_VERSION == DOCUMENT["info"]["version"]


def test_ids_in_paths_are_uuids() -> None:
    operations = [one for methods in DOCUMENT["paths"].values() for one in methods.values()]
    ids: list[Any] = [p["schema"] for one in operations for p in one.get("parameters", []) if p["name"] == "id"]
    ids = [one for one in ids if one.get("maxLength") is None]  # the others are ids of signals
    in_path = [one for one in ids if one.get("format") == "uuid"]
    assert len(in_path) >= 15
    assert all(one.get("type") == "array" for one in ids if one not in in_path)  # these are filters
