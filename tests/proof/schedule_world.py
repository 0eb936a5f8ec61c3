"""Schedules in virtual time, beside a model that knows the right record of each nominal time.

The model finds nominal times with the brute force of tests/core/cron_oracle.py. It shares no code with
core/schedules.py: it knows the policies from the specification alone.
"""

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

from msgspec import Struct, field

from rowlock.core.cron import Cron, Every, When
from rowlock.core.job import Job
from rowlock.core.lifecycle import Completed
from rowlock.core.schedules import Schedule
from rowlock.jobs import Jobs
from rowlock.stores.base import Store
from tests.core.cron_oracle import Fields, Walk
from tests.stores.harness import START, Harness, PostgresHarness, SqliteHarness, claim_by, settlement

DAYS = 16  # a world lasts at most this long
LATE = 60.0  # seconds by which a time may be late and still count as on time for "skip"
MICROSECOND = timedelta(microseconds=1)
# Zones, and when their clocks change in the world's first days.
PLACES = [
    ("Europe/Berlin", datetime(2026, 3, 26)),  # noqa: DTZ001 - made aware below
    ("Europe/Berlin", datetime(2026, 10, 22)),  # noqa: DTZ001
    ("America/New_York", datetime(2026, 10, 29)),  # noqa: DTZ001
    ("Australia/Lord_Howe", datetime(2026, 4, 2)),  # noqa: DTZ001 - by half an hour
    ("UTC", datetime(2026, 5, 30)),  # noqa: DTZ001
]
EXPRESSIONS = ["*/15 * * * *", "30 * * * *", "30 2 * * *", "0 0 * * *", "0,30 1-3 * * *", "15 */6 * * 1-5", "5 2 L * *"]
EVERY = [300.0, 1800.0, 5400.5, 86_400.0]


# ── Jobs in virtual time ──


@asynccontextmanager
async def virtual_jobs(harness: Harness, by: str | None = "ann", **options: Any) -> AsyncIterator[Jobs]:
    """Yield a Jobs as another process would have it. Its clock is the harness's."""
    if isinstance(harness, PostgresHarness):
        url = harness.url
    else:
        assert isinstance(harness, SqliteHarness)
        url = f"sqlite:///{harness.path}"
    jobs = Jobs(url, by=by, **options)
    jobs._stores._make = harness.new_store
    jobs._stores.first = harness.new_store()
    async with jobs:
        yield jobs


async def store_of(jobs: Jobs) -> Store:
    return (await jobs._stores.handle()).store


async def fire_all(jobs: Jobs) -> None:
    """Fire until no schedule is due, as a scheduler does."""
    while await jobs.schedules.firing.fire_due(await store_of(jobs)):
        pass


# ── Nominal times ──


@cache
def walk(zone: str, start: datetime) -> Walk:
    return Walk(ZoneInfo(zone), start - timedelta(days=2), start + timedelta(days=DAYS + 2))


@cache
def cron_times(when: Cron, start: datetime) -> list[datetime]:
    return list(walk(when.zone, start).expect(Fields(when.expression), when.gap, when.overlap).fires)


def between(when: When, start: datetime, after: datetime, until: datetime) -> list[datetime]:
    """Return the nominal times after `after` and not after `until`. The world begins at `start`."""
    if isinstance(when, Cron):
        times = cron_times(when, start)
        return times[bisect_right(times, after) : bisect_right(times, until)]
    step, anchor = timedelta(seconds=when.seconds), when.anchor or datetime.fromtimestamp(0, tz=after.tzinfo)
    at, found = anchor + (after - anchor) // step * step, []
    while at <= until:
        if at > after:
            found.append(at)
        at += step
    return found


# ── The model: the right records ──


class Record(Struct, frozen=True):
    """The record of a nominal time. `outcome`: "job", or the reason why there is no job."""

    outcome: str
    kind: str = "schedule"


class Model(Struct):
    """The expected state of one schedule."""

    when: When
    upto: datetime
    missed: str = "last"
    most: int = 100
    within: float | None = None
    if_live: str = "allow"
    start: datetime | None = None
    end: datetime | None = None
    pauses: list[tuple[datetime, datetime | None]] = field(default_factory=list)
    records: dict[datetime, Record] = field(default_factory=dict)

    def due(self, world_start: datetime, now: datetime) -> list[datetime]:
        return [
            at
            for at in between(self.when, world_start, self.upto, now)
            if (self.start is None or at >= self.start) and (self.end is None or at <= self.end)
        ]

    @property
    def is_paused(self) -> bool:
        return bool(self.pauses) and self.pauses[-1][1] is None

    def in_pause(self, at: datetime) -> bool:
        return self.is_paused or any(first <= at <= (last or at) for first, last in self.pauses)

    def pause(self, now: datetime) -> None:
        """Begin a pause. If the times of the last pause are not decided yet, both pauses and the time between them
        become one pause."""
        if self.pauses and (ended := self.pauses[-1][1]) is not None and ended > self.upto:
            self.pauses[-1] = self.pauses[-1][0], None
        else:
            self.pauses.append((now, None))

    def resume(self, now: datetime) -> None:
        self.pauses[-1] = self.pauses[-1][0], now
        self.set_back(now)

    def set_back(self, now: datetime) -> None:
        """An operator changes the schedule. If the clock was set back, the times from now on are decided anew, and
        those without a job may get one. Earlier pauses don't count: they were by the wrong clock."""
        if self.upto > now:
            self.upto, self.pauses = now, self.pauses[-1:]

    def fire(self, world_start: datetime, now: datetime, live: int) -> None:
        """Decide all due times. `live`: the number of the schedule's jobs that have not ended."""
        due = self.due(world_start, now)
        active = [at for at in due if not self.in_pause(at)]
        match self.missed:
            case "last":
                firing = active[-1:]
            case "skip":
                firing = [at for at in active[-1:] if now - at <= timedelta(seconds=LATE)]
            case _:
                oldest = None if self.within is None else now - timedelta(seconds=max(self.within, LATE))
                firing = [at for at in active[-self.most :] if oldest is None or at >= oldest]
        for at in due:
            if self.records.get(at, Record("")).outcome == "job":  # a backfill has made its job
                continue
            outcome = "job" if at in firing else "missed" if at in active else "paused"
            if at in firing and self.if_live == "reject" and live >= 1:
                outcome = "live"
            if at in firing and self.if_live == "queue" and live >= 2 and len(firing) == 1:
                outcome = "live"
            live += outcome == "job"
            self.records[at] = Record(outcome)
        self.upto = max(self.upto, now)

    def reschedule(self, world_start: datetime, now: datetime, **changed: Any) -> None:
        """Change the times of the schedule. Undecided due times of the old definition are recorded as missed or
        paused."""
        for at in self.due(world_start, now):
            if self.records.get(at, Record("")).outcome != "job":
                self.records[at] = Record("paused" if self.in_pause(at) else "missed")
        self.set_back(now)
        self.upto = now
        for name, value in changed.items():
            setattr(self, name, value)


# ── The world ──


class ScheduleWorld:
    """Some processes that fire schedules, an operator, and a clock that may jump."""

    def __init__(self, harness: Harness, seed: int, processes: list[Jobs]) -> None:
        self.harness = harness
        self.rng = random.Random(seed)
        self.processes = processes
        self.zone, start = self.rng.choice(PLACES)
        self.start = start.replace(tzinfo=START.tzinfo)
        self.models: dict[str, Model] = {}  # by name
        self.ids: dict[str, str] = {}
        self.deleted: list[str] = []
        self.count = Counter[str]()
        self.trace: list[str] = []

    @property
    def now(self) -> datetime:
        return self.harness.now

    @property
    def jobs(self) -> Jobs:
        return self.rng.choice(self.processes)

    async def play(self, steps: int) -> None:
        await self.harness.reset()
        await self.harness.advance((self.start - START).total_seconds())
        for _ in range(2):
            await self.put()
        acts = {
            self.advance: 30, self.fire: 30, self.work: 10, self.put: 4, self.edit: 4, self.edit_policy: 3,
            self.pause: 5, self.resume: 5, self.run_now: 3, self.backfill: 3, self.step_clock: 2, self.delete: 1,
        }  # fmt: skip
        for _ in range(steps):
            act: Any = self.rng.choices(list(acts), list(acts.values()))[0]
            self.trace.append(f"{self.now:%d %H:%M:%S.%f} {act.__name__}")
            self.count[act.__name__] += 1
            await act()
            if self.rng.random() < 0.2:
                await self.compare()
        await self.fire()
        await self.compare()

    # ── What happens ──

    async def advance(self) -> None:
        rng = self.rng
        seconds = rng.choice([rng.uniform(0, 90), rng.uniform(0, 3600), 60.0 * rng.randint(1, 90), 3600.0])
        if rng.random() < 0.1:  # an outage: no process fires
            seconds = rng.uniform(3600, 2.5 * 86_400)
        if self.now + timedelta(seconds=seconds) < self.start + timedelta(days=DAYS):
            await self.harness.advance(round(seconds, 6))

    async def step_clock(self) -> None:
        seconds = self.rng.choice([-3600.0, 3600.0, -60.0, -0.5])
        if self.start < self.now + timedelta(seconds=seconds) < self.start + timedelta(days=DAYS):
            await self.harness.advance(seconds)

    async def fire(self) -> None:
        """Let a few processes fire, one after the other. All but the first find nothing due."""
        due = [name for name, model in self.models.items() if model.due(self.start, self.now)]
        for name in due:
            live = 0
            if self.models[name].if_live != "allow":
                live = await self._live(name)
            self.models[name].fire(self.start, self.now, live)
        for jobs in self.rng.sample(self.processes, self.rng.randint(1, len(self.processes))):
            await fire_all(jobs)

    async def _live(self, name: str) -> int:
        query = f"SELECT count(*) FROM _jobs WHERE key = 'schedule:{self.ids[name]}' AND finished_at IS NULL"
        [(count,)] = await self.harness.fetch(query)
        return int(count)

    async def work(self) -> None:
        """A worker claims some jobs, and completes some of them."""
        jobs: list[Job] = []
        for _ in range(self.rng.randint(1, 3)):
            jobs += (await self.harness.store.claim(claim_by("w", limit=20, lease=1e7))).jobs
        done = [settlement(job, Completed()) for job in jobs if self.rng.random() < 0.6]
        await self.harness.store.settle(done)

    def _when(self) -> When:
        rng = self.rng
        if rng.random() < 0.3:
            anchor = self.start + timedelta(seconds=rng.uniform(-1e5, 1e5))
            return Every(rng.choice(EVERY), rng.choice([None, anchor]))
        gap: Any = rng.choice(["next", "skip"])
        overlap: Any = rng.choice(["first", "second", "both"])
        return Cron(rng.choice(EXPRESSIONS), self.zone, gap, overlap)

    def _bounds(self) -> dict[str, Any]:
        rng, bounds = self.rng, dict[str, Any]()
        if rng.random() < 0.2:
            bounds["start"] = self.now + timedelta(hours=rng.uniform(-20, 20))
        if rng.random() < 0.2:
            bounds["end"] = self.now + timedelta(days=rng.uniform(1.5, 6))  # mostly later than the next daily time
        return bounds

    def _policy(self) -> dict[str, Any]:
        rng = self.rng
        policy: dict[str, Any] = {"missed": rng.choice(["last", "skip", "all"])}
        policy["if_live"] = rng.choice(["allow", "allow", "reject", "queue", "replace"])
        if policy["missed"] == "all":
            policy["most"] = rng.choice([1, 3, 100])
            policy["within"] = rng.choice([None, 10.0, 3600.0, 86_400.0])
        return policy

    def _would_fire(self, when: When, bounds: dict[str, Any], after: datetime) -> bool:
        model = Model(when, after, **bounds)
        return bool(model.due(self.start, self.start + timedelta(days=DAYS)))

    async def put(self) -> None:
        name, when, bounds, policy = f"s{self.rng.randint(1, 6)}", self._when(), self._bounds(), self._policy()
        if name in self.models or not self._would_fire(when, bounds, self.now):
            return
        made = await self.jobs.schedules.put(name, ("mail", {"at": "{{fire_at}}"}), when, **bounds, **policy)
        self.models[name] = Model(when, self.now, **bounds, **policy)
        self.ids[name] = made.id

    def _some(self) -> str | None:
        return self.rng.choice([*self.models]) if self.models else None

    async def edit(self) -> None:
        name = self._some()
        when, bounds = self._when(), self._bounds()
        if name is None:
            return
        model = self.models[name]
        if not self._would_fire(when, bounds, max(self.now, model.upto)):
            return
        policy = self._of(model)
        await self.jobs.schedules.put(name, ("mail", {"at": "{{fire_at}}"}), when, **bounds, **policy)
        new = {"start": None, "end": None, **bounds}
        changed = (when, new["start"], new["end"]) != (model.when, model.start, model.end)
        if changed:
            model.reschedule(self.start, self.now, when=when, **new)

    async def edit_policy(self) -> None:
        if (name := self._some()) is None:
            return
        model, policy = self.models[name], self._policy()
        if await self._live(name):  # jobs in a line and jobs with only a key don't see each other
            policy["if_live"] = model.if_live
        bounds = {"start": model.start, "end": model.end}
        if not self._would_fire(model.when, bounds, max(self.now, model.upto)):
            return
        payload = {"at": "{{fire_at}}"}
        await self.jobs.schedules.put(name, ("mail", payload), model.when, **bounds, **policy)  # type: ignore[arg-type]
        new = {"most": 100, "within": None, **policy}
        if new != self._of(model):
            model.set_back(self.now)
        for field_, value in new.items():
            setattr(model, field_, value)

    @staticmethod
    def _of(model: Model) -> dict[str, Any]:
        return {name: getattr(model, name) for name in ("missed", "most", "within", "if_live")}

    async def pause(self) -> None:
        if (name := self._some()) is None:
            return
        model, live = self.models[name], await self._live(name)
        await self.jobs.schedules.pause(name)
        if not model.is_paused:
            if model.due(self.start, self.now):  # the times before the pause are decided first
                model.fire(self.start, self.now, live)
            model.pause(self.now)

    async def resume(self) -> None:
        if (name := self._some()) is None:
            return
        await self.jobs.schedules.resume(name)
        if self.models[name].is_paused:
            self.models[name].resume(self.now)

    async def run_now(self) -> None:
        if (name := self._some()) is None:
            return
        await self.harness.advance(0.000001 * self.rng.randint(1, 999))
        model = self.models[name]
        if self.now in model.records or self.now in model.due(self.start, self.now):
            return
        live = await self._live(name)
        refused = (model.if_live == "reject" and live >= 1) or (model.if_live == "queue" and live >= 2)
        fired = await self.jobs.schedules.run_now(name)
        assert (fired.job_id is None, fired.fire_at) == (refused, self.now)
        model.records[self.now] = Record("live" if refused else "job", "run_now")

    async def backfill(self) -> None:
        if (name := self._some()) is None:
            return
        model = self.models[name]
        last = self.now - timedelta(seconds=self.rng.choice([0, self.rng.uniform(0, 1e5)]))
        first = max(last - timedelta(seconds=self.rng.uniform(0, 1e5)), self.start - timedelta(days=1))
        if last < first:
            return
        times = between(model.when, self.start, first - MICROSECOND, last)
        dry = await self.jobs.schedules.backfill(name, first, last, dry_run=True)
        told = await self.jobs.schedules.backfill(name, first, last)
        assert [one.fire_at for one in told] == [one.fire_at for one in dry] == times
        new = [at for at in times if model.records.get(at, Record("")).outcome != "job"]
        assert [one.fire_at for one in told if one.new] == [one.fire_at for one in dry if one.new] == new
        assert all(one.job_id for one in told)
        for at in new:
            model.records[at] = Record("job", "backfill")

    async def delete(self) -> None:
        if (name := self._some()) is None or len(self.models) < 2:
            return
        await self.jobs.schedules.delete(name)
        del self.models[name]
        self.deleted.append(self.ids.pop(name))

    # ── Checks ──

    async def compare(self) -> None:
        """Check that every nominal time has exactly one record, the right one, and that no other time has a record."""
        store = self.harness.store
        stored = {one.name: one for one in (await self.jobs.schedules.list(limit=1000)).items}
        assert stored.keys() == self.models.keys()
        fires = await self.harness.fetch("SELECT schedule_id, fire_at, kind, job_id, reason FROM _jobs_fires")
        found: dict[str, dict[datetime, Record]] = {one.id: {} for one in stored.values()}
        ids: dict[tuple[str, datetime], str] = {}
        for schedule_id, at, kind, job_id, reason in fires:
            moment = at if isinstance(at, datetime) else START.fromtimestamp(0, START.tzinfo) + at * MICROSECOND
            found[str(schedule_id)][moment] = Record("job" if job_id else reason, kind)
            if job_id:
                ids[str(schedule_id), moment] = str(job_id)
        for name, model in self.models.items():
            self._same(name, found[stored[name].id], model.records)
            self._has_next(stored[name], model)
        await self._one_job_each(ids)
        assert await store.next_fire() == self._next_fire(stored.values())

    def _same(self, name: str, found: dict[datetime, Record], expected: dict[datetime, Record]) -> None:
        if found == expected:
            return
        wrong = {at: (found.get(at), expected.get(at)) for at in sorted({*found, *expected})}
        lines = [f"{at.isoformat()}: found {is_}, expected {must}" for at, (is_, must) in wrong.items() if is_ != must]
        model = self.models[name]
        about = f"{model.when} {self._of(model)} {model.start} {model.end} upto {model.upto} {model.pauses}"
        raise AssertionError("\n".join([name, about, *lines[:10], *self.trace[-30:]]))

    def _has_next(self, schedule: Schedule, model: Model) -> None:
        horizon = self.start + timedelta(days=DAYS)
        after = Model(model.when, model.upto, start=model.start, end=model.end).due(self.start, horizon)
        assert schedule.upto <= model.upto  # without due times a process decides nothing, and need not write
        assert not Model(model.when, schedule.upto, start=model.start, end=model.end).due(self.start, model.upto)
        if after:
            assert schedule.next_run_at == after[0], (model, schedule)
        else:
            assert schedule.next_run_at is None or schedule.next_run_at > horizon

    async def _one_job_each(self, ids: dict[tuple[str, datetime], str]) -> None:
        """Check that the jobs and the fires name each other. Jobs of deleted schedules stay."""
        rows = await self.harness.fetch(
            "SELECT id, schedule_id, fire_at FROM _jobs UNION ALL SELECT id, schedule_id, fire_at FROM _jobs_archive"
        )
        made = Counter((str(schedule_id), fire_at) for _, schedule_id, fire_at in rows)
        assert made.total() == len(made), "two jobs of one time"
        known = {str(job_id): str(schedule_id) for job_id, schedule_id, _ in rows}
        live = {job_id: schedule_id for job_id, schedule_id in known.items() if schedule_id not in self.deleted}
        assert live == {job_id: schedule_id for (schedule_id, _), job_id in ids.items()}

    def _next_fire(self, stored: Any) -> float | None:
        times = [one.next_run_at for one in stored if one.next_run_at is not None]
        return (min(times) - self.now).total_seconds() if times else None


@asynccontextmanager
async def processes(harness: Harness, count: int = 3) -> AsyncIterator[list[Jobs]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(virtual_jobs(harness)) for _ in range(count)]
