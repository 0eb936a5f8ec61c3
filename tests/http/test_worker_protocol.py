"""Workers that speak HTTP: which jobs they get, what they may say of them, and what happens when they die, freeze, come
too late or say everything twice."""

import asyncio
import json as jsons
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

from rowlock import Jobs
from rowlock.core.job import Job
from rowlock.core.lifecycle import CRASH_ERROR, CRASH_UNSEEN
from rowlock.core.limits import Concurrency, Rate
from rowlock.core.moves import Rescue
from rowlock.core.retry import FINAL
from rowlock.errors import InvalidInput
from rowlock.http import remote_workers, upkeep, workers
from rowlock.runtime.settings import WorkerSettings
from rowlock.stores.base import Store
from rowlock.stores.queries import State
from tests.http.harness import ANYONE, JSON, Place, Server, Who, World, by_hand, is_problem, world_at
from tests.http.oracle import NOWHERE
from tests.waiting import until
from tests.waits import DECISION

SETTLE = ("complete", "fail", "retry-step", "snooze", "release", "give-up")
SAID: dict[str, JSON] = {
    "fail": {"error": "no"}, "retry-step": {"step": "a", "delay": 9, "error": "no"}, "snooze": {"seconds": 9},
    "log": {"lines": [{"text": "so far"}]},
}  # fmt: skip
STEP = {"name": "a", "position": 1, "state": "succeeded"}


def items(answer: httpx.Response) -> list[JSON]:
    assert answer.status_code == 200, answer.text
    found: list[JSON] = answer.json()["items"]
    return found


class Remote:
    """A remote worker. It remembers the requests that it has made, and their answers."""

    def __init__(self, world: World, name: str = "w1", who: Who | str = "worker token") -> None:
        self.world = world
        self.name = name
        self.who = who
        self.said: list[tuple[str, JSON, httpx.Response]] = []

    @property
    def id(self) -> str:
        who = self.world.who[self.who] if isinstance(self.who, str) else self.who
        return f"{self.name}@{who.kind}:{who.id}"

    async def say(self, verb: str, **body: Any) -> httpx.Response:
        asked = {"worker": self.name, **body}
        answer = await self.world.post(self.who, f"/api/worker/{verb}", asked)
        self.said.append((verb, asked, answer))
        return answer

    async def claim(self, *topics: str, **more: Any) -> list[JSON]:
        answer = await self.say("claim", topics=topics or ("mail",), **more)
        return items(answer)

    async def one(self, **more: Any) -> JSON:
        [run] = await self.claim(**more)
        return run

    async def begun(self, topic: str = "mail", *, lease: float | None = None, **options: Any) -> JSON:
        """Enqueue a job and claim it."""
        await self.world.enqueue(None, topic=topic, **options)
        [run] = await self.claim(topic, **{} if lease is None else {"lease": lease})
        return run

    async def waits(self) -> asyncio.Task[httpx.Response]:
        """Begin a claim that finds nothing, and let it wait for a job."""
        asking = asyncio.create_task(self.say("claim", topics=["mail"], wait=30))
        await until(lambda: self.world.api.state.remote_workers.waiting == 1)
        return asking

    async def about(self, verb: str, run: JSON, **more: Any) -> httpx.Response:
        return await self.say(verb, id=run["id"], version=run["version"], **{**SAID.get(verb, {}), **more})

    async def done(self, verb: str, run: JSON, **more: Any) -> str:
        """Send the verb for the run. Return the status that the job has then."""
        answer = await self.about(verb, run, **more)
        assert answer.status_code == 200, answer.text
        assert (answer.json()["id"], answer.json()["version"]) == (run["id"], run["version"])
        status: str = answer.json()["status"]
        return status

    async def hold(self, *runs: JSON, lease: float = 30.0) -> list[str]:
        named = [{"id": run["id"], "version": run["version"]} for run in runs]
        return [item["hold"] for item in items(await self.say("heartbeat", runs=named, lease=lease))]


@pytest.fixture(autouse=True)
def quick_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "SETTINGS", WorkerSettings(maintenance=0.05, lease=1.0))


@pytest.fixture
async def world(world: World) -> AsyncIterator[World]:
    yield world
    world.api.stop()


@pytest.fixture
def remote(world: World) -> Remote:
    return Remote(world)


async def now(world: World, run: JSON) -> Job:
    return await world.job(run["id"])


async def rows(world: World) -> str:
    """Return all rows of jobs and steps."""
    tables = ("_jobs", "_jobs_archive", "_jobs_steps")
    return repr([await world.place.fetch(f"SELECT * FROM {table}") for table in tables])


async def take_away(world: World, *workers: str) -> None:
    """Rescue the workers' jobs, as maintenance does when their leases are over."""
    store = await world.store()
    await store.move_due(Rescue(by="test", backoff=(0.0,), workers=list(workers)))


# ── Claim ──


async def test_a_claim_gives_what_a_worker_needs_to_know(world: World, remote: Remote) -> None:
    options: dict[str, Any] = {"key": "k", "tags": ["t"], "max_retries": 5, "timeout": 60, "scope": "s", "priority": 7}
    job_id = await world.enqueue("user-a", payload={"to": "ada"}, **options)
    [run] = await remote.claim("mail", "other", lease=20)
    assert list(run)[:2] == ["id", "version"]  # they come first: the example in bash looks no further
    assert (run["id"], run["version"], run["topic"], run["payload"]) == (job_id, 1, "mail", {"to": "ada"})
    assert (run["lease"], run["timeout"], run["retries"], run["max_retries"]) == (20.0, 60.0, 0, 5)
    assert (run["key"], run["scope"], run["scope_id"], run["tags"]) == ("k", "s", "user-a", ["t"])
    job = await now(world, run)
    assert (job.status, job.locked_by) == ("processing", remote.id)
    assert job.started_at is not None  # if the worker dies of the job, the job is charged
    assert await remote.claim() == []


async def test_a_lease_that_nobody_asks_for_is_by_the_settings(world: World, remote: Remote) -> None:
    await world.change_settings(lock_duration=50)
    run = await remote.begun()
    job = await now(world, run)
    assert job.locked_until is not None
    assert job.claimed_at is not None
    assert run["lease"] == (job.locked_until - job.claimed_at).total_seconds() == 50.0
    await world.change_settings(lock_duration=3600)  # too long: the server can't ask whether the worker is alive
    asked = {"worker": "w1", "runs": [{"id": run["id"], "version": 1}]}
    assert (await world.post("worker token", "/api/worker/heartbeat", asked)).is_success
    later = (await now(world, run)).locked_until
    assert later is not None
    assert 200 < (later - job.claimed_at).total_seconds() < 3000


async def test_a_batch_in_order_and_no_more_than_wanted(world: World, remote: Remote) -> None:
    late, first = await world.enqueue(None, priority=1), await world.enqueue(None, priority=200)
    await world.enqueue(None, topic="bills", priority=200)
    assert [run["id"] for run in await remote.claim(limit=10)] == [first, late]


async def test_a_paused_topic_is_not_claimed(world: World, remote: Remote) -> None:
    await world.enqueue(None)
    await world.jobs.topics.pause("mail")
    assert await remote.claim() == []
    await world.jobs.topics.resume("mail")
    assert len(await remote.claim()) == 1


async def test_who_waits_is_given_the_job_that_comes(world: World, remote: Remote) -> None:
    asking = await remote.waits()
    job_id = await world.enqueue(None)
    assert [run["id"] for run in items(await asking)] == [job_id]


async def test_a_job_of_another_process_wakes_them_too(place: Place) -> None:
    """Without a notification, the test would take as long as the long poll; without polls, longer than a test may."""
    async with world_at(place) as world, Jobs(place.url) as elsewhere:
        remote = Remote(world)
        asking = await remote.waits()
        made = await elsewhere.enqueue("mail")
        assert [run["id"] for run in items(await asking)] == [made.id]
        world.api.stop()


async def test_a_job_that_becomes_due_wakes_them(world: World, remote: Remote) -> None:
    job_id = await world.enqueue(None, delay=0.3)
    assert [run["id"] for run in await remote.claim(wait=30)] == [job_id]


async def test_one_job_wakes_one_of_many_and_many_wake_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await world.store()
    claims, real = 0, type(store).claim

    async def counted(self: Any, wanted: Any) -> Any:
        nonlocal claims
        claims += 1
        return await real(self, wanted)

    crowd = [Remote(world, f"w{n}") for n in range(40)]
    asking = [asyncio.create_task(one.claim(wait=30)) for one in crowd]
    await until(lambda: world.api.state.remote_workers.waiting == 40)
    monkeypatch.setattr(type(store), "claim", counted)
    await world.enqueue(None)
    await until(lambda: sum(task.done() for task in asking) == 1)
    assert claims < 30  # now and then the clock sends a worker to look
    await world.jobs.enqueue_many([{"topic": "mail", "payload": {}}] * 39)
    found = [run["id"] for runs in await asyncio.gather(*asking) for run in runs]
    assert len(set(found)) == 40
    assert world.api.state.remote_workers.waiting == 0


async def test_a_worker_that_has_hung_up_is_given_nothing(world: World, remote: Remote) -> None:
    asking = await remote.waits()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await until(lambda: world.api.state.remote_workers.waiting == 0)
    await world.enqueue(None)
    assert (await Remote(world, "w2").one())["version"] == 1


async def test_what_was_claimed_for_someone_who_hung_up_meanwhile_is_given_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks after the server has sent the claim to the database."""
    job_id = await world.enqueue(None)
    gone = asyncio.Event()
    store = await world.store()
    real = type(store).claim

    async def slow(self: Any, wanted: Any) -> Any:
        claimed = await real(self, wanted)
        gone.set()
        await asyncio.sleep(0)
        return claimed

    monkeypatch.setattr(type(store), "claim", slow)
    body = iter([b'{"worker": "w1", "topics": ["mail"], "wait": 30}'])

    async def receive() -> dict[str, Any]:
        if (part := next(body, None)) is not None:
            return {"type": "http.request", "body": part, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    headers = world.who["worker token"].raw_headers
    await by_hand(world.api, "POST", "/api/worker/claim", headers=headers, receive=receive)
    job = await world.job(job_id)
    assert (job.status, job.version, job.retries) == ("pending", 1, 0)


async def test_a_server_that_stops_lets_everyone_go(world: World, remote: Remote) -> None:
    asking = await remote.waits()
    world.api.stop()
    assert items(await asking) == []
    await world.enqueue(None)
    assert await remote.claim(wait=30) == []  # the stopping server gives it no job that it could not keep


async def test_a_token_that_is_revoked_gets_nothing_more_though_it_waits(world: World) -> None:
    who = await world.token("short-lived", ["worker"])
    remote = Remote(world, who=who)
    asking = await remote.waits()
    assert (await world.call("admin token", "DELETE", f"/api/tokens/{who.id}")).status_code == 204
    await world.enqueue(None)
    assert (await asking).status_code == 401
    assert len(await Remote(world).claim()) == 1


async def test_switched_off_it_gives_nothing_to_those_who_wait(world: World, remote: Remote) -> None:
    asking = await remote.waits()
    await world.change_settings(http_enabled=False)
    await world.enqueue(None)
    assert is_problem(await asking, 404, "http_disabled")
    for verb in ("claim", "heartbeat", *SETTLE):
        assert is_problem(await remote.say(verb), 404, "http_disabled")


async def test_not_everyone_may_wait_at_once(world: World, remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_workers, "MOST_WAITING", 1)
    asking = await remote.waits()
    refused = await Remote(world, "w2").say("claim", topics=["mail"], wait=30)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
    world.api.stop()
    await asking


# ── A claim whose answer was lost ──


async def test_a_repeated_claim_is_answered_as_the_first_time_but_once(world: World, remote: Remote) -> None:
    """An operator restarts a worker that died of its job, under the same name. After the lease, the job is charged."""
    await world.enqueue(None)
    first = await remote.one(runs=[])
    assert await remote.one(runs=[]) == first
    assert await remote.claim(runs=[]) == []
    await take_away(world, remote.id)
    assert (await now(world, first)).retries == 1


async def test_what_the_worker_names_or_has_renewed_is_not_given_again(world: World, remote: Remote) -> None:
    for _ in range(2):
        await world.enqueue(None)
    named, renewed = await remote.claim(limit=2)
    await remote.hold(renewed)
    assert await remote.claim(runs=[{"id": named["id"], "version": named["version"]}]) == []
    assert await remote.claim() == []  # a worker that doesn't say what it has is not told


# ── Heartbeat ──


async def test_a_heartbeat_keeps_what_it_names(world: World, remote: Remote) -> None:
    run = await remote.begun(lease=5)
    before = (await now(world, run)).locked_until
    assert await remote.hold(run, lease=100) == ["kept"]
    after = (await now(world, run)).locked_until
    assert before is not None
    assert after is not None
    assert (after - before).total_seconds() > 90


async def test_a_heartbeat_tells_of_each_run_how_it_stands(world: World, remote: Remote) -> None:
    for topic in ("kept", "cancelled", "lost", "finished"):
        await world.enqueue(None, topic=topic)
    runs = {run["topic"]: run for run in await remote.claim("kept", "cancelled", "lost", "finished", limit=4)}
    await world.jobs.cancel(runs["cancelled"]["id"])
    await remote.done("release", runs["lost"])
    assert await Remote(world, "other").claim("lost") != []
    await remote.done("complete", runs["finished"])
    unknown = {"id": NOWHERE, "version": 1}
    wrong = {**runs["kept"], "version": 2}
    asked = [runs["kept"], runs["cancelled"], runs["lost"], runs["finished"], unknown, wrong]
    assert await remote.hold(*asked) == ["kept", "cancel", "lost", "lost", "lost", "lost"]


async def test_a_run_whose_time_is_over_is_told_so_and_then_left_alone(
    world: World, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await remote.begun(lease=10, timeout=0.01)

    async def over() -> bool:
        return await remote.hold(run, lease=10) == ["timeout"]

    await until(over)
    monkeypatch.setattr(workers, "GRACE", 0.0)
    before = (await now(world, run)).locked_until
    assert await remote.hold(run, lease=200) == ["timeout"]
    assert (await now(world, run)).locked_until == before  # a worker that is stuck does not count as alive
    assert await remote.done("fail", run) == "pending"


async def test_another_process_knows_a_runs_time_as_well(world: World, remote: Remote) -> None:
    run = await remote.begun(timeout=0.01)
    api = world.another_api()

    async def over() -> bool:
        asked = {"worker": "w1", "runs": [{"id": run["id"], "version": 1}]}
        answer = await world.post("worker token", "/api/worker/heartbeat", asked, api=api)
        return bool(answer.json()["items"][0]["hold"] == "timeout")

    await until(over)
    api.stop()


async def test_a_heartbeat_looks_at_no_job_that_is_not_its_workers_and_at_none_as_a_whole(
    world: World, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job may be large, and a caller may name a thousand jobs of any topic."""
    mine, theirs = await remote.begun(payload={"a": "x" * 1000}), await Remote(world, "other").begun("other")
    api, store = world.another_api(), await world.store()
    looked: list[list[str]] = []
    read = store.read

    async def seen(ids: Sequence[str], shape: type[State]) -> dict[str, State]:
        assert shape is State  # never whole jobs
        looked.append(list(ids))
        return await read(ids, shape)

    monkeypatch.setattr(store, "read", seen)
    named = [{"id": run["id"], "version": run["version"]} for run in (mine, theirs)]
    named += [{"id": mine["id"], "version": 7}, {"id": NOWHERE, "version": 1}]
    asked = {"worker": "w1", "runs": named}
    for _ in range(2):
        answer = await world.post("worker token", "/api/worker/heartbeat", asked, api=api)
        assert [item["hold"] for item in answer.json()["items"]] == ["kept", "lost", "lost", "lost"]
    api.stop()
    assert looked == [[mine["id"]]]


# ── Progress and log ──


async def test_progress_and_log_are_kept_with_the_job(world: World, remote: Remote) -> None:
    run = await remote.begun()
    assert (await remote.about("progress", run, percent=40, stage="pages", message="4 of 10")).json()["hold"] == "kept"
    assert (await remote.about("progress", run, percent=50)).json()["hold"] == "kept"
    assert (await remote.about("log", run, lines=[{"text": "a"}, {"text": "b", "level": "error"}])).is_success
    job = await now(world, run)
    assert (job.progress, job.stage, job.message) == (50.0, "pages", "4 of 10")
    log = await world.jobs.logs(run["id"])
    assert [(line.level, line.text, line.version) for line in log.lines] == [("info", "a", 1), ("error", "b", 1)]
    await world.jobs.cancel(run["id"])
    assert (await remote.about("progress", run, percent=60)).json()["hold"] == "cancel"
    await take_away(world, remote.id)
    assert (await remote.about("progress", run, percent=99)).json()["hold"] == "lost"
    assert (await remote.about("log", run)).json()["hold"] == "lost"
    assert (await now(world, run)).progress == 60.0


# ── How a run ended ──


async def test_complete_keeps_the_result(world: World, remote: Remote) -> None:
    run = await remote.begun()
    assert await remote.done("complete", run, result={"pages": [1, 2]}, ran=0.0) == "completed"
    job = await now(world, run)
    assert (job.status, job.result, job.progress) == ("completed", {"pages": [1, 2]}, 100.0)


UNFIT = {
    "an integer": 1 << 64,
    "a NUL": "a\0b",
    "depth": jsons.loads("[" * 70 + "]" * 70),
    "size": "x" * (1 << 20),
}


async def test_a_result_that_cant_be_stored_fails_the_job_for_good(world: World, remote: Remote) -> None:
    for kind, value in UNFIT.items():
        run = await remote.begun()
        assert await remote.done("complete", run, result={"it": value}) == "failed", kind
        assert await remote.done("complete", run, result={"it": value}) == "failed"  # the repeat gets the same answer
        job = await now(world, run)
        assert (job.retries, job.result) == (0, None)
        assert "result can't be stored: result" in str(job.last_error)


async def test_fail_tries_again_and_then_not(world: World, remote: Remote) -> None:
    first = await remote.begun(max_retries=1)
    assert await remote.done("fail", first, error="boom", type="ValueError", delay=0) == "pending"
    job = await now(world, first)
    assert (job.retries, job.last_error) == (1, "ValueError: boom")
    second = await remote.one()
    assert second["version"] == 2
    trace = "Error: boom\n    at handle (worker.js:7:9)\n"
    assert await remote.done("fail", second, error="boom", type="Error", traceback=trace) == "failed"
    assert (await now(world, second)).last_error == f"Max retries exceeded: {trace.rstrip()}"


async def test_an_error_stands_in_the_last_line_of_a_trace_that_has_it_nowhere(world: World, remote: Remote) -> None:
    run = await remote.begun()
    await remote.done("fail", run, error="no\0such file", type="E", traceback="in a\nin b\n")
    assert (await now(world, run)).last_error == "in a\nin b\nE: no\N{REPLACEMENT CHARACTER}such file"


async def test_final_is_final(world: World, remote: Remote) -> None:
    run = await remote.begun()
    assert await remote.done("fail", run, error="never", final=True) == "failed"
    assert (await now(world, run)).retries == 0


async def test_when_it_is_tried_again_is_the_topics_business(world: World, remote: Remote) -> None:
    """The delay comes from a policy that is registered here, else from the worker, else from the default."""

    @world.jobs.task("strict", retry=lambda job, error: FINAL if error == "broken" else 500.0)
    def strict() -> None: ...

    async def wait(topic: str, **more: Any) -> float | None:
        run = await remote.begun(topic, payload={})
        await remote.done("fail", run, **more)
        event = (await world.jobs.events(run["id"]))[-1]
        return event.data.get("delay")

    assert await wait("mail") == 60.0
    assert await wait("mail", delay=7) == 7.0
    assert await wait("strict", delay=7) == 500.0
    assert await wait("strict", error="broken") is None
    assert [job.status for job in (await world.jobs.list()).items if job.topic == "strict"] == ["failed", "pending"]


async def test_snooze_and_release_cost_nothing(world: World, remote: Remote) -> None:
    run = await remote.begun(max_retries=0)
    assert await remote.done("release", run, reason="deploy") == "pending"
    again = await remote.one()
    assert await remote.done("snooze", again, seconds=3600) == "pending"
    job = await now(world, again)
    assert (job.retries, job.status) == (0, "pending")
    events = [(event.event, event.by) for event in await world.jobs.events(run["id"])]
    assert events[-3:] == [("released", remote.id), ("claimed", remote.id), ("snoozed", remote.id)]
    assert await remote.claim() == []


async def test_a_cancel_wins_over_everything_but_a_completion(world: World, remote: Remote) -> None:
    for verb in SETTLE:
        run = await remote.begun()
        await world.jobs.cancel(run["id"])
        for _ in range(2):
            assert await remote.done(verb, run) == ("completed" if verb == "complete" else "cancelled")


async def test_a_cancel_that_comes_in_between_is_seen(
    world: World, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancel comes after the job was read, and before it is settled."""
    run = await remote.begun()
    real = type(await world.store()).settle

    async def late(self: Store, *arguments: Any) -> Any:
        monkeypatch.undo()
        await world.jobs.cancel(run["id"])
        return await real(self, *arguments)

    monkeypatch.setattr(type(await world.store()), "settle", late)
    assert await remote.done("fail", run) == "cancelled"


# ── Many ends in one request ──


async def test_many_ends_in_one_request_are_as_one_by_one(world: World, remote: Remote) -> None:
    """Each end is sent twice, for a running job and for one whose cancel was requested, beside runs that are lost."""
    told: dict[str, list[str]] = {}
    for way in ("single", "batch"):
        runs = [await remote.begun(f"{way}.{n}", max_retries=1) for n in range(2 * len(SETTLE) + 1)]
        for run in runs[len(SETTLE) : 2 * len(SETTLE)]:
            await world.jobs.cancel(run["id"])
        lost = {**runs[-1], "version": 2}
        ends = [*zip((*SETTLE, *SETTLE), runs, strict=False), ("complete", lost), ("fail", {**runs[-1], "id": NOWHERE})]
        if way == "single":
            said = [await remote.about(verb, run) for verb, run in ends]
            told[way] = [one.json()["status"] if one.status_code == 200 else "lost" for one in said]
        else:
            body = [
                {"end": verb, "id": run["id"], "version": run["version"], **SAID.get(verb, {})} for verb, run in ends
            ]
            first, second = [items(await remote.say("settle", ends=body)) for _ in range(2)]
            assert [(one["id"], one["version"]) for one in first] == [(one["id"], one["version"]) for one in body]
            assert first == second
            told[way] = [one["status"] for one in first]
        assert (await now(world, runs[-1])).status == "processing"
    assert told["batch"] == told["single"]
    assert told["batch"][-2:] == ["lost", "lost"]
    jobs = {job.topic: job.status for job in (await world.jobs.list(limit=100)).items}
    for n in range(2 * len(SETTLE)):
        assert jobs[f"batch.{n}"] == jobs[f"single.{n}"]


async def test_a_result_that_cant_be_stored_fails_its_own_job_alone(world: World, remote: Remote) -> None:
    good, bad = await remote.begun("good"), await remote.begun("bad")
    ends = [
        {"end": "complete", "id": run["id"], "version": 1, "result": result, "ran": 2.5}
        for run, result in ((good, {"n": 1}), (bad, UNFIT["an integer"]))
    ]
    for _ in range(2):
        assert [one["status"] for one in items(await remote.say("settle", ends=ends))] == ["completed", "failed"]
    assert (await now(world, good)).result == {"n": 1}


# ── Repeated, too late, or from another worker ──


async def test_what_is_said_twice_is_answered_twice_and_another_end_than_the_first_is_refused(
    world: World, remote: Remote
) -> None:
    """If the run gave up, another end is accepted if a cancel would have led to the same."""
    for first in SETTLE:
        run = await remote.begun(first)
        status = await remote.done(first, run)
        before = await rows(world)
        for verb in (first, *SETTLE):
            if verb == first or (first == "give-up" and verb != "complete"):
                assert await remote.done(verb, run) == status
            else:
                assert is_problem(await remote.about(verb, run), 409, "lost"), (first, verb)
        assert await rows(world) == before


async def test_a_repeat_is_known_also_when_others_have_it_by_now(world: World, remote: Remote) -> None:
    run = await remote.begun(max_retries=1)
    assert await remote.done("fail", run, delay=0) == "pending"
    newer = await Remote(world, "w2").one()
    assert newer["version"] == 2
    before = await rows(world)
    assert await remote.done("fail", run, delay=0) == "pending"
    assert await rows(world) == before


async def everything(remote: Remote, run: JSON) -> None:
    """Send all that the worker could say of a run that it doesn't have. It is told so, and nothing changes."""
    before = await rows(remote.world)
    for verb in (*SETTLE, "steps"):
        assert is_problem(await remote.about(verb, run), 409, "lost")
    assert is_problem(await remote.about("checkpoint", run, **STEP), 409, "lost")
    for verb in ("progress", "log"):
        assert (await remote.about(verb, run)).json()["hold"] == "lost"
    assert await remote.hold(run) == ["lost"]
    assert await rows(remote.world) == before


async def test_who_comes_too_late_changes_nothing(world: World, remote: Remote) -> None:
    """The job is pending again, or another worker has it, or another worker has ended it."""
    run = await remote.begun()
    await take_away(world, remote.id)
    await everything(remote, run)
    other = Remote(world, "w2")
    newer = await other.one()
    await everything(remote, run)
    await other.done("complete", newer)
    await everything(remote, run)


async def test_nobody_speaks_for_another(world: World, remote: Remote) -> None:
    """Refused are another worker, a worker of the same name with another token, and a version to come."""
    run = await remote.begun()
    other = await world.token("another worker token", ["worker"])
    await everything(Remote(world, "w2"), run)
    await everything(Remote(world, "w1", other), run)
    await everything(Remote(world, "w1", "superuser"), run)
    await everything(remote, {**run, "version": 2})
    assert await remote.done("complete", run) == "completed"


async def test_all_that_was_ever_said_can_be_said_again(world: World, remote: Remote) -> None:
    """If an old worker's requests are replayed after another worker has done the work, nothing changes. The old claim
    may be given a new job for the old worker, and nothing else."""
    await world.enqueue(None, max_retries=0)
    run = await remote.one(runs=[])
    await remote.hold(run)
    await remote.about("progress", run, percent=10)
    await remote.about("log", run)
    await remote.done("release", run)
    other = Remote(world, "w2")
    again = await other.one()
    assert await other.done("complete", again, result=2) == "completed"
    before = await rows(world)
    for verb, asked, first in list(remote.said):
        answer = await world.post("worker token", f"/api/worker/{verb}", asked)
        if verb == "claim":
            assert answer.json() == {"items": []}
        elif verb == "release":
            assert answer.json() == first.json()
        else:
            assert "lost" in answer.text
    assert await rows(world) == before


# ── Which callers may use it ──


async def test_a_token_that_is_for_some_topics_claims_those_alone(world: World) -> None:
    who = await world.token("some topics", ["worker"], topics=["mail", "other"])
    await world.enqueue(None)
    await world.enqueue(None, topic="bills")
    remote = Remote(world, who=who)
    refused = await remote.say("claim", topics=["mail", "bills"], limit=5)
    assert is_problem(refused, 403, "not_allowed")["field"] == "topics"
    [run] = await remote.claim("mail", "other", limit=5)
    assert await remote.done("complete", run) == "completed"


async def test_a_token_without_the_scope_gets_nothing(world: World) -> None:
    await world.enqueue(None)
    for who in ("read token", "enqueue token", "manage token", "mail token", "job token", "user A"):
        for verb in ("claim", "heartbeat", "progress", "log", "steps", "checkpoint", "settle", "goodbye", *SETTLE):
            assert is_problem(await Remote(world, who=who).say(verb), 403)


END = {"id": NOWHERE, "version": 1, "end": "complete"}
BAD: list[tuple[str, JSON, str]] = [
    ("claim", {"topics": []}, "topics"),
    ("claim", {"topics": ["a b"]}, "topic"),
    ("claim", {"topics": ["t"] * 101}, "topics"),
    ("claim", {"topics": ["t"], "limit": 0}, "limit"),
    ("claim", {"topics": ["t"], "limit": 501}, "limit"),
    ("claim", {"topics": ["t"], "lease": 0.5}, "lease"),
    ("claim", {"topics": ["t"], "lease": 301}, "lease"),
    ("claim", {"topics": ["t"], "wait": 31}, "wait"),
    ("claim", {"topics": ["t"], "wait": -1}, "wait"),
    ("claim", {"topics": ["t"], "worker": ""}, "worker"),
    ("claim", {"topics": ["t"], "worker": "a@b"}, "worker"),
    ("claim", {"topics": ["t"], "worker": "é"}, "worker"),
    ("claim", {"topics": ["t"], "worker": "x" * 101}, "worker"),
    ("claim", {"topics": ["t"], "runs": [{"id": "1", "version": 1}]}, "runs[0].id"),
    ("claim", {"topics": ["t"], "nonsense": 1}, "nonsense"),
    ("heartbeat", {"runs": []}, "runs"),
    ("heartbeat", {"runs": [{"id": NOWHERE, "version": 0}]}, "runs[0].version"),
    ("heartbeat", {"runs": [{"id": NOWHERE, "version": 1}], "lease": 301}, "lease"),
    ("progress", {"id": "1", "version": 1}, "id"),
    ("progress", {"version": 1}, "id"),
    ("progress", {"version": 1 << 31}, "version"),
    ("progress", {"percent": 101}, "percent"),
    ("log", {"lines": []}, "lines"),
    ("log", {"lines": [{"text": "x"}] * 101}, "lines"),
    ("log", {"lines": [{"text": "x"}, {"text": "y", "level": "zzz"}]}, "lines[1].level"),
    ("complete", {"ran": -1}, "ran"),
    ("fail", {}, "error"),
    ("fail", {"error": "x", "delay": -1}, "delay"),
    ("snooze", {"seconds": 1e12}, "seconds"),
    ("release", {"reason": "x" * 2001}, "reason"),
    ("give-up", {"reason": ""}, "reason"),
    ("settle", {"ends": []}, "ends"),
    ("settle", {"ends": [END] * 501}, "ends"),
    ("settle", {"ends": [END, {**END, "id": "1"}]}, "ends[1].id"),
    ("settle", {"ends": [{**END, "version": 0}]}, "ends[0].version"),
    ("settle", {"ends": [END, {**END, "end": "explode"}]}, "ends[1].end"),
    ("settle", {"ends": [END, {**END, "end": "fail"}]}, "ends[1].error"),
    ("settle", {"ends": [{**END, "end": "snooze"}]}, "ends[0].seconds"),
    ("settle", {"ends": [{**END, "end": "fail", "error": "x", "delay": -1}]}, "ends[0].delay"),
    ("settle", {"ends": [{**END, "end": "retry-step", "step": "@a", "delay": 1, "error": "x"}]}, "ends[0].step"),
    ("settle", {"ends": [{**END, "end": "release", "reason": ""}]}, "ends[0].reason"),
    ("settle", {"ends": [{**END, "ran": -1}]}, "ends[0].ran"),
]


async def test_what_is_wrong_is_named(sqlite_world: World) -> None:
    wrong = []
    for verb, body, field in BAD:
        about = {} if verb in ("claim", "heartbeat", "settle") else {"id": NOWHERE, "version": 1}
        answer = await Remote(sqlite_world).say(verb, **({**about, **body} if body != {"version": 1} else body))
        if (answer.status_code, answer.json().get("field")) != (400, field):
            wrong.append(f"{verb} {body}: {answer.text}")
    assert wrong == []


# ── The register ──


async def listed(world: World) -> dict[str, JSON]:
    items = (await world.get("admin token", "/api/workers")).json()["items"]
    return {item["name"]: item for item in items}


async def test_remote_workers_are_on_the_register_until_they_say_goodbye(
    world: World, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_workers, "_REPORT", 0.0)
    await world.enqueue(None)
    run = await remote.one(limit=3)
    await remote.hold(run)
    told = (await listed(world))[remote.id]
    assert (told["topics"], told["concurrency"], told["running"], told["live"]) == (["mail"], 3, 1, True)
    assert told["rowlock"].startswith("http ")
    await remote.done("complete", run)
    assert (await remote.say("goodbye")).status_code == 204
    assert remote.id not in await listed(world)
    assert (await remote.say("goodbye")).status_code == 204


async def test_who_waits_for_longer_than_its_lease_is_alive(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even if it is never the worker's turn to look for work."""
    monkeypatch.setattr(remote_workers, "_POLL", 60.0)
    crowd = [Remote(world, f"w{n}") for n in range(4)]
    asking = [asyncio.create_task(one.claim(wait=30, lease=1)) for one in crowd]
    await until(lambda: world.api.state.remote_workers.waiting == 4)
    first = {name: told["seen"] for name, told in (await listed(world)).items()}
    assert first.keys() == {one.id for one in crowd}

    async def seen_again() -> bool:
        now = await listed(world)
        return all(now[name]["seen"] > seen for name, seen in first.items())

    await until(seen_again)
    world.api.stop()
    await asyncio.gather(*asking)


async def test_a_waiting_claim_wakes_when_a_rate_lets_the_next_job_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker has just taken the job that might start. The other worker waits already, and polls once a minute."""
    monkeypatch.setattr(remote_workers, "_POLL", 60.0)
    await world.jobs.limits.put("mail", Rate(1, per=0.4))
    asking = await Remote(world, "w2").waits()
    began = time.monotonic()
    for _ in range(3):
        await world.enqueue(None)
    first = items(await asking)
    rest = [await Remote(world, f"w{n}").one(wait=30, limit=5) for n in (1, 3)]
    assert len({run["id"] for run in (*first, *rest)}) == 3
    assert 0.8 <= time.monotonic() - began < 20


async def test_a_waiting_claim_wakes_when_an_end_makes_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_workers, "_POLL", 60.0)
    await world.jobs.limits.put("mail", Concurrency(1))
    first, second = Remote(world, "w1"), Remote(world, "w2")
    run = await first.begun()
    await world.enqueue(None)
    asking = await second.waits()
    began = time.monotonic()
    await first.done("complete", run)
    assert len(items(await asking)) == 1
    assert time.monotonic() - began < 20


async def test_a_server_that_has_forgotten_a_worker_knows_it_by_the_register(world: World, remote: Remote) -> None:
    run = await remote.begun()
    api = world.another_api()
    before = (await listed(world))[remote.id]
    asked = {"worker": "w1", "runs": [{"id": run["id"], "version": 1}], "lease": 45}
    assert (await world.post("worker token", "/api/worker/heartbeat", asked, api=api)).is_success
    after = (await listed(world))[remote.id]
    assert (after["topics"], after["running"], after["lease"]) == (before["topics"], 1, 45.0)
    api.stop()


# ── With no other process: the server sees to what a dead worker leaves behind ──


async def test_what_a_dead_worker_held_runs_again_without_any_worker_of_ours(world: World, remote: Remote) -> None:
    run = await remote.begun(lease=1)  # the worker is never heard of again
    again = await Remote(world, "w2").one(wait=30, lease=4)
    assert (again["id"], again["version"], again["retries"]) == (run["id"], 2, 1)
    world.api.stop()  # otherwise the server takes that run back as well
    await everything(remote, run)
    error = (await now(world, run)).last_error
    assert error == f"{CRASH_ERROR}: worker {remote.id}{CRASH_UNSEEN}"


async def test_it_does_so_though_nobody_comes_any_more_and_then_rests(world: World, remote: Remote) -> None:
    run = await remote.begun(lease=1)

    async def rescued() -> bool:
        return (await now(world, run)).status == "pending"

    await until(rescued)
    kept = world.api.state.remote_workers
    assert kept._until > time.monotonic() + 30  # for longer than any lease that the server has heard of
    assert kept.are_there()
    kept._until = 0.0
    assert not kept.are_there()


async def test_a_live_worker_is_not_robbed(world: World, remote: Remote) -> None:
    """The server takes back another worker's job meanwhile, so it was looking for expired leases."""
    kept, lost = await world.enqueue(None), await world.enqueue(None, topic="lost")
    run = await remote.one(lease=3)
    await Remote(world, "dead").claim("lost", lease=1)

    async def others() -> bool:
        assert await remote.hold(run, lease=3) == ["kept"]
        return (await world.job(lost)).status == "pending"

    await until(others)
    assert (run["id"], await remote.done("complete", run)) == (kept, "completed")


# ── A real server ──


async def test_over_a_real_connection_that_breaks_nothing_is_lost_and_a_stop_answers_who_waits(world: World) -> None:
    headers = dict(world.who["worker token"].headers)
    body = {"worker": "w1", "topics": ["mail"], "wait": 30}
    with Server.running(world.place.url) as server:
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60, trust_env=False) as client:

            async def waits() -> asyncio.Task[httpx.Response]:
                asking = asyncio.create_task(client.post("/api/worker/claim", json=body))
                await until(lambda: server.app.state.remote_workers.waiting == 1)
                return asking

            broken = await waits()
            broken.cancel()
            await asyncio.gather(broken, return_exceptions=True)
            await until(lambda: server.app.state.remote_workers.waiting == 0)
            job_id = await world.enqueue(None)
            [run] = items(await client.post("/api/worker/claim", json=body))
            assert (run["id"], run["version"]) == (job_id, 1)
            asking = await waits()
            [loop] = server.app._loop_states
            loop.call_soon_threadsafe(server.app.stop)
            assert items(await asking) == []


# ── Waits ──


async def waited(remote: Remote, run: JSON, **asked: Any) -> JSON:
    """Return the answer to a wait, without the fields that name the run."""
    answer = await remote.about("wait", run, **{"signal": "decision", "position": 5, **asked})
    assert answer.status_code == 200, answer.text
    told: JSON = answer.json()
    assert (told.pop("id"), told.pop("version")) == (run["id"], run["version"])
    return told


async def test_a_wait_ends_the_run_until_the_signal_comes(world: World, remote: Remote) -> None:
    run = await remote.begun()
    assert await waited(remote, run, timeout=60, schema=DECISION) == {"state": "waiting", "data": None}
    job = await now(world, run)
    assert (job.status, job.waits_for, job.locked_by, job.retries) == ("waiting", "signal:decision", None, 0)
    with pytest.raises(InvalidInput):
        await world.jobs.signal(run["id"], "decision", {"ok": "yes"})
    asking = await remote.waits()
    await world.jobs.signal(run["id"], "decision", {"ok": True})
    [again] = items(await asking)
    assert (again["id"], again["version"], again["status"]) == (run["id"], 2, "processing")
    for _ in range(2):  # the worker may repeat it
        assert await waited(remote, again, timeout=60) == {"state": "ended", "data": {"ok": True}}
    assert await remote.done("complete", again) == "completed"


async def test_a_look_at_a_wait_ends_no_run(world: World, remote: Remote) -> None:
    """A worker first looks, then unwinds its handler, and then waits. A signal that comes in between is kept for it."""
    run = await remote.begun()
    wait = {"signal": "decision", "position": 1, "timeout": 3600}
    for _ in range(2):
        assert (await remote.about("wait", run, **wait, peek=True)).json()["state"] == "waiting"
        assert await remote.hold(run) == ["kept"]
    assert (await now(world, run)).status == "processing"
    assert (await remote.about("wait", run, **wait)).json()["state"] == "waiting"
    assert (await now(world, run)).status == "waiting"
    await world.jobs.signal(run["id"], "decision", {"ok": True})
    again = await remote.one()
    for peek in (True, True, False):
        told = (await remote.about("wait", again, **wait, peek=peek)).json()
        assert (told["state"], told["data"]) == ("ended", {"ok": True})


async def test_a_wait_may_be_repeated_when_its_answer_got_lost(world: World, remote: Remote) -> None:
    run = await remote.begun()
    await waited(remote, run)
    assert (await waited(remote, run))["state"] == "waiting"
    await world.jobs.signal(run["id"], "decision", 1)
    again = await remote.one()
    assert (await waited(remote, run))["state"] == "waiting"  # an old request gets its old answer
    assert (await waited(remote, again))["data"] == 1
    is_problem(await Remote(world, "w2").about("wait", again, signal="decision", position=5), 409, "lost")


async def test_a_signal_that_is_there_ends_the_wait_at_once(world: World, remote: Remote) -> None:
    run = await remote.begun()
    await world.jobs.signal(run["id"], "decision", [1])
    assert await waited(remote, run) == {"state": "ended", "data": [1]}
    assert (await now(world, run)).status == "processing"


async def test_a_wait_times_out_or_has_a_default(world: World, remote: Remote) -> None:
    run = await remote.begun()
    assert (await waited(remote, run, timeout=0))["state"] == "timed_out"
    assert await waited(remote, run, n=2, position=6, timeout=0, default=None) == {"state": "ended", "data": None}
    assert await waited(remote, run, n=3, position=7, timeout=0, default={"ok": 1}) == {
        "state": "ended",
        "data": {"ok": 1},
    }


async def test_a_sleep(world: World, remote: Remote) -> None:
    run = await remote.begun()
    assert (await waited(remote, run, signal=None, sleep=3600))["state"] == "waiting"
    assert (await now(world, run)).waits_for == "sleep"
    await world.jobs.wake(run["id"])
    again = await remote.one()
    assert await waited(remote, again, signal=None, sleep=3600) == {"state": "ended", "data": None}
    past = "2026-01-01T00:00:00Z"
    assert (await waited(remote, again, signal=None, until=past, n=2, position=6))["state"] == "ended"


async def test_a_cancelled_job_runs_once_more_to_undo(world: World, remote: Remote) -> None:
    run = await remote.begun()
    await remote.about("checkpoint", run, **STEP)
    await world.jobs.signal(run["id"], "first", 7)
    assert (await waited(remote, run, signal="first", position=2))["data"] == 7
    await waited(remote, run)
    await world.jobs.cancel(run["id"])
    undo = await remote.one()
    assert (undo["version"], undo["status"]) == (2, "cancel_requested")
    assert await remote.hold(undo) == ["cancel"]
    # The second run gets what the first run got, and is told where the first run waited.
    assert (await waited(remote, undo, signal="first", position=2))["data"] == 7
    assert (await waited(remote, undo))["state"] == "cancelled"
    assert (await remote.about("checkpoint", undo, **{**STEP, "name": "undo", "position": 6})).status_code == 200
    assert await remote.done("give-up", undo) == "cancelled"


async def test_a_cancel_that_comes_while_the_run_is_about_to_wait(world: World, remote: Remote) -> None:
    run = await remote.begun()
    await world.jobs.cancel(run["id"])
    assert (await waited(remote, run))["state"] == "cancelled"
    assert await remote.done("give-up", run) == "cancelled"


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, "signal"),
        ({"signal": "a", "sleep": 5}, "sleep"),
        ({"sleep": 5, "timeout": 5}, "timeout"),
        ({"sleep": 5, "default": 5}, "default"),
        ({"sleep": -1}, "sleep"),
        ({"signal": "two words"}, "signal"),
        ({"signal": "a", "n": 0}, "n"),
        ({"signal": "a", "schema": {"type": "nothing"}}, "schema.type"),
    ],
)
async def test_waits_that_make_no_sense(sqlite_world: World, asked: JSON, field: str) -> None:
    remote = Remote(sqlite_world)
    run = await remote.begun()
    told = is_problem(await remote.about("wait", run, **{"position": 1, **asked}), 400)
    assert told["field"] == field
    assert (await now(sqlite_world, run)).status == "processing"


async def test_no_step_has_the_name_of_a_wait(sqlite_world: World) -> None:
    remote = Remote(sqlite_world)
    run = await remote.begun()
    told = is_problem(await remote.about("checkpoint", run, **{**STEP, "name": "@signal:decision"}), 400, "bad_name")
    assert told["field"] == "name"


async def test_an_address_for_the_outside(world: World, remote: Remote) -> None:
    run = await remote.begun()
    asked = {"signal": "decision", "position": 1, "timeout": 3600, "schema": DECISION}
    assert is_problem(await remote.about("callback", run, **asked), 400, "missing")["field"] == "public_url"
    assert await world.jobs.steps(run["id"]) == []
    await world.change_settings(public_url="https://jobs.example.com/queue/")
    first = (await remote.about("callback", run, **asked)).json()["url"]
    assert first.startswith("https://jobs.example.com/queue/api/callbacks/")
    [callback] = await world.jobs.steps(run["id"])
    await waited(remote, run)
    path = first.removeprefix("https://jobs.example.com/queue")
    is_problem(await world.post(ANYONE, path, {}), 400, "bad_data")
    assert (await world.post(ANYONE, path, {"ok": True})).status_code == 200
    again = await remote.one()
    assert (await remote.about("callback", again, **asked)).json()["url"] == first
    assert (await world.jobs.steps(run["id"]))[0].deadline == callback.deadline
    assert (await waited(remote, again))["data"] == {"ok": True}
    is_problem(await remote.about("callback", run, **asked), 409, "lost")
