"""Schedules over HTTP: their life, what is refused and why, what a caller may see."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from rowlock.core.cron import Every
from rowlock.core.schedules import Fire
from rowlock.stores.schedules import ScheduleChange, Which
from tests.http.harness import World, is_problem

NIGHTLY: dict[str, Any] = {
    "name": "nightly", "topic": "report", "payload": {"tenant": 7, "day": "{{fire_date}}"},
    "when": {"cron": "30 2 * * *", "zone": "Europe/Berlin"}, "scope": "tenant", "scopeId": "7", "priority": 5,
    "maxRetries": 2, "timeout": 33, "tags": ["a"], "missed": "all", "most": 10, "within": 3600, "ifLive": "queue",
    "jitter": 1.5, "end": "2090-01-01T00:00:00Z", "description": "numbers", "reason": "they asked",
}  # fmt: skip
UNCHANGED = {name: value for name, value in NIGHTLY.items() if name not in ("name", "scope", "scopeId")}


async def create(world: World, who: str = "schedules token", **asked: Any) -> Any:
    answer = await world.post(who, "/api/schedules", asked)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_the_life_of_a_schedule(world: World) -> None:
    made = await create(world, **NIGHTLY)
    path = f"/api/schedules/{made['id']}"
    assert made == (await world.get("read token", path)).json()
    assert made["when"] == {"cron": "30 2 * * *", "zone": "Europe/Berlin", "gap": "next", "overlap": "first"}
    assert made["options"] == {"priority": 5, "max_retries": 2, "timeout": 33.0, "tags": ["a"], "key": None}
    for name in ("payload", "scope", "topic", "missed", "most", "within", "jitter", "end", "description"):
        assert made[name] == NIGHTLY[name], name
    told = {name: made[name] for name in ("state", "source", "revision", "words", "if_live", "scope_id", "recent")}
    assert told == {
        "state": "active", "source": "api", "revision": 1, "words": "At 02:30 every day (Europe/Berlin)",
        "if_live": "queue", "scope_id": "7", "recent": [],
    }  # fmt: skip
    assert len(made["next_times"]) == 5
    assert made["next_times"][0]["at"] == made["next_run_at"]
    assert made["next_times"][0]["local"][19:] in ("+01:00", "+02:00")

    # Run now: the job has the blanks filled, and the options. A second job waits its turn, and a third is not made.
    fired = [(await world.post("schedules token", f"{path}/run", {"reason": "test"})).json() for _ in range(3)]
    assert [(one["kind"], one["reason"], one["status"]) for one in fired] == [
        ("run_now", None, "pending"), ("run_now", None, "blocked"), ("run_now", "live", None),
    ]  # fmt: skip
    job = (await world.get("read token", f"/api/jobs/{fired[0]['job_id']}")).json()
    local = datetime.fromisoformat(job["fire_at"]).astimezone(ZoneInfo("Europe/Berlin"))
    assert job["payload"] == {"tenant": 7, "day": local.date().isoformat()}
    assert (job["schedule_id"], job["priority"], job["scope_id"], job["tags"]) == (made["id"], 5, "7", ["a"])
    await world.jobs.cancel(fired[1]["job_id"])
    history = (await world.get("read token", f"{path}/history")).json()["items"]
    assert [(one["job_id"], one["reason"], one["status"]) for one in history] == [
        (None, "live", None), (fired[1]["job_id"], None, "cancelled"), (fired[0]["job_id"], None, "pending"),
    ]  # fmt: skip
    older = await world.get("read token", f"{path}/history?limit=1&before={history[1]['fire_at']}")
    assert [one["job_id"] for one in older.json()["items"]] == [fired[0]["job_id"]]

    # A change needs the revision that the client has read.
    changed = await world.call("schedules token", "PUT", path, {**UNCHANGED, "when": {"every": 900}, "revision": 1})
    assert changed.status_code == 200, changed.text
    assert changed.json()["when"] == {"every": 900.0, "anchor": None}
    assert (changed.json()["revision"], changed.json()["words"]) == (2, "Every 15 minutes")
    stale = await world.call("schedules token", "PUT", path, {**UNCHANGED, "revision": 1})
    assert is_problem(stale, 409, "schedule_changed")["revision"] == 2

    paused = (await world.post("schedules token", f"{path}/pause", {"reason": "too much"})).json()
    assert (paused["state"], paused["pause_reason"], paused["revision"]) == ("paused", "too much", 3)
    assert paused["paused_by"].startswith("token")
    [listed] = (await world.get("read token", "/api/schedules?state=paused&topic=report&text=NIGHT")).json()["items"]
    assert listed == (await world.get("read token", path)).json()
    assert [one["status"] for one in listed["recent"]] == [None, "cancelled", "pending"]
    for query in ("state=active", "topic=other", "text=day", "absent=true", "scope_id=8"):
        assert (await world.get("read token", f"/api/schedules?{query}")).json()["items"] == [], query
    assert (await world.post("schedules token", f"{path}/resume")).json()["state"] == "active"

    is_problem(await world.call("read token", "DELETE", path), 403)
    assert (await world.call("schedules token", "DELETE", f"{path}?reason=over")).status_code == 204
    is_problem(await world.get("read token", path), 404, "schedule_not_found")
    actions = [one["action"] for one in (await world.get("superuser", "/api/audit")).json()["items"]]
    assert {"schedule.put", "schedule.run_now", "schedule.pause", "schedule.resume", "schedule.delete"} <= {*actions}


async def test_what_became_of_times_and_of_their_jobs(world: World) -> None:
    """This holds for jobs that are not there any more, and for many schedules at once."""
    at = datetime(2026, 3, 1, tzinfo=UTC)
    store = await world.store()
    made = [await create(world, name=f"s{n}", topic="t", when={"every": 3600}) for n in range(3)]

    def decide(schedule: Any, now: datetime) -> ScheduleChange:
        job = world.jobs.schedules.firing.job(schedule, at, UTC, "schedule")
        late = [Fire(fire_at=at + timedelta(hours=n), reason="missed", detail="nobody was there") for n in range(1, 40)]
        return ScheduleChange(schedule, [Fire(fire_at=at + timedelta(days=9), job=job), *late])

    for one in made[:2]:
        await store.change_schedules(Which(ids=(one["id"],)), decide)
    listed = (await world.get("read token", "/api/schedules")).json()["items"]
    assert [(one["name"], len(one["recent"])) for one in listed] == [("s0", 30), ("s1", 30), ("s2", 0)]
    newest = listed[0]["recent"][0]
    assert newest["status"] == "pending"
    await world.jobs.delete(newest["job_id"])
    shown = (await world.get("read token", f"/api/schedules/{made[0]['id']}")).json()
    assert shown["recent"][0] == {**newest, "status": None}
    history = (await world.get("read token", f"/api/schedules/{made[0]['id']}/history?limit=2")).json()["items"]
    assert [(one["reason"], one["detail"]) for one in history] == [(None, None), ("missed", "nobody was there")]


async def test_backfill_shows_first_and_makes_each_job_once(world: World) -> None:
    made = await create(world, name="hourly", topic="t", when={"cron": "0 * * * *"}, payload={"at": "{{fire_at}}"})
    path = f"/api/schedules/{made['id']}/backfill"
    asked = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T03:00:00Z"}
    shown = (await world.post("schedules token", path, asked)).json()["items"]
    assert [(one["job_id"], one["new"]) for one in shown] == [(None, True)] * 4
    assert (await world.place.counts())["_jobs"] == 1  # the job of the job token
    filled = (await world.post("schedules token", path, {**asked, "dryRun": False, "priority": 7})).json()["items"]
    assert [one["fire_at"] for one in filled] == [f"2026-01-01T0{n}:00:00Z" for n in range(4)]
    job = await world.job(filled[2]["job_id"])
    assert (job.payload, job.priority) == ({"at": "2026-01-01T02:00:00Z"}, 7)
    again = (await world.post("schedules token", path, {**asked, "dry_run": False})).json()["items"]
    assert again == [{**one, "new": False} for one in filled]


async def test_a_preview_tells_of_changes_of_the_clocks(sqlite_world: World) -> None:
    asked = {"when": {"cron": "30 2 * * *", "zone": "Europe/Berlin", "gap": "skip"}, "after": "2026-03-28T12:00:00Z"}
    told = (await sqlite_world.post("read-only superuser", "/api/schedules/preview", {**asked, "limit": 2})).json()
    assert told["words"] == "At 02:30 every day (Europe/Berlin)"
    assert [(one["local"], one["skipped"]) for one in told["times"]] == [
        ("2026-03-29T03:00:00+02:00", True), ("2026-03-30T02:30:00+02:00", False), ("2026-03-31T02:30:00+02:00", False),
    ]  # fmt: skip
    assert "does not exist" in told["times"][0]["note"]
    hourly = {"when": {"cron": "0 * * * *", "zone": "Europe/Berlin"}, "after": "2026-03-29T00:30:00Z", "limit": 1}
    [after_gap] = (await sqlite_world.post("read token", "/api/schedules/preview", hourly)).json()["times"]
    assert (after_gap["local"], after_gap["skipped"]) == ("2026-03-29T03:00:00+02:00", False)
    assert after_gap["note"].startswith("02:00 does not exist on 2026-03-29")
    made = await create(sqlite_world, name="gap", topic="t", when=asked["when"])
    path = f"/api/schedules/{made['id']}/preview?limit=2&after=2026-03-28T12:00:00Z"
    assert (await sqlite_world.get("read token", path)).json() == told


BAD: list[tuple[dict[str, Any], int, str, str]] = [
    ({"when": {"cron": "61 * * * *"}}, 400, "out_of_range", "when.cron"),
    ({"when": {"cron": "0 0 2 * * *"}}, 400, "bad_fields", "when.cron"),
    ({"when": {"cron": "0 0 30 2 *"}}, 400, "never", "when.cron"),
    ({"when": {"cron": "0 22-6 * * *"}}, 400, "backwards", "when.cron"),
    ({"when": {"cron": "@reboot"}}, 400, "unknown_name", "when.cron"),
    ({"when": {"cron": "0 2 * * *", "zone": "Europe/Berln"}}, 400, "unknown_zone", "when.zone"),
    ({"when": {"cron": "0 2 * * *", "zone": "../../etc/passwd"}}, 400, "bad_characters", "when.zone"),
    ({"when": {"cron": "0 2 * * *", "gap": "jump"}}, 400, "bad_value", "when.gap"),
    ({"when": {"cron": "0 2 * * *", "anchor": "2026-01-01T00:00:00Z"}}, 400, "unknown_field", "when.anchor"),
    ({"when": {"every": 60, "cron": "0 2 * * *"}}, 400, "bad_value", "when"),
    ({"when": {}}, 400, "bad_value", "when"),
    ({"when": "0 2 * * *"}, 400, "bad_value", "when"),
    ({"when": {"every": 0}}, 400, "out_of_range", "when.every"),
    ({"when": {"every": 60, "anchor": "2026-01-01T00:00:00"}}, 400, "naive_time", "when.anchor"),
    ({"when": {"every": 60, "colour": 1}}, 400, "unknown_field", "when.colour"),
    ({"topic": "never"}, 400, "not_schedulable", "topic"),
    ({"topic": "a b"}, 400, "bad_characters", "topic"),
    ({"topic": "strict", "payload": {"n": "x"}}, 400, "bad_payload", "payload.n"),
    ({"topic": "strict", "version": 9}, 400, "unknown_version", "version"),
    ({"payload": {"day": "{{today}}"}}, 400, "unknown_blank", "payload.day"),
    ({"name": "taken"}, 409, "schedule_exists", "name"),
    ({"name": " "}, 400, "bad_characters", "name"),
    ({"colour": 1}, 400, "unknown_field", "colour"),
    ({"start": "2031-01-01T00:00:00Z", "end": "2030-01-01T00:00:00Z"}, 400, "before_start", "end"),
    ({"end": "2020-01-01T00:00:00Z"}, 400, "never", "end"),
    ({"jitter": 90_000}, 400, "out_of_range", "jitter"),
    ({"missed": "some"}, 400, "bad_value", "missed"),
    ({"most": 0}, 400, "out_of_range", "most"),
    ({"key": "k", "if_live": "queue"}, 400, "has_key", "if_live"),
    ({"payload": {"password": "[redacted]"}}, 400, "redacted", "payload.password"),
]  # fmt: skip


async def test_what_is_refused_says_which_field_and_why(world: World) -> None:
    strict = {"type": "object", "properties": {"n": {"type": "integer"}}}
    await world.jobs.templates.create({"topic": "strict", "schema": strict})
    await world.jobs.templates.create({"topic": "never", "schedulable": False})
    taken = await create(world, name="taken", topic="t", when={"every": 60}, payload={"n": "x"})
    good = {"name": "new", "topic": "t", "when": {"every": 60}}
    for changes, status, code, field in BAD:
        answer = await world.post("schedules token", "/api/schedules", {**good, **changes})
        told = is_problem(answer, status, code)
        assert told["field"] == field, told
    path = f"/api/schedules/{taken['id']}"
    change = {"topic": "t", "when": {"every": 60}}
    for method, more, body, status, code, field in (
        ("PUT", "", change, 400, "missing", "revision"),
        ("PUT", "", {**change, "revision": 7}, 409, "schedule_changed", "revision"),
        ("PUT", "", {**change, "revision": 0}, 400, "out_of_range", "revision"),
        ("PUT", "", {**change, "revision": 1, "name": "x"}, 400, "bad_value", "name"),
        ("PUT", "", {**change, "revision": 1, "scope": "x"}, 400, "bad_value", "scope"),
        ("PUT", "", {**change, "revision": 1, "scopeId": "x"}, 400, "bad_value", "scope_id"),
        ("PUT", "", {**change, "revision": 1, "topic": "strict"}, 400, "missing", "payload"),
        ("POST", "/backfill", {"start": "2026-01-01T00:00:00Z"}, 400, "missing", "end"),
        ("POST", "/backfill", {"start": "2026-01-01T00:00:00Z", "end": "2090-01-01T00:00:00Z"}, 400, "in_the_future",
         "end"),
        ("POST", "/backfill", {"start": "2026-01-01T00:00:00Z", "end": "2025-01-01T00:00:00Z"}, 400, "before_start",
         "end"),
        ("POST", "/backfill", {"start": "2026-01-01T00:00:00Z", "end": "2026-02-01T00:00:00Z"}, 400, "too_many", "end"),
        ("GET", "/history?limit=0", None, 400, "out_of_range", "limit"),
        ("GET", "/preview?limit=201", None, 400, "out_of_range", "limit"),
    ):  # fmt: skip
        told = is_problem(await world.call("schedules token", method, f"{path}{more}", body), status, code)
        assert told["field"] == field, told
    assert (await world.get("read token", path)).json() == taken
    nowhere = "/api/schedules/0193fb1e-0000-7000-8000-000000000000"
    for method, more, body in (
        ("GET", "", None), ("PUT", "", {**change, "revision": 1}), ("DELETE", "", None), ("POST", "/run", {}),
        ("GET", "/history", None), ("GET", "/preview", None), ("POST", "/pause", {}), ("POST", "/resume", {}),
    ):  # fmt: skip
        is_problem(await world.call("superuser", method, f"{nowhere}{more}", body), 404, "schedule_not_found")


async def test_a_change_may_repeat_the_name_and_not_change_it(world: World) -> None:
    for name, scope in (("plain", {"scope": None, "scope_id": None}), ("of 7", {"scope": "tenant", "scope_id": "7"})):
        made = await create(world, name=name, topic="t", when={"every": 60}, **scope)
        path = f"/api/schedules/{made['id']}"
        same = {**scope, "name": name, "topic": "t", "when": {"every": 120}, "revision": 1}
        changed = await world.call("schedules token", "PUT", path, same)
        assert changed.status_code == 200, changed.text
        assert changed.json()["when"]["every"] == 120
        renamed = await world.call("schedules token", "PUT", path, {**same, "name": "another", "revision": 2})
        told = is_problem(renamed, 400, "bad_value")
        assert told["field"] == "name"
        assert f"it is '{name}'" in told["detail"]
        assert "create a schedule under the new name" in told["detail"]
        assert (await world.get("read token", path)).json()["revision"] == 2


async def test_a_change_never_meets_a_schedule_that_was_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the read and the write of a PUT, the old schedule is deleted and made again under its name."""
    old = await create(world, name="s", topic="t", when={"every": 60})
    read = world.jobs.schedules.get

    async def replaced_after_it(name: str, **scope: Any) -> Any:
        found = await read(name, **scope)
        await world.jobs.schedules.delete(name)
        await world.jobs.schedules.put("s", ("t", {"n": 1}), Every(900))
        return found

    monkeypatch.setattr(world.jobs.schedules, "get", replaced_after_it)
    body = {"topic": "t", "when": {"every": 5}, "revision": 1}
    answer = await world.call("schedules token", "PUT", f"/api/schedules/{old['id']}", body)
    is_problem(answer, 404, "schedule_not_found")
    monkeypatch.undo()
    now = await world.jobs.schedules.get("s")
    assert (now.when, now.payload, now.revision) == (Every(900), {"n": 1}, 1)


async def test_a_schedule_that_cant_be_read_can_be_deleted(world: World) -> None:
    token = await world.token("mine", ["schedules"], topics=["mail"])
    made = {topic: await create(world, name=topic, topic=topic, when={"every": 60}) for topic in ("mail", "other")}
    await world.place.fetch("UPDATE _jobs_schedules SET definition = '{}'")
    path = f"/api/schedules/{made['other']['id']}"
    is_problem(await world.call(token, "DELETE", path), 404, "schedule_not_found")
    assert (await world.call(token, "DELETE", f"/api/schedules/{made['mail']['id']}")).status_code == 204
    assert (await world.call("superuser", "DELETE", f"{path}?reason=of+tomorrow")).status_code == 204
    is_problem(await world.call("superuser", "DELETE", path), 404, "schedule_not_found")
    audit = (await world.get("superuser", "/api/audit")).json()["items"]
    deleted = [(one["reason"], one["data"]["name"]) for one in audit if one["action"] == "schedule.delete"]
    assert deleted == [("of tomorrow", "other"), (None, "mail")]


async def test_a_token_for_topics_sees_and_makes_schedules_of_these_alone(world: World) -> None:
    token = await world.token("mine", ["schedules"], topics=["mail", "bills"])
    made = [
        await create(world, name=f"{n:02}", topic=("mail", "other", "bills")[n % 3], when={"every": 60})
        for n in range(9)
    ]
    names, cursor = [], ""
    while True:
        page = (await world.get(token, f"/api/schedules?limit=2{cursor}")).json()
        names += [one["name"] for one in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert names == ["00", "02", "03", "05", "06", "08"]
    is_problem(await world.get(token, "/api/schedules?topic=other"), 403, "not_allowed")
    is_problem(await world.get(token, f"/api/schedules/{made[1]['id']}"), 404, "schedule_not_found")
    body = {"topic": "other", "when": {"every": 60}, "payload": {}, "revision": 1}
    is_problem(await world.call(token, "PUT", f"/api/schedules/{made[0]['id']}", body), 403, "not_allowed")

    # allowed_topics holds for everything that makes jobs.
    await world.change_settings(allowed_topics=["mail"])
    for method, path, asked in (
        ("POST", "/api/schedules", {"name": "x", "topic": "bills", "when": {"every": 60}}),
        ("PUT", f"/api/schedules/{made[0]['id']}", {**body, "topic": "bills"}),
        ("POST", f"/api/schedules/{made[2]['id']}/run", {}),
    ):
        is_problem(await world.call("schedules token", method, path, asked), 403, "not_allowed")
    assert (await world.post("schedules token", f"/api/schedules/{made[0]['id']}/run")).status_code == 200
    assert (await world.post("superuser", f"/api/schedules/{made[2]['id']}/run")).status_code == 200


async def test_secrets_of_a_payload_are_hidden_and_kept(world: World) -> None:
    payload = {"password": "hunter22", "n": 1, "note": "it is hunter22"}
    made = await create(world, name="secret", topic="t", when={"every": 60}, payload=payload, description="hunter22")
    path = f"/api/schedules/{made['id']}"
    for who in ("superuser", "read token"):
        for answer in (await world.get(who, path), await world.get(who, "/api/schedules")):
            assert "hunter22" not in answer.text
    assert (made["redacted"], made["payload"]["n"]) == (True, 1)
    shown = {**made["payload"], "n": 2}
    body = {"topic": "t", "when": {"every": 120}, "revision": 1}
    is_problem(await world.call("superuser", "PUT", path, {**body, "payload": shown}), 400, "redacted")
    assert (await world.call("superuser", "PUT", path, body)).json()["revision"] == 2
    assert (await world.jobs.schedules.get("secret")).payload == payload
    # The message about an invalid job doesn't tell the secrets either.
    strict = {"type": "object", "properties": {"note": {"enum": ["a"]}, "password": {"type": "integer"}}}
    await world.jobs.templates.create({"topic": "t", "schema": strict})
    answer = await world.post("superuser", f"{path}/run")
    is_problem(answer, 400, "bad_payload")
    assert "hunter22" not in answer.text


async def test_what_code_declares_is_changed_in_code(world: World) -> None:
    made = await create(world, name="declared", topic="t", when={"every": 60})

    def declare(schedule: Any, now: datetime) -> ScheduleChange:
        return ScheduleChange(replace(schedule, owner="shop.jobs"))

    await (await world.store()).change_schedules(Which(ids=(made["id"],)), declare)
    path = f"/api/schedules/{made['id']}"
    shown = (await world.get("read token", path)).json()
    assert (shown["source"], shown["owner"]) == ("code", "shop.jobs")
    for method, body in (("PUT", {"topic": "t", "when": {"every": 5}, "revision": 1}), ("DELETE", None)):
        told = is_problem(await world.call("superuser", method, path, body), 409, "schedule_exists")
        assert told["owner"] == "shop.jobs"
    assert (await world.post("superuser", f"{path}/pause")).json()["state"] == "paused"


@pytest.mark.parametrize("who", ["anonymous", "user A", "enqueue token", "worker token"])
async def test_schedules_are_for_operators(sqlite_world: World, who: str) -> None:
    for method, path, body in (("GET", "", None), ("POST", "", NIGHTLY), ("POST", "/preview", {"when": {"every": 9}})):
        answer = await sqlite_world.call(who, method, f"/api/schedules{path}", body)
        assert answer.status_code == (401 if who == "anonymous" else 403)
