"""The filter of a request for jobs, limited to those that the caller may see."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from rowlock.core.conditions import Condition, required
from rowlock.core.ids import check_id
from rowlock.core.job import Status
from rowlock.errors import InvalidInput
from rowlock.http.call import Call, denied
from rowlock.http.shapes import Asked, Fingerprint, JobId, Tag, Text, Time, Topic, schema
from rowlock.stores.queries import Filter


class JobFilter(Asked, frozen=True, kw_only=True):
    """`payload` is path=value with a JSON value, user.id=7; `error` is a part of last_error."""

    topic: tuple[Topic, ...] = ()
    status: tuple[Annotated[str, schema(enum=list(Status))], ...] = ()
    id: tuple[JobId, ...] = ()
    key: tuple[Text, ...] = ()
    tag: tuple[Tag, ...] = ()
    payload: tuple[str, ...] = ()
    error: Text | None = None
    scope: Text | None = None
    scope_id: Text | None = None
    flow_id: JobId | None = None
    created_from: Time | None = None
    created_until: Time | None = None
    run_at_from: Time | None = None
    run_at_until: Time | None = None
    finished_from: Time | None = None
    finished_until: Time | None = None
    fingerprint: Fingerprint | None = None


ONE_OF = {"ids": "id", "topics": "topic", "statuses": "status", "keys": "key", "tags": "tag"}  # by the names of Filter


def asked_filter(asked: JobFilter, condition: Condition) -> Filter:
    """Return the filter of a request, for jobs that meet the condition."""
    return filter_of(asked, narrowed(condition, {}))


def filter_of(asked: JobFilter, more: dict[str, Any]) -> Filter:
    """Return the filter of a request. `more`: further demands, which the request overrides."""
    if asked.flow_id is not None:
        check_id(asked.flow_id, "flow_id")
    given = {name: getattr(asked, name) for name in _SAME if getattr(asked, name) is not None}
    return Filter(
        **{several: getattr(asked, one) for several, one in ONE_OF.items()},
        payload=[_path(one) for one in asked.payload],
        **{**more, **given},
    )


_SAME = tuple(name for name in JobFilter.__struct_fields__ if name not in (*ONE_OF.values(), "payload"))


def visible(call: Call) -> Condition:
    condition = call.reach("read")
    if condition is False:
        raise denied(call.identity, "neither view_rule nor manage_rule lets you see any job")
    return condition


def narrowed(condition: Condition, given: dict[str, Any]) -> dict[str, Any]:
    """Return the filter with the condition, and with the part of it that an index can answer."""
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
