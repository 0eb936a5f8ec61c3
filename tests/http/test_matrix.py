"""Every route for everyone, under every kind of rule: who gets in is what the route declares, and nothing else."""

from typing import Any

import pytest

from rowlock.access import tokens
from rowlock.http.routes import PUBLIC, Access, Route
from rowlock.http.service import get_health
from tests.http.harness import BOSS, A, B, Who, World, bearer, is_problem
from tests.http.oracle import REQUESTS, RULES, TARGETS, Target, by_name, expected, sees, signature

CANARIES = ("canary-payload", "canary-key", "canary-error", "canary-tag", "canary-scope", "canary-result")


def test_every_route_has_an_expectation() -> None:
    assert REQUESTS.keys() == by_name().keys()


async def ask_all(world: World, name: str, rule: str, target: Target, *, api: Any = None) -> list[str]:
    """What is wrong with the answers that everyone gets."""
    route, wrong = by_name()[name], []
    ready = await REQUESTS[name](world, target)
    for who in list(world.who.values()):
        if name in ("POST /api/auth/login", "POST /api/auth/logout") and who.kind == "superuser":
            who = await world.session(who.id, read_only=who.read_only)  # ends by it; the other one is still needed
        answer = await world.call(who, route.method, ready.path, ready.json, api=api)
        wanted = expected(route, who, rule, target, ready.job, ready.done, read_only=api is not None)
        if 400 <= answer.status_code < 500:
            is_problem(answer)
        if answer.status_code != wanted:
            wrong.append(f"{name} for {who}, {target}: {answer.status_code}, not {wanted}: {answer.text[:150]}")
        if answer.is_success and route.method != "GET":  # may have used it up
            ready = await REQUESTS[name](world, target)
    return wrong


@pytest.mark.parametrize("rule", RULES)
async def test_whoever_may_does_and_nobody_else(world: World, rule: str) -> None:
    if world.place.kind == "postgres" and rule != "own":
        pytest.skip("the database has no part in it: a rule that leaves a condition is enough")
    await world.change_settings(enqueue_rule=RULES[rule], manage_rule=RULES[rule])
    wrong = []
    for name, route in by_name().items():
        about = "{" in route.path or route.access.kind == "enqueue" or route.path == "/api/worker/claim"
        for target in TARGETS if about else TARGETS[:1]:
            wrong += await ask_all(world, name, rule, target)
    assert not wrong, "\n".join(wrong)


async def test_a_read_only_server_changes_nothing_for_anyone(world: World) -> None:
    await world.change_settings(enqueue_rule="true", manage_rule="true")
    api = world.another_api(read_only=True)
    wrong = []
    for name in by_name():
        wrong += await ask_all(world, name, "open", TARGETS[0], api=api)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("scope", ["read", "manage"])
async def test_a_job_token_is_for_its_job(world: World, scope: str) -> None:
    """With each route: its own job as far as its scope goes, and no other."""
    wrong = []
    for name, route in by_name().items():
        if not route.path.startswith("/api/jobs/{id}"):
            continue
        ready = await REQUESTS[name](world, TARGETS[0])
        token, text = await tokens.create(await world.store(), "one", [scope], by="test", job=ready.job)
        who = Who("its token", bearer(text), scopes=frozenset({scope}), job=token.job)
        answer = await world.call(who, route.method, ready.path, ready.json)
        wanted = expected(route, who, "closed", TARGETS[0], ready.job, ready.done)
        if answer.status_code != wanted:
            wrong.append(f"{name}: {answer.status_code}, not {wanted}")
    assert wrong == []


async def test_a_job_token_learns_nothing_of_topics_and_pauses_none(world: World) -> None:
    assert is_problem(await world.get("job token", "/api/topics"), 403)
    assert is_problem(await world.post("job token", "/api/topics/mail/pause"), 403)
    assert await world.place.fetch("SELECT topic FROM _jobs_topics WHERE paused_at IS NOT NULL") == []


# ── Two tenants ──


async def plant(world: World) -> list[str]:
    """Jobs of B in several states, with something in every column that A must never read."""
    planted: dict[str, Any] = {"payload": {"canary": "canary-payload"}, "scope": "canary-scope", "tags": ["canary-tag"]}
    return [
        await world.enqueue(B, key="canary-key", **planted),
        await world.enqueue(B, topic="bills", **planted),
        await world.ended(B, "planted", error="canary-error", **planted),
        await world.ended(B, "planted", **planted),
    ]


async def crawl(world: World, who: str, ids: list[str]) -> list[str]:
    """What `who` can read of B's jobs, over every route there is."""
    leaks = []
    for name, route in by_name().items():
        if route.access.kind not in ("jobs", "enqueue", "known", "scope"):
            continue
        for job_id in ids if "{id}" in route.path and "/api/jobs" in route.path else ids[:1]:
            ready = await REQUESTS[name](world, Target("mail", A))
            path = ready.path.replace(ready.job, job_id) if ready.job else ready.path
            answer = await world.call(who, route.method, path, ready.json)
            if ready.job and route.access.kind == "jobs" and answer.status_code != 404:
                leaks.append(f"{name}: {answer.status_code}")
            leaks += [f"{name}: {word}" for word in (*CANARIES, *ids) if word in answer.text and word not in path]
    return leaks


async def test_a_tenant_sees_nothing_of_anothers_jobs(world: World) -> None:
    ids = await plant(world)
    await world.change_settings(enqueue_rule=RULES["own"], manage_rule=RULES["own"])
    before = {job_id: await world.job(job_id) for job_id in ids}
    assert await crawl(world, "user A", ids) == []
    assert {job_id: await world.job(job_id) for job_id in ids} == before


async def test_the_crawl_finds_what_there_is_to_find(world: World) -> None:
    """With everything open, the same crawl must be full of leaks."""
    ids = await plant(world)
    await world.change_settings(enqueue_rule="true", manage_rule="true")
    leaks = " ".join(await crawl(world, "user A", ids))
    assert all(word in leaks for word in ("canary-payload", "canary-key", "canary-error", "canary-tag", "200"))


QUERIES = [
    "", "?topic=mail", "?topic=planted", "?status=failed", "?status=pending", "?key=canary-key", "?tag=canary-tag",
    "?scope=canary-scope", f"?scopeId={B}", f"?scopeId={A}", "?payload=canary=canary-payload", "?error=canary",
    "?limit=200", "?createdFrom=2020-01-01T00:00:00Z",
]  # fmt: skip


async def test_no_filter_counts_or_finds_anothers_jobs(world: World) -> None:
    ids = await plant(world)
    own = [await world.enqueue(A), await world.ended(A, "own", error="mine")]
    await world.change_settings(manage_rule=RULES["own"])
    shown = world.who["job token"].job  # is A's as well
    for query in [*QUERIES, *(f"?id={job_id}" for job_id in ids)]:
        answer = await world.get("user A", f"/api/jobs{query}")
        body = answer.json()
        assert answer.status_code == 200, answer.text
        assert {item["id"] for item in body["items"]} <= {*own, shown}, query
        assert body["total"] == len(body["items"]), query
        assert not any(word in answer.text for word in CANARIES)


async def test_stats_count_ones_own_jobs_alone(world: World) -> None:
    await plant(world)
    await world.ended(A, "own", error="mine")
    await world.change_settings(manage_rule=RULES["own"])
    stats = (await world.get("user A", "/api/jobs/stats")).json()
    assert (stats["pending"], stats["failed"], stats["completed"]) == (1, 1, 0)
    assert stats["topics"] == {}
    of_topic = (await world.get("user A", "/api/jobs/stats?topic=planted")).json()
    assert not any(of_topic[status] for status in ("pending", "failed", "completed", "processing"))


async def test_a_key_or_id_of_anothers_job_tells_nothing_about_it(world: World) -> None:
    [taken, *_] = await plant(world)
    job = await world.job(taken)
    assert job
    await world.change_settings(enqueue_rule=RULES["own"], manage_rule=RULES["own"])
    own = {"topic": "mail", "payload": {"other": 1}, "scopeId": A}
    for body in (
        {**own, "key": "canary-key"},
        {**own, "id": taken},
        {**own, "id": taken, "payload": job.payload},
        {**own, "id": taken, "topic": "other"},
    ):
        answer = await world.post("user A", "/api/jobs/enqueue", body)
        told = is_problem(answer, 409, "key_taken")
        assert told["detail"] == "a job with this key or id is there already"
        assert not any(word in answer.text for word in (*CANARIES, taken))


async def test_a_batch_that_is_refused_has_added_nothing(world: World) -> None:
    """Also if what is in the way is a job that one may not see."""
    await plant(world)
    await world.change_settings(enqueue_rule=RULES["own"], manage_rule=RULES["own"])
    before = await world.place.counts()
    jobs = [{"topic": "new", "scopeId": A}, {"topic": "mail", "scopeId": A, "key": "canary-key"}]
    is_problem(await world.post("user A", "/api/jobs/enqueue/batch", {"jobs": jobs}), 409, "key_taken")
    assert await world.place.counts() == before


async def test_what_the_server_decides_can_not_be_set_by_a_client(world: World) -> None:
    for name in ("status", "version", "retries", "crashes", "lockedBy", "locked_by", "created", "result", "attempt"):
        body = {"topic": "mail", name: 1}
        assert is_problem(await world.post("superuser", "/api/jobs/enqueue", body), 400)["field"] == name
    job_id = await world.enqueue(A)
    for name in ("scopeId", "scope_id", "topic", "status", "version", "id", "key"):
        answer = await world.call("superuser", "PATCH", f"/api/jobs/{job_id}", {name: "x"})
        assert is_problem(answer, 400, "unknown_field")["field"] == name


# ── Start-up ──


@pytest.mark.parametrize("access", [None, "public", "", True])
def test_a_route_that_does_not_say_who_may_call_it_is_an_error_at_start_up(access: Any) -> None:
    with pytest.raises(TypeError):
        Route(method="GET", path="/x", access=access, handler=get_health, summary="x")


def test_a_route_of_an_unknown_scope_is_an_error_at_start_up() -> None:
    with pytest.raises(TypeError):
        Access("scope", "root")
    with pytest.raises(TypeError):
        Access("jobs")


def test_what_anyone_may_call_is_a_short_list() -> None:
    """Whoever adds to it thinks twice."""
    public = {signature(route) for route in by_name().values() if route.access.kind in ("probe", "page", "public")}
    assert public == {
        "GET /healthz", "GET /readyz", "POST /api/auth/login", "POST /api/auth/setup",
        "GET /", "GET /_", "GET /_/setup", "GET /_/me", "GET /_/{name}",
    }  # fmt: skip
    assert PUBLIC.bounded is False


async def test_whoever_sees_by_the_oracle_sees_in_the_list(world: World) -> None:
    """A list shows what single looks show, for everyone."""
    jobs = {await world.enqueue(target.user, topic=target.topic): target for target in TARGETS}
    for rule, text in RULES.items():
        await world.change_settings(manage_rule=text)
        for who in world.who.values():
            answer = await world.get(who, "/api/jobs")
            found = {item["id"] for item in answer.json().get("items", [])}
            wanted = {job_id for job_id, target in jobs.items() if who.good and sees(who, "read", rule, target, job_id)}
            assert found & jobs.keys() == wanted, (rule, who.name)


async def test_the_oracle_knows_the_superuser_by_name(world: World) -> None:
    assert (await world.get("superuser", "/api/auth/me")).json()["id"] == BOSS
