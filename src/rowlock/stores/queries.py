"""Questions of callers to a store, and its answers: filters and pages of jobs, numbers, retention, partitions."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any
from uuid import UUID

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import force_setattr

from rowlock.core import codec
from rowlock.core.conditions import Condition
from rowlock.core.fingerprint import check_fingerprint
from rowlock.core.ids import check_id
from rowlock.core.job import MAX_TEXT, Job, Status, check_tags, check_time, check_topic
from rowlock.errors import InvalidInput

DAY = 86_400.0
MIN_RETENTION = DAY  # the archive also answers repeated enqueues: it is kept at least this long

DEFAULT_LIMIT, MAX_LIMIT = 20, 200
MAX_TOTAL = 10_000  # counting ends here
MAX_OFFSET = MAX_TOTAL  # pages further back are reached by the cursor
MAX_IDS = 1000
MAX_VALUES = 100  # topics or keys in one filter
MAX_PATHS = 8
OWN_WINDOW = 1000  # jobs of a scope that are looked at in each table, when one statement looks for jobs of many scopes
MAX_LIVE = 100_000  # of each status, in stats
MAX_TOPICS = 1000  # in stats


# ── list ──


class Filter(Struct, frozen=True, kw_only=True):
    """Selects the jobs that meet all given conditions. A range includes its beginning, but not its end.

    `tags` (all of them), `payload` and `error` are looked for among the newest jobs that meet the rest; a page says by
    `partial` that there may be older ones, and the cursor goes on behind them. `payload` maps dotted paths of object
    members to JSON values, {"user.id": 7}; `error` is a part of last_error, in which A-Z and a-z are the same. `where`
    is a condition on columns, for example from an access rule. `fingerprint`: dead letters of a group (`failures`).
    """

    ids: Sequence[str] = ()
    topics: Sequence[str] = ()
    statuses: Sequence[Status | str] = ()
    keys: Sequence[str] = ()
    scope: str | None = None
    scope_id: str | None = None
    flow_id: str | None = None
    created_from: datetime | None = None
    created_until: datetime | None = None
    run_at_from: datetime | None = None
    run_at_until: datetime | None = None
    finished_from: datetime | None = None
    finished_until: datetime | None = None
    tags: Sequence[str] = ()
    payload: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()
    error: str | None = None
    where: Condition | None = None
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        _set(self, "ids", several(self.ids, "ids", MAX_IDS, lambda value, _: check_id(value)))
        _set(self, "topics", several(self.topics, "topics", MAX_VALUES, lambda value, _: check_topic(value)))
        _set(self, "statuses", several(self.statuses, "statuses", MAX_VALUES, _status))
        _set(self, "keys", several(self.keys, "keys", MAX_VALUES, _text))
        for name in ("scope", "scope_id", "error"):
            if (value := getattr(self, name)) is not None:
                _set(self, name, _text(value, name))
        if self.flow_id is not None:
            _set(self, "flow_id", check_id(self.flow_id))
        for name in _TIMES:
            if (value := getattr(self, name)) is not None:
                _set(self, name, check_time(value, name))
        if isinstance(self.tags, str):
            raise _not_a_list("tags", self.tags)
        _set(self, "tags", check_tags(tuple(self.tags)))
        _set(self, "payload", _paths(self.payload))
        if self.fingerprint is not None:
            check_fingerprint(self.fingerprint)

    @property
    def paths(self) -> list[tuple[list[str], str]]:
        """Return the conditions of `payload`, as member names and JSON text."""
        pairs: Any = self.payload
        return [(path.split("."), codec.encode(value, f"payload.{path}")) for path, value in pairs]

    @property
    def is_window(self) -> bool:
        """Return True if it has a condition that no index knows."""
        return bool(self.tags or self.payload or self.error is not None)


class Page(Struct, frozen=True, kw_only=True):
    """Jobs, newest first. `next` continues where this page ends; None: nothing older is left. `partial`: the search
    ended at its bound before the page was full, so that there may be older jobs or none; `next` goes on with the
    search, and is never None then. `reached`: if the page is partial, jobs that were created before this time have not
    been looked at. If there is a `next` and the page is not partial, there is at least one older job.

    `total`: how many jobs meet the filter, those of other pages included. `total_capped`: at least so many, because the
    counting ended at its bound."""

    items: list[Job]
    total: int
    total_capped: bool
    partial: bool
    next: str | None
    limit: int
    offset: int
    reached: datetime | None = None


class State(Struct, frozen=True, gc=False):
    """A job without the fields that may be large: the fields that conditions ask about, and its progress."""

    id: str
    topic: str
    status: Status
    version: int
    progress: float
    stage: str | None
    message: str | None
    step: str | None
    waits_for: str | None
    key: str | None
    scope: str | None
    scope_id: str | None
    flow_id: str | None
    locked_by: str | None
    priority: int
    retries: int
    max_retries: int
    crashes: int
    timeout: float
    created: datetime
    updated: datetime
    run_at: datetime
    expires_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    claimed_at: datetime | None


class Place(Struct, frozen=True):
    """The beginning and the length of a page. `after`: the id behind which it begins."""

    limit: int
    offset: int
    after: str | None


def check_limit(limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput("limit", "out_of_range", f"must be 1 to {MAX_LIMIT}, not {limit!r:.40}")
    return limit


def check_place(limit: object, offset: object, cursor: str | None) -> Place:
    size = check_limit(limit)
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= MAX_OFFSET:
        raise InvalidInput("offset", "out_of_range", f"must be 0 to {MAX_OFFSET} (then use cursor), not {offset!r:.40}")
    if cursor is None:
        return Place(size, offset, None)
    if offset:
        raise InvalidInput("offset", "both_given", "give offset or cursor, not both")
    return Place(size, 0, read_cursor(cursor))


def make_cursor(job_id: str) -> str:
    return base64.urlsafe_b64encode(UUID(job_id).bytes).decode().rstrip("=")


def read_cursor(cursor: object) -> str:
    """Return the id in the cursor."""
    if isinstance(cursor, str):
        try:
            job_id = str(UUID(bytes=base64.b64decode(f"{cursor}==", altchars=b"-_", validate=True)))
        except ValueError:
            pass
        else:
            if make_cursor(job_id) == cursor:
                return job_id
    raise InvalidInput("cursor", "bad_cursor", f"{cursor!r:.80} is not what an earlier page gave as next")


_TIMES = ("created_from", "created_until", "run_at_from", "run_at_until", "finished_from", "finished_until")


def _set(struct: Struct, name: str, value: object) -> None:
    force_setattr(struct, name, value)


def several(values: object, field: str, most: int, check: Any) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise _not_a_list(field, values)
    checked = tuple(dict.fromkeys(check(value, field) for value in values))
    if len(checked) > most:
        raise InvalidInput(field, "too_many", f"has {len(checked)} entries, at most {most} are allowed")
    return checked


def _not_a_list(field: str, value: object) -> InvalidInput:
    return InvalidInput(field, "not_a_list", f"must be a list, not {type(value).__name__}")


def _text(value: object, field: str) -> str:
    return codec.check_text(value, field, max_chars=MAX_TEXT)


def _status(value: object, field: str) -> Status:
    try:
        return Status(str(value))
    except ValueError:
        names = ", ".join(Status)
        raise InvalidInput(field, "unknown_status", f"{value!r:.40} is none of {names}") from None


def _paths(payload: object) -> tuple[tuple[str, Any], ...]:
    if isinstance(payload, str) or not isinstance(payload, Iterable):
        raise InvalidInput("payload", "not_an_object", f"must map paths to values, not {type(payload).__name__}")
    pairs = tuple(payload.items()) if isinstance(payload, Mapping) else tuple(payload)
    if len(pairs) > MAX_PATHS:
        raise InvalidInput("payload", "too_many", f"has {len(pairs)} paths, at most {MAX_PATHS} are allowed")
    checked = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidInput("payload", "not_a_pair", f"{pair!r:.40} is not a pair of a path and a value")
        path, value = codec.check_text(pair[0], "payload", max_chars=MAX_TEXT), pair[1]
        # SQLite's paths know no way to write these.
        if "" in path.split(".") or any(char in '"\\' or char < " " for char in path):
            raise InvalidInput("payload", "bad_path", f'{path!r:.80} must be names with dots between, without " and \\')
        codec.encode(value, f"payload.{path}")
        checked.append((path, value))
    return tuple(checked)


# ── stats ──


class Counts(Struct, frozen=True, kw_only=True):
    """The number of jobs in each status now, and of all jobs that ever ended, also those that were pruned long ago.

    `failed`, `expired` and `cancelled` ended so and were not requeued since. `capped` names the numbers that stand for
    "at least so many". The average is in milliseconds, over the `executions`: runs that completed and have a beginning.
    Other runs were `retried`: they failed or crashed, and the job was put back at the cost of a retry. Or they were
    `lost`: taken back by `rescue`, whatever came of it. A run may be both. `execution_time`: milliseconds that all
    executions took together.

    `requeued_failed`, `requeued_expired` and `requeued_cancelled`: jobs that had ended so and were requeued.

    `oldest_wait`: the seconds, by the database's clock, that the ready job which waits for longest has been ready:
    since it was due, or since it was created if that was later. None if no job is ready. If `pending` is capped, the
    wait is at least so long.
    """

    pending: int = 0
    processing: int = 0
    waiting: int = 0
    blocked: int = 0
    cancel_requested: int = 0
    completed: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0
    executions: int = 0
    retried: int = 0
    lost: int = 0
    requeued_failed: int = 0
    requeued_expired: int = 0
    requeued_cancelled: int = 0
    success_rate: float | None = None
    execution_time: float = 0.0
    avg_execution_time: float | None = None
    oldest_wait: float | None = None
    capped: tuple[str, ...] = ()


class TopicStats(Counts, frozen=True, kw_only=True):
    pass


class Stats(Counts, frozen=True, kw_only=True):
    """`topics` is empty when one topic was asked for. `topics_capped`: there are more than those."""

    topics: dict[str, TopicStats] = {}
    topics_capped: bool = False


class Ended(Struct):
    """The counters of one topic: a row of _jobs_totals."""

    completed: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0
    executions: int = 0
    execution_us: int = 0
    retried: int = 0
    lost: int = 0
    requeued_failed: int = 0
    requeued_expired: int = 0
    requeued_cancelled: int = 0

    def add(self, other: Iterable[int]) -> None:
        for name, more in zip(self.__struct_fields__, other, strict=True):
            setattr(self, name, getattr(self, name) + more)


class Tally(Struct, frozen=True):
    """The number of jobs of a topic in this status, counted in `branch`, which may have ended at its bound.

    `waited`: the seconds that the longest ready of these jobs has been ready, if they are ready.
    """

    branch: str
    topic: str
    status: str
    count: int
    waited: float | None = None


BOUND = MAX_LIVE + 1  # of each branch: one more than is told


def make_stats(topic: str | None, live: Iterable[Tally], ended: Iterable[tuple[str, Sequence[int]]]) -> Stats:
    """Return the stats from a store's counts. `ended` has the topic '' for all topics together; rows of a topic add up.

    If the caller asked for one topic, a store may still count other topics on the way.
    """
    standing: dict[str, dict[str, int]] = {}
    sums: dict[str, int] = {}
    branches: dict[str, int] = {}
    statuses: dict[str, set[str]] = {}
    oldest: dict[str, float] = {}  # by topic, '' is all of them
    for row in live:
        branches[row.branch] = branches.get(row.branch, 0) + row.count
        statuses.setdefault(row.branch, set()).add(row.status)
        if topic is None or topic == row.topic:
            of = standing.setdefault(row.topic, {})
            of[row.status] = of.get(row.status, 0) + row.count
            sums[row.status] = sums.get(row.status, 0) + row.count
            if row.waited is not None:
                for name in ("", row.topic):
                    oldest[name] = max(row.waited, oldest.get(name, 0.0))
    counters: dict[str, Ended] = {}
    for name, counts in ended:
        counters.setdefault(name, Ended()).add(counts)
    cut = {status for branch, count in branches.items() if count > MAX_LIVE for status in statuses[branch]}
    capped = tuple(sorted(cut | {status for status, count in sums.items() if count > MAX_LIVE}))
    every = _counts(sums, counters.get("" if topic is None else topic), oldest.get(""), capped)
    if topic is not None:
        return Stats(**every)
    names = sorted((standing.keys() | counters.keys()) - {""})
    of_topics = {
        # A capped number may be too low for any topic.
        name: TopicStats(**_counts(standing.get(name, {}), counters.get(name), oldest.get(name), capped))
        for name in names[:MAX_TOPICS]
    }
    return Stats(**every, topics=of_topics, topics_capped=len(names) > MAX_TOPICS)


def _counts(
    live: Mapping[str, int], ended: Ended | None, oldest: float | None, capped: tuple[str, ...]
) -> dict[str, Any]:
    done = ended or Ended()
    tried = done.completed + done.failed + done.expired
    return {
        **{status: min(count, MAX_LIVE) for status, count in live.items()},
        **{name: getattr(done, name) for name in Ended.__struct_fields__ if name != "execution_us"},
        "success_rate": done.completed / tried if tried else None,
        "execution_time": done.execution_us / 1000,
        "avg_execution_time": done.execution_us / done.executions / 1000 if done.executions else None,
        "oldest_wait": oldest,
        "capped": capped,
    }


# ── Retention and partitions ──


class TopicRetention(Struct, frozen=True, kw_only=True):
    """The exceptions for one topic; UNSET: as for all topics."""

    completed: float | UnsetType | None = UNSET
    cancelled: float | UnsetType | None = UNSET
    failed: float | UnsetType | None = UNSET
    expired: float | UnsetType | None = UNSET


class Retention(Struct, frozen=True, kw_only=True):
    """Seconds that finished jobs are kept, by status; None is for ever. Completed jobs are kept at least a day."""

    completed: float | None = 7 * DAY
    cancelled: float | None = 7 * DAY
    failed: float | None = None
    expired: float | None = None
    topics: dict[str, TopicRetention] = {}

    def of(self, status: Status, topic: str | None = None) -> float | None:
        """Return for how many seconds jobs of this status are kept; None: of topics that `topics` doesn't name."""
        own = UNSET if topic not in self.topics else getattr(self.topics[topic], status)
        seconds: float | None = getattr(self, status) if own is UNSET else own
        return max(seconds, MIN_RETENTION) if seconds is not None and status is Status.COMPLETED else seconds

    def exceptions(self, status: Status) -> list[str]:
        """Return the topics that have a rule of their own for this status."""
        return [topic for topic, own in self.topics.items() if getattr(own, status) is not UNSET]

    @property
    def longest(self) -> float | None:
        """Return the seconds after which no completed job is kept; None: some are kept for ever."""
        spans = [self.of(Status.COMPLETED, topic) for topic in (None, *self.topics)]
        known = [span for span in spans if span is not None]
        return max(known) if len(known) == len(spans) else None


class PartitionReport(Struct, frozen=True, kw_only=True):
    """The days (UTC) whose part of the archive was made, or dropped whole."""

    created: tuple[date, ...] = ()
    dropped: tuple[date, ...] = ()
