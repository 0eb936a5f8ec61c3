"""Job, NewJob and Status: the meaning of a job's row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec import Struct

from rowlock.core import codec
from rowlock.core.debounce import Throttle, Window
from rowlock.errors import InvalidInput

MAX_TOPIC = 128
MAX_TEXT = 512  # characters of a key, scope, scope_id or worker's name
MAX_TAGS = 32
MAX_VERSION = (1 << 31) - 1
MAX_DELAY = 10 * 366 * 86_400.0  # ten years, in seconds
PRIORITY_LIMIT = 2**31 - 1

DEFAULT_PRIORITY = 100
DEFAULT_MAX_RETRIES = 3
DEFAULT_TIMEOUT = 600.0
NAMED_PRIORITIES = {"explicit": 150, "discovered": 100, "backfill": 30}

_TOPIC = re.compile(r"[A-Za-z0-9_.:/-]+\Z")


class Status(StrEnum):
    PENDING = "pending"
    BLOCKED = "blocked"
    PROCESSING = "processing"
    WAITING = "waiting"
    CANCEL_REQUESTED = "cancel_requested"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


LIVE = frozenset(
    {Status.PENDING, Status.BLOCKED, Status.PROCESSING, Status.WAITING, Status.CANCEL_REQUESTED}
)  # holds its key; everything else is an end state
# A worker has, or had, a lease on it. Only a waiting job that is being cancelled is CANCEL_REQUESTED without a lease.
HELD = frozenset({Status.PROCESSING, Status.CANCEL_REQUESTED})


class LiveKey(NamedTuple):
    """A key with its topic and scope: at most one live job has all four. A key that is None names nothing."""

    topic: str
    scope: str | None
    scope_id: str | None
    key: str | None


class Job(Struct, frozen=True):
    """One piece of work, as the database has it. Times are aware datetimes in UTC, by the database's clock.

    `waits_for`: what a waiting job waits for: "sleep" or "signal:NAME"; `run_at` is when the wait ends by itself, if it
    does.
    """

    id: str
    topic: str
    template_version: int
    payload: dict[str, Any]
    status: Status
    priority: int
    run_at: datetime
    expires_at: datetime | None
    key: str | None
    if_live: str | None
    scope: str | None
    scope_id: str | None
    tags: tuple[str, ...]
    trace: str | None
    step: str | None
    progress: float
    stage: str | None
    message: str | None
    result: Any
    last_error: str | None
    retries: int
    max_retries: int
    crashes: int
    timeout: float
    version: int
    locked_by: str | None
    locked_until: datetime | None
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    waits_for: str | None
    flow_id: str | None
    schedule_id: str | None
    fire_at: datetime | None
    created: datetime
    updated: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    events_count: int

    @property
    def attempts(self) -> int:
        """Return the number of executions that are charged to the job, with the current one. An execution goes on while
        the job waits. A run that was given back, or snoozed, is charged nothing."""
        return self.retries + self._is_executed

    @property
    def _is_executed(self) -> bool:
        """True if an execution goes on, or was the job's end. `retries` counts the earlier executions."""
        match self.status:
            case Status.PENDING | Status.BLOCKED:
                return False
            case Status.EXPIRED:  # past expires_at, or because its last run has crashed
                return self.started_at is not None
            case Status.CANCELLED:  # at once, or when a run had ended
                return self.cancel_requested_at is None or self.cancel_requested_at != self.finished_at
            case _:
                return True

    @property
    def is_live(self) -> bool:
        return self.status in LIVE


class NewJob(Struct, frozen=True, gc=False):
    """A job about to be inserted: everything checked, the payload encoded. Made by `new_job`."""

    id: str
    topic: str
    payload: str
    priority: int = DEFAULT_PRIORITY
    run_at: datetime | None = None  # None: `delay` seconds after the insert, by the database's clock
    delay: float = 0.0
    expires_at: datetime | None = None
    key: str | None = None
    scope: str | None = None
    scope_id: str | None = None
    template_version: int = 0
    max_retries: int = DEFAULT_MAX_RETRIES
    timeout: float = DEFAULT_TIMEOUT
    tags: tuple[str, ...] = ()
    trace: str | None = None
    if_live: str | None = None  # "queue", "replace", "debounce": the job stands in `line`; None: "reject", or no key
    line: str | None = None  # what identifies the line: see core.templates.line_of; or a line of its own, see own_line
    once: str | None = None  # only one job ever may have it: the same digest
    flow_id: str | None = None
    waits: bool = False  # for other jobs of its flow
    debounce: Window | None = None  # then if_live is "debounce"
    throttle: Throttle | None = None
    share: str | None = None  # the values by which it is limited: see core.limits.share_of

    @property
    def is_blocked(self) -> bool:
        """True if it is blocked at first."""
        return self.waits or (self.line is not None and self.if_live is not None)


_OWN = ":job"


def own_line(job_id: str) -> str:
    """Return the line of its own that a job of a flow stands in, so that its end is noted."""
    return f"{job_id.replace('-', '')}{_OWN}"


def owner_of(line: str | None) -> str | None:
    """Return the id of the job whose own line it is; None: it is the line of a key, or no line."""
    if line is None or not line.endswith(_OWN):
        return None
    return f"{line[:8]}-{line[8:12]}-{line[12:16]}-{line[16:20]}-{line[20:32]}"


class Lane(Struct, frozen=True, order=True):
    """A topic in one version. Workers claim jobs by it."""

    topic: str
    template_version: int = 0

    def __str__(self) -> str:
        return f"{self.topic}@{self.template_version}" if self.template_version else self.topic


class Event(Struct, frozen=True, kw_only=True):
    """One fact in a job's history. `data` holds what else is known: error, delay, reason, worker, …"""

    job_id: str
    seq: int
    at: datetime
    event: str
    status: Status | None
    version: int
    by: str | None
    data: dict[str, Any]


class History(Struct, frozen=True):
    """The history of a job, oldest event first."""

    events: list[Event]


class LogLine(Struct, frozen=True):
    """A line that a handler has logged. `version` says in which run."""

    at: datetime
    version: int
    level: str
    text: str


class Log(Struct, frozen=True):
    """The newest lines, oldest first, and how many older ones were dropped."""

    lines: list[LogLine]
    dropped: int = 0


def new_job(
    job_id: str,
    topic: str,
    payload: Mapping[str, Any] | None = None,
    *,
    priority: int | str = DEFAULT_PRIORITY,
    run_at: datetime | None = None,
    delay: float | timedelta = 0.0,
    expires_at: datetime | None = None,
    key: str | None = None,
    scope: str | None = None,
    scope_id: str | None = None,
    template_version: int = 0,
    max_retries: int = DEFAULT_MAX_RETRIES,
    timeout: float | timedelta = DEFAULT_TIMEOUT,
    tags: Sequence[str] | None = (),
    trace: str | None = None,
) -> NewJob:
    """Check everything about a job before anything is written; InvalidInput names the field."""
    wait = check_delay(delay, "delay")
    if run_at is not None:
        run_at = check_time(run_at, "run_at")
        if wait:
            raise InvalidInput("delay", "both_given", "give run_at or delay, not both")
    return NewJob(
        job_id,
        check_topic(topic),
        codec.encode_payload(payload),
        check_priority(priority),
        run_at,
        wait,
        None if expires_at is None else check_time(expires_at, "expires_at"),
        None if key is None else codec.check_text(key, "key", max_chars=MAX_TEXT),
        None if scope is None else codec.check_text(scope, "scope", max_chars=MAX_TEXT),
        None if scope_id is None else codec.check_text(scope_id, "scope_id", max_chars=MAX_TEXT),
        check_whole(template_version, "template_version", 0, PRIORITY_LIMIT),
        check_whole(max_retries, "max_retries", 0, 1_000_000),
        check_timeout(timeout),
        () if tags is None or tags == () else check_tags(tags),
        None if trace is None else codec.check_text(trace, "trace", max_chars=MAX_TEXT),
    )


def check_topic(topic: object) -> str:
    return _check_known_topic(topic) if type(topic) is str else _check_topic(topic)


def _check_topic(topic: object) -> str:
    if not isinstance(topic, str):
        raise InvalidInput("topic", "not_text", f"must be a string, not {type(topic).__name__}")
    if not topic:
        raise InvalidInput("topic", "empty", "must not be empty")
    if len(topic) > MAX_TOPIC:
        raise InvalidInput("topic", "too_long", f"is {len(topic)} characters, at most {MAX_TOPIC} are allowed")
    if not _TOPIC.match(topic):
        raise InvalidInput("topic", "bad_characters", f"{topic!r} may only hold A-Z a-z 0-9 _ . : / and -")
    return codec.plain_text(topic)


_check_known_topic = lru_cache(1024)(_check_topic)  # an application has few topics, and names one in every job


def check_time(value: object, field: str) -> datetime:
    if not isinstance(value, datetime):
        raise InvalidInput(field, "not_a_time", f"must be a datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise InvalidInput(field, "naive_time", "has no time zone: write Z for UTC, in Python datetime.now(UTC)")
    # Far enough for every job, and not datetime.max or .min, which drivers take for infinity.
    if not 1900 <= value.year <= 9000:
        raise InvalidInput(field, "time_range", f"{value.isoformat()} is not between the years 1900 and 9000")
    return value.astimezone(UTC)


def check_delay(value: float | timedelta, field: str) -> float:
    if type(value) is float and 0.0 <= value <= MAX_DELAY:
        return value
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidInput(field, "not_a_number", f"must be seconds or a timedelta, not {type(value).__name__}")
    if not 0 <= seconds <= MAX_DELAY:  # also refuses NaN
        raise InvalidInput(field, "out_of_range", f"must be 0 to {MAX_DELAY:.0f} seconds (ten years), not {seconds}")
    return float(seconds)


def check_timeout(value: float | timedelta) -> float:
    seconds = check_delay(value, "timeout")
    if not seconds:
        raise InvalidInput("timeout", "out_of_range", "must be more than 0 seconds")
    return seconds


def check_priority(value: int | str) -> int:
    if isinstance(value, str):
        try:
            return NAMED_PRIORITIES[value]
        except KeyError:
            names = ", ".join(NAMED_PRIORITIES)
            raise InvalidInput("priority", "unknown_name", f"{value!r:.40} is none of {names}") from None
    return check_whole(value, "priority", -PRIORITY_LIMIT, PRIORITY_LIMIT)


def check_version(value: int) -> int:
    return check_whole(value, "version", 0, MAX_VERSION)


def check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise InvalidInput("tags", "not_a_list", f"must be a list of strings, not {type(tags).__name__}")
    if len(tags) > MAX_TAGS:
        raise InvalidInput("tags", "too_many", f"has {len(tags)} entries, at most {MAX_TAGS} are allowed")
    return tuple(codec.check_text(tag, f"tags[{i}]", max_chars=MAX_TOPIC) for i, tag in enumerate(tags))


def check_flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(field, "bad_value", f"must be True or False, not {value!r:.40}")
    return value


def check_whole(value: object, field: str, low: int, high: int) -> int:
    if type(value) is int and low <= value <= high:
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(field, "not_an_integer", f"must be a whole number, not {value!r:.40}")
    if not low <= value <= high:
        raise InvalidInput(field, "out_of_range", f"must be {low} to {high}, not {value}")
    return value
