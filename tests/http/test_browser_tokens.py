"""Tokens for browsers, for the jobs of one scope or for one job: everything else is out of their reach."""

import asyncio
from typing import Any

import httpx
import pytest

from rowlock.access import short_lived, tokens
from rowlock.access.short_lived import Bound
from rowlock.core.ids import check_id
from rowlock.errors import InvalidInput
from rowlock.http import live, streams
from tests.http.harness import JSON, A, B, Who, World, bearer, is_problem
from tests.http.oracle import OPEN, REQUESTS, RULES, Target, by_name
from tests.http.reader import Reader, reading
from tests.waiting import until

OWN = {"scope": "user", "scopeId": A}
SOON = 5  # seconds: long enough for some requests on a busy machine
FRIEND = "https://app.example.com"
MAY_SEE = {
    "GET /api/jobs", "GET /api/jobs/stats", "GET /api/events", "GET /api/jobs/{id}", "GET /api/jobs/{id}/events",
    "GET /api/jobs/{id}/logs", "GET /api/jobs/{id}/wait", "GET /api/jobs/{id}/line", "GET /api/jobs/{id}/why",
    "GET /api/auth/me", "POST /api/auth/logout", "GET /api/openapi.json",
}  # fmt: skip
MAY_ENQUEUE = {
    "POST /api/jobs/enqueue", "POST /api/jobs/enqueue/batch", "POST /api/jobs/{id}/clone", "POST /api/flows",
}  # fmt: skip


async def make(world: World, who: Who | str = "superuser", **body: Any) -> httpx.Response:
    return await world.post(who, "/api/tokens", body)


async def page(world: World, maker: Who | str = "superuser", **body: Any) -> Who:
    """Return a page that has got a token."""
    answer = await make(world, maker, **body)
    assert answer.status_code == 201, answer.text
    return Who("page", bearer(answer.json()["token"]), id=answer.json()["id"])


async def successes(world: World, who: Who, target: Target) -> set[str]:
    """Return the requests about this job, or about no job, that are answered with success."""
    done = set()
    for name, route in by_name().items():
        if route.access.kind not in ("probe", "page", "public", "callback"):
            ready = await REQUESTS[name](world, target)
            if (await world.call(who, route.method, ready.path, ready.json)).is_success:
                done.add(name)
    return done


# ── What a token may do ──


@pytest.mark.parametrize(
    ("given", "more"),
    [
        ({}, set()),
        ({"cancel": True}, {"POST /api/jobs/{id}/cancel"}),
        ({"enqueue": ["mail"]}, MAY_ENQUEUE),
        ({"enqueue": ["other"]}, set()),
    ],
    ids=["see", "cancel", "enqueue", "enqueue another"],
)
async def test_it_may_what_it_was_made_for_and_nothing_more(world: World, given: JSON, more: set[str]) -> None:
    """Rules that let every caller do everything don't add to it."""
    await world.change_settings(**OPEN.settings)
    who = await page(world, **OWN, **given)
    assert await successes(world, who, Target("mail", A, "user")) == MAY_SEE | more


@pytest.mark.parametrize("target", [Target("mail", B, "user"), Target("mail", A, "team"), Target("mail", A)], ids=str)
async def test_a_job_of_another_scope_is_out_of_reach(world: World, target: Target) -> None:
    """This holds for every route, even if rules let every caller do everything."""
    await world.change_settings(**OPEN.settings)
    who = await page(world, **OWN, enqueue=["mail"], cancel=True)
    planted: JSON = {"payload": {"canary": "canary-payload"}, "tags": ["canary-tag"], "key": "canary-key"}
    theirs = await world.enqueue(target.user, **target.job, **planted)
    before, wrong = await world.job(theirs), []
    for name, route in by_name().items():
        if route.access.kind in ("probe", "page", "public", "callback"):
            continue
        ready = await REQUESTS[name](world, Target("mail", A, "user"))
        path = ready.path.replace(ready.job, theirs) if ready.job else ready.path
        answer = await world.call(who, route.method, path, ready.json)
        if "{id}" in route.path and answer.status_code not in (403, 404):
            wrong.append(f"{name}: {answer.status_code}")
        wrong += [f"{name}: {word}" for word in ("canary", theirs) if word in answer.text and word not in path]
    assert wrong == []
    assert await world.job(theirs) == before


async def test_lists_numbers_and_streams_have_its_own_jobs_alone(world: World) -> None:
    who = await page(world, **OWN)
    mine = {await world.enqueue(A, scope="user") for _ in range(3)}
    others = [await world.enqueue(B, scope="user"), await world.enqueue(A, scope="team"), await world.enqueue(A)]
    asked = ["", "?topic=mail", f"?scopeId={B}", "?scope=team", *(f"?id={job_id}" for job_id in others)]
    for query in asked:
        listed = (await world.get(who, f"/api/jobs{query}")).json()
        wanted = mine if query in asked[:2] else set()
        assert ({item["id"] for item in listed["items"]}, listed["total"]) == (wanted, len(wanted)), query
        assert (await world.get(who, f"/api/jobs/stats{query}")).json()["pending"] == len(wanted), query
    told = (await world.get(who, "/api/events?seconds=0")).text
    assert {job_id for job_id in (*mine, *others) if job_id in told} == mine
    assert '"pending":3' in told


async def test_a_stream_of_another_scope_is_another_view(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams with the same query share what they read, but streams of different scopes share nothing."""
    monkeypatch.setattr(live, "TICK", 0.02)
    pages = {user: await page(world, scope="user", scopeId=user) for user in (A, B)}
    async with reading(world, pages[A]) as mine, reading(world, pages[B]) as theirs:
        for user, reader in ((A, mine), (B, theirs)):
            job_id = await world.enqueue(user, scope="user")

            async def is_told(job_id: str = job_id, reader: Reader = reader) -> bool:
                return job_id in reader.jobs

            await until(is_told)
            assert reader.jobs.keys() == {job_id}
        assert not mine.jobs.keys() & theirs.jobs.keys()


async def test_a_token_for_one_job_is_for_that_job(world: World) -> None:
    shown, other = await world.enqueue(A, scope="user"), await world.enqueue(A, scope="user")
    who = await page(world, job=shown, cancel=True)
    is_problem(await world.get(who, f"/api/jobs/{other}"), 404)
    is_problem(await world.post(who, f"/api/jobs/{other}/cancel"), 404)
    is_problem(await world.post(who, "/api/jobs/enqueue", {"topic": "mail"}), 403)
    assert [job["id"] for job in (await world.get(who, "/api/jobs")).json()["items"]] == [shown]
    assert (await world.post(who, f"/api/jobs/{shown}/cancel")).json()["status"] == "cancelled"


# ── What a token enqueues ──


async def test_its_jobs_get_its_scope(world: World) -> None:
    who = await page(world, **OWN, enqueue=["mail", "film.render"])
    for given in ({}, {"scope": "user"}, {"scopeId": A}, OWN):
        answer = await world.post(who, "/api/jobs/enqueue", {"topic": "mail", **given})
        batch = await world.post(who, "/api/jobs/enqueue/batch", {"jobs": [{"topic": "film.render", **given}]})
        assert (answer.status_code, batch.status_code) == (200, 200)
        for made in (answer.json(), *batch.json()["items"]):
            job = await world.job(made["id"])
            assert (job.scope, job.scope_id) == ("user", A)
            assert (await world.get(who, f"/api/jobs/{job.id}")).status_code == 200


@pytest.mark.parametrize(
    ("given", "field"),
    [({"scope": "team"}, "scope"), ({"scopeId": B}, "scope_id"), ({"scope": "user", "scopeId": ""}, "scope_id")],
)
async def test_another_scope_is_refused_and_named(world: World, given: JSON, field: str) -> None:
    who = await page(world, **OWN, enqueue=["mail"])
    before = await world.place.counts()
    job = {"topic": "mail", **given}
    for path, body in (("", job), ("/batch", {"jobs": [{"topic": "mail"}, job]})):
        answer = await world.post(who, f"/api/jobs/enqueue{path}", body)
        assert is_problem(answer, 403, "not_allowed")["field"] == field
    after = await world.place.counts()
    assert after["_jobs"] == before["_jobs"]


async def test_topics_are_bound_by_the_token_and_by_the_settings(world: World) -> None:
    who = await page(world, **OWN, enqueue=["mail", "bills"])
    await world.change_settings(allowed_topics=["mail", "other"])
    answers = {}
    for topic in ("mail", "bills", "other"):
        answers[topic] = (await world.post(who, "/api/jobs/enqueue", {"topic": topic})).status_code
    assert answers == {"mail": 200, "bills": 403, "other": 403}
    await world.jobs.templates.create({"topic": "mail", "version": 1})
    await world.jobs.templates.disable("mail")
    is_problem(await world.post(who, "/api/jobs/enqueue", {"topic": "mail"}), 409, "template_disabled")


async def test_a_key_or_id_of_another_scope_tells_nothing(world: World) -> None:
    who = await page(world, **OWN, enqueue=["mail"])
    theirs = await world.enqueue(B, scope="user", key="k")
    is_problem(await world.post(who, "/api/jobs/enqueue", {"topic": "mail", "id": theirs}), 409, "key_taken")
    mine = await world.post(who, "/api/jobs/enqueue", {"topic": "mail", "key": "k"})  # a key is of one scope
    assert mine.json()["id"] != theirs
    again = await world.post(who, "/api/jobs/enqueue", {"topic": "mail", "key": "k"})
    assert (again.json()["id"], again.json()["existing"]) == (mine.json()["id"], True)


# ── Which callers make tokens ──


async def test_a_back_end_makes_sees_and_revokes_its_own(world: World) -> None:
    back_end = await world.token("back end", ["tokens"])
    namesake = await world.token("back end", ["tokens"])  # two tokens may have one name
    made = [await page(world, back_end, scope="user", scopeId=user) for user in (A, B)]
    theirs = await page(world, namesake, **OWN)
    listed = (await world.get(back_end, "/api/tokens")).json()["items"]
    assert {one["id"] for one in listed} == {one.id for one in made}
    assert {(one["scope"], one["scope_id"]) for one in listed} == {("user", A), ("user", B)}
    assert [one["id"] for one in (await world.get(namesake, "/api/tokens?limit=1")).json()["items"]] == [theirs.id]
    for hidden in (theirs.id, world.who["admin token"].id, back_end.id):
        is_problem(await world.call(back_end, "DELETE", f"/api/tokens/{hidden}"), 404)
    assert (await world.call(back_end, "DELETE", f"/api/tokens/{made[0].id}")).status_code == 204
    is_problem(await world.get(made[0], "/api/jobs"), 401)
    assert (await world.get(theirs, "/api/jobs")).status_code == 200
    everyone = (await world.get("superuser", "/api/tokens?limit=200")).json()["items"]
    assert {made[1].id, theirs.id, back_end.id} <= {one["id"] for one in everyone}


async def test_a_back_end_can_not_exceed_itself(world: World) -> None:
    back_end = await world.token("back end", ["tokens"], topics=["mail"])
    for body in ({"name": "x", "scopes": ["read"]}, {"name": "x", "scopes": ["tokens"]}, {"name": "x"}):
        assert is_problem(await make(world, back_end, **body), 403, "not_allowed")["field"] == "scopes"
    assert is_problem(await make(world, back_end, **OWN, enqueue=["mail", "bills"]), 403)["field"] == "enqueue"
    for name, route in by_name().items():  # its token is a pass for nothing else
        if route.access.kind in ("jobs", "enqueue", "scope") and not route.path.startswith("/api/tokens"):
            ready = await REQUESTS[name](world, Target("mail", A, "user"))
            is_problem(await world.call(back_end, route.method, ready.path, ready.json), 403)
    hidden, shown = [await world.enqueue(A, scope="user", topic=topic) for topic in ("bills", "mail")]
    is_problem(await make(world, back_end, job=hidden), 404, "not_found")
    who = await page(world, back_end, **OWN)
    assert [one["id"] for one in (await world.get(who, "/api/jobs?topic=mail&topic=bills")).json()["items"]][:1] == [
        shown
    ]
    is_problem(await world.get(who, f"/api/jobs/{hidden}"), 404)


async def test_it_ends_no_later_than_its_maker(world: World) -> None:
    answer = await make(world, **OWN, seconds=60)
    store = await world.store()
    ends = tokens.from_record((await store.records(tokens.KIND, [answer.json()["id"]]))[0]).expires_at
    back_end = await world.token("back end", ["tokens"], expires_at=ends)
    assert (await make(world, back_end, **OWN, seconds=3600)).json()["expires_at"] == answer.json()["expires_at"]


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        ({"scope": "user"}, "scope_id", "missing"),
        ({"scopeId": A}, "scope", "missing"),
        ({"cancel": True}, "scope", "missing"),
        ({}, "name", "missing"),
        ({"name": "x"}, "scopes", "empty"),
        ({**OWN, "job": "0193fb1e-0000-7000-8000-000000000000"}, "job", "both_given"),
        ({"job": "0193fb1e-0000-7000-8000-000000000000", "enqueue": ["mail"]}, "enqueue", "both_given"),
        ({"job": "x"}, "job", "bad_id"),
        ({**OWN, "scopes": ["read"]}, "scopes", "both_given"),
        ({**OWN, "expiresAt": "2030-01-01T00:00:00Z"}, "expires_at", "both_given"),
        ({**OWN, "topics": ["mail"]}, "topics", "both_given"),
        ({**OWN, "seconds": 0.5}, "seconds", "out_of_range"),
        ({**OWN, "seconds": 86_401}, "seconds", "out_of_range"),
        ({**OWN, "enqueue": ["a b"]}, "enqueue", "bad_characters"),
        ({**OWN, "enqueue": [f"t{n}" for n in range(101)]}, "enqueue", "out_of_range"),
        ({"scope": "", "scopeId": A}, "scope", "bad_length"),
        ({"scope": "user", "scopeId": "x" * 513}, "scope_id", "bad_length"),
        ({"scope": "user", "scopeId": "\0"}, "scope_id", "nul"),
    ],
    ids=str,
)
async def test_what_is_wrong_is_named_and_nothing_is_made(
    sqlite_world: World, body: JSON, field: str, code: str
) -> None:
    before = await sqlite_world.place.counts()
    assert is_problem(await make(sqlite_world, **body), 400, code)["field"] == field
    assert await sqlite_world.place.counts() == before


async def test_a_job_that_is_not_there_has_no_token(world: World) -> None:
    is_problem(await make(world, job="0193fb1e-0000-7000-8000-000000000000"), 404, "not_found")


async def test_of_many_that_are_asked_for_at_once_no_more_are_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_lived, "BY_SCOPE", Bound(9, 4))

    async def many(who: Who | str, count: int, **body: Any) -> int:
        answers = await asyncio.gather(*(make(world, who, **body) for _ in range(count)))
        for answer in answers:
            if answer.status_code != 201:
                is_problem(answer, 429, "too_many_tokens")
                assert int(answer.headers["retry-after"]) > 0
        return sum(answer.status_code == 201 for answer in answers)

    counts = await asyncio.gather(
        many("superuser", 6, **OWN), many("superuser", 3, scope="user", scopeId=B), many("tokens token", 5, **OWN)
    )
    assert list(counts) == [4, 3, 4]
    assert await many("superuser", 4, scope="team", scopeId=A) == 2


async def test_the_count_of_many_tokens_stays_small(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must stay small, because the server writes it with each token."""
    monkeypatch.setattr(short_lived, "BY_SCOPE", Bound(100_000, 100_000))
    for seconds in range(100, 86_400, 600):
        assert (await make(world, **OWN, seconds=seconds)).status_code == 201
    counts = await (await world.store()).records(short_lived.KIND)
    assert [sum(one.data["ends"].values()) for one in counts] == [144, 144]
    now = (await (await world.store()).now()).timestamp()
    for ends in range(0, 86_400, 7):
        rounded = short_lived._rounded(now + 86_400 + ends, 86_400)
        assert now + 86_400 + ends <= rounded < now + 86_400 + ends + 86_400 / 64 + 1


# ── How a token ends ──


async def test_after_its_end_it_is_refused_and_a_new_one_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_RECHECK", 0.05)
    who = await page(world, **OWN, seconds=SOON)
    async with reading(world, who) as reader:

        async def is_over() -> bool:
            return reader.is_over

        await until(is_over)
        assert reader.events[-1] == ("end", {"reason": "not_authenticated"})
    answer = await world.get(who, "/api/jobs")
    is_problem(answer, 401, "not_authenticated")
    assert "invalid_token" in answer.headers["www-authenticate"]


async def test_a_cursor_outlives_a_renewal_but_is_for_one_scope(world: World) -> None:
    ids = [await world.enqueue(A, scope="user") for _ in range(3)]
    first, renewed, other = [await page(world, scope="user", scopeId=user) for user in (A, A, B)]
    begun = (await world.get(first, "/api/jobs?limit=1")).json()
    rest = (await world.get(renewed, f"/api/jobs?limit=9&cursor={begun['next']}")).json()
    assert [one["id"] for one in (*begun["items"], *rest["items"])] == ids[::-1]
    is_problem(await world.get(other, f"/api/jobs?limit=9&cursor={begun['next']}"), 400, "bad_cursor")


async def test_new_tokens_bring_a_scope_no_further_streams(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MOST_BY_RULE", 2)
    one, two, other = [await page(sqlite_world, scope="user", scopeId=user) for user in (A, A, B)]
    async with reading(sqlite_world, one), reading(sqlite_world, two):
        is_problem(await sqlite_world.get(one, "/api/events?seconds=0"), 429, "too_many_streams")
        assert (await sqlite_world.get(other, "/api/events?seconds=0")).status_code == 200


async def test_a_revoked_token_is_refused_at_once_by_every_server(world: World) -> None:
    who = await page(world, **OWN)
    elsewhere = world.another_api()
    assert (await world.get(who, "/api/jobs", api=elsewhere)).status_code == 200
    assert await world.jobs.tokens.revoke(scope="user", scope_id=A) == 2  # the other one is in `world.who`
    is_problem(await world.get(who, "/api/jobs", api=elsewhere), 401)
    is_problem(await world.get("browser token", "/api/jobs"), 401)
    assert (await world.get("admin token", "/api/jobs")).status_code == 200


# ── From another origin ──


async def test_a_page_of_an_allowed_origin_uses_it(sqlite_world: World) -> None:
    api = sqlite_world.another_api(origins=(FRIEND,))
    who = await page(sqlite_world, **OWN, enqueue=["mail"], cancel=True)
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    for path, body in (("/api/jobs/enqueue", {"topic": "mail"}), ("/api/jobs", None), ("/api/events?seconds=0", None)):
        method = "GET" if body is None else "POST"
        before = await sqlite_world.call(Who("page"), "OPTIONS", path, api=api, headers={"origin": FRIEND, **asks})
        assert "authorization" in before.headers["access-control-allow-headers"]
        answer = await sqlite_world.call(who, method, path, body, api=api, headers={"origin": FRIEND})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, FRIEND)
        foreign = await sqlite_world.call(who, method, path, body, api=api, headers={"origin": "https://evil.example"})
        is_problem(foreign, 403, "cross_origin")


# ── What is shown of a token ──


async def test_lists_and_the_audit_tell_all_but_its_text(world: World, caplog: pytest.LogCaptureFixture) -> None:
    made = (await make(world, **OWN, enqueue=["mail"], cancel=True)).json()
    assert (made["name"], made["scopes"], made["enqueue"]) == (f"for user {A}", ["read", "cancel", "enqueue"], ["mail"])
    who = Who("page", bearer(made["token"]))
    job_id = (await world.post(who, "/api/jobs/enqueue", {"topic": "mail"})).json()["id"]
    await world.post(who, f"/api/jobs/{job_id}/cancel")
    is_problem(await world.post(who, "/api/jobs/enqueue", {"topic": "bills"}), 403)
    await world.call("superuser", "DELETE", f"/api/tokens/{made['id']}")
    audit = (await world.get("superuser", "/api/audit")).json()["items"]
    assert [(one["action"], one["by"]) for one in audit[:3]] == [
        ("token.revoke", "superuser boss@example.com"),
        ("cancel", f"token for user {A}"),
        ("token.create", "superuser boss@example.com"),
    ]
    told = {"scope": "user", "scope_id": A, "enqueue": ["mail"], "job": None, "token": made["id"]}
    assert told.items() <= audit[2]["data"].items()
    secret = made["token"].rpartition("_")[2]
    assert secret not in await world.place.dump()
    assert secret not in caplog.text + str(audit)


async def test_an_older_server_that_knows_no_scopes_finds_no_job_for_it(world: World) -> None:
    """During a deploy, an old and a new server look at the same records."""
    await world.enqueue(A, scope="user")
    store, who = await world.store(), await page(world, **OWN)
    [record] = await store.records(tokens.KIND, [who.id])
    known = {name: value for name, value in record.data.items() if name not in ("scope", "scope_id", "enqueue")}
    with pytest.raises(InvalidInput):  # the old server looks for the job with this id, and there is none
        check_id(known["job"])


async def test_no_rule_lets_anyone_make_one(world: World) -> None:
    await world.change_settings(**{f"{name}_rule": RULES["open"] for name in ("enqueue", "view", "cancel", "manage")})
    who = await page(world, **OWN, cancel=True, enqueue=["mail"])
    for maker in ("user A", who, "job token", "manage token"):
        is_problem(await make(world, maker, **OWN), 403, "not_allowed")
    is_problem(await make(world, "anonymous", **OWN), 401)
