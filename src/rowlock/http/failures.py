"""Routes of failures: dead letters in groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from rowlock.core.fingerprint import Cause, cause
from rowlock.core.job import Job
from rowlock.http.call import Call
from rowlock.http.problems import Problem
from rowlock.http.routes import Routes, scope
from rowlock.http.shapes import Asked, PageQuery, Time, Topic, copied
from rowlock.stores.failures import Failure

ROUTES = Routes()


class FailuresQuery(PageQuery, frozen=True, kw_only=True):
    """`since`: dead letters that ended then or later. `trend`: counts of the last 24 hours, or of the last 30 days."""

    topic: tuple[Topic, ...] = ()
    since: Time | None = None
    trend: Literal["hour", "day"] = "hour"


class FailureQuery(Asked, frozen=True, kw_only=True):
    since: Time | None = None
    trend: Literal["hour", "day"] = "hour"


class FailureBody(Failure, frozen=True, kw_only=True):
    """Dead letters of one topic with the same type of error at the same place in the application's own code. `sample`:
    the id of the newest, whose `title` this is. `first` and `last`: when they ended. `trend`: counts by hour or day;
    the last one is not over yet."""

    first: Time
    last: Time


class FailureAnswer(FailureBody, frozen=True, kw_only=True):
    """`capped`: there are more dead letters, which were not read."""

    capped: bool


class FailuresAnswer(Struct, kw_only=True):
    """The largest group first. A group that has grown since an earlier page may be missing, or come twice. `capped`:
    only the newest dead letters were read. `ungrouped`: how many have no fingerprint yet; a running worker adds it."""

    items: list[FailureBody]
    next: str | None
    capped: bool
    ungrouped: int


@ROUTES.add("GET", "/api/failures", scope("read", bounded=True), "Dead letters, grouped by error")
async def list_failures(call: Call, asked: FailuresQuery) -> FailuresAnswer:
    topics = _topics(call, asked.topic)
    cursor = await call.api.cursors.open(call, asked.cursor)
    found = await call.api.jobs.failures.list(
        topics=topics, since=asked.since, trend=asked.trend, limit=asked.limit, cursor=cursor
    )
    items = [copied(FailureBody, one) for one in await _shown(call, found.items)]
    following = await call.api.cursors.seal(call, found.next)
    return FailuresAnswer(items=items, next=following, capped=found.capped, ungrouped=found.ungrouped)


@ROUTES.add("GET", "/api/failures/{fingerprint}", scope("read", bounded=True), "One group of dead letters")
async def get_failure(call: Call, asked: FailureQuery) -> FailureAnswer:
    found = await call.api.jobs.failures.list(
        fingerprint=call.parameters["fingerprint"],
        topics=_topics(call, ()),
        since=asked.since,
        trend=asked.trend,
        limit=1,
    )
    if not found.items:
        raise Problem("not_found", "no dead letter has this fingerprint (any more)")
    [one] = await _shown(call, found.items)
    return copied(FailureAnswer, one, capped=found.capped)


def _topics(call: Call, asked: Sequence[str]) -> Sequence[str]:
    """Return the topics to look at, within those of the caller's token."""
    call.check_topics(asked)
    return asked or call.identity.topics or ()


async def _shown(call: Call, groups: Sequence[Failure]) -> Sequence[Failure]:
    """Return the groups with type, frame and title taken from the redacted error of their newest job."""
    if not call.redaction:
        return groups
    store = await call.store()
    told = []
    for group in groups:
        jobs = await store.read([group.sample], Job)  # one by one: each may have some MB
        if group.sample in jobs:
            said = cause(call.redaction.job(jobs[group.sample]).last_error)
        else:  # it was deleted meanwhile
            said = Cause(call.redaction.text(group.type), group.frame, call.redaction.text(group.type))
        told.append(replace(group, type=said.type, frame=said.frame, title=said.title))
    return told
