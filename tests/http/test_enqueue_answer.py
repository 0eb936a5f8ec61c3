"""However a job is enqueued, the answer has one shape; and it tells of another's job nothing."""

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
    """One that took the key between the look and the insert: the rest of the batch is there by then."""
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
