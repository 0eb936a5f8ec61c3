"""Make flows as a store gets them, from short descriptions; and helpers that ask a store about flows."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rowlock.core.flows import Edge, NewChildren, NewFlow, derived_id, outside_of
from rowlock.core.job import Job, NewJob, Status, new_job, own_line
from rowlock.core.lifecycle import Answer, Completed, Outcome
from rowlock.core.rules import parse_condition
from rowlock.core.templates import line_of
from rowlock.stores.base import Store
from rowlock.stores.flows import StoredEdges
from tests.stores import harness
from tests.stores.harness import claim_by, settlement

NOWHERE = "no-such-topic"


class Node(Struct, frozen=True):
    """A node of a flow. `after`: names of nodes, or ids of existing jobs. `options`: the options of its job."""

    after: Sequence[str] = ()
    if_failed: str = "cancel"
    when: str | None = None
    payload: Mapping[str, Any] | None = None
    if_live: str | None = None
    options: Mapping[str, Any] = {}


def node(*after: str, if_failed: str = "cancel", when: str | None = None, **options: Any) -> Node:
    payload, if_live = options.pop("payload", None), options.pop("if_live", None)
    return Node(after, if_failed, when, payload, if_live, options)


def make(nodes: Mapping[str, Node], *, name: str = "order", topic: str = "mail", flow_id: str | None = None) -> NewFlow:
    """Return the flow as `jobs.flow` makes it."""
    made = flow_id or harness.job().id
    known = {one: new.options.get("id") or harness.job().id for one, new in nodes.items()}
    jobs = {one: _job(known[one], new, topic) for one, new in nodes.items()}
    parents = {one: _parents(new) for one, new in nodes.items()}
    watched = {parent for names in parents.values() for parent in names}
    for one, job in jobs.items():
        waits = bool(parents[one])
        line = job.line or (own_line(job.id) if waits or one in watched else None)
        jobs[one] = replace(job, flow_id=made, waits=waits, line=line)
    edges = [
        _edge(made, jobs[one].id, nodes[one], parent, jobs.get(parent, parent))
        for one, names in parents.items()
        for parent in names
    ]
    outside = sorted({parent for names in parents.values() for parent in names} - set(nodes))
    return NewFlow(
        id=made, name=name, by="ann", jobs=list(jobs.values()), nodes=list(nodes), edges=edges, outside=outside
    )


def _job(job_id: str, node: Node, topic: str) -> NewJob:
    options = {name: value for name, value in node.options.items() if name != "id"}
    job = new_job(job_id, options.pop("topic", topic), node.payload, **options)
    if node.if_live is None:
        return job
    return replace(job, if_live=node.if_live, line=line_of(job.topic, job.scope, job.scope_id, job.key or ""))


def _parents(node: Node) -> list[str]:
    blanks = {name for names in outside_of(node.payload).values() for name in names}
    return list(dict.fromkeys([*node.after, *sorted(blanks)]))


def _edge(flow_id: str, child: str, node: Node, name: str, parent: NewJob | str) -> Edge:
    blanks = {one for names in outside_of(node.payload).values() for one in names}
    if node.when is not None:
        parse_condition(node.when, _parents(node))
    return Edge(
        child=child,
        parent=parent if isinstance(parent, str) else parent.id,
        flow_id=flow_id,
        name="job" if isinstance(parent, str) else name,
        line=own_line(parent) if isinstance(parent, str) else parent.line or own_line(parent.id),
        if_failed=node.if_failed,
        condition=node.when,
        fills=node.when is not None or name in blanks,
    )


def only_named(flow: NewFlow, named: dict[str, str]) -> NewFlow:
    """Return the flow with each condition on one edge only: the edge from the parent that the condition names."""
    ids = dict(zip(flow.nodes, (job.id for job in flow.jobs), strict=True))
    kept = {ids[child]: ids[parent] for child, parent in named.items()}
    edges = [
        one if one.condition is None or one.parent == kept[one.child] else replace(one, condition=None, fills=False)
        for one in flow.edges
    ]
    return replace(flow, edges=edges)


def children_of(run: Job, call: int, count: int, *, topic: str = "mail") -> NewChildren:
    """Return the children that ctx.gather starts."""
    flow_id = run.flow_id or derived_id(run.id, "flow")
    jobs = [new_job(derived_id(run.id, call, n), topic, {"n": n}) for n in range(count)]
    jobs = [replace(job, flow_id=flow_id, line=own_line(job.id)) for job in jobs]
    return NewChildren(
        id=run.id,
        version=run.version,
        worker=run.locked_by,
        call=call,
        flow_id=flow_id,
        name="gather",
        by="rowlock",
        jobs=jobs,
    )


# ── Asking ──


async def claim(store: Store, *topics: str, worker: str = "w", limit: int = 100) -> list[Job]:
    """Return all jobs that can be claimed. A claim that has unblocked jobs is `contended`: claim once more."""
    jobs: list[Job] = []
    while True:
        claimed = await store.claim(claim_by(worker, *topics or ("mail",), limit=limit))
        jobs += claimed.jobs
        if not claimed.contended:
            return jobs


async def tick(store: Store) -> None:
    """Make a claim that brings no job: each claim also handles the ends of jobs that the store has noted."""
    assert await claim(store, NOWHERE) == []


async def end(store: Store, job: Job, outcome: Outcome | None = None) -> None:
    [verdict] = (await store.settle([settlement(job, outcome or Completed(), ran=0.0)])).verdicts
    assert verdict.answer is Answer.APPLIED
    await tick(store)


async def edges(store: Store, job_id: str) -> dict[str, Edge]:
    """Return the edges that lead to a job, by the names of its parents."""
    found = await store.read([job_id], StoredEdges)
    return {edge.name: edge for edge in found[job_id].items} if job_id in found else {}


class Made:
    """A stored flow: its jobs by their names."""

    def __init__(self, store: Store, flow: NewFlow) -> None:
        self.store = store
        self.flow = flow
        self.id = flow.id
        self.ids = dict(zip(flow.nodes, (job.id for job in flow.jobs), strict=True))
        self.names = {job_id: name for name, job_id in self.ids.items()}

    def __getitem__(self, name: str) -> str:
        return self.ids[name]

    async def statuses(self) -> dict[str, str]:
        found = await self.store.read(list(self.ids.values()), Status)
        return {name: found[job_id].value if job_id in found else "gone" for name, job_id in self.ids.items()}

    async def job(self, name: str) -> Job:
        return (await self.store.read([self.ids[name]], Job))[self.ids[name]]

    async def runs(self, *names: str) -> list[Job]:
        """Claim everything, check that it is exactly these jobs, and return their runs in the order of the names."""
        found = {self.names.get(job.id, job.id): job for job in await claim(self.store)}
        assert sorted(found) == sorted(names)
        return [found[name] for name in names]

    async def run(self, name: str, outcome: Outcome | None = None) -> None:
        """Check that only this job can be claimed, and run it to its end."""
        [job] = await self.runs(name)
        await end(self.store, job, outcome)


async def made(store: Store, nodes: Mapping[str, Node], **options: Any) -> Made:
    flow = make(nodes, **options)
    answers = await store.insert_flow(flow)
    assert [one.id for one in answers] == [job.id for job in flow.jobs]
    return Made(store, flow)
