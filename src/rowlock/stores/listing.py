"""Finds a page of jobs, on every store alike: by walks along indexes, from the newest id to the oldest.

Jobs stand in two tables, and no index knows every combination of filters. So a filter becomes a few walks, each along
one index, that judge row by row what their index doesn't know:

- In the order of ids, until enough is found. What is looked at is bounded. A walk that ends at its bound leaves a
  horizon: below it nothing is known. A page that is not full by then ends there, says `partial`, and the cursor goes on
  from the horizon. A count that ends there says `total_capped`.
- All at once, where an index is in another order, up to a bound as well. Beyond it walks in the order of ids stand in.

This module does no I/O: `find` yields steps, the store answers what it saw.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from datetime import timedelta
from typing import Literal

from msgspec import Struct

from rowlock.core.conditions import one_of
from rowlock.core.ids import STRAY, first_id, time_in
from rowlock.core.job import Job, Status
from rowlock.stores.queries import MAX_TOTAL, Filter, Page, Place, make_cursor

WINDOW = 10_000  # rows that are searched for tags, payload and error; all walks share them
BUDGET = 100_000  # rows of one table that are looked at when columns decide that the index doesn't have
SCOPES = 20  # scope_ids of a rule that are walked along one by one
WARY = 50_000  # rows that a search in order may read in all, before another search is tried

DEAD = frozenset({Status.FAILED, Status.EXPIRED, Status.CANCELLED})
ASIDE = DEAD | {Status.WAITING, Status.BLOCKED}  # the statuses in the index _jobs_aside
GROUPED = frozenset({Status.FAILED, Status.EXPIRED})  # the statuses with a fingerprint
UNFINISHED = frozenset(Status) - DEAD - {Status.COMPLETED}

_TOP = "ffffffff-ffff-ffff-ffff-ffffffffffff"  # the horizon of a search that has seen nothing

By = Literal[
    # in the order of ids; the last four are of the archive
    "id", "ids", "stray", "status", "fingerprint", "scope_id", "topic", "key", "scope", "flow_id",
    # all at once; finished is of the archive
    "ready", "due", "lease", "cancelling", "live_key", "dead", "finished",
]  # fmt: skip
AT_ONCE: frozenset[By] = frozenset({"ready", "due", "lease", "cancelling", "live_key", "dead", "finished"})
_LARGE: frozenset[By] = frozenset({"ready", "due", "dead", "finished"})  # may hold more than a window


class Walk(Struct, frozen=True):
    """A walk along one index, of the archive or of the table of all other jobs. `value`: the value to look up in the
    index. `statuses`: to be judged row by row; none if the index knows them. `low`, `high`: only ids from `low` on, and
    below `high`; no strays."""

    archived: bool
    by: By
    value: str = ""
    statuses: frozenset[Status] = frozenset()
    low: str | None = None
    high: str | None = None


class Group(Struct, frozen=True):
    """`walks` find all jobs of one table; `spare` do so in their place if there is too much to look at at once. `hope`:
    walks in the order of ids, which may be enough after a short look, if hits are frequent or there are few rows."""

    walks: list[Walk]
    spare: list[Walk] = []
    hope: list[Walk] = []


class WalkPart(Struct, frozen=True):
    """Look at `count` rows of a walk, behind the id `after`. Of the rows that meet the filter, tell the newest
    `keep`."""

    walk: Walk
    after: str | None
    count: int
    keep: int


class Seen(Struct, frozen=True):
    """`count`: rows that were read. `last`: the id of the last row, for walks in order. `hits`: rows that meet the
    filter. `ids`: the ids of hits, newest first."""

    count: int
    last: str | None
    hits: int
    ids: list[str]


class Found(Struct, frozen=True):
    """Ids of the page and what follows it, newest first. `horizon`: where the search ended without having seen all.
    `total_capped`: there are more, or there may be."""

    ids: list[str]
    horizon: str | None
    total: int
    total_capped: bool


class Goal(Struct, frozen=True):
    """The goal of a search: tell `page` ids, behind the id `after`, and count up to `count` hits."""

    after: str | None
    page: int
    count: int

    def less(self, hits: int) -> Goal:
        return Goal(self.after, self.page, self.count - hits)

    @property
    def hits(self) -> int:
        return max(self.page, self.count)


class Hits(Struct):
    """The result of a search. `horizon`: the id at which the search ended, at its bound."""

    count: int = 0
    ids: list[str] = []
    horizon: str | None = None

    def add(self, other: Hits) -> None:
        self.count += other.count
        self.ids += other.ids
        self.horizon = max(filter(None, (self.horizon, other.horizon)), default=None)


def find(filter: Filter, place: Place) -> Generator[WalkPart, Seen, Found]:
    groups = plan(filter)
    page = place.offset + place.limit + 1
    found = yield from _search(filter, groups, Goal(None, 0 if place.after else page, MAX_TOTAL + 1))
    count, total_capped = found.count, found.count > MAX_TOTAL or found.horizon is not None
    if place.after is not None:
        found = yield from _search(filter, groups, Goal(place.after, page, 0))
    ids = _known(found)[:page]
    total = max(count, len(ids)) if total_capped else count  # a page may reach further than the counting
    return Found(ids, found.horizon, min(total, MAX_TOTAL), total_capped)


def find_newest(filter: Filter, limit: int) -> Generator[WalkPart, Seen, list[str]]:
    """Return the ids of the newest jobs, without counting."""
    found = yield from _search(filter, plan(filter), Goal(None, limit, 0))
    return _known(found)[:limit]


def _known(found: Hits) -> list[str]:
    """Return the ids down to the horizon, newest first, each once: a caller's own id may stand in both tables."""
    return sorted({job_id for job_id in found.ids if found.horizon is None or job_id >= found.horizon}, reverse=True)


def _search(filter: Filter, groups: list[Group], goal: Goal) -> Generator[WalkPart, Seen, Hits]:
    hits = Hits()
    for group in groups:
        hits.add((yield from _search_group(filter, group, goal.less(hits.count))))
    return hits


def _search_group(filter: Filter, group: Group, goal: Goal) -> Generator[WalkPart, Seen, Hits]:
    if group.hope:
        found = yield from _go(group.hope[0], goal, BUDGET, wary=True)
        if found.horizon is None:
            for stray in group.hope[1:]:
                found.add((yield from _go(stray, goal.less(found.count), BUDGET)))
            return found
    hits = yield from _walk_all(filter, group.walks, goal)
    if hits is None:
        hits = yield from _walk_all(filter, group.spare, goal)
    return hits or Hits()


def _walk_all(filter: Filter, walks: list[Walk], goal: Goal) -> Generator[WalkPart, Seen, Hits | None]:
    """Go along each walk until it has found a page, and until all of them have found as many hits as are to be counted.
    Return None if a walk has too many rows to look at at once."""
    hits = Hits()
    share = sum(walk.by != "stray" for walk in walks)  # there are few strays
    for walk in walks:
        rest = goal.less(hits.count)
        if walk.by in AT_ONCE:
            seen = yield WalkPart(walk, goal.after, BUDGET + 1, goal.page)
            if seen.count > BUDGET:
                return None
            hits.add(Hits(seen.hits, seen.ids))
        else:
            hits.add((yield from _go(walk, rest, _budget(filter, walk, max(share, 1)))))
    return hits


def _go(walk: Walk, goal: Goal, budget: int | None, *, wary: bool = False) -> Generator[WalkPart, Seen, Hits]:
    """Walk down in the order of ids. `wary`: give up early if hits are rare. If the walk has a lower end, look at
    WINDOW rows first."""
    hits = Hits()
    patience = 0 if walk.low is None else WINDOW
    after, looked, chunk = goal.after, 0, 2000 if wary else 2 * max(goal.hits, 500)
    while (missing := goal.hits - hits.count) > 0:
        count = missing if budget is None else min(chunk, budget - looked)
        if count <= 0 or (wary and looked >= patience and looked * goal.hits > WARY * max(hits.count, 1)):
            hits.horizon = after or _TOP
            break
        seen = yield WalkPart(walk, after, count, max(goal.page - len(hits.ids), 0))
        hits.add(Hits(seen.hits, seen.ids))
        looked += seen.count
        chunk *= 2
        if seen.count < count or seen.last is None:
            break
        after = seen.last
    return hits


def _budget(filter: Filter, walk: Walk, walks: int) -> int | None:
    """Return how many rows a walk may look at. None: no bound, because every row from the index is a hit."""
    if filter.is_window:
        return max(WINDOW // len(plan(filter)) // walks, 1000)
    return None if is_decided(filter, walk) else max(BUDGET // walks, WINDOW)


def page_ids(found: Found, place: Place) -> list[str]:
    """Return the ids of the jobs on the page."""
    return found.ids[place.offset : place.offset + place.limit]


def make_page(found: Found, place: Place, jobs: Mapping[str, Job]) -> Page:
    ids = page_ids(found, place)
    is_full = len(found.ids) > place.offset + place.limit
    end = ids[-1] if is_full else found.horizon
    return Page(
        items=[jobs[job_id] for job_id in ids],
        total=found.total,
        total_capped=found.total_capped,
        partial=not is_full and end is not None,
        next=None if end is None else make_cursor(end),
        limit=place.limit,
        offset=place.offset,
        reached=None if end is None or end != found.horizon else time_in(end),
    )


# ── Which indexes ──

_IMPLIED: dict[By, tuple[str, ...]] = {
    "ids": ("ids",),
    "fingerprint": ("fingerprint",),
    "ready": ("topics",),
    "live_key": ("topics", "keys", "scope", "scope_id"),
    "dead": ("topics",),
    "finished": ("topics", "finished_from", "finished_until"),
    "flow_id": ("flow_id",),
    "key": ("keys",),
    "scope_id": ("scope_id",),
    "topic": ("topics",),
    "scope": ("scope",),
}


def residue(filter: Filter, walk: Walk) -> list[str]:
    """Return the names of the filter's conditions that the walk's index doesn't know."""
    known = (*_IMPLIED.get(walk.by, ()), "statuses")
    return [name for name in filter.__struct_fields__ if name not in known and given(filter, name)]


def is_decided(filter: Filter, walk: Walk) -> bool:
    return not walk.statuses and not residue(filter, walk)


def given(filter: Filter, name: str) -> bool:
    value = getattr(filter, name)
    return value is not None and value != () and value is not True


def plan(filter: Filter) -> list[Group]:
    if filter.where is False:
        return []
    statuses = frozenset(Status(status) for status in filter.statuses) or frozenset(Status)
    if given(filter, "finished_from") or given(filter, "finished_until"):
        statuses &= DEAD | {Status.COMPLETED}
    if filter.fingerprint is not None:
        statuses &= GROUPED
    groups = []
    if live := statuses - {Status.COMPLETED}:
        groups.append(_plan_live(filter, live))
    if Status.COMPLETED in statuses:
        groups.append(_plan_archive(filter))
    if filter.is_window:  # only the newest are looked at, so they must come in order
        groups = [Group(g.spare if any(w.by in _LARGE for w in g.walks) else g.walks) for g in groups]
    return groups


def _plan_live(filter: Filter, statuses: frozenset[Status]) -> Group:
    low, high = _bounds(filter)
    in_order = Walk(False, "id", statuses=_unless_all(statuses, UNFINISHED | DEAD), low=low, high=high)
    strays = [] if low is None and high is None else [Walk(False, "stray", statuses=in_order.statuses)]
    if filter.ids:
        return Group([Walk(False, "ids", statuses=in_order.statuses)])
    if filter.fingerprint is not None:
        return Group([Walk(False, "fingerprint", filter.fingerprint, statuses=_unless_all(statuses, GROUPED))])
    if is_decided(filter, in_order):
        return Group([in_order])
    if (scopes := _scope_ids(filter)) and not filter.keys:
        return Group([Walk(False, "scope_id", scope_id, statuses=in_order.statuses) for scope_id in scopes])
    walks = _by_status(statuses & ASIDE)
    if filter.topics and statuses & DEAD:
        walks = [Walk(False, "dead", " ".join(sorted(statuses & DEAD))), *_by_status(statuses & (ASIDE - DEAD))]
    if filter.keys:
        if living := statuses & UNFINISHED:
            walks = [walk for walk in walks if walk.by == "dead" or walk.value in DEAD]
            walks.append(Walk(False, "live_key", statuses=_unless_all(living, UNFINISHED)))
    elif not in_order.statuses and not filter.topics:
        return Group([in_order, *strays])
    else:
        if Status.PROCESSING in statuses:
            walks.append(Walk(False, "lease", statuses=frozenset({Status.PROCESSING})))
        if Status.CANCEL_REQUESTED in statuses:  # not all of them have a lease
            walks.append(Walk(False, "cancelling"))
        if Status.PENDING in statuses:
            walks += [Walk(False, "ready"), Walk(False, "due")]
    spare = [in_order, *strays]
    return Group(walks, spare, spare if any(walk.by in _LARGE for walk in walks) else [])


def _by_status(statuses: Iterable[Status]) -> list[Walk]:
    return [Walk(False, "status", status) for status in sorted(statuses)]


def _unless_all(statuses: frozenset[Status], all_of: frozenset[Status]) -> frozenset[Status]:
    return frozenset() if statuses >= all_of else statuses


def _plan_archive(filter: Filter) -> Group:
    if filter.ids:
        return Group([Walk(True, "ids")])
    low, high = _bounds(filter)
    strays = [] if low is None and high is None else [Walk(True, "stray")]  # jobs whose ids say another time
    walks = [Walk(True, by, value, low=low, high=high) for by, value in _rarest(filter)]
    if given(filter, "finished_from") and walks[0].by in ("id", "topic", "scope"):
        spare = walks + strays
        return Group([Walk(True, "finished")], spare, spare if len(spare) == 1 else [])
    hope = []
    if filter.scope is not None and walks[0].by == "topic":  # perhaps there are few jobs of that scope
        hope = [Walk(True, "scope", filter.scope, low=low, high=high), *strays]
    return Group(walks + strays, hope=hope)


def _rarest(filter: Filter) -> list[tuple[By, str]]:
    """Return the index to walk along, and the values to look up: those that are likely to be rarest."""
    if filter.flow_id is not None:
        return [("flow_id", filter.flow_id)]
    if filter.keys:
        return [("key", key) for key in filter.keys]
    if scopes := _scope_ids(filter):
        return [("scope_id", scope_id) for scope_id in scopes]
    if filter.topics:
        return [("topic", topic) for topic in filter.topics]
    if filter.scope is not None:
        return [("scope", filter.scope)]
    return [("id", "")]


def _scope_ids(filter: Filter) -> tuple[str, ...]:
    """Return the scope_ids that the filter allows, if it names them itself or by an access rule."""
    if filter.scope_id is not None:
        return (filter.scope_id,)
    known = None if filter.where is None else one_of(filter.where, "scope_id")
    return known if known is not None and len(known) <= SCOPES else ()


def _bounds(filter: Filter) -> tuple[str | None, str | None]:
    """Return the ids between which all jobs of a range of time are, except strays. No job finishes before it was
    created."""
    slack = timedelta(seconds=STRAY + 1)
    ends = [end for end in (filter.created_until, filter.finished_until) if end is not None]
    low = None if filter.created_from is None else first_id(filter.created_from, -slack)
    return low, first_id(min(ends), slack) if ends else None
