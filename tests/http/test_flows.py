"""Flows over HTTP: their life, what is refused and why, what a caller may see and do."""

from typing import Any

import pytest

from rowlock.core.flows import MAX_JOBS
from rowlock.core.lifecycle import Completed, Failed
from tests.http.harness import A, B, Who, World, is_problem
from tests.http.oracle import NOWHERE, Target, held, poll
from tests.stores.harness import claim_by, settlement
from tests.waiting import until

ORDER: dict[str, Any] = {
    "name": "order",
    "jobs": [  # in an order in which no caller would write them
        {
            "name": "receipt", "topic": "mail", "after": ["pay"], "when": "pay.result.amount > 100",
            "payload": {"to": "ada", "amount": {"$result": "pay.amount"}, "all": [{"$result": ["pay"]}]},
        },
        {"name": "small", "topic": "mail", "when": "pay.result.amount <= 100", "after": ["pay"]},
        {"name": "ship", "topic": "ship", "after": ["pack", "pay"], "ifFailed": "hold", "priority": 7, "tags": ["a"]},
        {"name": "pack", "topic": "pack", "maxRetries": 0, "scope": "user", "scopeId": A, "key": "order-7"},
        {"name": "pay", "topic": "charge", "payload": {"order": 7}},
    ],
}  # fmt: skip


async def create(world: World, who: str | Who = "enqueue token", **asked: Any) -> Any:
    answer = await world.post(who, "/api/flows", asked)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def finish(world: World, topic: str, result: Any = None, *, error: str | None = None) -> str:
    """Run the next job of a topic to its end, as a worker does. Return its id."""
    store = await world.store()
    [job] = (await store.claim(claim_by("w1", topic, limit=1))).jobs
    outcome = Completed(result) if error is None else Failed(error, final=True)
    await store.settle([settlement(job, outcome, ran=0.1)])
    return job.id


async def graph(world: World, flow_id: str) -> Any:
    answer = await world.get("flows token", f"/api/flows/{flow_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def statuses(world: World, flow_id: str, **wanted: str) -> None:
    """Wait until these nodes have these statuses."""
    found: dict[str, str] = {}

    async def fits() -> bool:
        await poll(world)
        found.update({one["name"]: one["status"] for one in (await graph(world, flow_id))["nodes"]})
        return wanted.items() <= found.items()

    await until(fits, lambda: f"{wanted}, not {found}")


async def test_the_life_of_a_flow(world: World) -> None:
    made = await create(world, **ORDER)
    jobs, path = made["jobs"], f"/api/flows/{made['id']}"
    assert {name: (one["topic"], one["status"], one["existing"]) for name, one in jobs.items()} == {
        "receipt": ("mail", "blocked", False), "small": ("mail", "blocked", False), "ship": ("ship", "blocked", False),
        "pack": ("pack", "pending", False), "pay": ("charge", "pending", False),
    }  # fmt: skip
    ship, pack = await world.job(jobs["ship"]["id"]), await world.job(jobs["pack"]["id"])
    assert (ship.priority, ship.tags, ship.flow_id) == (7, ("a",), made["id"])
    assert (pack.max_retries, pack.scope_id, pack.key) == (0, A, "order-7")

    seen = await graph(world, made["id"])
    assert seen == (await world.get("read-only superuser", path)).json()
    ids = {one["name"]: one["id"] for one in seen["nodes"]}
    assert ids == {name: one["id"] for name, one in jobs.items()}
    assert [one["name"] for one in seen["nodes"]].index("pay") < [one["name"] for one in seen["nodes"]].index("ship")
    edges = {(one["parent"], one["child"]): (one["if_failed"], one["when"], one["ended"]) for one in seen["edges"]}
    assert edges == {
        (ids["pay"], ids["receipt"]): ("cancel", "pay.result.amount > 100", None),
        (ids["pay"], ids["small"]): ("cancel", "pay.result.amount <= 100", None),
        (ids["pay"], ids["ship"]): ("hold", None, None), (ids["pack"], ids["ship"]): ("hold", None, None),
    }  # fmt: skip
    [listed] = (await world.get("read token", "/api/flows?name=order")).json()["items"]
    assert listed == seen["flow"]
    assert (listed["status"], listed["jobs"], listed["progress"]) == ("running", 5, 0.0)
    assert (listed["counts"], listed["by"][:5]) == ({"blocked": 3, "pending": 2}, "token")
    assert (await world.get("read token", "/api/flows?name=other")).json() == {"items": [], "next": None}

    # Conditions make branches, and results get into payloads.
    await finish(world, "charge", {"amount": 250})
    await statuses(world, made["id"], receipt="pending", small="cancelled", ship="blocked")
    receipt = (await world.get("read token", f"/api/jobs/{ids['receipt']}")).json()
    assert receipt["payload"] == {"to": "ada", "amount": 250, "all": [{"amount": 250}]}
    taken = {one["name"]: one["taken"] for one in (await graph(world, made["id"]))["nodes"]}
    assert taken == {"pay": True, "receipt": True, "small": False, "pack": True, "ship": True}

    # A parent fails: the job is held until an operator decides.
    await finish(world, "pack", error="no boxes")
    await finish(world, "mail")

    async def is_held() -> bool:
        await poll(world)
        return bool((await graph(world, made["id"]))["flow"]["status"] == "held")

    await until(is_held)
    now = await graph(world, made["id"])
    assert (now["flow"]["held"], [one["name"] for one in now["nodes"] if one["held"]]) == (1, ["ship"])
    release = f"/api/jobs/{ids['ship']}/release"
    is_problem(await world.post("enqueue token", release), 403)
    assert (await world.post("manage token", release, {"reason": "boxes have come"})).json()["id"] == ids["ship"]
    await statuses(world, made["id"], ship="pending")
    is_problem(await world.post("manage token", release), 409, "wrong_state")

    # An operator can delete the flow once no job of it is live.
    told = is_problem(await world.call("flows token", "DELETE", path), 409, "wrong_state")
    assert told["flow_status"] == "running"
    await finish(world, "ship")
    now = (await graph(world, made["id"]))["flow"]
    assert (now["status"], now["progress"]) == ("failed", 100.0)
    assert (await world.call("flows token", "DELETE", f"{path}?reason=over")).json() == {"changed": 5}
    is_problem(await world.get("flows token", path), 404, "flow_not_found")
    assert await world.find(ids["pay"]) is None
    audit = (await world.get("superuser", "/api/audit?limit=200")).json()["items"]
    assert ("boxes have come", ids["ship"]) in [(one["reason"], one["job_id"]) for one in audit]
    assert [one["action"] for one in audit if one["reason"] == "over"] == ["delete"] * 5


async def test_a_branch_is_cancelled_and_run_again(world: World) -> None:
    jobs = [
        {"name": "root", "topic": "root"}, {"name": "left", "topic": "left", "after": ["root"]},
        {"name": "below", "topic": "below", "after": ["left"]}, {"name": "right", "topic": "right", "after": ["root"]},
    ]  # fmt: skip
    made = await create(world, name="fork", jobs=jobs)
    path = f"/api/flows/{made['id']}"
    told = is_problem(await world.post("flows token", f"{path}/cancel", {"node": "centre"}), 400, "unknown_node")
    assert told["field"] == "node"
    answer = await world.post("flows token", f"{path}/cancel", {"node": "left", "reason": "no need"})
    assert answer.json() == {"changed": 2}
    await statuses(world, made["id"], root="pending", left="cancelled", below="cancelled", right="blocked")
    again = await world.post("flows token", f"{path}/requeue", {"node": made["jobs"]["left"]["id"]})
    assert again.json() == {"changed": 2}
    await statuses(world, made["id"], root="pending", left="blocked", below="blocked", right="blocked")

    # A requeue runs the failed jobs again, and the jobs that were cancelled because of them.
    await finish(world, "root", error="broken")
    await statuses(world, made["id"], root="failed", left="cancelled", below="cancelled", right="cancelled")
    assert (await world.post("flows token", f"{path}/requeue", {"reason": "mended"})).json() == {"changed": 1}
    await statuses(world, made["id"], root="pending", left="blocked", below="blocked", right="blocked")
    assert (await world.post("flows token", f"{path}/cancel")).json() == {"changed": 4}
    assert (await graph(world, made["id"]))["flow"]["status"] == "cancelled"


async def test_a_requeue_names_the_job_and_who_has_its_key(world: World) -> None:
    jobs = [{"topic": "a"}, {"topic": "b", "after": ["a"], "key": "k"}]
    made = await create(world, name="f", jobs=jobs)
    await finish(world, "a", error="broken")
    await statuses(world, made["id"], b="cancelled")
    holder = await world.enqueue(None, topic="b", key="k")
    for who, named in (("superuser", holder), ("flows token", None)):  # this token may not see the job
        told = is_problem(await world.post(who, f"/api/flows/{made['id']}/requeue"), 409, "key_taken")
        assert (told["job"], told.get("holder")) == (made["jobs"]["b"]["id"], named)
        assert (holder in told["detail"]) == (named is not None)


async def test_a_flow_waits_for_jobs_that_are_there(world: World) -> None:
    done, live = await world.ended(None, "done"), await world.enqueue(None, topic="live")
    jobs = [{"topic": "t", "after": [done, live], "when": "job_2.status = 'completed'"}]
    made = await create(world, "superuser", name="later", jobs=jobs)
    nodes = {one["id"]: one for one in (await graph(world, made["id"]))["nodes"]}
    assert {one: (nodes[one]["outside"], nodes[one]["status"]) for one in (done, live)} == {
        done: (True, "completed"), live: (True, "pending"),
    }  # fmt: skip
    await finish(world, "live")
    await statuses(world, made["id"], t="pending")


async def test_a_request_that_comes_twice_makes_one_flow(world: World) -> None:
    own = {**ORDER, "id": "019c1e8a-7c00-7000-8000-5d2f8c1b9e04"}
    first = await create(world, "superuser", **own)
    assert first["id"] == own["id"]
    before = await world.place.counts()
    await finish(world, "charge", {"amount": 250})
    again = await create(world, "superuser", **own)
    assert {name: one["id"] for name, one in again["jobs"].items()} == {
        name: one["id"] for name, one in first["jobs"].items()
    }
    assert (again["jobs"]["pay"]["status"], again["jobs"]["pay"]["existing"]) == ("completed", True)
    now = await world.place.counts()
    assert [now[name] for name in ("_jobs_flows", "_jobs_edges")] == [1, 4]
    assert now["_jobs"] + now["_jobs_archive"] == before["_jobs"]
    is_problem(await world.post("superuser", "/api/flows", {**own, "name": "other"}), 409, "id_taken")
    # A caller that may not see the jobs learns nothing of them.
    assert is_problem(await world.post("enqueue token", "/api/flows", own), 409, "key_taken")["field"] == "id"


def one(**changes: Any) -> dict[str, Any]:
    return {"jobs": [{"topic": "t", "name": "a"}, {"topic": "t", "name": "b", "after": ["a"], **changes}]}


BAD: list[tuple[dict[str, Any], int, str, str]] = [
    ({"jobs": []}, 400, "empty", "jobs"),
    ({"jobs": [{"topic": "t"}] * (MAX_JOBS + 1)}, 400, "too_many", "jobs"),
    ({"jobs": [{"topic": "t", "name": "a", "after": ["b"]}, {"topic": "t", "name": "b", "after": ["a"]}]}, 400,
     "cycle", "jobs[0].after"),
    (one(after=["b"]), 400, "cycle", "jobs[1].after"),
    (one(payload={"x": {"$result": "b"}}), 400, "cycle", "jobs[1].after"),
    (one(after=["c"]), 400, "unknown_parent", "jobs[1].after"),
    (one(after=[NOWHERE]), 400, "unknown_parent", "jobs[1].after"),
    (one(payload={"x": {"$result": "c.y"}}), 400, "unknown_parent", "jobs[1].payload.x"),
    (one(payload={"x": {"$result": 7}}), 400, "bad_result", "jobs[1].payload.x"),
    (one(payload={"x": {"$result": "a", "y": 1}}), 400, "bad_result", "jobs[1].payload.x"),
    (one(name="a"), 400, "taken", "jobs[1].name"),
    (one(name="b c"), 400, "bad_characters", "jobs[1].name"),
    (one(when="a.result >"), 400, "bad_rule", "jobs[1].when"),
    (one(when="c.status = 'failed'"), 400, "bad_rule", "jobs[1].when"),
    (one(when="a.payload = 1"), 400, "bad_rule", "jobs[1].when"),
    (one(when="@request.auth.id = 1"), 400, "bad_rule", "jobs[1].when"),
    (one(after=[], when="a.status = 'failed'"), 400, "needs_after", "jobs[1].when"),
    (one(if_failed="wait"), 400, "bad_value", "jobs[1].if_failed"),
    (one(after="a"), 400, "bad_value", "jobs[1].after"),
    (one(topic="t t"), 400, "bad_characters", "jobs[1].topic"),
    (one(topic="strict", payload={"n": "x"}), 400, "bad_payload", "jobs[1].payload.n"),
    (one(topic="strict", payload={"m": {"$result": "a"}}), 400, "bad_payload", "jobs[1].payload.m"),
    (one(max_retries=-1), 400, "out_of_range", "jobs[1].max_retries"),
    (one(key="k", ifLive="queue"), 400, "in_flow", "jobs[1].if_live"),
    (one(colour=1), 400, "unknown_field", "jobs[1].colour"),
    (one(payload={"password": "[redacted]"}), 400, "redacted", "jobs[1].payload.password"),
    (one(key="taken"), 409, "flow_key_taken", "jobs[1].key"),
    ({"name": " "}, 400, "empty", "name"),
    ({"id": "7"}, 400, "bad_id", "id"),
    ({"colour": 1}, 400, "unknown_field", "colour"),
]  # fmt: skip


async def test_what_is_refused_says_which_field_and_why_and_adds_nothing(world: World) -> None:
    strict = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}
    await world.jobs.templates.create({"topic": "strict", "schema": strict})
    holder = await world.enqueue(None, topic="t", key="taken")
    before = await world.place.counts()
    for changes, status, code, field in BAD:
        answer = await world.post("superuser", "/api/flows", {"name": "new", **one(), **changes})
        told = is_problem(answer, status, code)
        assert told["field"] == field, told
        assert (told.get("holder") == holder) is (code == "flow_key_taken")
    assert await world.place.counts() == before
    for method, path in (
        ("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("POST", "/requeue"),
    ):  # fmt: skip
        is_problem(await world.call("superuser", method, f"/api/flows/{NOWHERE}{path}"), 404, "flow_not_found")
    is_problem(await world.post("superuser", f"/api/jobs/{holder}/release"), 409, "wrong_state")
    is_problem(await world.get("superuser", "/api/flows?limit=201"), 400, "out_of_range")


async def test_the_right_to_enqueue_is_judged_for_each_job(world: World) -> None:
    """Anything that refuses a single job refuses the flow as a whole."""
    await world.change_settings(enqueue_rule="scope_id = @request.auth.id && topic != 'admin'")
    own = {"topic": "mail", "scopeId": A, "scope": "user"}
    tries: list[tuple[str, dict[str, Any], str]] = [
        ("user A", {**own, "topic": "admin"}, "jobs[1]"), ("user A", {**own, "scopeId": B}, "jobs[1]"),
        ("mail token", {**own, "topic": "bills"}, "jobs[1].topic"),
        ("browser token", {**own, "topic": "bills"}, "jobs[1].topic"),
    ]  # fmt: skip
    before = await world.place.counts()
    for who, second, field in tries:
        body = {"name": "mixed", "jobs": [own, {**second, "after": ["mail"]}]}
        told = is_problem(await world.post(who, "/api/flows", body), 403, "not_allowed")
        assert told["field"] == field, told
    body = {"name": "mine", "jobs": [own, {**own, "scopeId": B, "after": ["mail"]}]}
    is_problem(await world.post("browser token", "/api/flows", body), 403, "not_allowed")
    assert await world.place.counts() == before
    for who in ("user A", "mail token", "browser token"):
        made = await create(world, who, name="mine", jobs=[own, {**own, "after": ["mail"]}])
        assert [(await world.job(one["id"])).scope_id for one in made["jobs"].values()] == [A, A]
    await world.change_settings(allowed_topics=["mail"])
    body = {"name": "mixed", "jobs": [own, {"topic": "bills"}]}
    is_problem(await world.post("enqueue token", "/api/flows", body), 403, "not_allowed")


async def test_a_hidden_job_is_no_parent_and_no_holder(world: World) -> None:
    """A caller that may enqueue learns nothing of jobs that it may not see: not that they exist, nor how they end."""
    secret = await world.enqueue(B, topic="mail", scope="user", key="k")
    await world.change_settings(enqueue_rule="true", view_rule="scope_id = @request.auth.id")
    before = await world.place.counts()
    told = []
    for parent in (secret, NOWHERE):
        body = {"name": "spy", "jobs": [{"topic": "mail", "after": [parent], "when": "job.status = 'failed'"}]}
        problem = is_problem(await world.post("user A", "/api/flows", body), 400, "unknown_parent")
        assert problem["field"] == "jobs[0].after"
        told.append(problem["detail"])
    assert told[0].replace(secret, "") == told[1].replace(NOWHERE, "")
    for taken in ({"key": "k", "scope": "user", "scopeId": B}, {"id": secret}):
        answer = await world.post("user A", "/api/flows", {"name": "spy", "jobs": [{"topic": "mail", **taken}]})
        is_problem(answer, 409)
        assert secret not in answer.text
    assert await world.place.counts() == before
    own = await world.enqueue(A, topic="mail")
    assert (await create(world, "user A", name="own", jobs=[{"topic": "mail", "after": [own]}]))["jobs"]


HIDDEN: list[dict[str, Any]] = [
    {"payload": {"note": {"$result": "pay.password"}}},
    {"payload": {"note": {"$result": ["pay", "users", 0, "password", "text"]}}},
    {"payload": {"deep": [{"note": {"$result": "pay.card"}}]}},  # card.number is hidden, note.number would not be
    {"payload": {"note": {"$result": "pay"}}},  # result.inner is hidden, payload.note.inner would not be
    {"when": "pay.result.password = 'a'"},
    {"when": "pay.status = 'completed' && (pay.result.n > 1 || pay.result.card.number ~ '4%')"},
    {"after": ["pay", "OUTSIDE"], "when": "job.error ~ 'a%'"},
]
SHOWN: list[dict[str, Any]] = [
    {"payload": {"note": {"$result": "pay.amount"}, "card": {"$result": "pay.card"}}},
    {"payload": {"password": {"$result": "pay.password"}}},
    {"payload": {"secrets": {"password": {"$result": "pay"}}}},
    {"when": "pay.result.amount > 1 && pay.error != 'x'"},
]


async def test_no_flow_shows_what_is_redacted(world: World) -> None:
    await world.change_settings(redact=["password", "card.number", "result.inner"])
    outside = await world.ended(None, "failing", error="a secret")
    token = await world.token("caller", ["enqueue", "read"])
    for second in HIDDEN:
        second = {**second, "after": [outside if one == "OUTSIDE" else one for one in second.get("after", ["pay"])]}
        body = {"name": "spy", "jobs": [{"topic": "charge", "name": "pay"}, {"topic": "mail", **second}]}
        told = is_problem(await world.post(token, "/api/flows", body), 403, "not_allowed")
        assert "redacted" in told["detail"], second
        assert told["field"].startswith(("jobs[1].payload", "jobs[1].when"))
        await create(world, "superuser", **body)  # a superuser may reveal it
    for second in SHOWN:
        await create(world, token, name="good", jobs=[{"topic": "charge", "name": "pay"},
                                                      {"topic": "mail", "after": ["pay"], **second}])  # fmt: skip


async def test_a_new_payload_shows_nothing_that_is_redacted(world: World) -> None:
    await world.change_settings(redact=["password", "card.number", "result.inner"])
    token = await world.token("caller", ["enqueue", "read", "flows", "manage"])
    spy = {"topic": "mail", "name": "spy", "after": ["pay"], "when": "pay.status = 'failed'"}
    made = await create(world, token, name="f", jobs=[{"topic": "charge", "name": "pay"}, spy])
    await finish(world, "charge", {"password": "hunter2"})
    await statuses(world, made["id"], spy="cancelled")
    path = f"/api/jobs/{made['jobs']['spy']['id']}"
    for second in HIDDEN:
        if "payload" in second:
            told = is_problem(await world.post(token, f"{path}/requeue", second), 403, "not_allowed")
            assert "redacted" in told["detail"], second
            is_problem(await world.call(token, "PATCH", path, second), 403, "not_allowed")
    body = {"payload": {"password": {"$result": "pay.password"}}}
    assert (await world.post(token, f"{path}/requeue", body)).status_code == 200
    assert "hunter2" not in (await world.get(token, path)).text
    assert (await world.job(made["jobs"]["spy"]["id"])).payload == {"password": "hunter2"}


async def test_a_new_payload_uses_no_job_that_is_hidden(world: World) -> None:
    """A caller may manage a job without seeing the jobs that it waits for."""
    await world.change_settings(view_rule="scope_id = @request.auth.id", manage_rule="scope_id = @request.auth.id")
    await world.change_settings(enqueue_rule="true")
    jobs = [
        {"topic": "charge", "name": "pay", "scope": "user", "scopeId": B},
        {"topic": "mail", "name": "tell", "scope": "user", "scopeId": A, "payload": {"all": {"$result": "pay"}}},
    ]
    made = await create(world, "superuser", name="f", jobs=jobs)
    path = f"/api/jobs/{made['jobs']['tell']['id']}"
    assert (await world.post("user A", f"{path}/cancel")).status_code == 200
    await finish(world, "charge", {"n": 5})
    body = {"payload": {"n": {"$result": "pay.n"}}}
    is_problem(await world.post("user A", f"{path}/requeue", body), 400, "unknown_parent")
    assert (await world.post("superuser", f"{path}/requeue", body)).status_code == 200
    assert (await world.job(made["jobs"]["tell"]["id"])).payload == {"n": 5}


async def test_release_needs_the_right_to_manage_the_job(world: World) -> None:
    await world.change_settings(manage_rule="scope_id = @request.auth.id")
    for user, who, status in (
        (A, "user A", 200),
        (B, "user A", 404),
        (A, "cancel token", 403),
        (B, "manage token", 200),
    ):
        job_id = await held(world, Target("mail", user))
        if who == "user A" and user == A:
            why = (await world.get(who, f"/api/jobs/{job_id}/why")).json()
            assert why == {"code": "held", "answer": "It is held until a person decides.", "details": []}
        answer = await world.post(who, f"/api/jobs/{job_id}/release")
        assert answer.status_code == status, answer.text
        flow_id = (await world.job(job_id)).flow_id
        assert (await world.jobs.flows.get(str(flow_id))).held == (status != 200)


@pytest.mark.parametrize("who", ["anonymous", "user A", "enqueue token", "worker token", "mail token", "read token"])
async def test_flows_are_for_operators(sqlite_world: World, who: str) -> None:
    """Rules don't open flows. A token for some topics may not use flows, because a flow has several topics."""
    await sqlite_world.change_settings(manage_rule="true", enqueue_rule="true", view_rule="true")
    made = await create(sqlite_world, "superuser", name="f", jobs=[{"topic": "mail"}])
    path = f"/api/flows/{made['id']}"
    refused = 401 if who == "anonymous" else 403
    for method, asked in (("GET", "/api/flows"), ("GET", path)):
        assert (await sqlite_world.call(who, method, asked)).status_code == (200 if who == "read token" else refused)
    for method, asked in (("POST", f"{path}/cancel"), ("POST", f"{path}/requeue"), ("DELETE", path)):
        assert (await sqlite_world.call(who, method, asked)).status_code == refused
