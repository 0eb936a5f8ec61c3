"""Routes that add jobs: one, many, or a copy of another job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Struct

from rowlock.core.conditions import holds
from rowlock.core.debounce import Debounce, Window, check_debounce, debounce_line
from rowlock.core.ids import check_id
from rowlock.core.job import (
    DEFAULT_MAX_RETRIES,
    DEFAULT_PRIORITY,
    DEFAULT_TIMEOUT,
    Job,
    LiveKey,
    check_priority,
    check_timeout,
)
from rowlock.core.templates import IfLive, key_of
from rowlock.errors import InvalidInput, OnceTaken
from rowlock.http.call import Call, columns, denied
from rowlock.http.problems import Problem, from_error
from rowlock.http.redacting import check_unmarked
from rowlock.http.routes import ENQUEUE, SEE_JOBS, Routes
from rowlock.http.shapes import (
    Asked,
    DebounceAsked,
    JobId,
    Priority,
    Retries,
    Seconds,
    Tags,
    TemplateVersion,
    Text,
    Time,
    Timeout,
    Topic,
    WindowSeconds,
    copied,
    schema,
)
from rowlock.stores.base import Enqueued

ROUTES = Routes()

MOST_IN_BATCH = 1000


class EnqueueBody(Asked, frozen=True, kw_only=True):
    topic: Topic
    payload: dict[str, Any] = msgspec.field(default_factory=dict)
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
    version: TemplateVersion | None = None
    if_live: IfLive | None = None
    debounce: DebounceAsked | None = None
    throttle: WindowSeconds | None = None

    def options(self) -> dict[str, Any]:
        """Return the given options: all fields beside topic and payload."""
        given = {name: value for name in _OPTIONS if (value := getattr(self, name)) is not None}
        if self.debounce is not None:
            given["debounce"] = Debounce(self.debounce.seconds, self.debounce.at_most)
        return given


E = TypeVar("E", bound=EnqueueBody)
_OPTIONS = tuple(name for name in EnqueueBody.__struct_fields__ if name not in ("topic", "payload"))


class BatchBody(Asked, frozen=True, kw_only=True):
    jobs: Annotated[tuple[EnqueueBody, ...], schema(minItems=1, maxItems=1000)]


class CloneBody(Asked, frozen=True, kw_only=True):
    """What is different in the copy. The key is not copied: the original may still hold it."""

    payload: dict[str, Any] | None = None
    run_at: Time | None = None
    delay: Seconds | None = None
    priority: Priority | None = None
    key: Text | None = None
    max_retries: Retries | None = None
    timeout: Timeout | None = None
    tags: Tags | None = None


class EnqueuedBody(Struct, kw_only=True):
    """The new job; or, if `existing`, the job that already had the same key or id. With debounce, that job carries the
    payload now. With throttle, it is the last one that was made with the key."""

    id: str
    topic: str
    status: str
    run_at: Time
    created: Time
    existing: bool = False


def enqueued_body(topic: str, one: Enqueued) -> EnqueuedBody:
    return copied(EnqueuedBody, one, topic=topic, status=str(one.status))


class BatchItem(Struct, kw_only=True):
    """As for a single job. If `id` is null, a job that the caller may not see took the key at the same moment, and this
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
    return copied(BatchItem, one, topic=topic, status=str(one.status))


class BatchAnswer(Struct, kw_only=True):
    items: list[BatchItem]


@ROUTES.add("POST", "/api/jobs/enqueue", ENQUEUE, "Add a job", errors=(409,))
async def enqueue(call: Call, asked: EnqueueBody) -> EnqueuedBody:
    asked = in_own_scope(call, asked)
    options = asked.options()
    await call.api.jobs.definitions.refresh()
    check_new(call, asked)
    if asked.id is not None or _window_of(call, asked) is not None:
        await refuse_hidden(call, [asked])
    try:
        told = await call.api.jobs.enqueue(asked.topic, asked.payload, **options)
    except OnceTaken as error:
        raise await had(call, error) from None
    if told.existing and await hidden_jobs(call, [told.id]):
        raise _taken()
    return enqueued_body(asked.topic, told)


@ROUTES.add("POST", "/api/jobs/enqueue/batch", ENQUEUE, "Add up to 1,000 jobs: all or none", errors=(409,))
async def enqueue_batch(call: Call, asked: BatchBody) -> BatchAnswer:
    if not 1 <= len(asked.jobs) <= MOST_IN_BATCH:
        raise Problem("out_of_range", f"jobs: give 1 to {MOST_IN_BATCH} jobs", field="jobs")
    await call.api.jobs.definitions.refresh()
    jobs = [in_own_scope(call, one) for one in asked.jobs]
    for one in jobs:
        check_new(call, one)
    await refuse_hidden(call, jobs)
    entries = [{"topic": one.topic, "payload": one.payload, **one.options()} for one in jobs]
    try:
        told = await call.api.jobs.enqueue_many(entries)
    except OnceTaken as error:
        raise await had(call, error) from None
    hidden = await hidden_jobs(call, [new.id for new in told if new.existing])
    # A hidden job took the key in between. The batch is written by now, so this is no error.
    items = [batch_item(one.topic, new, is_seen=new.id not in hidden) for one, new in zip(jobs, told, strict=True)]
    return BatchAnswer(items=items)


@ROUTES.add("POST", "/api/jobs/{id}/clone", SEE_JOBS, "Add a copy of this job", errors=(409,))
async def clone_job(call: Call, asked: CloneBody) -> EnqueuedBody:
    """Enqueue a copy of a job, with changes. The caller must be allowed to enqueue it."""
    job = await call.job("read")
    check_unmarked(call, asked.payload, job)
    changed = {name: value for name in asked.__struct_fields__ if (value := getattr(asked, name)) is not None}
    try:
        return await enqueue(call, EnqueueBody(**{**content_of(job), **changed}))
    except InvalidInput as error:  # it may repeat a hidden value of the job
        raise InvalidInput(error.field, error.code, call.redaction.texts([error.problem], job)[0]) from None


def check_new(call: Call, asked: EnqueueBody) -> None:
    """Refuse a job that the caller may not enqueue, or whose payload holds the mark of a hidden value."""
    check_unmarked(call, asked.payload)
    call.check_enqueue(asked.topic, partial(new_columns, call, asked))


def in_own_scope(call: Call, asked: E) -> E:
    """Return the job with the scope of the caller's token, if it has one. Refuse another scope."""
    own = call.identity.jobs_of
    if own is None:
        return asked
    scope, scope_id = own
    for name, value in (("scope", scope), ("scope_id", scope_id)):
        if getattr(asked, name) not in (None, value):
            raise denied(call.identity, f"this token is for the {name} {value!r}: leave it out", field=name)
    return msgspec.structs.replace(asked, scope=scope, scope_id=scope_id)


def content_of(job: Job) -> dict[str, Any]:
    return {
        "topic": job.topic, "payload": job.payload, "priority": job.priority, "scope": job.scope,
        "scope_id": job.scope_id, "max_retries": job.max_retries, "timeout": job.timeout, "tags": job.tags or None,
    }  # fmt: skip


async def had(call: Call, error: OnceTaken) -> Problem:
    """Return the problem for an error. It doesn't name a job that the caller may not see."""
    if await hidden_jobs(call, [error.first]):
        return Problem("once_taken", f"the topic {error.topic} allows one job per key: there was one", field="key")
    return from_error(error)


async def hidden_jobs(call: Call, ids: list[str]) -> set[str]:
    """Return those of these jobs that the caller may not see."""
    condition = call.reach("read")
    if not ids or condition is True:
        return set()
    there = await (await call.store()).read(ids, Job)
    return {one for one in ids if one not in there or not holds(condition, columns(there[one]))}


def new_columns(call: Call, asked: EnqueueBody) -> dict[str, Any]:
    """Return the columns of the job that would be created: enqueue_rule is judged on them."""
    now = datetime.now(UTC)
    definitions = call.api.jobs.definitions
    given = {**definitions.defaults(asked.topic, asked.version), **asked.options()}
    key = _key_of(call, asked)
    window = _window_of(call, asked)
    delay = asked.delay or 0.0 if window is None else window.seconds
    run_at = asked.run_at or now + timedelta(seconds=min(max(delay, 0.0), 1e9))
    return {
        "id": asked.id, "topic": asked.topic, "status": "pending", "key": key, "scope": asked.scope,
        "scope_id": asked.scope_id, "retries": 0, "crashes": 0, "version": 0, "progress": 0.0,
        "priority": check_priority(given.get("priority", DEFAULT_PRIORITY)),
        "max_retries": given.get("max_retries", DEFAULT_MAX_RETRIES),
        "timeout": check_timeout(given.get("timeout", DEFAULT_TIMEOUT)),
        "created": now, "updated": now, "run_at": _aware(run_at, "run_at"),
        "expires_at": None if asked.expires_at is None else _aware(asked.expires_at, "expires_at"),
    }  # fmt: skip


def _key_of(call: Call, asked: EnqueueBody) -> str | None:
    template = call.api.jobs.definitions.template(asked.topic, asked.version)
    if asked.key is None and template is not None and template.key is not None:
        return key_of(template.key, asked.payload)
    return asked.key


def _window_of(call: Call, asked: EnqueueBody) -> Window | None:
    """Return the debounce of the job: its own, or that of its template."""
    if asked.debounce is not None:
        return check_debounce(Debounce(asked.debounce.seconds, asked.debounce.at_most))
    template = call.api.jobs.definitions.template(asked.topic, asked.version)
    return None if template is None else template.debounce


def _line_of(call: Call, asked: EnqueueBody) -> str | None:
    """Return the line of a job with debounce."""
    key = _key_of(call, asked)
    if key is None or _window_of(call, asked) is None:
        return None
    return debounce_line(asked.topic, asked.scope, asked.scope_id, key)


def _aware(time: datetime, field: str) -> datetime:
    if time.tzinfo is None:
        raise InvalidInput(field, "naive_time", "has no time zone: write Z for UTC")
    return time


async def refuse_hidden(call: Call, asked: Sequence[EnqueueBody]) -> None:
    """Refuse if a job that the caller may not see has one of these keys or ids, or would be replaced. Before anything
    is added, because a batch is added as a whole or not at all; and before contents are compared, because the
    difference would show them."""
    condition = call.reach("read")
    if condition is True:
        return
    store = await call.store()
    keys = {LiveKey(one.topic, one.scope, one.scope_id, one.key) for one in asked if one.key is not None}
    ids = [check_id(one.id) for one in asked if one.id is not None]
    lines = [line for one in asked if (line := _line_of(call, one)) is not None]
    replaced = await store.debounced(lines) if lines else []
    there = await store.read(ids + replaced + await store.holders(list(keys)), Job)
    hidden = {job_id for job_id, job in there.items() if not holds(condition, columns(job))}
    if hidden:
        raise _taken("key" if hidden.isdisjoint(ids) else "id")


def _taken(field: str = "key") -> Problem:
    return Problem("key_taken", f"a job with this {field} is there already", field=field)
