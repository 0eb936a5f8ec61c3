"""Routes of statistics: how many jobs have which status, and charts over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Struct, structs

from rowlock.core.conditions import Condition
from rowlock.core.job import Status, check_topic
from rowlock.http.call import Call, denied
from rowlock.http.filters import JobFilter, asked_filter, narrowed, visible
from rowlock.http.redacting import check_guesses
from rowlock.http.routes import SEE_JOBS, Routes, scope
from rowlock.http.shapes import Asked, Time, Topic, copied, schema
from rowlock.stores.queries import Filter
from rowlock.stores.series import RANGES, Series

if TYPE_CHECKING:
    from rowlock.http.app import Api
    from rowlock.jobs import Jobs

ROUTES = Routes()


_SAMPLE = 20  # completed jobs whose execution times are averaged


class StatsQuery(JobFilter, frozen=True, kw_only=True):
    """For one topic or all topics there are counters. Any other filter counts jobs, up to 10,000 of each status."""


class SeriesQuery(Asked, frozen=True, kw_only=True):
    """`range` until now, or `from` and `until`. `step`: seconds per point, a multiple of 60."""

    topic: Topic | None = None
    range: Annotated[str, schema(enum=list(RANGES))] | None = None
    since: Time | None = msgspec.field(default=None, name="from")
    until: Time | None = None
    step: Annotated[int, schema(minimum=60, multipleOf=60)] | None = None


class StatsBody(Struct, kw_only=True):
    """`capped` names the numbers that mean "at least". `success_rate`: completed jobs among completed, failed and
    expired ones. `avg_execution_time`: milliseconds of completed runs. `oldest_wait`: seconds that the oldest ready job
    has waited, since it was due or, if later, created."""

    pending: int
    blocked: int
    processing: int
    waiting: int
    cancel_requested: int
    completed: int
    failed: int
    expired: int
    cancelled: int
    success_rate: float | None
    avg_execution_time: float | None
    oldest_wait: float | None
    capped: tuple[str, ...]


class StatsAnswer(StatsBody, kw_only=True):
    topics: dict[str, StatsBody]
    topics_capped: bool


@ROUTES.add("GET", "/api/jobs/stats", SEE_JOBS, "How many jobs have which status")
async def get_stats(call: Call, asked: StatsQuery) -> StatsAnswer:
    if asked == StatsQuery(topic=asked.topic[:1]):
        return await read_stats(call.api, visible(call), asked.topic[0] if asked.topic else None)
    wanted = asked_filter(asked, visible(call))
    check_guesses(call, wanted)
    return await _counted(call.api.jobs, wanted)


async def read_stats(api: Api, condition: Condition, topic: str | None) -> StatsAnswer:
    """Return the numbers of jobs that meet the condition."""
    if condition is not True:
        return await _counted(api.jobs, Filter(**narrowed(condition, {} if topic is None else {"topics": [topic]})))
    stats = await api.state.counting.stats(None if topic is None else check_topic(topic))
    return copied(StatsAnswer, stats, topics={name: copied(StatsBody, one) for name, one in stats.topics.items()})


async def _counted(jobs: Jobs, wanted: Filter) -> StatsAnswer:
    """Count jobs for which there are no counters, as far as a list counts."""
    pages = {}
    for status in wanted.statuses or Status:
        limit = _SAMPLE if status == Status.COMPLETED else 1
        pages[Status(status)] = await jobs.list(structs.replace(wanted, statuses=[status]), limit=limit)
    counts = {str(status): pages[status].total if status in pages else 0 for status in Status}
    ended = counts["completed"] + counts["failed"] + counts["expired"]
    took = [
        (job.finished_at - job.started_at).total_seconds() * 1000
        for job in (pages[Status.COMPLETED].items if Status.COMPLETED in pages else ())
        if job.finished_at is not None and job.started_at is not None
    ]
    return StatsAnswer(
        **counts,
        success_rate=counts["completed"] / ended if ended else None,
        avg_execution_time=sum(took) / len(took) if took else None,
        oldest_wait=None,
        capped=tuple(str(status) for status, page in pages.items() if page.total_capped or page.partial),
        topics={},
        topics_capped=False,
    )


@ROUTES.add(
    "GET", "/api/stats/series", scope("read", bounded=True),
    "Charts: jobs enqueued and ended over time, and how long they waited and ran",
)  # fmt: skip
async def get_series(call: Call, asked: SeriesQuery) -> Series:
    if call.identity.topics is not None and asked.topic not in call.identity.topics:
        raise denied(call.identity, "this token is for some topics: name one of them", field="topic")
    return await call.api.jobs.series(
        asked.topic, range=asked.range, since=asked.since, until=asked.until, step=asked.step
    )
