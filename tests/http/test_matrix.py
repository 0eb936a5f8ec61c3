"""Every route for every caller, under every kind of rule: a caller gets in exactly as the route declares."""

from collections.abc import Sequence
from typing import Any

import pytest

from rowlock.access import settings as access_settings
from rowlock.access import short_lived, tokens
from rowlock.access.identity import SCOPES
from rowlock.http.routes import PUBLIC, Access, Route
from rowlock.http.service import get_health
from rowlock.stores.records import Write
from tests.http.harness import BOSS, A, B, Who, World, bearer, is_problem
from tests.http.oracle import (
    CLOSED,
    OPEN,
    OWN,
    REQUESTS,
    RULES,
    TARGETS,
    WATCH,
    Prepare,
    Rules,
    Target,
    by_name,
    every_request,
    every_set,
    expected,
    may,
    signature,
)

CONTENT = '"of":'  # part of every payload here
CANARIES = ("canary-payload", "canary-key", "canary-error", "canary-tag", "canary-scope", "canary-result")


def test_every_route_has_an_expectation() -> None:
    assert REQUESTS.keys() == by_name().keys()


async def ask_all(
    world: World,
    name: str,
    prepare: Prepare,
    rules: Rules,
    target: Target,
    *,
    names: Sequence[str] = (),
    api: Any = None,
) -> list[str]:
    """Ask as every caller, or as those in `names`. Return what is wrong with the answers."""
    route, wrong = by_name()[name], []
    ready = await prepare(world, target)
    for who in [world.who[one] for one in names or world.who]:
        if name in ("POST /api/auth/login", "POST /api/auth/logout") and who.kind == "superuser":
            who = await world.session(who.id, read_only=who.read_only)  # this session ends; the shared one stays
        answer = await world.call(who, route.method, ready.path, ready.json, api=api)
        wanted = expected(route, who, rules, target, ready, read_only=api is not None)
        if 400 <= answer.status_code < 500:
            is_problem(answer)
        if answer.status_code != wanted:
            told = f"{answer.status_code}, not {wanted}: {answer.text[:150]}"
            wrong.append(f"{name} {ready.json} for {who}, {target}, {rules}: {told}")
        if ready.job and CONTENT in answer.text and not may(who, "read", rules, target, ready.job):
            wrong.append(f"{name} {ready.json} for {who}, {target}, {rules} tells what is in the job")
        if answer.is_success and route.method != "GET":  # the request may have used it up
            ready = await prepare(world, target)
    return wrong


def targets(route: Route) -> Sequence[Target]:
    named = ("/api/worker/claim", "/api/templates", "/api/schedules")
    about = "{" in route.path or route.access.kind == "enqueue" or route.path in named
    return TARGETS if about else TARGETS[:1]


@pytest.mark.parametrize(
    "rules", [OWN, *(pytest.param(one, marks=pytest.mark.proof) for one in (CLOSED, OPEN, WATCH))], ids=str
)
async def test_whoever_may_does_and_nobody_else(world: World, rules: Rules) -> None:
    if world.place.kind == "postgres" and rules not in (OWN, WATCH):
        pytest.skip("the database has no part in it: rules that leave a condition are enough")
    await world.change_settings(**rules.settings)
    wrong = []
    for name, prepare in every_request():
        for target in targets(by_name()[name]):
            wrong += await ask_all(world, name, prepare, rules, target)
    assert not wrong, "\n".join(wrong)


async def test_each_rule_lets_through_what_it_is_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every set of rules is tried with every route that rules can open."""
    monkeypatch.setattr(short_lived, "BY_RULE", short_lived.BY_SCOPE)  # each set of rules makes some more tokens
    names = ["user A"] if world.place.kind == "postgres" else ["user A", "anonymous", "read token", "cancel token"]
    wrong = []
    for rules in every_set():
        await world.change_settings(**rules.settings)
        wrong += await ask_by_rules(world, rules, names)
    assert not wrong, "\n".join(wrong)


async def ask_by_rules(world: World, rules: Rules, names: Sequence[str]) -> list[str]:
    wrong = []
    for name, prepare in every_request():
        route = by_name()[name]
        for target in targets(route) if route.access.kind in ("jobs", "enqueue") else ():
            wrong += await ask_all(world, name, prepare, rules, target, names=names)
    return wrong


async def test_an_upgrade_opens_nothing_and_takes_nothing_away(world: World) -> None:
    """The settings are those of a version that had only two rules."""
    old = {"enqueue_rule": RULES["own"], "manage_rule": RULES["own"], "worker_pool_size": 3}
    await (await world.store()).write_records([Write(access_settings.KIND, access_settings.ID, old)])
    world.api.forget_settings()
    shown = (await world.get("admin token", "/api/settings")).json()
    assert (shown["view_rule"], shown["cancel_rule"], shown["given"]) == ("", "", sorted(old))
    names = ["user A", "anonymous", "superuser", *(f"{scope} token" for scope in SCOPES)]
    wrong = await ask_by_rules(world, OWN, names)
    assert not wrong, "\n".join(wrong)


async def test_a_read_only_server_changes_nothing_for_anyone(world: World) -> None:
    await world.change_settings(**OPEN.settings)
    api = world.another_api(read_only=True)
    wrong = []
    for name, prepare in every_request():
        wrong += await ask_all(world, name, prepare, OPEN, TARGETS[0], api=api)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("scopes", [["read"], ["read", "cancel"], ["manage"]], ids=str)
async def test_a_job_token_is_for_its_job(world: World, scopes: list[str]) -> None:
    """With each route, the token reaches its own job as far as its scopes go, and no other job."""
    wrong = []
    for name, prepare in every_request():
        route = by_name()[name]
        if not route.path.startswith("/api/jobs/{id}"):
            continue
        ready = await prepare(world, TARGETS[0])
        token, text = await tokens.create(await world.store(), "one", scopes, by="test", job=ready.job)
        who = Who("its token", bearer(text), scopes=frozenset(scopes), job=token.job)
        answer = await world.call(who, route.method, ready.path, ready.json)
        wanted = expected(route, who, CLOSED, TARGETS[0], ready)
        if answer.status_code != wanted:
            wrong.append(f"{name}: {answer.status_code}, not {wanted}")
    assert wrong == []


# ── A browser that watches and cancels its own jobs ──

# All that view_rule and cancel_rule open. Before you add a route, check that it belongs here.
LOOKS = {"GET /api/jobs", "GET /api/jobs/stats", "GET /api/events"}
WATCHES = {
    *LOOKS, "GET /api/jobs/{id}", "GET /api/jobs/{id}/events", "GET /api/jobs/{id}/logs", "GET /api/jobs/{id}/wait",
    "GET /api/jobs/{id}/line", "GET /api/jobs/{id}/why", "POST /api/jobs/{id}/cancel", "POST /api/jobs/{id}/token",
    "POST /api/jobs/{id}/token {'cancel': True}",
}  # fmt: skip


async def crawl_as(world: World, who: str, target: Target) -> tuple[set[str], set[str]]:
    """Return the requests that are answered with success, and those that have changed the job they are about."""
    done, changed = set(), set()
    for name, prepare in every_request():
        ready = await prepare(world, target)
        before = await world.find(ready.job) if ready.job else None
        answer = await world.call(who, by_name()[name].method, ready.path, ready.json)
        asked = name if REQUESTS[name] is prepare else f"{name} {ready.json}"
        if answer.status_code < 400:
            done.add(asked)
        if ready.job and await world.find(ready.job) != before:
            changed.add(asked)
    return done, changed


@pytest.mark.parametrize("target", TARGETS, ids=str)
async def test_a_browser_watches_and_cancels_its_own_jobs_and_nothing_more(world: World, target: Target) -> None:
    await world.change_settings(**CLOSED.settings)
    anyway, changed = await crawl_as(world, "user A", target)
    assert changed == set()
    await world.change_settings(**WATCH.settings)
    done, changed = await crawl_as(world, "user A", target)
    is_own = target.user == A
    assert done - anyway == (WATCHES if is_own else LOOKS)
    assert changed == ({"POST /api/jobs/{id}/cancel"} if is_own else set())


async def test_a_job_token_learns_nothing_of_topics_and_pauses_none(world: World) -> None:
    assert is_problem(await world.get("job token", "/api/topics"), 403)
    assert is_problem(await world.post("job token", "/api/topics/mail/pause"), 403)
    assert await world.place.fetch("SELECT topic FROM _jobs_topics WHERE paused_at IS NOT NULL") == []


# ── Two tenants ──


async def plant(world: World) -> list[str]:
    """Make jobs of B in several states, with something in every column that A must never read. Return their ids."""
    planted: dict[str, Any] = {"payload": {"canary": "canary-payload"}, "scope": "canary-scope", "tags": ["canary-tag"]}
    return [
        await world.enqueue(B, key="canary-key", **planted),
        await world.enqueue(B, topic="bills", **planted),
        await world.ended(B, "planted", error="canary-error", **planted),
        await world.ended(B, "planted", **planted),
    ]


async def crawl(world: World, who: str, ids: list[str]) -> list[str]:
    """Return what `who` can read of B's jobs, over every route there is."""
    leaks = []
    for name, route in by_name().items():
        if route.access.kind not in ("jobs", "enqueue", "known", "scope"):
            continue
        for job_id in ids if "{id}" in route.path and "/api/jobs" in route.path else ids[:1]:
            ready = await REQUESTS[name](world, Target("mail", A))
            path = ready.path.replace(ready.job, job_id) if ready.job else ready.path
            answer = await world.call(who, route.method, path, ready.json)
            is_aimed = ready.job is not None and ready.job in ready.path  # otherwise the path has its own job's key
            if is_aimed and route.access.kind == "jobs" and answer.status_code != 404:
                leaks.append(f"{name}: {answer.status_code}")
            leaks += [f"{name}: {word}" for word in (*CANARIES, *ids) if word in answer.text and word not in path]
    return leaks


async def test_a_tenant_sees_nothing_of_anothers_jobs(world: World) -> None:
    ids = await plant(world)
    await world.change_settings(enqueue_rule=RULES["own"], manage_rule=RULES["own"])
    before = {job_id: await world.find(job_id) for job_id in ids}
    assert await crawl(world, "user A", ids) == []
    assert {job_id: await world.find(job_id) for job_id in ids} == before


async def test_the_crawl_finds_what_there_is_to_find(world: World) -> None:
    """With everything open, the same crawl must find leaks everywhere."""
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
    shown = world.who["job token"].job  # this job is also A's
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
    await world.change_settings(enqueue_rule="true", manage_rule=RULES["own"])
    own = {"topic": "mail", "payload": {"other": 1}, "scopeId": A}
    for body in (
        {**own, "key": "canary-key", "scope": job.scope, "scopeId": B},
        {**own, "id": taken},
        {**own, "id": taken, "payload": job.payload},
        {**own, "id": taken, "topic": "other"},
    ):
        answer = await world.post("user A", "/api/jobs/enqueue", body)
        told = is_problem(answer, 409, "key_taken")
        assert told["detail"] == f"a job with this {told['field']} is there already"
        assert told["field"] == ("id" if "id" in body else "key")
        assert not any(word in answer.text for word in (*CANARIES, taken))


async def test_a_batch_that_is_refused_has_added_nothing(world: World) -> None:
    """This holds even if the caller may not see the job that is in the way."""
    await plant(world)
    await world.change_settings(enqueue_rule="true", manage_rule=RULES["own"])
    before = await world.place.counts()
    jobs = [
        {"topic": "new", "scopeId": A},
        {"topic": "mail", "scope": "canary-scope", "scopeId": B, "key": "canary-key"},
    ]
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
    """Before you add a route, check that anyone may call it."""
    kinds = ("probe", "page", "public", "callback")
    public = {signature(route) for route in by_name().values() if route.access.kind in kinds}
    assert public == {
        "GET /healthz", "GET /readyz", "POST /api/auth/login", "POST /api/auth/setup",
        "GET /", "GET /_", "GET /_/setup", "GET /_/me", "GET /_/{name}",
        # only with the right token
        "GET /api/callbacks/{token}", "POST /api/callbacks/{token}", "POST /api/callbacks/{token}/progress",
        "POST /api/callbacks/{token}/heartbeat", "POST /api/callbacks/{token}/acknowledge",
    }  # fmt: skip
    assert PUBLIC.bounded is False


async def test_whoever_sees_by_the_oracle_sees_in_the_list(world: World) -> None:
    """A list shows every caller the jobs that the caller sees one by one."""
    jobs = {await world.enqueue(target.user, **target.job): target for target in TARGETS}
    for rules in every_set():
        await world.change_settings(**rules.settings)
        for who in world.who.values() if rules in (CLOSED, OWN, OPEN) else [world.who["user A"]]:
            wanted = {one for one, target in jobs.items() if who.good and may(who, "read", rules, target, one)}
            for path in ("/api/jobs", "/api/events?seconds=0&stats=false"):
                answer = await world.get(who, path)
                assert {one for one in jobs if one in answer.text} == wanted, (path, rules, who.name)


async def test_the_oracle_knows_the_superuser_by_name(world: World) -> None:
    assert (await world.get("superuser", "/api/auth/me")).json()["id"] == BOSS
