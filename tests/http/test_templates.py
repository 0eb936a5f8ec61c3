"""Templates over HTTP: every stored field has its effect, and every way to enqueue a job goes by them."""

from typing import Any

from rowlock.core.job import Lane
from rowlock.core.moves import CancelTimeout
from rowlock.stores.base import Claim
from rowlock.stores.records import Write
from tests.http.harness import A, B, World, is_problem

SCHEMA = {
    "type": "object", "required": ["items"], "additionalProperties": False,
    "properties": {"items": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "integer"}}}}},
}  # fmt: skip
GOOD: dict[str, Any] = {"items": [{"id": 1}]}
BAD: dict[str, Any] = {"items": [{"id": 1}, {"id": 2}, {"id": "x"}]}
SEED: dict[str, Any] = {
    "_id": "6650f0", "type": "demo_long_task", "version": 1, "name": "示範長任務",
    "description": "展示 job template、進度、取消、重跑與排程能力", "enabled": True, "repeatable": True,
    "concurrencyPolicy": "reject_same_scope", "dedupeKeys": ["scope_id", "target"], "timeoutSeconds": 600,
    "cancelPolicy": {"supported": True, "mode": "cooperative", "graceSeconds": 30},
    "retryPolicy": {"maxAttempts": 2, "backoffSeconds": [30, 120]},
    "steps": [
        {"id": "prepare", "name": "準備資料", "workerType": "go", "timeoutSeconds": 60, "cancelable": True},
        {"id": "execute", "name": "執行任務", "workerType": "go", "timeoutSeconds": 300, "cancelable": True},
        {"id": "finalize", "name": "整理結果", "workerType": "go", "timeoutSeconds": 30, "cancelable": False},
    ],
    "createAt": 0, "updateAt": 0,
}  # fmt: skip


async def create(world: World, status: int = 201, **definition: Any) -> Any:
    answer = await world.post("templates token", "/api/templates", definition)
    assert answer.status_code == status, answer.text
    return answer.json()


async def enqueue(world: World, topic: str, payload: Any = None, status: int = 200, **more: Any) -> Any:
    answer = await world.post("superuser", "/api/jobs/enqueue", {"topic": topic, "payload": payload or {}, **more})
    assert answer.status_code == status, answer.text
    return answer.json()


async def run(world: World, lane: str, **more: Any) -> Any:
    answer = await world.post("worker token", "/api/worker/claim", {"worker": "go", "topics": [lane], **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


async def say(world: World, verb: str, item: Any, **more: Any) -> Any:
    body = {"worker": "go", "id": item["id"], "version": item["version"], **more}
    return (await world.post("worker token", f"/api/worker/{verb}", body)).json()


async def test_a_definition_of_another_system_as_it_is_printed(world: World) -> None:
    """The definition is as the other system prints it, and each of its fields has an effect."""
    made = await create(world, **SEED)
    assert made == (await world.get("read token", "/api/templates/demo_long_task/1")).json()
    topic = made["topic"]
    assert (topic, made["version"], made["title"], made["source"]) == ("demo_long_task", 1, "示範長任務", "api")
    assert made["description"] == SEED["description"]
    steps = [(one["name"], one["title"], one["timeout"], one["cancelable"]) for one in made["steps"]]
    assert steps == [
        ("prepare", "準備資料", 60, True),
        ("execute", "執行任務", 300, True),
        ("finalize", "整理結果", 30, False),
    ]
    # dedupeKeys and concurrencyPolicy: one live job per target, in each scope
    first = await enqueue(world, topic, {"target": "a", "n": 1}, scopeId=A)
    again = await enqueue(world, topic, {"target": "a", "n": 2}, scopeId=A)
    assert (again["id"], again["existing"]) == (first["id"], True)
    assert not (await enqueue(world, topic, {"target": "a"}, scopeId=B, delay=60))["existing"]
    assert not (await enqueue(world, topic, {"target": "b"}, scopeId=A, delay=60))["existing"]
    # timeoutSeconds, retryPolicy: two attempts, the second after 30 s
    assert await run(world, topic) == []  # no job has version 0
    [item] = await run(world, f"{topic}@1")
    assert (item["timeout"], item["max_retries"], item["template_version"]) == (600.0, 1, 1)
    assert (await say(world, "fail", item, error="no"))["status"] == "pending"
    job = await world.job(first["id"])
    assert 29 < (job.run_at - job.updated).total_seconds() <= 30
    # cancelPolicy.graceSeconds: it counts, whatever grace the maintenance was given
    await world.call("superuser", "PATCH", f"/api/jobs/{first['id']}", {"delay": 0})
    [item] = await run(world, f"{topic}@1")
    assert (await world.post("superuser", f"/api/jobs/{first['id']}/cancel")).json()["status"] == "cancel_requested"
    assert await (await world.store()).move_due(CancelTimeout(by="test", grace=0.0)) == []
    assert (await say(world, "give-up", item))["status"] == "cancelled"
    # repeatable: a key counts again once its job has ended …
    assert not (await enqueue(world, topic, {"target": "a"}, scopeId=A))["existing"]
    # … unless it is false
    await create(world, **{**SEED, "type": "only_once", "repeatable": False})
    one = await enqueue(world, "only_once", {"target": "a"})
    await world.jobs.cancel(one["id"])
    refused = await world.post("superuser", "/api/jobs/enqueue", {"topic": "only_once", "payload": {"target": "a"}})
    assert is_problem(refused, 409, "once_taken")["first"] == one["id"]
    hidden = await world.post("enqueue token", "/api/jobs/enqueue", {"topic": "only_once", "payload": {"target": "a"}})
    assert "first" not in is_problem(hidden, 409, "once_taken")
    assert one["id"] not in hidden.text
    # enabled
    answer = await world.post("templates token", f"/api/templates/{topic}/disable", {"reason": "too slow"})
    assert [one["enabled"] for one in answer.json()["items"]] == [False]
    refused = await world.post("superuser", "/api/jobs/enqueue", {"topic": topic})
    assert is_problem(refused, 409, "template_disabled")["field"] == "topic"
    entries = (await world.get("superuser", "/api/audit")).json()["items"]
    assert ("template.disable", topic, "too slow") in [(one["action"], one["topic"], one["reason"]) for one in entries]


async def test_every_way_to_a_payload_goes_by_the_schema(world: World) -> None:
    await world.jobs.enqueue("strict", BAD)  # enqueued before there was a template
    old = await world.ended(None, "strict2", error="no", payload=BAD)
    await create(world, topic="strict", schema=SCHEMA, priority=7, max_retries=9, timeout=33)
    await create(world, topic="strict2", schema=SCHEMA)
    made = (await enqueue(world, "strict", GOOD, delay=60))["id"]
    job = await world.job(made)
    assert (job.priority, job.max_retries, job.timeout) == (7, 9, 33.0)
    before = await world.place.counts()
    failed = await world.jobs.enqueue("strict", GOOD)
    await world.jobs.cancel(failed.id)
    for method, path, body in (
        ("POST", "/api/jobs/enqueue", {"topic": "strict", "payload": BAD}),
        ("POST", "/api/jobs/enqueue/batch", {"jobs": [{"topic": "other"}, {"topic": "strict", "payload": BAD}]}),
        ("POST", f"/api/jobs/{made}/clone", {"payload": BAD}),
        ("POST", f"/api/jobs/{old}/clone", {}),
        ("PATCH", f"/api/jobs/{made}", {"payload": BAD}),
        ("POST", f"/api/jobs/{failed.id}/requeue", {"payload": BAD}),
    ):
        told = is_problem(await world.call("superuser", method, path, body), 400, "bad_payload")
        assert told["field"].endswith("payload.items[2].id"), (path, told)
    assert (await world.place.counts())["_jobs"] == before["_jobs"] + 1


async def test_versions_lines_and_what_a_worker_lacks(world: World) -> None:
    for version in (1, 2):
        await create(
            world, topic="a/mail", version=version, key=["to"], if_live="queue", schema={"title": f"{version}"}
        )
    ids = [(await enqueue(world, "a/mail", {"to": "x"}))["id"] for _ in range(4)]
    old = await enqueue(world, "a/mail", {"to": "x"}, version=1, if_live="reject")
    job = await world.job(ids[0])
    assert (job.template_version, job.if_live) == (2, "queue")
    line = (await world.get("read token", f"/api/jobs/{ids[3]}/line")).json()
    assert line == {
        "line": True, "head": ids[0], "ahead": 3, "ahead_capped": False, "behind": 0, "behind_capped": False,
        "before": ids[2],
    }  # fmt: skip
    assert (await world.get("read token", f"/api/jobs/{old['id']}/line")).json() == {"line": False}
    token = await world.token("one", ["read"], job=ids[3])
    shown = (await world.get(token, f"/api/jobs/{ids[3]}/line")).json()
    assert (shown["head"], shown["before"], shown["ahead"]) == (None, None, 3)
    why = (await world.get("superuser", f"/api/jobs/{ids[3]}/why")).json()
    assert why["code"] == "in_line_of_key"
    assert why["answer"] == f"It is behind job {ids[2]} in the line of its key, with 3 jobs ahead of it."
    # A worker that names only the topic serves version 0.
    assert await run(world, "a/mail") == []
    why = (await world.get("superuser", f"/api/jobs/{ids[0]}/why")).json()
    assert why["code"] == "no_worker_version"
    assert why["answer"] == "No live worker has version 2 of a/mail; 1 job waits for one. Live workers have version 0."
    shown = (await world.get("read token", "/api/templates?topic=a/mail")).json()["items"]
    assert [(one["version"], one["ready"], one["ready_capped"], one["workers"]) for one in shown] == [
        (2, 1, False, []), (1, 1, False, []),
    ]  # fmt: skip
    [item] = await run(world, "a/mail@2", limit=5)
    assert (item["id"], item["template_version"]) == (ids[0], 2)
    [worker] = (await world.get("superuser", "/api/workers")).json()["items"]
    assert worker["topics"] == ["a/mail@2"]
    topics = {one["topic"]: one["workers"] for one in (await world.get("superuser", "/api/topics")).json()["items"]}
    assert topics["a/mail"] == 1
    assert not any("@" in topic for topic in topics)
    shown = (await world.get("read token", "/api/templates/a%2Fmail")).json()["items"]
    assert [(one["version"], one["workers"]) for one in shown] == [(2, [worker["name"]]), (1, [])]
    assert (await world.get("read token", "/api/templates/a%2Fmail/1")).json()["version"] == 1


async def test_a_lane_that_can_not_be_is_refused(world: World) -> None:
    for name in ("mail@", "mail@x", "mail@-1", "mail@1@2", "mail@99999999", "mail@1000001", "@1"):
        is_problem(await world.post("worker token", "/api/worker/claim", {"worker": "w", "topics": [name]}), 400)


async def test_a_token_for_topics_is_for_all_their_versions_and_no_others(world: World) -> None:
    for name, status in (("mail@3", 200), ("bills@3", 403), ("bills", 403)):
        asked = {"worker": "w", "topics": [name]}
        assert (await world.post("mail worker token", "/api/worker/claim", asked)).status_code == status
    token = await world.token("mine", ["templates"], topics=["mail"])
    for body, status in (({"topic": "mail"}, 201), ({"topic": "bills"}, 403), ({"type": "bills"}, 403)):
        assert (await world.post(token, "/api/templates", body)).status_code == status
    await create(world, topic="bills")
    assert [one["topic"] for one in (await world.get(token, "/api/templates")).json()["items"]] == ["mail"]


async def test_rules_and_allowed_topics_hold_for_topics_with_a_template(world: World) -> None:
    await create(world, topic="mail", key=["to"], max_retries=9)
    asked = {"topic": "mail", "payload": {"to": "x"}, "scopeId": A}
    for settings, status in (
        ({"enqueue_rule": "max_retries < 5"}, 403),
        ({"enqueue_rule": "key = '[\"y\"]'"}, 403),
        ({"enqueue_rule": "key = '[\"x\"]' && max_retries = 9", "allowed_topics": ["bills"]}, 403),
        ({"enqueue_rule": "key = '[\"x\"]' && max_retries = 9", "allowed_topics": []}, 200),
    ):
        await world.change_settings(**settings)
        assert (await world.post("user A", "/api/jobs/enqueue", asked)).status_code == status, settings


REFUSED: list[tuple[str, str, Any, int, str, str | None]] = [
    ("POST", "", {}, 400, "bad_value", "topic"),
    ("POST", "", [], 400, "not_an_object", "body"),
    ("POST", "", {"topic": "t", "colour": 1}, 400, "unknown_field", "colour"),
    ("POST", "", {"topic": "t", "timeout": 5, "timeoutSeconds": 6}, 400, "twice", "timeoutSeconds"),
    ("POST", "", {"topic": "t", "schema": {"type": "object", "properties": 7}}, 400, "bad_schema", "schema.properties"),
    ("POST", "", {"topic": "t", "once": True, "if_live": "queue"}, 400, "with_if_live", "once"),
    ("POST", "", {"topic": "frozen", "version": 1}, 409, "template_exists", "version"),
    ("PATCH", "/frozen/1", {}, 400, "nothing_given", "body"),
    ("PATCH", "/frozen/1", {"version": 2}, 400, "unknown_field", "version"),
    ("PATCH", "/frozen/2", {"title": "x"}, 404, "template_not_found", None),
    ("GET", "/nothing", None, 404, "template_not_found", None),
    ("GET", "/frozen/2", None, 404, "template_not_found", None),
    ("POST", "/nothing/enable", {}, 404, "template_not_found", None),
    ("POST", "/frozen/disable", {"version": 7}, 404, "template_not_found", None),
]


async def test_what_is_refused_says_which_field_and_why(world: World) -> None:
    await create(world, topic="frozen", version=1, schema=SCHEMA, cancel={"supported": False})
    for method, path, body, status, code, field in REFUSED:
        told = is_problem(await world.call("superuser", method, f"/api/templates{path}", body), status, code)
        assert told.get("field") == field, told
    answer = await world.call("superuser", "PATCH", "/api/templates/frozen/1", {"schema": None, "timeout": 5})
    assert is_problem(answer, 409, "template_frozen")["changed"] == {"schema": {"before": SCHEMA, "after": None}}
    changed = await world.call("superuser", "PATCH", "/api/templates/frozen/1", {"timeout": 5, "reason": "faster"})
    assert (changed.json()["timeout"], changed.json()["schema"]) == (5.0, SCHEMA)
    answer = await world.post("superuser", "/api/jobs/enqueue", {"topic": "frozen", "payload": GOOD, "version": 3})
    assert is_problem(answer, 400, "unknown_version")["field"] == "version"
    made = await enqueue(world, "frozen", GOOD)
    claim = Claim("w", (Lane("frozen", 1),), 1, 30.0)
    assert [job.id for job in (await (await world.store()).claim(claim)).jobs] == [made["id"]]
    is_problem(await world.post("superuser", f"/api/jobs/{made['id']}/cancel"), 409, "cancel_unsupported")


async def test_a_template_that_can_t_be_read_is_told_and_breaks_no_other(world: World) -> None:
    await create(world, topic="fine")
    store = await world.store()
    assert await store.write_records([Write("template", "broken@2", {"template": {"topic": "broken", "once": "yes"}})])
    world.jobs.definitions.forget()
    told = {"topic": "broken", "version": 2, "problem": "template.once: must be true or false, not a text"}
    listed = (await world.get("read token", "/api/templates")).json()
    assert ([one["topic"] for one in listed["items"]], listed["unreadable"]) == (["fine"], [told])
    assert (await world.get("read token", "/api/templates/broken")).json() == {"items": [], "unreadable": [told]}
    limited = await world.token("limited", ["read"], topics=["fine"])
    answer = await world.get(limited, "/api/templates")
    assert answer.json()["unreadable"] == []
    await enqueue(world, "fine")
    for refused in (
        await world.post("superuser", "/api/jobs/enqueue", {"topic": "broken", "payload": {}}),
        await world.get("read token", "/api/templates/broken/2"),
        await world.post("templates token", "/api/templates/broken/disable", {}),
    ):
        assert "once" in is_problem(refused, 409, "template_unreadable")["detail"]
    await create(world, topic="broken", version=2, once=True)
    assert (await world.get("read token", "/api/templates")).json()["unreadable"] == []
    await enqueue(world, "broken")
