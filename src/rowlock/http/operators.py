"""Routes for operators: topics, workers, audit."""

from __future__ import annotations

import msgspec

from rowlock.client.why import is_live
from rowlock.core.ids import check_id
from rowlock.core.job import check_topic
from rowlock.errors import InvalidInput
from rowlock.http import cursors, shapes
from rowlock.http.call import Call, denied
from rowlock.http.jobs import stats_body
from rowlock.http.response import Response, answer
from rowlock.http.routes import Route, scope
from rowlock.stores.reading import MAX_LIMIT, TopicStats, check_limit

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
    shown, following = await cursors.page_of(call, names, str)
    items = []
    for name in shown:
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
    return answer(shapes.TopicsAnswer(items=items, capped=stats.topics_capped, next=following))


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
    workers, following = await cursors.page_of(call, await store.workers(), lambda worker: worker.name)
    holds: dict[str, list[str]] = {worker.name: [] for worker in workers if not is_live(worker, now)}
    for run in await store.held_by_any(list(holds), MOST_HELD):
        holds[run.worker or ""].append(run.id)
    items = [
        shapes.WorkerBody(
            **msgspec.structs.asdict(worker), live=worker.name not in holds, holds=holds.get(worker.name, [])
        )
        for worker in workers
    ]
    return answer(shapes.WorkersAnswer(items=items, next=following))


async def list_audit(call: Call) -> Response:
    asked: shapes.AuditQuery = call.query
    try:
        bulk = None if asked.bulk is None else check_id(asked.bulk)
    except InvalidInput as error:
        raise InvalidInput("bulk", error.code, error.problem) from None
    if asked.search is not None:
        return answer(await _search_audit(call, asked, bulk))

    async def read(before: str | None, count: int) -> list[shapes.AuditBody]:
        return await _audited(call, before, count, bulk)

    items, following = await cursors.page(call, read, _place)
    return answer(shapes.AuditAnswer(items=list(items), next=following, looked_back_to=None))


def _place(entry: shapes.AuditBody) -> str:
    return str(entry.id)


async def _audited(call: Call, before: str | None, limit: int, bulk: str | None) -> list[shapes.AuditBody]:
    store = await call.store()
    found = await store.audit(before=None if before is None else int(before), limit=limit, bulk=bulk)
    about = [one.job_id for one in found if one.job_id is not None and (one.reason or one.data)]
    jobs = await store.get(about) if call.redaction and about else {}
    told = [call.redaction.audited(one, jobs.get(one.job_id or "")) for one in found]
    return [shapes.AuditBody(**msgspec.structs.asdict(one)) for one in told]


async def _search_audit(call: Call, asked: shapes.AuditQuery, bulk: str | None) -> shapes.AuditAnswer:
    """Search what is shown, so that nobody can guess what is hidden. No index knows it: so a search ends after some
    thousand entries."""
    part, limit = (asked.search or "").casefold(), check_limit(asked.limit)
    items: list[shapes.AuditBody] = []
    last: shapes.AuditBody | None = None
    before = await call.api.cursors.open(call, asked.cursor)
    for _ in range(_SEARCHED // MAX_LIMIT):
        seen = await _audited(call, before, MAX_LIMIT, bulk)
        for entry in seen:
            if len(items) == limit:
                return await _cut(call, items, items[-1])
            if part in msgspec.json.encode(entry).decode().casefold():
                items.append(entry)
        if len(seen) < MAX_LIMIT:
            return shapes.AuditAnswer(items=items, next=None, looked_back_to=None)
        last, before = seen[-1], _place(seen[-1])
    assert last is not None  # noqa: S101 - narrows the type: the loop has run
    return await _cut(call, items, last)


async def _cut(call: Call, items: list[shapes.AuditBody], last: shapes.AuditBody) -> shapes.AuditAnswer:
    following = await call.api.cursors.seal(call, _place(last))
    return shapes.AuditAnswer(items=items, next=following, looked_back_to=last.at)


ROUTES = [
    Route(
        method="GET", path="/api/topics", access=scope("read", bounded=True), handler=list_topics,
        summary="Topics: how their jobs stand, whether they are paused, who works on them",
        query=shapes.PageQuery, answers=(shapes.TopicsAnswer,),
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
        summary="The workers that have reported, and what dead ones held", query=shapes.PageQuery,
        answers=(shapes.WorkersAnswer,),
    ),
    Route(
        method="GET", path="/api/audit", access=scope("admin"), handler=list_audit, summary="Who did what, and why",
        query=shapes.AuditQuery, answers=(shapes.AuditAnswer,),
    ),
]  # fmt: skip
