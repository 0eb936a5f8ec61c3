"""Routes for operators: topics, workers, audit."""

from __future__ import annotations

import msgspec

from rowlock.client.why import is_live
from rowlock.core.ids import check_id
from rowlock.core.job import check_topic
from rowlock.errors import InvalidInput
from rowlock.http import shapes
from rowlock.http.call import Call, denied
from rowlock.http.jobs import stats_body
from rowlock.http.problems import Problem
from rowlock.http.response import Response, answer
from rowlock.http.routes import Route, scope
from rowlock.stores.reading import TopicStats

MOST_AUDITED = 200
_SEARCHED = 2000  # entries of the audit that a search looks at
MOST_HELD = 1000  # jobs that are told of all dead workers together


async def list_topics(call: Call) -> Response:
    """Those that have or had jobs, that are paused, or that a worker knows."""
    store = await call.store()
    stats = await call.api.counting.stats()
    now = await store.now()
    workers = [worker for worker in await store.workers() if is_live(worker, now)]
    pauses = {pause.topic: pause for pause in await store.paused()}
    known = {topic for worker in workers for topic in worker.topics}
    names = sorted({*stats.topics, *pauses, *known})
    if call.identity.topics is not None:
        names = [name for name in names if name in call.identity.topics]
    items = []
    for name in names:
        pause = pauses.get(name)
        told = (
            None
            if pause is None
            else shapes.PauseInfo(at=pause.at, until=pause.until, reason=call.redaction.said(pause.reason), by=pause.by)
        )
        items.append(
            shapes.TopicBody(
                **msgspec.structs.asdict(stats_body(stats.topics.get(name) or TopicStats())),
                topic=name,
                paused=told,
                workers=sum(name in worker.topics for worker in workers),
            )
        )
    return answer(shapes.TopicsAnswer(items=items, capped=stats.topics_capped))


async def pause_topic(call: Call) -> Response:
    asked: shapes.PauseBody = call.body
    topic = _topic(call)
    await call.api.jobs.pause(topic, reason=asked.reason, until=asked.until, by=call.by)
    return answer(shapes.PausedAnswer(topic=topic, paused=True))


async def resume_topic(call: Call) -> Response:
    topic = _topic(call)
    await call.api.jobs.resume(topic, reason=call.body.reason, by=call.by)
    return answer(shapes.PausedAnswer(topic=topic, paused=False))


def _topic(call: Call) -> str:
    topic = check_topic(call.parameters["topic"])
    if call.identity.topics is not None and topic not in call.identity.topics:
        raise denied(call.identity, "this token is for other topics", field="topic")
    return topic


async def list_workers(call: Call) -> Response:
    store = await call.store()
    now = await store.now()
    workers = await store.workers()
    holds: dict[str, list[str]] = {worker.name: [] for worker in workers if not is_live(worker, now)}
    for run in await store.held_by_any(list(holds), MOST_HELD):
        holds[run.worker or ""].append(run.id)
    items = [
        shapes.WorkerBody(
            **msgspec.structs.asdict(worker), live=worker.name not in holds, holds=holds.get(worker.name, [])
        )
        for worker in workers
    ]
    return answer(shapes.WorkersAnswer(items=items))


async def list_audit(call: Call) -> Response:
    asked: shapes.AuditQuery = call.query
    if not 1 <= asked.limit <= MOST_AUDITED:
        raise Problem(400, "out_of_range", f"limit: must be 1 to {MOST_AUDITED}", field="limit")
    if asked.before is not None and not 0 <= asked.before < 1 << 63:
        raise Problem(400, "out_of_range", "before: must be what an earlier page gave as next", field="before")
    try:
        bulk = None if asked.bulk is None else check_id(asked.bulk)
    except InvalidInput as error:
        raise InvalidInput("bulk", error.code, error.problem) from None
    if asked.search is not None:
        return answer(await _search_audit(call, asked, bulk))
    items = await _audited(call, asked.before, asked.limit, bulk)
    next_page = items[-1].id if len(items) == asked.limit else None
    return answer(shapes.AuditAnswer(items=items, next=next_page, looked_back_to=None))


async def _audited(call: Call, before: int | None, limit: int, bulk: str | None) -> list[shapes.AuditBody]:
    store = await call.store()
    found = await store.audit(before=before, limit=limit, bulk=bulk)
    about = [one.job_id for one in found if one.job_id is not None and (one.reason or one.data)]
    jobs = await store.get(about) if call.redaction and about else {}
    told = [call.redaction.audited(one, jobs.get(one.job_id or "")) for one in found]
    return [shapes.AuditBody(**msgspec.structs.asdict(one)) for one in told]


async def _search_audit(call: Call, asked: shapes.AuditQuery, bulk: str | None) -> shapes.AuditAnswer:
    """Looked for in what is shown, so that nobody can guess what is hidden. No index knows it: so it ends after some
    thousand entries."""
    part = (asked.search or "").casefold()
    items: list[shapes.AuditBody] = []
    before, back = asked.before, None
    for _ in range(_SEARCHED // MOST_AUDITED):
        seen = await _audited(call, before, MOST_AUDITED, bulk)
        for one in seen:
            if len(items) == asked.limit:
                return shapes.AuditAnswer(items=items, next=items[-1].id, looked_back_to=items[-1].at)
            if part in msgspec.json.encode(one).decode().casefold():
                items.append(one)
        if len(seen) < MOST_AUDITED:
            return shapes.AuditAnswer(items=items, next=None, looked_back_to=None)
        before, back = seen[-1].id, seen[-1].at
    return shapes.AuditAnswer(items=items, next=before, looked_back_to=back)


ROUTES = [
    Route(
        method="GET", path="/api/topics", access=scope("read", bounded=True), handler=list_topics,
        summary="Topics: how their jobs stand, whether they are paused, who works on them",
        answers=(shapes.TopicsAnswer,),
    ),
    Route(
        method="POST", path="/api/topics/{topic*}/pause", access=scope("manage", bounded=True), handler=pause_topic,
        summary="Start no more jobs of a topic", body=shapes.PauseBody, body_optional=True,
        answers=(shapes.PausedAnswer,),
    ),
    Route(
        method="POST", path="/api/topics/{topic*}/resume", access=scope("manage", bounded=True), handler=resume_topic,
        summary="Start jobs of a topic again", body=shapes.ReasonBody, body_optional=True,
        answers=(shapes.PausedAnswer,),
    ),
    Route(
        method="GET", path="/api/workers", access=scope("read"), handler=list_workers,
        summary="The workers that have reported, and what dead ones held", answers=(shapes.WorkersAnswer,),
    ),
    Route(
        method="GET", path="/api/audit", access=scope("admin"), handler=list_audit, summary="Who did what, and why",
        query=shapes.AuditQuery, answers=(shapes.AuditAnswer,),
    ),
]  # fmt: skip
