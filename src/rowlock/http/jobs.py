"""Routes of jobs: show, wait, requeue, cancel, update, delete."""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from rowlock.core.flows import outside_of
from rowlock.core.job import MAX_VERSION, Event, Job, LogLine
from rowlock.errors import InvalidState
from rowlock.http import cursors
from rowlock.http.call import Call
from rowlock.http.enqueue import EnqueueBody, content_of, hidden_jobs, new_columns
from rowlock.http.filters import JobFilter, asked_filter, visible
from rowlock.http.problems import Problem, check_range
from rowlock.http.redacting import check_filter, check_results, check_unmarked, job_body, search, stored_steps
from rowlock.http.routes import CANCEL_JOBS, MANAGE_JOBS, SEE_JOBS, Routes
from rowlock.http.shapes import (
    LONGEST_STEP,
    Asked,
    JobBody,
    LongPageQuery,
    Priority,
    Reason,
    ReasonBody,
    Seconds,
    Tags,
    Time,
    copied,
    schema,
)  # fmt: skip
from rowlock.stores.base import InLine
from rowlock.stores.flows import StoredEdges
from rowlock.stores.queries import MAX_LIMIT, MAX_OFFSET

ROUTES = Routes()

LONGEST_WAIT = 60.0


class ListQuery(JobFilter, frozen=True, kw_only=True):
    limit: Annotated[int, schema(minimum=1, maximum=MAX_LIMIT)] = 20
    offset: Annotated[int, schema(minimum=0, maximum=MAX_OFFSET)] = 0
    cursor: str | None = None


class ListAnswer(Struct, kw_only=True):
    """Newest first. `next`: the cursor of the next page; null: this is the last page. `partial`: the search stopped at
    its bound before the page was full. It has not looked at jobs that were created before `looked_back_to`; `next`
    continues there. `total`: how many jobs meet the filter; with `total_capped`, at least so many."""

    items: list[JobBody]
    total: int
    limit: int
    offset: int
    total_capped: bool
    partial: bool
    next: str | None
    looked_back_to: Time | None


class WaitQuery(Asked, frozen=True, kw_only=True):
    timeout: Annotated[float, schema(minimum=0, maximum=60)] = 25.0


class UpdateBody(Asked, frozen=True, kw_only=True):
    priority: Priority | UnsetType = UNSET
    run_at: Time | UnsetType = UNSET
    delay: Seconds | UnsetType = UNSET
    payload: dict[str, Any] | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET
    reason: Reason | None = None


EDITABLE = ("priority", "run_at", "delay", "payload", "tags")


class RequeueBody(UpdateBody, frozen=True, kw_only=True):
    """What is different in its next run. `version`: requeue only if the job has not run again since. Results of steps
    that have succeeded are kept, unless the payload changes. `from_step`: this step (`name`, or `name#2` for its second
    call) and those behind it run again. `keep_steps` false: all steps run again."""

    version: Annotated[int, schema(minimum=0, maximum=MAX_VERSION)] | None = None
    from_step: Annotated[str, schema(minLength=1, maxLength=LONGEST_STEP + 5)] | None = None
    keep_steps: bool = True


class DeleteQuery(Asked, frozen=True, kw_only=True):
    """`reason` is kept in the audit."""

    reason: Reason | None = None


class CancelAnswer(Struct, kw_only=True):
    """The whole answer for a caller who may cancel the job, but not see it."""

    id: str


class EventsAnswer(Struct, kw_only=True):
    items: list[Event]
    next: str | None


class LogsAnswer(Struct, kw_only=True):
    items: list[LogLine]
    dropped: int
    next: str | None


class WhyBody(Struct, kw_only=True):
    code: str
    answer: str
    details: list[str]


@ROUTES.add("GET", "/api/jobs/{id}", SEE_JOBS, "A job")
async def get_job(call: Call) -> JobBody:
    job = await call.job("read")
    return job_body(call, job, await call.api.jobs.steps(job.id), can=call.can(job))


@ROUTES.add("GET", "/api/jobs", SEE_JOBS, "List jobs, newest first")
async def list_jobs(call: Call, asked: ListQuery) -> ListAnswer:
    wanted = asked_filter(asked, visible(call))
    check_filter(call, wanted)
    cursor = await call.api.cursors.open(call, asked.cursor)
    page = await search(call, wanted, limit=asked.limit, offset=asked.offset, cursor=cursor)
    items, following = [job_body(call, job) for job in page.items], await call.api.cursors.seal(call, page.next)
    return copied(ListAnswer, page, items=items, next=following, looked_back_to=page.reached)


@ROUTES.add("GET", "/api/jobs/{id}/events", SEE_JOBS, "A job's history")
async def get_events(call: Call, asked: LongPageQuery) -> EventsAnswer:
    job = await call.job("read")
    events, following = await cursors.page_of(call, await call.api.jobs.events(job.id), lambda one: f"{one.seq:012}")
    steps = await stored_steps(call, job)
    return EventsAnswer(items=call.redaction.events(events, job, steps), next=following)


@ROUTES.add("GET", "/api/jobs/{id}/logs", SEE_JOBS, "The log lines of its handlers")
async def get_logs(call: Call, asked: LongPageQuery) -> LogsAnswer:
    job = await call.job("read")
    log = await call.api.jobs.logs(job.id)
    numbered = list(enumerate(log.lines, log.dropped))  # old lines are dropped; the others keep their numbers
    found, following = await cursors.page_of(call, numbered, lambda one: f"{one[0]:012}")
    lines = call.redaction.lines([line for _, line in found], job, await stored_steps(call, job))
    return LogsAnswer(items=lines, dropped=log.dropped, next=following)


_IN_SHORT = {
    "due_later": "It is not due yet.", "backoff": "It has failed, and is retried later.",
    "expiring": "It is past its expiry.", "paused": "Its topic is paused.",
    "no_worker": "No worker that knows its topic is running.",
    "no_worker_version": "No worker that has its version is running.",
    "in_line_of_key": "Other jobs with its key are before it.", "busy": "All workers are busy.",
    "in_line": "Other jobs are before it.", "running": "It is running.", "claimed": "It is about to run.",
    "lease_expired": "Its worker went silent; the job is about to be rescued.",
    "cancel_requested": "It was asked to stop.", "cancel_undo": "It was cancelled, and undoes what was done.",
    "cancel_outside": "It was cancelled, and waits until the outside has stopped.",
    "waiting": "It waits for a signal.", "sleeping": "It sleeps.",
    "parents": "It waits for other jobs of its flow.", "held": "It is held until a person decides.",
    "children": "It waits for jobs that it has started.",
    "limit": "As many jobs as its limit allows are running.", "rate": "As many jobs as its rate allows have started.",
}  # fmt: skip


@ROUTES.add("GET", "/api/jobs/{id}/why", SEE_JOBS, "Why is it not running?")
async def get_why(call: Call) -> WhyBody:
    job = await call.job("read")
    why = await call.api.jobs.why(job.id)
    if call.reach("read") is not True:  # workers and pauses are for operators only
        return WhyBody(code=why.code, answer=_IN_SHORT.get(why.code, f"It is {job.status}."), details=[])
    said, *details = call.redaction.texts([why.answer, *why.details], job, await stored_steps(call, job))
    return WhyBody(code=why.code, answer=said, details=details)


class LineAnswer(Struct, kw_only=True):
    """Where a live job stands in the line of its key; `line` false: in none. `head`: the job whose turn it is.
    `before`: the job right before this one. Both are null if there is none, or the caller may not see it. `ahead` and
    `behind`: how many jobs; with `ahead_capped` or `behind_capped`, at least so many."""

    line: bool
    head: str | UnsetType | None = UNSET
    ahead: int | UnsetType = UNSET
    ahead_capped: bool | UnsetType = UNSET
    behind: int | UnsetType = UNSET
    behind_capped: bool | UnsetType = UNSET
    before: str | UnsetType | None = UNSET


@ROUTES.add("GET", "/api/jobs/{id}/line", SEE_JOBS, "Its place in the line of its key")
async def get_line(call: Call) -> LineAnswer:
    job = await call.job("read")
    place = (await (await call.store()).read([job.id], InLine)).get(job.id)
    if place is None:
        return LineAnswer(line=False)
    hidden = await hidden_jobs(call, [one for one in (place.head, place.before) if one is not None])
    head, before = (None if one in hidden else one for one in (place.head, place.before))
    return copied(LineAnswer, place, line=True, head=head, before=before)


@ROUTES.add("GET", "/api/jobs/{id}/wait", SEE_JOBS, "Wait until a job has ended", errors=(429,))
async def wait_for_job(call: Call, asked: WaitQuery) -> JobBody:
    """Return the job when it has ended, or as it is after the timeout: its status tells which."""
    check_range("timeout", asked.timeout, 0, LONGEST_WAIT)
    job = await call.job("read")
    if job.is_live and asked.timeout:
        if call.api.state.wait_for_end.is_full(call.place):
            raise Problem(
                "too_many_waiting",
                "too many requests are waiting already: try again later",
                headers={"retry-after": "5"},
            )
        await _ended_or_gone(call, job.id, asked.timeout)
        job = await call.job("read")
    return job_body(call, job)


async def _ended_or_gone(call: Call, job_id: str, timeout: float) -> None:
    ended, gone = call.api.state.wait_for_end.expect(job_id, call.place), asyncio.ensure_future(call.request.hung_up())
    try:
        await asyncio.wait([ended, gone], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended.cancel()
        gone.cancel()
        await asyncio.gather(ended, gone, return_exceptions=True)


@ROUTES.add(
    "POST", "/api/jobs/{id}/requeue", MANAGE_JOBS,
    "Run a failed, expired or cancelled job again, with changes if wanted", errors=(409,),
)  # fmt: skip
async def requeue_job(call: Call, asked: RequeueBody) -> JobBody:
    job = await call.job("manage")
    changes = await _changes(call, asked, job, run_at=None, expires_at=None)  # a requeue drops both
    changed = await call.api.jobs.requeue(
        job.id, **changes, version=asked.version, from_step=asked.from_step, keep_steps=asked.keep_steps,
        reason=asked.reason, by=call.by,
    )  # fmt: skip
    return job_body(call, changed)


@ROUTES.add(
    "POST", "/api/jobs/{id}/cancel", CANCEL_JOBS,
    "Cancel a job: at once, or, if it is running, by asking it to stop", errors=(409,),
)  # fmt: skip
async def cancel_job(call: Call, asked: ReasonBody) -> JobBody | CancelAnswer:
    job = await call.job("cancel")
    try:
        job = await call.api.jobs.cancel(job.id, reason=asked.reason, by=call.by)
    except InvalidState:
        if call.may("read", job):
            raise
        raise Problem("wrong_state", "the job can't be cancelled any more") from None  # its status is content
    return job_body(call, job) if call.may("read", job) else CancelAnswer(id=job.id)


@ROUTES.add("DELETE", "/api/jobs/{id}", MANAGE_JOBS, "Remove a job that is not running", errors=(409,))
async def delete_job(call: Call, asked: DeleteQuery) -> None:
    job = await call.job("manage")
    await call.api.jobs.delete(job.id, reason=asked.reason, by=call.by)


@ROUTES.add("PATCH", "/api/jobs/{id}", MANAGE_JOBS, "Change a pending job", errors=(409,))
async def update_job(call: Call, asked: UpdateBody) -> JobBody:
    job = await call.job("manage")
    changes = await _changes(call, asked, job, run_at=job.run_at, expires_at=job.expires_at)
    return job_body(call, await call.api.jobs.update(job.id, **changes, reason=asked.reason, by=call.by))


async def _changes(call: Call, asked: UpdateBody, job: Job, **times: datetime | None) -> dict[str, Any]:
    """Return the fields that the edit changes. `times`: what the job keeps if the edit changes neither."""
    check_unmarked(call, asked.payload, job)
    if asked.payload is not UNSET and job.flow_id is not None:
        await _check_results(call, asked.payload, job)
    changes = {name: value for name in EDITABLE if (value := getattr(asked, name)) is not UNSET}
    if changes:
        _check_edited(call, job, changes, times)
    return changes


async def _check_results(call: Call, payload: dict[str, Any], job: Job) -> None:
    """Refuse a payload that would show what is hidden from the caller of the results of the job's parents."""
    check_results(call, payload, (), ())
    names = {name for parents in outside_of(payload).values() for name in parents}
    if not names or call.reach("read") is True:
        return
    found = (await (await call.store()).read([job.id], StoredEdges)).get(job.id)
    parents = [] if found is None else [edge.parent for edge in found.items if edge.name in names]
    if hidden := await hidden_jobs(call, parents):
        raise Problem("unknown_parent", f"there is no job {min(hidden)}, or you may not see it", field="payload")


def _check_edited(call: Call, job: Job, changes: dict[str, Any], times: dict[str, datetime | None]) -> None:
    """Refuse content that the caller may not enqueue: else an edit would get around enqueue_rule."""
    if "delay" in changes:
        times["run_at"] = None
    content = EnqueueBody(**{**content_of(job), "key": job.key, **times, **changes})
    call.check_enqueue(job.topic, partial(new_columns, call, content), edits=True)
