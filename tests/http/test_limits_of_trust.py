"""Gaps that a caller could use: sessions that come back, tokens that outlive their maker, too telling answers."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rowlock.access import settings, superusers
from rowlock.http import wait_for_end
from rowlock.stores.records import Write
from tests.http.harness import BOSS, PASSWORD, A, B, World, bearer, by_hand, is_problem, user_token


async def test_an_account_that_is_made_again_does_not_take_up_its_old_sessions(world: World) -> None:
    store = await world.store()
    assert (await world.get("superuser", "/api/auth/me")).status_code == 200
    await superusers.delete(store, BOSS, by="test")
    assert (await world.get("superuser", "/api/auth/me")).status_code == 401
    await superusers.create(store, BOSS, PASSWORD, by="test")
    assert (await world.get("superuser", "/api/auth/me")).status_code == 401


async def test_why_tells_users_no_more_than_they_need(world: World) -> None:
    await world.change_settings(manage_rule="scope_id = @request.auth.id")
    job_id = await world.enqueue(A)
    await world.jobs.topics.pause("mail", reason="customer X is leaving", by="boss@corp.example")
    own = (await world.get("user A", f"/api/jobs/{job_id}/why")).json()
    assert own == {"code": "paused", "answer": "Its topic is paused.", "details": []}
    assert "customer X" in (await world.get("read token", f"/api/jobs/{job_id}/why")).text


async def test_a_key_of_another_topic_is_not_in_the_way(world: World) -> None:
    await world.change_settings(manage_rule="scope_id = @request.auth.id", enqueue_rule="scope_id = @request.auth.id")
    await world.jobs.enqueue("other", key="k", scope_id="somebody else")
    mine = {"topic": "mine", "key": "k", "scopeId": A}
    assert (await world.post("user A", "/api/jobs/enqueue/batch", {"jobs": [mine]})).status_code == 200


async def test_a_key_of_another_tenant_is_not_in_the_way(world: World) -> None:
    """This holds for a single job and in a batch, and also for a key without a tenant."""
    await world.change_settings(manage_rule="scope_id = @request.auth.id", enqueue_rule="scope_id = @request.auth.id")
    scopes: list[dict[str, Any]] = [{}, {"scope_id": B}, {"scope": A}]
    held = {(await world.jobs.enqueue("mail", key="k", **scope)).id for scope in scopes}
    mine = {"topic": "mail", "key": "k", "scopeId": A}
    first = await world.post("user A", "/api/jobs/enqueue", mine)
    assert (first.status_code, first.json()["existing"], first.json()["id"] in held) == (200, False, False)
    again = await world.post("user A", "/api/jobs/enqueue/batch", {"jobs": [mine, {**mine, "scope": "user"}]})
    assert [item["existing"] for item in again.json()["items"]] == [True, False]
    assert again.json()["items"][0]["id"] == first.json()["id"]


async def test_the_rule_sees_the_defaults_of_the_task(world: World) -> None:
    async def urgent() -> None: ...

    world.jobs.register("urgent", urgent, priority=900)
    await world.change_settings(enqueue_rule="priority < 200")
    assert (await world.post("user A", "/api/jobs/enqueue", {"topic": "usual"})).status_code == 200
    is_problem(await world.post("user A", "/api/jobs/enqueue", {"topic": "urgent"}), 403)


async def test_a_job_token_lives_no_longer_than_what_it_was_made_by(world: World) -> None:
    await world.change_settings(manage_rule="scope_id = @request.auth.id")
    job_id = await world.enqueue(A)
    soon = datetime.now(UTC) + timedelta(seconds=90)
    short = bearer(user_token(A, exp=soon))
    made = await world.post("anonymous", f"/api/jobs/{job_id}/token", {"seconds": 86_400}, headers=short)
    assert made.status_code == 201
    assert datetime.fromisoformat(made.json()["expires_at"]) <= soon


async def test_nobody_in_particular_gives_no_tokens_away(world: World) -> None:
    await world.change_settings(manage_rule="true")
    job_id = await world.enqueue(A)
    is_problem(await world.post("anonymous", f"/api/jobs/{job_id}/token", {}), 401)


async def test_headers_have_a_limit(world: World) -> None:
    is_problem(await world.get("read token", "/api/jobs", headers={"x-long": "a" * 70_000}), 431)
    many = {f"x-{n}": "a" for n in range(3000)}
    is_problem(await world.get("read token", "/api/jobs", headers=many), 431)


async def test_a_body_of_unknown_length_is_read(world: World) -> None:
    """HTTP/2 may bring such a body: the request says neither its length nor that it comes in pieces."""
    for body in (b"", b'{"reason": "enough"}', b'{"wrong": 1}'):
        job_id = await world.enqueue(A)
        headers, parts = world.who["manage token"].raw_headers, iter([body] if body else [])
        sent = await by_hand(world.api, "POST", f"/api/jobs/{job_id}/cancel", headers=headers, parts=parts)
        assert sent.status == (400 if b"wrong" in body else 200)
        if b"reason" in body:
            assert (await world.jobs.get(job_id)).cancel_reason == "enough"


async def test_one_caller_does_not_take_all_the_places_to_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_for_end, "MOST_OF_ONE", 0)
    job_id = await world.enqueue(A)
    is_problem(await world.get("read token", f"/api/jobs/{job_id}/wait?timeout=30"), 429)


async def test_settings_that_make_no_sense_have_no_effect(world: World) -> None:
    store = await world.store()
    data = {"worker_pool_size": -5, "colour": "red", "poll_interval": 2.0, "allowed_topics": "mail"}
    await store.write_records([Write(settings.KIND, settings.ID, data)])
    current = (await settings.load(store)).settings
    assert (current.worker_pool_size, current.poll_interval, current.allowed_topics) == (10, 2.0, ())


# ── The application's own users, by its own cookie ──


FROM: list[tuple[dict[str, str], int]] = [
    ({}, 403),
    ({"origin": "http://localhost"}, 200),
    ({"sec-fetch-site": "same-origin"}, 200),
    ({"x-rowlock-csrf": "1"}, 200),
    ({"origin": "https://listed.example"}, 403),
    ({"origin": "https://evil.example"}, 403),
]


async def test_a_foreign_page_can_not_use_it(world: World) -> None:
    for headers, status in FROM:
        await world.change_settings(manage_rule="scope_id = @request.auth.id")
        job_id = await world.enqueue(A)
        api = world.another_api(authenticate=by_cookie, origins=("https://listed.example",))
        path = f"/api/jobs/{job_id}/cancel"
        answer = await world.post("anonymous", path, headers={"cookie": f"app={A}", **headers}, api=api)
        assert answer.status_code == status


async def test_who_is_known_by_a_header_needs_no_origin(world: World) -> None:
    await world.change_settings(manage_rule="scope_id = @request.auth.id")
    job_id = await world.enqueue(A)
    api = world.another_api(authenticate=lambda request: {"id": request.headers.get("x-user")})
    answer = await world.post("anonymous", f"/api/jobs/{job_id}/cancel", headers={"x-user": A}, api=api)
    assert answer.status_code == 200


def by_cookie(request: Any) -> dict[str, Any] | None:
    return {"id": found} if (found := request.cookie("app")) else None
