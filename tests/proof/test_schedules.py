"""Every nominal time of every schedule becomes exactly one record, the right one, whatever happens meanwhile."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rowlock import Every, Jobs
from rowlock.core.schedules import Schedule
from rowlock.errors import ScheduleNotFound
from tests.databases import KINDS, Databases
from tests.proof.schedule_world import ScheduleWorld, between, fire_all, processes, store_of
from tests.stores.harness import Harness, harness_at

FULL = os.environ.get("ROWLOCK_PROOF") == "full"
SEEDS = {"sqlite": 2000 if FULL else 8, "postgres": 300 if FULL else 3}
ROUNDS = 2000 if FULL else 8  # of each race
STEPS = 150

pytestmark = pytest.mark.timeout(3600)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_fires_are_those_of_the_oracle(kind: str, databases: Databases, tmp_path: Path) -> None:
    began, count = time.monotonic(), Counter[str]()
    async with harness_at(kind, databases, tmp_path, virtual=True, check=False) as harness, processes(harness) as jobs:
        for seed in range(SEEDS[kind]):
            world = ScheduleWorld(harness, seed, jobs)
            try:
                await world.play(STEPS)
            except BaseException as error:
                error.add_note(f"seed {seed} on {kind}")
                raise
            count.update(steps=sum(world.count.values()))
            count.update(fires=sum(len(model.records) for model in world.models.values()))
    took = time.monotonic() - began
    print(f"schedules: 0 violations, {SEEDS[kind]} seeds, {count['steps']} steps, {count['fires']} fires, {took:.1f} s")


# ── Two connections at once, by the real clock ──

MAIL: Any = ("mail", {})
BEHIND = timedelta(minutes=10)  # for so long no process has fired
Racer = Callable[[Jobs, Schedule], Awaitable[Any]]


async def _fire(jobs: Jobs, one: Schedule) -> None:
    await fire_all(jobs)


async def _put(jobs: Jobs, one: Schedule) -> None:
    await jobs.schedules.put(one.name, MAIL, Every(45), missed="all")


async def _pause(jobs: Jobs, one: Schedule) -> None:
    await jobs.schedules.pause(one.name)


async def _delete(jobs: Jobs, one: Schedule) -> None:
    await jobs.schedules.delete(one.name)


async def _backfill(jobs: Jobs, one: Schedule) -> None:
    now = await (await store_of(jobs)).now()
    await jobs.schedules.backfill(one.name, now - BEHIND / 2, now)


async def _run_now(jobs: Jobs, one: Schedule) -> None:
    await jobs.schedules.run_now(one.name)


RACES: dict[str, tuple[Racer, Racer]] = {
    "fire, fire": (_fire, _fire),
    "fire, put": (_fire, _put),
    "fire, pause": (_fire, _pause),
    "fire, delete": (_fire, _delete),
    "fire, backfill": (_fire, _backfill),
    "fire, run_now": (_fire, _run_now),
    "backfill, backfill": (_backfill, _backfill),
    "put, backfill": (_put, _backfill),
    "put, delete": (_put, _delete),
}


async def _behind(harness: Harness, jobs: Jobs, name: str) -> Schedule:
    """Return a schedule that no process has fired for ten minutes."""
    await jobs.schedules.put(name, MAIL, Every(60), missed="all")
    back = f"{int(BEHIND.total_seconds() * 1e6)}" if harness.kind == "sqlite" else "interval '10 minutes'"
    moved = ", ".join(f"{column} = {column} - {back}" for column in ("upto", "next_run_at", "created"))
    await harness.execute(f"UPDATE _jobs_schedules SET {moved} WHERE name = '{name}'")
    return await jobs.schedules.get(name)


async def _judge(harness: Harness, jobs: Jobs, one: Schedule) -> int:
    """Check that every nominal time has one record, and that no time has two jobs. Return the number of records."""
    twice = await harness.fetch(
        "SELECT schedule_id, fire_at FROM _jobs WHERE schedule_id IS NOT NULL GROUP BY 1, 2 HAVING count(*) > 1"
    )
    assert twice == []
    lost = await harness.fetch(
        "SELECT f.job_id FROM _jobs_fires f LEFT JOIN _jobs j ON j.id = f.job_id AND j.schedule_id = f.schedule_id "
        "AND j.fire_at = f.fire_at WHERE f.job_id IS NOT NULL AND j.id IS NULL"
    )
    assert lost == []
    try:
        now = await jobs.schedules.get(one.name)
    except ScheduleNotFound:
        return 0
    if now.id != one.id:  # the schedule was deleted and put again
        return 0
    decided: datetime = now.updated if now.when != one.when else now.upto
    recorded = {fired.fire_at for fired in await jobs.schedules.history(one.name, limit=1000)}
    assert not [at for at in between(one.when, one.upto, one.upto, decided) if at not in recorded]
    return len(recorded)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("race", RACES)
async def test_two_at_once(kind: str, race: str, databases: Databases, tmp_path: Path) -> None:
    began, records = time.monotonic(), 0
    async with harness_at(kind, databases, tmp_path, virtual=False) as harness, AsyncExitStack() as stack:
        url = harness.url if kind == "postgres" else f"sqlite:///{harness.path}"
        left, right = [await stack.enter_async_context(Jobs(url)) for _ in range(2)]
        for n in range(ROUNDS):
            one = await _behind(harness, left, f"s{n}")
            first, second = RACES[race]
            answers = await asyncio.gather(first(left, one), second(right, one), return_exceptions=True)
            assert all(isinstance(each, ScheduleNotFound) for each in answers if each is not None), answers
            await fire_all(left)
            records += await _judge(harness, left, one)
            await harness.execute("DELETE FROM _jobs_schedules")
            await harness.execute("DELETE FROM _jobs_fires")
    print(f"schedule races: 0 violations, {ROUNDS} rounds, {records} records, {time.monotonic() - began:.1f} s")
