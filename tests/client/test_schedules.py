"""`jobs.schedules` in virtual time, on both stores; and on callers' connections."""

import itertools
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from msgspec import Struct
from msgspec.structs import replace

import rowlock.client.enqueue
import rowlock.client.firing
import rowlock.zones
from rowlock import Context, Cron, Every, Jobs
from rowlock.core.cron import moments
from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import Completed
from rowlock.core.schedules import Fired, Schedule
from rowlock.errors import (
    InvalidInput,
    RowlockError,
    ScheduleChanged,
    ScheduleExists,
    ScheduleNotFound,
    TemplateDisabled,
)
from rowlock.stores.callers import SyncCaller
from rowlock.stores.schedules import _CASED
from rowlock.tasks import Recurring
from tests.client.conn_kinds import Kind
from tests.databases import KINDS, Databases
from tests.proof.schedule_world import fire_all, store_of, virtual_jobs
from tests.stores.harness import START, Harness, claim_by, harness_at, settlement

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
HOURLY = Cron("0 * * * *")
MAIL = ("mail", {"n": 1})


class World(Struct):
    harness: Harness
    jobs: Jobs

    @property
    def schedules(self) -> Any:
        return self.jobs.schedules

    async def pass_(self, time: timedelta) -> None:
        await self.harness.advance(time.total_seconds())

    async def fire(self) -> None:
        self.jobs.definitions.forget()
        await fire_all(self.jobs)

    async def told(self, name: str = "s") -> dict[float, str]:
        """Return, by hours after START, "job" or the reason why there is no job."""
        fired = await self.jobs.schedules.history(name, limit=1000)
        return {(one.fire_at - START) / HOUR: one.reason or "job" for one in reversed(fired)}

    async def made(self) -> list[Job]:
        rows = await self.harness.rows()
        return sorted((row.job for row in rows.values()), key=lambda job: (job.fire_at or START, job.id))

    async def end_all(self) -> None:
        """Complete every job that can run."""
        store = self.harness.store
        for _ in range(3):
            while jobs := (await store.claim(claim_by("w", limit=100))).jobs:
                await store.settle([settlement(job, Completed()) for job in jobs])


@pytest.fixture(params=KINDS)
async def world(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> AsyncIterator[World]:
    async with harness_at(request.param, databases, tmp_path, virtual=True) as harness, virtual_jobs(harness) as jobs:
        yield World(harness, jobs)


def at(hours: float) -> datetime:
    return START + hours * HOUR


# ── put, get, delete ──


async def test_put_makes_a_schedule_and_put_again_changes_it(world: World) -> None:
    new = await world.schedules.put("s", MAIL, HOURLY, reason="because", by="bob")
    assert (new.revision, new.next_run_at, new.upto, new.state, new.source) == (1, at(1), START, "active", "api")
    await world.pass_(MINUTE)
    assert await world.schedules.put("s", MAIL, HOURLY) == new  # nothing has changed
    changed = await world.schedules.put("s", MAIL, HOURLY, missed="all", jitter=timedelta(seconds=5))
    assert (changed.id, changed.revision, changed.missed, changed.jitter) == (new.id, 2, "all", 5.0)
    assert (changed.upto, changed.next_run_at, changed.updated) == (START, at(1), START + MINUTE)
    assert await world.schedules.get("s") == await world.schedules.get(new.id) == changed
    other = await world.schedules.put("s", MAIL, Every(90))
    assert (other.upto, other.next_run_at) == (START + MINUTE, START + timedelta(seconds=90))
    entries = [(entry.by, entry.action, entry.reason) for entry in await world.harness.audit()]
    assert entries == [("bob", "schedule.put", "because"), *[("ann", "schedule.put", None)] * 2]
    before_after = (await world.harness.audit())[1].data["changed"]
    assert before_after == {"jitter": {"before": None, "after": 5.0}, "missed": {"before": None, "after": "all"}}


async def test_revisions(world: World) -> None:
    put = world.schedules.put
    with pytest.raises(ScheduleNotFound):
        await put("s", MAIL, HOURLY, revision=1)
    await put("s", MAIL, HOURLY, revision=0)
    with pytest.raises(ScheduleExists):
        await put("s", MAIL, HOURLY, revision=0)
    await put("s", MAIL, Every(60), revision=1)
    with pytest.raises(ScheduleChanged) as refused:
        await put("s", MAIL, HOURLY, revision=1)
    assert (refused.value.revision, refused.value.expected) == (2, 1)
    assert (await world.schedules.pause("s")).revision == 3
    assert (await world.schedules.resume("s")).revision == 4
    await world.pass_(5 * MINUTE)
    await world.fire()
    assert (await world.schedules.get("s")).revision == 4  # a fire does not change the revision
    assert (await world.schedules.get("s")).when == Every(60)


async def test_a_put_that_means_a_schedule_which_was_made_again_changes_nothing(world: World) -> None:
    """The deleted schedule and the new one have the same name and the same revision."""
    put = world.schedules.put
    old = await put("s", MAIL, HOURLY)
    assert (await put("s", MAIL, Every(60), revision=1, schedule_id=old.id)).revision == 2
    await world.schedules.delete("s")
    with pytest.raises(ScheduleNotFound):  # the put makes no new schedule either
        await put("s", MAIL, HOURLY, schedule_id=old.id)
    new = await put("s", MAIL, Every(120))
    with pytest.raises(ScheduleNotFound):
        await put("s", MAIL, HOURLY, revision=1, schedule_id=old.id)
    assert await world.schedules.get("s") == new
    with pytest.raises(InvalidInput) as refused:
        await put("s", MAIL, HOURLY, schedule_id="s")
    assert refused.value.field == "schedule_id"


async def test_scopes_are_part_of_the_name(world: World) -> None:
    draft = world.jobs.register("report", lambda n: None).draft
    for scope_id in ("1", "2"):
        job = replace(draft(n=1), options={"scope": "tenant", "scope_id": scope_id})
        await world.schedules.put("s", job, HOURLY)
    await world.schedules.put("s", MAIL, HOURLY)
    with pytest.raises(ScheduleNotFound):
        await world.schedules.get("s", scope="tenant")
    await world.schedules.delete("s", scope="tenant", scope_id="1")
    left = {(one.scope, one.scope_id) for one in (await world.schedules.list()).items}
    assert left == {(None, None), ("tenant", "2")}
    await world.pass_(HOUR)
    await world.fire()
    assert {(job.topic, job.scope_id) for job in await world.made()} == {("mail", None), ("report", "2")}


async def test_delete_answers_with_what_it_was_and_keeps_the_jobs(world: World) -> None:
    await world.schedules.put("s", MAIL, HOURLY)
    await world.pass_(HOUR)
    await world.fire()
    was = await world.schedules.get("s")
    assert await world.schedules.delete("s", reason="done") == was
    for verb in ("get", "delete", "pause", "resume", "run_now", "history"):
        with pytest.raises(ScheduleNotFound):
            await getattr(world.schedules, verb)("s")
        with pytest.raises(ScheduleNotFound):
            await getattr(world.schedules, verb)(was.id)
    [job] = await world.made()
    assert job.schedule_id == was.id
    again = await world.schedules.put("s", MAIL, HOURLY)
    assert again.id != was.id
    assert await world.schedules.history("s") == []


async def test_a_name_that_looks_like_an_id_is_refused(world: World) -> None:
    """Every verb would take the name for an id, and never find the schedule."""
    for name in ("0193fb1e-0000-7000-8000-000000000000", "0193fb1e000070008000000000000000"):
        with pytest.raises(InvalidInput) as refused:
            await world.schedules.put(name, MAIL, HOURLY)
        assert refused.value.field == "name"


async def test_pages_of_the_list(world: World) -> None:
    names = sorted(f"s {n} ü" for n in range(12))
    for name in names:
        await world.schedules.put(name, MAIL, HOURLY)
    for limit in (1, 5, 12, 50):
        seen, cursor = list[str](), None
        while True:
            page = await world.schedules.list(limit=limit, cursor=cursor)
            seen += [one.name for one in page.items]
            cursor = page.next
            if cursor is None:
                break
        assert seen == names
    await world.schedules.pause(names[3])
    assert [one.name for one in (await world.schedules.list(state="paused")).items] == [names[3]]


# ── Bad input ──

LATER = datetime(2027, 1, 1, tzinfo=UTC)
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no name": ({"name": ""}, "name", "1 to 128"),
    "a long name": ({"name": "x" * 129}, "name", "1 to 128"),
    "a space": ({"name": " s"}, "name", "space"),
    "a line": ({"name": "a\nb"}, "name", "printed"),
    "a NUL": ({"name": "a\0b"}, "name", "NUL"),
    "a number": ({"name": 5}, "name", "string"),
    "an unknown zone": ({"when": Cron("0 0 * * *", "Europe/Brelin")}, "when.zone", "Europe/Berlin"),
    "a bad expression": ({"when": Cron("61 * * * *")}, "when.expression", "0 to 59"),
    "seconds": ({"when": Cron("* * * * * *")}, "when.expression", "Every"),
    "too often": ({"when": Every(0.5)}, "when.seconds", "1 to"),
    "no when": ({"when": "0 * * * *"}, "when", "Cron("),
    "never": ({"when": Cron("0 0 30 2 *")}, "when.expression", "never"),
    "a naive start": ({"start": datetime(2026, 1, 1)}, "start", "zone"),  # noqa: DTZ001
    "end before start": ({"start": LATER, "end": START}, "end", "before start"),
    "end in the past": ({"end": START - HOUR}, "end", "never fire"),
    "missed": ({"missed": "some"}, "missed", "last, skip, all"),
    "if_live": ({"if_live": "wait"}, "if_live", "allow, reject, queue, replace"),
    "most": ({"most": 0}, "most", "1"),
    "many": ({"most": 1001}, "most", "1000"),
    "within": ({"within": -1}, "within", ""),
    "jitter": ({"jitter": 86_401}, "jitter", "a day"),
    "description": ({"description": "x" * 2001}, "description", "2000"),
    "revision": ({"revision": -1}, "revision", ""),
    "a bad topic": ({"job": ("mail send", {})}, "topic", "may only hold"),
    "a bad payload": ({"job": ("mail", {"a": {1, 2}})}, "payload.a", ""),
    "a blank": ({"job": ("mail", {"a": ["x {{fire}}"]})}, "payload.a[0]", "{{fire_at}}"),
    "a blank in the key": ({"job": {"topic": "mail", "key": "{{fire}}"}}, "key", "{{fire_at}}"),
    "a run_at": ({"job": {"topic": "mail", "run_at": START}}, "run_at", "priority"),
    "a delay": ({"job": {"topic": "mail", "delay": 5}}, "delay", "priority"),
    "an id": ({"job": {"topic": "mail", "id": "0193fb1e-0000-7000-8000-000000000000"}}, "id", "priority"),
    "if_live of the job": ({"job": {"topic": "mail", "key": "k", "if_live": "queue"}}, "if_live", "put"),
    "two keys": ({"job": {"topic": "mail", "key": "k"}, "if_live": "queue"}, "if_live", "allow"),
    "no job": ({"job": 5}, "job", ""),
}


@pytest.mark.parametrize("what", BAD)
async def test_bad_input_is_refused_by_name(world: World, what: str) -> None:
    given, field, text = BAD[what]
    usual = {"name": "s", "job": MAIL, "when": HOURLY}
    with pytest.raises(InvalidInput) as refused:
        await world.schedules.put(**usual | given)
    assert refused.value.field == field
    assert text in refused.value.problem
    assert (await world.schedules.list()).items == []


@pytest.mark.parametrize(
    "call",
    [
        lambda one: one.list(limit=0),
        lambda one: one.list(limit=1001),
        lambda one: one.list(state="gone"),
        lambda one: one.list(cursor="x"),
        lambda one: one.list(cursor=5),
        lambda one: one.preview("s", start=START),
        lambda one: one.preview("s", end=START),
        lambda one: one.list(topic="a b"),
        lambda one: one.preview(HOURLY, limit=0),
        lambda one: one.preview(Cron("x")),
        lambda one: one.preview(HOURLY, after=datetime(2026, 1, 1)),  # noqa: DTZ001
        lambda one: one.history("s", limit=0),
        lambda one: one.histories(["x"]),
        lambda one: one.backfill("s", START, START - HOUR),
        lambda one: one.backfill("s", START, START + HOUR),
        lambda one: one.backfill("s", START - HOUR, START, priority="never"),
    ],
)
async def test_bad_questions(world: World, call: Callable[[Any], Awaitable[Any]]) -> None:
    await world.schedules.put("s", MAIL, HOURLY)
    with pytest.raises(InvalidInput):
        await call(world.schedules)


@pytest.mark.parametrize("bad", [{"text": "a\0"}, {"scope": "\ud800"}, {"scope_id": 5}, {"text": 5}])
async def test_filters_that_no_store_can_take(world: World, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await world.schedules.list(**bad)


# ── Times ──


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ({}, {1: "missed", 2: "missed", 3: "job"}),
        ({"missed": "skip"}, {1: "missed", 2: "missed", 3: "missed"}),
        ({"missed": "all"}, {1: "job", 2: "job", 3: "job"}),
        ({"missed": "all", "most": 2}, {1: "missed", 2: "job", 3: "job"}),
        ({"missed": "all", "within": 5399}, {1: "missed", 2: "missed", 3: "job"}),
        ({"missed": "all", "within": timedelta(minutes=149)}, {1: "missed", 2: "job", 3: "job"}),
    ],
)
async def test_missed_times(world: World, missed: Any, expected: dict[float, str]) -> None:
    await world.schedules.put("s", MAIL, HOURLY, **missed)
    await world.pass_(3.5 * HOUR)
    await world.fire()
    assert await world.told() == expected
    await world.pass_(HOUR / 2 + timedelta(seconds=60))  # on time, or nearly
    await world.fire()
    assert (await world.told())[4] == "job"


async def test_after_a_long_outage_the_newest_times_are_recorded(world: World) -> None:
    await world.schedules.put("s", MAIL, Every(1))
    await world.pass_(timedelta(hours=5))
    await world.fire()
    store = await store_of(world.jobs)
    one = await world.schedules.get("s")
    fires = (await store.fires([one.id], limit=20_000))[one.id]
    assert len(fires) == 10_000
    assert fires[0].job_id
    assert fires[0].fire_at == at(5)
    assert fires[-1].fire_at == at(5) - timedelta(seconds=9_999)
    assert fires[-1].detail == f"so were all earlier ones since {START.isoformat()}"
    assert {fired.reason for fired in fires[1:]} == {"missed"}


async def test_pauses_are_recorded_and_never_caught_up(world: World) -> None:
    await world.schedules.put("s", MAIL, HOURLY, missed="all")
    await world.pass_(1.5 * HOUR)
    await world.fire()
    paused = await world.schedules.pause("s", reason="too loud", by="bob")
    assert (paused.state, paused.paused_by, paused.pause_reason) == ("paused", "bob", "too loud")
    await world.pass_(HOUR)
    await world.fire()
    await world.pass_(2 * HOUR)  # no server or worker fires schedules
    again = await world.schedules.pause("s", by="eve")
    assert (again.revision, again.paused_by) == (paused.revision, "bob")
    resumed = await world.schedules.resume("s")
    assert (resumed.state, resumed.paused_by, resumed.pause_reason) == ("active", None, None)
    await world.pass_(HOUR)
    await world.fire()
    assert await world.told() == {1: "job", 2: "paused", 3: "paused", 4: "paused", 5: "job"}
    assert [entry.action for entry in await world.harness.audit()] == [
        "schedule.put",
        "schedule.pause",
        "schedule.resume",
    ]


async def test_a_pause_first_decides_what_came_before_it(world: World) -> None:
    """No worker has fired these times yet. Their outcome must not depend on whether the pause or a fire comes first."""
    await world.schedules.put("s", MAIL, HOURLY, missed="all")
    await world.pass_(2.5 * HOUR)
    await world.schedules.pause("s")
    assert len(await world.made()) == 2
    await world.pass_(HOUR)
    await world.fire()
    await world.schedules.pause("s")
    assert await world.told() == {1: "job", 2: "job", 3: "paused"}


async def test_a_key_may_have_blanks(world: World) -> None:
    await world.schedules.put("s", {"topic": "mail", "key": "on {{fire_date}}"}, HOURLY, missed="all")
    await world.pass_(2 * HOUR)
    await world.fire()
    assert [job.key for job in await world.made()] == [f"on {START.date()}"]
    assert await world.told() == {1: "job", 2: "live"}


async def test_times_by_an_old_plan_are_missed_when_the_plan_changes(world: World) -> None:
    await world.schedules.put("s", MAIL, HOURLY, missed="all")
    await world.pass_(2.25 * HOUR)
    await world.schedules.put("s", MAIL, Every(1800), missed="all")
    await world.pass_(HOUR / 2)
    await world.fire()
    assert await world.told() == {1: "missed", 2: "missed", 2.5: "job"}


async def test_many_times_by_an_old_plan_are_all_on_record(world: World) -> None:
    await world.schedules.put("s", MAIL, Every(10), missed="all")
    await world.pass_(3 * HOUR)
    await world.schedules.put("s", MAIL, HOURLY)
    store, one = await store_of(world.jobs), await world.schedules.get("s")
    fires = (await store.fires([one.id], limit=20_000))[one.id]
    assert len(fires) == 1080


@pytest.mark.parametrize(("first", "then"), [("queue", "reject"), ("reject", "queue")])
async def test_a_changed_if_live_knows_the_job_that_is_live(world: World, first: Any, then: Any) -> None:
    await world.schedules.put("s", MAIL, HOURLY, if_live=first)
    await world.pass_(HOUR)
    await world.fire()
    await world.schedules.put("s", MAIL, HOURLY, if_live=then)
    await world.pass_(HOUR)
    await world.fire()
    running = (await world.harness.claim(limit=10)).jobs
    assert len(running) == 1


async def test_jitter_is_the_same_in_every_process(world: World) -> None:
    await world.schedules.put("s", MAIL, HOURLY, missed="all", jitter=600)
    await world.pass_(20 * HOUR)
    await world.fire()
    made = await world.made()
    delays = [(job.run_at - job.fire_at).total_seconds() for job in made if job.fire_at]
    assert len(delays) == 20
    assert all(0 <= delay < 600 for delay in delays)
    assert len(set(delays)) == 20
    assert (made[0].payload, made[0].template_version) == ({"n": 1}, 0)


async def test_a_schedule_ends(world: World) -> None:
    await world.schedules.put("s", MAIL, HOURLY, start=at(1.5), end=at(3), missed="all")
    await world.pass_(9 * HOUR)
    await world.fire()
    assert await world.told() == {2: "job", 3: "job"}
    over = await world.schedules.get("s")
    assert (over.state, over.next_run_at) == ("over", None)
    assert await (await store_of(world.jobs)).next_fire() is None


# ── Payloads ──


async def test_blanks_are_filled_in(world: World) -> None:
    payload = {
        "a": ["{{fire_at}} {{ schedule }}", {"{{scope}}": "{{scope}}/{{scope_id}}"}],
        "b": "\\{{fire_at}} {{fire_date}} {fire_at} {{fire_at_local}}",
        "c": 5,
    }
    draft = {"topic": "mail", "payload": payload, "scope": "tenant", "scope_id": "7"}
    await world.schedules.put("s", draft, Cron("30 0 * * *", "Asia/Kolkata"))
    await world.pass_(timedelta(days=1))
    await world.fire()
    [job] = await world.made()
    assert job.fire_at == datetime(2026, 1, 1, 19, tzinfo=UTC)
    assert job.payload == {
        "a": ["2026-01-01T19:00:00Z s", {"{{scope}}": "tenant/7"}],
        "b": "{{fire_at}} 2026-01-02 {fire_at} 2026-01-02T00:30:00+05:30",
        "c": 5,
    }


# ── run_now, backfill ──


async def test_run_now_stands_beside_the_times(world: World) -> None:
    await world.schedules.put("s", MAIL, HOURLY, if_live="reject")
    await world.schedules.pause("s")
    await world.pass_(MINUTE)
    fired = await world.schedules.run_now("s", reason="I can't wait")
    assert (fired.kind, fired.fire_at, fired.reason) == ("run_now", START + MINUTE, None)
    await world.pass_(MINUTE)
    live = await world.schedules.run_now("s")
    assert (live.job_id, live.reason) == (None, "live")
    [job] = await world.made()
    assert (job.fire_at, job.run_at, job.status) == (START + MINUTE, START + MINUTE, Status.PENDING)
    one = await world.schedules.get("s")
    assert (one.last_run_at, one.last_job_id, one.next_run_at) == (START + MINUTE, job.id, at(1))
    world.jobs.register("mail", lambda n: None)
    await world.jobs.templates.publish()
    await world.jobs.templates.disable("mail")
    with pytest.raises(TemplateDisabled):
        await world.schedules.run_now("s")


async def test_run_now_twice_in_one_microsecond(world: World) -> None:
    """This may happen if the clock is set back."""
    await world.schedules.put("s", MAIL, HOURLY)
    first, second = [await world.schedules.run_now("s") for _ in range(2)]
    assert first.job_id
    assert second.job_id


async def test_backfill(world: World) -> None:
    await world.schedules.put("s", MAIL, HOURLY, missed="skip", start=at(1), if_live="reject")
    await world.pass_(3.5 * HOUR)
    await world.fire()
    assert await world.told() == {1: "missed", 2: "missed", 3: "missed"}
    dry = await world.schedules.backfill("s", at(-2), at(2), dry_run=True)
    assert [(one.fire_at, one.job_id, one.new) for one in dry] == [(at(n), None, True) for n in (-2, -1, 0, 1, 2)]
    assert await world.made() == []
    done = await world.schedules.backfill("s", at(-2), at(2))
    assert [(one.fire_at, one.job_id is not None, one.new) for one in done] == [
        (at(n), True, True) for n in (-2, -1, 0, 1, 2)
    ]
    again = await world.schedules.backfill("s", at(1.5), at(3.5))
    assert [(one.fire_at, one.new) for one in again] == [(at(2), False), (at(3), True)]
    assert again[0].job_id == done[-1].job_id
    made = await world.made()
    assert [(job.fire_at, job.run_at, job.priority, job.key) for job in made] == [
        (at(n), at(n), 30, None) for n in (-2, -1, 0, 1, 2, 3)
    ]
    claimed = (await world.harness.claim(limit=10)).jobs
    assert [job.fire_at for job in claimed] == [at(n) for n in (-2, -1, 0, 1, 2, 3)]
    assert (await world.schedules.get("s")).last_run_at is None


async def test_a_backfill_and_a_fire_meet(world: World) -> None:
    """Due times that a backfill has taken make no second job."""
    await world.schedules.put("s", MAIL, HOURLY, missed="all")
    await world.pass_(3.5 * HOUR)
    await world.schedules.backfill("s", at(2), at(3))
    await world.fire()
    assert await world.told() == {1: "job", 2: "job", 3: "job"}
    assert [(fired.kind, fired.fire_at) for fired in await world.schedules.history("s")] == [
        ("backfill", at(3)),
        ("backfill", at(2)),
        ("schedule", at(1)),
    ]
    assert len(await world.made()) == 3


async def test_a_backfill_has_its_limit(world: World) -> None:
    await world.schedules.put("s", MAIL, Every(1))
    assert len(await world.schedules.backfill("s", START - timedelta(seconds=999), START)) == 1000
    with pytest.raises(InvalidInput, match="1000"):
        await world.schedules.backfill("s", START - timedelta(seconds=1000), START)


# ── preview ──


async def test_preview_tells_of_changes_of_the_clocks(world: World) -> None:
    after = datetime(2026, 3, 28, tzinfo=UTC)
    berlin = Cron("30 2 * * *", "Europe/Berlin")
    shown = await world.schedules.preview(berlin, after=after, limit=2)
    assert shown.words == "At 02:30 every day (Europe/Berlin)"
    assert [one.at for one in shown.times] == [
        datetime(2026, 3, 28, 1, 30, tzinfo=UTC),
        datetime(2026, 3, 29, 1, tzinfo=UTC),
    ]
    assert "does not exist" in (shown.times[1].note or "")
    skipped = await world.schedules.preview(replace(berlin, gap="skip"), after=after, limit=2)
    assert [(one.at.day, one.skipped) for one in skipped.times] == [(28, False), (29, True), (30, False)]
    twice = await world.schedules.preview(
        replace(berlin, overlap="both"), after=datetime(2026, 10, 24, 12, tzinfo=UTC), limit=2
    )
    assert [one.at.hour for one in twice.times] == [0, 1]
    assert all("twice" in (one.note or "") for one in twice.times)
    await world.schedules.put("s", MAIL, berlin, end=datetime(2026, 3, 29, 12, tzinfo=UTC))
    stored = await world.schedules.preview("s", after=after, limit=9)
    assert stored.times == shown.times
    assert (await world.schedules.preview("s", after=datetime(2026, 4, 1, tzinfo=UTC))).times == []


GAP = "does not exist on 2027-03-28 in Europe/Berlin (clocks go forward): left out"
TWICE = "comes twice on 2026-10-25 in Europe/Berlin (clocks go back)"


@pytest.mark.parametrize(
    ("expression", "after", "notes"),
    [
        ("0 * * * *", "2027-03-27T23:30", {0: None, 1: f"02:00 {GAP}", 2: None}),
        ("0 */2 * * *", "2027-03-27T22:30", {23: None, 2: f"02:00 {GAP}", 4: None}),
        ("*/30 * * * *", "2027-03-28T00:45", {1: f"02:00 and 02:30 {GAP.replace('does', 'do')}", 1.5: None}),
        ("0 */2 * * *", "2026-10-24T22:30", {0: f"02:00 {TWICE}: the first one", 1: f"02:00 {TWICE}: the second one"}),
        ("30 * * * *", "2026-10-25T00:00", {0.5: f"02:30 {TWICE}: the first one",
                                            1.5: f"02:30 {TWICE}: the second one", 2.5: None}),
        ("0 */3 * * *", "2027-03-27T22:30", {23: None, 1: None}),  # 02:00 is not a time of this schedule
        ("0 */4 27 3 *", "2027-03-27T18:30", {19: None, 22: None}),
        ("30 */2 L 3 *", "2027-03-28T00:45", {22.5: None}),
        ("0 * * * *", "2026-12-01T00:30", {1: None, 2: None}),
    ],
)  # fmt: skip
async def test_previews_by_the_hour_tell_of_changes_of_the_clocks(
    world: World, expression: str, after: str, notes: dict[float, str | None]
) -> None:
    """The times of the preview are the times that fire."""
    cron, since = Cron(expression, "Europe/Berlin"), datetime.fromisoformat(after).replace(tzinfo=UTC)
    shown = (await world.schedules.preview(cron, after=since, limit=len(notes))).times
    fires = itertools.islice(moments(cron, since, ZoneInfo("Europe/Berlin")), len(notes))
    assert [one.at for one in shown] == [one.at for one in fires]
    assert {one.at.hour + one.at.minute / 60: one.note for one in shown} == notes
    assert not any(one.skipped for one in shown)


# ── Schedules that can't be fired ──


async def test_a_template_that_is_disabled(world: World) -> None:
    world.jobs.register("mail", lambda n: None)
    await world.jobs.templates.publish()
    await world.schedules.put("s", MAIL, HOURLY, missed="all")
    await world.schedules.put("other", ("free", {}), HOURLY, missed="all")
    await world.jobs.templates.disable("mail")
    await world.pass_(1.5 * HOUR)
    await world.fire()
    await world.jobs.templates.enable("mail")
    await world.pass_(HOUR)
    await world.fire()
    assert await world.told() == {1: "disabled", 2: "job"}
    assert await world.told("other") == {1: "job", 2: "job"}


async def test_a_payload_that_no_longer_fits(world: World) -> None:
    world.jobs.register("mail", lambda n: None)
    await world.jobs.templates.publish()
    await world.schedules.put("s", MAIL, HOURLY)
    async with virtual_jobs(world.harness) as newer:

        def takes_another(m: int) -> None: ...

        newer.register("mail", takes_another, version=1)
        await newer.templates.publish()
        await world.pass_(HOUR)
        await fire_all(newer)
        [fired] = await newer.schedules.history("s")
        assert (fired.reason, fired.job_id) == ("invalid", None)
        assert fired.detail
        with pytest.raises(InvalidInput):
            await newer.schedules.put("t", MAIL, HOURLY)
        await newer.schedules.put("s", ("mail", {"m": 2}), HOURLY)
        await world.pass_(HOUR)
        await fire_all(newer)
    assert await world.told() == {1: "invalid", 2: "job"}


async def test_a_topic_that_may_not_be_scheduled(world: World) -> None:
    await world.schedules.put("s", MAIL, HOURLY)
    world.jobs.register("mail", lambda n: None, schedulable=False)
    await world.jobs.templates.publish()
    with pytest.raises(InvalidInput, match="can't be scheduled"):
        await world.schedules.put("t", MAIL, HOURLY)
    await world.pass_(HOUR)
    await world.fire()
    assert await world.told() == {1: "invalid"}


async def test_a_topic_with_its_own_key_takes_allow_only(world: World) -> None:
    world.jobs.register("mail", lambda n: None, key=["n"])
    await world.jobs.templates.publish()
    with pytest.raises(InvalidInput) as refused:
        await world.schedules.put("s", MAIL, HOURLY, if_live="queue")
    assert refused.value.field == "if_live"
    await world.schedules.put("s", MAIL, HOURLY, missed="all")
    await world.pass_(2.5 * HOUR)
    await world.fire()
    assert await world.told() == {1: "job", 2: "live"}  # by the key of the topic


async def test_a_key_that_is_taken_once_and_for_ever(world: World) -> None:
    """The refused time is recorded, and the other schedules of the batch fire."""

    async def daily(ctx: Context, day: str) -> None: ...

    world.jobs.register("daily", daily, key=["day"], once=True)
    await world.jobs.templates.publish()
    await world.schedules.put("bad", ("daily", {"day": "always"}), HOURLY)
    for n in range(5):
        await world.schedules.put(f"s{n}", MAIL, HOURLY)
    await world.schedules.put("late", ("daily", {"day": "{{fire_date}}"}), HOURLY, missed="all")
    await world.pass_(HOUR)
    await world.fire()
    await world.pass_(HOUR)
    await world.fire()
    assert await world.told("bad") == {1: "job", 2: "invalid"}
    for n in range(5):
        assert await world.told(f"s{n}") == {1: "job", 2: "job"}
    assert await world.told("late") == {1: "job", 2: "invalid"}


async def test_one_time_that_is_refused_costs_no_other_time_its_job(world: World) -> None:
    """After an outage, the time whose key is taken is recorded as invalid. The other due time gets its job."""

    async def daily(ctx: Context, day: str) -> None: ...

    world.jobs.register("daily", daily, key=["day"], once=True)
    await world.jobs.templates.publish()
    await world.schedules.put("s", ("daily", {"day": "{{fire_date}}"}), Cron("0 */6 * * *"), missed="all")
    await world.pass_(6 * HOUR)
    await world.fire()
    await world.pass_(12 * HOUR)
    await world.fire()
    assert await world.told() == {6: "job", 12: "job", 18: "invalid"}


# ── Schedules in code ──


async def report(ctx: Context, tenant: int = 1) -> None: ...


def declare(jobs: Jobs, *when: Any, **policy: Any) -> None:
    jobs.register("report", report, schedule=list(when) or None, **policy)
    jobs.schedules.owner = "shop.jobs"


async def deployed(world: World, *when: Any, **policy: Any) -> list[Schedule]:
    """Publish the templates and schedules of a new release. Return the schedules that have changed."""
    async with virtual_jobs(world.harness, by="deploy") as jobs:
        declare(jobs, *when, **policy)
        await jobs.templates.publish()
        return list(await jobs.schedules.publish())


async def test_code_publishes_its_schedules(world: World) -> None:
    daily = Recurring(when=Cron("0 9 * * *", "Asia/Taipei"), name="daily", payload={"tenant": 7}, missed="all")
    [hourly, nightly] = await deployed(world, HOURLY, daily)
    assert (hourly.name, hourly.owner, hourly.source, hourly.payload) == ("report", "shop.jobs", "code", {})
    assert (nightly.name, nightly.payload, nightly.missed) == ("daily", {"tenant": 7}, "all")
    assert await deployed(world, HOURLY, daily) == []  # nothing has changed
    [changed] = await deployed(world, Every(600), daily)
    assert (changed.id, changed.when, changed.revision) == (hourly.id, Every(600), 2)
    for verb in (world.schedules.delete("daily"), world.schedules.put("daily", MAIL, HOURLY)):
        with pytest.raises(ScheduleExists, match=r"shop\.jobs"):
            await verb
    await world.pass_(HOUR)
    await world.fire()
    made = await world.made()
    assert {(job.topic, job.payload.get("tenant")) for job in made} == {("report", None)}


@pytest.mark.parametrize(
    "schedule", ["0 * * * *", Cron("x"), Recurring(when=HOURLY, payload={"who": 1}), [HOURLY, Every(60)]]
)
def test_bad_schedules_in_code(schedule: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        Jobs("sqlite://").register("report", report, schedule=schedule)
    assert refused.value.field.startswith("schedule")


async def test_a_schedule_that_the_code_has_lost_is_paused_until_it_is_back(world: World) -> None:
    daily = Recurring(when=HOURLY, name="daily", missed="all")
    await deployed(world, HOURLY, daily)
    await world.pass_(1.5 * HOUR)
    await world.fire()
    [gone] = await deployed(world, HOURLY)
    assert (gone.name, gone.absent, gone.state, gone.paused_by) == ("daily", True, "paused", "deploy")
    assert await deployed(world, HOURLY) == []
    assert [one.name for one in (await world.schedules.list(absent=True)).items] == ["daily"]
    await world.pass_(HOUR)
    await world.fire()
    [back] = await deployed(world, HOURLY, daily)
    assert (back.id, back.absent, back.state, back.paused_by) == (gone.id, False, "active", None)
    await world.pass_(HOUR)
    await world.fire()
    assert await world.told("daily") == {1: "job", 2: "paused", 3: "job"}
    assert await world.told("report") == {1: "job", 2: "job", 3: "job"}
    [gone] = await deployed(world, HOURLY)
    deleted = await world.schedules.delete("daily")  # no code declares it
    assert deleted is not None
    assert deleted.id == gone.id


async def test_an_operators_pause_outlives_every_deploy(world: World) -> None:
    daily = Recurring(when=HOURLY, name="daily")
    await deployed(world, HOURLY, daily)
    await world.schedules.pause("daily", by="bob", reason="too loud")
    await deployed(world, HOURLY, replace(daily, when=Every(60)))
    for when in ((HOURLY,), (HOURLY, daily)):
        await deployed(world, *when)
        found = await world.schedules.get("daily")
        assert (found.state, found.paused_by, found.pause_reason) == ("paused", "bob", "too loud")
        assert found.absent == (len(when) == 1)


async def test_a_schedule_that_code_has_lost_can_be_taken_over(world: World) -> None:
    await deployed(world, HOURLY, Recurring(when=HOURLY, name="daily"))
    await deployed(world, HOURLY)
    mine = await world.schedules.put("daily", ("report", {}), HOURLY)
    assert (mine.owner, mine.absent, mine.state) == (None, False, "active")
    with pytest.raises(ScheduleExists):
        await deployed(world, HOURLY, Recurring(when=HOURLY, name="daily"))


async def test_the_name_of_a_declared_schedule_is_taken(world: World) -> None:
    mine = await world.schedules.put("report", MAIL, HOURLY)
    with pytest.raises(ScheduleExists, match="another name"):
        await deployed(world, HOURLY)
    assert await world.schedules.get("report") == mine


# ── Time zone data ──


async def test_newer_time_zone_data_finds_the_next_times_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await world.schedules.put("s", MAIL, Cron("0 9 * * *", "Europe/Berlin"))
    due = await world.schedules.put("due", MAIL, HOURLY)
    store = await store_of(world.jobs)
    assert await world.schedules.firing.find_times_anew(store) == 0
    wrong = "next_run_at = next_run_at + interval '1 hour'" if world.harness.kind == "postgres" else ""
    wrong = wrong or "next_run_at = next_run_at + 3600000000"
    await world.harness.execute(f"UPDATE _jobs_schedules SET {wrong} WHERE name = 's'")  # as older data had it
    await world.pass_(HOUR)
    monkeypatch.setattr(rowlock.client.firing, "zone_data", lambda: "2099z")
    assert await world.schedules.firing.find_times_anew(store) == 1
    assert await world.schedules.firing.find_times_anew(store) == 0
    found = await world.schedules.get("s")
    assert (found.next_run_at, found.zone_data, found.revision) == (one.next_run_at, "2099z", one.revision)
    assert (await world.schedules.get("due")).zone_data == due.zone_data  # it is due, and fires as announced
    await world.fire()
    assert (await world.schedules.get("due")).zone_data == "2099z"
    assert await world.told("due") == {1: "job"}
    monkeypatch.setattr(rowlock.client.firing, "zone_data", lambda: "2001a")
    assert await world.schedules.firing.find_times_anew(store) == 0  # older data changes nothing


async def test_a_zone_that_this_machine_does_not_know(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine may know it. The schedule waits for that machine, and the other schedules go on."""
    await world.schedules.put("s", MAIL, Cron("0 * * * *", "Europe/Berlin"), missed="all")
    await world.schedules.put("other", MAIL, HOURLY)
    known = rowlock.zones.zone

    def unknown(name: str) -> Any:
        if name == "Europe/Berlin":
            raise InvalidInput("when.zone", "unknown_zone", "there is no such zone")
        return known(name)

    await world.pass_(HOUR)
    with monkeypatch.context() as patch:
        patch.setattr(rowlock.client.firing, "zone", unknown)
        await world.fire()
        assert await world.told() == {}
        assert await world.told("other") == {1: "job"}
    world.jobs.schedules.firing._set_aside.clear()  # as after a minute
    await world.fire()
    assert await world.told() == {1: "job"}


async def test_a_hundred_schedules_that_cant_be_fired_here(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowlock.client.firing, "BATCH", 3)
    for n in range(3):
        await world.schedules.put(f"bad{n}", MAIL, HOURLY)
    await world.harness.execute("""UPDATE _jobs_schedules SET definition = '{"topic": "mail"}'""")
    await world.pass_(MINUTE)
    await world.schedules.put("good", MAIL, HOURLY)
    await world.pass_(HOUR)
    await world.fire()
    assert await world.told("good") == {1: "job"}


async def test_what_cant_be_read_says_so_and_no_more(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.schedules.put("bad", MAIL, HOURLY)
    await world.schedules.put("good", MAIL, HOURLY)
    await world.harness.execute("""UPDATE _jobs_schedules SET definition = '{"topic": "mail"}' WHERE name = 'bad'""")
    await world.pass_(HOUR)
    with caplog.at_level(logging.ERROR):
        await world.fire()
    assert await world.told("good") == {1: "job"}
    assert any("bad" in record.message for record in caplog.records)
    with pytest.raises(RowlockError, match="delete it"):
        await world.schedules.put("bad", MAIL, HOURLY)


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize(
    ("stored", "told"),
    [
        ('{"topic": "mail", "when": {"moon": "full"}}', {"topic": "mail", "when": {"moon": "full"}}),
        ("[" * 3000 + "]" * 3000, None),
        ('"\\ud800"', None),
    ],
)
async def test_what_cant_be_read_can_be_deleted(world: World, stored: str, told: object, by_id: bool) -> None:
    bad = await world.schedules.put("bad", MAIL, HOURLY)
    good = await world.schedules.put("good", MAIL, HOURLY)
    for one in (bad, good):
        await world.schedules.run_now(one.id)
    await world.harness.execute(f"UPDATE _jobs_schedules SET definition = '{stored}' WHERE name = 'bad'")
    assert await world.schedules.delete(bad.id if by_id else "bad", reason="of tomorrow", by="bob") is None
    assert await world.harness.fetch("SELECT name FROM _jobs_schedules") == [("good",)]
    assert len(await world.harness.fetch("SELECT 1 FROM _jobs_fires")) == 1
    assert len(await world.made()) == 2
    last = (await world.harness.audit())[-1]
    assert (last.by, last.action, last.topic, last.reason) == ("bob", "schedule.delete", "mail", "of tomorrow")
    known = {} if told is None else {"definition": told}
    assert last.data == {"schedule_id": bad.id, "name": "bad", "unreadable": True, **known}
    with pytest.raises(ScheduleNotFound):
        await world.schedules.delete(bad.id if by_id else "bad")
    assert (await world.schedules.put("bad", MAIL, HOURLY)).id != bad.id


async def test_what_cant_be_read_stays_if_code_declares_it(world: World) -> None:
    await world.schedules.put("bad", MAIL, HOURLY)
    await world.harness.execute("UPDATE _jobs_schedules SET definition = '{}', owner = 'shop'")
    with pytest.raises(ScheduleExists):
        await world.schedules.delete("bad")
    assert len(await world.harness.fetch("SELECT 1 FROM _jobs_schedules")) == 1


async def test_a_part_of_a_name_is_found_in_any_case(world: World) -> None:
    names = ["Überweisung", "ÇA ÉTÉ", "ОТЧЁТ", "οδός", "Straße", "a.b*[c]^\\_%|(d)", "ordinary"]
    for name in names:
        await world.schedules.put(name, MAIL, HOURLY)

    async def found(text: str) -> list[str]:
        return [one.name for one in (await world.schedules.list(text=text)).items]

    for name in names:
        for text in (name, name[1:-1], name.lower(), name.title(), name.swapcase() if "ß" not in name else name):
            assert await found(text) == [name], text
    assert await found("ΌΣ") == ["οδός"]
    assert await found("STRAẞE") == ["Straße"]
    for text in ("strasse", "a?b", ".*", "^", "uberweisung"):
        assert await found(text) == [name for name in names if text in name], text


def test_no_letter_with_capitals_is_left_out() -> None:
    beyond = map(chr, range(_CASED, sys.maxunicode + 1))
    assert not [letter for letter in beyond if letter.lower() != letter or letter.upper() != letter]


# ── Callers' connections ──


class Oops(Exception):
    pass


async def _jobs_at(kind: Kind) -> Any:
    place = kind.place
    return Jobs(place.address if place.dialect == "postgres" else f"sqlite:///{place.address}", by="ann")


async def _names(kind: Kind) -> list[str]:
    return [row[0] for row in await kind.place._fetch("SELECT name FROM {}_jobs_schedules ORDER BY name")]


@pytest.mark.sampled(4)  # kinds of connections
async def test_a_schedule_commits_and_rolls_back_with_the_callers_data(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await _jobs_at(kind) as jobs:
        await jobs.schedules.list()
        if isinstance(kind.caller(), SyncCaller):  # in this test, sync calls may block the loop
            monkeypatch.setattr(rowlock.client.enqueue, "running_loop", lambda: None)
        with suppress(Oops):
            async with kind.transaction():
                await kind.order(1)
                await jobs.schedules.put("s", MAIL, HOURLY, conn=kind.conn)
                raise Oops
        assert (await kind.place.committed(), await _names(kind)) == (([], []), [])
        async with kind.transaction():
            await kind.order(1)
            new = await jobs.schedules.put("s", MAIL, HOURLY, conn=kind.conn)
            assert await _names(kind) == []  # not committed yet
        assert (await kind.place.committed(), await _names(kind)) == (([1], []), ["s"])
        assert await jobs.schedules.get("s") == new
        with suppress(Oops):
            async with kind.transaction():
                await jobs.schedules.put("s", MAIL, Every(60), conn=kind.conn)
                await jobs.schedules.delete("s", conn=kind.conn)
                raise Oops
        assert await jobs.schedules.get("s") == new
        async with kind.transaction():
            with pytest.raises(ScheduleNotFound):  # the transaction goes on after the error
                await jobs.schedules.delete("t", conn=kind.conn)
            with pytest.raises(ScheduleExists):
                await jobs.schedules.put("s", MAIL, HOURLY, conn=kind.conn, revision=0)
            await jobs.schedules.delete("s", conn=kind.conn)
            await kind.order(2)
        assert (await kind.place.committed(), await _names(kind)) == (([1, 2], []), [])
    audit = await kind.place._fetch("SELECT action FROM {}_jobs_audit ORDER BY id")
    assert [row[0] for row in audit] == ["schedule.put", "schedule.delete"]


def test_without_an_event_loop(databases: Databases, tmp_path: Path) -> None:
    jobs = Jobs(f"sqlite:///{databases.file(tmp_path / 'jobs.db')}")
    new = jobs.sync.schedules.put("s", MAIL, HOURLY)
    fired: Fired = jobs.sync.schedules.run_now("s")
    assert [one.job_id for one in jobs.sync.schedules.history("s")] == [fired.job_id]
    assert jobs.sync.schedules.get("s").id == new.id
    assert jobs.sync.schedules.delete("s") is not None
    jobs.sync.close()
