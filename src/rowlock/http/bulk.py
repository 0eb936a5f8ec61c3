"""Routes of bulk actions: prepare, look, start, stop."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, json

from rowlock.errors import InvalidInput
from rowlock.http import shapes
from rowlock.http.call import Call
from rowlock.http.jobs import filter_of
from rowlock.http.problems import Problem
from rowlock.http.redacting import check_guesses, job_body
from rowlock.http.response import Response, answer
from rowlock.http.routes import Route, scope
from rowlock.http.shapes import Asked, JobBody, JobFilter, PageQuery, Priority, Reason, Seconds, Time
from rowlock.stores.bulk import OUTCOMES, SKIPS, UNRUN, VERBS, Bulk, BulkItem, Unfit
from rowlock.stores.reading import Filter
from rowlock.stores.times import moment

# ── In ──


class BulkBody(Asked, frozen=True, kw_only=True):
    """`filter` has the names of the list's parameters; `everything` stands for no filter at all. `priority` goes with
    reprioritise, `run_at` or `delay` (seconds from the start) with reschedule. A dry run is a preview, to be started.
    """

    action: Annotated[str, Meta(extra_json_schema={"enum": list(VERBS)})]
    filter: JobFilter = JobFilter()
    everything: bool = False
    priority: Priority | UnsetType = UNSET
    run_at: Time | UnsetType = UNSET
    delay: Seconds | UnsetType = UNSET
    dry_run: bool = True
    reason: Reason | None = None


class BulkItemsQuery(PageQuery, frozen=True, kw_only=True):
    """`outcome`: one of those, or "unrun"."""

    outcome: Annotated[str, Meta(extra_json_schema={"enum": [*OUTCOMES, UNRUN]})] | None = None


# ── Out ──


class BulkInfo(Struct, kw_only=True):
    """A bulk action as it stands. Of `total` jobs so many are `done`, were `skipped` (`skips` says why), and are
    `left`. `filter`: by the names of the request, in snake_case. `unfit`: jobs that meet the filter in a state in which
    this can't be done to them. `rate`: jobs a second. `sample`: its first jobs, when it is asked for by its id."""

    id: str
    action: str
    status: str
    arguments: dict[str, Any]
    filter: dict[str, Any]
    reason: str | None
    by: str
    started_by: str | None
    created: Time
    started_at: Time | None
    moved_at: Time | None
    finished_at: Time | None
    total: int
    done: int
    skipped: int
    left: int
    skips: dict[str, int]
    unfit: dict[str, Unfit]
    rate: float | None
    sample: list[JobBody] | UnsetType = UNSET


class BulkAnswer(Struct, kw_only=True):
    items: list[BulkInfo]
    next: str | None


class BulkItemsAnswer(Struct, kw_only=True):
    """`outcome` null: it has not come to this job yet. `holder`: the live job that has its key."""

    items: list[BulkItem]
    next: str | None


_OWN = ("arguments", "filter", "reason", "skips", "sample")
_SAME = tuple(name for name in BulkInfo.__struct_fields__ if name not in _OWN)


def bulk_info(call: Call, bulk: Bulk) -> BulkInfo:
    arguments: dict[str, float | datetime] = dict(bulk.arguments)
    if "run_at" in bulk.arguments:
        arguments["run_at"] = moment(bulk.arguments["run_at"])
    return BulkInfo(
        **{name: getattr(bulk, name) for name in _SAME},
        arguments=arguments,
        filter=as_asked(call.redaction.filter(bulk.filter)),
        reason=call.redaction.said(bulk.reason),
        skips={name: getattr(bulk, name) for name in SKIPS},
    )


def as_asked(filter: dict[str, Any]) -> dict[str, Any]:
    """By the names of the request, and in its forms: so it can be asked again."""
    told = {shapes.ONE_OF.get(name, name): value for name, value in filter.items()}
    if "payload" in told:
        told["payload"] = [f"{path}={json.encode(value).decode()}" for path, value in dict(told["payload"]).items()]
    return told


# ── The routes ──


async def create_bulk(call: Call) -> Response:
    asked: BulkBody = call.body
    given = {name: getattr(asked, name) for name in ("priority", "run_at", "delay")}
    wanted = _filter(asked.filter)
    check_guesses(call, wanted)
    made = await call.api.jobs.bulk(
        asked.action,
        wanted,
        everything=asked.everything,
        dry_run=asked.dry_run,
        reason=asked.reason,
        by=call.by,
        **given,
    )
    return await _begun(call, made, 201)


async def _begun(call: Call, bulk: Bulk, status: int = 200) -> Response:
    if bulk.status == "running":
        call.api.bulk.nudge()  # at once, here
    return await _told(call, bulk, status)


def _filter(asked: JobFilter) -> Filter:
    try:
        return filter_of(asked, {})
    except InvalidInput as error:
        first, *rest = error.field.split(".")
        field = ".".join(["filter", shapes.ONE_OF.get(first.partition("[")[0], first), *rest])
        raise Problem(error.code, f"{field}: {error.problem}", field=field) from None


async def _told(call: Call, bulk: Bulk, status: int = 200) -> Response:
    info = bulk_info(call, bulk)
    info.sample = [job_body(call, job) for job in await call.api.jobs.bulk_sample(bulk.id)]
    return answer(info, status)


async def get_bulk(call: Call) -> Response:
    return await _told(call, await call.api.jobs.get_bulk(call.parameters["id"]))


async def start_bulk(call: Call) -> Response:
    bulk = await call.api.jobs.start_bulk(call.parameters["id"], reason=call.body.reason, by=call.by)
    return await _begun(call, bulk)


async def stop_bulk(call: Call) -> Response:
    bulk = await call.api.jobs.stop_bulk(call.parameters["id"], reason=call.body.reason, by=call.by)
    return await _told(call, bulk)


async def list_bulk(call: Call) -> Response:
    asked: PageQuery = call.query
    cursors = call.api.cursors
    page = await call.api.jobs.list_bulk(limit=asked.limit, cursor=await cursors.open(call, asked.cursor))
    items = [bulk_info(call, bulk) for bulk in page.items]
    return answer(BulkAnswer(items=items, next=await cursors.seal(call, page.next)))


async def list_bulk_items(call: Call) -> Response:
    asked: BulkItemsQuery = call.query
    cursor = await call.api.cursors.open(call, asked.cursor)
    page = await call.api.jobs.bulk_items(
        call.parameters["id"], outcome=asked.outcome, limit=asked.limit, cursor=cursor
    )
    return answer(BulkItemsAnswer(items=page.items, next=await call.api.cursors.seal(call, page.next)))


ROUTES = [
    Route(
        method="POST", path="/api/bulk", access=scope("manage"), handler=create_bulk,
        summary="Requeue, cancel, delete, reprioritise or reschedule many jobs; or list them, in a dry run",
        body=BulkBody, answers=(BulkInfo,), status=201,
    ),
    Route(
        method="GET", path="/api/bulk", access=scope("read"), handler=list_bulk, summary="Bulk actions, newest first",
        query=PageQuery, answers=(BulkAnswer,),
    ),
    Route(
        method="GET", path="/api/bulk/{id}", access=scope("read"), handler=get_bulk,
        summary="A bulk action: how far it is, and a sample of its jobs", answers=(BulkInfo,), errors=(404,),
    ),
    Route(
        method="POST", path="/api/bulk/{id}/start", access=scope("manage"), handler=start_bulk,
        summary="Do it, or go on with it", body=shapes.ReasonBody, body_optional=True, answers=(BulkInfo,),
        errors=(404, 409),
    ),
    Route(
        method="POST", path="/api/bulk/{id}/stop", access=scope("manage"), handler=stop_bulk,
        summary="Change no further job; what is done stays", body=shapes.ReasonBody, body_optional=True,
        answers=(BulkInfo,), errors=(404, 409),
    ),
    Route(
        method="GET", path="/api/bulk/{id}/items", access=scope("read"), handler=list_bulk_items,
        summary="What became of each job", query=BulkItemsQuery, answers=(BulkItemsAnswer,), errors=(404,),
    ),
]  # fmt: skip
