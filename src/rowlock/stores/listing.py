"""How a page of jobs is found, on every store alike: walks along indexes, from the newest id to the oldest.

Jobs stand in two tables, and no index knows every combination of filters. So a filter becomes a few walks; each goes
down one index in the order of ids, and judges what that index doesn't know row by row. A walk looks at a bounded number
of rows. If it ends before it has found enough, its last row is the horizon: below it nothing is known, so the page ends
there, says `partial`, and the cursor goes on from the horizon.

This module does no I/O: `find` yields steps, the store answers what it saw.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Literal

from msgspec import Struct

from rowlock.core.job import HELD, Job, Status
from rowlock.stores.reading import MAX_TOTAL, Filter, Page, Place, make_cursor

# Rows that each of two walks looks at; more walks share them.
WINDOW = 10_000  # for tags, payload and error
BUDGET = 100_000  # when columns decide that the index doesn't have
CHUNK = 20_000

DEAD = frozenset({Status.FAILED, Status.EXPIRED, Status.CANCELLED})
ASIDE = DEAD | {Status.WAITING, Status.BLOCKED}  # what the index _jobs_aside holds
UNFINISHED = frozenset(Status) - DEAD - {Status.COMPLETED}

By = Literal["id", "ids", "lease", "status", "live_key", "flow_id", "key", "scope_id", "topic", "scope"]


class Walk(Struct, frozen=True):
    """Down one index: of the archive, or of the table of all other jobs. `value` is what the index is asked for.
    `statuses`: to be judged row by row; none if the index knows."""

    archived: bool
    by: By
    value: str = ""
    statuses: frozenset[Status] = frozenset()


class Step(Struct, frozen=True):
    """Look at `count` rows of a walk, behind the id `after`."""

    walk: Walk
    after: str | None
    count: int


class Seen(Struct, frozen=True):
    """How many rows there were, the last one's id, and those that meet the filter, newest first."""

    count: int
    last: str | None
    hits: list[str]


class Found(Struct, frozen=True):
    """Ids of the page and what follows it, newest first. `horizon`: where the search ended without having seen all."""

    ids: list[str]
    horizon: str | None
    total: int
    total_capped: bool
    partial: bool


def find(filter: Filter, place: Place) -> Generator[Step, Seen, Found]:
    walks = plan(filter)
    page = place.offset + place.limit + 1
    counted = yield from _gather(filter, walks, None, 0 if place.after else page, MAX_TOTAL + 1)
    ids, horizon, total = counted
    partial = horizon is not None
    if place.after is not None:
        ids, horizon, _ = yield from _gather(filter, walks, place.after, page, 0)
        partial = partial or horizon is not None
    return Found(ids[:page], horizon, min(total, MAX_TOTAL), total > MAX_TOTAL, partial)


def _gather(
    filter: Filter, walks: list[Walk], after: str | None, page: int, count: int
) -> Generator[Step, Seen, tuple[list[str], str | None, int]]:
    """All walks, each until it has found a page, and all together `count`."""
    hits: list[str] = []
    horizons: list[str] = []
    for walk in walks:
        budget = _budget(filter, walk, len(walks))
        want = max(page, count - len(hits))
        found, horizon = yield from _go(walk, after, want, budget)
        hits += found
        if horizon is not None:
            horizons.append(horizon)
    horizon = max(horizons, default=None)
    # A caller's own id may have been used twice, and stand in both tables.
    ids = sorted({job_id for job_id in hits if horizon is None or job_id >= horizon}, reverse=True)
    return ids, horizon, len(ids)


def _go(
    walk: Walk, after: str | None, want: int, budget: int | None
) -> Generator[Step, Seen, tuple[list[str], str | None]]:
    hits: list[str] = []
    looked = 0
    while len(hits) < want:
        count = want - len(hits) if budget is None else min(max(want, CHUNK), budget - looked)
        if count <= 0:
            return hits, after
        seen = yield Step(walk, after, count)
        hits += seen.hits
        looked += seen.count
        if seen.count < count or seen.last is None:
            break
        after = seen.last
    return hits, None


def _budget(filter: Filter, walk: Walk, walks: int) -> int | None:
    """None: every row that the index gives is a hit, so there is nothing to bound."""
    if filter.is_window:
        return max(WINDOW * 2 // walks, 1000)
    return None if is_decided(filter, walk) else max(BUDGET * 2 // walks, WINDOW)


def page_ids(found: Found, place: Place) -> list[str]:
    """Of the jobs on the page."""
    return found.ids[place.offset : place.offset + place.limit]


def make_page(found: Found, place: Place, jobs: Mapping[str, Job]) -> Page:
    ids = page_ids(found, place)
    end = found.horizon
    if len(found.ids) > place.offset + place.limit:
        end = ids[-1]
    return Page(
        items=[jobs[job_id] for job_id in ids],
        total=found.total,
        total_capped=found.total_capped,
        partial=found.partial,
        next=None if end is None else make_cursor(end),
        limit=place.limit,
        offset=place.offset,
    )


# ── Which indexes ──

_IMPLIED: dict[By, tuple[str, ...]] = {
    "ids": ("ids",),
    "live_key": ("topics", "keys"),
    "flow_id": ("flow_id",),
    "key": ("keys",),
    "scope_id": ("scope_id",),
    "topic": ("topics",),
    "scope": ("scope",),
}


def residue(filter: Filter, walk: Walk) -> list[str]:
    """The names of what the filter asks and the walk's index doesn't know."""
    known = _IMPLIED.get(walk.by, ())
    return [name for name in filter.__struct_fields__ if name not in (*known, "statuses") and _given(filter, name)]


def is_decided(filter: Filter, walk: Walk) -> bool:
    return not walk.statuses and not residue(filter, walk)


def _given(filter: Filter, name: str) -> bool:
    value = getattr(filter, name)
    return value is not None and value != ()


def plan(filter: Filter) -> list[Walk]:
    statuses = frozenset(Status(status) for status in filter.statuses) or frozenset(Status)
    if filter.finished_from is not None or filter.finished_until is not None:
        statuses &= DEAD | {Status.COMPLETED}
    walks = _plan_live(filter, statuses - {Status.COMPLETED})
    return walks + _plan_archive(filter) if Status.COMPLETED in statuses else walks


def _plan_live(filter: Filter, statuses: frozenset[Status]) -> list[Walk]:
    if not statuses:
        return []
    judged = frozenset[Status]() if statuses >= UNFINISHED | DEAD else statuses
    if filter.ids:
        return [Walk(False, "ids", statuses=judged)]
    if filter.keys and filter.topics and statuses & UNFINISHED:
        own = statuses & UNFINISHED
        held = Walk(False, "live_key", statuses=frozenset() if own == UNFINISHED else own)
        return [held, *_by_status(statuses & DEAD)]
    if statuses <= ASIDE | HELD:
        running = statuses & HELD
        lease = [Walk(False, "lease", statuses=frozenset() if running == HELD else running)] if running else []
        return lease + _by_status(statuses & ASIDE)
    return [Walk(False, "id", statuses=judged)]


def _by_status(statuses: frozenset[Status]) -> list[Walk]:
    return [Walk(False, "status", status) for status in sorted(statuses)]


def _plan_archive(filter: Filter) -> list[Walk]:
    """By what is likely to be rarest."""
    if filter.ids:
        return [Walk(True, "ids")]
    if filter.flow_id is not None:
        return [Walk(True, "flow_id", filter.flow_id)]
    if filter.keys:
        return [Walk(True, "key", key) for key in filter.keys]
    if filter.scope_id is not None:
        return [Walk(True, "scope_id", filter.scope_id)]
    if filter.topics:
        return [Walk(True, "topic", topic) for topic in filter.topics]
    if filter.scope is not None:
        return [Walk(True, "scope", filter.scope)]
    return [Walk(True, "id")]
