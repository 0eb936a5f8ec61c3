"""Routes of limits: how many jobs may run, or start, at once; and whose turn it is."""

from __future__ import annotations

from typing import Annotated, Literal, cast

import msgspec
from msgspec import Struct

from rowlock.access.redaction import MARK, Redaction
from rowlock.client.limits import LimitInfo, infos_of
from rowlock.core.job import MAX_TEXT, Job, Status
from rowlock.core.limits import (
    LONGEST,
    MAX_LIMIT,
    MAX_WEIGHT,
    MAX_WEIGHTS,
    OWN_FIELDS,
    SHORTEST,
    Concurrency,
    Fair,
    Limit,
    Rate,
)
from rowlock.errors import InvalidInput, LimitNotFound
from rowlock.http.call import Call
from rowlock.http.routes import Routes, scope
from rowlock.http.shapes import Asked, Reason, Text, Time, Topic, schema
from rowlock.stores.base import MOST_COUNTED

ROUTES = Routes()

READ = scope("read", or_scope="limits")
WRITE = scope("limits")

_HOLDERS = 20

Kind = Literal["concurrency", "rate", "fair"]
Most = Annotated[int, schema(minimum=1, maximum=MAX_LIMIT)]
Weight = Annotated[int, schema(minimum=1, maximum=MAX_WEIGHT)]
Value = Annotated[str, schema(minLength=0, maxLength=MAX_TEXT)]


# ── What is asked, what is answered ──


class ConcurrencyAsked(Asked, frozen=True, kw_only=True, tag_field="kind", tag="concurrency"):
    """At most `max` jobs run at once, in all workers together. `by`: for each value of this field of a job: scope_id,
    scope, key, or a field of the payload, such as payload.tenant. `name`: the one in the path, if it is given."""

    max: Most
    by: Text | None = None
    name: Topic | None = None


class RateAsked(Asked, frozen=True, kw_only=True, tag_field="kind", tag="rate"):
    """At most `max` jobs start in any `per` seconds. `burst`: at most so many of them at once; then they are spread
    evenly. `by` and `name`: as for concurrency."""

    max: Most
    per: Annotated[float, schema(minimum=SHORTEST, maximum=LONGEST)]
    by: Text | None = None
    name: Topic | None = None
    burst: Most | None = None


class FairAsked(Asked, frozen=True, kw_only=True, tag_field="kind", tag="fair"):
    """The values of a field take turns. `weights`: how many jobs a value starts in its turn; 1 if it is not named."""

    by: Text
    weights: Annotated[dict[str, Weight], schema(maxProperties=MAX_WEIGHTS)] = msgspec.field(default_factory=dict)


class LimitPutBody(Asked, frozen=True, kw_only=True):
    """A limit that holds from the next claim on, instead of the one in the code with the same kind and field. `value`:
    only for this value of the field `by`."""

    limit: ConcurrencyAsked | RateAsked | FairAsked
    value: Value | None = None
    reason: Reason | None = None


class LimitClearQuery(Asked, frozen=True, kw_only=True):
    """Without a parameter, all limits of this name that were put. `field`: those by this field; empty: those by no
    field. `value`: those that were put for this value."""

    kind: Kind | None = None
    field: Value | None = None
    value: Value | None = None
    reason: Reason | None = None


class UsedByBody(Struct, kw_only=True):
    """What one value of the limit's field uses. `value` "": the limit is by no field, or these jobs have no value.
    `max`: for this value; of fair turns, its weight. `free_at`: when a rate lets the next job start; null: now, or when
    a job ends."""

    value: str
    used: int
    max: int
    free_at: Time | None


class ValueLimit(Struct, kw_only=True):
    value: str
    limit: Limit


class LimitBody(Struct, kw_only=True):
    """A limit and what is used of it now. `source`: code, or put at run time. `code`: the limit in the code that a put
    one takes the place of. `values`: what was put for certain values. `topics`: those that share it. `used_by`: at most
    100 values, those that use most of it first. `used_up`: how many of them can start no job now. `waiting`: jobs of
    these topics that are due; with `waiting_capped`, at least so many."""

    name: str
    kind: Kind
    limit: Limit
    source: Literal["code", "put"]
    code: Limit | None
    values: list[ValueLimit]
    topics: list[str]
    used_by: list[UsedByBody]
    used_up: int
    waiting: int
    waiting_capped: bool


class LimitsAnswer(Struct, kw_only=True):
    """By name. `waiting`: jobs that are due, of topics that have a limit of which nothing is left, be it for one value;
    with `waiting_capped`, at least so many."""

    items: list[LimitBody]
    waiting: int
    waiting_capped: bool


class HolderBody(Struct, kw_only=True):
    """A job that a worker holds, `since` its claim."""

    id: str
    topic: str
    status: Annotated[str, schema(enum=[Status.PROCESSING, Status.CANCEL_REQUESTED])]
    worker: str | None
    since: Time | None


class LimitAnswer(Struct, kw_only=True):
    """The limits of a topic or of a name. `holders`: jobs that count for them now, at most 20, the newest first."""

    items: list[LimitBody]
    holders: list[HolderBody]


class LimitsCleared(Struct, kw_only=True):
    """`cleared`: how many limits that were put."""

    cleared: int


# ── Routes ──


@ROUTES.add("GET", "/api/limits", READ, "Limits by name, and what is used of them")
async def list_limits(call: Call) -> LimitsAnswer:
    usage = await (await call.store()).limit_usage()
    bodies = [_body(call, one) for one in infos_of(usage)]
    stuck = {topic for one in bodies if one.used_up for topic in one.topics}
    waiting = [count for topic, count in usage.waiting if topic in stuck]
    return LimitsAnswer(items=bodies, waiting=sum(waiting), waiting_capped=max(waiting, default=0) >= MOST_COUNTED)


@ROUTES.add("GET", "/api/limits/{name*}", READ, "The limits of a topic or of a name, and jobs that count for them")
async def get_limit(call: Call) -> LimitAnswer:
    return await _answer(call, call.parameters["name"])


@ROUTES.add("PUT", "/api/limits/{name*}", WRITE, "Set a limit at run time")
async def put_limit(call: Call, asked: LimitPutBody) -> LimitAnswer:
    name = call.parameters["name"]
    await call.api.jobs.limits.put(name, limit_of(asked.limit), value=asked.value, reason=asked.reason, by=call.by)
    return await _answer(call, name)


@ROUTES.add("DELETE", "/api/limits/{name*}", WRITE, "Clear limits that were put, so that those of the code hold again")
async def clear_limit(call: Call, asked: LimitClearQuery) -> LimitsCleared:
    name = call.parameters["name"]
    cleared = await call.api.jobs.limits.clear(
        name,
        kind=asked.kind,
        field=asked.field,
        value=asked.value,
        reason=asked.reason,
        by=call.by,
    )
    if not cleared:
        await call.api.jobs.limits.get(name)  # 404 if nothing has limits of this name
    return LimitsCleared(cleared=cleared)


def limit_of(asked: ConcurrencyAsked | RateAsked | FairAsked) -> Limit:
    """Return the limit of a request. Errors name the part of the body."""
    try:
        match asked:
            case ConcurrencyAsked():
                return Concurrency(asked.max, asked.by, asked.name)
            case RateAsked():
                return Rate(asked.max, asked.per, asked.by, asked.name, asked.burst)
            case FairAsked():
                return Fair(asked.by, asked.weights)
    except InvalidInput as error:
        raise InvalidInput(f"limit.{error.field}", error.code, error.problem) from None


async def _answer(call: Call, name: str) -> LimitAnswer:
    try:
        found = await call.api.jobs.limits.get(name)
    except InvalidInput:  # no limit has a name that topics can't have
        raise LimitNotFound(name) from None
    holders = await call.api.jobs.limits.holders(name, limit=_HOLDERS)
    return LimitAnswer(items=[_body(call, one) for one in found], holders=[holder_body(one) for one in holders])


def holder_body(job: Job) -> HolderBody:
    return HolderBody(id=job.id, topic=job.topic, status=str(job.status), worker=job.locked_by, since=job.claimed_at)


def _body(call: Call, info: LimitInfo) -> LimitBody:
    return limit_body(info, call.redaction)


def limit_body(info: LimitInfo, redaction: Redaction | None = None) -> LimitBody:
    """Return the body of a limit. `redaction`: it hides the values of hidden fields."""
    by = info.limit.by

    def shown(value: str) -> str:
        if not value or redaction is None or by is None or by in OWN_FIELDS:
            return value
        path = ("payload", *(by.split(".")[1:] if by.startswith("payload.") else [by]))
        return MARK if redaction.shows(path, ("value",)) else redaction.text(value)

    return LimitBody(
        name=info.name,
        kind=cast(Kind, info.kind),
        limit=info.limit,
        source="put" if info.source == "put" else "code",
        code=info.code if info.source == "put" else None,
        values=[ValueLimit(value=shown(value), limit=limit) for value, limit in sorted(info.values.items())],
        topics=info.topics,
        used_by=[
            UsedByBody(value=shown(one.value), used=one.used, max=one.max, free_at=one.free_at) for one in info.used_by
        ],
        used_up=sum(one.is_used_up(info.limit) for one in info.used_by),
        waiting=info.waiting,
        waiting_capped=info.waiting >= MOST_COUNTED,
    )
