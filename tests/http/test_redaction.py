"""No route shows a secret, no filter tells it, no edit stores its mark; a caller that may see it gives a reason."""

import gc
import json
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import ref

import pytest
from msgspec.structs import asdict, replace

from rowlock.access.redaction import DEFAULTS, MARK
from rowlock.core.job import Job
from rowlock.core.lifecycle import Completed, Failed
from rowlock.stores.base import NewLine, Progress
from rowlock.stores.queries import Page
from tests.http.harness import JSON, A, World, is_problem
from tests.http.oracle import REQUESTS, Target, by_name
from tests.stores.harness import claim_by, settlement

SECRET = "s3cr3t"  # part of everything that must stay hidden
VALUES = {
    "password": f"{SECRET}-password", "user": {"name": "ada", "Access_Token": f"{SECRET}-tökén \"'"},
    "cards": [{"card_number": f"{SECRET}-card"}], "note": f"it is {SECRET}-password", "url": f"http://x/?api_key={SECRET}-url",
    "database": f"postgres://ada:{SECRET}-dsn@db/jobs",
}  # fmt: skip
ERROR = (
    f"ValueError: {SECRET}-password is wrong\n{json.dumps(VALUES)}\n{VALUES!r}\ntoken={SECRET}-by-name\n"
    f"Authorization: Bearer {SECRET}-header\nno answer from redis://:{SECRET}-at-cache@cache:6379/0"
)
LIVE = "0193fb1e-0000-7000-8000-00000000a001"


class Loaded(Job, frozen=True, weakref=True):
    """A job that the test can follow until it is freed."""


async def plant(world: World) -> list[str]:
    """Make jobs in several states, with secrets wherever a job can have one. Return their ids."""
    store = await world.store()
    said = {"stage": f"{SECRET}-password", "message": f"password: {SECRET}-said"}
    text = f"got {SECRET}-password and secret={SECRET}-logged, now amqp://a:{SECRET}-queue@mq"
    lines = (NewLine(0.0, "info", text),)
    ids = []
    for topic, outcomes in (
        ("dead", [Failed(ERROR), Failed(ERROR, final=True)]),
        ("done", [Completed({"token": f"{SECRET}-result", "echo": f"{SECRET}-password", "is": f"{SECRET}-result"})]),
        ("running", []),
        ("retried", [Failed(ERROR)]),
    ):
        ids.append(await world.enqueue(A, topic=topic, payload=VALUES))
        for n, outcome in enumerate([*outcomes, None]):
            if n and outcome is None:
                break
            await world.place.fetch("UPDATE _jobs SET ready = true, run_at = created WHERE status = 'pending'")
            [run] = (await store.claim(claim_by("w1", topic, limit=1))).jobs
            await store.progress([Progress(run.id, run.version, 5.0, said["stage"], said["message"], lines)])
            if outcome is not None:
                await store.settle([settlement(run, outcome, ran=0.1)])
    pending = await world.enqueue(A, topic="waiting", payload=VALUES, id=LIVE, key="k")
    edited = {**VALUES, "password": f"{SECRET}-edited", "note": "another one"}
    await world.jobs.update(pending, payload=edited, reason=f"was password={SECRET}-reason", by="ann")
    cancelled = await world.enqueue(A, topic="cancelled", payload=VALUES)
    await world.jobs.cancel(cancelled, reason=f"{SECRET}-password leaked", by="ann")
    return [*ids, pending, cancelled]


async def answers(world: World, who: str, ids: list[str]) -> dict[str, str]:
    """Return everything that can be read, and what the routes that change something answer."""
    told = {}
    await world.jobs.requeue(ids[0], by="ann")
    await world.ended(A, "dead", error=ERROR, payload=VALUES, priority=1000)
    await world.jobs.cancel(ids[0], by="ann")
    for name, route in by_name().items():
        ready = await REQUESTS[name](world, Target("dead", A))
        if name.endswith(("/reveal", "/setup", "/login", "/logout")) or "/tokens" in name or "/sessions" in name:
            continue
        for job_id in ids if ready.job else ids[:1]:
            path = ready.path.replace(ready.job, job_id) if ready.job else ready.path
            answer = await world.call(who, route.method, path, ready.json)
            told[f"{name} {job_id if ready.job else ''}"] = answer.text
            if route.method == "DELETE" or route.path.endswith("/cancel"):
                break  # one job is enough, and later requests look at the others
    again: JSON = {"topic": "waiting", "payload": VALUES, "key": "k"}
    told["a key that is there"] = (await world.post(who, "/api/jobs/enqueue", again)).text
    told["the list of dead ones"] = (await world.get(who, "/api/jobs?status=failed&limit=200")).text
    return told


def leaks(told: dict[str, str]) -> list[tuple[str, str]]:
    """Return where a secret was found, and the text around it."""
    return [(name, text[max(at - 60, 0) : at + 30]) for name, text in told.items() if (at := text.find(SECRET)) >= 0]


@pytest.mark.parametrize("who", ["superuser", "admin token", "manage token", "user A"])
async def test_no_secret_leaves_by_any_route_for_anyone(world: World, who: str) -> None:
    if world.place.kind == "postgres" and who != "admin token":
        pytest.skip("the database has no part in it")
    await world.change_settings(manage_rule="true", enqueue_rule="true")
    ids = await plant(world)
    told = await answers(world, who, ids)
    assert leaks(told) == []
    assert sum(MARK in text for text in told.values()) >= 20
    shown = " ".join(told.values())
    assert "ada" in shown
    assert "ValueError" in shown


async def test_no_secret_leaves_by_any_route(world: World) -> None:
    ids = await plant(world)
    assert leaks(await answers(world, "admin token", ids)) == []


async def test_the_corpus_is_full_of_secrets(sqlite_world: World) -> None:
    """With nothing redacted, the same walk finds the secrets everywhere."""
    await sqlite_world.change_settings(redact=[])
    told = await answers(sqlite_world, "admin token", await plant(sqlite_world))
    assert {name.split(" ")[1] for name, _ in leaks(told)} >= {
        "/api/jobs", "/api/jobs/{id}", "/api/jobs/{id}/events", "/api/jobs/{id}/logs", "/api/jobs/{id}/wait",
        "/api/jobs/{id}/why", "/api/audit", "/api/failures", "/api/jobs/{id}/requeue",
    }  # fmt: skip
    everything = " ".join(told.values())
    for word in (
        "by-name", "header", "said", "logged", "result", "edited", "reason", "card", "url", "dsn", "at-cache", "queue",
    ):  # fmt: skip
        assert f"{SECRET}-{word}" in everything, word


async def test_what_is_hidden_is_named(sqlite_world: World) -> None:
    [dead, *_] = await plant(sqlite_world)
    body = (await sqlite_world.get("superuser", f"/api/jobs/{dead}")).json()
    assert body["payload"]["password"] == MARK
    assert body["payload"]["user"] == {"name": "ada", "Access_Token": MARK}
    assert body["payload"]["note"] == f"it is {MARK}"
    assert body["payload"]["database"] == f"postgres://ada:{MARK}@db/jobs"
    assert {"payload.password", "payload.user.Access_Token", "payload.cards.card_number", "last_error"} <= {
        *body["redacted"]
    }
    harmless = await sqlite_world.enqueue(A)
    assert "redacted" not in (await sqlite_world.get("superuser", f"/api/jobs/{harmless}")).json()


async def test_a_worker_gets_everything(sqlite_world: World) -> None:
    await sqlite_world.enqueue(A, topic="work", payload=VALUES)
    [run] = (await (await sqlite_world.store()).claim(claim_by("w1", "work"))).jobs
    assert run.payload == VALUES


# ── The setting ──


async def test_the_patterns_are_a_setting(sqlite_world: World) -> None:
    job_id = await sqlite_world.enqueue(A, payload={"user": {"email": "ada@example.org"}, "password": "is shown"})
    settings = (await sqlite_world.get("admin token", "/api/settings")).json()
    assert (settings["redact"], "redact" in settings["given"]) == (list(DEFAULTS), False)
    await sqlite_world.change_settings(redact=["payload.user.email"])
    body = (await sqlite_world.get("superuser", f"/api/jobs/{job_id}")).json()
    assert body["payload"] == {"user": {"email": MARK}, "password": "is shown"}
    assert body["redacted"] == ["payload.user.email"]
    await sqlite_world.change_settings(redact=None)
    assert (await sqlite_world.get("superuser", f"/api/jobs/{job_id}")).json()["payload"]["password"] == MARK
    for bad in (["a..b"], "password", [7], [f"p{n}" for n in range(201)]):
        answer = await sqlite_world.call("admin token", "PATCH", "/api/settings", {"redact": bad})
        assert is_problem(answer, 400)["field"].startswith("redact")
    changes = [
        entry
        for entry in (await sqlite_world.get("admin token", "/api/audit")).json()["items"]
        if "settings" in entry["action"]
    ]
    assert changes[-1]["data"] == {"before": {"redact": None}, "after": {"redact": ["payload.user.email"]}}


# ── No other way to a secret ──


async def test_no_filter_tells_what_is_hidden(world: World) -> None:
    await plant(world)
    await world.change_settings(manage_rule="true")
    for who in ("read token", "manage token", "mail token", "user A", "read-only superuser"):
        for query in (
            f"password={SECRET}-password", 'password="x"', "user.access_token=1",
            'user={"name": "ada", "access_token": 1}',
            "cards=[{}]".replace("{}", '{"card_number": 1}'), "credentials.deep=1",
        ):  # fmt: skip
            answer = await world.get(who, "/api/jobs", params={"payload": query})
            told = is_problem(answer, 403)
            assert told["field"] == "payload"
            assert "redacted" in told["detail"]
            assert SECRET not in answer.text
        found = await world.get(who, "/api/jobs", params={"payload": "user.name=ada"})
        assert found.status_code == 200
    allowed = await world.get("superuser", "/api/jobs", params={"payload": f"password={SECRET}-password"})
    assert allowed.json()["total"] >= 1
    read_only = world.another_api(read_only=True)
    refused = await world.get("superuser", "/api/jobs", params={"payload": "password=x"}, api=read_only)
    is_problem(refused, 403)


async def test_no_search_in_errors_tells_what_is_hidden(world: World) -> None:
    dead = [await world.ended(A, "dead", error=f"Broken: token={SECRET}{n}", payload={}) for n in range(3)]
    plain = await world.ended(A, "dead", error=f"Broken: {SECRET}2 is no secret here", payload={})
    for who, guess, wanted in (
        ("read token", f"token={SECRET}", []),
        ("read token", f"{SECRET}0", []),
        ("read token", f"{SECRET}2", [plain]),
        ("read token", "broken", [plain, *reversed(dead)]),
        ("superuser", f"token={SECRET}1", [dead[1]]),
    ):
        body = (await world.get(who, "/api/jobs", params={"error": guess})).json()
        assert [item["id"] for item in body["items"]] == sorted(wanted, reverse=True), (who, guess)
        assert (body["total"], body["total_capped"], body["next"]) == (len(wanted), False, None)


async def test_a_search_in_errors_has_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that are not shown leave no gap between the pages."""
    monkeypatch.setattr("rowlock.http.redacting._AT_ONCE", 3)
    made = [
        await world.ended(A, "dead", error=f"Broken {'token=Broken' if n % 3 else 'Needle'}", payload={})
        for n in range(9)
    ]
    wanted = sorted(made[::3], reverse=True)
    seen: list[str] = []
    asked: dict[str, Any] = {"error": "needle", "limit": 1}
    while True:
        body = (await world.get("read token", "/api/jobs", params=asked)).json()
        seen += [item["id"] for item in body["items"]]
        if body["partial"]:
            assert body["next"] is not None
        assert body["total_capped"] or body["total"] == len(wanted)
        assert body["total"] <= len(wanted)
        if body["next"] is None:
            break
        asked["cursor"] = body["next"]
    assert seen == wanted
    second = (await world.get("read token", "/api/jobs", params={"error": "needle", "limit": 1, "offset": 1})).json()
    assert [item["id"] for item in second["items"]] == wanted[1:2]
    is_problem(await world.get("read token", "/api/jobs", params={"error": "x", "limit": 201}), 400)


async def test_few_whole_jobs_are_held_at_once(sqlite_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds however many jobs the server looks at: each may have some MB."""
    world, store = sqlite_world, await sqlite_world.store()
    monkeypatch.setattr("rowlock.http.redacting._AT_ONCE", 3)
    for n in range(10):
        await world.ended(A, f"dead{n}", error="Broken: token=x", payload={})
    seen: list[ref[Loaded]] = []
    most = 0

    def watched(jobs: Iterable[Job]) -> list[Job]:
        nonlocal most
        loaded = [Loaded(**asdict(job)) for job in jobs]
        seen.extend(map(ref, loaded))
        most = max(most, sum(one() is not None for one in seen))
        return [*loaded]

    read, pages = store.read, store.list

    async def watched_read(ids: Sequence[str], shape: type[Job]) -> dict[str, Job]:
        return {job.id: job for job in watched((await read(ids, shape)).values())}

    async def watched_list(*arguments: Any, **options: Any) -> Page:
        page = await pages(*arguments, **options)
        return replace(page, items=watched(page.items))

    monkeypatch.setattr(store, "read", watched_read)
    monkeypatch.setattr(store, "list", watched_list)
    body = (await world.get("read token", "/api/jobs", params={"error": "broken", "limit": 2})).json()
    assert (len(body["items"]), body["total_capped"]) == (2, True)
    last = {"error": "broken", "limit": 2, "offset": 9}
    assert (await world.get("read token", "/api/jobs", params=last)).json()["total"] == 10
    assert 2 <= most <= 3
    gc.collect()
    most = 0
    assert len((await world.get("read token", "/api/failures")).json()["items"]) == 10
    assert 1 <= most <= 2


async def test_what_was_not_shown_does_not_come_back_as_a_value(sqlite_world: World) -> None:
    job_id = await sqlite_world.enqueue(A, payload=VALUES)
    dead = await sqlite_world.ended(A, "dead", error="no", payload=VALUES)
    shown = (await sqlite_world.get("superuser", f"/api/jobs/{job_id}")).json()["payload"]
    for method, path, body in (
        ("POST", f"/api/jobs/{dead}/requeue", {"payload": shown}),
        ("POST", f"/api/jobs/{dead}/requeue", {"payload": {**VALUES, "note": f"it is {MARK}"}}),
        ("PATCH", f"/api/jobs/{job_id}", {"payload": shown}),
        ("POST", f"/api/jobs/{job_id}/clone", {"payload": shown}),
        ("PATCH", f"/api/jobs/{job_id}", {"payload": {**VALUES, "note": f"it is {MARK}"}}),
        ("POST", f"/api/jobs/{job_id}/clone", {"payload": {"list": [{"note": f"it is {MARK}"}]}}),
        ("POST", "/api/jobs/enqueue", {"topic": "mail", "payload": {"user": {"Access_Token": MARK}}}),
        ("POST", "/api/jobs/enqueue/batch", {"jobs": [{"topic": "mail", "payload": shown}]}),
    ):
        before = await sqlite_world.place.counts()
        told = is_problem(await sqlite_world.call("superuser", method, path, body), 400, "redacted")
        assert told["field"].startswith("payload.")
        assert await sqlite_world.place.counts() == before
    for one in (job_id, dead):
        assert (await sqlite_world.job(one)).payload == VALUES


async def test_who_says_the_mark_by_itself_may(sqlite_world: World) -> None:
    """Where nothing is hidden, the mark is a word like any other. It may also stay where it stood."""
    body = {"topic": "mail", "payload": {"note": f"was {MARK}", "list": [MARK]}}
    job_id = (await sqlite_world.post("superuser", "/api/jobs/enqueue", body)).json()["id"]
    edited = {"payload": {"note": f"was {MARK}, too"}}
    assert (await sqlite_world.call("superuser", "PATCH", f"/api/jobs/{job_id}", edited)).status_code == 200
    await sqlite_world.change_settings(redact=[])
    hidden: JSON = {"topic": "mail", "payload": {"password": MARK}}
    assert (await sqlite_world.post("superuser", "/api/jobs/enqueue", hidden)).status_code == 200


async def test_a_clone_has_the_real_values(world: World) -> None:
    job_id = await world.enqueue(A, payload=VALUES)
    made = (await world.post("superuser", f"/api/jobs/{job_id}/clone", {"priority": 7})).json()
    assert SECRET not in json.dumps(made)
    clone = await world.job(made["id"])
    assert clone.payload == VALUES


# ── Reveal ──


async def test_a_reveal_tells_all_and_stands_in_the_audit_first(world: World) -> None:
    [dead, *_] = await plant(world)
    for who, by in (("superuser", "superuser boss@example.com"), ("admin token", "token admin token")):
        answer = await world.post(who, f"/api/jobs/{dead}/reveal", {"reason": f"ticket 7 of {who}"})
        body = answer.json()
        assert answer.status_code == 200, answer.text
        assert body["job"]["payload"] == VALUES
        assert body["job"]["last_error"] == ERROR
        assert "redacted" not in body["job"]
        assert any(SECRET in str(event["data"]) for event in body["events"])
        assert f"{SECRET}-logged" in body["logs"][0]["text"]
        entry = (await world.get("superuser", "/api/audit?limit=1")).json()["items"][0]
        assert (entry["action"], entry["by"], entry["job_id"], entry["topic"]) == ("reveal", by, dead, "dead")
        assert entry["reason"] == f"ticket 7 of {who}"


async def test_nothing_is_revealed_that_is_not_in_the_audit(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the server can't write the audit entry, it doesn't show the secret."""
    [dead, *_] = await plant(sqlite_world)

    async def fail(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(type(await sqlite_world.store()), "write_records", fail)
    answer = await sqlite_world.post("superuser", f"/api/jobs/{dead}/reveal", {"reason": "x"})
    assert answer.status_code == 500
    assert SECRET not in answer.text


async def test_only_who_may_reveals_and_only_who_says_why(sqlite_world: World) -> None:
    await sqlite_world.change_settings(manage_rule="true")
    [dead, *_] = await plant(sqlite_world)
    for who in sqlite_world.who.values():
        answer = await sqlite_world.post(who, f"/api/jobs/{dead}/reveal", {"reason": "because"})
        assert (answer.status_code == 200) == (who.name in ("superuser", "admin token")), who.name
        assert (SECRET in answer.text) == (answer.status_code == 200)
    for body in (
        None, {}, {"reason": ""}, {"reason": "  "}, {"reason": None}, {"reason": "x" * 2001}, {"reason": "x", "y": 1},
    ):  # fmt: skip
        answer = await sqlite_world.post("superuser", f"/api/jobs/{dead}/reveal", body)
        assert 400 <= answer.status_code < 500
        assert SECRET not in answer.text
    is_problem(await sqlite_world.post("superuser", f"/api/jobs/{LIVE[:-1]}9/reveal", {"reason": "x"}), 404)
    read_only = sqlite_world.another_api(read_only=True)
    is_problem(await sqlite_world.post("superuser", f"/api/jobs/{dead}/reveal", {"reason": "x"}, api=read_only), 403)
