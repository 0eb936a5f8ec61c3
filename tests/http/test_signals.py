"""Signals and wake over HTTP, and what an answer shows of a wait."""

from typing import Any

import pytest

from rowlock.core.job import Status
from tests.http.harness import A, B, World, is_problem
from tests.waits import DECISION, run_of, take, waiting


async def made(world: World, *, user: str | None = None, topic: str = "approval", **options: Any) -> str:
    """Return the id of a job that waits."""
    job_id = await world.enqueue(user, topic=topic)
    await waiting(await world.store(), job_id, **options)
    return job_id


async def test_an_operator_sends_a_signal(world: World) -> None:
    job_id = await made(world, schema=DECISION)
    answer = await world.post("manage token", f"/api/jobs/{job_id}/signals/decision?reason=by+phone", {"ok": True})
    assert (answer.status_code, answer.json()["status"], answer.json()["waits_for"]) == (200, "pending", None)
    store = await world.store()
    assert (await take(store, await run_of(store, job_id))).result == '{"ok":true}'
    [line] = await world.jobs.audit.list(job_id=job_id)
    assert (line.action, line.reason, line.by) == ("signal", "by phone", "token manage token")


async def test_the_data_is_checked(world: World) -> None:
    job_id = await made(world, schema=DECISION)
    path = f"/api/jobs/{job_id}/signals/decision"
    assert is_problem(await world.post("manage token", path, {"ok": 1}), 400, "bad_data")["field"] == "data.ok"
    is_problem(await world.post("manage token", path), 400, "bad_data")
    assert (await world.job(job_id)).status is Status.WAITING


async def test_an_id_counts_once(world: World) -> None:
    job_id = await world.enqueue(None)
    path = f"/api/jobs/{job_id}/signals/paid?id=charge-1"
    assert (await world.post("manage token", path, 1)).status_code == 200
    is_problem(await world.post("manage token", path, 1), 409, "signal_known")
    is_problem(await world.post("manage token", f"/api/jobs/{job_id}/signals/paid?id=@callback:a%231", 1), 400)


async def test_a_job_that_has_ended(world: World) -> None:
    job_id = await world.ended(None, "approval")
    told = is_problem(await world.post("manage token", f"/api/jobs/{job_id}/signals/decision", 1), 409, "wrong_state")
    assert told["job_status"] == "completed"
    is_problem(await world.post("manage token", f"/api/jobs/{job_id}/wake"), 409, "wrong_state")


@pytest.mark.parametrize("name", ["two%20words", "%00", "x" * 129, "é%0a"])
async def test_names_that_are_no_names(sqlite_world: World, name: str) -> None:
    job_id = await sqlite_world.enqueue(None)
    is_problem(await sqlite_world.post("manage token", f"/api/jobs/{job_id}/signals/{name}", 1), 400)


async def test_a_name_may_have_a_slash(sqlite_world: World) -> None:
    job_id = await made(sqlite_world, signal="billing/paid")
    answer = await sqlite_world.post("manage token", f"/api/jobs/{job_id}/signals/billing/paid", 1)
    assert answer.json()["status"] == "pending"


async def test_a_signal_by_key(world: World) -> None:
    plain = await world.enqueue(None, topic="order", key="order-7")
    scoped = await world.enqueue(A, topic="order", key="order-7")
    path = "/api/signals/paid?topic=order&key=order-7"
    assert (await world.post("manage token", path, 1)).json()["id"] == plain
    assert (await world.post("manage token", f"{path}&scopeId={A}", 1)).json()["id"] == scoped
    is_problem(await world.post("manage token", f"{path}&scopeId={B}", 1), 404, "not_found")
    assert is_problem(await world.post("manage token", "/api/signals/paid?topic=order", 1), 400)["field"] == "key"


async def test_a_key_tells_nothing_of_jobs_that_one_may_not_see(world: World) -> None:
    await world.enqueue(B, topic="order", key="order-7")
    await world.change_settings(manage_rule="scope_id = @request.auth.id")
    other = await world.post("user A", f"/api/signals/paid?topic=order&key=order-7&scope_id={B}", 1)
    none = await world.post("user A", f"/api/signals/paid?topic=order&key=order-8&scope_id={B}", 1)
    told = [is_problem(one, 404) | {"request_id": ""} for one in (other, none)]
    assert told[0] == told[1]


async def test_whoever_may_only_watch_can_not_signal(world: World) -> None:
    job_id = await made(world, user=A)
    await world.change_settings(view_rule="scope_id = @request.auth.id")
    for path in (f"/api/jobs/{job_id}/signals/decision", f"/api/jobs/{job_id}/wake"):
        is_problem(await world.post("user A", path), 403, "not_allowed")
    assert (await world.job(job_id)).status is Status.WAITING


async def test_wake(world: World) -> None:
    job_id = await made(world, signal=None, seconds=3600.0)
    answer = await world.post("manage token", f"/api/jobs/{job_id}/wake", {"reason": "now"})
    assert (answer.status_code, answer.json()["status"]) == (200, "pending")
    [line] = await world.jobs.audit.list(job_id=job_id)
    assert (line.action, line.reason) == ("wake", "now")


async def test_a_job_shows_what_it_waits_for(world: World) -> None:
    job_id = await made(world, seconds=60.0, schema=DECISION, steps=["ask"], callback=True)
    shown = (await world.get("read token", f"/api/jobs/{job_id}")).json()
    assert shown["waits_for"] == "signal:decision"
    wait = shown["wait"]
    assert (wait["kind"], wait["signal"], wait["timeout"], wait["schema"]) == ("signal", "decision", 60.0, DECISION)
    assert wait["until"].endswith("Z")
    assert [(one["kind"], one["name"], one["label"]) for one in shown["steps"]] == [
        ("step", "ask", "ask"),
        ("callback", "decision", "@callback:decision"),
        ("signal", "decision", "@signal:decision"),
    ]
    assert shown["steps"][2]["deadline"] == wait["until"]
    listed = (await world.get("read token", f"/api/jobs?id={job_id}")).json()["items"][0]
    assert (listed["waits_for"], "wait" in listed) == ("signal:decision", False)


async def test_a_wait_without_end(world: World) -> None:
    job_id = await made(world)
    shown = (await world.get("read token", f"/api/jobs/{job_id}")).json()
    assert shown["wait"] == {"kind": "signal", "signal": "decision", "until": None, "timeout": None, "schema": None}
    why = (await world.get("read token", f"/api/jobs/{job_id}/why")).json()
    assert (why["code"], "without end" in why["answer"]) == ("waiting", True)


async def test_a_requeue_from_a_wait_asks_again(world: World) -> None:
    job_id = await made(world, steps=["ask"])
    await world.jobs.signal(job_id, "decision", {"ok": False})
    store = await world.store()
    await take(store, await run_of(store, job_id))
    answer = await world.post("worker token", "/api/worker/claim", {"worker": "w", "topics": ["other"]})
    assert answer.json()["items"] == []
    await world.jobs.cancel(job_id)
    from rowlock.core.moves import CancelTimeout

    await store.move_due(CancelTimeout(by="test", grace=0.0))
    answer = await world.post("manage token", f"/api/jobs/{job_id}/requeue", {"from_step": "@signal:decision"})
    assert answer.status_code == 200, answer.text
    assert [step.label for step in await world.jobs.steps(job_id)] == ["ask"]
