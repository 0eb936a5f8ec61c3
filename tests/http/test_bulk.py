"""Bulk actions over HTTP: what a client asks and is told, what is refused, and which server works them off."""

import asyncio
import logging
from typing import Any

import pytest

from rowlock.client import bulk as client
from rowlock.http.bulk import as_asked
from rowlock.http.filters import JobFilter, filter_of
from rowlock.runtime import periodic
from rowlock.stores.bulk import PREVIEW_LIFE, shown
from rowlock.stores.queries import Filter
from tests.http.harness import JSON, A, Server, World, is_problem
from tests.http.test_series import lifespan, quick_upkeep
from tests.waiting import until

FAILED = {"action": "requeue", "filter": {"topic": ["mail"], "status": ["failed", "expired"]}, "reason": "fixed"}


async def dead(world: World, count: int, topic: str = "mail", **options: Any) -> list[str]:
    return [await world.ended(A, topic, error="boom", **options) for _ in range(count)]


async def made(world: World, body: JSON, who: str = "superuser") -> JSON:
    answer = await world.post(who, "/api/bulk", body)
    assert answer.status_code == 201, answer.text
    info: JSON = answer.json()
    return info


async def ended(world: World, bulk_id: str, **more: Any) -> JSON:
    """Ask until the bulk action, which runs in the background, has ended. Return its last answer."""
    while True:
        info: JSON = (await world.get("superuser", f"/api/bulk/{bulk_id}", **more)).json()
        if info["status"] != "running":
            return info
        await asyncio.sleep(0.001)


async def test_a_preview_then_the_start_and_what_became_of_each(world: World) -> None:
    ids = await dead(world, 12)
    await world.enqueue(A)
    seen = await made(world, {**FAILED, "filter": {"topic": ["mail"]}})
    assert (seen["status"], seen["total"], seen["done"], seen["left"]) == ("preview", 12, 0, 12)
    assert (seen["by"], seen["started_by"], seen["reason"]) == ("superuser boss@example.com", None, "fixed")
    assert seen["unfit"] == {"pending": {"count": 1, "more": False}}
    assert seen["filter"] == {"topic": ["mail"]}
    assert [job["id"] for job in seen["sample"]] == ids[:10]
    assert {(await world.job(job_id)).status for job_id in ids} == {"failed"}
    [late] = await dead(world, 1, "later")
    why = {"reason": "fixed at last"}
    started = await world.post("manage token", f"/api/bulk/{seen['id']}/start", why)
    assert (started.json()["started_by"], started.json()["reason"]) == ("token manage token", "fixed at last")
    done = await ended(world, seen["id"])
    assert (done["status"], done["done"], done["skipped"], done["left"]) == ("done", 12, 0, 0)
    assert done["skips"] == {"changed": 0, "gone": 0, "key_taken": 0, "locked": 0}
    assert {(await world.job(job_id)).status for job_id in ids} == {"pending"}
    assert (await world.job(late)).status == "failed"
    items = (await world.get("read token", f"/api/bulk/{seen['id']}/items?limit=5")).json()
    assert items["items"] == [{"job_id": one, "status": "failed", "outcome": "done", "holder": None} for one in ids[:5]]
    rest = (await world.get("read token", f"/api/bulk/{seen['id']}/items?limit=200&cursor={items['next']}")).json()
    assert ([item["job_id"] for item in rest["items"]], rest["next"]) == (ids[5:], None)
    audit = (await world.get("superuser", "/api/audit?limit=200")).json()["items"]
    [entry] = [one for one in audit if one["action"] == "bulk_start"]
    assert (entry["by"], entry["reason"], entry["data"]["count"]) == ("token manage token", "fixed at last", 12)
    assert "requeue" not in {one["action"] for one in audit}
    requeued = (await world.get("superuser", f"/api/audit?limit=200&bulk={seen['id']}")).json()["items"]
    assert {(one["action"], one["reason"]) for one in requeued} == {("requeue", f"fixed at last (bulk {seen['id']})")}
    assert len(requeued) == 12
    wrong = await world.get("superuser", "/api/audit?bulk=seven")
    assert (wrong.status_code, wrong.json()["field"]) == (400, "bulk")


async def test_a_filter_by_payload_is_shown_without_what_is_redacted(world: World) -> None:
    await world.change_settings(redact=["password"])
    await world.enqueue(A, payload={"user": {"id": 7, "password": "hunter22"}})
    asked = {"action": "cancel", "filter": {"payload": ["user.id=7", "user.password=hunter22"]}}
    assert is_problem(await world.post("manage token", "/api/bulk", asked), 403)
    seen = await made(world, asked)
    assert (seen["total"], seen["filter"]["payload"]) == (1, ["user.id=7", 'user.password="[redacted]"'])
    for path in ("/api/bulk", f"/api/bulk/{seen['id']}"):
        answer = await world.get("read token", path)
        assert answer.status_code == 200
        assert "hunter22" not in answer.text
    assert is_problem(await world.post("manage token", "/api/bulk", {**asked, "filter": {"error": "hunter"}}), 403)


async def test_the_filter_of_an_answer_can_be_asked_again(world: World) -> None:
    [job_id] = await dead(world, 1, key="k", tags=["t"])
    asked = {"topic": ["mail"], "status": ["failed"], "id": [job_id], "key": ["k"], "tag": ["t"], "error": "boom"}
    told = (await made(world, {**FAILED, "filter": asked}))["filter"]
    assert told == asked
    again = await made(world, {**FAILED, "filter": told})
    assert (again["total"], again["filter"]) == (1, asked)


@pytest.mark.parametrize("payload", [["user.id=7"], ['name="7"', 'at={"x":[1,null]}'], ["plain=text"]])
def test_so_can_what_it_says_of_payloads(payload: list[str]) -> None:
    wanted = filter_of(JobFilter(payload=tuple(payload)), {})
    told = as_asked(shown(wanted))
    assert filter_of(JobFilter(payload=tuple(told["payload"])), {}) == wanted


async def test_without_a_dry_run_it_starts_at_once(world: World) -> None:
    ids = [await world.enqueue(A) for _ in range(3)]
    body = {"action": "reprioritise", "filter": {"id": ids}, "priority": "explicit", "dryRun": False}
    info = await made(world, body)
    assert info["arguments"] == {"priority": 150}
    assert (await ended(world, info["id"]))["done"] == 3
    assert {(await world.job(job_id)).priority for job_id in ids} == {150}
    later = {"action": "reschedule", "filter": {"id": ids}, "runAt": "2040-01-01T00:00:00Z", "dryRun": False}
    info = await made(world, later)
    assert info["arguments"] == {"run_at": "2040-01-01T00:00:00Z"}
    await ended(world, info["id"])
    assert {str((await world.job(one)).run_at.year) for one in ids} == {"2040"}


async def test_the_same_start_or_stop_again_changes_nothing(sqlite_world: World) -> None:
    await dead(sqlite_world, 2)
    info = await made(sqlite_world, FAILED)
    assert (
        is_problem(await sqlite_world.post("superuser", f"/api/bulk/{info['id']}/stop"), 409)["code"] == "wrong_state"
    )
    for _ in range(2):
        assert (await sqlite_world.post("superuser", f"/api/bulk/{info['id']}/start")).status_code == 200
        await ended(sqlite_world, info["id"])
    answer = await sqlite_world.post("superuser", f"/api/bulk/{info['id']}/stop", {"reason": "late"})
    assert (answer.status_code, answer.json()["status"]) == (200, "done")
    audit = (await sqlite_world.get("superuser", "/api/audit?limit=200")).json()["items"]
    assert [one["action"] for one in audit if "bulk" in one["action"]] == ["bulk_start"]


async def no_more(store: Any) -> bool:
    return False


async def test_stop_and_go_on(sqlite_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await dead(sqlite_world, 3)
    monkeypatch.setattr(client, "run_some", no_more)  # the server does not work on it
    info = await made(sqlite_world, {**FAILED, "dryRun": False})
    store = await sqlite_world.store()
    await store.run_bulk(info["id"], limit=1)
    stopped = (await sqlite_world.post("superuser", f"/api/bulk/{info['id']}/stop", {"reason": "enough"})).json()
    assert (stopped["status"], stopped["done"], stopped["left"]) == ("stopped", 1, 2)
    left = (await sqlite_world.get("superuser", f"/api/bulk/{info['id']}/items?outcome=unrun")).json()["items"]
    assert len(left) == 2
    monkeypatch.undo()
    await sqlite_world.post("superuser", f"/api/bulk/{info['id']}/start")
    assert (await ended(sqlite_world, info["id"]))["done"] == 3


async def test_a_list_of_them_newest_first(sqlite_world: World) -> None:
    ids = [(await made(sqlite_world, FAILED))["id"] for _ in range(3)]
    page = (await sqlite_world.get("read token", "/api/bulk?limit=2")).json()
    assert [one["id"] for one in page["items"]] == ids[:0:-1]
    assert all("sample" not in one for one in page["items"])
    rest = (await sqlite_world.get("read token", f"/api/bulk?cursor={page['next']}")).json()
    assert ([one["id"] for one in rest["items"]], rest["next"]) == (ids[:1], None)


async def test_an_old_preview_is_refused(sqlite_world: World) -> None:
    await dead(sqlite_world, 1)
    info = await made(sqlite_world, FAILED)
    await sqlite_world.place.fetch(f"UPDATE _jobs_bulk SET created = created - {int(PREVIEW_LIFE) * 1_000_000}")
    told = is_problem(await sqlite_world.post("superuser", f"/api/bulk/{info['id']}/start"), 409, "wrong_state")
    assert told["bulk_status"] == "preview"


WRONG: list[tuple[JSON, str, str]] = [
    ({"action": "requeue"}, "everything", "everything"),
    ({"action": "requeue", "filter": {}}, "everything", "everything"),
    ({"action": "requeue", "filter": {"topic": ["mail"]}, "everything": True}, "everything", "everything"),
    ({"action": "explode", "filter": {"topic": ["mail"]}}, "action", "unknown_action"),
    ({"action": "requeue", "filter": {"topic": "mail"}}, "filter.topic", "bad_value"),
    ({"action": "requeue", "filter": {"topic": ["a b"]}}, "filter.topic", "bad_characters"),
    ({"action": "requeue", "filter": {"status": ["dead"]}}, "filter.status", "unknown_status"),
    ({"action": "requeue", "filter": {"id": ["7"]}}, "filter.id", "bad_id"),
    ({"action": "requeue", "filter": {"flowId": "7"}}, "filter.flow_id", "bad_id"),
    ({"action": "requeue", "filter": {"createdFrom": "2026-01-01T00:00:00"}}, "filter.created_from", "naive_time"),
    ({"action": "requeue", "filter": {"payload": ["user"]}}, "filter.payload", "bad_path"),
    ({"action": "requeue", "filter": {"limit": 5}}, "filter.limit", "unknown_field"),
    ({"action": "requeue", "filter": {"topic": ["mail"]}, "priority": 5}, "priority", "not_wanted"),
    ({"action": "reprioritise", "filter": {"topic": ["mail"]}}, "priority", "missing"),
    ({"action": "reprioritise", "filter": {"topic": ["mail"]}, "priority": 1 << 40}, "priority", "out_of_range"),
    ({"action": "reschedule", "filter": {"topic": ["mail"]}}, "delay", "missing"),
    ({"action": "reschedule", "filter": {"topic": ["mail"]}, "delay": -1}, "delay", "out_of_range"),
    ({"action": "reschedule", "filter": {"topic": ["mail"]}, "runAt": "2040-01-01T00:00:00"}, "run_at", "naive_time"),
    ({"action": "cancel", "filter": {"topic": ["mail"]}, "reason": "x" * 2001}, "reason", "bad_length"),
    ({"action": "cancel", "filter": {"topic": ["mail"]}, "by": "someone else"}, "by", "unknown_field"),
]


async def test_what_is_wrong_is_named_and_nothing_is_kept(sqlite_world: World) -> None:
    for body, field, code in WRONG:
        told = is_problem(await sqlite_world.post("superuser", "/api/bulk", body), 400)
        assert (told["field"], told["code"]) == (field, code), told
        assert told["detail"].startswith(f"{field}: "), told
    assert (await sqlite_world.get("superuser", "/api/bulk")).json()["items"] == []


async def test_what_is_not_there_or_is_no_id(sqlite_world: World) -> None:
    for path in ("", "/start", "/stop", "/items"):
        method = "GET" if path in ("", "/items") else "POST"
        nobody = "0193fb1e-0000-7000-8000-000000000000"
        is_problem(await sqlite_world.call("superuser", method, f"/api/bulk/{nobody}{path}"), 404, "not_found")
        is_problem(await sqlite_world.call("superuser", method, f"/api/bulk/7{path}"), 404, "not_found")


WRONG_PARAMETERS: list[tuple[str, str]] = [
    ("limit=0", "limit"),
    ("limit=201", "limit"),
    ("cursor=x", "cursor"),
    ("outcome=x", "outcome"),
]


async def test_a_wrong_parameter_is_named(sqlite_world: World) -> None:
    for query, field in WRONG_PARAMETERS:
        info = await made(sqlite_world, FAILED)
        answer = await sqlite_world.get("superuser", f"/api/bulk/{info['id']}/items?{query}")
        assert is_problem(answer, 400)["field"] == field


async def test_everything_must_be_said(sqlite_world: World) -> None:
    ids = [await sqlite_world.enqueue(A), *await dead(sqlite_world, 1, "other")]
    info = await made(sqlite_world, {"action": "delete", "everything": True, "dryRun": False})
    assert info["total"] >= len(ids)
    await ended(sqlite_world, info["id"])
    assert [await sqlite_world.find(job_id) for job_id in ids] == [None, None]


async def test_a_server_carries_on_with_what_another_left(world: World) -> None:
    """The process that started the bulk action is gone. No request comes, and no other process works on it."""
    store = await world.store()
    await dead(world, 4)
    bulk = await world.jobs.bulk.prepare("requeue", Filter(topics=["mail"], statuses=["failed"]), dry_run=False)
    await store.run_bulk(bulk.id, limit=1)
    with Server.running(world.place.url):
        while (await client.get(store, bulk.id)).status == "running":  # noqa: ASYNC110 - its end is in the database
            await asyncio.sleep(0.005)
    assert (await client.get(store, bulk.id)).done == 4


async def test_a_server_that_may_not_write_does_not_either(sqlite_world: World) -> None:
    api = sqlite_world.another_api(read_only=True)
    running: list[object] = []
    await lifespan(api, lambda: running.append(api.upkeep.bulk_loop.task))
    assert running == [None]


async def test_a_mistake_is_not_the_end_of_all_looks(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[str] = []

    async def fails(*arguments: Any) -> int:
        tries.append("tidy" if len(arguments) > 1 else "run_some")
        raise LookupError("never thought of")

    monkeypatch.setattr(periodic, "_AFTER_A_MISTAKE", 0.001)
    monkeypatch.setattr(client, "run_some", fails)
    monkeypatch.setattr(type(await sqlite_world.store()), "tidy", fails)
    made = quick_upkeep(sqlite_world, monkeypatch)
    with caplog.at_level(logging.ERROR, "rowlock"):
        made.start()
        await until(lambda: tries.count("run_some") >= 3 and tries.count("tidy") >= 3)
        await made.stop()
    assert {str(record.exc_info and record.exc_info[1]) for record in caplog.records} == {"never thought of"}
