"""Routes of failures: dead letters in groups."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import asdict, replace

from rowlock.core.fingerprint import Cause, cause
from rowlock.http import shapes
from rowlock.http.call import Call, denied
from rowlock.http.problems import Problem
from rowlock.http.response import Response, answer
from rowlock.http.routes import Route, scope
from rowlock.stores.failures import Failure


async def list_failures(call: Call) -> Response:
    asked: shapes.FailuresQuery = call.query
    topics = _topics(call, asked.topic)
    cursor = await call.api.cursors.open(call, asked.cursor)
    found = await call.api.jobs.failures(
        topics=topics, since=asked.since, trend=asked.trend, limit=asked.limit, cursor=cursor
    )
    items = [shapes.FailureBody(**asdict(one)) for one in await _shown(call, found.items)]
    following = await call.api.cursors.seal(call, found.next)
    return answer(shapes.FailuresAnswer(items=items, next=following, capped=found.capped, ungrouped=found.ungrouped))


async def get_failure(call: Call) -> Response:
    asked: shapes.FailureQuery = call.query
    found = await call.api.jobs.failures(
        fingerprint=call.parameters["fingerprint"],
        topics=_topics(call, ()),
        since=asked.since,
        trend=asked.trend,
        limit=1,
    )
    if not found.items:
        raise Problem("not_found", "no dead letter has this fingerprint (any more)")
    [one] = await _shown(call, found.items)
    return answer(shapes.FailureAnswer(**asdict(one), capped=found.capped))


def _topics(call: Call, asked: Sequence[str]) -> Sequence[str]:
    """Within what a token is for."""
    own = call.identity.topics
    if own is not None and not set(asked) <= set(own):
        raise denied(call.identity, "this token is for other topics", field="topic")
    return asked or own or ()


async def _shown(call: Call, groups: Sequence[Failure]) -> Sequence[Failure]:
    """What a group says is said again, from what is shown of its newest job."""
    if not call.redaction:
        return groups
    store = await call.store()
    told = []
    for group in groups:
        jobs = await store.get([group.sample])  # one by one: each may have some MB
        if group.sample in jobs:
            said = cause(call.redaction.job(jobs[group.sample]).last_error)
        else:  # it has gone meanwhile
            said = Cause(call.redaction.text(group.type), group.frame, call.redaction.text(group.type))
        told.append(replace(group, type=said.type, frame=said.frame, title=said.title))
    return told


ROUTES = [
    Route(
        method="GET", path="/api/failures", access=scope("read", bounded=True), handler=list_failures,
        summary="Dead letters in groups that failed alike", query=shapes.FailuresQuery,
        answers=(shapes.FailuresAnswer,),
    ),
    Route(
        method="GET", path="/api/failures/{fingerprint}", access=scope("read", bounded=True), handler=get_failure,
        summary="One group of dead letters", query=shapes.FailureQuery, answers=(shapes.FailureAnswer,),
        errors=(404,),
    ),
]  # fmt: skip
