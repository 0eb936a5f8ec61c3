"""Callbacks: a client with the address may answer, once and in time. It is told no more; no log has the token."""

import logging
from itertools import count
from typing import Any

import httpx
import pytest

from rowlock import Context, Signal
from rowlock.client.callbacks import Callback
from rowlock.core.job import Status
from rowlock.http.callback_limits import ADDRESS, CALLBACK, UNKNOWN, CallbackLimits
from rowlock.http.problems import Problem
from tests.http.harness import ANYONE, Place, World, bearer, by_hand, is_problem
from tests.waiting import status_of
from tests.waits import DECISION, mark, run_of, take, waiting

_topics = count(1)


async def address(world: World, job_id: str, *, signal: str = "decision", n: int = 1) -> str:
    return f"/api/callbacks/{await world.jobs._callbacks.token(Callback(job_id, signal, n))}"


async def asked(world: World, **options: Any) -> tuple[str, str]:
    """Return a job that waits for an answer, and the address for it."""
    job_id = await world.enqueue(None, topic=f"approval-{next(_topics)}")  # no other job of the topic is due
    await waiting(await world.store(), job_id, **{"callback": True, **options})
    return job_id, await address(world, job_id)


async def post(world: World, path: str, json: Any = None, **more: Any) -> httpx.Response:
    return await world.post(ANYONE, path, json, **more)


async def state(world: World, path: str) -> str:
    answer = await world.get(ANYONE, path)
    assert answer.status_code == 200, answer.text
    assert answer.json().keys() == {"state"}
    found: str = answer.json()["state"]
    return found


# ── The answer ──


async def test_a_handler_asks_the_outside(world: World) -> None:
    """A real worker runs the handler: the address goes out, the answer comes in, and the handler goes on."""
    decision = Signal("decision", dict[str, bool])
    urls: list[str] = []

    @world.jobs.task
    async def approval(ctx: Context) -> bool:
        urls.append((await ctx.callback(decision, timeout=3600)).url)
        return (await ctx.wait_for(decision))["ok"]

    await world.change_settings(public_url="https://jobs.example.com/queue")
    await world.jobs.start(poll=0.05)
    try:
        made = await approval.enqueue()
        await status_of(world.jobs, made.id, Status.WAITING)
        path = urls[0].removeprefix("https://jobs.example.com/queue")
        is_problem(await post(world, path, {"ok": "yes"}), 400, "bad_data")
        assert (await post(world, path, {"ok": True})).status_code == 200
        assert await world.jobs.result(made, timeout=60) is True
        assert len(set(urls)) == 1
        is_problem(await post(world, path, {"ok": True}), 409, "callback_answered")
    finally:
        await world.jobs.stop()


async def test_an_answer_resumes_the_job(world: World) -> None:
    job_id, path = await asked(world)
    assert await state(world, path) == "wanted"
    answer = await post(world, path, {"ok": True})
    assert (answer.status_code, answer.json()) == (200, {"state": "answered"})
    assert (await world.job(job_id)).status is Status.PENDING
    assert await state(world, path) == "answered"
    store = await world.store()
    taken = await take(store, await run_of(store, job_id))
    assert taken.result == '{"ok":true}'


@pytest.mark.parametrize("data", [None, 0, "yes", [1], {}])
async def test_the_data_is_any_json(sqlite_world: World, data: Any) -> None:
    job_id, path = await asked(sqlite_world)
    more = {"content": b"", "headers": {}} if data is None else {"json": data}
    assert (await post(sqlite_world, path, **more)).status_code == 200
    store = await sqlite_world.store()
    taken = await take(store, await run_of(store, job_id))
    assert taken.result is not None


async def test_an_answer_may_come_before_the_job_waits(world: World) -> None:
    job_id = await world.enqueue(None, topic="approval")
    store = await world.store()
    run = await run_of(store, job_id)
    await mark(store, run, "@callback:decision", 1, {"timeout": None})
    path = await address(world, job_id)
    assert (await post(world, path, {"ok": True})).status_code == 200
    assert (await take(store, run)).result == '{"ok":true}'


async def test_an_answer_that_does_not_fit_can_be_mended(world: World) -> None:
    job_id, path = await asked(world, schema=DECISION)
    told = is_problem(await post(world, path, {"ok": "yes"}), 400, "bad_data")
    assert told["field"] == "data.ok"
    assert (await world.job(job_id)).status is Status.WAITING
    assert (await post(world, path, {"ok": True})).status_code == 200


async def test_the_schema_of_the_callback_counts_before_the_job_waits(sqlite_world: World) -> None:
    job_id = await sqlite_world.enqueue(None, topic="approval")
    store = await sqlite_world.store()
    await mark(store, await run_of(store, job_id), "@callback:decision", 1, {"timeout": None, "schema": DECISION})
    path = await address(sqlite_world, job_id)
    is_problem(await post(sqlite_world, path, {}), 400, "bad_data")
    assert (await post(sqlite_world, path, {"ok": True})).status_code == 200


async def test_a_second_answer_is_refused(world: World) -> None:
    job_id, path = await asked(world)
    await post(world, path, 1)
    is_problem(await post(world, path, 1), 409, "callback_answered")
    store = await world.store()
    run = await run_of(store, job_id)
    await take(store, run)
    is_problem(await post(world, path, 2), 409, "callback_answered")
    is_problem(await post(world, f"{path}/heartbeat"), 409, "callback_answered")


async def test_a_late_answer_is_refused(world: World) -> None:
    job_id, path = await asked(world, callback=0.001)
    is_problem(await post(world, path, 1), 409, "callback_late")
    is_problem(await post(world, f"{path}/progress", {"percent": 5}), 409, "callback_late")
    assert await state(world, path) == "ended"
    assert (await world.job(job_id)).status is Status.WAITING


async def test_a_callback_that_the_job_never_made(world: World) -> None:
    job_id, _ = await asked(world)
    path = await address(world, job_id, n=2)
    assert await state(world, path) == "ended"
    is_problem(await post(world, path, 1), 409, "callback_ended")


async def test_a_job_that_has_ended(world: World) -> None:
    job_id = await world.ended(None, "approval")
    path = await address(world, job_id)
    assert await state(world, path) == "ended"
    for suffix in ("", "/progress", "/heartbeat", "/acknowledge"):
        is_problem(await post(world, path + suffix), 409, "callback_ended")


async def test_after_a_requeue_that_drops_it_the_same_number_is_a_new_callback(world: World) -> None:
    job_id, path = await asked(world)
    await post(world, path, 1)
    store = await world.store()
    await take(store, await run_of(store, job_id))
    await world.jobs.cancel(job_id)
    await store.move_due(_no_grace())
    await world.jobs.requeue(job_id, keep_steps=False)
    await waiting(store, job_id, callback=True)
    assert await state(world, path) == "wanted"
    assert (await post(world, path, 2)).status_code == 200


def _no_grace() -> Any:
    from rowlock.core.moves import CancelTimeout

    return CancelTimeout(by="test", grace=0.0)


# ── While the external system works ──


async def test_progress_is_shown_with_the_job(world: World) -> None:
    job_id, path = await asked(world)
    answer = await post(world, f"{path}/progress", {"percent": 40, "stage": "render", "message": "4 of 10"})
    assert (answer.status_code, answer.json()) == (200, {"state": "wanted"})
    job = await world.job(job_id)
    assert (job.progress, job.stage, job.message, job.status) == (40.0, "render", "4 of 10", Status.WAITING)
    await post(world, f"{path}/progress", {"percent": 50})
    assert (await world.job(job_id)).stage == "render"
    is_problem(await post(world, f"{path}/progress", {"percent": 101}), 400, "out_of_range")
    is_problem(await post(world, f"{path}/progress", {"status": "completed"}), 400, "unknown_field")


@pytest.mark.parametrize("suffix", ["/heartbeat", "/progress"])
async def test_a_sign_of_life_restarts_the_deadlines(world: World, suffix: str) -> None:
    job_id, path = await asked(world, seconds=3600.0, callback=7200.0)
    before = {step.kind: step.deadline for step in await world.jobs.steps(job_id)}
    run_at = (await world.job(job_id)).run_at
    assert (await post(world, path + suffix)).status_code == 200
    after = {step.kind: step.deadline for step in await world.jobs.steps(job_id)}
    for kind in ("signal", "callback"):
        old, new = before[kind], after[kind]
        assert old is not None
        assert new is not None
        assert new > old
    assert (await world.job(job_id)).run_at > run_at


async def test_a_sign_of_life_while_a_run_is_under_way(sqlite_world: World) -> None:
    job_id, path = await asked(sqlite_world)
    await sqlite_world.jobs.wake(job_id)
    assert (await post(sqlite_world, f"{path}/heartbeat")).json() == {"state": "wanted"}


# ── Cancel ──


async def test_a_cancel_waits_for_the_outside(world: World) -> None:
    job_id, path = await asked(world)
    is_problem(await post(world, f"{path}/acknowledge"), 409, "not_cancelled")
    await world.jobs.cancel(job_id)
    assert (await world.job(job_id)).status is Status.CANCEL_REQUESTED
    assert await state(world, path) == "cancelled"
    is_problem(await post(world, f"{path}/heartbeat"), 409, "callback_cancelled")
    assert (await world.job(job_id)).status is Status.CANCEL_REQUESTED
    for _ in range(2):  # a client may repeat it
        assert (await post(world, f"{path}/acknowledge")).json() == {"state": "cancelled"}
        assert (await world.job(job_id)).status is Status.CANCELLED


async def test_an_answer_to_a_cancelled_job_acknowledges(world: World) -> None:
    job_id, path = await asked(world, schema=DECISION)
    await world.jobs.cancel(job_id)
    is_problem(await post(world, path, {"anything": 1}), 409, "callback_cancelled")
    assert (await world.job(job_id)).status is Status.CANCELLED
    is_problem(await post(world, path, {"ok": True}), 409, "callback_cancelled")


async def test_a_worker_that_undoes_something_is_not_cut_short(world: World) -> None:
    job_id, path = await asked(world, steps=["book"])
    await world.jobs.cancel(job_id)
    assert (await post(world, f"{path}/acknowledge")).json() == {"state": "cancelled"}
    job = await world.job(job_id)
    assert (job.status, job.waits_for) == (Status.CANCEL_REQUESTED, None)


# ── Tokens ──


async def test_forged_and_unknown_look_the_same(world: World) -> None:
    job_id, path = await asked(world)
    gone = await world.enqueue(None)
    unknown = await address(world, gone)
    await world.jobs.delete(gone)
    token = path.rpartition("/")[2]
    forged = [f"/api/callbacks/{one}" for one in ("x", "A" * 90, token[:-2] + "AA", token[::-1], job_id, "A" * 3000)]
    told = []
    for bad in [unknown, *forged]:
        for method, suffix in (("GET", ""), ("POST", ""), ("POST", "/progress"), ("POST", "/acknowledge")):
            answer = await world.call(ANYONE, method, bad + suffix, headers={"x-request-id": "the-same-id"})
            told.append((answer.status_code, answer.text, {**answer.headers}))
    assert told[0][0] == 404
    assert all(one == told[0] for one in told)
    assert (await world.job(job_id)).status is Status.WAITING


async def test_a_token_is_for_one_job_and_one_signal(world: World) -> None:
    first, path = await asked(world)
    second, other = await asked(world)
    assert path != other
    await post(world, path, 1)
    assert (await world.job(first)).status is Status.PENDING
    assert (await world.job(second)).status is Status.WAITING


async def test_no_credential_is_needed_or_looked_at(sqlite_world: World) -> None:
    """The API is closed to these callers. A credential that comes with a request belongs to the external system."""
    for who in (ANYONE, "user A", "read token", "revoked token", "superuser"):
        _, path = await asked(sqlite_world)
        assert (await sqlite_world.post(who, path, {"ok": True})).status_code == 200
    _, path = await asked(sqlite_world)
    for header in ({"authorization": "Basic x"}, bearer("nonsense"), {"cookie": "rowlock_session=rls_x"}):
        assert (await sqlite_world.get(ANYONE, path, headers=header)).status_code == 200


async def test_the_switch_closes_it(sqlite_world: World) -> None:
    job_id, path = await asked(sqlite_world)
    await sqlite_world.change_settings(http_enabled=False)
    is_problem(await post(sqlite_world, path, 1), 404, "http_disabled")
    assert (await sqlite_world.job(job_id)).status is Status.WAITING


async def test_a_foreign_page_and_a_form_are_refused(sqlite_world: World) -> None:
    job_id, path = await asked(sqlite_world)
    is_problem(await post(sqlite_world, path, 1, headers={"origin": "https://evil.example.com"}), 403, "cross_origin")
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        is_problem(await post(sqlite_world, path, content="1", headers={"content-type": kind}), 415)
    assert (await sqlite_world.job(job_id)).status is Status.WAITING


async def test_a_forged_token_is_refused_before_the_body_is_read(sqlite_world: World) -> None:
    headers = [(b"content-type", b"application/json"), (b"transfer-encoding", b"chunked")]
    parts = (b" " * 1000 for _ in range(1000))
    sent = await by_hand(sqlite_world.api, "POST", "/api/callbacks/forged", headers=headers, parts=parts)
    assert (sent.status, sent.read) == (404, 0)


async def test_a_body_that_is_too_large(sqlite_world: World) -> None:
    job_id, path = await asked(sqlite_world)
    is_problem(await post(sqlite_world, path, "x" * (2 << 20)), 413, "too_large")
    is_problem(await post(sqlite_world, path, "x" * ((1 << 20) + 5)), 413, "too_large")
    assert (await sqlite_world.job(job_id)).status is Status.WAITING


async def test_a_token_is_in_no_log(sqlite_world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    _, path = await asked(sqlite_world)
    token = path.rpartition("/")[2]
    for suffix in ("", "/progress", "/nothing", "//x"):
        await post(sqlite_world, path + suffix, {"percent": 5})
        await sqlite_world.call(ANYONE, "DELETE", path + suffix)
    await post(sqlite_world, f"/api/callbacks//{token}")
    await post(sqlite_world, path.replace("/api", "/x/api"))
    assert "/api/callbacks/…" in caplog.text
    assert token not in caplog.text


async def test_a_token_is_in_no_log_if_the_server_fails(
    sqlite_world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = await asked(sqlite_world)

    async def broken(token: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(sqlite_world.jobs._callbacks, "read", broken)
    assert (await post(sqlite_world, path, 1)).status_code == 500
    assert "ZeroDivisionError" in caplog.text
    assert path.rpartition("/")[2] not in caplog.text


async def test_nothing_of_a_token_is_stored(place: Place) -> None:
    from tests.http.harness import world_at

    async with world_at(place) as world:
        _, path = await asked(world)
        await post(world, f"{path}/progress", {"percent": 5})
        await post(world, path, {"ok": True})
        assert path.rpartition("/")[2] not in await place.dump()


# ── Limits ──


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def allowed(take: Any, *args: str) -> int:
    """Return how many calls are allowed before one is refused."""
    calls = count()

    def take_all() -> None:
        for _ in calls:
            take(*args)

    with pytest.raises(Problem) as refused:
        take_all()
    assert refused.value.code == "too_many_calls"
    assert int(refused.value.headers["retry-after"]) >= 1
    return next(calls) - 1


def test_the_limits_are_kept_and_forgotten() -> None:
    clock = Clock()
    limits = CallbackLimits(clock)
    assert allowed(limits.take, "10.0.0.1") == ADDRESS.burst
    limits.take("10.0.0.2")
    assert allowed(limits.take_callback, "one") == CALLBACK.burst
    limits.take_callback("other")
    clock.now = 1.0
    assert allowed(limits.take, "10.0.0.1") == ADDRESS.per_second
    assert allowed(limits.take_callback, "one") == CALLBACK.per_second
    assert allowed(limits.unknown, "10.0.0.1") == UNKNOWN.free
    limits.unknown("10.0.0.2")
    clock.now = 1000.0
    limits.unknown("10.0.0.1")


async def test_a_scanner_is_slowed_down_and_a_right_token_is_not(sqlite_world: World) -> None:
    _, path = await asked(sqlite_world)
    found = [(await sqlite_world.get(ANYONE, f"/api/callbacks/x{n}")).status_code for n in range(UNKNOWN.free + 2)]
    assert (found[0], found[-1]) == (404, 429)
    assert await state(sqlite_world, path) == "wanted"


async def test_too_many_calls_about_one_callback(sqlite_world: World) -> None:
    _, path = await asked(sqlite_world)
    sqlite_world.api.callback_limits = CallbackLimits(Clock())
    answers = [await sqlite_world.get(ANYONE, path) for _ in range(int(CALLBACK.burst) + 1)]
    assert {one.status_code for one in answers[:-1]} == {200}
    assert "retry-after" in answers[-1].headers
    is_problem(answers[-1], 429, "too_many_calls")
