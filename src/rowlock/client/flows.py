"""Flows: `jobs.flow` and `jobs.chain` make them, `jobs.flows` shows and steers them."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar, cast, overload

from msgspec import Struct
from msgspec.structs import replace

from rowlock.client.audit import Actor, check_reason
from rowlock.client.connections import Stores
from rowlock.client.definitions import Definitions, refuse_windows
from rowlock.client.enqueue import Announce, Draftable, Inserts, draft_of
from rowlock.client.middleware import Around, EnqueueMiddleware
from rowlock.core.flows import (
    DELETED,
    MAX_EDGES,
    MAX_JOBS,
    Edge,
    FlowRow,
    IfFailed,
    NewFlow,
    NodeResult,
    ReleaseHold,
    RequeueFlow,
    blanked,
    check_flow_name,
    check_if_failed,
    check_node_name,
    find_cycle,
    flow_status,
    followers,
    node_name,
    origins,
    outside_of,
)
from rowlock.core.ids import IdMaker, check_id
from rowlock.core.job import LIVE, NewJob, Status, check_topic, check_whole, own_line
from rowlock.core.lifecycle import MOVES
from rowlock.core.moves import Cancel, Delete
from rowlock.core.rules import parse_condition
from rowlock.errors import FlowNotFound, FlowRefused, InvalidInput, InvalidState, JobNotFound, KeyTaken, WrongContext
from rowlock.stores.base import Enqueued, Store
from rowlock.stores.flows import FlowGraph
from rowlock.stores.queries import State
from rowlock.tasks import Draft

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Node(Generic[R_co]):
    """A job of a flow that is being put together. `Node[R]`: R is what its handler returns."""

    def __init__(self, name: str, id: str) -> None:
        self.name = name
        self.id = id

    @property
    def result(self) -> R_co:
        """Stands for the result of the job, in the arguments of a job that waits for it:
        `flow.add(send.draft(charge=paid.result))`. A part of it: `paid.result.amount`, `paid.result["amount"]`."""
        return cast(R_co, NodeResult(self.id, self.name))

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.id}>"


class _Parent(NamedTuple):
    node: Node[Any]
    if_failed: str
    condition: str | None


class _Added(Struct):
    node: Node[Any]
    draft: Draft
    parents: dict[str, _Parent]  # by name
    blanks: dict[str, set[str]]


class EnqueuedFlow(Struct, frozen=True):
    """`jobs`: the jobs of the flow, by the names of their nodes."""

    id: str
    name: str
    jobs: dict[str, Enqueued[Any]]


Parents = Node[Any] | str | Sequence[Node[Any] | str] | None


class FlowDraft:
    """A flow that is being put together; `Flow` and `SyncFlow` enqueue it."""

    def __init__(self, name: str, parts: FlowParts) -> None:
        self.name = check_flow_name(name)
        self._parts = parts
        self.id = parts.ids.one()
        self._added: dict[str, _Added] = {}
        self._outside: dict[str, Node[Any]] = {}  # by id
        self._names: set[str] = set()  # of all nodes
        self._numbers: dict[str, int] = {}  # the last that `node_name` has given, by what stands before it
        self._ids: dict[str, Node[Any]] = {}  # added jobs by id
        self._is_enqueued = False

    def __repr__(self) -> str:
        return f"<Flow {self.name} {self.id}, {len(self._added)} jobs>"

    @overload
    def add(
        self,
        job: Draft[R],
        *,
        after: Parents = None,
        if_failed: IfFailed = "cancel",
        when: str | None = None,
        name: str | None = None,
    ) -> Node[R]: ...

    @overload
    def add(
        self,
        job: Draftable,
        *,
        after: Parents = None,
        if_failed: IfFailed = "cancel",
        when: str | None = None,
        name: str | None = None,
    ) -> Node[Any]: ...

    def add(
        self,
        job: Draftable,
        *,
        after: Parents = None,
        if_failed: IfFailed = "cancel",
        when: str | None = None,
        name: str | None = None,
    ) -> Node[Any]:
        """Add a job. It is blocked until the jobs of `after` have ended: nodes of this flow, their names, or ids of
        jobs that are there. `node.result` in its arguments implies `after`.

        `if_failed`: what happens if one of them failed, expired or was cancelled: "cancel" this job, "run" it anyway,
        "hold" it until a person decides. `when`: a condition on how they end, instead of if_failed:
        `pay.status = 'completed' && pay.result.amount > 100`. If it is false, the job is cancelled as not taken.
        `name`: in conditions, and on the page; the topic if it is not given.
        """
        self._check_open()
        node = self._place(job, name)
        try:
            self._link(node, after, if_failed, when)
        except BaseException:
            self._forget(node)
            raise
        return node

    def _check_open(self) -> None:
        if self._is_enqueued:
            raise WrongContext(f"the flow {self.name} was enqueued before: make a new one for each run")

    def _place(self, job: Draftable, name: str | None) -> Node[Any]:
        """Add a job that waits for no other job. `_link` adds its parents, which may be nodes that come later."""
        given = draft_of(len(self._added), job)
        draft = replace(given, payload=blanked(given.payload))
        check_topic(draft.topic)
        if len(self._added) >= MAX_JOBS:
            raise InvalidInput("jobs", "too_many", f"a flow has at most {MAX_JOBS:,} jobs")
        job_id = check_id(draft.options["id"]) if "id" in draft.options else self._parts.ids.one()
        if job_id in self._ids:
            raise InvalidInput("id", "taken", f"the flow has a job with the id {job_id} already: give this one another")
        node: Node[Any] = Node(self._title(draft.topic, name), job_id)
        self._names.add(node.name)
        self._ids[job_id] = node
        self._added[node.name] = _Added(node, draft, {}, {})
        return node

    def _link(self, child: Node[Any], after: Parents, if_failed: IfFailed, when: str | None) -> None:
        added = self._added[child.name]
        policy = check_if_failed(if_failed)
        blanks = outside_of(added.draft.payload)
        parents = {node.name: node for node in self._nodes(after, child)}
        for field, names in blanks.items():
            for one in sorted(names):
                if one not in self._added:
                    raise InvalidInput(f"payload.{field}", "unknown_parent", self._no_result(one, child))
                parents.setdefault(one, self._added[one].node)
        for field, name, origin in origins(added.draft.payload):
            if origin != self._added[name].node.id:
                problem = f"is the result of a node {name} of another flow"
                raise InvalidInput(field, "unknown_parent", problem)
        named: Collection[str] = ()
        if when is not None:
            if not parents:
                raise InvalidInput("when", "needs_after", "is about the jobs of `after`: give them")
            named = {node for node, *_ in parse_condition(when, parents).claims()} or list(parents)
        added.blanks = blanks
        added.parents = {
            one: _Parent(node, policy, when if when is not None and one in named else None)
            for one, node in parents.items()
        }

    def _forget(self, node: Node[Any]) -> None:
        """Remove a node that was refused."""
        del self._added[node.name]
        self._names.discard(node.name)
        del self._ids[node.id]

    def _title(self, topic: str, name: str | None) -> str:
        """Return the name of a new node, which no other node has."""
        if name is None:
            return node_name(topic, self._names, self._numbers)
        if check_node_name(name) in self._names:
            raise InvalidInput("name", "taken", f"the flow has a node {name} already: give this one another name")
        return name

    def job(self, job_id: str, *, name: str | None = None) -> Node[Any]:
        """Return a node for a job that is there already, to be used in `after` and in conditions. Its result can't be
        filled in."""
        wanted = check_id(job_id)
        if wanted not in self._outside:
            self._outside[wanted] = Node(self._title("job", name), wanted)
            self._names.add(self._outside[wanted].name)
        return self._outside[wanted]

    def wait(self, child: Node[Any] | str, parent: Node[Any] | str, *, if_failed: IfFailed = "cancel") -> None:
        """Let a job that was added wait for one more, with a policy of its own."""
        added = self._added.get(child.name if isinstance(child, Node) else child)
        if added is None or (isinstance(child, Node) and added.node is not child):
            problem = f"{child!r:.80} is no job of this flow; there are: {self._known()}"
            raise InvalidInput("child", "unknown_node", problem)
        self._check_open()
        policy = check_if_failed(if_failed)
        nodes = list(self._nodes(parent, added.node))  # all or none
        for node in nodes:
            if (old := added.parents.get(node.name)) is not None and old.condition is not None:
                problem = (
                    f"{added.node.name} waits for {node.name} by a condition, which says what happens if it failed"
                )
                raise InvalidInput("parent", "both_given", problem)
        added.parents |= {node.name: _Parent(node, policy, None) for node in nodes}

    def _known(self, without: Node[Any] | None = None) -> str:
        names = [name for name, one in self._added.items() if one.node is not without]
        return ", ".join(sorted(names)[:20]) or "none"

    def _no_result(self, name: str, child: Node[Any]) -> str:
        if any(node.name == name for node in self._outside.values()):
            return f"the result of {name} can't be filled in, because it was enqueued before: read it in the handler"
        return f"{name} is no node of this flow; there are: {self._known(child)}"

    def _named(self, name: str) -> Node[Any]:
        if name in self._added:
            return self._added[name].node
        return next(node for node in self._outside.values() if node.name == name)

    def _nodes(self, after: Parents, child: Node[Any]) -> Iterator[Node[Any]]:
        several: object = after
        if isinstance(several, Sequence | Set) and not isinstance(several, str):
            given: tuple[object, ...] = tuple(several)
        else:
            given = () if several is None else (several,)
        for one in given:
            if isinstance(one, Node):
                known = self._added.get(one.name)
                if (known is None or known.node is not one) and self._outside.get(one.id) is not one:
                    raise InvalidInput("after", "unknown_parent", f"{one!r} is a node of another flow")
                yield one
            elif isinstance(one, str) and one in self._names:
                yield self._named(one)
            elif isinstance(one, str) and one in self._ids:
                yield self._ids[one]
            elif isinstance(one, str):
                try:
                    yield self.job(one)
                except InvalidInput:
                    known_names = self._known(child)
                    problem = f"{one!r:.80} is neither a node of this flow nor the id of a job; nodes: {known_names}"
                    raise InvalidInput("after", "unknown_parent", problem) from None
            else:
                problem = f"must be nodes of this flow, or ids of jobs, not {type(one).__name__}"
                raise InvalidInput("after", "not_a_node", problem)

    async def _enqueue(self, conn: Any, notify: bool | None, by: str | None) -> EnqueuedFlow:
        self._check_open()
        if not self._added:
            raise InvalidInput("jobs", "empty", "the flow has no jobs: add some first")
        if cycle := find_cycle({name: list(one.parents) for name, one in self._added.items()}):
            field = f"jobs[{list(self._added).index(cycle[0])}].after"
            raise InvalidInput(field, "cycle", f"these jobs wait for each other: {' → '.join(cycle)}")
        used = {edge.node.id for one in self._added.values() for edge in one.parents.values()}
        outside = [job_id for job_id in self._outside if job_id in used]
        if outside and conn is not None:
            raise InvalidInput(
                "after", "outside", "with conn=, a flow can't wait for jobs that are not part of it: they may be locked"
            )
        parts = self._parts
        if parts.definitions.is_stale:
            if conn is not None:
                await parts.stores.home()
            await parts.definitions.refresh()
        drafts = [one.draft for one in self._added.values()]
        with Around(parts.middleware(), drafts) as around:
            jobs, edges = self._built()
            named = any("id" in draft.options for draft in drafts)
            flow = NewFlow(
                id=self.id,
                name=self.name,
                by=parts.actor(by),
                jobs=jobs,
                nodes=list(self._added),
                edges=edges,
                outside=outside,
            )
            answers = await parts.inserts.write_flow(flow, named, conn, notify)
            around.done(answers)
        self._is_enqueued = True
        return EnqueuedFlow(self.id, self.name, dict(zip(self._added, answers, strict=True)))

    def _built(self) -> tuple[list[NewJob], list[Edge]]:
        watched = {name for one in self._added.values() for name in one.parents}
        jobs: dict[str, NewJob] = {}
        for n, (name, one) in enumerate(self._added.items()):
            try:
                rule = self._parts.definitions.rule(check_topic(one.draft.topic), one.draft.options.get("version"))
                job = rule.job(one.draft, one.node.id, one.blanks)
                refuse_windows(job, "a flow")
                if job.if_live is not None and one.parents:
                    problem = f'"{job.if_live}" does not go with `after`: the job would wait in two lines'
                    raise InvalidInput("if_live", "in_flow", problem)
            except InvalidInput as error:
                raise InvalidInput(f"jobs[{n}].{error.field}", error.code, f"{error.problem} (node {name})") from None
            waits = bool(one.parents)
            line = job.line if job.line is not None else own_line(job.id) if waits or name in watched else None
            jobs[name] = replace(job, flow_id=self.id, waits=waits, line=line)
        edges = [
            Edge(
                child=one.node.id,
                parent=parent.node.id,
                flow_id=self.id,
                name=title,
                line=(jobs[title].line if title in jobs else None) or own_line(parent.node.id),
                if_failed=parent.if_failed,
                condition=parent.condition,
                fills=parent.condition is not None or any(title in names for names in one.blanks.values()),
            )
            for one in self._added.values()
            for title, parent in one.parents.items()
        ]
        if len(edges) > MAX_EDGES:
            raise InvalidInput(
                "after", "too_many", f"a flow has at most {MAX_EDGES:,} edges, this one has {len(edges):,}"
            )
        return list(jobs.values()), edges


class Flow(FlowDraft):
    """Made by `jobs.flow(name)`.

    flow = jobs.flow("order")
    paid = flow.add(charge_card.draft(order.id))
    flow.add(send.draft(order.id, charge=paid.result), if_failed="hold")
    await flow.enqueue(conn=session)
    """

    async def enqueue(self, *, conn: Any = None, notify: bool | None = None, by: str | None = None) -> EnqueuedFlow:
        """Add all jobs in one transaction: all or none. With `conn=`, in that of the caller."""
        return await self._enqueue(conn, notify, by)


F = TypeVar("F", bound=FlowDraft)


def chained(flow: F, jobs: Sequence[Draftable | str], if_failed: IfFailed) -> F:
    """Put jobs behind each other. Ids of jobs that are there come first."""
    last: list[Node[Any]] = []
    for n, job in enumerate(jobs):
        if isinstance(job, str):
            if any(one.name in flow._added for one in last):
                problem = "is the id of a job, and comes after a new one: a job that is there can't wait for a new one"
                raise InvalidInput(f"jobs[{n}]", "id_behind", problem)
            last.append(flow.job(job))
        else:
            last = [flow.add(job, after=last, if_failed=if_failed)]
    return flow


class FlowParts(Struct):
    """The parts of Jobs that a flow needs."""

    stores: Stores
    definitions: Definitions
    ids: IdMaker
    inserts: Inserts
    actor: Actor
    middleware: Callable[[], Sequence[EnqueueMiddleware]]
    announce: Announce


# ── Look and steer ──


class FlowView(Struct, frozen=True, kw_only=True):
    """A flow. `status`: running, held (nothing runs, and a person must decide), completed, failed or cancelled.
    `progress`: percent of its jobs that have ended. `jobs`: all that it has had; those that were pruned count as ended.
    `counts`: jobs that are there, by status. `held`: jobs that wait for a person."""

    id: str
    name: str
    by: str | None
    status: str
    progress: float
    jobs: int
    counts: Mapping[str, int]
    held: int
    created: datetime


class FlowPage(Struct, frozen=True):
    """`next`: the cursor of the next page; None: this is the last one."""

    items: list[FlowView]
    next: str | None


class FlowNode(Struct, frozen=True, kw_only=True):
    """A job of a flow. `job` None: it was deleted or pruned; `status` is then the last that its children know of.
    `held`: it waits for a person. `taken` False: no true condition has led to it. `outside`: it is not part of the
    flow, which only waits for it. `call`: it was started by a job of the flow, by its n-th ctx.gather."""

    id: str
    name: str
    status: str | None
    job: State | None
    held: bool = False
    taken: bool = True
    outside: bool = False
    call: int | None = None


class FlowEdge(Struct, frozen=True, kw_only=True):
    """`child` waits for `parent`. `ended`: how the parent has ended; None: it has not. `call`: the child has started
    the parent by its n-th ctx.gather."""

    parent: str
    child: str
    if_failed: str
    when: str | None
    ended: str | None
    call: int | None = None


class Graph(Struct, frozen=True):
    """Parents come before their children."""

    flow: FlowView
    nodes: list[FlowNode]
    edges: list[FlowEdge]


class Flows:
    """`jobs.flows`."""

    def __init__(self, stores: Stores, actor: Actor, announce: Announce) -> None:
        self._stores = stores
        self._actor = actor
        self._announce = announce

    async def get(self, flow_id: str) -> FlowView:
        """Return a flow. Raise FlowNotFound if there is none, or all its jobs are pruned."""
        wanted = check_id(flow_id, "flow_id")
        found = await (await self._store()).flows([wanted])
        if not found:
            raise FlowNotFound(wanted)
        return _view(found[0])

    async def graph(self, flow_id: str) -> Graph:
        """Return a flow with its jobs and what they wait for."""
        store = await self._store()
        found = await self._graph(store, flow_id)
        ids = list(dict.fromkeys([*(job_id for job_id, _ in found.nodes), *_ends(found.edges), *found.jobs]))
        states = await store.read(ids, State)
        return _drawn(found, states)

    async def cancel(
        self, flow_id: str, *, node: str | None = None, reason: str | None = None, by: str | None = None
    ) -> int:
        """Cancel all live jobs of a flow; `node`: only this one and those that wait for it. Return how many."""
        store = await self._store()
        ids = _of_branch(await self._graph(store, flow_id), node, LIVE)
        order = Cancel(by=self._actor(by), reason=check_reason(reason))
        return sum(one.done for one in await store.move(ids, order)) if ids else 0

    async def requeue(
        self, flow_id: str, *, node: str | None = None, reason: str | None = None, by: str | None = None
    ) -> int:
        """Run the failed and expired jobs of a flow again; `node`: only this one and those that wait for it. Jobs that
        were cancelled because of them are blocked again. If there is none, cancelled jobs are requeued. Return how
        many were requeued. Raise KeyTaken if another live job has the key of one of all these: then none is."""
        handle = await self._stores.handle()
        found = await self._graph(handle.store, flow_id)
        ids = _of_branch(found, node, frozenset({Status.FAILED, Status.EXPIRED}))
        if not ids:  # the cancelled jobs, but for those to which no condition has led
            untaken = {edge.child for edge in found.edges if edge.verdict == "untaken"}
            ids = [one for one in _of_branch(found, node, {Status.CANCELLED}) if one not in untaken]
        if not ids:
            return 0
        behind = frozenset(one for one in followers(found.edges, ids) if found.jobs.get(one) is Status.CANCELLED)
        order = RequeueFlow(by=self._actor(by), reason=check_reason(reason), followers=behind)
        changes = await handle.store.move([*ids, *sorted(behind)], order)
        for one in changes:
            if one.holder is not None:
                key = (await handle.store.read([one.id], State))[one.id].key
                raise KeyTaken(one.id, key or "", one.holder, found.flow.id)
        self._announce(handle)
        return sum(one.done for one in changes)

    async def delete(self, flow_id: str, *, reason: str | None = None, by: str | None = None) -> int:
        """Delete a flow and its jobs. Raise FlowRefused if one of them is live: cancel the flow first. Return how many
        jobs were deleted."""
        store = await self._store()
        found = await self._graph(store, flow_id)
        if live := [job_id for job_id, status in found.jobs.items() if status in LIVE]:
            why = f"{len(live)} of its jobs are live: cancel it first"
            raise FlowRefused(found.flow.id, "delete", flow_status(found.flow), why)
        order = Delete(by=self._actor(by), reason=check_reason(reason))
        done = sum(one.done for one in await store.move(list(found.jobs), order)) if found.jobs else 0
        await store.drop_flow(found.flow.id)
        return done

    async def release(self, job_id: str, *, reason: str | None = None, by: str | None = None) -> None:
        """Let a job run that is held because a parent failed (if_failed="hold"). Raise InvalidState if nothing holds
        it. To give up instead, cancel the job."""
        wanted = check_id(job_id)
        handle = await self._stores.handle()
        order = ReleaseHold(by=self._actor(by), reason=check_reason(reason))
        [change] = await handle.store.move([wanted], order)
        if change.status is None:
            raise JobNotFound(wanted)
        if not change.done:
            allowed = ("held",) if change.status in MOVES["release_hold"].sources else ("blocked",)
            raise InvalidState(wanted, "release", change.status, allowed)
        self._announce(handle)

    async def _graph(self, store: Store, flow_id: str) -> FlowGraph:
        wanted = check_id(flow_id, "flow_id")
        found = await store.flow_graph(wanted)
        if found is None:
            raise FlowNotFound(wanted)
        return found

    async def _store(self) -> Store:
        return (await self._stores.handle()).store

    # Last, because from here on `list` is a verb.
    async def list(self, *, name: str | None = None, limit: int = 20, cursor: str | None = None) -> FlowPage:
        """Return flows, newest first; `name`: only those of this name. `page.next` is the cursor of the next page."""
        most = check_whole(limit, "limit", 1, 200)
        before = None if cursor is None else _place(cursor)
        only = None if name is None else check_flow_name(name)
        found = await (await self._store()).flows(None, before=before, limit=most + 1, name=only)
        following = _cursor(found[most - 1].id) if len(found) > most else None
        return FlowPage([_view(one) for one in found[:most]], following)


def _cursor(flow_id: str) -> str:
    return base64.urlsafe_b64encode(flow_id.encode()).decode()


def _place(cursor: str) -> str:
    try:
        return check_id(base64.urlsafe_b64decode(cursor.encode()).decode())
    except (ValueError, InvalidInput):
        raise InvalidInput("cursor", "bad_cursor", "is not one that a list of flows has given") from None


def _view(flow: FlowRow) -> FlowView:
    there = sum(flow.counts.values())
    live = sum(flow.counts.get(status, 0) for status in LIVE)
    total = max(flow.jobs, there)
    return FlowView(
        id=flow.id,
        name=flow.name,
        by=flow.by,
        status=flow_status(flow),
        progress=100.0 * (total - live) / total if total else 100.0,
        jobs=total,
        counts=flow.counts,
        held=flow.held,
        created=flow.created,
    )


def _ends(edges: Sequence[Edge]) -> Iterator[str]:
    for edge in edges:
        yield edge.parent
        yield edge.child


def _of_branch(found: FlowGraph, node: str | None, statuses: Collection[Status]) -> list[str]:
    """Return the ids of the flow's jobs with these statuses; `node`: only of this one and those that wait for it."""
    branch = _descendants(found, node) if node is not None else found.jobs
    return sorted(one for one, status in found.jobs.items() if status in statuses and one in branch)


def _descendants(found: FlowGraph, node: str) -> set[str]:
    """Return the ids of a node and of all jobs that wait for it. `node`: a name or an id."""
    named = {name: job_id for job_id, name in found.nodes}
    start = named.get(node) or (node if node in found.jobs else None)
    if start is None:
        known = f"there are: {', '.join(sorted(named)[:20])}" if named else "its jobs have ids only"
        problem = f"the flow has no node {node!r:.80}; {known}. Or give the id of one of its jobs"
        raise InvalidInput("node", "unknown_node", problem)
    children: dict[str, list[str]] = defaultdict(list)
    for edge in found.edges:
        children[edge.parent].append(edge.child)
    branch, todo = {start}, [start]
    while todo:
        for child in children[todo.pop()]:
            if child not in branch:
                branch.add(child)
                todo.append(child)
    return branch


def _drawn(found: FlowGraph, states: Mapping[str, State]) -> Graph:
    names = dict(found.nodes)
    ended = {edge.parent: edge.ended for edge in found.edges if edge.ended not in (None, DELETED)}
    topics = {edge.parent: edge.name for edge in found.edges}
    calls = {edge.parent: edge.call for edge in found.edges if edge.call is not None}
    held = {edge.child for edge in found.edges if edge.verdict == "hold"}
    untaken = {edge.child for edge in found.edges if edge.verdict == "untaken"}
    nodes = []
    for job_id in _in_order(found):
        job = states.get(job_id)
        status = job.status.value if job is not None else ended.get(job_id)
        nodes.append(
            FlowNode(
                id=job_id,
                name=names.get(job_id) or topics.get(job_id) or (job.topic if job is not None else job_id),
                status=status,
                job=job,
                held=job_id in held and status == Status.BLOCKED,
                taken=job_id not in untaken or status != Status.CANCELLED,
                outside=job_id not in names and (job is None or job.flow_id != found.flow.id),
                call=calls.get(job_id),
            )
        )
    edges = [
        FlowEdge(
            parent=edge.parent,
            child=edge.child,
            if_failed=edge.if_failed,
            when=edge.condition,
            ended=edge.ended,
            call=edge.call,
        )
        for edge in found.edges
    ]
    return Graph(_view(found.flow), nodes, edges)


def _in_order(found: FlowGraph) -> list[str]:
    """Return the ids of all jobs, parents before their children. What ctx.gather has started stands behind its
    starter."""
    ids = list(dict.fromkeys([*(job_id for job_id, _ in found.nodes), *sorted(found.jobs), *_ends(found.edges)]))
    before: dict[str, set[str]] = {job_id: set() for job_id in ids}
    behind: dict[str, list[str]] = defaultdict(list)
    for edge in found.edges:
        first, second = (edge.parent, edge.child) if edge.call is None else (edge.child, edge.parent)
        before[second].add(first)
        behind[first].append(second)
    order: list[str] = []
    ready = [job_id for job_id in reversed(ids) if not before[job_id]]
    while ready:
        job_id = ready.pop()
        order.append(job_id)
        for other in reversed(behind[job_id]):
            before[other].discard(job_id)
            if not before[other]:
                ready.append(other)
    return [*order, *(job_id for job_id in ids if before[job_id])]
