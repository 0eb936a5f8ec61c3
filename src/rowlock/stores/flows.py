"""Flows: the questions of `advance`, in their order. A store answers them, in one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from rowlock.core.flows import Edge, Ended, FlowRow, Group, NewChildren, NewFlow, plan
from rowlock.core.job import LIVE, NewJob, Status, own_line, owner_of
from rowlock.core.moves import Decision, Order, Row, lines, patches
from rowlock.errors import FlowKeyTaken, IdTaken, UnknownParent
from rowlock.stores.base import Enqueued

BATCH = 1000  # jobs that one transaction starts or stops
EDGE_COLUMNS = Edge.__struct_fields__
_FILLS = EDGE_COLUMNS.index("fills")  # SQLite has no booleans
_REACHED = (Status.CANCELLED, Status.CANCEL_REQUESTED, Status.BLOCKED)


class ReadStarted(Struct, frozen=True):
    """→ pairs of ids: jobs that stand in these lines, and jobs that they have started by ctx.gather."""

    lines: Sequence[str]


class ReadParents(Struct, frozen=True):
    """→ Ended by id: of these jobs, and of all that stand in these lines and that other jobs wait for."""

    lines: Sequence[str]
    ids: Sequence[str]


class FindEdges(Struct, frozen=True):
    """→ pairs of an edge, and whether it is the only edge of its child: the edges in these lines that don't say how the
    parents stand (Ended.is_known). At most `limit`, in the order of children and parents."""

    lines: Sequence[str]
    parents: Mapping[str, Ended]
    limit: int


class LockJobs(Struct, frozen=True):
    """→ the time, and the rows of these jobs, locked, without payloads. Archived jobs are among them."""

    ids: Sequence[str]


class ReadPayloads(Struct, frozen=True):
    """→ the payloads of these jobs, which are locked, by id."""

    ids: Sequence[str]


class ReadEdges(Struct, frozen=True):
    """→ all edges that lead to these jobs, read afresh."""

    children: Sequence[str]


class ReadPairs(Struct, frozen=True):
    """→ the edges with these children and parents, read afresh."""

    pairs: Sequence[tuple[str, str]]


class CountEdges(Struct, frozen=True):
    """→ by child and call: how many edges lead to it, and how many of those are open."""

    children: Sequence[str]


class FindWatched(Struct, frozen=True):
    """→ the lines, of these, that lead to other jobs."""

    lines: Sequence[str]


class WriteEdges(Struct, frozen=True):
    edges: Sequence[Edge]


class Apply(Struct, frozen=True):
    """→ the decisions about the rows."""

    order: Order
    rows: Sequence[Row]


Ask = (
    ReadStarted
    | ReadParents
    | FindEdges
    | LockJobs
    | ReadPayloads
    | ReadEdges
    | ReadPairs
    | CountEdges
    | FindWatched
    | WriteEdges
    | Apply
)


class Advanced(Struct, frozen=True):
    """`started`: ids of jobs that are pending now. `lines`: lines to look at again, because a job in them has ended by
    this call, or because they had too many edges for one call."""

    started: set[str]
    lines: set[str]


def advancing(noted: Sequence[str], limit: int = BATCH) -> Generator[Ask, Any, Advanced]:
    """Look at the jobs that stand in these lines, and at those that wait for them."""
    own = [job_id for line in noted if (job_id := owner_of(line)) is not None]
    pairs: list[tuple[str, str]] = yield ReadStarted(noted)
    parents: Mapping[str, Ended] = yield ReadParents(noted, sorted({*own, *(owner for owner, _ in pairs)}))
    news: list[tuple[Edge, bool]] = yield FindEdges(noted, parents, limit + 1)
    crowded, news = len(news) > limit, news[:limit]
    waiting = list(dict.fromkeys([edge.child for edge, _ in news]))
    waiting += [job_id for job_id in own if job_id in parents and parents[job_id].status == Status.BLOCKED]
    reached = [pair for pair in pairs if pair[0] in parents and parents[pair[0]].status in _REACHED]
    ids = sorted({*waiting, *(job_id for pair in reached for job_id in pair)})
    if not ids:
        return Advanced(set(), set())
    now: datetime
    rows: Sequence[Row]
    now, rows = yield LockJobs(ids)
    known = {row.id: row for row in rows}
    mine = {job_id: known[job_id] for job_id in waiting if job_id in known}
    started: dict[str, tuple[Row, list[Row]]] = {}
    for owner, child in reached:
        if owner in known and child in known:
            started.setdefault(owner, (known[owner], []))[1].append(known[child])
    sure = {edge.child: edge for edge, alone in news if alone and _is_sure(edge, parents, mine)}
    edges, incomplete = yield from _edges_of(
        sorted({*mine, *started} - sure.keys()),
        [(edge.child, edge.parent) for edge, _ in news if edge.child not in sure],
        known,
        parents,
    )
    edges += sure.values()
    # A job that was requeued together with its parents must not start before them.
    others = {edge.parent for edge in edges if edge.call is None and not edge.is_open} - parents.keys()
    if others:
        parents = {**parents, **(yield ReadParents([], sorted(others)))}
    filled = {edge.child for edge in edges if edge.fills and edge.call is None}
    if filling := [job_id for job_id, row in mine.items() if job_id in filled and (job_id, None) not in incomplete]:
        payloads: Mapping[str, str] = yield ReadPayloads(filling)
        mine |= {job_id: mine[job_id]._replace(payload=payload) for job_id, payload in payloads.items()}
    watched: set[str] = (yield FindWatched([own_line(job_id) for job_id in mine])) if mine else set()
    decided = plan(
        parents,
        mine,
        edges,
        started,
        frozenset(job_id for job_id in mine if own_line(job_id) in watched),
        now,
        incomplete,
    )
    if decided.edges:
        yield WriteEdges(decided.edges)
    heads: set[str] = set()
    again = set(noted) if crowded else set()
    # These parents' lines are not locked: one of them may end before this is committed, and find nothing to do.
    again |= set(decided.lines)
    again |= {edge.line for edge in decided.edges if edge.parent in others and edge.is_open}
    for order, chosen in decided.orders:
        done: list[Decision] = yield Apply(order, chosen)
        written = patches(done)
        heads |= {row.id for row, patch in written if patch.status is Status.PENDING}
        again |= set(lines(written))
    return Advanced(heads, again)


def _is_sure(edge: Edge, parents: Mapping[str, Ended], rows: Mapping[str, Row]) -> bool:
    """Return True if an edge that was read before its child was locked is unchanged. It must be the child's only edge.

    Two looks write an open edge. A look at the edge's line is impossible now: this call has locked that line. A look at
    the child's line would have started the child, but the child is still blocked."""
    return (
        edge.is_open
        and edge.call is None
        and edge.condition is None
        and parents[edge.parent].status == Status.COMPLETED
        and edge.child in rows
        and rows[edge.child].status is Status.BLOCKED
    )


def _edges_of(
    children: Sequence[str],
    news: Sequence[tuple[str, str]],
    rows: Mapping[str, Row],
    parents: Mapping[str, Ended],
) -> Generator[Ask, Any, tuple[list[Edge], set[Group]]]:
    """Return the edges that decide about these jobs, and the groups that have other open edges. A job that waits for
    10,000 parents is looked at whenever some of them end: then only the edges from these parents are read (`news`).
    `news` also has the edges of pruned parents, so that they are looked at once, and not for ever."""
    touched: list[Edge] = (yield ReadPairs(news)) if news else []
    if not children:
        return touched, set()
    counts: Mapping[Group, tuple[int, int]] = yield CountEdges(children)
    known = Counter((edge.child, edge.call) for edge in touched)
    ended = Counter((edge.child, edge.call) for edge in touched if edge.is_open and parents[edge.parent].has_ended)
    live = {child for child in children if rows[child].status in LIVE}
    incomplete = {group for group, (_, waits) in counts.items() if waits > ended[group] and group[0] in live}
    lacking = [group for group, (total, _) in counts.items() if total > known[group] and group not in incomplete]
    if whole := sorted({child for child, _ in lacking}):
        rest: list[Edge] = yield ReadEdges(whole)
        touched = [edge for edge in touched if edge.child not in set(whole)] + rest
    return touched, {group for group in incomplete if group[0] not in set(whole)}


def edge_of(row: Sequence[Any]) -> Edge:
    """Return an edge from its columns, in the order of its fields."""
    values = *row[:_FILLS], bool(row[_FILLS]), *row[_FILLS + 1 : len(EDGE_COLUMNS)]
    return Edge(*values)


class FlowGraph(Struct, frozen=True):
    """`nodes`: ids and names, as the maker of the flow has given them; `edges`: all of them."""

    flow: FlowRow
    nodes: list[tuple[str, str]]
    edges: list[Edge]
    jobs: dict[str, Status]


class StoredEdges(Struct, frozen=True):
    """The edges that lead to a job. `Store.read` answers them."""

    items: list[Edge]


def edge_data(edge: Edge) -> dict[str, Any]:
    """Return the data to store of a new edge."""
    return {name: getattr(edge, name) for name in EDGE_COLUMNS[:-4]}


def refuse_missing(flow: NewFlow, found: Iterable[str]) -> None:
    """Raise UnknownParent if a job that the flow waits for does not exist."""
    if missing := sorted(set(flow.outside) - set(found)):
        child = next(edge.child for edge in flow.edges if edge.parent == missing[0])
        n = [job.id for job in flow.jobs].index(child)
        raise UnknownParent(missing[0], f"jobs[{n}].after")


def refuse_taken(jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> bool:
    """Raise if a live job has the key of one of these jobs, or if only some of these jobs existed before: a flow is
    made as a whole. Return True if all of them existed: then the flow was made before."""
    for n, (job, answer) in enumerate(zip(jobs, answers, strict=True)):
        if answer.id != job.id:
            same = next((f"jobs[{i}].key" for i, one in enumerate(jobs[:n]) if one.id == answer.id), None)
            raise FlowKeyTaken(job.topic, job.key or "", answer.id if same is None else None, f"jobs[{n}].key", same)
    there = [answer.id for answer in answers if answer.existing]
    if there and len(there) < len(jobs):
        raise IdTaken(there[0], "flow")
    return bool(there)


def child_edges(children: NewChildren, owner: str) -> list[Edge]:
    """Return the edges by which a job waits for those that it has started."""
    return [
        Edge(
            child=children.id,
            parent=job.id,
            flow_id=children.flow_id,
            name=job.topic,
            line=job.line or own_line(job.id),
            fills=True,
            call=children.call,
            place=n,
            owner=owner,
        )
        for n, job in enumerate(children.jobs)
    ]


def ended_lines(children: NewChildren, answers: Sequence[Enqueued]) -> list[str]:
    """Return the lines of children that existed before and have ended."""
    both = zip(children.jobs, answers, strict=True)
    return [job.line or own_line(job.id) for job, answer in both if answer.status not in LIVE]
