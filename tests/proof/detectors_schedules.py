"""Detectors that must turn red when a defence of schedules is switched off."""

from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from rowlock.client.definitions import Definitions
from rowlock.client.firing import Firing
from rowlock.core.cron import Every
from rowlock.core.lifecycle import Completed
from rowlock.core.schedules import Schedule, ScheduleName
from rowlock.core.templates import line_of
from rowlock.errors import InvalidInput, StoreBusy
from rowlock.jobs import Jobs
from rowlock.stores.base import Store
from rowlock.stores.schedules import Which
from tests.proof.crash_stage import new_ids
from tests.proof.schedule_world import ScheduleWorld, fire_all, processes
from tests.stores import test_schedules
from tests.stores.harness import Harness, PostgresHarness, job
from tests.stores.test_schedules import fires_of, put, schedule


async def one_job(store: Harness) -> None:
    """Without the look at existing fires, the last guard refuses the write with StoreBusy."""
    try:
        await test_schedules.test_fires_against_a_model(store)
    except StoreBusy as error:
        raise AssertionError(error) from None


async def one_waits(store: Harness) -> None:
    await test_schedules.test_queue_lets_one_wait(store)


async def dated(store: Harness) -> None:
    await test_schedules.test_a_job_knows_its_schedule_and_its_time_for_ever(store, Completed())


async def skip_locked(store: Harness) -> None:
    assert isinstance(store, PostgresHarness)
    await test_schedules.test_due_ones_that_are_locked_are_left_out(store)


async def pruned(store: Harness) -> None:
    await test_schedules.test_old_fires_without_a_job_are_pruned(store)


async def unreadable(store: Harness) -> None:
    try:
        await test_schedules.test_a_definition_that_cant_be_read_harms_nobody_else(store, "no when")
    except InvalidInput as error:
        raise AssertionError(error) from None


def locks(which: str) -> Any:
    """Return a detector: while the process decides, no other process can lock the row."""

    async def detector(store: Harness) -> None:
        assert isinstance(store, PostgresHarness)
        one = schedule()
        await put(store.store, one)
        await store.advance(60)
        asked = {
            "ids": Which(ids=(one.id,)),
            "name": Which(name=ScheduleName("s")),
            "due": Which(due=1),
        }[which]
        calls = []

        def decide(old: Schedule | None, _: datetime) -> None:
            calls.append(old)
            with psycopg.connect(store.url) as other, pytest.raises(psycopg.errors.LockNotAvailable):
                other.execute("SELECT 1 FROM _jobs_schedules FOR UPDATE NOWAIT")

        await store.store.change_schedules(asked, decide)
        assert calls == [one]

    return detector


async def oracle(store: Harness) -> None:
    """Play a few random worlds that together need every defence of the decisions."""
    async with processes(store, 2) as jobs:
        for seed in (2, 4, 5):
            await ScheduleWorld(store, seed, jobs).play(100)


async def joined(store: Harness) -> None:
    """The schedule is paused by an operator, and then because its code is gone, before any time is decided."""
    async with processes(store, 1) as [jobs]:
        one = await _declared(store, jobs)
        await jobs.schedules.pause("s")
        await store.advance(3600)
        await jobs.schedules.resume("s")
        await store.advance(60)
        await jobs.schedules.mark_absent()
        await store.advance(60)
        await jobs.schedules.resume("s")
        await fire_all(jobs)
        assert [fired.reason for fired in (await fires_of(store.store, one)).values()] == ["paused"]


async def holds(store: Harness) -> None:
    """The code of a schedule is gone before any process has decided a due time."""
    async with processes(store, 1) as [jobs]:
        one = await _declared(store, jobs)
        await store.advance(3660)
        await jobs.schedules.mark_absent()
        await fire_all(jobs)
        assert [fired.reason for fired in (await fires_of(store.store, one)).values()] == ["paused"]


async def _declared(store: Harness, jobs: Jobs) -> Schedule:
    """Return an hourly schedule that the code has declared."""
    hourly, first = Every(3600.0, store.now), store.now + timedelta(hours=1)
    one = schedule(when=hourly, missed="all", owner=jobs.schedules.owner, upto=store.now, next_run_at=first)
    await put(store.store, one)
    return one


async def refused(store: Harness) -> None:
    """A job that the store refuses costs no other schedule its time."""

    async def asked() -> Store:
        return store.store

    firing: Any = Firing(Definitions(asked, {}), new_ids)
    taken = replace(job(key="k"), once=line_of("mail", None, None, "k"))
    await store.insert(taken)
    bad, good = schedule("bad", options={"key": "k"}), schedule("good")
    await put(store.store, bad, good)
    await store.advance(61)
    make = firing.job

    def once(one: Schedule, *rest: Any) -> Any:
        made = make(one, *rest)
        return made if one.name == "good" else replace(made, once=line_of("mail", None, None, "k"))

    firing.job = once
    await firing.fire_due(store.store)
    assert [fired.reason for fired in (await fires_of(store.store, good)).values()] == [None]
    assert [fired.reason for fired in (await fires_of(store.store, bad)).values()] == ["invalid"]
