"""Limits over HTTP: how much of them is used, what can be put and cleared, what is refused, what a caller may see."""

from typing import Any

import pytest

from rowlock import Concurrency, Fair, Jobs, Rate
from tests.http.harness import A, World, is_problem

SHARED = Rate(2, per=3600, by="scope_id", name="llm")


async def publish(world: World) -> None:
    """Publish two topics that share a rate. One of them also has a limit and turns of its own."""
    async with Jobs(world.place.url) as code:
        code.task("ask", limits=[Concurrency(3), SHARED], fair="scope_id")(_nothing)
        code.task("embed", limits=[SHARED])(_nothing)
        await code.publish(by="deploy")
    world.jobs.definitions.forget()


async def _nothing(n: int = 0) -> None: ...


async def add(world: World, topic: str, scope_id: str, count: int = 1) -> None:
    for _ in range(count):
        body = {"topic": topic, "payload": {}, "scope": "tenant", "scopeId": scope_id}
        assert (await world.post("superuser", "/api/jobs/enqueue", body)).status_code == 200


async def start(world: World, topic: str, most: int = 10) -> list[str]:
    """Claim jobs as a worker that the server knows, so that `why` doesn't ask for one. Return their ids."""
    answer = await world.post("worker token", "/api/worker/claim", {"worker": "w1", "topics": [topic], "limit": most})
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["items"]]


async def seen(world: World, path: str = "/api/limits") -> Any:
    answer = await world.get("limits token", path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def put(world: World, name: str, limit: dict[str, Any], **more: Any) -> Any:
    answer = await world.call("limits token", "PUT", f"/api/limits/{name}", {"limit": limit, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def clear(world: World, path: str) -> int:
    answer = await world.call("limits token", "DELETE", f"/api/limits/{path}")
    assert answer.status_code == 200, answer.text
    return int(answer.json()["cleared"])


def one(items: Any, name: str, kind: str) -> Any:
    [found] = [item for item in items if (item["name"], item["kind"]) == (name, kind)]
    return found


async def test_what_is_used_of_limits(world: World) -> None:
    await publish(world)
    assert await seen(world) == {"items": (await seen(world))["items"], "waiting": 0, "waiting_capped": False}
    await add(world, "ask", "acme", 4)
    await add(world, "embed", "acme", 2)
    await add(world, "ask", "beta", 2)
    assert (await seen(world))["waiting"] == 0  # no limit is used up: the jobs wait for a worker
    running = await start(world, "ask")
    assert len(running) == 3

    found = await seen(world)
    assert [(item["name"], item["kind"], item["topics"]) for item in found["items"]] == [
        ("ask", "concurrency", ["ask"]), ("ask", "fair", ["ask"]), ("llm", "rate", ["ask", "embed"]),
    ]  # fmt: skip
    at_once, turns, rate = found["items"]
    assert at_once["limit"] == {"kind": "concurrency", "max": 3, "by": None, "name": None}
    assert at_once["used_by"] == [{"value": "", "used": 3, "max": 3, "free_at": None}]
    assert (at_once["used_up"], at_once["waiting"], at_once["source"], at_once["code"]) == (1, 3, "code", None)
    assert turns["limit"] == {"kind": "fair", "by": "scope_id", "weights": {}}
    assert sorted((item["value"], item["used"], item["max"]) for item in turns["used_by"]) == [
        ("acme", 2, 1), ("beta", 1, 1),
    ]  # fmt: skip
    acme, beta = rate["used_by"]
    assert (acme["value"], acme["used"], acme["max"]) == ("acme", 2, 2)
    assert acme["free_at"] is not None
    assert beta == {"value": "beta", "used": 1, "max": 2, "free_at": None}
    assert (rate["used_up"], rate["waiting"], rate["waiting_capped"]) == (1, 5, False)
    # Topics that share a limit are counted once.
    assert (found["waiting"], found["waiting_capped"]) == (5, False)

    told = await seen(world, "/api/limits/ask")
    assert told["items"] == found["items"]  # the shared limit, which has another name, is there, too
    assert {(item["id"], item["topic"], item["status"], item["worker"][:3]) for item in told["holders"]} == {
        (job_id, "ask", "processing", "w1@") for job_id in running
    }
    assert all(item["since"].endswith("Z") for item in told["holders"])
    assert (await seen(world, "/api/limits/llm"))["items"] == [rate]


async def test_put_and_clear(world: World) -> None:
    await publish(world)
    told = await put(world, "ask", {"kind": "concurrency", "max": 1}, reason="the provider is slow")
    changed = one(told["items"], "ask", "concurrency")
    assert (changed["limit"]["max"], changed["source"], changed["code"]["max"]) == (1, "put", 3)
    await add(world, "ask", "acme", 3)
    assert len(await start(world, "ask")) == 1

    # One value has a limit of its own.
    rate = {"kind": "rate", "max": 5, "per": 3600, "by": "scope_id"}
    told = await put(world, "llm", rate, value="acme")
    assert one(told["items"], "llm", "rate")["values"] == [
        {"value": "acme", "limit": {**rate, "per": 3600.0, "name": None, "burst": None}}
    ]
    await put(world, "llm", {**rate, "name": "llm", "burst": 2})
    assert one((await seen(world))["items"], "llm", "rate")["limit"]["burst"] == 2
    await put(world, "embed", {"kind": "fair", "by": "scope_id", "weights": {"acme": 3}})
    assert one((await seen(world))["items"], "embed", "fair")["limit"]["weights"] == {"acme": 3}

    # A topic that the server doesn't know yet may have a limit, and its name may have slashes.
    await put(world, "new/topic", {"kind": "concurrency", "max": 2})
    assert one((await seen(world, "/api/limits/new/topic"))["items"], "new/topic", "concurrency")["topics"] == [
        "new/topic"
    ]
    await put(world, "new/topic", {"kind": "concurrency", "max": 1, "by": "scope_id"})
    assert await clear(world, "new/topic?kind=rate") == 0
    assert await clear(world, "new/topic?field=") == 1
    assert one((await seen(world, "/api/limits/new/topic"))["items"], "new/topic", "concurrency")["limit"]["by"]
    assert await clear(world, "new/topic") == 1
    is_problem(await world.get("limits token", "/api/limits/new/topic"), 404, "limit_not_found")

    assert await clear(world, "llm?value=acme&kind=rate&field=scope_id&reason=small+again") == 1
    assert await clear(world, "llm") == 1
    assert await clear(world, "ask") == 1
    assert await clear(world, "ask") == 0
    back = one((await seen(world))["items"], "ask", "concurrency")
    assert (back["limit"]["max"], back["source"], back["code"]) == (3, "code", None)

    entries = (await world.get("superuser", "/api/audit?limit=100")).json()["items"]
    audited = [(item["action"], item["topic"], item["reason"]) for item in entries if "limit" in item["action"]]
    assert ("limit.put", "ask", "the provider is slow") in audited
    assert ("limit.clear", "llm", "small again") in audited
    assert {item["by"] for item in entries if item["action"] == "limit.put"} == {"token limits token"}


CONCURRENCY = {"kind": "concurrency", "max": 5}
RATE = {"kind": "rate", "max": 5, "per": 60}
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({}, "missing", "limit"),
    ({"limit": {}}, "missing", "limit.kind"),
    ({"limit": {"kind": "speed", "max": 5}}, "bad_value", "limit.kind"),
    ({"limit": {"kind": "concurrency"}}, "missing", "limit.max"),
    ({"limit": {**CONCURRENCY, "max": 0}}, "out_of_range", "limit.max"),
    ({"limit": {**CONCURRENCY, "max": "5"}}, "bad_value", "limit.max"),
    ({"limit": {**CONCURRENCY, "per": 5}}, "unknown_field", "limit.per"),
    ({"limit": {**CONCURRENCY, "by": "a..b"}}, "bad_field", "limit.by"),
    ({"limit": {**CONCURRENCY, "name": "other"}}, "other_name", "limit.name"),
    ({"limit": {**RATE, "per": 0}}, "out_of_range", "limit.per"),
    ({"limit": {**RATE, "burst": 6}}, "out_of_range", "limit.burst"),
    ({"limit": {"kind": "fair"}}, "missing", "limit.by"),
    ({"limit": {"kind": "fair", "by": "scope_id", "weights": {"acme": 0}}}, "out_of_range", "limit.weights.acme"),
    ({"limit": CONCURRENCY, "value": "acme"}, "needs_by", "value"),
    ({"limit": {**CONCURRENCY, "by": "key"}, "value": "acme"}, "no_limit", "value"),
    ({"limit": {"kind": "fair", "by": "scope_id"}, "value": "acme"}, "not_here", "value"),
    ({"limit": CONCURRENCY, "values": "acme"}, "unknown_field", "values"),
]  # fmt: skip


async def test_what_is_refused(world: World) -> None:
    for body, code, field in BAD:
        told = is_problem(await world.call("superuser", "PUT", "/api/limits/ask", body), 400, code)
        assert told["field"] == field, (body, told)
    is_problem(await world.call("superuser", "PUT", "/api/limits/a%20b", {"limit": CONCURRENCY}), 400, "bad_characters")
    is_problem(await world.get("superuser", "/api/limits/a%20b"), 404, "limit_not_found")
    is_problem(await world.get("superuser", "/api/limits/ask"), 404, "limit_not_found")
    is_problem(await world.call("superuser", "DELETE", "/api/limits/ask?kind=speed"), 400, "bad_value")
    is_problem(await world.call("superuser", "DELETE", "/api/limits/ask?by=key"), 400, "unknown_field")
    is_problem(await world.call("superuser", "DELETE", "/api/limits/ask"), 404, "limit_not_found")
    for limit, said in (({"kind": "nope"}, "must be one of concurrency, rate, fair"), (5, "must be an object, not")):
        told = is_problem(await world.call("superuser", "PUT", "/api/limits/ask", {"limit": limit}), 400, "bad_value")
        assert said in told["detail"]
    await publish(world)
    body = {"limit": {**RATE, "by": "nope"}}
    told = is_problem(await world.call("superuser", "PUT", "/api/limits/embed", body), 400, "unknown_field")
    assert told["field"] == "limit.by"
    for n in range(10):
        await put(world, "asks", {**CONCURRENCY, "by": f"payload.f{n}"})
    body = {"limit": {**CONCURRENCY, "by": "key"}}
    is_problem(await world.call("superuser", "PUT", "/api/limits/asks", body), 400, "too_many")


@pytest.mark.parametrize("who", ["anonymous", "user A", "enqueue token", "manage token", "mail token", "read token"])
async def test_limits_are_for_operators(sqlite_world: World, who: str) -> None:
    """Rules don't open limits. A token for some topics may not use them, because topics may share a limit."""
    await sqlite_world.change_settings(manage_rule="true", enqueue_rule="true", view_rule="true")
    await put(sqlite_world, "mail", CONCURRENCY)
    refused = 401 if who == "anonymous" else 403
    reads = who in ("read token", "manage token")
    for path in ("/api/limits", "/api/limits/mail"):
        assert (await sqlite_world.get(who, path)).status_code == (200 if reads else refused)
    answer = await sqlite_world.call(who, "PUT", "/api/limits/mail", {"limit": CONCURRENCY})
    assert answer.status_code == refused
    assert (await sqlite_world.call(who, "DELETE", "/api/limits/mail")).status_code == refused


async def test_values_of_hidden_fields_are_not_shown(world: World) -> None:
    """They are not shown in `why` either, which names what a job waits for."""
    await world.change_settings(redact=["card"])
    await put(world, "pay", {**CONCURRENCY, "max": 1, "by": "payload.card"})
    await put(world, "pay", {**CONCURRENCY, "max": 1, "by": "payload.card"}, value="4111-2222")
    ids = []
    for _ in range(2):
        body = {"topic": "pay", "payload": {"card": "4111-2222"}, "scopeId": A}
        ids.append((await world.post("superuser", "/api/jobs/enqueue", body)).json()["id"])
    [running] = await start(world, "pay")
    for who in ("superuser", "limits token", "read token"):
        answer = await world.get(who, "/api/limits/pay")
        assert "4111-2222" not in answer.text
        [item] = answer.json()["items"]
        assert [value["value"] for value in (*item["used_by"], *item["values"])] == ["[redacted]"] * 2
        assert item["used_up"] == 1
    [waits] = [one for one in ids if one != running]
    told = await world.get("read token", f"/api/jobs/{waits}/why")
    assert "4111-2222" not in told.text
    assert (told.json()["code"], running in told.json()["answer"]) == ("limit", True)
    # A user learns that there is a limit, but not which jobs of other users hold it.
    await world.change_settings(view_rule="scope_id = @request.auth.id")
    said = (await world.get("user A", f"/api/jobs/{waits}/why")).json()
    assert said == {"code": "limit", "answer": "As many jobs as its limit allows are running.", "details": []}


async def test_a_rate_is_told_in_short(sqlite_world: World) -> None:
    await sqlite_world.jobs.limits.put("mail", Rate(1, per=3600))
    await sqlite_world.jobs.limits.put("mail", Fair("scope_id"))
    ids = [await sqlite_world.enqueue(A, topic="mail") for _ in range(2)]
    [running] = await start(sqlite_world, "mail")
    [waits] = [one for one in ids if one != running]
    await sqlite_world.change_settings(view_rule="scope_id = @request.auth.id")
    said = (await sqlite_world.get("user A", f"/api/jobs/{waits}/why")).json()
    assert said == {"code": "rate", "answer": "As many jobs as its rate allows have started.", "details": []}
