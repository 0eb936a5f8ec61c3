"""Groups of dead letters over HTTP: what they show, to which callers, and what is refused."""

import pytest

from rowlock.core.fingerprint import fingerprint
from tests.http.harness import A, B, World, is_problem

BOOM = 'Traceback (most recent call last):\n  File "/srv/shop/tasks.py", line {}, in send\n    go()\nValueError: {}'


async def failed(world: World) -> dict[str, str]:
    """Make three groups of dead letters, one for each topic. Return the newest job of each."""
    newest = {}
    for topic, count in (("mail", 3), ("bills", 2), ("other", 1)):
        for n in range(count):
            newest[topic] = await world.ended(A if n else B, topic, error=BOOM.format(n, f"no {n}"))
    return newest


async def test_groups_are_told_the_largest_first(world: World) -> None:
    newest = await failed(world)
    body = (await world.get("read token", "/api/failures")).json()
    assert [(group["topic"], group["count"]) for group in body["items"]] == [("mail", 3), ("bills", 2), ("other", 1)]
    assert (body["next"], body["capped"], body["ungrouped"]) == (None, False, 0)
    group = body["items"][0]
    assert group["fingerprint"] == fingerprint("mail", BOOM.format(9, "x"))
    assert (group["type"], group["frame"], group["title"]) == ("ValueError", "tasks.py:send", "ValueError: no 2")
    assert group["sample"] == newest["mail"]
    assert (len(group["trend"]), sum(group["trend"]), group["trend"][-1]) == (24, 3, 3)
    assert group["first"] <= group["last"]
    by_day = (await world.get("read token", "/api/failures?trend=day&limit=1")).json()
    assert (len(by_day["items"][0]["trend"]), by_day["next"] is None) == (30, False)


async def test_one_group_and_its_jobs(world: World) -> None:
    await failed(world)
    wanted = fingerprint("bills", BOOM.format(1, ""))
    group = (await world.get("read token", f"/api/failures/{wanted}")).json()
    assert (group["topic"], group["count"], group["capped"]) == ("bills", 2, False)
    jobs = (await world.get("read token", f"/api/jobs?fingerprint={wanted}")).json()
    assert (jobs["total"], {item["topic"] for item in jobs["items"]}) == (2, {"bills"})
    for item in jobs["items"]:
        assert (await world.post("manage token", f"/api/jobs/{item['id']}/requeue")).status_code == 200
    is_problem(await world.get("read token", f"/api/failures/{wanted}"), 404, "not_found")


async def test_a_token_for_some_topics_sees_those(world: World) -> None:
    await failed(world)
    body = (await world.get("mail token", "/api/failures")).json()
    assert [group["topic"] for group in body["items"]] == ["mail"]
    assert is_problem(await world.get("mail token", "/api/failures?topic=bills"), 403)["field"] == "topic"
    is_problem(await world.get("mail token", f"/api/failures/{fingerprint('bills', BOOM)}"), 404)
    assert (await world.get("mail token", f"/api/failures/{fingerprint('mail', BOOM)}")).status_code == 200
    is_problem(await world.get("job token", "/api/failures"), 403)
    await world.change_settings(manage_rule="true")
    is_problem(await world.get("user A", "/api/failures"), 403)


async def test_a_user_lists_own_jobs_of_a_group(world: World) -> None:
    await failed(world)
    await world.change_settings(manage_rule="scope_id = @request.auth.id")
    wanted = fingerprint("mail", BOOM)
    body = (await world.get("user A", f"/api/jobs?fingerprint={wanted}")).json()
    assert (body["total"], {item["scope_id"] for item in body["items"]}) == (2, {A})


async def test_groups_of_topics_and_of_a_time(sqlite_world: World) -> None:
    await failed(sqlite_world)
    some = (await sqlite_world.get("superuser", "/api/failures?topic=bills&topic=none")).json()
    assert [group["topic"] for group in some["items"]] == ["bills"]
    later = await sqlite_world.get("superuser", "/api/failures?since=2999-01-01T00:00:00Z")
    assert later.json()["items"] == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"), ("limit=201", "limit"), ("limit=x", "limit"), ("trend=week", "trend"),
        ("topic=", "topic"), ("since=yesterday", "since"), ("since=2026-01-01T00:00:00", "since"),
        ("color=red", "color"),
    ],
)  # fmt: skip
async def test_a_wrong_parameter_is_named(sqlite_world: World, query: str, field: str) -> None:
    assert is_problem(await sqlite_world.get("superuser", f"/api/failures?{query}"), 400)["field"] == field


async def test_what_is_no_fingerprint_is_named(sqlite_world: World) -> None:
    for path in ("/api/failures/nonsense", "/api/failures/%00", "/api/jobs?fingerprint=nonsense"):
        assert is_problem(await sqlite_world.get("superuser", path), 400)["field"] == "fingerprint"
