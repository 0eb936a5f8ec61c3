"""POST /api/jobs/{id}/requeue with changes: one request, one statement, the same job."""

from tests.http.harness import A, World, is_problem

LARGE = 9_223_372_036_854_775_807


async def test_a_dead_letter_is_changed_and_requeued_as_the_job_it_is(world: World) -> None:
    job_id = await world.ended(A, "mail", error="ValueError: no", payload={"n": 1}, key="k", tags=["a"])
    before = (await world.get("superuser", f"/api/jobs/{job_id}")).json()
    asked = {"payload": {"n": LARGE}, "priority": "explicit", "delay": 3600, "tags": ["b"], "reason": "a typo"}
    answer = await world.post("manage token", f"/api/jobs/{job_id}/requeue", {**asked, "version": before["version"]})
    assert answer.status_code == 200, answer.text
    job = answer.json()
    assert (job["id"], job["status"], job["payload"], job["key"]) == (job_id, "pending", {"n": LARGE}, "k")
    assert (job["priority"], job["tags"], job["retries"]) == (150, ["b"], 0)
    assert job["run_at"] > job["updated"]
    events = (await world.get("superuser", f"/api/jobs/{job_id}/events")).json()["items"]
    assert [event["event"] for event in events] == ["enqueued", "claimed", "failed", "requeued"]
    assert events[-1]["data"] == {"reason": "a typo", "changed": ["payload", "priority", "run_at", "tags"]}
    [entry] = [one for one in (await world.get("superuser", "/api/audit")).json()["items"] if one["job_id"] == job_id]
    assert (entry["action"], entry["by"], entry["reason"]) == ("requeue", "token manage token", "a typo")
    assert entry["data"]["before"]["payload"] == {"n": 1}
    assert entry["data"]["after"]["payload"] == {"n": LARGE}


async def test_a_job_that_has_run_again_meanwhile_keeps_what_it_has(world: World) -> None:
    job_id = await world.ended(A, "mail", error="no", payload={"n": 1})
    asked = {"payload": {"n": 2}, "version": 0}
    told = is_problem(await world.post("superuser", f"/api/jobs/{job_id}/requeue", asked), 409, "version_passed")
    assert told["field"] == "version"
    job = await world.job(job_id)
    assert (job.status, job.payload) == ("failed", {"n": 1})
    wrong = {"payload": {"n": 2}, "version": -1}
    is_problem(await world.post("superuser", f"/api/jobs/{job_id}/requeue", wrong), 400, "out_of_range")


async def test_a_payload_that_is_hidden_in_the_audit_stays_so(world: World) -> None:
    await world.change_settings(redact=["password"])
    job_id = await world.ended(A, "mail", error="no", payload={"password": "hunter22"})
    asked = {"payload": {"password": "hunter33"}}
    assert (await world.post("superuser", f"/api/jobs/{job_id}/requeue", asked)).status_code == 200
    audit = (await world.get("superuser", "/api/audit")).text
    assert "hunter" not in audit
    assert '"changed"' not in audit
    assert "[redacted]" in audit
