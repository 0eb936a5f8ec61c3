"""Records: small sets of named data, such as settings and accounts. And the audit, which has every change of a
record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from rowlock.core.codec import decode
from rowlock.core.limits import LIMITED, PUT

Time = Callable[[Any], Any]  # from a column of a store to a time, or None


class Refused(Exception):
    """A record has another revision than a write expects. Roll back: nothing may be written."""


class Record(Struct, frozen=True):
    """`revision` counts its writes."""

    kind: str
    id: str
    revision: int
    created: datetime
    updated: datetime
    expires_at: datetime | None
    data: dict[str, Any]


class Write(Struct, frozen=True):
    """The write of a record; `data` None: delete it. `revision`: write only if the record has this revision; 0: only if
    there is no record; None: in any case. An expired record counts as missing."""

    kind: str
    id: str
    data: dict[str, Any] | None
    revision: int | None = None
    expires_at: datetime | None = None


class Entry(Struct, frozen=True):
    """An entry for the audit: the user, the action, and the reason."""

    by: str
    action: str
    topic: str | None = None
    reason: str | None = None
    data: dict[str, Any] = {}
    job_id: str | None = None


def limited_topics(writes: Sequence[Write]) -> dict[str, bool] | None:
    """Return the topics that get limits (True), or lose them (False). None: these writes are not about limits."""
    if not any(one.kind in (LIMITED, PUT) for one in writes):
        return None
    return {one.id: one.data is not None for one in sorted(writes, key=lambda one: one.id) if one.kind == LIMITED}


class AuditFilter(Struct, frozen=True, kw_only=True):
    """Selects the lines of the audit that meet all given conditions. Lines about single jobs of a bulk action are told
    only if `bulk` or `job_id` asks for them. Else a requeue of 50,000 jobs would bury all other lines."""

    job_id: str | None = None
    by: str | None = None
    action: str | None = None
    since: datetime | None = None
    bulk: str | None = None


ALL_LINES = AuditFilter()


class Audited(Struct, frozen=True):
    """A line of the audit; ids rise with time."""

    id: int
    at: datetime
    by: str
    action: str
    job_id: str | None
    topic: str | None
    reason: str | None
    data: dict[str, Any]
    bulk: str | None = None  # the bulk action that did it


def read_record(kind: str, row: Sequence[Any], time: Time) -> Record:
    id_, revision, created, updated, expires_at, data = row
    return Record(kind, id_, revision, time(created), time(updated), time(expires_at), decode(data))


def read_audited(row: Sequence[Any], time: Time) -> Audited:
    number, at, by, action, job_id, topic, reason, data, bulk = row
    return Audited(number, time(at), by, action, job_id, topic, reason, {} if data is None else decode(data), bulk)
