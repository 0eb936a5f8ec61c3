"""Routes of bulk actions: prepare, show, start, stop."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, json

from rowlock.core.times import moment
from rowlock.errors import InvalidInput
from rowlock.http.call import Call
from rowlock.http.filters import ONE_OF, JobFilter, filter_of
from rowlock.http.problems import Problem
from rowlock.http.redacting import check_guesses, job_body
from rowlock.http.routes import Routes, scope
from rowlock.http.shapes import Asked, JobBody, PageQuery, Priority, Reason, ReasonBody, Seconds, Time, copied
from rowlock.stores.bulk import OUTCOMES, SKIPS, UNRUN, VERBS, Bulk, BulkItem, Unfit
from rowlock.stores.queries import Filter

ROUTES = Routes()

# ── In ──


class BulkBody(Asked, frozen=True, kw_only=True):
    """`filter`: by the names of the list's parameters. `everything`: required if there is no filter. `priority` is for
    reprioritise, `run_at` or `delay` (seconds from the start) for reschedule. `dry_run`: only prepare; start it later.
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
    """`outcome`: only jobs with this outcome, or "unrun"."""

    outcome: Annotated[str, Meta(extra_json_schema={"enum": [*OUTCOMES, UNRUN]})] | None = None


# ── Out ──


class BulkInfo(Struct, kw_only=True):
    """A bulk action. Of `total` jobs, so many are `done`, `skipped` (`skips` says why) and `left`. `filter`: by the
    names of the request, in snake_case. `unfit`: jobs that meet the filter, but whose status does not allow the action.
    `rate`: jobs a second. `sample`: its first jobs, only for a single bulk action."""

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
    """`outcome` null: this job is not done yet. `holder`: the live job that has its key."""

    items: list[BulkItem]
    next: str | None


def bulk_info(call: Call, bulk: Bulk) -> BulkInfo:
    arguments: dict[str, float | datetime] = dict(bulk.arguments)
    if "run_at" in bulk.arguments:
        arguments["run_at"] = moment(bulk.arguments["run_at"])
    return copied(
        BulkInfo,
        bulk,
        arguments=arguments,
        filter=as_asked(call.redaction.filter(bulk.filter)),
        reason=call.redaction.said(bulk.reason),
        skips={name: getattr(bulk, name) for name in SKIPS},
        sample=UNSET,
    )


def as_asked(filter: dict[str, Any]) -> dict[str, Any]:
    """Return the filter in the form of a request, so that it can be sent again."""
    told = {ONE_OF.get(name, name): value for name, value in filter.items()}
    if "payload" in told:
        told["payload"] = [f"{path}={json.encode(value).decode()}" for path, value in dict(told["payload"]).items()]
    return told


# ── The routes ──


@ROUTES.add(
    "POST", "/api/bulk", scope("manage"),
    "Requeue, cancel, delete, reprioritise or reschedule many jobs; or preview it in a dry run", status=201,
)  # fmt: skip
async def create_bulk(call: Call, asked: BulkBody) -> BulkInfo:
    given = {name: getattr(asked, name) for name in ("priority", "run_at", "delay")}
    wanted = _filter(asked.filter)
    check_guesses(call, wanted)
    made = await call.api.jobs.bulk.prepare(
        asked.action,
        wanted,
        everything=asked.everything,
        dry_run=asked.dry_run,
        reason=asked.reason,
        by=call.by,
        **given,
    )
    return await _begun(call, made)


async def _begun(call: Call, bulk: Bulk) -> BulkInfo:
    if bulk.status == "running":
        call.api.upkeep.run_bulk_now()
    return await _told(call, bulk)


def _filter(asked: JobFilter) -> Filter:
    try:
        return filter_of(asked, {})
    except InvalidInput as error:
        first, *rest = error.field.split(".")
        field = ".".join(["filter", ONE_OF.get(first.partition("[")[0], first), *rest])
        raise Problem(error.code, f"{field}: {error.problem}", field=field) from None


async def _told(call: Call, bulk: Bulk) -> BulkInfo:
    info = bulk_info(call, bulk)
    info.sample = [job_body(call, job) for job in await call.api.jobs.bulk.sample(bulk.id)]
    return info


@ROUTES.add("GET", "/api/bulk/{id}", scope("read"), "A bulk action: its progress, and a sample of its jobs")
async def get_bulk(call: Call) -> BulkInfo:
    return await _told(call, await call.api.jobs.bulk.get(call.parameters["id"]))


@ROUTES.add("POST", "/api/bulk/{id}/start", scope("manage"), "Start it, or continue it", errors=(409,))
async def start_bulk(call: Call, asked: ReasonBody) -> BulkInfo:
    bulk = await call.api.jobs.bulk.start(call.parameters["id"], reason=asked.reason, by=call.by)
    return await _begun(call, bulk)


@ROUTES.add(
    "POST", "/api/bulk/{id}/stop", scope("manage"), "Stop it; jobs that are done stay changed", errors=(409,),
)  # fmt: skip
async def stop_bulk(call: Call, asked: ReasonBody) -> BulkInfo:
    bulk = await call.api.jobs.bulk.stop(call.parameters["id"], reason=asked.reason, by=call.by)
    return await _told(call, bulk)


@ROUTES.add("GET", "/api/bulk", scope("read"), "Bulk actions, newest first")
async def list_bulk(call: Call, asked: PageQuery) -> BulkAnswer:
    cursors = call.api.cursors
    page = await call.api.jobs.bulk.list(limit=asked.limit, cursor=await cursors.open(call, asked.cursor))
    items = [bulk_info(call, bulk) for bulk in page.items]
    return BulkAnswer(items=items, next=await cursors.seal(call, page.next))


@ROUTES.add("GET", "/api/bulk/{id}/items", scope("read"), "The outcome for each job")
async def list_bulk_items(call: Call, asked: BulkItemsQuery) -> BulkItemsAnswer:
    cursor = await call.api.cursors.open(call, asked.cursor)
    page = await call.api.jobs.bulk.items(
        call.parameters["id"], outcome=asked.outcome, limit=asked.limit, cursor=cursor
    )
    return BulkItemsAnswer(items=page.items, next=await call.api.cursors.seal(call, page.next))
