"""From a nominal time of a schedule to its job. Every worker and every server does this when times have come."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import datetime, tzinfo

from msgspec import structs

from rowlock.client.definitions import Definitions
from rowlock.core.cron import Cron
from rowlock.core.ids import IdMaker
from rowlock.core.job import NewJob
from rowlock.core.schedules import (
    MOST_RECORDED,
    Definition,
    Fire,
    Kind,
    Schedule,
    blanks_of,
    fill,
    jitter_of,
    next_time,
    plan,
)
from rowlock.errors import InvalidInput, RowlockError, StoreError, TemplateDisabled, TemplateUnreadable
from rowlock.stores.base import Store
from rowlock.stores.schedules import Decided, ScheduleChange, ScheduleFilter, Which
from rowlock.tasks import Draft, JobOptions
from rowlock.zones import zone, zone_data

log = logging.getLogger("rowlock")

BATCH = 100  # schedules in one transaction
_ASIDE = 60.0  # seconds for which a schedule that can't be fired here is left to other processes
_PAGE = 200  # schedules whose next times are found anew in one transaction


def zone_of(definition: Definition) -> tzinfo:
    """Return the time zone. Raise InvalidInput if this machine doesn't know it."""
    return zone(definition.when.zone if isinstance(definition.when, Cron) else "UTC")


class Firing:
    """Fires schedules. Any number of processes may do it at once: a schedule is locked while its times are decided."""

    def __init__(self, definitions: Definitions, ids: IdMaker) -> None:
        self._definitions = definitions
        self._ids = ids
        self._set_aside: dict[str, float] = {}  # schedules that can't be fired here, until then by time.monotonic()

    @property
    def set_aside(self) -> tuple[str, ...]:
        """Return the schedules that this process has failed to read, or whose zone it did not know, a while ago. They
        must not hold up the other schedules."""
        now = time.monotonic()
        self._set_aside = {one: until for one, until in self._set_aside.items() if until > now}
        return tuple(self._set_aside)

    def _leave(self, schedule_id: str) -> None:
        self._set_aside[schedule_id] = time.monotonic() + _ASIDE

    async def fire_due(self, store: Store) -> list[Decided]:
        """Decide the due times of some schedules, and make their jobs. Return an empty list if nothing was due, or if
        other processes have locked the due schedules."""
        await self._definitions.refresh()
        locked: list[str] = []
        fires = 0

        def decide(schedule: Schedule | None, now: datetime) -> ScheduleChange | None:
            """Decide one schedule. After an outage, one batch could have a million times: the next batch does more."""
            nonlocal fires
            if schedule is None or fires >= MOST_RECORDED:
                return None
            locked.append(schedule.id)
            change = self._due(schedule, now)
            fires += 0 if change is None else len(change.fires)
            return change

        try:
            while True:
                skip = self.set_aside
                decided = await store.change_schedules(Which(due=BATCH, skip=skip), decide, self._leave)
                if decided or self._set_aside.keys() <= set(skip):
                    return decided
                # None of the batch can be fired here: look at the next ones.
        except StoreError:
            raise
        except RowlockError:  # the store has refused a job: find out which
            return [one for schedule_id in set(locked) for one in await self.fire_alone(store, schedule_id)]

    async def fire_alone(self, store: Store, schedule_id: str) -> list[Decided]:
        """Decide the due times of one schedule: all of them at once, or one by one if the store refuses a job."""
        await self._definitions.refresh()
        which = Which(ids=(schedule_id,))
        try:
            return await store.change_schedules(which, lambda one, now: self._due(one, now))
        except StoreError:
            raise
        except RowlockError:
            pass
        decided: list[Decided] = []
        while some := await self._fire_one(store, which):
            decided += some
        return decided

    async def _fire_one(self, store: Store, which: Which) -> list[Decided]:
        try:
            return await store.change_schedules(which, lambda one, now: self._due(one, now, one_job=True))
        except StoreError:
            raise
        except RowlockError as error:
            refused = str(error)
            return await store.change_schedules(which, lambda one, now: self._due(one, now, refused, one_job=True))

    def _due(
        self, schedule: Schedule | None, now: datetime, refused: str | None = None, *, one_job: bool = False
    ) -> ScheduleChange | None:
        """Return the change that decides the due times of a schedule; None if none is due, or this machine lacks its
        zone. `refused`: why the job can't be inserted. `one_job`: decide no more than the oldest time with a job."""
        if schedule is None or schedule.next_run_at is None or schedule.next_run_at > now:
            return None
        try:
            local = zone_of(schedule)
        except InvalidInput as error:  # the time zone data of another machine may have it
            log.warning("the schedule %s can't be fired here: %s", schedule.name, error)
            self._leave(schedule.id)
            return None
        planned = plan(schedule, now, local)
        times, upto = planned.times, max(schedule.upto, now)
        making = [at for at, reason in times if reason is None]
        if one_job and making and making[0] != times[-1][0]:
            upto = making[0]
            times = [one for one in times if one[0] <= upto]
        fires: list[Fire] = []
        for at, reason in times:
            if reason is not None:
                fires.append(Fire(fire_at=at, reason=reason, detail=planned.detail if not fires else None))
            elif refused is not None:
                fires.append(Fire(fire_at=at, reason="invalid", detail=refused))
            else:
                fires.append(self.fire(schedule, at, local, "schedule", one_waits=len(making) == 1))
        for one in fires:
            if one.reason in ("disabled", "invalid"):
                log.warning("the schedule %s made no job for %s: %s", schedule.name, one.fire_at, one.detail)
        return ScheduleChange(rescheduled(schedule, upto, local), fires)

    def fire(self, schedule: Schedule, at: datetime, local: tzinfo, kind: Kind, *, one_waits: bool) -> Fire:
        """Return the fire of one time: with its job, or the reason why there can be none."""
        try:
            job = self.job(schedule, at, local, kind)
        except TemplateDisabled as error:
            return Fire(fire_at=at, kind=kind, reason="disabled", detail=str(error))
        except (InvalidInput, TemplateUnreadable) as error:
            return Fire(fire_at=at, kind=kind, reason="invalid", detail=str(error))
        return Fire(fire_at=at, kind=kind, job=job, room=room_of(schedule, one_waits=one_waits))

    def job(self, schedule: Schedule, at: datetime, local: tzinfo, kind: Kind) -> NewJob:
        """Return the checked job of a nominal time. Raise InvalidInput, TemplateDisabled or TemplateUnreadable."""
        topic, version = schedule.topic, schedule.version
        rule = self._definitions.rule(topic, version)
        template = self._definitions.template(topic, version)
        if template is not None and not template.schedulable:
            raise InvalidInput("topic", "not_schedulable", f"{topic} can't be scheduled: its template says so")
        if template is not None and template.has_window:
            problem = f"{topic} has debounce or throttle, which a schedule can't keep: schedule a task that enqueues it"
            raise InvalidInput("topic", "with_debounce", problem)
        blanks = blanks_of(schedule, at, local)
        options = JobOptions(**schedule.options)  # type: ignore[typeddict-item] # checked when it was put
        if "key" in options:
            options["key"] = fill(options["key"], blanks, "key")
        if version is not None:
            options["version"] = version
        if schedule.scope is not None:
            options["scope"] = schedule.scope
        if schedule.scope_id is not None:
            options["scope_id"] = schedule.scope_id
        if kind == "schedule":
            options["run_at"] = at + jitter_of(schedule.id, at, schedule.jitter)
        if schedule.if_live != "allow" and kind != "backfill":
            if template is not None and (template.key is not None or template.once):
                problem = f'{topic} has a key of its own, and says itself what happens: use "allow"'
                raise InvalidInput("if_live", "has_key", problem)
            # Jobs of one line know of each other, also after a change of `if_live`. A rejected time adds none.
            options["key"] = schedule.key
            options["if_live"] = "queue" if schedule.if_live == "reject" else schedule.if_live
        return rule.job(Draft(topic, fill(schedule.payload, blanks), options), self._ids.one())

    async def find_times_anew(self, store: Store) -> int:
        """If this machine has newer time zone data than the one that found the next times of schedules, find them
        anew. Return how many have changed."""
        version = zone_data()
        if not version:
            return 0
        changed = 0

        def decide(schedule: Schedule | None, now: datetime) -> ScheduleChange | None:
            nonlocal changed
            if schedule is None or schedule.zone_data >= version:
                return None
            if schedule.next_run_at is not None and schedule.next_run_at <= now:
                return None  # it is about to fire, by the times that were announced
            try:
                new = rescheduled(schedule, max(schedule.upto, now), zone_of(schedule))
            except InvalidInput:  # another machine knew the zone
                new = structs.replace(schedule, zone_data=version)
            changed += new.next_run_at != schedule.next_run_at
            return ScheduleChange(new)

        after = None
        while found := await store.schedules(ScheduleFilter(zone_data=version), after=after, limit=_PAGE):
            await store.change_schedules(Which(ids=tuple(one.id for one in found)), decide)
            after = found[-1].name, found[-1].id
        return changed


def room_of(schedule: Schedule, *, one_waits: bool) -> int | None:
    """Return how many live jobs of the schedule there may be with a new one. `one_waits`: at most one waits in the
    queue; else any number."""
    match schedule.if_live:
        case "reject":
            return 1
        case "queue":
            return 2 if one_waits else None
        case _:
            return None


def rescheduled(schedule: Schedule, upto: datetime, local: tzinfo) -> Schedule:
    """Return the schedule with every time up to this one decided."""
    return structs.replace(schedule, upto=upto, next_run_at=next_time(schedule, upto, local), zone_data=zone_data())


def made(decided: Sequence[Decided]) -> bool:
    """True if a job was made."""
    return any(one.job_id is not None for each in decided for one in each.fired)
