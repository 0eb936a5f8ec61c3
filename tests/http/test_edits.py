"""An edit must not get around enqueue_rule and allowed_topics: a job's new content is judged like a new job's."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.http.harness import A, World, is_problem

OWN = "scope_id = @request.auth.id"
LATER = (datetime.now(UTC) + timedelta(days=30)).isoformat()
# By this rule, user A may enqueue mails of its own that are not urgent and not far in the future.
MODEST = (
    f"{OWN} && topic = 'mail' && priority <= 100 && run_at < '{(datetime.now(UTC) + timedelta(days=2)).isoformat()}'"
)

WAYS = ["update", "requeue", "clone"]


async def edit(world: World, who: str, way: str, changes: dict[str, Any], **options: Any) -> tuple[httpx.Response, str]:
    """Enqueue a job and edit it. Return the answer and the job's id. A refused edit must change nothing."""
    job_id = await world.enqueue(A, **options)
    if way == "requeue":
        await world.jobs.cancel(job_id)
    method, suffix = ("PATCH", "") if way == "update" else ("POST", f"/{way}")
    before = await world.job(job_id)
    answer = await world.call(who, method, f"/api/jobs/{job_id}{suffix}", changes)
    if not answer.is_success:
        assert await world.job(job_id) == before
    return answer, job_id


@pytest.mark.parametrize("way", WAYS)
async def test_the_new_content_must_satisfy_enqueue_rule(world: World, way: str) -> None:
    await world.change_settings(manage_rule=OWN, enqueue_rule=MODEST)
    for fine in (
        {"priority": 50},
        {"payload": {"amount": 2}},
        {"tags": ["a"]},
        {"delay": 60},
        {"priority": "backfill"},
    ):
        answer, _ = await edit(world, "user A", way, fine)
        assert answer.status_code == 200, answer.text
    for wrong in ({"priority": 101}, {"priority": "explicit"}, {"run_at": LATER}, {"delay": 30 * 86_400}):
        answer, _ = await edit(world, "user A", way, wrong)
        assert "enqueue_rule" in is_problem(answer, 403, "not_allowed")["detail"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("changes", [{"payload": {"amount": 100_000}}, {"priority": 50}, {"tags": ["a"]}, {"delay": 1}])
async def test_what_is_not_changed_counts_as_well(world: World, way: str, changes: dict[str, Any]) -> None:
    """The application itself has enqueued the job. The user could not have enqueued it."""
    await world.change_settings(manage_rule=OWN, enqueue_rule=MODEST)
    is_problem((await edit(world, "user A", way, changes, topic="bills"))[0], 403)
    is_problem((await edit(world, "user A", way, {**changes, "priority": 150}))[0], 403)
    await world.change_settings(enqueue_rule="")
    is_problem((await edit(world, "user A", way, changes))[0], 403)


@pytest.mark.parametrize("way", WAYS)
async def test_allowed_topics_bind_edits_of_everyone_but_admins(world: World, way: str) -> None:
    await world.change_settings(manage_rule=OWN, enqueue_rule=OWN, allowed_topics=["mail"])
    both = await world.token("both", ["manage", "enqueue"])
    world.who["both"] = both
    for who in ("user A", "both", *(["manage token"] if way != "clone" else [])):
        assert (await edit(world, who, way, {"priority": 5}))[0].status_code == 200
        answer, _ = await edit(world, who, way, {"priority": 5}, topic="bills")
        assert is_problem(answer, 403, "not_allowed")["field"] == "topic"
    for who in ("superuser", "admin token"):
        assert (await edit(world, who, way, {"priority": 5}, topic="bills"))[0].status_code == 200


@pytest.mark.parametrize("who", ["manage token", "mail token", "superuser"])
@pytest.mark.parametrize("way", ["update", "requeue"])
async def test_the_scope_manage_needs_no_enqueue_rule(world: World, who: str, way: str) -> None:
    await world.change_settings(enqueue_rule="priority < 0")
    answer, job_id = await edit(world, who, way, {"priority": 900, "payload": {"amount": 2}})
    assert answer.status_code == 200
    job = await world.job(job_id)
    assert (job.priority, job.payload) == (900, {"amount": 2})


async def test_a_plain_requeue_needs_manage_rule_alone(world: World) -> None:
    await world.change_settings(manage_rule=OWN, allowed_topics=["other"])
    for body in ({}, {"reason": "again"}, {"version": 0}):
        answer, _ = await edit(world, "user A", "requeue", body)
        assert (answer.status_code, answer.json()["status"]) == (200, "pending")


async def test_what_is_wrong_with_an_edit_is_still_named(world: World) -> None:
    await world.change_settings(manage_rule=OWN, enqueue_rule=OWN)
    for body, field in (
        ({}, "update"), ({"priority": "highest"}, "priority"), ({"run_at": "2030-01-01T00:00:00"}, "run_at"),
        ({"run_at": LATER, "delay": 1}, "delay"), ({"delay": -1}, "delay"),
    ):  # fmt: skip
        assert is_problem((await edit(world, "user A", "update", body))[0], 400)["field"] == field
