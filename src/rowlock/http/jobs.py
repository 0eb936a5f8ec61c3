"""Routes of jobs: enqueue, look, steer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, structs

from rowlock.access import job_tokens, tokens
from rowlock.core.conditions import Condition, holds, required
from rowlock.core.ids import check_id
from rowlock.core.job import (
    DEFAULT_MAX_RETRIES,
    DEFAULT_PRIORITY,
    DEFAULT_TIMEOUT,
    Job,
    LiveKey,
    Status,
    check_priority,
    check_timeout,
    check_topic,
)
from rowlock.errors import InvalidInput, InvalidState
from rowlock.http import cursors, shapes
from rowlock.http.call import Call, columns, denied
from rowlock.http.problems import Problem
from rowlock.http.redacting import check_filter, check_guesses, check_unmarked, job_body, search
from rowlock.http.response import Response, answer, nothing
from rowlock.http.routes import CANCEL_JOBS, ENQUEUE, MANAGE_JOBS, SEE_JOBS, Route
from rowlock.stores.reading import Filter

if TYPE_CHECKING:
    from rowlock.http.app import Api
    from rowlock.jobs import Jobs

MOST_IN_BATCH = 1000
LONGEST_WAIT = 60.0
LONGEST_TOKEN = 86_400.0
_SAMPLE = 20  # of one's own completed jobs, for the average of how long they take


# ── Enqueue ──


async def enqueue(call: Call) -> Response:
    asked: shapes.EnqueueBody = call.body
    options = asked.options()
    check_unmarked(call, asked.payload)
    call.check_enqueue(asked.topic, partial(_columns, call, asked))
    if asked.id is not None:
        await _refuse_hidden(call, [asked])
    told = await call.api.jobs.enqueue(asked.topic, asked.payload, **options)
    if told.existing and await _hidden(call, [told.id]):
        raise _taken()
    return answer(shapes.enqueued_body(asked.topic, told))


async def enqueue_batch(call: Call) -> Response:
    asked: shapes.BatchBody = call.body
    if not 1 <= len(asked.jobs) <= MOST_IN_BATCH:
        raise Problem("out_of_range", f"jobs: give 1 to {MOST_IN_BATCH} jobs", field="jobs")
    for one in asked.jobs:
        check_unmarked(call, one.payload)
        call.check_enqueue(one.topic, partial(_columns, call, one))
    await _refuse_hidden(call, asked.jobs)
    entries = [{"topic": one.topic, "payload": one.payload, **one.options()} for one in asked.jobs]
    told = await call.api.jobs.enqueue_many(entries)
    hidden = await _hidden(call, [new.id for new in told if new.existing])
    # What is hidden came in between: the batch is written by now, so this is no error any more.
    items = [
        shapes.batch_item(one.topic, new, is_seen=new.id not in hidden)
        for one, new in zip(asked.jobs, told, strict=True)
    ]
    return answer(shapes.BatchAnswer(items=items))


async def _hidden(call: Call, ids: list[str]) -> set[str]:
    """Those of them that may not be seen."""
    condition = call.reach("read")
    if not ids or condition is True:
        return set()
    there = await (await call.store()).get(ids)
    return {one for one in ids if one not in there or not holds(condition, columns(there[one]))}


def _columns(call: Call, asked: shapes.EnqueueBody) -> dict[str, Any]:
    """Of the job that is to be created, as enqueue_rule sees them."""
    now = datetime.now(UTC)
    task = call.api.jobs._tasks.get(asked.topic)
    given = {**(task.policy.defaults() if task is not None else {}), **asked.options()}
    run_at = asked.run_at or now + timedelta(seconds=min(max(asked.delay or 0.0, 0.0), 1e9))
    return {
        "id": asked.id, "topic": asked.topic, "status": "pending", "key": asked.key, "scope": asked.scope,
        "scope_id": asked.scope_id, "retries": 0, "crashes": 0, "version": 0, "progress": 0.0,
        "priority": check_priority(given.get("priority", DEFAULT_PRIORITY)),
        "max_retries": given.get("max_retries", DEFAULT_MAX_RETRIES),
        "timeout": check_timeout(given.get("timeout", DEFAULT_TIMEOUT)),
        "created": now, "updated": now, "run_at": _aware(run_at, "run_at"),
        "expires_at": None if asked.expires_at is None else _aware(asked.expires_at, "expires_at"),
    }  # fmt: skip


def _aware(time: datetime, field: str) -> datetime:
    if time.tzinfo is None:
        raise InvalidInput(field, "naive_time", "has no time zone: write Z for UTC")
    return time


async def _refuse_hidden(call: Call, asked: Sequence[shapes.EnqueueBody]) -> None:
    """Jobs that are in the way of these and may not be seen. Before anything is added, because a batch is added as a
    whole or not at all; and before ids are compared by content, because what differs would tell what is in them."""
    condition = call.reach("read")
    if condition is True:
        return
    store = await call.store()
    keys = {LiveKey(one.topic, one.scope, one.scope_id, one.key) for one in asked if one.key is not None}
    ids = [check_id(one.id) for one in asked if one.id is not None] + await store.holders(list(keys))
    if not all(holds(condition, columns(job)) for job in (await store.get(ids)).values()):
        raise _taken()


def _taken() -> Problem:
    return Problem("key_taken", "a job with this key or id is there already", field="key")


# ── Look ──


async def get_job(call: Call) -> Response:
    job = await call.job("read")
    return answer(job_body(call, job, can=call.can(job)))


def asked_filter(asked: shapes.JobFilter, condition: Condition) -> Filter:
    """Of the jobs that meet the condition."""
    return filter_of(asked, _narrowed(condition, {}))


async def list_jobs(call: Call) -> Response:
    asked: shapes.ListQuery = call.query
    wanted = asked_filter(asked, visible(call))
    check_filter(call, wanted)
    cursor = await call.api.cursors.open(call, asked.cursor)
    page = await search(call, wanted, limit=asked.limit, offset=asked.offset, cursor=cursor)
    return answer(
        shapes.ListAnswer(
            items=[job_body(call, job) for job in page.items],
            total=page.total,
            limit=page.limit,
            offset=page.offset,
            total_capped=page.total_capped,
            partial=page.partial,
            next=await call.api.cursors.seal(call, page.next),
            looked_back_to=page.reached,
        )
    )


def filter_of(asked: shapes.JobFilter, more: dict[str, Any]) -> Filter:
    """`more`: what is asked for beside it; what the caller asks comes first."""
    if asked.flow_id is not None:
        try:
            check_id(asked.flow_id)
        except InvalidInput as error:
            raise InvalidInput("flow_id", error.code, error.problem) from None
    given = {name: getattr(asked, name) for name in _SAME if getattr(asked, name) is not None}
    return Filter(
        ids=asked.id,
        topics=asked.topic,
        statuses=asked.status,
        keys=asked.key,
        tags=asked.tag,
        payload=[_path(one) for one in asked.payload],
        **{**more, **given},
    )


_SAME = (
    "error", "scope", "scope_id", "flow_id", "created_from", "created_until", "run_at_from", "run_at_until",
    "finished_from", "finished_until", "fingerprint",
)  # fmt: skip


def visible(call: Call) -> Condition:
    condition = call.reach("read")
    if condition is False:
        raise denied(call.identity, "neither view_rule nor manage_rule lets you see any job")
    return condition


def _narrowed(condition: Condition, given: dict[str, Any]) -> dict[str, Any]:
    """With what of the condition an index knows."""
    if condition is True:
        return given
    scope_id = required(condition).get("scope_id")
    if scope_id and "scope_id" not in given:
        given = {**given, "scope_id": scope_id}
    return {**given, "where": condition}


def _path(text: str) -> tuple[str, Any]:
    path, sign, value = text.partition("=")
    if not sign:
        raise InvalidInput("payload", "bad_path", f"{text!r:.80} is not path=value, such as user.id=7")
    try:
        return path, msgspec.json.decode(value)
    except RecursionError:
        raise InvalidInput("payload", "too_deep", "is nested too deeply") from None
    except msgspec.DecodeError:
        return path, value  # a text needs no quotes


async def get_stats(call: Call) -> Response:
    asked: shapes.StatsQuery = call.query
    if asked == shapes.StatsQuery(topic=asked.topic[:1]):
        return answer(await read_stats(call.api, visible(call), asked.topic[0] if asked.topic else None))
    wanted = asked_filter(asked, visible(call))
    check_guesses(call, wanted)
    return answer(await _counted(call.api.jobs, wanted))


async def read_stats(api: Api, condition: Condition, topic: str | None) -> shapes.StatsAnswer:
    """Of the jobs that meet the condition."""
    if condition is not True:
        return await _counted(api.jobs, Filter(**_narrowed(condition, {} if topic is None else {"topics": [topic]})))
    stats = await api.counting.stats(None if topic is None else check_topic(topic))
    topics = {name: stats_body(one) for name, one in stats.topics.items()}
    fields = msgspec.structs.asdict(stats_body(stats))
    return shapes.StatsAnswer(**fields, topics=topics, topics_capped=stats.topics_capped)


def stats_body(counts: Any) -> shapes.StatsBody:
    return shapes.StatsBody(**{name: getattr(counts, name) for name in shapes.StatsBody.__struct_fields__})


async def _counted(jobs: Jobs, wanted: Filter) -> shapes.StatsAnswer:
    """Of jobs that no counter knows: counted, up to what a list counts."""
    pages = {}
    for status in wanted.statuses or Status:
        limit = _SAMPLE if status == Status.COMPLETED else 1
        pages[Status(status)] = await jobs.list(structs.replace(wanted, statuses=[status]), limit=limit)
    counts = {str(status): pages[status].total if status in pages else 0 for status in Status}
    ended = counts["completed"] + counts["failed"] + counts["expired"]
    took = [
        (job.finished_at - job.started_at).total_seconds() * 1000
        for job in (pages[Status.COMPLETED].items if Status.COMPLETED in pages else ())
        if job.finished_at is not None and job.started_at is not None
    ]
    return shapes.StatsAnswer(
        **counts,
        success_rate=counts["completed"] / ended if ended else None,
        avg_execution_time=sum(took) / len(took) if took else None,
        oldest_wait=None,
        capped=tuple(str(status) for status, page in pages.items() if page.total_capped or page.partial),
        topics={},
        topics_capped=False,
    )


async def get_events(call: Call) -> Response:
    job = await call.job("read")
    events, following = await cursors.page_of(call, await call.api.jobs.events(job.id), lambda one: f"{one.seq:012}")
    return answer(shapes.EventsAnswer(items=call.redaction.events(events, job), next=following))


async def get_logs(call: Call) -> Response:
    job = await call.job("read")
    log = await call.api.jobs.logs(job.id)
    numbered = list(enumerate(log.lines, log.dropped))  # old lines are dropped; a line's number stays
    found, following = await cursors.page_of(call, numbered, lambda one: f"{one[0]:012}")
    lines = call.redaction.lines([line for _, line in found], job)
    return answer(shapes.LogsAnswer(items=lines, dropped=log.dropped, next=following))


_IN_SHORT = {
    "due_later": "It is not due yet.", "backoff": "It has failed, and is tried again later.",
    "expiring": "It is past its expiry.", "paused": "Its topic is paused.",
    "no_worker": "No worker that knows its topic is running.", "busy": "All workers are busy.",
    "in_line": "It waits for its turn.", "running": "It is running.", "claimed": "It is about to run.",
    "lease_expired": "Its worker went silent; it is about to be taken back.",
    "cancel_requested": "It was asked to stop.",
}  # fmt: skip


async def get_why(call: Call) -> Response:
    job = await call.job("read")
    why = await call.api.jobs.why(job.id)
    if call.reach("read") is not True:  # who works here, on what, and why a topic is paused is for operators
        return answer(shapes.WhyBody(code=why.code, answer=_IN_SHORT.get(why.code, f"It is {job.status}."), details=[]))
    said, *details = call.redaction.texts([why.answer, *why.details], job)
    return answer(shapes.WhyBody(code=why.code, answer=said, details=details))


async def wait_for_job(call: Call) -> Response:
    """The job when it has ended, or as it is when the time is over: its status tells which."""
    asked: shapes.WaitQuery = call.query
    if not 0 <= asked.timeout <= LONGEST_WAIT:
        raise Problem("out_of_range", f"timeout: must be 0 to {LONGEST_WAIT:g} seconds", field="timeout")
    job = await call.job("read")
    if job.is_live and asked.timeout:
        if call.api.ends.is_full(call.place):
            raise Problem("too_many_waiting", "too many wait already", headers={"retry-after": "5"})
        await _ended_or_gone(call, job.id, asked.timeout)
        job = await call.job("read")
    return answer(job_body(call, job))


async def _ended_or_gone(call: Call, job_id: str, timeout: float) -> None:
    ended, gone = call.api.ends.expect(job_id, call.place), asyncio.ensure_future(call.request.hung_up())
    try:
        await asyncio.wait([ended, gone], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended.cancel()
        gone.cancel()
        await asyncio.gather(ended, gone, return_exceptions=True)


# ── Steer ──


async def requeue_job(call: Call) -> Response:
    asked: shapes.RequeueBody = call.body
    job = await call.job("manage")
    check_unmarked(call, asked.payload, job)
    changes = _changes(asked)
    if changes:
        _check_edited(call, job, changes, run_at=None, expires_at=None)  # a requeue drops both
    changed = await call.api.jobs.requeue(job.id, **changes, version=asked.version, reason=asked.reason, by=call.by)
    return answer(job_body(call, changed))


async def cancel_job(call: Call) -> Response:
    job = await call.job("cancel")
    try:
        job = await call.api.jobs.cancel(job.id, reason=call.body.reason, by=call.by)
    except InvalidState:
        if call.may("read", job):
            raise
        raise Problem("wrong_state", "the job can't be cancelled any more") from None  # its status is content
    return answer(job_body(call, job) if call.may("read", job) else shapes.CancelAnswer(id=job.id))


async def delete_job(call: Call) -> Response:
    job = await call.job("manage")
    await call.api.jobs.delete(job.id, reason=call.query.reason, by=call.by)
    return nothing()


async def update_job(call: Call) -> Response:
    asked: shapes.UpdateBody = call.body
    job = await call.job("manage")
    check_unmarked(call, asked.payload, job)
    changes = _changes(asked)
    if changes:
        _check_edited(call, job, changes, run_at=job.run_at, expires_at=job.expires_at)
    return answer(job_body(call, await call.api.jobs.update(job.id, **changes, reason=asked.reason, by=call.by)))


def _changes(asked: shapes.UpdateBody) -> dict[str, Any]:
    given = {name: getattr(asked, name) for name in shapes.EDITABLE}
    return {name: value for name, value in given.items() if value is not UNSET}


def _check_edited(call: Call, job: Job, changes: dict[str, Any], **times: datetime | None) -> None:
    """Refuse content that the caller might not enqueue, either: else an edit would get around enqueue_rule. `times`:
    those that it has if nothing changes them."""
    if "delay" in changes:
        times["run_at"] = None
    content = shapes.EnqueueBody(**{**_content(job), "key": job.key, **times, **changes})
    call.check_enqueue(job.topic, partial(_columns, call, content), edits=True)


def _content(job: Job) -> dict[str, Any]:
    return {
        "topic": job.topic, "payload": job.payload, "priority": job.priority, "scope": job.scope,
        "scope_id": job.scope_id, "max_retries": job.max_retries, "timeout": job.timeout, "tags": job.tags or None,
    }  # fmt: skip


async def clone_job(call: Call) -> Response:
    """A new job like this one, with what is given changed. Needs what enqueuing it needs."""
    asked: shapes.CloneBody = call.body
    job = await call.job("read")
    check_unmarked(call, asked.payload, job)
    changed = {name: value for name in asked.__struct_fields__ if (value := getattr(asked, name)) is not None}
    call.body = shapes.EnqueueBody(**{**_content(job), **changed})
    return await enqueue(call)


async def make_job_token(call: Call) -> Response:
    """For a page that shows this one job: it sees (or cancels, or manages) nothing else, and not for long.

    By a rule one may cancel a job, or see it, but not give `manage` away: a token has the scope, and so would not have
    to satisfy enqueue_rule."""
    asked: shapes.JobTokenBody = call.body
    if not 1 <= asked.seconds <= LONGEST_TOKEN:
        raise Problem("out_of_range", f"seconds: must be 1 to {LONGEST_TOKEN:g}", field="seconds")
    job = await call.job("read")
    if call.identity.job is not None:  # else it would live as long as it likes
        raise denied(call.identity, "a token that is for one job can't make others")
    if call.identity.kind == "anonymous":
        raise denied(call.identity, "a token needs somebody who gives it away")
    if asked.manage and not call.identity.has("manage"):
        raise denied(call.identity, "a token that manages the job needs a maker with the scope manage", field="manage")
    if asked.cancel and not call.may("cancel", job):
        raise denied(call.identity, "you may not cancel this job, nor may a token that you make", field="cancel")
    store = await call.store()
    ends = await store.now() + timedelta(seconds=asked.seconds)
    if call.identity.expires_at is not None:
        ends = min(ends, call.identity.expires_at)
    try:
        scopes = ["manage"] if asked.manage else ["read", "cancel"] if asked.cancel else ["read"]
        token, text = await job_tokens.create(store, job.id, scopes, maker=call.identity, expires_at=ends)
    except job_tokens.TooMany as error:
        of = "" if error.job is None else " for this job"
        detail = f"{error.most} tokens that you made{of} are still good: use one of them, or wait {error.seconds} s"
        again = {"retry-after": str(error.seconds)}
        raise Problem("too_many_tokens", detail, headers=again) from None
    return answer(token_body(token, text), 201)


def token_body(token: tokens.Token, text: str | None = None) -> shapes.TokenBody:
    return shapes.TokenBody(**msgspec.structs.asdict(token), token=UNSET if text is None else text)


ROUTES = [
    Route(
        method="POST", path="/api/jobs/enqueue", access=ENQUEUE, handler=enqueue, summary="Add a job",
        body=shapes.EnqueueBody, answers=(shapes.EnqueuedBody,), errors=(409,),
    ),
    Route(
        method="POST", path="/api/jobs/enqueue/batch", access=ENQUEUE, handler=enqueue_batch,
        summary="Add up to 1,000 jobs: all or none", body=shapes.BatchBody, answers=(shapes.BatchAnswer,),
        errors=(409,),
    ),
    Route(
        method="GET", path="/api/jobs", access=SEE_JOBS, handler=list_jobs, summary="List jobs, newest first",
        query=shapes.ListQuery, answers=(shapes.ListAnswer,),
    ),
    Route(
        method="GET", path="/api/jobs/stats", access=SEE_JOBS, handler=get_stats, summary="How many jobs stand where",
        query=shapes.StatsQuery, answers=(shapes.StatsAnswer,),
    ),
    Route(
        method="GET", path="/api/jobs/{id}", access=SEE_JOBS, handler=get_job, summary="A job",
        answers=(shapes.JobBody,), errors=(404,),
    ),
    Route(
        method="PATCH", path="/api/jobs/{id}", access=MANAGE_JOBS, handler=update_job, summary="Change a pending job",
        body=shapes.UpdateBody, answers=(shapes.JobBody,), errors=(404, 409),
    ),
    Route(
        method="DELETE", path="/api/jobs/{id}", access=MANAGE_JOBS, handler=delete_job,
        summary="Remove a job that is not running", query=shapes.DeleteQuery, status=204, errors=(404, 409),
    ),
    Route(
        method="POST", path="/api/jobs/{id}/requeue", access=MANAGE_JOBS, handler=requeue_job,
        summary="Run a failed, expired or cancelled job again, maybe changed", body=shapes.RequeueBody,
        body_optional=True, answers=(shapes.JobBody,), errors=(404, 409),
    ),
    Route(
        method="POST", path="/api/jobs/{id}/cancel", access=CANCEL_JOBS, handler=cancel_job,
        summary="Stop a job: at once if it is not running, else it is asked to", body=shapes.ReasonBody,
        body_optional=True, answers=(shapes.JobBody, shapes.CancelAnswer), errors=(404, 409),
    ),
    Route(
        method="POST", path="/api/jobs/{id}/clone", access=SEE_JOBS, handler=clone_job,
        summary="Add a job like this one", body=shapes.CloneBody, body_optional=True,
        answers=(shapes.EnqueuedBody,), errors=(404, 409),
    ),
    Route(
        method="POST", path="/api/jobs/{id}/token", access=SEE_JOBS, handler=make_job_token,
        summary="A short-lived token for this job alone", body=shapes.JobTokenBody, body_optional=True,
        answers=(shapes.TokenBody,), status=201, errors=(404, 429),
    ),
    Route(
        method="GET", path="/api/jobs/{id}/events", access=SEE_JOBS, handler=get_events, summary="A job's history",
        query=shapes.LongPageQuery, answers=(shapes.EventsAnswer,), errors=(404,),
    ),
    Route(
        method="GET", path="/api/jobs/{id}/logs", access=SEE_JOBS, handler=get_logs,
        summary="What its handlers have logged", query=shapes.LongPageQuery, answers=(shapes.LogsAnswer,),
        errors=(404,),
    ),
    Route(
        method="GET", path="/api/jobs/{id}/wait", access=SEE_JOBS, handler=wait_for_job,
        summary="Wait until a job has ended", query=shapes.WaitQuery, answers=(shapes.JobBody,), errors=(404, 429),
    ),
    Route(
        method="GET", path="/api/jobs/{id}/why", access=SEE_JOBS, handler=get_why, summary="Why is it not running?",
        answers=(shapes.WhyBody,), errors=(404,),
    ),
]  # fmt: skip
