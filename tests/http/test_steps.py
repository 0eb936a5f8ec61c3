"""Steps over HTTP: what the answer for a job shows of them, where a requeue starts, and what remote workers store."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from rowlock.core.lifecycle import Completed, Failed
from rowlock.core.steps import MAX_STEP_BYTES, MAX_STEPS
from rowlock.http import remote_workers
from rowlock.stores.base import NewLine, Progress
from tests.http.harness import JSON, A, B, World, is_problem
from tests.http.test_worker_protocol import Remote, now, take_away
from tests.stores.harness import claim_by, mark, settlement

PIPELINE = {
    "topic": "pipe",
    "steps": [
        {"name": "fetch", "title": "Fetch it"},
        {"name": "embed", "title": "Embed it", "weight": 4, "max_retries": 3},
        {"name": "tell", "cancelable": False},
    ],
}


@pytest.fixture
async def world(world: World) -> AsyncIterator[World]:
    yield world
    world.api.stop()


async def half_done(world: World, *, error: str = "ValueError: no", **options: Any) -> str:
    """Return a dead letter of a declared pipeline: fetch succeeded, embed succeeded once and then failed."""
    if not await world.jobs.templates.list("pipe"):
        await world.jobs.templates.create(PIPELINE)
    job_id = await world.enqueue(A, topic="pipe", **options)
    store = await world.store()
    [run] = (await store.claim(claim_by("w1", "pipe"))).jobs
    await store.checkpoint([mark(run, "fetch", "succeeded", position=1, result='{"pages":2}')])
    await store.checkpoint([mark(run, "embed", "succeeded", position=2, result="[1.5]", percent=40.0)])
    await store.checkpoint([mark(run, "embed", "failed", n=2, position=3, error="503: busy", retries=3)])
    await store.settle([settlement(run, Failed(error, final=True))])
    return job_id


async def steps_of(world: World, job_id: str, who: str = "superuser") -> list[JSON]:
    answer = await world.get(who, f"/api/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    found: list[JSON] = answer.json().get("steps", [])
    return found


def labels(steps: list[JSON]) -> list[tuple[str, int, str]]:
    return [(one["name"], one["n"], one["state"]) for one in steps]


# ── The answer for a job ──


async def test_a_job_shows_its_steps_and_those_that_are_still_to_come(world: World) -> None:
    job_id = await half_done(world)
    job = (await world.get("superuser", f"/api/jobs/{job_id}")).json()
    assert (job["step"], job["progress"]) == ("embed", 40.0)
    fetch, embed, again, tell = job["steps"]
    assert labels(job["steps"]) == [
        ("fetch", 1, "succeeded"), ("embed", 1, "succeeded"), ("embed", 2, "failed"), ("tell", 1, "skipped"),
    ]  # fmt: skip
    assert (fetch["title"], fetch["result"], fetch["position"]) == ("Fetch it", {"pages": 2}, 1)
    assert (embed["weight"], embed["max_retries"]) == (4.0, 3)
    assert fetch["started_at"] <= fetch["finished_at"]
    assert (again["error"], again["retries"], again["result"]) == ("503: busy", 3, None)
    assert (tell["position"], tell["cancelable"], tell["started_at"]) == (None, False, None)
    [listed] = (await world.get("superuser", "/api/jobs?topic=pipe")).json()["items"]
    assert "steps" not in listed
    assert listed["step"] == "embed"


async def test_a_job_without_steps_has_none_and_a_waiting_one_has_its_plan(world: World) -> None:
    plain = await world.enqueue(A)
    assert "steps" not in (await world.get("superuser", f"/api/jobs/{plain}")).json()
    await world.jobs.templates.create(PIPELINE)
    waiting = await world.enqueue(A, topic="pipe")
    assert labels(await steps_of(world, waiting)) == [
        ("fetch", 1, "pending"), ("embed", 1, "pending"), ("tell", 1, "pending"),
    ]  # fmt: skip


async def test_who_may_see_the_job_sees_its_steps_and_nobody_else(world: World) -> None:
    job_id = await half_done(world)
    await world.change_settings(view_rule="scope_id = @request.auth.id")
    assert len(await steps_of(world, job_id, "user A")) == 4
    is_problem(await world.get("user B", f"/api/jobs/{job_id}"), 404)
    asked = {"from_step": "embed"}
    is_problem(await world.post("user A", f"/api/jobs/{job_id}/requeue", asked), 403)
    is_problem(await world.post("user B", f"/api/jobs/{job_id}/requeue", asked), 403)
    await world.change_settings(manage_rule="scope_id = @request.auth.id")
    is_problem(await world.post("user B", f"/api/jobs/{job_id}/requeue", asked), 404)
    assert (await world.post("user A", f"/api/jobs/{job_id}/requeue", asked)).status_code == 200


# ── Redaction ──


async def test_secrets_of_steps_are_hidden_and_hidden_values_of_the_job_in_steps(world: World) -> None:
    await world.change_settings(redact=["password", "steps.result.pin", "*://*:*@*"])
    job_id = await world.enqueue(A, topic="pipe", payload={"password": "s3cr3t-payload"})
    store = await world.store()
    [run] = (await store.claim(claim_by("w1", "pipe"))).jobs
    result = (
        '{"password":"s3cr3t-step","pin":"s3cr3t-pin","echo":"s3cr3t-payload","url":"http://a:s3cr3t-url@b","pages":2}'
    )
    await store.checkpoint([mark(run, "fetch", "succeeded", position=1, result=result)])
    await store.checkpoint([mark(run, "embed", "failed", position=2, error="no: s3cr3t-step, s3cr3t-payload")])
    lines = (NewLine(0.0, "info", "have s3cr3t-step"),)
    await store.progress([Progress(run.id, run.version, 5.0, None, None, lines)])
    await store.settle([settlement(run, Failed("it was s3cr3t-step and s3cr3t-pin", final=True))])
    for path in ("", "/events", "/logs", "/why"):
        answer = await world.get("superuser", f"/api/jobs/{job_id}{path}")
        assert answer.status_code == 200
        assert "s3cr3t" not in answer.text, path
    job = (await world.get("superuser", f"/api/jobs/{job_id}")).json()
    hidden = "[redacted]"
    shown = {"password": hidden, "pin": hidden, "echo": hidden, "url": f"http://a:{hidden}@b", "pages": 2}
    assert job["steps"][0]["result"] == shown
    assert job["steps"][1]["error"] == f"no: {hidden}, {hidden}"
    assert {"steps.result.password", "steps.result.pin", "steps.error"} <= {*job["redacted"]}
    told = (await world.post("superuser", f"/api/jobs/{job_id}/reveal", {"reason": "test"})).json()
    assert told["job"]["steps"][0]["result"]["password"] == "s3cr3t-step"


# ── Requeue ──


async def test_a_requeue_keeps_what_has_succeeded(world: World) -> None:
    job_id = await half_done(world)
    answer = await world.post("manage token", f"/api/jobs/{job_id}/requeue")
    assert answer.status_code == 200, answer.text
    assert (answer.json()["status"], answer.json()["step"], answer.json()["progress"]) == ("pending", "embed", 40.0)
    assert labels(await steps_of(world, job_id)) == [
        ("fetch", 1, "succeeded"), ("embed", 1, "succeeded"), ("tell", 1, "pending"),
    ]  # fmt: skip


@pytest.mark.parametrize("spelled", ["from_step", "fromStep"])
async def test_a_requeue_from_a_step_drops_it_and_those_behind_it_and_is_audited(world: World, spelled: str) -> None:
    job_id = await half_done(world)
    asked = {spelled: "embed", "reason": "another model"}
    answer = await world.post("manage token", f"/api/jobs/{job_id}/requeue", asked)
    assert answer.status_code == 200, answer.text
    assert labels(await steps_of(world, job_id))[0] == ("fetch", 1, "succeeded")
    assert {one["state"] for one in (await steps_of(world, job_id))[1:]} == {"pending"}
    events = (await world.get("superuser", f"/api/jobs/{job_id}/events")).json()["items"]
    [requeued] = [event for event in events if event["event"] == "requeued"]
    assert requeued["data"] == {"reason": "another model", "from_step": "embed", "dropped_steps": 2}
    [entry] = [one for one in (await world.get("superuser", "/api/audit")).json()["items"] if one["job_id"] == job_id]
    assert (entry["action"], entry["by"], entry["reason"]) == ("requeue", "token manage token", "another model")
    assert entry["data"]["dropped_steps"] == ["embed", "embed#2"]


async def test_a_requeue_without_results_or_with_another_payload_drops_all(world: World) -> None:
    for asked in ({"keep_steps": False}, {"keepSteps": False}, {"payload": {"other": 1}}):
        job_id = await half_done(world)
        job = (await world.post("superuser", f"/api/jobs/{job_id}/requeue", {**asked, "delay": 3600})).json()
        assert (job["step"], job["progress"]) == (None, 0.0)
        assert {one["state"] for one in await steps_of(world, job_id)} == {"pending"}


async def test_a_step_that_is_not_there_is_refused_with_those_that_are(world: World) -> None:
    job_id = await half_done(world)
    before = await world.job(job_id)
    path = f"/api/jobs/{job_id}/requeue"
    told = is_problem(await world.post("superuser", path, {"from_step": "embde"}), 400, "unknown_step")
    assert told["field"] == "from_step"
    assert "fetch, embed" in told["detail"]
    is_problem(await world.post("superuser", path, {"from_step": "embed#7"}), 400, "unknown_step")
    is_problem(await world.post("superuser", path, {"from_step": "tell"}), 400, "unknown_step")
    is_problem(await world.post("superuser", path, {"from_step": "embed", "keep_steps": False}), 400, "both_given")
    is_problem(await world.post("superuser", path, {"from_step": ""}), 400)
    is_problem(await world.post("superuser", path, {"from_step": 7}), 400)
    is_problem(await world.post("superuser", path, {"from_step": "embed", "version": 0}), 409, "version_passed")
    assert await world.job(job_id) == before


# ── Remote workers ──


def step(name: str, state: str = "succeeded", **more: Any) -> dict[str, Any]:
    return {"name": name, "position": 1, "state": state, **more}


async def hold_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    hold: str = answer.json()["hold"]
    return hold


async def test_a_remote_worker_stores_steps_and_the_next_run_finds_them(world: World) -> None:
    remote = Remote(world)
    await world.enqueue(None)
    run = await remote.one()
    assert run["step"] is None
    assert (await remote.about("steps", run)).json() == {"items": []}
    assert await hold_of(await remote.about("checkpoint", run, **step("fetch", "running", cancelable=False))) == "kept"
    done = step("fetch", result={"pages": 2}, ran=1.5, percent=50)
    assert await hold_of(await remote.about("checkpoint", run, **done)) == "kept"
    job = await now(world, run)
    assert (job.step, job.progress) == ("fetch", 50.0)
    assert await remote.done("fail", run, error="boom", delay=0) == "pending"
    again = await remote.one()
    assert (again["version"], again["step"]) == (2, "fetch")
    [found] = (await remote.about("steps", again)).json()["items"]
    assert (found["name"], found["n"], found["position"], found["function"]) == ("fetch", 1, 1, "fetch")
    assert (found["state"], found["result"], found["version"]) == ("succeeded", {"pages": 2}, 1)
    await remote.about("checkpoint", again, **step("fetch", result={"pages": 3}))  # an ended step stays as it is
    assert (await remote.about("steps", again)).json()["items"][0]["result"] == {"pages": 2}
    assert await remote.done("complete", again, result="ok") == "completed"
    assert labels(await steps_of(world, run["id"])) == [("fetch", 1, "succeeded")]


async def test_a_repeated_checkpoint_changes_nothing(world: World) -> None:
    remote = Remote(world)
    await world.enqueue(None)
    run = await remote.one()
    for said in (step("a", "running"), step("a", result=[1]), step("b", "failed", position=2, error="no")):
        await remote.about("checkpoint", run, **said)
        before = (await remote.about("steps", run)).json()
        assert await hold_of(await remote.about("checkpoint", run, **said)) == "kept"
        assert (await remote.about("steps", run)).json() == before


async def test_only_the_worker_that_holds_the_run_reads_or_writes_its_steps(world: World) -> None:
    remote = Remote(world)
    await world.enqueue(None)
    run = await remote.one()
    await remote.about("checkpoint", run, **step("fetch", result=1))
    other_token = await world.token("another worker token", ["worker"])
    strangers = [
        (Remote(world, "w2"), run),
        (Remote(world, "w1", other_token), run),
        (remote, {**run, "version": run["version"] + 1}),
    ]
    before = await world.jobs.get(run["id"])
    for stranger, named in strangers:
        for verb, said in (
            ("steps", {}),
            ("checkpoint", step("fetch", result=2)),
            ("retry-step", {"step": "fetch", "delay": 0, "error": "no"}),
        ):
            is_problem(await stranger.about(verb, named, **said), 409, "lost")
    assert await world.jobs.get(run["id"]) == before
    await take_away(world, remote.id)
    late = step("late", position=2, result=2)
    is_problem(await remote.about("checkpoint", run, **late), 409, "lost")  # even from a server that knows the run
    is_problem(await remote.about("steps", run), 409, "lost")
    [again] = await Remote(world, "w2").claim()
    is_problem(await remote.about("checkpoint", run, **late), 409, "lost")
    assert [one["name"] for one in (await Remote(world, "w2").about("steps", again)).json()["items"]] == ["fetch"]


async def test_a_cancel_is_told_and_the_result_is_stored(world: World) -> None:
    remote = Remote(world)
    await world.enqueue(None)
    run = await remote.one()
    await world.jobs.cancel(run["id"])
    assert await hold_of(await remote.about("checkpoint", run, **step("fetch", result=1))) == "cancel"
    assert await remote.done("give-up", run) == "cancelled"
    assert labels(await steps_of(world, run["id"])) == [("fetch", 1, "succeeded")]


async def test_retries_of_a_step_cost_the_job_none(world: World) -> None:
    remote = Remote(world)
    await world.enqueue(None, max_retries=0)
    run = await remote.one()
    await remote.about("checkpoint", run, **step("upload", "pending", error="503", retries=1))
    asked = {"step": "upload", "delay": 0, "error": "503", "ran": 0.5}
    assert await remote.done("retry-step", run, **asked) == "pending"
    assert await remote.done("retry-step", run, **asked) == "pending"  # the worker repeats it: only the answer was lost
    job = await now(world, run)
    assert (job.status, job.retries, job.last_error) == ("pending", 0, "503")
    again = await remote.one()
    [found] = (await remote.about("steps", again)).json()["items"]
    assert (found["state"], found["retries"], found["error"]) == ("pending", 1, "503")
    await remote.about("checkpoint", again, **step("upload", "failed", error="503", retries=1))
    assert await remote.done("fail", again, error="upload failed", final=True) == "failed"
    [shown] = await steps_of(world, run["id"])
    assert (shown["state"], shown["retries"], shown["error"]) == ("failed", 1, "503")
    events = [
        event["event"] for event in (await world.get("superuser", f"/api/jobs/{run['id']}/events")).json()["items"]
    ]
    assert events.count("step_retried") == 1


async def test_a_cancel_ends_a_job_whose_step_wants_another_try(world: World) -> None:
    remote = Remote(world)
    await world.enqueue(None)
    run = await remote.one()
    await world.jobs.cancel(run["id"])
    asked = {"step": "upload", "delay": 60, "error": "503"}
    assert await remote.done("retry-step", run, **asked) == "cancelled"
    assert await remote.done("retry-step", run, **asked) == "cancelled"


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("name", step(""), "bad_length"),
    ("name", step("x" * 201), "bad_length"),
    ("name", step("a\0b"), "nul"),
    ("name", {"position": 1, "state": "running"}, "missing"),
    ("n", step("a", n=0), "out_of_range"),
    ("n", step("a", n=1001), "too_many_steps"),
    ("position", step("a", position=0), "out_of_range"),
    ("position", step("a", position=1001), "too_many_steps"),
    ("position", {"name": "a", "state": "running"}, "missing"),
    ("state", step("a", "skipped"), "bad_value"),
    ("state", step("a", "done"), "bad_value"),
    ("retries", step("a", retries=-1), "out_of_range"),
    ("percent", step("a", percent=101), "out_of_range"),
    ("ran", step("a", ran=-1), "out_of_range"),
    ("result", step("a", "running", result=1), "both_given"),
    ("error", step("a", error="no"), "both_given"),
    ("result", step("a", result={"n": 1 << 64}), "integer_range"),
    ("other", step("a", other=1), "unknown_field"),
]


async def test_a_bad_checkpoint_is_refused_and_names_the_field(world: World) -> None:
    remote = Remote(world)
    await world.enqueue(None)
    run = await remote.one()
    wrong = []
    for field, said, code in BAD:
        told = is_problem(await remote.about("checkpoint", run, **said), 400)
        if (told["code"], str(told["field"]).partition(".")[0]) != (code, field):
            wrong.append((said, told["code"], told["field"]))
    assert wrong == []
    is_problem(await remote.about("retry-step", run, step="a", delay=-1, error="x"), 400, "out_of_range")
    assert (await remote.about("steps", run)).json() == {"items": []}
    assert (await now(world, run)).step is None


async def test_a_result_may_have_a_mebibyte_and_no_more(world: World) -> None:
    remote = Remote(world)
    await world.enqueue(None)
    run = await remote.one()
    fits = "x" * ((1 << 20) - 2)
    assert await hold_of(await remote.about("checkpoint", run, **step("a", result=fits))) == "kept"
    is_problem(await remote.about("checkpoint", run, **step("b", position=2, result=f"{fits}x")), 413, "too_large")
    [stored] = (await remote.about("steps", run)).json()["items"]
    assert stored["result"] == fits


async def test_sixteen_mebibytes_are_enough_for_all_steps_of_a_job(world: World) -> None:
    remote = Remote(world)
    await world.enqueue(None)
    run = await remote.one()
    large = "x" * ((1 << 20) - 2)
    for n in range(1, MAX_STEP_BYTES // (1 << 20) + 1):
        assert (
            await hold_of(await remote.about("checkpoint", run, **step("a", n=n, position=n, result=large))) == "kept"
        )
    more = step("b", position=17, result="")
    is_problem(await remote.about("checkpoint", run, **more), 413, "steps_too_large")
    again = step("a", n=16, position=16, result=large)  # a repeat adds nothing
    assert await hold_of(await remote.about("checkpoint", run, **again)) == "kept"
    api = world.another_api()  # another server reads what is stored
    body = {"worker": "w1", "id": run["id"], "version": run["version"], **more}
    is_problem(await world.post("worker token", "/api/worker/checkpoint", body, api=api), 413, "steps_too_large")
    api.stop()
    assert len((await remote.about("steps", run)).json()["items"]) == 16


async def test_a_thousand_steps_are_enough_for_a_job(world: World) -> None:
    remote = Remote(world)
    await world.enqueue(None)
    run = await remote.one()
    store = await world.store()
    job = await now(world, run)
    marks = [mark(job, "part", "succeeded", n=n, position=n, result="1") for n in range(1, MAX_STEPS)]
    for start in range(0, len(marks), 100):
        await store.checkpoint(marks[start : start + 100])
    last = step("last", position=MAX_STEPS, result=1)
    assert await hold_of(await remote.about("checkpoint", run, **last)) == "kept"
    told = is_problem(
        await remote.about("checkpoint", run, **step("more", position=MAX_STEPS, result=1)), 400, "too_many_steps"
    )
    assert "1,000" in told["detail"]
    assert await hold_of(await remote.about("checkpoint", run, **last)) == "kept"  # this step is there already
    assert len((await remote.about("steps", run)).json()["items"]) == MAX_STEPS
    assert await remote.done("complete", run) == "completed"
    assert len(await steps_of(world, run["id"])) == MAX_STEPS


async def test_the_server_forgets_the_counts_of_runs_that_have_ended(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_workers, "_MOST_COUNTED", 2)
    remote = Remote(sqlite_world)
    for _ in range(4):
        await sqlite_world.enqueue(None)
    runs = await remote.claim(limit=4)
    for run in runs:
        await remote.about("checkpoint", run, **step("a", result=1))
    counts = sqlite_world.api.state.remote_workers.steps
    assert len(counts._sizes) == 2
    for run in runs:
        assert await remote.done("complete", run) == "completed"
    assert counts._sizes == {}
    sqlite_world.api.stop()


async def test_a_stream_tells_the_step(world: World) -> None:
    job_id = await world.enqueue(B, topic="pipe")
    store = await world.store()
    [run] = (await store.claim(claim_by("w1", "pipe"))).jobs
    await store.checkpoint([mark(run, "fetch", "running")])
    told = await world.get("superuser", f"/api/events?id={job_id}&seconds=0")
    assert '"step":"fetch"' in told.text
    await store.settle([settlement(run, Completed(None))])


async def test_steps_that_come_at_the_same_time_are_counted_each(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_workers, "MAX_STEPS", 3)
    remote = Remote(world)
    await world.enqueue(None)
    run = await remote.one()
    said = [step(name, position=n, result=1) for n, name in enumerate("abcdefgh", 1)]
    answers = await asyncio.gather(*(remote.about("checkpoint", run, **one) for one in said))
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [400] * 5
    assert len((await remote.about("steps", run)).json()["items"]) == 3
