"""Types that bodies, queries and answers of several routes share. The others stand beside their routes.

Names are snake_case, and in requests camelCase as well (see parse.py). Times are RFC 3339 in UTC, durations seconds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from rowlock.access.identity import SCOPES
from rowlock.core.debounce import MAX_WINDOW
from rowlock.core.fingerprint import DIGITS
from rowlock.core.job import MAX_DELAY, MAX_TAGS, MAX_TEXT, MAX_TOPIC, NAMED_PRIORITIES, PRIORITY_LIMIT, Job
from rowlock.core.steps import MAX_STEPS, StepState
from rowlock.core.templates import MAX_TITLE
from rowlock.stores.queries import MAX_LIMIT

S = TypeVar("S", bound=Struct)

LONGEST_STEP = MAX_TITLE  # characters of a step's name


def copied(kind: type[S], of: object, **more: Any) -> S:
    """Return a `kind` with the values that `of` has under the same names, and with `more`."""
    return kind(**{name: getattr(of, name) for name in kind.__struct_fields__ if name not in more}, **more)


def schema(**schema: Any) -> Meta:
    """Return a schema for the OpenAPI document only. The code that uses a value checks it, with better messages."""
    return Meta(extra_json_schema=schema)


Topic = Annotated[str, schema(minLength=1, maxLength=MAX_TOPIC, pattern="^[A-Za-z0-9_.:/-]+$")]
Time = Annotated[datetime, schema(format="date-time")]
JobId = Annotated[str, schema(format="uuid")]
Text = Annotated[str, schema(minLength=1, maxLength=MAX_TEXT)]
Tag = Annotated[str, schema(minLength=1, maxLength=MAX_TOPIC)]
Tags = Annotated[tuple[Tag, ...], schema(maxItems=MAX_TAGS)]
Reason = Annotated[str, schema(minLength=1, maxLength=2000)]
Seconds = Annotated[float, schema(minimum=0, maximum=MAX_DELAY)]
Timeout = Annotated[float, schema(exclusiveMinimum=0, maximum=MAX_DELAY)]
WindowSeconds = Annotated[float, schema(exclusiveMinimum=0, maximum=MAX_WINDOW)]
Retries = Annotated[int, schema(minimum=0, maximum=1_000_000)]
TemplateVersion = Annotated[int, schema(minimum=0, maximum=1_000_000)]
Priority = (
    Annotated[int, schema(minimum=-PRIORITY_LIMIT, maximum=PRIORITY_LIMIT)]
    | Annotated[str, schema(enum=list(NAMED_PRIORITIES))]
)
StepName = Annotated[str, schema(minLength=1, maxLength=LONGEST_STEP)]
StepNumber = Annotated[int, schema(minimum=1, maximum=MAX_STEPS)]
Fingerprint = Annotated[str, schema(pattern=f"^[0-9a-f]{{{DIGITS}}}$")]
Scope = Annotated[str, schema(enum=list(SCOPES))]


class Asked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body or query. Unknown names are refused."""


class DebounceAsked(Asked, frozen=True, kw_only=True):
    """The job runs `seconds` after the last enqueue with its key, but not later than `at_most` seconds after the first
    one."""

    seconds: WindowSeconds
    at_most: WindowSeconds | None = None


class PageQuery(Asked, frozen=True, kw_only=True):
    """Every list has these. `cursor`: the `next` of an earlier page, for the same caller and the same query."""

    limit: Annotated[int, schema(minimum=1, maximum=MAX_LIMIT)] = 20
    cursor: str | None = None


class LongPageQuery(PageQuery, frozen=True, kw_only=True):
    limit: Annotated[int, schema(minimum=1, maximum=MAX_LIMIT)] = MAX_LIMIT


class ReasonBody(Asked, frozen=True, kw_only=True):
    reason: Reason | None = None


class StepBody(Struct, kw_only=True):
    """A step of a job. `n`: the n-th call of this name. `position`: its place among all steps; null: it is declared,
    but was not reached. `skipped`: the job has ended without it. `retries` and `max_retries`: of the step itself.
    `title`, `timeout`, `weight` and `max_retries`: as the topic's template declares them.

    `kind`: step; sleep or signal (a wait, which is open while it is running); callback (an address for the outside).
    `name` is then the signal's, `timeout` that of the wait, `result` the signal's data. `deadline`: when it ends by
    itself; null: never. `schema`: of the data that an open wait takes. `label`: the name by which `from_step` of a
    requeue finds it."""

    name: str
    kind: Annotated[str, schema(enum=["step", "sleep", "signal", "callback"])]
    label: str
    n: int
    position: int | None
    title: str | None
    state: Annotated[str, schema(enum=[str(state) for state in StepState])]
    timeout: float | None
    weight: float | None
    cancelable: bool
    retries: int
    max_retries: int | None
    error: str | None
    result: Any
    started_at: Time | None
    finished_at: Time | None
    deadline: Time | None
    schema: dict[str, Any] | None


class WaitBody(Struct, kw_only=True):
    """What a job waits for. `kind`: sleep, or signal, which `signal` names. `until`: when the wait ends by itself;
    null: never. `timeout`: its whole length in seconds. `schema`: of the data that it takes; null: any JSON."""

    kind: Annotated[str, schema(enum=["sleep", "signal"])]
    signal: str | None
    until: Time | None
    timeout: float | None
    schema: dict[str, Any] | None


class JobBody(Struct, kw_only=True):
    """A job. `locked_until`, `last_error` and `redacted` are left out if they are empty. `redacted` names the fields in
    which something is hidden. `can`: what the caller may do to the job, cancel or manage, whatever its status allows.
    `steps`: if the job has any. `wait`: what it waits for, in detail. All three are only in GET /api/jobs/{id}.
    `waits_for`: null, "sleep" or "signal:NAME"."""

    id: str
    topic: str
    payload: dict[str, Any]
    status: str
    priority: int
    run_at: Time
    expires_at: Time | None
    key: str | None
    if_live: str | None
    scope: str | None
    scope_id: str | None
    tags: tuple[str, ...]
    progress: float
    stage: str | None
    message: str | None
    result: Any
    retries: int
    max_retries: int
    crashes: int
    timeout: float
    version: int
    locked_by: str | None
    cancel_requested_at: Time | None
    cancel_reason: str | None
    waits_for: str | None
    template_version: int
    step: str | None
    flow_id: str | None
    schedule_id: str | None
    fire_at: Time | None
    created: Time
    updated: Time
    claimed_at: Time | None
    started_at: Time | None
    finished_at: Time | None
    trace: str | None
    locked_until: Time | UnsetType = UNSET
    last_error: str | UnsetType = UNSET
    redacted: list[str] | UnsetType = UNSET
    can: list[str] | UnsetType = UNSET
    steps: list[StepBody] | UnsetType = UNSET
    wait: WaitBody | UnsetType = UNSET


_COPIED = tuple(
    name
    for name in JobBody.__struct_fields__
    if name not in ("locked_until", "last_error", "status", "redacted", "can", "steps", "wait")
)


def unredacted_body(job: Job, **more: Any) -> JobBody:
    return JobBody(
        **{name: getattr(job, name) for name in _COPIED},
        status=str(job.status),
        locked_until=UNSET if job.locked_until is None else job.locked_until,
        last_error=UNSET if job.last_error is None else job.last_error,
        **more,
    )
