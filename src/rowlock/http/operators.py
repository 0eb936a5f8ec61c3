"""Routes for operators: topics, workers, audit."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from rowlock.client.why import is_live
from rowlock.core.ids import check_id
from rowlock.core.job import Job, check_topic
from rowlock.http import cursors
from rowlock.http.call import Call
from rowlock.http.routes import Routes, scope
from rowlock.http.shapes import Asked, PageQuery, Reason, ReasonBody, Text, Time, copied
from rowlock.http.stats import StatsBody
from rowlock.stores.base import WorkerInfo
from rowlock.stores.queries import MAX_LIMIT, TopicStats, check_limit
from rowlock.stores.records import Audited, AuditFilter

ROUTES = Routes()

_SEARCHED = 2000  # entries of the audit that one search reads
MOST_HELD = 1000  # jobs of all dead workers together


class PauseBody(Asked, frozen=True, kw_only=True):
    reason: Reason | None = None
    until: Time | None = None


class PauseInfo(Struct, kw_only=True):
    at: Time
    until: Time | None
    reason: str | None
    by: str


class TopicBody(StatsBody, kw_only=True):
    """`workers`: how many live workers run this topic."""

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


class WorkerBody(WorkerInfo, frozen=True, kw_only=True):
    """`live`: the worker reported within its own lease, and is not stopping. `holds`: jobs that a dead worker still
    holds, among the 1000 that dead workers have held longest."""

    stopping: bool
    started: Time | None
    seen: Time | None
    live: bool
    holds: list[str]


class WorkersAnswer(Struct, kw_only=True):
    items: list[WorkerBody]
    next: str | None


class AuditQuery(PageQuery, frozen=True, kw_only=True):
    """`bulk`: only what this bulk action did to its jobs. Without it, such entries are left out. `search`: a text in
    any part of an entry as it is shown; A-Z and a-z are the same."""

    bulk: str | None = None
    search: Text | None = None


class AuditBody(Audited, frozen=True, kw_only=True):
    at: Time
    bulk: str | None


class AuditAnswer(Struct, kw_only=True):
    """`looked_back_to`: how far back a search has looked; `next` continues there."""

    items: list[AuditBody]
    next: str | None
    looked_back_to: Time | None


@ROUTES.add("GET", "/api/topics", scope("read", bounded=True), "Topics: the status of their jobs, pauses, and workers")
async def list_topics(call: Call, asked: PageQuery) -> TopicsAnswer:
    """List topics that have or had jobs, that are paused, or that a worker runs."""
    store = await call.store()
    stats = await call.api.state.counting.stats()
    now = await store.now()
    workers = [worker for worker in await store.workers() if is_live(worker, now)]
    pauses = {pause.topic: pause for pause in await store.paused()}
    runs = [{lane.partition("@")[0] for lane in worker.topics} for worker in workers]
    known = {topic for topics in runs for topic in topics}
    names = sorted({*stats.topics, *pauses, *known})
    if call.identity.topics is not None:
        names = [name for name in names if name in call.identity.topics]
    shown, following = await cursors.page_of(call, names, str)
    paused = {name: copied(PauseInfo, one, reason=call.redaction.said(one.reason)) for name, one in pauses.items()}
    items = [
        copied(
            TopicBody,
            stats.topics.get(name) or TopicStats(),
            topic=name,
            paused=paused.get(name),
            workers=sum(name in topics for topics in runs),
        )
        for name in shown
    ]
    return TopicsAnswer(items=items, capped=stats.topics_capped, next=following)


@ROUTES.add(
    "POST", "/api/topics/{topic*}/pause", scope("manage", bounded=True), "Start no more jobs of a topic",
)  # fmt: skip
async def pause_topic(call: Call, asked: PauseBody) -> PausedAnswer:
    topic = _topic(call)
    await call.api.jobs.topics.pause(topic, reason=asked.reason, until=asked.until, by=call.by)
    return PausedAnswer(topic=topic, paused=True)


@ROUTES.add(
    "POST", "/api/topics/{topic*}/resume", scope("manage", bounded=True), "Start jobs of a topic again",
)  # fmt: skip
async def resume_topic(call: Call, asked: ReasonBody) -> PausedAnswer:
    topic = _topic(call)
    await call.api.jobs.topics.resume(topic, reason=asked.reason, by=call.by)
    return PausedAnswer(topic=topic, paused=False)


def _topic(call: Call) -> str:
    topic = check_topic(call.parameters["topic"])
    call.check_topics([topic])
    return topic


@ROUTES.add("GET", "/api/workers", scope("read"), "Workers that have reported, and jobs that dead ones hold")
async def list_workers(call: Call, asked: PageQuery) -> WorkersAnswer:
    store = await call.store()
    now = await store.now()
    workers, following = await cursors.page_of(call, await store.workers(), lambda worker: worker.name)
    holds: dict[str, list[str]] = {worker.name: [] for worker in workers if not is_live(worker, now)}
    for run in await store.held_by(list(holds), MOST_HELD):
        holds[run.worker or ""].append(run.id)
    items = [
        copied(WorkerBody, worker, live=worker.name not in holds, holds=holds.get(worker.name, []))
        for worker in workers
    ]
    return WorkersAnswer(items=items, next=following)


@ROUTES.add("GET", "/api/audit", scope("admin"), "Who did what, and why")
async def list_audit(call: Call, asked: AuditQuery) -> AuditAnswer:
    bulk = None if asked.bulk is None else check_id(asked.bulk, "bulk")
    if asked.search is not None:
        return await _search_audit(call, asked, bulk)

    async def read(before: str | None, count: int) -> list[AuditBody]:
        return await _audited(call, before, count, bulk)

    items, following = await cursors.page(call, read, _place)
    return AuditAnswer(items=list(items), next=following, looked_back_to=None)


def _place(entry: AuditBody) -> str:
    return str(entry.id)


async def _audited(call: Call, before: str | None, limit: int, bulk: str | None) -> list[AuditBody]:
    store = await call.store()
    found = await store.audit(AuditFilter(bulk=bulk), before=None if before is None else int(before), limit=limit)
    about = [one.job_id for one in found if one.job_id is not None and (one.reason or one.data)]
    jobs = await store.read(about, Job) if call.redaction and about else {}
    return [copied(AuditBody, call.redaction.audited(one, jobs.get(one.job_id or ""))) for one in found]


async def _search_audit(call: Call, asked: AuditQuery, bulk: str | None) -> AuditAnswer:
    """Search entries as they are shown, so that a caller can't guess hidden values. No index has them, so a search ends
    after some thousand entries."""
    part, limit = (asked.search or "").casefold(), check_limit(asked.limit)
    items: list[AuditBody] = []
    last: AuditBody | None = None
    before = await call.api.cursors.open(call, asked.cursor)
    for _ in range(_SEARCHED // MAX_LIMIT):
        seen = await _audited(call, before, MAX_LIMIT, bulk)
        for entry in seen:
            if len(items) == limit:
                return await _cut(call, items, items[-1])
            if part in msgspec.json.encode(entry).decode().casefold():
                items.append(entry)
        if len(seen) < MAX_LIMIT:
            return AuditAnswer(items=items, next=None, looked_back_to=None)
        last, before = seen[-1], _place(seen[-1])
    assert last is not None  # noqa: S101 - narrows the type: the loop has run
    return await _cut(call, items, last)


async def _cut(call: Call, items: list[AuditBody], last: AuditBody) -> AuditAnswer:
    following = await call.api.cursors.seal(call, _place(last))
    return AuditAnswer(items=items, next=following, looked_back_to=last.at)
