"""Routes of schedules: when jobs are made by themselves, and what became of each time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from rowlock.client.schedules import Preview, preview
from rowlock.core.cron import MAX_EXPRESSION, MAX_ZONE, Cron, Every, Gap, Overlap, When, in_words
from rowlock.core.job import MAX_DELAY, Status, check_topic
from rowlock.core.schedules import (
    MAX_CAUGHT_UP,
    MAX_DESCRIPTION,
    MAX_JITTER,
    MAX_NAME,
    Fired,
    IfLiveJob,
    Kind,
    Missed,
    Schedule,
    Source,
    State,
    read_when,
)
from rowlock.core.schedules import Reason as WhyNot
from rowlock.errors import InvalidInput, ScheduleNotFound
from rowlock.http import cursors
from rowlock.http.call import Call
from rowlock.http.jobs import DeleteQuery
from rowlock.http.problems import Problem, check_range
from rowlock.http.redacting import check_unmarked
from rowlock.http.routes import Routes, scope
from rowlock.http.shapes import (
    Asked,
    PageQuery,
    Priority,
    Reason,
    ReasonBody,
    Retries,
    Seconds,
    Tags,
    TemplateVersion,
    Text,
    Time,
    Timeout,
    Topic,
    copied,
    schema,
)
from rowlock.stores.queries import MAX_LIMIT, check_limit
from rowlock.stores.schedules import UnreadableSchedule
from rowlock.tasks import Draft, JobOptions

ROUTES = Routes()

READ = scope("read", bounded=True, or_scope="schedules")
WRITE = scope("schedules", bounded=True)
COMPUTE = scope("read", bounded=True, or_scope="schedules", writes=False)

NEXT = 5  # times in an answer about a schedule
RECENT = 30  # fires in an answer about a schedule
_MOST_REVISIONS = 1 << 31
_AT_ONCE = 20  # schedules whose next times are found before other requests have their turn

T = TypeVar("T")

Name = Annotated[str, schema(minLength=1, maxLength=MAX_NAME)]
Few = Annotated[int, schema(minimum=1, maximum=MAX_LIMIT)]


class WhenAsked(Asked, frozen=True, kw_only=True):
    """`cron` with `zone`, `gap` and `overlap`; or `every`, in seconds, with `anchor`."""

    cron: Annotated[str, schema(minLength=1, maxLength=MAX_EXPRESSION)] | None = None
    zone: Annotated[str, schema(minLength=1, maxLength=MAX_ZONE)] | None = None
    gap: Gap | None = None
    overlap: Overlap | None = None
    every: Annotated[float, schema(minimum=1, maximum=MAX_DELAY)] | None = None
    anchor: Time | None = None


class Defined(Asked, frozen=True, kw_only=True):
    topic: Topic
    when: WhenAsked
    version: TemplateVersion | None = None
    priority: Priority | None = None
    max_retries: Retries | None = None
    timeout: Timeout | None = None
    tags: Tags | None = None
    key: Text | None = None
    start: Time | None = None
    end: Time | None = None
    jitter: Annotated[float, schema(minimum=0, maximum=MAX_JITTER)] = 0.0
    missed: Missed = "last"
    most: Annotated[int, schema(minimum=1, maximum=MAX_CAUGHT_UP)] = 100
    within: Seconds | None = None
    if_live: IfLiveJob = "allow"
    description: Annotated[str, schema(minLength=1, maxLength=MAX_DESCRIPTION)] | None = None
    reason: Reason | None = None


class ScheduleCreateBody(Defined, frozen=True, kw_only=True):
    """A new schedule. Texts in the payload may have blanks: {{fire_at}}, {{fire_at_local}}, {{fire_date}},
    {{schedule}}, {{scope}}, {{scope_id}}."""

    name: Name
    scope: Text | None = None
    scope_id: Text | None = None
    payload: dict[str, Any] = msgspec.field(default_factory=dict)


class ScheduleChangeBody(Defined, frozen=True, kw_only=True):
    """The whole definition. What is left out gets its default; only `payload` stays as it is then, because parts of it
    may be hidden. `revision`: that of the schedule which you have read; if it has another one by now, nothing is
    changed. `name`, `scope` and `scope_id` can't change: leave them out, or give them as they are."""

    name: Name | UnsetType = UNSET
    scope: Text | UnsetType | None = UNSET
    scope_id: Text | UnsetType | None = UNSET
    revision: Annotated[int, schema(minimum=1, maximum=_MOST_REVISIONS)]
    payload: dict[str, Any] | UnsetType = UNSET


class BackfillBody(Asked, frozen=True, kw_only=True):
    """Both ends belong to it. `dry_run` false: make the jobs."""

    start: Time
    end: Time
    dry_run: bool = True
    priority: Priority | None = None
    reason: Reason | None = None


class PreviewBody(Asked, frozen=True, kw_only=True):
    """`after`: show the times after this one; default: now."""

    when: WhenAsked
    limit: Few = NEXT
    after: Time | None = None
    start: Time | None = None
    end: Time | None = None


class SchedulesQuery(PageQuery, frozen=True, kw_only=True):
    """`text`: a part of the name, in capitals or not. `absent`: the code that declared it does not declare it any
    more."""

    topic: Topic | None = None
    scope: Text | None = None
    scope_id: Text | None = None
    state: State | None = None
    text: Text | None = None
    absent: bool | None = None


class HistoryQuery(PageQuery, frozen=True, kw_only=True):
    """`before`: only times before this one."""

    limit: Few = 50
    before: Time | None = None


class PreviewQuery(Asked, frozen=True, kw_only=True):
    limit: Few = NEXT
    after: Time | None = None


class WhenBody(Struct, kw_only=True):
    """`cron`, `zone`, `gap` and `overlap`; or `every`, in seconds, and `anchor`."""

    cron: str | UnsetType = UNSET
    zone: str | UnsetType = UNSET
    gap: Gap | UnsetType = UNSET
    overlap: Overlap | UnsetType = UNSET
    every: float | UnsetType = UNSET
    anchor: Time | UnsetType | None = UNSET


class OptionsBody(Struct, kw_only=True):
    """What the jobs get; null: the default of their topic."""

    priority: int | None = None
    max_retries: int | None = None
    timeout: float | None = None
    tags: list[str] | None = None
    key: str | None = None


class TimeBody(Struct, kw_only=True):
    """A nominal time. `local`: on the clocks of its zone. `note`: what a change of the clocks does to it. `skipped`: it
    does not exist, and makes no job."""

    at: Time
    local: Time
    note: str | None
    skipped: bool


class RecentBody(Struct, kw_only=True):
    fire_at: Time
    kind: Kind
    job_id: str | None
    reason: WhyNot | None
    status: Annotated[str, schema(enum=list(Status))] | None


class FiredBody(Struct, kw_only=True):
    """What became of a nominal time, `fire_at`, and when that was decided, `at`. It made the job `job_id`, or none for
    a `reason`, which `detail` explains. `status`: that of the job now; null: there is none, or it was pruned."""

    fire_at: Time
    at: Time
    kind: Kind
    job_id: str | None
    reason: WhyNot | None
    detail: str | None
    status: Annotated[str, schema(enum=list(Status))] | None


class ScheduleBody(Struct, kw_only=True):
    """A schedule. `words`: its times in words. `source`: code declares it (`owner` is the module), or it was put (api).
    `absent`: the code does not declare it any more. `revision` grows with each change, not with fires. `upto`: every
    time up to this one is decided. `next_run_at`: null if it never fires again; its state is then over. `next_times`:
    the next five. `recent`: what became of the last 30 times, newest first. `redacted`: parts of the payload are
    hidden."""

    id: str
    name: str
    scope: str | None
    scope_id: str | None
    topic: str
    version: int | None
    payload: dict[str, Any]
    redacted: bool
    options: OptionsBody
    when: WhenBody
    words: str
    start: Time | None
    end: Time | None
    jitter: float
    missed: Missed
    most: int
    within: float | None
    if_live: IfLiveJob
    description: str | None
    state: State
    source: Source
    owner: str | None
    absent: bool
    revision: int
    paused_at: Time | None
    resumed_at: Time | None
    paused_by: str | None
    pause_reason: str | None
    upto: Time
    next_run_at: Time | None
    last_run_at: Time | None
    last_job_id: str | None
    zone_data: str
    created: Time
    updated: Time
    next_times: list[TimeBody]
    recent: list[RecentBody]


class SchedulesAnswer(Struct, kw_only=True):
    items: list[ScheduleBody]
    next: str | None


class HistoryAnswer(Struct, kw_only=True):
    items: list[FiredBody]
    next: str | None


class BackfillItem(Struct, kw_only=True):
    """`job_id`: of the job that the time has. `new`: this request has made it; in a dry run: it would make one."""

    fire_at: Time
    job_id: str | None
    new: bool


class BackfillAnswer(Struct, kw_only=True):
    items: list[BackfillItem]


class PreviewAnswer(Struct, kw_only=True):
    words: str
    times: list[TimeBody]


# ── All of them ──


@ROUTES.add("GET", "/api/schedules", READ, "Schedules by name")
async def list_schedules(call: Call, asked: SchedulesQuery) -> SchedulesAnswer:
    topics: Sequence[str | None] = [asked.topic]
    if asked.topic is not None:
        call.check_topics([check_topic(asked.topic)])
    elif call.identity.topics is not None:
        topics = call.identity.topics

    async def read(after: str | None, count: int) -> Sequence[Schedule]:
        found: list[Schedule] = []
        for topic in topics:
            page = await call.api.jobs.schedules.list(
                topic=topic, scope=asked.scope, scope_id=asked.scope_id, state=asked.state, text=asked.text,
                absent=asked.absent, limit=count, cursor=after,
            )  # fmt: skip
            found += page.items
        return sorted(found, key=lambda one: (one.name, one.id))[:count]

    found, following = await cursors.page(call, read, lambda one: f"{one.id} {one.name}")
    return SchedulesAnswer(items=await _bodies(call, found), next=following)


@ROUTES.add("POST", "/api/schedules", WRITE, "Make a schedule", status=201, errors=(409,))
async def create_schedule(call: Call, asked: ScheduleCreateBody) -> ScheduleBody:
    check_unmarked(call, asked.payload)
    made = await _put(call, asked.name, asked.scope, asked.scope_id, asked, asked.payload, 0)
    return await _body(call, made)


@ROUTES.add("POST", "/api/schedules/preview", COMPUTE, "The next times of a schedule that is not stored")
async def preview_when(call: Call, asked: PreviewBody) -> PreviewAnswer:
    limit = check_limit(asked.limit)
    shown = await call.api.jobs.schedules.preview(
        _when(asked.when), limit=limit, after=asked.after, start=asked.start, end=asked.end
    )
    return _preview_body(shown)


# ── One of them ──


@ROUTES.add("GET", "/api/schedules/{id}", READ, "A schedule")
async def get_schedule(call: Call) -> ScheduleBody:
    return await _body(call, await _schedule(call))


@ROUTES.add("PUT", "/api/schedules/{id}", WRITE, "Change a schedule: the whole definition", errors=(409,))
async def change_schedule(call: Call, asked: ScheduleChangeBody) -> ScheduleBody:
    check_range("revision", asked.revision, 1, _MOST_REVISIONS)
    old = await _schedule(call)
    _check_same_name(asked, old)
    payload = old.payload if asked.payload is UNSET else asked.payload
    if asked.payload is UNSET and asked.topic != old.topic:  # hidden values must not get to other workers
        raise Problem("missing", "payload: give it, because the topic is another one", field="payload")
    if asked.payload is not UNSET:
        check_unmarked(call, asked.payload, old)
    changing = _put(call, old.name, old.scope, old.scope_id, asked, payload, asked.revision, old.id)
    return await _body(call, await _hiding(call, old, changing))


@ROUTES.add("DELETE", "/api/schedules/{id}", WRITE, "Delete a schedule and its history; its jobs stay", errors=(409,))
async def delete_schedule(call: Call, asked: DeleteQuery) -> None:
    """Also one that this release can't read."""
    await call.api.jobs.schedules._delete(
        call.parameters["id"], None, None, None, asked.reason, call.by, lambda old: _check_visible(call, old)
    )


@ROUTES.add("POST", "/api/schedules/{id}/pause", WRITE, "Make no jobs until it is resumed")
async def pause_schedule(call: Call, asked: ReasonBody) -> ScheduleBody:
    old = await _schedule(call)
    return await _body(call, await call.api.jobs.schedules.pause(old.id, reason=asked.reason, by=call.by))


@ROUTES.add("POST", "/api/schedules/{id}/resume", WRITE, "Make jobs again, from the next time on")
async def resume_schedule(call: Call, asked: ReasonBody) -> ScheduleBody:
    old = await _schedule(call)
    return await _body(call, await call.api.jobs.schedules.resume(old.id, reason=asked.reason, by=call.by))


@ROUTES.add("POST", "/api/schedules/{id}/run", WRITE, "Make a job now, beside the schedule's own times", errors=(409,))
async def run_schedule(call: Call, asked: ReasonBody) -> FiredBody:
    old = await _schedule(call)
    call.check_allowed(old.topic)
    fired = await _hiding(call, old, call.api.jobs.schedules.run_now(old.id, reason=asked.reason, by=call.by))
    [body] = await _fired_bodies(call, old, [fired])
    return body


@ROUTES.add(
    "POST", "/api/schedules/{id}/backfill", WRITE, "Make the jobs of past times; by default, only show which",
    errors=(409,),
)  # fmt: skip
async def backfill_schedule(call: Call, asked: BackfillBody) -> BackfillAnswer:
    old = await _schedule(call)
    call.check_allowed(old.topic)
    filling = call.api.jobs.schedules.backfill(
        old.id, asked.start, asked.end, dry_run=asked.dry_run, reason=asked.reason, by=call.by,
        priority="backfill" if asked.priority is None else asked.priority,
    )  # fmt: skip
    found = await _hiding(call, old, filling)
    return BackfillAnswer(items=[copied(BackfillItem, one) for one in found])


@ROUTES.add("GET", "/api/schedules/{id}/history", READ, "What became of its times, newest first")
async def get_history(call: Call, asked: HistoryQuery) -> HistoryAnswer:
    old = await _schedule(call)

    async def read(after: str | None, count: int) -> Sequence[Fired]:
        before = asked.before if after is None else datetime.fromisoformat(after)
        return await call.api.jobs.schedules.history(old.id, limit=count, before=before)

    found, following = await cursors.page(call, read, lambda one: one.fire_at.isoformat())
    return HistoryAnswer(items=await _fired_bodies(call, old, found), next=following)


@ROUTES.add("GET", "/api/schedules/{id}/preview", READ, "Its next times")
async def preview_schedule(call: Call, asked: PreviewQuery) -> PreviewAnswer:
    old, limit = await _schedule(call), check_limit(asked.limit)
    return _preview_body(await call.api.jobs.schedules.preview(old.id, limit=limit, after=asked.after))


# ── What is asked ──


async def _schedule(call: Call) -> Schedule:
    """Return the schedule in the path. Those that the caller may not see answer 404."""
    found = await call.api.jobs.schedules.get(call.parameters["id"])
    _check_visible(call, found)
    return found


def _check_visible(call: Call, found: Schedule | UnreadableSchedule) -> None:
    own = call.identity.topics
    if own is not None and found.topic not in own:
        raise ScheduleNotFound(found.id)


def _check_same_name(asked: ScheduleChangeBody, old: Schedule) -> None:
    """Refuse another name: the jobs and the history belong to the name. Another name is another schedule."""
    for field in ("name", "scope", "scope_id"):
        given, there = getattr(asked, field), getattr(old, field)
        if given is not UNSET and given != there:
            problem = (
                f"{field}: can't change: it is {there!r}. Leave it out, or create a schedule under the new name and "
                "delete this one"
            )
            raise Problem("bad_value", problem, field=field)


async def _put(
    call: Call,
    name: str,
    scope: str | None,
    scope_id: str | None,
    asked: Defined,
    payload: dict[str, Any],
    revision: int,
    schedule_id: str | None = None,
) -> Schedule:
    topic = check_topic(asked.topic)
    call.check_topics([topic])
    call.check_allowed(topic)
    given = {"scope": scope, "scope_id": scope_id} | {name: getattr(asked, name) for name in ("version", *_OPTIONS)}
    options = cast(JobOptions, {name: value for name, value in given.items() if value is not None})
    return await call.api.jobs.schedules.put(
        name, Draft(topic, payload, options), _when(asked.when), missed=asked.missed, most=asked.most,
        within=asked.within, if_live=asked.if_live, start=asked.start, end=asked.end, jitter=asked.jitter,
        description=asked.description, revision=revision, schedule_id=schedule_id, reason=asked.reason, by=call.by,
    )  # fmt: skip


_OPTIONS = OptionsBody.__struct_fields__
_AS_ASKED = {"when.expression": "when.cron", "when.seconds": "when.every"}  # the fields of Cron and Every


def _when(asked: WhenAsked) -> When:
    given = {name: value for name in asked.__struct_fields__ if (value := getattr(asked, name)) is not None}
    try:
        return read_when(given)
    except InvalidInput as error:
        raise InvalidInput(_AS_ASKED.get(error.field, error.field), error.code, error.problem) from None


async def _hiding(call: Call, schedule: Schedule, answer: Awaitable[T]) -> T:
    """Await the answer. Hide secrets in its errors, which may repeat a hidden value of the stored payload."""
    try:
        return await answer
    except InvalidInput as error:
        said = call.redaction.data({"payload": schedule.payload, "problem": error.problem})["problem"]
        raise InvalidInput(error.field, error.code, said) from None


# ── What is answered ──


async def _body(call: Call, schedule: Schedule) -> ScheduleBody:
    [body] = await _bodies(call, [schedule])
    return body


async def _bodies(call: Call, found: Sequence[Schedule]) -> list[ScheduleBody]:
    recent = await call.api.jobs.schedules.histories([one.id for one in found], limit=RECENT)
    statuses = await _statuses(call, [fired for one in found for fired in recent[one.id]])
    now = await (await call.store()).now()
    bodies = []
    for n, one in enumerate(found):
        if n % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        fires = [copied(RecentBody, fired, status=statuses.get(fired.job_id or "")) for fired in recent[one.id]]
        bodies.append(_schedule_body(call, one, _next_times(one, now), fires))
    return bodies


def _schedule_body(
    call: Call, schedule: Schedule, next_times: list[TimeBody], recent: list[RecentBody]
) -> ScheduleBody:
    said = {name: getattr(schedule, name) for name in ("payload", "description", "pause_reason")}
    told = call.redaction.data(said)
    return copied(
        ScheduleBody,
        schedule,
        **told,
        redacted=told["payload"] != schedule.payload,
        options=OptionsBody(**schedule.options),
        when=_when_body(schedule.when),
        words=in_words(schedule.when),
        next_times=next_times,
        recent=recent,
    )


def _when_body(when: When) -> WhenBody:
    match when:
        case Cron():
            return WhenBody(cron=when.expression, zone=when.zone, gap=when.gap, overlap=when.overlap)
        case Every():
            return WhenBody(every=when.seconds, anchor=when.anchor)


def _next_times(schedule: Schedule, now: datetime) -> list[TimeBody]:
    try:
        return _time_bodies(preview(schedule, max(now, schedule.upto), NEXT))
    except InvalidInput:  # this machine does not know the zone; one bad schedule must not hide the others
        return []


def _time_bodies(shown: Preview) -> list[TimeBody]:
    return [copied(TimeBody, one) for one in shown.times]


def _preview_body(shown: Preview) -> PreviewAnswer:
    return PreviewAnswer(words=shown.words, times=_time_bodies(shown))


async def _fired_bodies(call: Call, schedule: Schedule, fired: Sequence[Fired]) -> list[FiredBody]:
    statuses = await _statuses(call, fired)
    said = {"payload": schedule.payload, "details": [one.detail for one in fired]}
    details = call.redaction.data(said)["details"]
    return [
        copied(FiredBody, one, detail=detail, status=statuses.get(one.job_id or ""))
        for one, detail in zip(fired, details, strict=True)
    ]


async def _statuses(call: Call, fired: Sequence[Fired]) -> Mapping[str, str]:
    """Return the status of each job that is still there."""
    ids = [one.job_id for one in fired if one.job_id is not None]
    found = await (await call.store()).read(ids, Status) if ids else {}
    return {job_id: str(status) for job_id, status in found.items()}
