"""All ways to enqueue a job give an answer of one shape, which tells nothing of another caller's job."""

from typing import Any

import pytest

import rowlock.http.enqueue
from tests.http.harness import A, World, is_problem

FIELDS = {"id", "topic", "status", "run_at", "created", "existing"}
BODY = {"topic": "mail", "payload": {"to": "ada"}, "key": "k", "scope_id": A}


async def told(world: World, path: str, body: Any = None, *, who: str = "superuser") -> Any:
    answer = await world.post(who, path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_every_way_of_enqueuing_answers_alike(world: World) -> None:
    new = await told(world, "/api/jobs/enqueue", BODY)
    assert new.keys() == FIELDS
    assert (new["status"], new["existing"]) == ("pending", False)
    there = {**new, "existing": True}
    assert await told(world, "/api/jobs/enqueue", BODY) == there
    assert await told(world, "/api/jobs/enqueue", {**BODY, "id": new["id"]}) == there
    assert (await told(world, "/api/jobs/enqueue/batch", {"jobs": [BODY, {"topic": "x"}]}))["items"][0] == there
    [first, second] = (await told(world, "/api/jobs/enqueue/batch", {"jobs": [{"topic": "x"}] * 2}))["items"]
    assert first.keys() == second.keys() == FIELDS
    copy = await told(world, f"/api/jobs/{new['id']}/clone")
    assert copy.keys() == FIELDS
    assert (copy["existing"], copy["id"] != new["id"]) == (False, True)
    assert await told(world, f"/api/jobs/{copy['id']}/clone", {"key": "k"}) == there


async def test_a_job_that_is_there_is_told_as_it_stands(world: World) -> None:
    new = await told(world, "/api/jobs/enqueue", {**BODY, "delay": 3600})
    await world.call("superuser", "PATCH", f"/api/jobs/{new['id']}", {"delay": 0})
    again = await told(world, "/api/jobs/enqueue", BODY)
    job = (await world.get("superuser", f"/api/jobs/{new['id']}")).json()
    assert {name: job[name] for name in FIELDS - {"existing"}}.items() <= again.items()


async def test_in_a_batch_anothers_job_stays_hidden(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other job took the key between the look and the insert, so the rest of the batch is already inserted."""
    rule = "scope_id = @request.auth.id"
    await world.change_settings(enqueue_rule=rule, view_rule=f"{rule} && priority > 500")
    await world.jobs.enqueue("mail", {}, key="k", scope_id=A)
    is_problem(await world.post("user A", "/api/jobs/enqueue", BODY), 409, "key_taken")

    async def looked_too_early(*arguments: Any) -> None:
        return None

    monkeypatch.setattr(rowlock.http.enqueue, "refuse_hidden", looked_too_early)
    batch = {"jobs": [BODY, {"topic": "mail", "scope_id": A}]}
    [hidden, own] = (await told(world, "/api/jobs/enqueue/batch", batch, who="user A"))["items"]
    unseen = dict.fromkeys(("id", "status", "run_at", "created"))
    assert hidden == {**unseen, "topic": "mail", "existing": True}
    assert own["id"] is not None


async def test_debounce_and_throttle(world: World) -> None:
    body = {**BODY, "debounce": {"seconds": 30, "at_most": 300}}
    new = await told(world, "/api/jobs/enqueue", body)
    again = {**BODY, "payload": {"to": "bob"}, "debounce": {"seconds": 60, "atMost": 300}}
    assert (await told(world, "/api/jobs/enqueue", again)).items() >= {"id": new["id"], "existing": True}.items()
    job = (await world.get("superuser", f"/api/jobs/{new['id']}")).json()
    assert (job["payload"], job["if_live"]) == ({"to": "bob"}, "debounce")
    batch = {"jobs": [{**again, "payload": {"to": "eve"}}, {"topic": "x", "key": "k", "throttle": 3600}]}
    [same, first] = (await told(world, "/api/jobs/enqueue/batch", batch))["items"]
    assert (same["id"], same["existing"], first["existing"]) == (new["id"], True, False)
    there = await told(world, "/api/jobs/enqueue", {"topic": "x", "key": "k", "throttle": 3600})
    assert there == {**first, "existing": True}
    await world.call("superuser", "DELETE", f"/api/jobs/{first['id']}")
    gone = await told(world, "/api/jobs/enqueue", {"topic": "x", "key": "k", "throttle": 3600})
    assert (gone["id"], gone["existing"], gone["created"]) == (first["id"], True, first["created"])


async def test_a_template_with_debounce(world: World) -> None:
    definition = {"topic": "doc.index", "key": ["doc"], "debounce": {"seconds": 30, "atMost": 300}}
    made = await world.post("superuser", "/api/templates", definition)
    assert made.json()["debounce"] == {"seconds": 30.0, "at_most": 300.0}, made.text
    new = await told(world, "/api/jobs/enqueue", {"topic": "doc.index", "payload": {"doc": 7}})
    same = await told(world, "/api/jobs/enqueue", {"topic": "doc.index", "payload": {"doc": 7, "n": 2}})
    assert same == {**new, "existing": True, "run_at": same["run_at"]}
    wrong = {"topic": "t", "key": ["doc"], "debounce": {"seconds": 30}, "if_live": "queue"}
    is_problem(await world.post("superuser", "/api/templates", wrong), 400, "with_debounce")


async def test_anothers_payload_is_not_replaced_unseen(world: World) -> None:
    rule = "scope_id = @request.auth.id"
    await world.change_settings(enqueue_rule=rule, view_rule=f"{rule} && priority > 500")
    body = {**BODY, "debounce": {"seconds": 30}}
    hidden = await told(world, "/api/jobs/enqueue", body)
    other = {**body, "payload": {"to": "eve"}}
    is_problem(await world.post("user A", "/api/jobs/enqueue", other), 409, "key_taken")
    is_problem(await world.post("user A", "/api/jobs/enqueue/batch", {"jobs": [other]}), 409, "key_taken")
    assert (await world.jobs.get(hidden["id"])).payload == {"to": "ada"}


@pytest.mark.parametrize(
    ("options", "code", "field"),
    [
        ({"debounce": {"seconds": 0}}, "out_of_range", "debounce.seconds"),
        ({"debounce": {"seconds": 1e12}}, "out_of_range", "debounce.seconds"),
        ({"debounce": {"seconds": 30, "atMost": 5}}, "out_of_range", "debounce.at_most"),
        ({"debounce": {"seconds": 30, "most": 5}}, "unknown_field", "debounce.most"),
        ({"debounce": 30}, "bad_value", "debounce"),
        ({"throttle": -1}, "out_of_range", "throttle"),
        ({"throttle": 1, "key": None}, "needs_key", "throttle"),
        ({"debounce": {"seconds": 1}, "ifLive": "queue"}, "with_debounce", "if_live"),
        ({"debounce": {"seconds": 1}, "delay": 5}, "with_debounce", "delay"),
    ],
)
async def test_wrong_windows(sqlite_world: World, options: dict[str, Any], code: str, field: str) -> None:
    answer = await sqlite_world.post("superuser", "/api/jobs/enqueue", {"topic": "mail", "key": "k", **options})
    assert is_problem(answer, 400, code)["field"] == field


@pytest.mark.parametrize("reason", ["sent by hand", None])
async def test_a_delete_says_why_in_the_audit(world: World, reason: str | None) -> None:
    job_id = await world.enqueue(A)
    query = "" if reason is None else "?reason=sent%20by%20hand"
    assert (await world.call("superuser", "DELETE", f"/api/jobs/{job_id}{query}")).status_code == 204
    [entry] = [
        one
        for one in (await world.get("superuser", "/api/audit")).json()["items"]
        if (one["action"], one["job_id"]) == ("delete", job_id)
    ]
    assert entry["reason"] == reason


@pytest.mark.parametrize("query", ["reason=", "reason=%00", "reason=" + "x" * 2001, "why=x", "reason=a&reason=b"])
async def test_a_reason_that_can_not_be_kept_deletes_nothing(sqlite_world: World, query: str) -> None:
    job_id = await sqlite_world.enqueue(A)
    answer = await sqlite_world.call("superuser", "DELETE", f"/api/jobs/{job_id}?{query}")
    assert is_problem(answer, 400)["field"] in ("reason", "why")
    assert await sqlite_world.find(job_id) is not None
