"""The contract of docs/schedules.md. The real code computes every row of its tables, and must agree with the page."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rowlock import Cron, Every, Jobs
from rowlock.client import firing
from rowlock.client import schedules as client_schedules
from rowlock.client.schedules import preview
from rowlock.core.cron import When
from rowlock.core.job import Lane
from rowlock.core.schedules import Definition, Fired
from rowlock.core.times import micros
from rowlock.stores.base import Claim
from rowlock.stores.sqlite import store as sqlite_store
from rowlock.zones import zone

PAGE = Path(__file__).parent.parent.parent / "docs/schedules.md"
HOURLY = Cron("0 * * * *")
TOPIC = "report"
TIME = re.compile(
    r"\b(\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?)(?: (job|missed|paused|disabled|invalid|live|[a-z_]+ed|p[a-z]+ing))?"
)
WHEN = re.compile(r"`((?:Cron|Every)\(.*?\))` from (\d{4}-\d\d-\d\d \d\d:\d\d)")


class Row(NamedTuple):
    promise: str
    example: str
    outcome: str

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Return the times of the last column, each with the word behind it."""
        return TIME.findall(self.outcome)


def tables() -> dict[str, list[Row]]:
    """Return the rows of each table of the contract, by the heading above it."""
    text = PAGE.read_text("utf-8").split("\n## The contract\n")[1].split("\n## ")[0]
    found = {}
    for part in text.split("\n### ")[1:]:
        heading, _, body = part.partition("\n")
        rows = [line.strip("| ").split(" | ") for line in body.splitlines() if line.startswith("| ")]
        found[heading] = [Row(*row) for row in rows[2:]]
    return found


TABLES = tables()


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def told(at: datetime) -> str:
    assert not at.microsecond
    return f"{at:%Y-%m-%d %H:%M:%S}" if at.second else f"{at:%Y-%m-%d %H:%M}"


# ── Clocks change ──


@pytest.mark.parametrize("row", TABLES["Clocks change"], ids=lambda row: row.promise[:50])
def test_clocks_change(row: Row) -> None:
    [(code, after)] = WHEN.findall(row.example)
    when: When = eval(code, {"Cron": Cron, "Every": Every, "datetime": datetime, "UTC": UTC})
    shown = preview(Definition(topic=TOPIC, when=when), utc(after), len(row.facts)).times
    assert [told(one.at) for one in shown if not one.skipped] == [at for at, _ in row.facts]
    if isinstance(when, Cron):
        local = {told(one.at): f"{one.at.astimezone(zone(when.zone)):%H:%M}" for one in shown}
        for at, wall in re.findall(r"(\d{4}-\d\d-\d\d \d\d:\d\d) \((\d\d:\d\d)", row.outcome):
            assert local[at] == wall
    assert any(one.skipped for one in shown) == ('gap="skip"' in row.example)


# ── Schedules on a database whose clock the test sets ──


class World:
    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.now = utc("2026-11-18 09:30")
        self.name = "hourly"

    def at(self, time: str) -> None:
        """Set the clock."""
        self.now = utc(time if "-" in time else f"2026-11-18 {time}")

    async def put(self, when: When = HOURLY, payload: dict[str, Any] | None = None, **policies: Any) -> None:
        await self.jobs.schedules.put(self.name, (TOPIC, payload or {}), when, **policies)

    async def look(self, *times: str) -> None:
        """Fire the schedules that are due at each of these times."""
        for time in times:
            self.at(time)
            while await self.jobs.schedules.firing.fire_due(await self.jobs._store()):
                pass

    async def claim(self) -> None:
        """Let a worker start the oldest job."""
        store = await self.jobs._store()
        found = await store.claim(Claim("w", (Lane(TOPIC),), 1, 86_400.0))
        assert len(found.jobs) == 1

    async def history(self) -> list[Fired]:
        return list(reversed(await self.jobs.schedules.history(self.name, limit=1000)))

    async def facts(self) -> list[tuple[str, str]]:
        """Return each nominal time with its outcome, oldest first: "job", or the reason why there is none."""
        return [(told(one.fire_at), one.reason or "job") for one in await self.history()]

    async def statuses(self) -> list[tuple[str, str]]:
        """Return the same, with the status of each job instead of "job"."""
        found = []
        for one in await self.history():
            status = None if one.job_id is None else str((await self.jobs.get(one.job_id)).status)
            found.append((told(one.fire_at), status or str(one.reason)))
        return found


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[World]:
    worlds: list[World] = []
    timed = partial(sqlite_store.SqliteStore, clock=lambda: micros(worlds[0].now))
    monkeypatch.setattr(sqlite_store, "SqliteStore", timed)
    jobs = Jobs(f"sqlite:///{tmp_path / 'jobs.db'}")
    worlds.append(World(jobs))

    @jobs.task(TOPIC)
    async def report(day: str = "") -> None: ...

    async with jobs:
        yield worlds[0]


Case = Callable[[World], Awaitable[list[tuple[str, str]]]]
CASES: dict[str, dict[str, Case]] = {heading: {} for heading in TABLES}


def case(heading: str, promise: str) -> Callable[[Case], Case]:
    """Register the decorated function as the test of the row whose promise begins with this text."""

    def add(function: Case) -> Case:
        CASES[heading][promise] = function
        return function

    return add


async def away(world: World, back: str = "12:20", when: When = HOURLY, **policies: Any) -> list[tuple[str, str]]:
    await world.put(when, **policies)
    await world.look(back)
    return await world.facts()


MISSED = "No process was there"
CASES[MISSED] = {
    '`missed="last"`': lambda world: away(world),
    '`missed="skip"`': lambda world: away(world, missed="skip"),
    "… within 60 s": lambda world: away(world, "12:00:40", missed="skip"),
    '`missed="all"`': lambda world: away(world, missed="all"),
    "`most=2`": lambda world: away(world, missed="all", most=2),
    "`within=5400`": lambda world: away(world, missed="all", within=5400),
}


@case(MISSED, "at most 10,000")
async def _(world: World) -> list[tuple[str, str]]:
    await world.put(Every(1))
    await world.look("12:30")
    found: list[Fired] = []
    while page := await world.jobs.schedules.history(
        world.name, limit=1000, before=found[-1].fire_at if found else None
    ):
        found += page
    assert len(found) == 10_000
    assert found[-1].detail == "so were all earlier ones since 2026-11-18T09:30:00+00:00"
    assert {one.reason for one in found[1:]} == {"missed"}
    assert (utc("2026-11-18 12:30") - utc("2026-11-18 09:30")).total_seconds() == 10_800
    return [(told(found[-1].fire_at), str(found[-1].reason)), (told(found[0].fire_at), found[0].reason or "job")]


async def live(world: World, **policies: Any) -> list[tuple[str, str]]:
    await world.put(**policies)
    await world.look("10:00")
    await world.claim()
    await world.look("11:00", "12:00")
    world.at("12:20")
    return await world.statuses()


LIVE = "The last job is not over"
CASES[LIVE] = {
    f'`if_live="{policy}"`': partial(live, if_live=policy) for policy in ("allow", "reject", "queue", "replace")
}


async def caught_up(world: World, policy: str) -> list[tuple[str, str]]:
    await away(world, missed="all", if_live=policy)
    return await world.statuses()


for name in ("reject", "queue"):
    CASES[LIVE][f'"{name}" with `missed="all"`'] = partial(caught_up, policy=name)


ALWAYS = "In any case"


@case(ALWAYS, "**once**")
async def _(world: World) -> list[tuple[str, str]]:
    await world.put()
    world.at("10:00")
    others = [Jobs(world.jobs.settings.url) for _ in range(9)]

    async def fire(jobs: Jobs) -> None:
        async with jobs:
            await jobs.schedules.firing.fire_due(await jobs._store())

    await asyncio.gather(*map(fire, others), world.look("10:00"))
    world.at("10:20")
    again = await world.jobs.schedules.backfill(world.name, utc("2026-11-18 09:30"), world.now)
    assert [(told(one.fire_at), one.new) for one in again] == [("2026-11-18 10:00", False)]
    assert (await world.jobs.list()).total == 1
    return await world.facts()


@case(ALWAYS, "every time")
async def _(world: World) -> list[tuple[str, str]]:
    await world.put()
    await world.look("10:00", "10:00:01", "11:00", "11:00:01", "12:00")
    return await world.facts()


@case(ALWAYS, "a new schedule")
async def _(world: World) -> list[tuple[str, str]]:
    await world.put(missed="all")
    await world.look("09:30", "09:59:59")
    assert await world.facts() == []
    schedule = await world.jobs.schedules.get(world.name)
    assert schedule.next_run_at is not None
    return [(told(schedule.next_run_at), "")]


async def paused(world: World, looks: tuple[str, ...]) -> list[tuple[str, str]]:
    await world.put(missed="all")
    world.at("09:40")
    await world.jobs.schedules.pause(world.name)
    await world.look(*looks)
    world.at("11:30")
    await world.jobs.schedules.resume(world.name)
    await world.look("12:00" if looks else "12:20")
    return await world.facts()


CASES[ALWAYS]["**paused**"] = lambda world: paused(world, ("10:00", "11:00"))
CASES[ALWAYS]["… also if no process looked"] = lambda world: paused(world, ())


@case(ALWAYS, "**disabled**")
async def _(world: World) -> list[tuple[str, str]]:
    await world.jobs.templates.publish()
    await world.put(missed="all")
    world.at("09:40")
    await world.jobs.templates.disable(TOPIC)
    await world.look("10:00", "11:00")
    await world.jobs.templates.enable(TOPIC)
    await world.look("12:00")
    return await world.facts()


@case(ALWAYS, "**invalid**")
async def _(world: World) -> list[tuple[str, str]]:
    await world.put()
    newer = Jobs(world.jobs.settings.url)

    @newer.task(TOPIC)
    async def report(region: str, day: str = "") -> None: ...

    async with newer:
        world.at("09:40")
        await newer.templates.publish()
        world.at("10:00")
        await newer.schedules.firing.fire_due(await newer._store())
        assert "region" in str((await world.history())[0].detail)
        world.at("10:30")
        await newer.schedules.put(world.name, (TOPIC, {"region": "north"}), HOURLY)
        world.at("11:00")
        await newer.schedules.firing.fire_due(await newer._store())
    return await world.facts()


@case(ALWAYS, "an edit of when")
async def _(world: World) -> list[tuple[str, str]]:
    await world.put(missed="all")
    world.at("10:20")
    await world.put(Cron("30 * * * *"), missed="all")
    await world.look("10:30")
    return await world.facts()


@case(ALWAYS, "an edit of anything else")
async def _(world: World) -> list[tuple[str, str]]:
    await world.put(payload={"day": "old"})
    world.at("10:20")
    await world.put(payload={"day": "new"})
    await world.look("10:20:01")
    [job] = (await world.jobs.list()).items
    assert job.payload == {"day": "new"}
    return await world.facts()


@case(ALWAYS, "the clock steps back")
async def _(world: World) -> list[tuple[str, str]]:
    await world.put(missed="all")
    await world.look("10:00", "10:05", "09:05", "10:00", "10:05", "11:00")
    return await world.facts()


@case(ALWAYS, "the clock steps ahead")
async def _(world: World) -> list[tuple[str, str]]:
    await world.put()
    await world.look("09:35", "12:20")
    return await world.facts()


@case(ALWAYS, "newer time zone data")
async def _(world: World) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    with pytest.MonkeyPatch.context() as patch:
        for version, hours in (("2024b", -4), ("2025a", -3)):
            for module in (firing, client_schedules):
                patch.setattr(module, "zone_data", lambda version=version: version)
            patch.setattr(firing, "zone", lambda name, hours=hours: timezone(timedelta(hours=hours)))
            world.at("2025-03-31 20:00")
            if not found:
                await world.put(Cron("0 9 * * *", "America/Asuncion"))
            await world.jobs.schedules.firing.find_times_anew(await world.jobs._store())
            schedule = await world.jobs.schedules.get(world.name)
            assert schedule.next_run_at is not None
            found.append((told(schedule.next_run_at), ""))
    return found


@case(ALWAYS, "`jitter=300`")
async def _(world: World) -> list[tuple[str, str]]:
    await world.put(jitter=300)
    await world.look("10:00")
    [job] = (await world.jobs.list()).items
    assert job.fire_at == utc("2026-11-18 10:00")
    assert timedelta() <= job.run_at - job.fire_at <= timedelta(seconds=300)
    schedule = await world.jobs.schedules.get(world.name)
    again = world.jobs.schedules.firing.job(schedule, job.fire_at, UTC, "schedule")
    assert again.run_at == job.run_at
    return await world.facts()


@case(ALWAYS, "`start` and `end`")
async def _(world: World) -> list[tuple[str, str]]:
    await world.put(start=utc("2026-11-18 11:00"), end=utc("2026-11-18 12:00"))
    await world.look("10:00", "11:00", "12:00", "13:00")
    assert (await world.jobs.schedules.get(world.name)).state == "over"
    return await world.facts()


@case(ALWAYS, "**run now**")
async def _(world: World) -> list[tuple[str, str]]:
    await world.put()
    await world.look("10:00")
    world.at("10:20:30")
    await world.jobs.schedules.pause(world.name)
    assert (await world.jobs.schedules.run_now(world.name)).kind == "run_now"
    await world.jobs.schedules.resume(world.name)
    await world.look("11:00")
    return await world.facts()


@case(ALWAYS, "**backfill**")
async def _(world: World) -> list[tuple[str, str]]:
    await world.put(Cron("0 2 * * *", "Europe/Berlin"), if_live="reject")
    for new in (True, False):
        made = await world.jobs.schedules.backfill(world.name, utc("2026-11-15"), utc("2026-11-18"))
        assert [one.new for one in made] == [new] * 3
    found = await world.facts()
    assert (await world.jobs.list()).total == len(found)
    return found


ROWS = [(heading, row) for heading, rows in TABLES.items() if heading != "Clocks change" for row in rows]


@pytest.mark.parametrize(("heading", "row"), ROWS, ids=[row.promise[:50] for _, row in ROWS])
async def test_a_row(world: World, heading: str, row: Row) -> None:
    [run] = [run for promise, run in CASES[heading].items() if row.promise.startswith(promise)]
    assert await run(world) == row.facts


def test_every_case_has_a_row() -> None:
    assert list(TABLES) == ["Clocks change", MISSED, LIVE, ALWAYS]
    assert sum(map(len, CASES.values())) == len(ROWS)
    assert len(TABLES["Clocks change"]) == 15
