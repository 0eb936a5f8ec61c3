"""Crash points of schedules: the due times become jobs and records, all of them or none, and never twice."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

from rowlock.client.definitions import Definitions
from rowlock.client.firing import Firing
from rowlock.core.cron import Every
from rowlock.core.schedules import Fire, Schedule, ScheduleName
from rowlock.stores.base import Store
from rowlock.stores.records import Entry
from rowlock.stores.schedules import FIRES_KEPT, ScheduleChange, ScheduleFilter, Which
from tests.proof.crash_case import Act, Actor, case, changes, simply
from tests.proof.crash_stage import ACTOR, TOPIC, Facts, Stage, new_ids
from tests.proof.history import History
from tests.proof.witness import FIRES, SCHEDULES

HOUR = timedelta(hours=1)
DUE = 3  # nominal times that are due


def _entry(action: str) -> list[Entry]:
    return [Entry(ACTOR, f"schedule.{action}", TOPIC)]


def _schedule(schedule_id: str, now: datetime, **fields: Any) -> Schedule:
    """Return a schedule of which three times are due, the last one half an hour ago."""
    usual: dict[str, Any] = {
        "when": Every(HOUR.total_seconds(), now - HOUR / 2),
        "missed": "all",
        "upto": now - DUE * HOUR,
        "next_run_at": now - DUE * HOUR + HOUR / 2,
    }
    return Schedule(id=schedule_id, name="s", topic=TOPIC, created=now, updated=now, **usual | fields)


async def _new(stage: Stage) -> Facts:
    return {"id": new_ids.one()}


def _there(**fields: Any) -> Callable[[Stage], Awaitable[Facts]]:
    async def prepare(stage: Stage) -> Facts:
        facts = await _new(stage)
        await _put(stage.store, facts["id"], **fields)
        return facts

    return prepare


async def _put(store: Store, schedule_id: str, **fields: Any) -> Any:
    def decide(old: Schedule | None, now: datetime) -> ScheduleChange | None:
        return None if old else ScheduleChange(_schedule(schedule_id, now, **fields), entries=_entry("put"))

    return await store.change_schedules(Which(name=ScheduleName("s")), decide)


async def _firing(actor: Actor) -> Act:
    async def store() -> Store:
        return actor.store

    firing = Firing(Definitions(store, {}), new_ids)
    return lambda: firing.fire_due(actor.store)


async def _backfilling(actor: Actor) -> Act:
    [one] = await actor.store.schedules(ScheduleFilter(ids=(actor.facts["id"],)))

    async def store() -> Store:
        return actor.store

    firing = Firing(Definitions(store, {}), new_ids)
    first = one.created - HOUR / 2
    times = [first - n * HOUR for n in range(DUE)]

    def decide(old: Schedule | None, now: datetime) -> ScheduleChange:
        assert old is not None
        jobs = [firing.job(old, at, now.tzinfo, "backfill") for at in times]  # type: ignore[arg-type]
        fires = [Fire(fire_at=at, kind="backfill", job=job) for at, job in zip(times, jobs, strict=True)]
        return ScheduleChange(old, fires, _entry("backfill"))

    return lambda: actor.store.change_schedules(Which(ids=(one.id,)), decide)


async def _delete(store: Store, schedule_id: str) -> Any:
    decide: Any = lambda old, now: ScheduleChange(None, entries=_entry("delete"))  # noqa: E731
    return await store.change_schedules(Which(ids=(schedule_id,)), decide)


def _all_or_nothing(history: History, facts: Facts) -> int:
    """Return how often all due times got a job. Some of them never do without the others."""
    made = sum(one.table == FIRES and one.op == "insert" and one.after["job_id"] is not None for one in history.changes)  # type: ignore[index]
    jobs = [row for row in (*history.jobs.values(), *history.archive.values()) if row["schedule_id"] == facts["id"]]
    assert made == len(jobs)
    assert made % DUE == 0
    return made // DUE


async def _fired(stage: Stage) -> Facts:
    """A schedule whose times were recorded as missed long ago."""
    facts = await _there(missed="skip")(stage)
    actor = Actor(stage.url, stage.store, None, facts)  # type: ignore[arg-type]
    await (await _firing(actor))()
    past = "- interval '91 days'" if stage.tables.kind == "postgres" else f"- {int((FIRES_KEPT + 86_400) * 1e6)}"
    await stage.tables.execute(f"UPDATE _jobs_fires SET at = at {past}")
    return facts


def _pruned(history: History, facts: Facts) -> int:
    removed = sum(one.table == FIRES and one.op == "delete" for one in history.changes)
    assert removed in (0, DUE)
    return removed // DUE


case("put a schedule", _new, simply(_put), changes(SCHEDULES, "insert"))
case("fire a schedule", _there(), _firing, _all_or_nothing)
case("fire a schedule into a line", _there(if_live="queue"), _firing, _all_or_nothing)
case("backfill a schedule", _there(), _backfilling, _all_or_nothing)
case("delete a schedule", _there(), simply(_delete), changes(SCHEDULES, "delete"))
case("prune fires", _fired, simply(lambda store, _: store.tidy("prune_fires", 100)), _pruned)
