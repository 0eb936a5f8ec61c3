"""The settings, as callers see them: what each of them lets through, and that a change applies everywhere."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rowlock import Jobs
from rowlock.access import settings as access_settings
from rowlock.core.conditions import required
from rowlock.stores.records import Write
from tests.http.harness import ANYONE, A, B, Who, World, bearer, is_problem, user_token
from tests.http.oracle import REQUESTS, TARGETS, by_name
from tests.stores.harness import claim_by
from tests.waiting import until

OWN = "scope_id = @request.auth.id"
ENQUEUE = "/api/jobs/enqueue"


# ── manage_rule ──


async def test_whoever_owns_a_job_sees_and_steers_it_in_every_way(world: World) -> None:
    await world.change_settings(manage_rule=OWN, enqueue_rule=OWN)
    own, other = await world.enqueue(A), await world.enqueue(B)
    for path in ("", "/events", "/logs", "/why", "/wait?timeout=0"):
        assert (await world.get("user A", f"/api/jobs/{own}{path}")).status_code == 200, path
        is_problem(await world.get("user A", f"/api/jobs/{other}{path}"), 404, "not_found")
    for path in ("/cancel", "/requeue"):
        assert (await world.post("user A", f"/api/jobs/{own}{path}")).status_code == 200, path
        is_problem(await world.post("user A", f"/api/jobs/{other}{path}"), 404, "not_found")
    assert (await world.call("user A", "PATCH", f"/api/jobs/{own}", {"priority": 7})).json()["priority"] == 7
    is_problem(await world.call("user A", "PATCH", f"/api/jobs/{other}", {"priority": 7}), 404)
    assert (await world.call("user A", "DELETE", f"/api/jobs/{own}")).status_code == 204
    is_problem(await world.call("user A", "DELETE", f"/api/jobs/{other}"), 404)
    job = await world.job(other)
    assert (job.status, job.version, job.priority) == ("pending", 0, 100)


async def test_what_may_not_be_seen_is_refused_like_what_is_not_there(world: World) -> None:
    await world.change_settings(manage_rule=OWN)
    other = await world.enqueue(B)
    nowhere = "0193fb1e-0000-7000-8000-000000000000"
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/wait"), ("GET", "/why")):
        hidden, missing = [
            is_problem(await world.call("user A", method, f"/api/jobs/{job_id}{path}")) for job_id in (other, nowhere)
        ]
        hidden.pop("request_id")
        missing.pop("request_id")
        assert hidden == missing


async def test_a_list_holds_what_the_rule_lets_through_page_by_page(world: World) -> None:
    own = [await world.enqueue(user) for n in range(12) if (user := (A, B, None)[n % 3]) == A or user]
    await world.change_settings(manage_rule=OWN)
    mine = [job_id for job_id in own if (await world.job(job_id)).scope_id == A]
    found, cursor = [], ""
    while True:
        page = (await world.get("user A", f"/api/jobs?topic=mail&limit=2{cursor}")).json()
        assert page["total"] == len(mine)
        found += [item["id"] for item in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert found == mine[::-1]


async def test_jobs_without_a_scope_are_nobodys(world: World) -> None:
    job_id = await world.enqueue(None)
    await world.change_settings(manage_rule=OWN)
    is_problem(await world.get("user A", f"/api/jobs/{job_id}"), 404)
    is_problem(await world.get(ANYONE, f"/api/jobs/{job_id}"), 401)


async def test_a_wait_ends_with_the_job(world: World) -> None:
    await world.change_settings(manage_rule=OWN)
    job_id = await world.enqueue(A)
    waiting = asyncio.create_task(world.get("user A", f"/api/jobs/{job_id}/wait?timeout=30"))
    await world.post("user A", f"/api/jobs/{job_id}/cancel")
    assert (await waiting).json()["status"] == "cancelled"


async def test_a_rule_that_is_taken_back_ends_what_one_could_see(world: World) -> None:
    await world.change_settings(manage_rule=OWN)
    job_id = await world.enqueue(A)
    await world.jobs.cancel(job_id)
    await world.change_settings(manage_rule="")
    is_problem(await world.get("user A", f"/api/jobs/{job_id}/wait"), 403)


@pytest.mark.parametrize(
    ("rule", "sees"),
    [
        ("true", True), ("", False), ("   ", False), ("false", False), ("@request.auth.id != ''", True),
        ("@request.auth.role = 'member' && topic ~ 'ma%'", True), ("@request.auth.role = 'ops'", False),
        ("topic = 'mail' && status = 'pending'", True), ("topic ~ 'MAIL'", False), ("priority > 100", False),
        ("scope_id = @request.auth.nothing", False), ("scope_id != @request.auth.nothing", False),
        ("(topic = 'x' || scope_id = 'user-a') && key = ''", True), ("created > '2020-01-01T00:00:00Z'", True),
        ("id = ''", False), ("@request.auth.exp > 1", True), ("created < @now && @now > '2026-01-01T00:00:00Z'", True),
        ("created > @now", False), ("created > @yesterday // and no older", True), ("key = null && id != null", True),
        ("// true", False), ("@request.auth.role ?= 'member' && @request.auth.nothing = null", True),
    ],
)  # fmt: skip
async def test_one_job_and_the_list_agree_on_every_rule(world: World, rule: str, sees: bool) -> None:
    job_id = await world.enqueue(A)
    await world.change_settings(manage_rule=rule)
    alone = await world.get("user A", f"/api/jobs/{job_id}")
    listed = await world.get("user A", "/api/jobs?topic=mail")
    stats = await world.get("user A", "/api/jobs/stats?topic=mail")
    assert (alone.status_code == 200) == sees
    assert ([item["id"] for item in listed.json().get("items", [])] == [job_id]) == sees
    assert (stats.json().get("pending", 0) == 1) == sees


# ── Claims of all kinds ──

CLAIMS: dict[str, Any] = {
    "teams": ["user-b", "user-a"], "roles": ["dev", "ops"], "admin": True, "guest": False, "tenant-id": "t1",
    "cognito:groups": ["g1"], "https://acme.com/roles": ["owner"], "many": [1] * 1001, "odd": [{}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "sees"),
    [
        ("scope_id ?= @request.auth.teams", True), ("scope_id = @request.auth.teams", False),
        ("scope_id != @request.auth.roles", True), ("scope_id ?= @request.auth.roles", False),
        ("@request.auth.roles ?= 'ops'", True), ("@request.auth.roles = 'ops'", False),
        ("scope_id ?~ @request.auth.teams && scope_id ?!~ @request.auth.teams", True),
        ("@request.auth.admin = true && @request.auth.guest = false", True), ("@request.auth.admin = 'true'", True),
        ("@request.auth.guest = true", False), ("@request.auth.missing = false", False),
        ("@request.auth.tenant-id = 't1' && @request.auth.cognito:groups ?= 'g1'", True),
        ("@request.auth.'https://acme.com/roles' ?= 'owner'", True),
        ("@request.auth.many ?= 1 || priority != @request.auth.many", False),
        ("scope_id != @request.auth.odd || @request.auth.odd = ''", False),
    ],
)  # fmt: skip
async def test_claims_of_all_kinds_mean_the_same_everywhere(world: World, rule: str, sees: bool) -> None:
    ann = Who("ann", kind="user", headers=bearer(user_token("ann", **CLAIMS)))
    job_id = await world.enqueue(A)
    await world.change_settings(manage_rule=rule)
    alone = await world.get(ann, f"/api/jobs/{job_id}")
    listed = await world.get(ann, "/api/jobs?topic=mail")
    assert (alone.status_code == 200) == sees
    assert ([item["id"] for item in listed.json().get("items", [])] == [job_id]) == sees
    assert (await explained(world, claims={"id": "ann", **CLAIMS}, job=job_id))["allowed"] is sees


# ── view_rule and cancel_rule ──


async def test_who_may_cancel_a_job_but_not_see_it_learns_nothing_of_it(world: World) -> None:
    await world.change_settings(cancel_rule=OWN)
    running, ended = await world.enqueue(A, topic="run"), await world.ended(A, "ended", error="canary")
    await (await world.store()).claim(claim_by("w1", "run", limit=1))
    for job_id in (await world.enqueue(A), running):
        for _ in range(2):  # the second time, the job was asked to stop before, or is cancelled already
            answer = await world.post("user A", f"/api/jobs/{job_id}/cancel", {"reason": "enough"})
            if answer.status_code != 409:
                assert answer.json() == {"id": job_id}
        job = await world.job(job_id)
        assert (job.cancel_requested_at is not None, job.cancel_reason) == (True, "enough")
        is_problem(await world.get("user A", f"/api/jobs/{job_id}"), 403)
    told = is_problem(await world.post("user A", f"/api/jobs/{ended}/cancel"), 409, "wrong_state")
    assert "failed" not in str(told)
    is_problem(await world.post("user A", f"/api/jobs/{await world.enqueue(B)}/cancel"), 404, "not_found")
    await world.change_settings(view_rule=OWN)
    assert (await world.post("user A", f"/api/jobs/{await world.enqueue(A)}/cancel")).json()["status"] == "cancelled"
    told = is_problem(await world.post("user A", f"/api/jobs/{ended}/cancel"), 409, "wrong_state")
    assert told["job_status"] == "failed"


async def test_the_answer_to_a_cancel_is_judged_on_the_job_as_it_is_then(world: World) -> None:
    await world.change_settings(cancel_rule=OWN, view_rule=f"{OWN} && status = 'pending'")
    job_id = await world.enqueue(A)
    assert (await world.get("user A", f"/api/jobs/{job_id}")).status_code == 200
    assert (await world.post("user A", f"/api/jobs/{job_id}/cancel")).json() == {"id": job_id}


async def test_who_sees_a_job_is_told_what_it_would_need_to_do_more(world: World) -> None:
    only_bills = f"{OWN} && topic = 'bills'"
    await world.change_settings(view_rule=OWN, cancel_rule=only_bills, manage_rule=only_bills)
    own, other = await world.enqueue(A), await world.enqueue(B)
    for method, path in (("POST", "/cancel"), ("POST", "/requeue"), ("DELETE", "")):
        told = is_problem(await world.call("user A", method, f"/api/jobs/{own}{path}"), 403, "not_allowed")
        assert "manage_rule" in told["detail"]
        is_problem(await world.call("user A", method, f"/api/jobs/{other}{path}"), 404, "not_found")


async def test_rules_that_overlap_still_lead_lists_to_an_index(world: World) -> None:
    """A list uses view_rule or manage_rule. If one implies the other, the list asks for one scope_id."""
    bounded = f"{OWN} && topic = 'mail'"
    for view, manage in ((OWN, OWN), (OWN, bounded), (bounded, OWN), (bounded, f"{bounded} && priority > 5")):
        await world.change_settings(view_rule=view, manage_rule=manage)
        current = await access_settings.load(await world.store())
        assert required(current.granted("read", {"id": A}))["scope_id"] == A


async def test_a_token_for_one_job_may_no_more_than_its_maker(world: World) -> None:
    await world.change_settings(view_rule=OWN, enqueue_rule=OWN)
    job_id = await world.enqueue(A)
    path = f"/api/jobs/{job_id}"

    async def made(**body: Any) -> Who:
        answer = await world.post("user A", f"{path}/token", body)
        assert answer.status_code == 201, answer.text
        return Who("made", bearer(answer.json()["token"]))

    looks = await made()
    assert is_problem(await world.post("user A", f"{path}/token", {"cancel": True}), 403)["field"] == "cancel"
    await world.change_settings(cancel_rule=OWN)
    cancels = await made(cancel=True)
    # A token with the scope manage would not have to satisfy enqueue_rule, as its maker has to.
    await world.change_settings(manage_rule=OWN)
    assert is_problem(await world.post("user A", f"{path}/token", {"manage": True}), 403)["field"] == "manage"
    await world.change_settings(view_rule="", cancel_rule="", manage_rule="")
    for who in (looks, cancels):
        assert (await world.get(who, path)).status_code == 200
        for method, more, body in (("PATCH", "", {"priority": 5}), ("DELETE", "", None), ("POST", "/requeue", None)):
            is_problem(await world.call(who, method, f"{path}{more}", body), 403, "not_allowed")
        is_problem(await world.post(who, f"{path}/token", {}), 403, "not_allowed")
    is_problem(await world.post(looks, f"{path}/cancel"), 403, "not_allowed")
    assert (await world.post(cancels, f"{path}/cancel")).json()["status"] == "cancelled"


# ── enqueue_rule and allowed_topics ──


async def test_enqueue_rule_sees_the_job_that_is_to_be(world: World) -> None:
    await world.change_settings(enqueue_rule=f"{OWN} && topic ~ 'report%' && priority <= 100 && max_retries < 5")
    right = {"topic": "report.daily", "scopeId": A}
    assert (await world.post("user A", ENQUEUE, right)).status_code == 200
    before = await world.place.counts()
    for wrong in (
        {**right, "scopeId": B}, {"topic": "report.daily"}, {**right, "topic": "mail"}, {**right, "priority": 101},
        {**right, "priority": "explicit"}, {**right, "maxRetries": 5}, {**right, "scopeId": A.upper()},
    ):  # fmt: skip
        is_problem(await world.post("user A", ENQUEUE, wrong), 403, "not_allowed")
        is_problem(await world.post("user A", f"{ENQUEUE}/batch", {"jobs": [right, wrong]}), 403, "not_allowed")
    is_problem(await world.post(ANYONE, ENQUEUE, right), 401)
    assert await world.place.counts() == before


async def test_a_clone_is_judged_like_a_new_job(world: World) -> None:
    await world.change_settings(manage_rule=OWN, enqueue_rule=f"{OWN} && topic = 'mail' && priority < 200")
    mail, other = await world.enqueue(A), await world.enqueue(A, topic="other")
    assert (await world.post("user A", f"/api/jobs/{mail}/clone")).status_code == 200
    is_problem(await world.post("user A", f"/api/jobs/{mail}/clone", {"priority": 200}), 403)
    is_problem(await world.post("user A", f"/api/jobs/{other}/clone"), 403)


async def test_who_may_enqueue_may_not_look(world: World) -> None:
    await world.change_settings(enqueue_rule="true", manage_rule="")
    made = await world.post(ANYONE, ENQUEUE, {"topic": "mail"})
    assert made.status_code == 200
    is_problem(await world.get(ANYONE, f"/api/jobs/{made.json()['id']}"), 401)


async def test_allowed_topics_bind_everyone_but_admins(world: World) -> None:
    await world.change_settings(enqueue_rule="true", allowed_topics=["mail"])
    for who in ("anonymous", "user A", "enqueue token"):
        assert (await world.post(who, ENQUEUE, {"topic": "mail"})).status_code == 200
        assert is_problem(await world.post(who, ENQUEUE, {"topic": "bills"}))["status"] in (401, 403)
        jobs = [{"topic": "mail"}, {"topic": "bills"}]
        assert is_problem(await world.post(who, f"{ENQUEUE}/batch", {"jobs": jobs}))["status"] in (401, 403)
    assert (await world.post("superuser", ENQUEUE, {"topic": "bills"})).status_code == 200
    [(count,)] = await world.place.fetch("SELECT count(*) FROM _jobs WHERE topic = 'bills'")
    assert count == 1


async def test_a_key_hit_is_the_same_job_for_its_owner(world: World) -> None:
    await world.change_settings(enqueue_rule=OWN, manage_rule=OWN)
    body = {"topic": "mail", "scopeId": A, "key": "once"}
    first, second = [await world.post("user A", ENQUEUE, body) for _ in range(2)]
    assert first.json()["id"] == second.json()["id"]
    assert second.json()["existing"] is True


# ── http_enabled ──


async def test_switched_off_only_the_probes_are_left(world: World) -> None:
    ready = {name: await REQUESTS[name](world, TARGETS[0]) for name in by_name()}
    await world.change_settings(http_enabled=False)
    before = await world.place.counts()
    for name, route in by_name().items():
        for who in ("anonymous", "admin token", "superuser"):
            answer = await world.call(who, route.method, ready[name].path, ready[name].json)
            if route.access.kind == "probe":
                assert answer.status_code == 200
            else:
                is_problem(answer, 404, "http_disabled")
    answer = await world.call(ANYONE, "OPTIONS", "/api/jobs", headers={"origin": "http://localhost"})
    is_problem(answer, 404, "http_disabled")
    assert await world.place.counts() == before
    await access_settings.change(await world.store(), {"http_enabled": True}, by="test")
    await until(lambda: _answers(world))


async def _answers(world: World, who: str = "admin token", **more: Any) -> bool:
    return (await world.get(who, "/api/jobs", **more)).status_code == 200


# ── Changes ──


async def test_a_change_applies_in_other_processes_too(world: World) -> None:
    async with Jobs(world.place.url) as elsewhere:
        api = World(world.place, elsewhere).api
        assert not await _answers(world, "user A", api=api)
        await world.change_settings(manage_rule=OWN)
        assert await _answers(world, "user A"), "here it applies at once"
        await until(lambda: _answers(world, "user A", api=api))
        await world.change_settings(manage_rule="")

        async def is_closed() -> bool:
            return not await _answers(world, "user A", api=api)

        await until(is_closed)


async def test_null_means_the_default_again(world: World) -> None:
    await world.change_settings(manage_rule="true", worker_pool_size=3)
    changed = await world.call("admin token", "PATCH", "/api/settings", {"manage_rule": None})
    assert (changed.json()["manage_rule"], changed.json()["given"]) == ("", ["worker_pool_size"])
    is_problem(await world.get(ANYONE, "/api/jobs"), 401)


async def test_changes_at_the_same_moment_all_count(world: World) -> None:
    changes = [{"worker_pool_size": 7}, {"poll_interval": 2.5}, {"lock_duration": 77}, {"allowed_topics": ["mail"]}]
    await asyncio.gather(*(world.call("admin token", "PATCH", "/api/settings", change) for change in changes))
    now = (await world.get("admin token", "/api/settings")).json()
    wanted = {"worker_pool_size": 7, "poll_interval": 2.5, "lock_duration": 77.0, "allowed_topics": ["mail"]}
    assert wanted.items() <= now.items()


@pytest.mark.parametrize("rule", ["topic =", "nothing = 1", "a b c", "topic ~ (", "@request.auth.id", "x" * 500])
async def test_a_rule_that_can_not_be_read_denies(world: World, rule: str, caplog: pytest.LogCaptureFixture) -> None:
    """Another version of the server may have written the rule."""
    job_id = await world.enqueue(A)
    store = await world.store()
    data = dict.fromkeys(access_settings.RULES, rule)
    await store.write_records([Write(access_settings.KIND, access_settings.ID, data)])
    api = world.another_api()
    is_problem(await world.get("user A", "/api/jobs", api=api), 403)
    is_problem(await world.get("user A", f"/api/jobs/{job_id}", api=api), 403)
    is_problem(await world.post(ANYONE, ENQUEUE, {"topic": "mail"}, api=api), 401)
    assert (await world.get("superuser", "/api/jobs", api=api)).status_code == 200
    assert "can't be read" in caplog.text


BAD_RULES: list[tuple[str, int]] = [
    ("topic =", 8), ("topic = 'a' &&", 15), ("nothing = 'a'", 1), ("topic = 'a' || (scope = 'b'", 28),
    ("topic = 'a", 9), ("topic; DROP", 6), ("priority = 'high'", 1), ("@request.body.id = 'a'", 1),
    ("topic.__class__ = 'a'", 1), ("__import__('os') = 'a'", 1), ("topic ~ topic", 1), ("true true", 6),
    ("true // a\n&& topic = 1", 14), ("topic ?= @request.auth.a:each", 10), ("@now = topic", 1), ("null", 5),
]  # fmt: skip


async def test_a_bad_rule_is_refused_with_the_place_of_the_mistake(sqlite_world: World) -> None:
    for rule, at in BAD_RULES:
        for name in access_settings.RULES:
            answer = await sqlite_world.call("superuser", "PATCH", "/api/settings", {name: rule})
            problem = is_problem(answer, 400, "bad_rule")
            assert problem["field"] == name
            assert f"at character {at}:" in problem["detail"], problem["detail"]
        assert (await sqlite_world.get("superuser", "/api/settings")).json()["given"] == []


# ── Explain ──


async def explained(world: World, **body: Any) -> dict[str, Any]:
    answer = await world.post("superuser", "/api/access/explain", {"action": "manage", **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_explain_tells_what_stood_on_each_side(world: World) -> None:
    job_id = await world.enqueue(A)
    rule = f"{OWN} && topic ~ 'ma%' || @request.auth.role = 'ops'"
    told = await explained(world, rule=rule, claims={"id": A}, job=job_id)
    assert told["allowed"] is True
    assert [(part["text"], part["left"], part["right"], part["holds"]) for part in told["parts"]] == [
        ("scope_id = @request.auth.id", A, A, True),
        ("topic ~ 'ma%'", "mail", "ma%", True),
        ("@request.auth.role = 'ops'", None, "ops", False),
    ]
    assert (await explained(world, rule=rule, claims={"id": B}, job=job_id))["allowed"] is False
    assert (await explained(world, rule=rule, claims={"id": B}))["allowed"] is None
    assert (await explained(world, rule=rule, claims={"role": "ops"}))["allowed"] is True


async def test_explain_tells_lists_constants_and_the_time(world: World) -> None:
    rule = "@request.auth.roles ?= 'ops' && scope != null && created<@now || @request.auth.\"a.b\" = true // x"
    claims = {"roles": ["dev", "ops"], "a.b": False}
    told = await explained(world, rule=rule, claims=claims, job={"created": "2026-01-01T00:00:00Z"})
    assert told["allowed"] is False
    parts = [(part["text"], part["left"], part["right"], part["holds"]) for part in told["parts"]]
    now = parts[2][2]
    assert datetime.now(UTC) - datetime.fromisoformat(now) < timedelta(minutes=1)
    assert parts == [
        ("@request.auth.roles ?= 'ops'", ["dev", "ops"], "ops", True),
        ("scope != null", None, None, False),
        ("created < @now", "2026-01-01T00:00:00Z", now, True),
        ("@request.auth.'a.b' = true", False, True, False),
    ]
    assert "empty" in (await explained(world, rule="// nobody"))["why"]


async def test_explain_says_what_the_routes_do(world: World) -> None:
    job_id = await world.enqueue(A)
    for rule in (
        "",
        "true",
        OWN,
        "@request.auth.id != ''",
        "topic = 'mail'",
        "scope_id != @request.auth.id",
        "key = ''",
    ):
        for name in ("view_rule", "manage_rule"):
            await world.change_settings(**{"view_rule": "", "manage_rule": "", name: rule})
            for who, claims in (("user A", {"id": A}), ("user B", {"id": B}), ("anonymous", {})):
                told = await explained(world, action="view", claims=claims, job=job_id)
                done = await world.get(who, f"/api/jobs/{job_id}")
                assert told["allowed"] == (done.status_code == 200), (name, rule, who)
                assert (f"{name} holds" == told["why"]) == told["allowed"]


async def test_explain_knows_all_rules_that_allow_an_action(world: World) -> None:
    job_id = await world.enqueue(A)
    await world.change_settings(enqueue_rule="topic = 'x'", view_rule=OWN, cancel_rule="", manage_rule="topic = 'mail'")
    for action, claims, allowed, why, of in (
        ("enqueue", {"id": A}, False, "enqueue_rule doesn't hold", ["enqueue_rule"]),
        ("view", {"id": A}, True, "view_rule holds", ["view_rule", "manage_rule"]),
        ("view", {"id": B}, True, "manage_rule holds", ["view_rule", "manage_rule"]),
        ("cancel", {"id": B}, True, "manage_rule holds", ["manage_rule"]),
        ("manage", {"id": B}, True, "manage_rule holds", ["manage_rule"]),
    ):
        told = await explained(world, action=action, claims=claims, job=job_id)
        assert (told["allowed"], told["why"], [part["rule"] for part in told["parts"]]) == (allowed, why, of)
    given = await explained(world, action="view", claims={"id": B}, job=job_id, rule=OWN)
    assert (given["allowed"], given["why"]) == (False, "the rule doesn't hold")
    await world.change_settings(view_rule=OWN, manage_rule="topic = 'x'")
    assert (await explained(world, action="view", claims={"id": B}, job=job_id))["why"] == (
        "neither view_rule nor manage_rule holds"
    )
    await world.change_settings(view_rule="", manage_rule="")
    assert (await explained(world, action="view"))["why"].startswith("view_rule and manage_rule are empty")


async def test_explain_changes_nothing_and_is_for_admins(world: World) -> None:
    before = await world.place.counts()
    await explained(world, rule="true", claims={"id": A}, job={"topic": "mail", "created": "2026-01-01T00:00:00Z"})
    assert await world.place.counts() == before
    for who in ("anonymous", "user A", "manage token", "mail token", "job token", "read-only superuser"):
        assert is_problem(await world.post(who, "/api/access/explain", {"action": "manage"}))["status"] in (401, 403)


# ── What a caller may do, told in advance ──

ASKED = {
    "view own, cancel own": ({"view_rule": OWN, "cancel_rule": OWN}, ["read", "cancel"], ["cancel"]),
    "view own": ({"view_rule": OWN}, ["read"], []),
    "manage own": ({"manage_rule": OWN}, ["read", "cancel", "manage"], ["cancel", "manage"]),
    "enqueue": ({"enqueue_rule": "true", "view_rule": "true"}, ["read", "enqueue"], []),
    "cancel failed": (
        {"view_rule": OWN, "cancel_rule": "status = 'failed'"}, ["read", "cancel"], [],
    ),
    "nothing": ({"view_rule": ""}, [], None),
}  # fmt: skip


@pytest.mark.parametrize("case", ASKED)
async def test_a_caller_is_told_what_it_may_do_and_to_this_job(sqlite_world: World, case: str) -> None:
    rules, anything, to_this = ASKED[case]
    job_id = await sqlite_world.enqueue(A, delay=3600)
    await sqlite_world.change_settings(**rules)
    for path in ("/api/auth/me", "/_/me"):
        assert (await sqlite_world.get("user A", path)).json()["can"] == anything
    job = await sqlite_world.get("user A", f"/api/jobs/{job_id}")
    if to_this is None:
        is_problem(job, 403)
    else:
        assert job.json()["can"] == to_this
    # The server does what it has said.
    for verb, path in (("cancel", "cancel"), ("manage", "requeue")):
        answer = await sqlite_world.post("user A", f"/api/jobs/{job_id}/{path}")
        assert (answer.status_code in (200, 409)) == (verb in (to_this or [])), (verb, answer.text)


async def test_superusers_and_read_only_ones_are_told_what_they_may_do(sqlite_world: World) -> None:
    job_id = await sqlite_world.enqueue(A, delay=3600)
    everything = ["read", "enqueue", "cancel", "manage"]
    for who, anything, to_this in (
        ("superuser", everything, ["cancel", "manage"]),
        ("read-only superuser", ["read"], []),
    ):
        assert (await sqlite_world.get(who, "/_/me")).json()["can"] == anything
        assert (await sqlite_world.get(who, f"/api/jobs/{job_id}")).json()["can"] == to_this
    api = sqlite_world.another_api(read_only=True)
    assert (await sqlite_world.get("superuser", "/_/me", api=api)).json()["can"] == ["read"]
    assert "can" not in (await sqlite_world.get("superuser", "/api/jobs")).json()["items"][0]


NAMED: list[tuple[dict[str, Any], str]] = [
    ({"name": "Ann Example"}, "Ann Example"), ({"email": "ann@example.org"}, "ann@example.org"), ({}, A),
    ({"name": ""}, A), ({"name": 7, "email": ["x"]}, A), ({"name": "x" * 501}, A),
]  # fmt: skip


async def test_a_user_is_called_by_the_name_that_the_application_gives(sqlite_world: World) -> None:
    for claims, name in NAMED:
        await sqlite_world.change_settings(manage_rule="true")
        who = Who("somebody", bearer(user_token(A, **claims)), "user", id=A)
        assert (await sqlite_world.get(who, "/_/me")).json()["name"] == name
        job_id = await sqlite_world.enqueue(A, delay=3600)
        await sqlite_world.post(who, f"/api/jobs/{job_id}/cancel")
        found = (await sqlite_world.get("superuser", "/api/audit?limit=1")).json()["items"]
        assert found[0]["by"] == f"user {A}"  # whatever the users call themselves
