"""Records: what is few and is looked up by its name. And the audit, in which every change of them stands."""

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
    """What a record is to be; `data` None: gone. `revision`: only if it is the one that is there; 0: only if there is
    none; None: whatever is there. A record that has expired is not there."""

    kind: str
    id: str
    data: dict[str, Any] | None
    revision: int | None = None
    expires_at: datetime | None = None


class Entry(Struct, frozen=True):
    """For the audit: who did what, and why."""

    by: str
    action: str
    topic: str | None = None
    reason: str | None = None
    data: dict[str, Any] = {}
    job_id: str | None = None


def limited_topics(writes: Sequence[Write]) -> dict[str, bool] | None:
    """Return the topics that get limits, or lose them. None: these writes are not about limits."""
    if not any(one.kind in (LIMITED, PUT) for one in writes):
        return None
    return {one.id: one.data is not None for one in sorted(writes, key=lambda one: one.id) if one.kind == LIMITED}


class AuditFilter(Struct, frozen=True, kw_only=True):
    """What is asked of the audit: lines that meet all that is given. What a bulk action did to each of its jobs is told
    if `bulk` or `job_id` asks for it, and only then. Else a requeue of 50,000 jobs would bury all other lines."""

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
