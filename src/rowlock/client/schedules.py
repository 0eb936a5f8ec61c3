"""`jobs.schedules`: times at which workers make jobs by themselves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from msgspec import Struct, structs

from rowlock.client.audit import Actor, check_reason
from rowlock.client.connections import Stores
from rowlock.client.definitions import Definitions, Tasks
from rowlock.client.enqueue import Announce, Draftable, Inserts, draft_of
from rowlock.client.firing import Firing, made, rescheduled, room_of, zone_of
from rowlock.client.why import is_live
from rowlock.core import codec
from rowlock.core.codec import check_text
from rowlock.core.cron import Cron, Every, When, check_when, in_words, previewed, skipped
from rowlock.core.ids import IdMaker, check_id
from rowlock.core.job import MAX_TEXT, check_flag, check_priority, check_time, check_topic, check_whole
from rowlock.core.schedules import (
    Definition,
    Fire,
    Fired,
    IfLiveJob,
    Missed,
    Schedule,
    ScheduleName,
    State,
    check_definition,
    check_schedule_name,
    definition_data,
    definition_of,
    differences,
    next_time,
    pause_from,
    plan,
    times_after,
    with_definition,
)
from rowlock.core.templates import read_lane
from rowlock.errors import (
    InvalidInput,
    ScheduleChanged,
    ScheduleExists,
    ScheduleNotFound,
    StoreBusy,
    TemplateDisabled,
)
from rowlock.stores.base import Store
from rowlock.stores.callers.work import ChangeSchedules
from rowlock.stores.records import Entry
from rowlock.stores.schedules import (
    Decide,
    Decided,
    ScheduleChange,
    ScheduleFilter,
    UnreadableSchedule,
    Which,
    in_any_case,
)
from rowlock.tasks import Draft, Task
from rowlock.zones import zone_data

MAX_BACKFILL = 1000  # times in one call
MAX_PREVIEW = 1000
_TRIES = 4  # of a put that meets another one with the same name
_GONE = "the code does not declare it any more"
_MICROSECOND = timedelta(microseconds=1)


class ScheduleTime(Struct, frozen=True):
    """A nominal time. `local`: on the clocks of its zone. `note`: what a change of the clocks does to it. `skipped`: it
    does not exist, and makes no job."""

    at: datetime
    local: datetime
    note: str | None = None
    skipped: bool = False


class Preview(Struct, frozen=True):
    """`words`: the schedule in words. `times`: the next ones, oldest first; empty: it never fires again."""

    words: str
    times: list[ScheduleTime]


class SchedulePage(Struct, frozen=True):
    """`next`: the cursor of the next page; None: this is the last one."""

    items: list[Schedule]
    next: str | None


class BackfillTime(Struct, frozen=True):
    """`job_id`: of the job that the time has. `new`: this call has made it, or would make it."""

    fire_at: datetime
    job_id: str | None
    new: bool


class Schedules:
    """`jobs.schedules`. A schedule is named by its name, its scope and its scope_id, or by its id."""

    def __init__(
        self,
        stores: Stores,
        actor: Actor,
        tasks: Tasks,
        definitions: Definitions,
        ids: IdMaker,
        inserts: Inserts,
        announce: Announce,
        owner: str,
    ) -> None:
        self._stores = stores
        self._actor = actor
        self._tasks = tasks
        self._definitions = definitions
        self._ids = ids
        self._inserts = inserts
        self._announce = announce
        self.owner = owner
        self.firing = Firing(definitions, ids)

    async def put(
        self,
        name: str,
        job: Draftable | Task[..., Any],
        when: When,
        *,
        missed: Missed = "last",
        most: int = 100,
        within: float | timedelta | None = None,
        if_live: IfLiveJob = "allow",
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: float | timedelta = 0.0,
        description: str | None = None,
        revision: int | None = None,
        schedule_id: str | None = None,
        conn: Any = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> Schedule:
        """Make a schedule, or change the one that has this name, with the scope and scope_id of the job.

            await jobs.schedules.put("nightly", report.draft(7), Cron("0 2 * * *", "Europe/Berlin"))

        `job`: what each time makes: task.draft(…), a task without arguments, or (topic, payload). Texts in the payload
        may have blanks: {{fire_at}}, {{fire_date}}, {{schedule}}, … `missed`: what happens to times at which no worker
        was there: "last" makes a job for the newest, "skip" for none, "all" for at most `most` of the last `within`
        seconds. `if_live`: what happens if the last job is not over: "allow", "reject" (skip this time), "queue" (one
        waits), "replace" (cancel the last one). `start`, `end`: no time before or after. `jitter`: start each job up to
        so many seconds later. `revision`: change the schedule only if it has this revision; 0: only make a new one;
        else raise ScheduleChanged or ScheduleExists. `schedule_id`: change the schedule only if it has this id, and
        make no new one; else raise ScheduleNotFound. A schedule that was deleted and made again has another id.
        `conn`: do it in this connection's transaction.
        """
        draft = _draft(job)
        named = _name(name, draft)
        given = Definition(
            topic=draft.topic,
            version=draft.options.get("version"),
            payload=draft.payload,
            options=_job_options(draft),
            when=when,
            start=start,
            end=end,
            jitter=cast(float, jitter),
            missed=missed,
            most=most,
            within=cast(float | None, within),
            if_live=if_live,
            description=description,
        )
        definition = check_definition(given)
        await self._look(conn)
        self._check_job(named, definition)
        actor, why = self._actor(by), check_reason(reason)
        expected = None if revision is None else check_whole(revision, "revision", 0, 1 << 31)
        meant = None if schedule_id is None else check_id(schedule_id, "schedule_id")
        same: list[Schedule] = []

        def decide(old: Schedule | None, now: datetime) -> ScheduleChange | None:
            same.clear()
            if meant is not None and (old is None or old.id != meant):
                raise ScheduleNotFound(meant)
            _check_revision(named, old, expected)
            if old is None:
                return self._new(named, definition, now, actor, why, None)
            if old.owner is not None and not old.absent:
                raise ScheduleExists(named.name, old.owner, "change it there, or use another name")
            if old.owner is None and definition_of(old) == definition:
                same.append(old)
                return None
            return self._changed(old, definition, now, actor, why, None)

        found = await self._change(Which(name=named), decide, conn)
        schedule = found[0].schedule if found else same[0]
        assert schedule is not None  # noqa: S101 - narrows the type
        return schedule

    async def get(self, name: str, *, scope: str | None = None, scope_id: str | None = None) -> Schedule:
        """Return a schedule. Raise ScheduleNotFound."""
        return await self._find(await self._store(), name, scope, scope_id)

    async def delete(
        self,
        name: str,
        *,
        scope: str | None = None,
        scope_id: str | None = None,
        conn: Any = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> Schedule | None:
        """Delete a schedule and its history. Its jobs stay. Return it as it was; None: a newer release has written it,
        and this one can't read it. Raise ScheduleExists if code declares it: remove it there, or pause it."""
        return await self._delete(name, scope, scope_id, conn, reason, by, lambda old: None)

    async def _delete(
        self,
        name: str,
        scope: str | None,
        scope_id: str | None,
        conn: Any,
        reason: str | None,
        by: str | None,
        check: Callable[[Schedule | UnreadableSchedule], None],
    ) -> Schedule | None:
        """`check`: raises if the caller may not delete it."""
        actor, why = self._actor(by), check_reason(reason)
        deleted: list[Schedule | UnreadableSchedule] = []

        def entry(old: Schedule | UnreadableSchedule, data: dict[str, Any]) -> Entry:
            check(old)
            if old.owner is not None and not old.absent:
                raise ScheduleExists(old.name, old.owner, "remove it there, or pause it")
            deleted[:] = [old]
            return _entry(actor, "schedule.delete", old, why, data)

        def decide(old: Schedule | None, now: datetime) -> ScheduleChange:
            if old is None:
                raise ScheduleNotFound(name)
            return ScheduleChange(None, entries=[entry(old, {"definition": definition_data(old)})])

        def unreadable(old: UnreadableSchedule) -> Entry:
            return entry(old, {"unreadable": True, "definition": _data_of(old)})

        which = structs.replace(_which(name, scope, scope_id), delete_unreadable=unreadable)
        await self._change(which, decide, conn)
        if not deleted:
            raise ScheduleNotFound(name)
        return deleted[0] if isinstance(deleted[0], Schedule) else None

    async def pause(
        self,
        name: str,
        *,
        scope: str | None = None,
        scope_id: str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> Schedule:
        """Make no jobs until `resume`. The times that pass meanwhile are recorded, and never caught up. Times that came
        before the pause, and that no process has decided yet, are decided first."""
        actor, why = self._actor(by), check_reason(reason)
        handle = await self._stores.handle()
        schedule = await self._find(handle.store, name, scope, scope_id)
        if not schedule.is_paused and made(await self.firing.fire_alone(handle.store, schedule.id)):
            self._announce(handle)

        def decide(old: Schedule, now: datetime) -> ScheduleChange | None:
            if old.is_paused:
                return None
            new = structs.replace(
                old,
                paused_at=pause_from(old, now),
                resumed_at=None,
                paused_by=actor,
                pause_reason=why,
                revision=old.revision + 1,
                updated=now,
            )
            return ScheduleChange(new, entries=[_entry(actor, "schedule.pause", old, why)])

        return await self._steer(name, scope, scope_id, decide)

    async def resume(
        self,
        name: str,
        *,
        scope: str | None = None,
        scope_id: str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> Schedule:
        """Make jobs again, from the next time on."""
        actor, why = self._actor(by), check_reason(reason)

        def decide(old: Schedule, now: datetime) -> ScheduleChange | None:
            if not old.is_paused:
                return None
            new = structs.replace(_resumed(old, now), revision=old.revision + 1, updated=now)
            if old.upto > now:  # the database's clock was ahead
                new = rescheduled(new, now, zone_of(new))
            return ScheduleChange(new, entries=[_entry(actor, "schedule.resume", old, why)])

        return await self._steer(name, scope, scope_id, decide)

    async def run_now(
        self,
        name: str,
        *,
        scope: str | None = None,
        scope_id: str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> Fired:
        """Make a job now, beside the schedule's own times, even if it is paused. `if_live` holds: the answer has a
        reason instead of a job_id if the last job is not over. Raise what is wrong with the job."""
        actor, why = self._actor(by), check_reason(reason)
        await self._definitions.refresh()

        later = timedelta()

        def decide(old: Schedule, now: datetime) -> ScheduleChange:
            at = now + later
            job = self.firing.job(old, at, zone_of(old), "run_now")
            fire = Fire(fire_at=at, kind="run_now", job=job, room=room_of(old, one_waits=True))
            return ScheduleChange(old, [fire], [_entry(actor, "schedule.run_now", old, why)])

        handle = await self._stores.handle()
        for _ in range(_TRIES):
            [decided] = await self._steered(handle.store, name, scope, scope_id, decide)
            if decided.fired:
                self._announce(handle)
                return decided.fired[0]
            later += _MICROSECOND  # another job was made for the same microsecond
        raise StoreBusy(f"the schedule {name!r} makes jobs all the time: try again")

    async def backfill(
        self,
        name: str,
        start: datetime,
        end: datetime,
        *,
        scope: str | None = None,
        scope_id: str | None = None,
        dry_run: bool = False,
        priority: int | str = "backfill",
        reason: str | None = None,
        by: str | None = None,
    ) -> Sequence[BackfillTime]:
        """Make the jobs of past times, from `start` to `end`, for those that have none: times that were missed, or that
        came before the schedule was made. All in one transaction, at most 1,000. `dry_run`: only return the times.

        `if_live` does not hold here. Jobs run oldest first, behind others: `priority` is 30 if nothing else is said.
        """
        first, last = check_time(start, "start"), check_time(end, "end")
        if last < first:
            raise InvalidInput("end", "before_start", "is before start")
        actor, why, rank = self._actor(by), check_reason(reason), check_priority(priority)
        await self._definitions.refresh()
        handle = await self._stores.handle()
        schedule = await self._find(handle.store, name, scope, scope_id)
        if last > await handle.store.now():
            raise InvalidInput(
                "end", "in_the_future", "must not be later than now: these times make their jobs by themselves"
            )
        times: list[datetime] = []

        def decide(old: Schedule, now: datetime) -> ScheduleChange:
            times[:] = _times_between(old, first, last)
            local = zone_of(old)
            ranked = structs.replace(old, options=old.options | {"priority": rank})
            jobs = [self.firing.job(ranked, at, local, "backfill") for at in times]
            aged = [structs.replace(job, run_at=at) for job, at in zip(jobs, times, strict=True)]
            fires = [Fire(fire_at=at, kind="backfill", job=job) for job, at in zip(aged, times, strict=True)]
            data = {"start": first.isoformat(), "end": last.isoformat(), "times": len(times)}
            return ScheduleChange(old, fires, [_entry(actor, "schedule.backfill", old, why, data)])

        new: dict[datetime, str | None] = {}
        if dry_run:
            times = _times_between(schedule, first, last)
        else:
            [decided] = await self._steered(handle.store, schedule.id, None, None, decide)
            new = {one.fire_at: one.job_id for one in decided.fired}
            if made([decided]):
                self._announce(handle)
        there = await self._jobs_between(handle.store, schedule.id, first, last) if times else {}
        return [BackfillTime(at, there.get(at), at in new if not dry_run else at not in there) for at in times]

    async def preview(
        self,
        schedule: str | When,
        *,
        scope: str | None = None,
        scope_id: str | None = None,
        limit: int = 5,
        after: datetime | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> Preview:
        """Return the next times of a schedule, or of a Cron or Every, with what changes of the clocks do to them."""
        most = check_whole(limit, "limit", 1, MAX_PREVIEW)
        if isinstance(schedule, Cron | Every):
            definition = Definition(
                topic="preview",
                when=check_when(schedule),
                start=None if start is None else check_time(start, "start"),
                end=None if end is None else check_time(end, "end"),
            )
            zone_of(definition)
        else:
            for field, given in (("start", start), ("end", end)):
                if given is not None:
                    problem = f"is for a Cron or an Every: the schedule {schedule!r} has its own"
                    raise InvalidInput(field, "not_here", problem)
            definition = await self.get(schedule, scope=scope, scope_id=scope_id)
        since = await (await self._store()).now() if after is None else check_time(after, "after")
        return preview(definition, since, most)

    async def history(
        self,
        name: str,
        *,
        scope: str | None = None,
        scope_id: str | None = None,
        limit: int = 50,
        before: datetime | None = None,
    ) -> Sequence[Fired]:
        """Return what became of the schedule's times, newest first: each made a job, or has a reason why not. `before`:
        only times before this one. The database keeps times without a job for 90 days."""
        most = check_whole(limit, "limit", 1, 1000)
        store = await self._store()
        schedule = await self._find(store, name, scope, scope_id)
        below = None if before is None else check_time(before, "before")
        return (await store.fires([schedule.id], before=below, limit=most))[schedule.id]

    async def histories(self, ids: Sequence[str], *, limit: int = 30) -> Mapping[str, Sequence[Fired]]:
        """Return the same for many schedules, by their ids."""
        most = check_whole(limit, "limit", 1, 1000)
        return await (await self._store()).fires([check_id(one) for one in ids], limit=most)

    async def publish(self, *, by: str | None = None) -> Sequence[Schedule]:
        """Store the schedules that tasks declare (@jobs.task(schedule=…)). Return those that have changed. Those that
        the code has declared before, and does not any more, are paused and marked as absent. Workers call it when they
        start."""
        actor = self._actor(by)
        declared = self.declared()
        if not declared and not self._tasks:
            return []
        await self._definitions.refresh()
        changed: list[Schedule] = []
        for named, definition in declared.items():
            with suppress(TemplateDisabled):  # that is no reason for a worker not to start
                self._check_job(named, definition)

            def decide(
                old: Schedule | None, now: datetime, named: ScheduleName = named, definition: Definition = definition
            ) -> ScheduleChange | None:
                return self._published(old, now, named, definition, actor)

            found = await self._change(Which(name=named), decide, None)
            changed += [one.schedule for one in found if one.schedule is not None]
        return [*changed, *await self.mark_absent(by=actor)]

    def declared(self) -> dict[ScheduleName, Definition]:
        """Return the schedules that the tasks of this process declare."""
        found: dict[ScheduleName, Definition] = {}
        for versions in self._tasks.values():
            for task in versions.values():
                for one in task.schedules:
                    named = check_schedule_name(one.name or task.topic, one.scope, one.scope_id)
                    if named in found:
                        problem = f"two schedules in the code have the name {named.name!r}: give them names"
                        raise InvalidInput("schedule.name", "declared_twice", problem)
                    found[named] = definition_of(one.definition(task.topic, task.version))
        return found

    # ── Inside ──

    def _published(
        self, old: Schedule | None, now: datetime, named: ScheduleName, definition: Definition, actor: str
    ) -> ScheduleChange | None:
        if old is None:
            return self._new(named, definition, now, actor, None, self.owner)
        if old.owner is None:
            problem = "a task declares the same name in code: give that one another name, or delete this one"
            raise ScheduleExists(named.name, None, problem)
        if definition_of(old) == definition and old.owner == self.owner and not old.absent:
            return None
        return self._changed(old, definition, now, actor, None, self.owner)

    async def mark_absent(self, *, by: str | None = None) -> Sequence[Schedule]:
        """Pause the schedules that the code of this process has declared before, and does not any more. Return them.

        Another program may have a module of the same name: a schedule whose topic another live worker runs, and no task
        of this process, is left alone. So workers look again now and then: those of an older release end at last."""
        actor, declared = self._actor(by), self.declared()
        store = await self._store()
        there = await store.schedules(ScheduleFilter(owner=self.owner, absent=False), limit=10_000)
        left = [one for one in there if ScheduleName(one.name, one.scope, one.scope_id) not in declared]
        if not left:
            return []
        now = await store.now()
        lanes = {lane for worker in await store.workers() if is_live(worker, now) for lane in worker.topics}
        elsewhere = {read_lane(lane).topic for lane in lanes} - self._tasks.keys()
        gone = tuple(one.id for one in left if one.topic not in elsewhere)

        def decide(old: Schedule | None, now: datetime) -> ScheduleChange | None:
            if old is None or old.absent:
                return None
            new = structs.replace(old, absent=True, revision=old.revision + 1, updated=now)
            if not old.is_paused:
                paused = pause_from(old, now)
                new = structs.replace(new, paused_at=paused, resumed_at=None, paused_by=actor, pause_reason=_GONE)
            return ScheduleChange(new, entries=[_entry(actor, "schedule.absent", old, _GONE)])

        found = await store.change_schedules(Which(ids=gone), decide) if gone else []
        return [one.schedule for one in found if one.schedule is not None]

    def _new(
        self, named: ScheduleName, definition: Definition, now: datetime, actor: str, why: str | None, owner: str | None
    ) -> ScheduleChange:
        schedule = Schedule(
            id=self._ids.one(),
            **structs.asdict(named),
            owner=owner,
            upto=now,
            next_run_at=_first_time(definition, now)
            if owner is None
            else next_time(definition, now, zone_of(definition)),
            zone_data=zone_data(),
            created=now,
            updated=now,
            **{name: getattr(definition, name) for name in Definition.__struct_fields__},
        )
        data = {"name": named.name, "definition": definition_data(definition)}
        return ScheduleChange(schedule, entries=[_entry(actor, "schedule.put", schedule, why, data)])

    def _changed(
        self,
        old: Schedule,
        definition: Definition,
        now: datetime,
        actor: str,
        why: str | None,
        owner: str | None,
    ) -> ScheduleChange:
        """Return the change of a schedule's definition. Times before the change that were not decided yet are recorded
        as missed."""
        new = with_definition(old, definition, revision=old.revision + 1, updated=now, owner=owner, absent=False)
        if old.absent and old.pause_reason == _GONE:
            new = _resumed(new, now)
        fires: list[Fire] = []
        if (old.when, old.start, old.end) != (new.when, new.start, new.end) or old.upto > now:
            with suppress(InvalidInput):  # the zone is unknown here
                times, detail = plan(old, now, zone_of(old))
                fires = [
                    Fire(fire_at=at, reason=why_not or "missed", detail=detail or "the schedule was changed")
                    for at, why_not in times
                ]
            if owner is None:
                _first_time(definition, now)
            new = rescheduled(new, now, zone_of(new))
        data: dict[str, Any] = {"name": old.name, "changed": differences(old, definition)}
        return ScheduleChange(new, fires, [_entry(actor, "schedule.put", new, why, data)])

    def _check_job(self, named: ScheduleName, definition: Definition) -> None:
        """Raise what is wrong with the topic, or with the payload, as it would be for a job of the schedule."""
        local = zone_of(definition)
        at = _first_time(definition, datetime.fromtimestamp(0, UTC))
        sample = Schedule(
            id=self._ids.one(),
            **structs.asdict(named),
            upto=at,
            created=at,
            updated=at,
            **{name: getattr(definition, name) for name in Definition.__struct_fields__},
        )
        self.firing.job(sample, at, local, "schedule")

    async def _steer(
        self,
        name: str,
        scope: str | None,
        scope_id: str | None,
        decide: Callable[[Schedule, datetime], ScheduleChange | None],
    ) -> Schedule:
        """Change an existing schedule. Return it as it is then."""
        store = await self._store()
        seen: list[Schedule] = []

        def noted(old: Schedule, now: datetime) -> ScheduleChange | None:
            seen[:] = [old]
            return decide(old, now)

        decided = await self._steered(store, name, scope, scope_id, noted)
        return decided[0].schedule or seen[0] if decided else seen[0]

    async def _steered(
        self,
        store: Store,
        name: str,
        scope: str | None,
        scope_id: str | None,
        decide: Callable[[Schedule, datetime], ScheduleChange | None],
    ) -> Sequence[Decided]:
        found = False

        def known(old: Schedule | None, now: datetime) -> ScheduleChange | None:
            nonlocal found
            if old is None:
                raise ScheduleNotFound(name)
            found = True
            return decide(old, now)

        decided = await store.change_schedules(_which(name, scope, scope_id), known)
        if not found:
            raise ScheduleNotFound(name)
        return decided

    async def _change(self, which: Which, decide: Decide, conn: Any) -> Sequence[Decided]:
        if conn is not None:
            return await self._inserts.carry(conn, ChangeSchedules(which, decide))
        store = await self._store()
        for left in reversed(range(_TRIES)):
            try:
                return await store.change_schedules(which, decide)
            except StoreBusy:
                if not left:
                    raise
        raise AssertionError("not reached")

    async def _find(self, store: Store, name: str, scope: str | None, scope_id: str | None) -> Schedule:
        which = _which(name, scope, scope_id)
        if which.ids is not None:
            found = await store.schedules(ScheduleFilter(ids=which.ids), limit=1)
        else:
            wanted = which.name or ScheduleName(name)
            all_of_them = await store.schedules(
                ScheduleFilter(name=wanted.name, scope=scope, scope_id=scope_id), limit=1000
            )
            found = [one for one in all_of_them if (one.scope, one.scope_id) == (wanted.scope, wanted.scope_id)]
        if not found:
            raise ScheduleNotFound(name)
        return found[0]

    async def _jobs_between(
        self, store: Store, schedule_id: str, first: datetime, last: datetime
    ) -> dict[datetime, str]:
        """Return the jobs of the times between, by time."""
        jobs: dict[datetime, str] = {}
        before: datetime | None = last + _MICROSECOND
        while before is not None:
            page = (await store.fires([schedule_id], before=before, limit=1000))[schedule_id]
            jobs |= {one.fire_at: one.job_id for one in page if one.job_id is not None}
            before = page[-1].fire_at if len(page) == 1000 and page[-1].fire_at > first else None
        return jobs

    async def _look(self, conn: Any) -> None:
        if conn is not None:
            await self._stores.home()
        await self._definitions.refresh()

    async def _store(self) -> Store:
        return (await self._stores.handle()).store

    # ── `list` is a verb from here on ──

    async def list(
        self,
        *,
        topic: str | None = None,
        scope: str | None = None,
        scope_id: str | None = None,
        state: State | None = None,
        text: str | None = None,
        absent: bool | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> SchedulePage:
        """Return schedules by name. `state`: active, paused, or over (it never fires again). `text`: a part of the
        name, in capitals or not. `absent`: the code that declared it is gone. `cursor`: `next` of the page before."""
        most = check_whole(limit, "limit", 1, 1000)
        if state not in (None, "active", "paused", "over"):
            raise InvalidInput("state", "unknown_name", f"{state!r:.40} is none of active, paused, over")
        after = None if cursor is None else _read_cursor(cursor)
        wanted = ScheduleFilter(
            topic=None if topic is None else check_topic(topic),
            scope=None if scope is None else check_text(scope, "scope", max_chars=MAX_TEXT),
            scope_id=None if scope_id is None else check_text(scope_id, "scope_id", max_chars=MAX_TEXT),
            state=state,
            pattern=None if text is None else in_any_case(check_text(text, "text", max_chars=MAX_TEXT)),
            absent=None if absent is None else check_flag(absent, "absent"),
        )
        found = await (await self._store()).schedules(wanted, after=after, limit=most + 1)
        items = found[:most]
        return SchedulePage(items, f"{items[-1].id} {items[-1].name}" if len(found) > most else None)


def _read_cursor(cursor: str) -> tuple[str, str]:
    """Return the name and the id behind which the page begins."""
    last_id, _, last_name = check_text(cursor, "cursor", max_chars=MAX_TEXT).partition(" ")
    try:
        return check_text(last_name, "cursor", max_chars=MAX_TEXT), check_id(last_id, "cursor")
    except InvalidInput:
        problem = "is not what an earlier page gave you as next: leave it out to begin anew"
        raise InvalidInput("cursor", "bad_cursor", problem) from None


def preview(definition: Definition, after: datetime, limit: int) -> Preview:
    """Return the next `limit` times after this one, and those between that a change of the clocks makes impossible."""
    local = zone_of(definition)
    since = after if definition.start is None else max(after, definition.start - _MICROSECOND)
    end = definition.end

    def within_end() -> Iterator[ScheduleTime]:
        for one in previewed(definition.when, since, local):
            if end is not None and one.at > end:
                return
            yield ScheduleTime(one.at, one.at.astimezone(local), one.note)

    times = list(itertools.islice(within_end(), limit))
    if times:
        until = times[-1].at
        left_out = [
            ScheduleTime(one.at, one.at.astimezone(local), one.note, True)
            for one in skipped(definition.when, since, until, local)
        ]
        times = sorted([*times, *left_out], key=lambda one: one.at)
    return Preview(in_words(definition.when), times)


def _draft(job: Draftable | Task[..., Any]) -> Draft:
    if isinstance(job, Task):
        return job.draft()
    try:
        return draft_of(0, job)
    except InvalidInput as error:
        raise InvalidInput(error.field.replace("jobs[0]", "job"), error.code, error.problem) from None


def _name(name: str, draft: Draft) -> ScheduleName:
    return check_schedule_name(name, draft.options.get("scope"), draft.options.get("scope_id"))


def _job_options(draft: Draft) -> dict[str, Any]:
    """Return the options that belong to the schedule's jobs."""
    given = cast(dict[str, Any], {**draft.options})
    for name in ("scope", "scope_id", "version"):
        given.pop(name, None)
    if given.pop("if_live", None) is not None:
        raise InvalidInput("if_live", "not_here", "give it to put: it says what happens if the last job is not over")
    return given


def _which(name: str, scope: str | None, scope_id: str | None) -> Which:
    with suppress(InvalidInput):
        if scope is None and scope_id is None:
            return Which(ids=(check_id(name),))
    return Which(name=check_schedule_name(name, scope, scope_id))


def _check_revision(named: ScheduleName, old: Schedule | None, expected: int | None) -> None:
    if expected is None:
        return
    if old is None:
        if expected:
            raise ScheduleNotFound(named.name)
        return
    if not expected:
        raise ScheduleExists(named.name, old.owner, "use another name, or change that one")
    if old.revision != expected:
        raise ScheduleChanged(named.name, expected, old.revision)


def _first_time(definition: Definition, now: datetime) -> datetime:
    at = next_time(definition, now, zone_of(definition))
    if at is None:
        raise _never(definition)
    return at


def _never(definition: Definition) -> InvalidInput:
    if definition.end is not None:
        return InvalidInput(
            "end", "never", f"{definition.end.isoformat()} comes before the next time: it would never fire"
        )
    return InvalidInput("when", "never", "has no time in the future: the schedule would never fire")


def _times_between(schedule: Schedule, first: datetime, last: datetime) -> list[datetime]:
    """Return the nominal times between, without regard to start and end of the schedule."""
    unbounded = structs.replace(schedule, start=None, end=last)
    times = list(itertools.islice(times_after(unbounded, first - _MICROSECOND, zone_of(schedule)), MAX_BACKFILL + 1))
    if len(times) > MAX_BACKFILL:
        problem = f"there are more than {MAX_BACKFILL} times from start to end: take a shorter time"
        raise InvalidInput("end", "too_many", problem)
    return times


def _resumed(schedule: Schedule, now: datetime) -> Schedule:
    return structs.replace(schedule, resumed_at=now, paused_by=None, pause_reason=None)


def _data_of(schedule: UnreadableSchedule) -> Any:
    """Return its definition as data, in which secrets can be hidden by their names; None if it is no JSON."""
    try:
        data = codec.decode(schedule.definition)
        codec.encode(data, "definition")
    except (InvalidInput, ValueError, RecursionError):
        return None
    return data


def _entry(
    by: str,
    action: str,
    schedule: Schedule | UnreadableSchedule,
    why: str | None,
    data: dict[str, Any] | None = None,
) -> Entry:
    told = {"schedule_id": schedule.id, "name": schedule.name, **(data or {})}
    return Entry(by, action, schedule.topic, why, told)
