"""A client can send back what it reads: both snake_case and camelCase are taken, and the caller's own names stay."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.http.app import ROUTES
from rowlock.http.examples import EXAMPLES
from rowlock.http.parse import camel, read_body, read_query, spelling
from rowlock.http.problems import Problem
from tests.http.harness import A, World, is_problem

BODIES = {route.body.__name__: route.body for route in ROUTES if route.body is not None}
QUERIES = {route.query.__name__: route.query for route in ROUTES if route.query is not None}
TIME = "2030-01-01T00:00:00Z"
VALUES = {"scope_id": "x", "flow_id": "0193fb1e-0000-7000-8000-000000000000"}  # all others are times


def encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)


def respelled(kind: Any, value: Any, chosen: Any) -> Any:
    """Return the value with the names in camelCase for which `chosen` says so, as deep as the shapes go."""
    if isinstance(value, list):
        return [respelled(kind, one, chosen) for one in value]
    if value is None:
        return None
    inner = spelling(kind).inner
    return {
        camel(name) if chosen() else name: respelled(inner[name], item, chosen) if name in inner else item
        for name, item in value.items()
    }


# Names of more than one word, all of which take both spellings: with the shapes, or for the caller's own.
@pytest.mark.parametrize("name", [name for name in BODIES if spelling(BODIES[name]).snake])
def test_every_name_of_every_body_has_two_spellings(name: str) -> None:
    kind = BODIES[name]
    names = [one for one in kind.__struct_encode_fields__ if "_" in one]
    assert set(spelling(kind).snake.values()) == set(names)
    assert all(re.fullmatch(r"[a-z]+([A-Z][a-z]+)+", one) for one in spelling(kind).snake)


@given(data=st.data())
@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_the_same_in_any_spelling(name: str, data: st.DataObject) -> None:
    kind, example = BODIES[name], EXAMPLES[name]
    other = respelled(kind, example, lambda: data.draw(st.booleans()))
    assert read_body(kind, encoded(other)) == read_body(kind, encoded(example))


def parameters(kind: Any) -> Iterator[tuple[str, str]]:
    return ((one, VALUES.get(one, TIME)) for one in kind.__struct_encode_fields__ if "_" in one)


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_is_the_same_in_any_spelling(name: str) -> None:
    kind = QUERIES[name]
    for parameter, value in parameters(kind):
        in_snake, in_camel = read_query(kind, [(parameter, value)]), read_query(kind, [(camel(parameter), value)])
        assert in_snake == in_camel != read_query(kind, [])
        with pytest.raises(Problem) as refused:
            read_query(kind, [(camel(parameter), value), (parameter, value)])
        assert (refused.value.code, refused.value.field) == ("given_twice", parameter)


@pytest.mark.parametrize(
    ("name", "body", "field"),
    [
        ("EnqueueBody", {"topic": "a", "max_retries": 1, "maxRetries": 1}, "max_retries"),
        ("EnqueueBody", {"topic": "a", "runAt": None, "run_at": None}, "run_at"),
        ("BatchBody", {"jobs": [{"topic": "a"}, {"topic": "a", "scope_id": "x", "scopeId": "y"}]}, "jobs[1].scope_id"),
        ("BulkBody", {"action": "x", "dry_run": True, "dryRun": False}, "dry_run"),
        ("BulkBody", {"action": "x", "filter": {"createdFrom": TIME, "created_from": TIME}}, "filter.created_from"),
        ("SettingsPatch", {"manage_rule": "true", "manageRule": ""}, "manage_rule"),
        ("TokenCreateBody", {"name": "a", "scopes": [], "expiresAt": TIME, "expires_at": TIME}, "expires_at"),
    ],
)  # fmt: skip
def test_both_spellings_of_one_name_are_one_too_many(name: str, body: Any, field: str) -> None:
    with pytest.raises(Problem) as refused:
        read_body(BODIES[name], encoded(body))
    problem = refused.value
    assert (problem.status, problem.code, problem.field) == (400, "given_twice", field)
    assert field in problem.detail


OWN = {"runAt": 1, "run_at": 2, "maxRetries": {"scopeId": [{"dryRun": 1, "dry_run": 2}]}, "__x": 1, "a_b": None}


async def test_what_is_the_callers_own_is_left_alone(world: World) -> None:
    answer = await world.post("superuser", "/api/jobs/enqueue", {"topic": "own", "payload": OWN, "scopeId": A})
    job_id = answer.json()["id"]
    assert (await world.get("superuser", f"/api/jobs/{job_id}")).json()["payload"] == OWN
    changed = await world.call("superuser", "PATCH", f"/api/jobs/{job_id}", {"payload": {**OWN, "more_of": 1}})
    assert changed.json()["payload"] == {**OWN, "more_of": 1}
    [run] = (await world.post("worker token", "/api/worker/claim", {"worker": "w", "topics": ["own"]})).json()["items"]
    assert run["payload"] == {**OWN, "more_of": 1}
    done = {"worker": "w", "id": job_id, "version": run["version"], "result": OWN}
    assert (await world.post("worker token", "/api/worker/complete", done)).json()["status"] == "completed"
    assert (await world.get("superuser", f"/api/jobs/{job_id}")).json()["result"] == OWN


def test_claims_are_left_alone() -> None:
    assert read_body(BODIES["ExplainBody"], encoded({"action": "manage", "claims": OWN})).claims == OWN


async def test_the_columns_of_a_job_to_explain_take_both(sqlite_world: World) -> None:
    asked = {"action": "manage", "rule": "scope_id = @request.auth.id", "claims": {"id": "7"}}
    for column in ("scope_id", "scopeId"):
        answer = await sqlite_world.post("superuser", "/api/access/explain", {**asked, "job": {column: "7"}})
        assert answer.json()["allowed"] is True
    both = {**asked, "job": {"scope_id": "7", "scopeId": "7"}}
    answer = await sqlite_world.post("superuser", "/api/access/explain", both)
    assert is_problem(answer, 400, "given_twice")["field"] == "job.scope_id"


# ── There and back ──


async def test_a_job_that_was_read_can_be_sent_back(world: World) -> None:
    asked = {
        "topic": "back", "payload": {"a": 1}, "run_at": TIME, "max_retries": 7, "priority": 3, "key": "k", "scope": "s",
        "scope_id": A, "expires_at": "2031-01-01T00:00:00Z", "timeout": 9.0, "tags": ["t"],
    }  # fmt: skip
    answer = await world.post("superuser", "/api/jobs/enqueue", asked)
    assert answer.status_code == 200, answer.text
    job = (await world.get("superuser", f"/api/jobs/{answer.json()['id']}")).json()
    assert asked.items() <= job.items()
    again = {name: job[name] for name in ("id", *asked)}
    answer = await world.post("superuser", "/api/jobs/enqueue", again)
    assert (answer.json()["id"], answer.json()["existing"]) == (job["id"], True)
    found = await world.get("superuser", "/api/jobs?" + urlencode({"scope_id": A, "run_at_from": job["run_at"]}))
    assert [one["id"] for one in found.json()["items"]] == [job["id"]]


async def test_settings_and_the_filter_of_a_bulk_action_can_be_sent_back(world: World) -> None:
    settings = (await world.get("superuser", "/api/settings")).json()
    settings.pop("given")
    answer = await world.call("superuser", "PATCH", "/api/settings", settings)
    assert answer.status_code == 200, answer.text
    assert settings.items() <= answer.json().items()
    wanted = {"topic": ["mail"], "scope_id": A, "created_from": TIME, "payload": ["user.id=7"]}
    made = (await world.post("superuser", "/api/bulk", {"action": "cancel", "filter": wanted})).json()
    again = await world.post("superuser", "/api/bulk", {"action": "cancel", "filter": made["filter"]})
    assert again.json()["filter"] == made["filter"]
    assert again.status_code == 201
