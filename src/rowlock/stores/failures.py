"""Dead letters in groups: the question to a store, and its answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from rowlock.core.fingerprint import DIGITS, GAP, HALF, WHOLE, Cause, cause, check_fingerprint
from rowlock.core.job import check_time, check_topic
from rowlock.core.times import micros, moment
from rowlock.errors import InvalidInput
from rowlock.stores.queries import several

MOST_LOOKED_AT = 100_000  # dead letters, the newest
MOST_GROUPS = 200
MOST_TOPICS = 100
_EVER = datetime(1900, 1, 1, tzinfo=UTC)
_CURSOR = re.compile(rf"(\d{{1,9}}) (\d{{1,16}}) ([0-9a-f]{{{DIGITS}}})")
TRENDS: dict[str, tuple[float, int]] = {"hour": (3600.0, 24), "day": (86_400.0, 30)}  # seconds of a part, parts

CUT_ERROR = f"CASE WHEN length(j.last_error) > {WHOLE} THEN {{left}} || '{GAP}' || {{right}} ELSE j.last_error END"
"""An error as core.fingerprint looks at it, in SQL."""


class FailureQuery(Struct, frozen=True, kw_only=True):
    """`topics`: none is all. `since`: dead letters that ended then or later. `fingerprint`: one group alone. `trend`:
    counts of the last 24 hours, or of the last 30 days. `cursor`: behind the last group of an earlier answer."""

    topics: Sequence[str] = ()
    since: datetime | None = None
    fingerprint: str | None = None
    trend: Literal["hour", "day"] = "hour"
    limit: int = 50
    cursor: str | None = None

    def __post_init__(self) -> None:
        topics = several(self.topics, "topics", MOST_TOPICS, lambda topic, _: check_topic(topic))
        force_setattr(self, "topics", topics)
        if self.since is not None:
            force_setattr(self, "since", check_time(self.since, "since"))
        if self.fingerprint is not None:
            check_fingerprint(self.fingerprint)
        if self.trend not in TRENDS:
            raise InvalidInput("trend", "unknown_name", f"{self.trend!r:.40} is none of {', '.join(TRENDS)}")
        if type(self.limit) is not int or not 1 <= self.limit <= MOST_GROUPS:
            raise InvalidInput("limit", "out_of_range", f"must be 1 to {MOST_GROUPS}, not {self.limit!r:.40}")
        read_cursor(self.cursor)


class Failure(Struct, frozen=True, kw_only=True):
    """Dead letters of one topic that failed alike. `type`, `frame` and `title` are those of the newest, whose id is
    `sample`. `first` and `last`: when they ended; `first` also counts those that were requeued since.
    `trend`: how many in each hour or day, the last one is under way."""

    fingerprint: str
    topic: str
    type: str
    frame: str
    title: str
    count: int
    first: datetime
    last: datetime
    trend: tuple[int, ...]
    sample: str


class Failures(Struct, frozen=True, kw_only=True):
    """The largest groups first. `next`: the cursor of the next page; None: this is all. Groups grow: one that has grown
    since an earlier page may be missing, or come twice. `capped`: only the newest dead letters were looked at.
    `ungrouped`: the number of dead letters without a fingerprint yet; a worker will give them one."""

    items: list[Failure]
    next: str | None
    capped: bool
    ungrouped: int


class Grouped(Struct, frozen=True):
    """A group as a store found it. `parts`: the number of its dead letters, by how many hours (or days) ago they
    ended."""

    fingerprint: str
    topic: str
    count: int
    first: datetime
    last: datetime
    sample: str
    error: str | None
    parts: dict[int, int]


def make_failures(query: FailureQuery, groups: Sequence[Grouped], looked_at: int, ungrouped: int) -> Failures:
    """Return the answer. `groups`: one more than the query's limit, if there is one."""
    return Failures(
        items=[_failure(query, group, cause(group.error)) for group in groups[: query.limit]],
        next=_cursor(groups[query.limit - 1]) if len(groups) > query.limit else None,
        capped=looked_at > MOST_LOOKED_AT,
        ungrouped=ungrouped,
    )


def asked(query: FailureQuery) -> dict[str, Any]:
    """Return the parameters of a store's statement, in the order in which PostgreSQL numbers them."""
    span, parts = TRENDS[query.trend]
    n, last, fingerprint = read_cursor(query.cursor)
    return {
        "bound": MOST_LOOKED_AT + 1, "since": query.since or _EVER, "topics": list(query.topics) or None,
        "limit": query.limit + 1, "span": span, "parts": parts, "fingerprint": query.fingerprint,
        "after_n": n, "after_last": last, "after_fingerprint": fingerprint,
    }  # fmt: skip


def _cursor(group: Grouped) -> str:
    return f"{group.count} {micros(group.last)} {group.fingerprint}"


def read_cursor(cursor: object) -> tuple[int, datetime, str] | tuple[None, None, None]:
    """Return count, last end and fingerprint of the group behind which the answer begins."""
    if cursor is None:
        return None, None, None
    found = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
    if found is None:
        raise InvalidInput("cursor", "bad_cursor", f"{cursor!r:.80} is not what an earlier page gave as next")
    return int(found[1]), moment(int(found[2])), check_fingerprint(found[3])


def _failure(query: FailureQuery, group: Grouped, found: Cause) -> Failure:
    _, parts = TRENDS[query.trend]
    return Failure(
        fingerprint=group.fingerprint,
        topic=group.topic,
        type=found.type,
        frame=found.frame,
        title=found.title,
        count=min(group.count, MOST_LOOKED_AT),
        first=group.first,
        last=group.last,
        trend=tuple(group.parts.get(part, 0) for part in reversed(range(parts))),
        sample=group.sample,
    )


def cut_error(left: str, right: str) -> str:
    """Return CUT_ERROR with a store's own expressions for the first and the last characters of j.last_error."""
    return CUT_ERROR.format(left=left.format(HALF), right=right.format(HALF))
