"""What goes over the wire. Names are snake_case, and in requests camelCase as well (see reading.py); times are RFC 3339
in UTC, durations seconds."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from rowlock.access.identity import SCOPES
from rowlock.access.redaction import MOST_PATTERNS
from rowlock.core.fingerprint import DIGITS
from rowlock.core.job import (
    MAX_DELAY,
    MAX_TAGS,
    MAX_TEXT,
    MAX_TOPIC,
    MAX_VERSION,
    NAMED_PRIORITIES,
    PRIORITY_LIMIT,
    Event,
    Job,
    LogLine,
    Status,
)
from rowlock.stores.base import Enqueued
from rowlock.stores.reading import MAX_LIMIT, MAX_OFFSET
from rowlock.stores.series import RANGES

SHORTEST_LEASE, LONGEST_LEASE = 1.0, 300.0  # a rescue waits for a third of the longest there is: see runtime/trust.py
LONGEST_WAIT = 30.0
MOST_CLAIMED, MOST_TOPICS, MOST_RUNS, MOST_LINES = 100, 100, 1000, 100


def _said(**schema: Any) -> Meta:
    """For the OpenAPI document only: what is wrong is found, and named better, where it is used."""
    return Meta(extra_json_schema=schema)


Topic = Annotated[str, _said(minLength=1, maxLength=MAX_TOPIC, pattern="^[A-Za-z0-9_.:/-]+$")]
Time = Annotated[datetime, _said(format="date-time")]
JobId = Annotated[str, _said(format="uuid")]
Text = Annotated[str, _said(minLength=1, maxLength=MAX_TEXT)]
Tag = Annotated[str, _said(minLength=1, maxLength=MAX_TOPIC)]
Tags = Annotated[tuple[Tag, ...], _said(maxItems=MAX_TAGS)]
Reason = Annotated[str, _said(minLength=1, maxLength=2000)]
Seconds = Annotated[float, _said(minimum=0, maximum=MAX_DELAY)]
Timeout = Annotated[float, _said(exclusiveMinimum=0, maximum=MAX_DELAY)]
Retries = Annotated[int, _said(minimum=0, maximum=1_000_000)]
Priority = (
    Annotated[int, _said(minimum=-PRIORITY_LIMIT, maximum=PRIORITY_LIMIT)]
    | Annotated[str, _said(enum=list(NAMED_PRIORITIES))]
)
Fingerprint = Annotated[str, _said(pattern=f"^[0-9a-f]{{{DIGITS}}}$")]
Scope = Annotated[str, _said(enum=list(SCOPES))]


class Asked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What comes in: an unknown name is a mistake, and said to be one."""


class PageQuery(Asked, frozen=True, kw_only=True):
    """Every list has these. `cursor`: the `next` of an earlier page, for the same caller and the same question."""

    limit: Annotated[int, _said(minimum=1, maximum=MAX_LIMIT)] = 20
    cursor: str | None = None


class LongPageQuery(PageQuery, frozen=True, kw_only=True):
    limit: Annotated[int, _said(minimum=1, maximum=MAX_LIMIT)] = MAX_LIMIT


# ── Jobs, in ──


class EnqueueBody(Asked, frozen=True, kw_only=True):
    topic: Topic
    payload: dict[str, Any] = {}
    run_at: Time | None = None
    delay: Seconds | None = None
    max_retries: Retries | None = None
    id: JobId | None = None
    priority: Priority | None = None
    key: Text | None = None
    scope: Text | None = None
    scope_id: Text | None = None
    expires_at: Time | None = None
    timeout: Timeout | None = None
    tags: Tags | None = None

    def options(self) -> dict[str, Any]:
        """What was given of what is not topic and payload."""
        return {
            name: value
            for name in _OPTIONS
            if (value := getattr(self, name)) is not None
        }  # fmt: skip


_OPTIONS = tuple(name for name in EnqueueBody.__struct_fields__ if name not in ("topic", "payload"))


class BatchBody(Asked, frozen=True, kw_only=True):
    jobs: Annotated[tuple[EnqueueBody, ...], _said(minItems=1, maxItems=1000)]


class ReasonBody(Asked, frozen=True, kw_only=True):
    reason: Reason | None = None


class DeleteQuery(Asked, frozen=True, kw_only=True):
    """`reason` stands in the audit."""

    reason: Reason | None = None


class UpdateBody(Asked, frozen=True, kw_only=True):
    priority: Priority | UnsetType = UNSET
    run_at: Time | UnsetType = UNSET
    delay: Seconds | UnsetType = UNSET
    payload: dict[str, Any] | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET
    reason: Reason | None = None


EDITABLE = ("priority", "run_at", "delay", "payload", "tags")


class RequeueBody(UpdateBody, frozen=True, kw_only=True):
    """What is to be different in its next run. `version`: only if it has not run again since."""

    version: Annotated[int, _said(minimum=0, maximum=MAX_VERSION)] | None = None


class CloneBody(Asked, frozen=True, kw_only=True):
    """What is to be different. The key is not taken over: the original may have it still."""

    payload: dict[str, Any] | None = None
    run_at: Time | None = None
    delay: Seconds | None = None
    priority: Priority | None = None
    key: Text | None = None
    max_retries: Retries | None = None
    timeout: Timeout | None = None
    tags: Tags | None = None


class JobFilter(Asked, frozen=True, kw_only=True):
    """`payload` is path=value with a JSON value, user.id=7; `error` is a part of last_error."""

    topic: tuple[Topic, ...] = ()
    status: tuple[Annotated[str, _said(enum=list(Status))], ...] = ()
    id: tuple[JobId, ...] = ()
    key: tuple[Text, ...] = ()
    tag: tuple[Tag, ...] = ()
    payload: tuple[str, ...] = ()
    error: Text | None = None
    scope: Text | None = None
    scope_id: Text | None = None
    flow_id: JobId | None = None
    created_from: Time | None = None
    created_until: Time | None = None
    run_at_from: Time | None = None
    run_at_until: Time | None = None
    finished_from: Time | None = None
    finished_until: Time | None = None
    fingerprint: Fingerprint | None = None


ONE_OF = {"ids": "id", "topics": "topic", "statuses": "status", "keys": "key", "tags": "tag"}  # a filter's names


class ListQuery(JobFilter, frozen=True, kw_only=True):
    limit: Annotated[int, _said(minimum=1, maximum=MAX_LIMIT)] = 20
    offset: Annotated[int, _said(minimum=0, maximum=MAX_OFFSET)] = 0
    cursor: str | None = None


class LiveQuery(JobFilter, frozen=True, kw_only=True):
    """`limit`: how many of the newest jobs that meet the rest are shown; 0: none. `stats`: numbers as well. `seconds`:
    when to end; 0: as soon as everything was told once."""

    limit: Annotated[int, _said(minimum=0, maximum=MAX_LIMIT)] = 50
    stats: bool = True
    seconds: Annotated[float, _said(minimum=0, maximum=86_400)] | None = None


class StatsQuery(JobFilter, frozen=True, kw_only=True):
    """One topic, or none, has counters. What else is asked for is counted, up to 10,000 of each status."""


class SeriesQuery(Asked, frozen=True, kw_only=True):
    """`range` until now, or `from` and `until`. `step`: seconds per point, a multiple of 60."""

    topic: Topic | None = None
    range: Annotated[str, _said(enum=list(RANGES))] | None = None
    since: Time | None = msgspec.field(default=None, name="from")
    until: Time | None = None
    step: Annotated[int, _said(minimum=60, multipleOf=60)] | None = None


class WaitQuery(Asked, frozen=True, kw_only=True):
    timeout: Annotated[float, _said(minimum=0, maximum=60)] = 25.0


class JobTokenBody(Asked, frozen=True, kw_only=True):
    """`seconds`: how long it lives. `cancel`: it may also cancel the job. `manage`: it may also cancel, requeue, update
    and delete it; that needs the scope manage, a rule is not enough."""

    seconds: Annotated[float, _said(minimum=1, maximum=86_400)] = 3600.0
    cancel: bool = False
    manage: bool = False


# ── Jobs, out ──


class JobBody(Struct, kw_only=True):
    """A job. `locked_until`, `last_error` and `redacted` are there only if they say something: `redacted` names the
    fields of which something is not shown. `can`: what the caller may do to it, cancel or manage; told by GET
    /api/jobs/{id}, whatever its status allows."""

    id: str
    topic: str
    payload: dict[str, Any]
    status: str
    priority: int
    run_at: Time
    expires_at: Time | None
    key: str | None
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
    template_version: int | None
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


class CancelAnswer(Struct, kw_only=True):
    """All that a caller is told who may cancel the job, but not see it."""

    id: str


_COPIED = tuple(
    name
    for name in JobBody.__struct_fields__
    if name not in ("locked_until", "last_error", "status", "redacted", "can")
)


def job_body(job: Job, **more: Any) -> JobBody:
    return JobBody(
        **{name: getattr(job, name) for name in _COPIED},
        status=str(job.status),
        locked_until=UNSET if job.locked_until is None else job.locked_until,
        last_error=UNSET if job.last_error is None else job.last_error,
        **more,
    )


class EnqueuedBody(Struct, kw_only=True):
    """A job that was enqueued; or, if `existing`, the one that was there before, with the same key or id."""

    id: str
    topic: str
    status: str
    run_at: Time
    created: Time
    existing: bool = False


def enqueued_body(topic: str, one: Enqueued) -> EnqueuedBody:
    return EnqueuedBody(
        id=one.id, topic=topic, status=str(one.status), run_at=one.run_at, created=one.created, existing=one.existing
    )


class BatchItem(Struct, kw_only=True):
    """As for a single job. What is null may not be seen: another's job has taken the key in this very moment, and this
    entry was not enqueued."""

    id: str | None
    topic: str
    status: str | None
    run_at: Time | None
    created: Time | None
    existing: bool


def batch_item(topic: str, one: Enqueued, *, is_seen: bool) -> BatchItem:
    if not is_seen:
        return BatchItem(id=None, topic=topic, status=None, run_at=None, created=None, existing=True)
    return BatchItem(
        id=one.id, topic=topic, status=str(one.status), run_at=one.run_at, created=one.created, existing=one.existing
    )


class BatchAnswer(Struct, kw_only=True):
    items: list[BatchItem]


class ListAnswer(Struct, kw_only=True):
    """Newest first. `next` is the cursor of the next page; null: nothing older is left. `partial`: the search ended at
    its bound before the page was full, so that there may be older jobs or none; `next` goes on with it, and jobs that
    were created before `looked_back_to` were not looked at. `total`: how many jobs meet the filter; `total_capped`: at
    least so many."""

    items: list[JobBody]
    total: int
    limit: int
    offset: int
    total_capped: bool
    partial: bool
    next: str | None
    looked_back_to: Time | None


class StatsBody(Struct, kw_only=True):
    """`capped` names the numbers that mean "at least". `success_rate` is completed of all that ended by themselves;
    `avg_execution_time` is in milliseconds, of the runs that completed. `oldest_wait`: seconds that the job has waited
    that is ready for longest: since it was due, or since it was created if that was later."""

    pending: int
    blocked: int
    processing: int
    waiting: int
    cancel_requested: int
    completed: int
    failed: int
    expired: int
    cancelled: int
    success_rate: float | None
    avg_execution_time: float | None
    oldest_wait: float | None
    capped: tuple[str, ...]


class StatsAnswer(StatsBody, kw_only=True):
    topics: dict[str, StatsBody]
    topics_capped: bool


# ── Streams ──


class LiveJob(Struct, frozen=True, kw_only=True):
    """How a job stands, in short."""

    id: str
    topic: str
    status: str
    version: int
    progress: float
    stage: str | None
    message: str | None
    priority: int
    retries: int
    max_retries: int
    created: Time
    run_at: Time
    started_at: Time | None
    finished_at: Time | None


class LiveJobs(Struct, kw_only=True):
    """Jobs as they are now. `reset`: these are all, whatever was told before. `gone`: jobs of which nothing more is
    told, because they are not among the newest any more and have ended (then `items` tells how), were deleted, or may
    not be seen any more."""

    items: list[LiveJob]
    gone: list[str]
    reset: bool = False


class Behind(Struct, kw_only=True):
    """There is too much to look at: jobs were looked at last so many seconds ago. The next `jobs` ends this."""

    since: float


class StreamEnd(Struct, kw_only=True):
    """`reason`: stopping (come back in a moment), or the code of the problem that a new request would meet."""

    reason: str


EVENTS = {"jobs": LiveJobs, "stats": StatsAnswer, "behind": Behind, "end": StreamEnd}


class EventsAnswer(Struct, kw_only=True):
    items: list[Event]
    next: str | None


class LogsAnswer(Struct, kw_only=True):
    items: list[LogLine]
    dropped: int
    next: str | None


class RevealBody(Asked, frozen=True, kw_only=True):
    """`reason` stands in the audit."""

    reason: Reason


class RevealAnswer(Struct, kw_only=True):
    """The job, its history and its log, with nothing hidden."""

    job: JobBody
    events: list[Event]
    logs: list[LogLine]


# ── Failures ──


class FailuresQuery(PageQuery, frozen=True, kw_only=True):
    """`since`: dead letters that ended then or later. `trend`: counts of the last 24 hours, or of the last 30 days."""

    topic: tuple[Topic, ...] = ()
    since: Time | None = None
    trend: Literal["hour", "day"] = "hour"


class FailureQuery(Asked, frozen=True, kw_only=True):
    since: Time | None = None
    trend: Literal["hour", "day"] = "hour"


class FailureBody(Struct, kw_only=True):
    """Dead letters of one topic that failed alike: same type of error, same place in the application's own code.
    `title` is of the newest, whose id is `sample`; `first` and `last` are when they ended; `trend` counts them by hour
    or day, the last one is under way."""

    fingerprint: str
    topic: str
    type: str
    frame: str
    title: str
    count: int
    first: Time
    last: Time
    trend: tuple[int, ...]
    sample: str


class FailureAnswer(FailureBody, kw_only=True):
    """`capped`: there are more, which were not looked at."""

    capped: bool


class FailuresAnswer(Struct, kw_only=True):
    """The largest first. A group that has grown since an earlier page may be missing, or come twice. `capped`: only the
    newest dead letters were looked at. `ungrouped`: so many have no fingerprint yet; a running worker gives it to
    them."""

    items: list[FailureBody]
    next: str | None
    capped: bool
    ungrouped: int


# ── Topics and workers ──


class PauseBody(Asked, frozen=True, kw_only=True):
    reason: Reason | None = None
    until: Time | None = None


class PauseInfo(Struct, kw_only=True):
    at: Time
    until: Time | None
    reason: str | None
    by: str


class TopicBody(StatsBody, kw_only=True):
    """`workers`: how many live ones know it."""

    topic: str
    paused: PauseInfo | None
    workers: int


class TopicsAnswer(Struct, kw_only=True):
    items: list[TopicBody]
    capped: bool
    next: str | None


class PausedAnswer(Struct, kw_only=True):
    topic: str
    paused: bool


class WorkerBody(Struct, kw_only=True):
    """`live`: it was seen within its own lease, and is not about to stop. `holds`: what a dead one has still,
    of the 1000 jobs that dead ones have had for longest."""

    name: str
    host: str
    pid: int
    topics: tuple[str, ...]
    concurrency: int
    running: int
    lease: float
    stopping: bool
    rowlock: str
    started: Time | None
    seen: Time | None
    live: bool
    holds: list[str]


class WorkersAnswer(Struct, kw_only=True):
    items: list[WorkerBody]
    next: str | None


class WhyBody(Struct, kw_only=True):
    code: str
    answer: str
    details: list[str]


# ── Access ──


class LoginBody(Asked, frozen=True, kw_only=True):
    email: str
    password: str


class SetupBody(Asked, frozen=True, kw_only=True):
    token: str
    email: str
    password: str


class MeBody(Struct, kw_only=True):
    """`can`: what is allowed for all jobs, or for some by a rule: read, enqueue, cancel, manage. `set_up`: the first
    superuser exists; only the page is told, and only while nobody is logged in."""

    kind: str
    id: str
    name: str
    scopes: list[str]
    topics: tuple[str, ...] | None
    can: list[str]
    read_only: bool
    set_up: bool | UnsetType = UNSET


class TokenCreateBody(Asked, frozen=True, kw_only=True):
    name: Annotated[str, _said(minLength=1, maxLength=100)]
    scopes: Annotated[tuple[Scope, ...], _said(minItems=1)]
    topics: Annotated[tuple[Topic, ...], _said(minItems=1, maxItems=100)] | None = None
    expires_at: Time | None = None


class TokenBody(Struct, kw_only=True):
    """`token` is there once: when it was made."""

    id: str
    name: str
    scopes: tuple[str, ...]
    topics: tuple[str, ...] | None
    job: str | None
    created: Time
    created_by: str
    expires_at: Time | None
    last_used: Time | None
    token: str | UnsetType = UNSET


class TokensAnswer(Struct, kw_only=True):
    items: list[TokenBody]
    next: str | None


class SessionBody(Struct, kw_only=True):
    id: str
    email: str
    created: Time
    seen: Time
    ends: Time
    client: str


class SessionsAnswer(Struct, kw_only=True):
    items: list[SessionBody]
    next: str | None


class SettingsBody(Struct, kw_only=True):
    """`given` names what was set; the rest has its default."""

    http_enabled: bool
    enqueue_rule: str
    view_rule: str
    cancel_rule: str
    manage_rule: str
    allowed_topics: tuple[str, ...]
    worker_pool_size: int
    poll_interval: float
    lock_duration: float
    redact: tuple[str, ...]
    given: list[str]


class SettingsPatch(Asked, frozen=True, kw_only=True):
    """What is given changes, null means the default."""

    http_enabled: bool | UnsetType | None = UNSET
    enqueue_rule: str | UnsetType | None = UNSET
    view_rule: str | UnsetType | None = UNSET
    cancel_rule: str | UnsetType | None = UNSET
    manage_rule: str | UnsetType | None = UNSET
    allowed_topics: Annotated[tuple[Topic, ...], _said(maxItems=1000)] | UnsetType | None = UNSET
    worker_pool_size: Annotated[int, _said(minimum=1, maximum=10_000)] | UnsetType | None = UNSET
    poll_interval: Annotated[float, _said(minimum=0.01, maximum=3600)] | UnsetType | None = UNSET
    lock_duration: Annotated[float, _said(minimum=0.5, maximum=86_400)] | UnsetType | None = UNSET
    redact: Annotated[tuple[Text, ...], _said(maxItems=MOST_PATTERNS)] | UnsetType | None = UNSET
    reason: Reason | None = None

    def changes(self) -> dict[str, Any]:
        given = msgspec.structs.asdict(self)
        return {name: value for name, value in given.items() if value is not UNSET and name != "reason"}


class ExplainBody(Asked, frozen=True, kw_only=True):
    """May someone with these claims do this? `rule`: this one alone, instead of those that are saved. `job`: an id, or
    the columns of a job that is not there yet."""

    action: Annotated[str, _said(enum=["enqueue", "view", "cancel", "manage"])]
    claims: dict[str, Any] = {}
    rule: str | None = None
    job: str | dict[str, Any] | None = None


class ExplainedPart(Struct, kw_only=True):
    """`rule`: the setting in which it stands, or "rule" for the one that was given."""

    rule: str
    text: str
    left: Any
    right: Any
    holds: bool | None


class ExplainAnswer(Struct, kw_only=True):
    """`rule`: the action's own. `parts`: each comparison of all rules that can allow it, with what stood on its sides;
    `holds` null: it depends on the job."""

    allowed: bool | None
    why: str
    rule: str
    parts: list[ExplainedPart]


class AuditQuery(PageQuery, frozen=True, kw_only=True):
    """`bulk`: what this bulk action did to each of its jobs. Without it, that is left out. `search`: a text that stands
    in any part of an entry, as it is shown; A-Z and a-z are the same."""

    bulk: str | None = None
    search: Text | None = None


class AuditBody(Struct, kw_only=True):
    id: int
    at: Time
    by: str
    action: str
    job_id: str | None
    topic: str | None
    reason: str | None
    data: dict[str, Any]
    bulk: str | None


class AuditAnswer(Struct, kw_only=True):
    """`looked_back_to`: a search has ended there, and goes on with `next`."""

    items: list[AuditBody]
    next: str | None
    looked_back_to: Time | None


# ── The worker protocol ──

WorkerName = Annotated[str, _said(minLength=1, maxLength=100, pattern="^[A-Za-z0-9_.:-]+$")]
Version = Annotated[int, _said(minimum=1, maximum=MAX_VERSION)]
Lease = Annotated[float, _said(minimum=SHORTEST_LEASE, maximum=LONGEST_LEASE)]


class RunName(Asked, frozen=True, kw_only=True):
    """One run of a job: `version` is what the claim gave."""

    id: JobId
    version: Version


class ClaimBody(Asked, frozen=True, kw_only=True):
    """`worker`: its own name for itself, in this life. `lease`: seconds until others may take what it has, unless it
    renews it; left out, the setting lock_duration. `wait`: seconds that it is willing to wait for work. `runs`: all
    that it has; what it holds by the record and doesn't name is answered once more, because it can't have heard of
    it."""

    worker: WorkerName
    topics: Annotated[tuple[Topic, ...], _said(minItems=1, maxItems=MOST_TOPICS)]
    limit: Annotated[int, _said(minimum=1, maximum=MOST_CLAIMED)] = 1
    lease: Lease | None = None
    wait: Annotated[float, _said(minimum=0, maximum=LONGEST_WAIT)] = 0.0
    runs: Annotated[tuple[RunName, ...], _said(maxItems=MOST_RUNS)] | None = None


class RunBody(Struct, kw_only=True):
    """A job that is yours to run; `id` and `version` name the run. `lease`: seconds until it must be renewed."""

    id: str
    version: int
    topic: str
    payload: dict[str, Any]
    lease: float
    timeout: float
    retries: int
    max_retries: int
    priority: int
    key: str | None
    scope: str | None
    scope_id: str | None
    tags: tuple[str, ...]
    trace: str | None
    run_at: Time
    created: Time


_RUN_COPIED = tuple(name for name in RunBody.__struct_fields__ if name != "lease")


def run_body(job: Job, lease: float) -> RunBody:
    return RunBody(**{name: getattr(job, name) for name in _RUN_COPIED}, lease=lease)


class ClaimAnswer(Struct, kw_only=True):
    items: list[RunBody]


class HeartbeatBody(Asked, frozen=True, kw_only=True):
    worker: WorkerName
    runs: Annotated[tuple[RunName, ...], _said(minItems=1, maxItems=MOST_RUNS)]
    lease: Lease | None = None


class HoldBody(Struct, kw_only=True):
    """`hold`: kept; cancel (still yours, but it is to stop); timeout (still yours, but its time is over); lost (it is
    somebody else's now, or has ended)."""

    id: str
    version: int
    hold: Annotated[str, _said(enum=["kept", "cancel", "timeout", "lost"])]


class HeartbeatAnswer(Struct, kw_only=True):
    items: list[HoldBody]


class RunAsked(RunName, frozen=True, kw_only=True):
    worker: WorkerName


class ProgressBody(RunAsked, frozen=True, kw_only=True):
    """What is left out stays as it is."""

    percent: Annotated[float, _said(minimum=0, maximum=100)] | None = None
    stage: str | None = None
    message: str | None = None


class LineBody(Asked, frozen=True, kw_only=True):
    text: str
    level: Literal["debug", "info", "warning", "error"] = "info"


class LogBody(RunAsked, frozen=True, kw_only=True):
    lines: Annotated[tuple[LineBody, ...], _said(minItems=1, maxItems=MOST_LINES)]


class CompleteBody(RunAsked, frozen=True, kw_only=True):
    """`ran`: seconds that the handler took; left out: since the claim."""

    result: Any = None
    ran: Seconds | None = None


class FailBody(RunAsked, frozen=True, kw_only=True):
    """`type` and `traceback` are as the worker's language has them. `final`: don't try it again. `delay`: seconds until
    it is tried again, if nobody has registered a policy of the topic's own here."""

    error: str
    type: str | None = None
    traceback: str | None = None
    final: bool = False
    delay: Seconds | None = None
    ran: Seconds | None = None


class SnoozeBody(RunAsked, frozen=True, kw_only=True):
    seconds: Seconds


class ReleaseBody(RunAsked, frozen=True, kw_only=True):
    reason: Reason | None = None


class SettledBody(Struct, kw_only=True):
    """`status`: what the run made of the job."""

    id: str
    version: int
    status: Annotated[str, _said(enum=["completed", "pending", "failed", "cancelled"])]


class GoodbyeBody(Asked, frozen=True, kw_only=True):
    worker: WorkerName
