"""Schedules: the times that are due, and the fate of each of them. Pure: time and time zone come in as arguments.

A nominal time is a moment at which the schedule says to fire. Each nominal time ends as one fire: it made a job, or it
made none, for a reason.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from hashlib import blake2b
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, get_args

from msgspec import Struct, structs

from rowlock.core import codec
from rowlock.core.cron import Cron, Every, When, check_when, moments
from rowlock.core.ids import check_id
from rowlock.core.job import (
    MAX_TEXT,
    NewJob,
    check_delay,
    check_priority,
    check_tags,
    check_time,
    check_timeout,
    check_topic,
    check_whole,
)
from rowlock.core.templates import check_template_version
from rowlock.core.times import micros
from rowlock.errors import InvalidInput

Missed = Literal["last", "skip", "all"]
IfLiveJob = Literal["allow", "reject", "queue", "replace"]
Reason = Literal["live", "missed", "paused", "disabled", "invalid"]
Kind = Literal["schedule", "run_now", "backfill"]
Source = Literal["api", "code"]
State = Literal["active", "paused", "over"]

MAX_NAME: Final = 128
MAX_DESCRIPTION: Final = 2000
MAX_JITTER: Final = 86_400.0  # seconds
MAX_CAUGHT_UP: Final = 1000  # jobs of missed times that one look may make
LATE: Final = 60.0  # seconds after which a time counts as missed under missed="skip"
MOST_RECORDED: Final = 10_000  # missed times that are recorded one by one after an outage, the newest
_WEEK: Final = timedelta(days=7)  # has 10,080 minutes: the newest MOST_RECORDED times of any cron expression

_OPTIONS: Final = ("priority", "max_retries", "timeout", "tags", "key")


class ScheduleName(Struct, frozen=True):
    """The identity of a schedule: no two schedules have all three values in common."""

    name: str
    scope: str | None = None
    scope_id: str | None = None


class Definition(Struct, frozen=True, kw_only=True):
    """The definition of a schedule: the jobs that it makes, and their times.

    `version`: of the topic's template; None: the newest enabled one when it fires. `options`: priority, max_retries,
    timeout, tags and key of the jobs. `start`, `end`: no nominal time before or after. `jitter`: each job runs up to so
    many seconds after its nominal time, always the same for the same time. `most`, `within`: with missed="all", at most
    so many jobs, for times of the last so many seconds; None: however old.
    """

    topic: str
    when: When
    version: int | None = None
    payload: dict[str, Any] = {}
    options: dict[str, Any] = {}
    start: datetime | None = None
    end: datetime | None = None
    jitter: float = 0.0
    missed: Missed = "last"
    most: int = 100
    within: float | None = None
    if_live: IfLiveJob = "allow"
    description: str | None = None


class Schedule(Definition, frozen=True, kw_only=True):
    """A schedule as the database has it. Times are in UTC, by the database's clock.

    `revision` grows with each change by a person or a deploy, not with fires. `owner`: the module whose code declares
    it; None: it was put. `absent`: the code declared it once, and does so no more. `paused_at` without `resumed_at`: it
    is paused. `upto`: every nominal time up to this one is decided. `next_run_at`: the next nominal time; None: it
    never fires again. `last_run_at`: the newest nominal time that has made a job, `last_job_id`. `zone_data`: the
    version of the time zone data by which `next_run_at` was found.
    """

    id: str
    name: str
    scope: str | None = None
    scope_id: str | None = None
    revision: int = 1
    owner: str | None = None
    absent: bool = False
    paused_at: datetime | None = None
    resumed_at: datetime | None = None
    paused_by: str | None = None
    pause_reason: str | None = None
    upto: datetime
    next_run_at: datetime | None = None
    last_run_at: datetime | None = None
    last_job_id: str | None = None
    zone_data: str = ""
    created: datetime
    updated: datetime

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None and self.resumed_at is None

    @property
    def state(self) -> State:
        """Return active, paused, or over (it never fires again)."""
        return "over" if self.next_run_at is None else "paused" if self.is_paused else "active"

    @property
    def source(self) -> Source:
        return "api" if self.owner is None else "code"

    @property
    def key(self) -> str:
        """Return the key of its jobs, if `if_live` needs one."""
        return f"schedule:{self.id}"


DEFINED: Final = Definition.__struct_fields__
_USUAL: Final = Definition(topic="", when=Every(1.0))


class Fire(Struct, frozen=True, kw_only=True):
    """The result that a nominal time is to have: `job`, or `reason` and maybe `detail`. `room`: the time makes a job
    only if fewer jobs than this are live in the line of its job; None: however many there are."""

    fire_at: datetime
    job: NewJob | None = None
    reason: Reason | None = None
    detail: str | None = None
    kind: Kind = "schedule"
    room: int | None = None


class Fired(Struct, frozen=True, kw_only=True):
    """The result of the nominal time `fire_at`, which was decided at the time `at`."""

    fire_at: datetime
    at: datetime
    kind: Kind
    job_id: str | None = None
    reason: Reason | None = None
    detail: str | None = None


class Planned(NamedTuple):
    """The due times, oldest first, each with the reason why it makes no job, or None; the detail is for the oldest."""

    times: list[tuple[datetime, Reason | None]]
    detail: str | None = None


# ── Which times are due ──


def times_after(definition: Definition, after: datetime, zone: tzinfo) -> Iterator[datetime]:
    """Yield the nominal times after this one, within start and end."""
    if definition.start is not None:
        after = max(after, definition.start - timedelta(microseconds=1))
    for one in moments(definition.when, after, zone):
        if definition.end is not None and one.at > definition.end:
            return
        yield one.at


def next_time(definition: Definition, after: datetime, zone: tzinfo) -> datetime | None:
    return next(times_after(definition, after, zone), None)


def plan(schedule: Schedule, now: datetime, zone: tzinfo) -> Planned:
    """Return the nominal times that have come since the last decision, and what becomes of each."""
    due, all_of_them = _due(schedule, now, zone)
    times: list[tuple[datetime, Reason | None]] = []
    rest: list[datetime] = []
    for at in due:
        (times.append((at, "paused")) if _in_pause(schedule, at) else rest.append(at))
    firing = _chosen(schedule, rest, now)
    times += [(at, None if at in firing else "missed") for at in rest]
    times.sort(key=lambda one: one[0])
    detail = None if all_of_them else f"so were all earlier ones since {schedule.upto.isoformat()}"
    return Planned(times, detail)


def _due(schedule: Schedule, now: datetime, zone: tzinfo) -> tuple[list[datetime], bool]:
    """Return the times up to now, and whether these are all: of more than MOST_RECORDED, only the newest."""

    def until_now(after: datetime) -> Iterator[datetime]:
        for at in times_after(schedule, after, zone):
            if at > now:
                return
            yield at

    due = list(islice(until_now(schedule.upto), MOST_RECORDED + 1))
    if len(due) <= MOST_RECORDED:
        return due, True
    match schedule.when:
        case Every(seconds=seconds):
            recent = timedelta(seconds=seconds * MOST_RECORDED)
        case _:
            recent = _WEEK
    return list(deque(until_now(max(schedule.upto, now - recent)), maxlen=MOST_RECORDED)), False


def _in_pause(schedule: Schedule, at: datetime) -> bool:
    """True if the schedule makes no job for this time because of a pause. While it is paused, that includes times
    before the pause that no process has decided yet."""
    if schedule.is_paused:
        return True
    if schedule.paused_at is None or at < schedule.paused_at:
        return False
    return schedule.resumed_at is None or at <= schedule.resumed_at


def _chosen(schedule: Schedule, due: list[datetime], now: datetime) -> set[datetime]:
    """Return the times that make jobs. Without an outage there is one due time, and it makes one."""
    if not due:
        return set()
    match schedule.missed:
        case "last":
            return {due[-1]}
        case "skip":
            return {due[-1]} if (now - due[-1]).total_seconds() <= LATE else set()
        case "all":
            newest = due[-schedule.most :]
            if schedule.within is None:
                return set(newest)
            return {at for at in newest if (now - at).total_seconds() <= max(schedule.within, LATE)}


def pause_from(schedule: Schedule, now: datetime) -> datetime:
    """Return when a pause that begins now has begun for `plan`: an earlier pause, whose times are not all decided yet,
    is made part of it."""
    if schedule.paused_at is not None and schedule.resumed_at is not None and schedule.resumed_at > schedule.upto:
        return schedule.paused_at
    return now


def jitter_of(schedule_id: str, fire_at: datetime, jitter: float) -> timedelta:
    """Return how much later the job of this time runs; the same in every process."""
    if not jitter:
        return timedelta()
    digest = blake2b(f"{schedule_id} {micros(fire_at)}".encode(), digest_size=8).digest()
    return timedelta(seconds=jitter * int.from_bytes(digest) / 2**64)


# ── Payload templates ──

_BLANK = re.compile(r"(\\?)\{\{\s*([^{}]*?)\s*\}\}")


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def blanks_of(schedule: Schedule | ScheduleName, fire_at: datetime, zone: tzinfo) -> dict[str, str]:
    """Return the values for the blanks of a payload."""
    local = fire_at.astimezone(zone)
    return {
        "fire_at": _iso(fire_at),
        "fire_at_local": local.isoformat(),
        "fire_date": local.date().isoformat(),
        "schedule": schedule.name,
        "scope": schedule.scope or "",
        "scope_id": schedule.scope_id or "",
    }


SAMPLE: Final = blanks_of(ScheduleName("name", "scope", "id"), datetime(2026, 1, 31, tzinfo=UTC), UTC)
BLANKS: Final = tuple(SAMPLE)


def fill(value: Any, blanks: Mapping[str, str], field: str = "payload") -> Any:
    """Return the value with {{name}} replaced in its texts, but not in names of fields. \\{{name}}, with a backslash,
    becomes {{name}}."""
    match value:
        case str():
            return _BLANK.sub(lambda found: _filled(found, blanks, field), value) if "{{" in value else value
        case dict():
            return {name: fill(one, blanks, f"{field}.{name}") for name, one in value.items()}
        case list():
            return [fill(one, blanks, f"{field}[{n}]") for n, one in enumerate(value)]
        case _:
            return value


def _filled(found: re.Match[str], blanks: Mapping[str, str], field: str) -> str:
    kept, name = found.groups()
    if kept:
        return found.group()[1:]
    if name not in blanks:
        known = ", ".join(f"{{{{{one}}}}}" for one in BLANKS)
        problem = f"{found.group()!r:.80} is none of {known}. Write \\{{{{…}}}} for the braces themselves"
        raise InvalidInput(field, "unknown_blank", problem)
    return blanks[name]


# ── Checks ──


def check_definition(given: Definition) -> Definition:
    """Return the definition with every value checked by itself. The payload is checked against the topic elsewhere."""
    start = None if given.start is None else check_time(given.start, "start")
    end = None if given.end is None else check_time(given.end, "end")
    if start is not None and end is not None and end < start:
        raise InvalidInput("end", "before_start", f"{_iso(end)} is before start, {_iso(start)}")
    jitter = check_delay(given.jitter, "jitter")
    if jitter > MAX_JITTER:
        raise InvalidInput("jitter", "out_of_range", f"must be 0 to {MAX_JITTER:.0f} seconds (a day), not {jitter:g}")
    codec.check_object(given.payload)
    fill(given.payload, SAMPLE)
    options = check_options(given.options)
    fill(options.get("key"), SAMPLE, "key")
    codec.encode_payload(given.payload)
    if_live = _one_of(given.if_live, IfLiveJob, "if_live")
    options = check_options(given.options)
    if if_live != "allow" and "key" in options:
        raise InvalidInput("if_live", "has_key", 'the jobs have a key of their own: use if_live="allow"')
    return Definition(
        topic=check_topic(given.topic),
        when=check_when(given.when),
        version=None if given.version is None else check_template_version(given.version),
        payload=given.payload,
        options=options,
        start=start,
        end=end,
        jitter=jitter,
        missed=_one_of(given.missed, Missed, "missed"),
        most=check_whole(given.most, "most", 1, MAX_CAUGHT_UP),
        within=None if given.within is None else check_delay(given.within, "within"),
        if_live=if_live,
        description=None
        if given.description is None
        else codec.check_text(given.description, "description", max_chars=MAX_DESCRIPTION),
    )


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a schedule's jobs, as they are stored. None counts as not given."""
    if not isinstance(options, Mapping):
        raise InvalidInput("options", "not_an_object", f"must be an object, not {type(options).__name__}")
    given = {name: value for name, value in options.items() if value is not None}
    if unknown := sorted(given.keys() - set(_OPTIONS)):
        problem = f"is no option of a schedule's jobs, only {', '.join(_OPTIONS)}"
        raise InvalidInput(unknown[0], "not_here", problem)
    checks: dict[str, Any] = {
        "priority": check_priority,
        "max_retries": lambda value: check_whole(value, "max_retries", 0, 1_000_000),
        "timeout": check_timeout,
        "tags": lambda value: list(check_tags(value)),
        "key": lambda value: codec.check_text(value, "key", max_chars=MAX_TEXT),
    }
    return {name: checks[name](value) for name, value in given.items()}


def check_name(name: object, field: str = "name") -> str:
    text = codec.check_text(name, field, max_chars=MAX_NAME)
    if text != text.strip() or not text.isprintable():
        problem = f"{text!r} begins or ends with a space, or has a character that can't be printed"
        raise InvalidInput(field, "bad_characters", problem)
    if _is_id(text):
        problem = f"{text!r} looks like an id, and verbs take it for one. Use a name that is no UUID"
        raise InvalidInput(field, "is_an_id", problem)
    return text


def _is_id(text: str) -> bool:
    try:
        check_id(text)
    except InvalidInput:
        return False
    return True


def check_schedule_name(name: object, scope: object = None, scope_id: object = None) -> ScheduleName:
    def text(value: object, field: str) -> str | None:
        return None if value is None else codec.check_text(value, field, max_chars=MAX_TEXT)

    return ScheduleName(check_name(name), text(scope, "scope"), text(scope_id, "scope_id"))


def _one_of(value: Any, choices: Any, field: str) -> Any:
    names = get_args(choices)
    if value not in names:
        raise InvalidInput(field, "unknown_name", f"{value!r:.40} is none of {', '.join(names)}")
    return value


# ── As data: in the database, and over HTTP ──


def when_data(when: When) -> dict[str, Any]:
    """Return {"cron": …, "zone": …, "gap": …, "overlap": …} or {"every": seconds, "anchor": …}."""
    match when:
        case Cron():
            return {"cron": when.expression, "zone": when.zone, "gap": when.gap, "overlap": when.overlap}
        case Every():
            return {"every": when.seconds, "anchor": None if when.anchor is None else _iso(when.anchor)}


def read_when(data: Any, field: str = "when") -> When:
    """Return the times from data that `when_data`, or a person, has written. Check them."""
    if not isinstance(data, Mapping) or ("cron" in data) == ("every" in data):
        problem = 'must be {"cron": "0 9 * * *", "zone": "Europe/Paris"} or {"every": 3600}'
        raise InvalidInput(field, "bad_value", problem)
    known = ("cron", "zone", "gap", "overlap") if "cron" in data else ("every", "anchor")
    given = {name: value for name, value in data.items() if value is not None}
    if unknown := sorted(given.keys() - set(known)):
        raise InvalidInput(f"{field}.{unknown[0]}", "unknown_field", f"is none of {', '.join(known)}")
    if "cron" in given:
        return check_when(Cron(given.pop("cron"), **given), field)
    anchor = given.get("anchor")
    return check_when(Every(given["every"], None if anchor is None else _read_time(anchor, f"{field}.anchor")), field)


def _read_time(value: Any, field: str) -> datetime:
    if isinstance(value, datetime):
        return check_time(value, field)
    try:
        return check_time(datetime.fromisoformat(value), field)
    except (TypeError, ValueError):
        problem = f"{value!r:.40} is no time, such as 2026-03-29T00:00:00Z"
        raise InvalidInput(field, "not_a_time", problem) from None


def definition_data(definition: Definition) -> dict[str, Any]:
    """Return the definition as JSON data, without the fields that have their defaults."""
    data: dict[str, Any] = {"topic": definition.topic, "when": when_data(definition.when)}
    for name in DEFINED[2:]:
        value = getattr(definition, name)
        if value != getattr(_USUAL, name):
            data[name] = _iso(value) if isinstance(value, datetime) else value
    return data


def read_definition(data: Any) -> Definition:
    """Return the definition from data of `definition_data`. Raise InvalidInput: another release may have written it."""
    if not isinstance(data, Mapping) or not {"topic", "when"} <= data.keys():
        raise InvalidInput("definition", "bad_value", "must be an object with topic and when")
    given = {name: value for name, value in data.items() if name in DEFINED}
    given["when"] = read_when(given["when"])
    for name in ("start", "end"):
        if name in given:
            given[name] = _read_time(given[name], name)
    return check_definition(Definition(**given))


def definition_of(schedule: Definition) -> Definition:
    return Definition(**{name: getattr(schedule, name) for name in DEFINED})


def differences(old: Definition, new: Definition) -> dict[str, dict[str, Any]]:
    """Return the changed fields with their values before and after, for the audit."""
    before, after = definition_data(old), definition_data(new)
    names = [name for name in DEFINED if before.get(name) != after.get(name)]
    return {name: {"before": before.get(name), "after": after.get(name)} for name in names}


def with_definition(schedule: Schedule, definition: Definition, **changed: Any) -> Schedule:
    return structs.replace(schedule, **{name: getattr(definition, name) for name in DEFINED}, **changed)
