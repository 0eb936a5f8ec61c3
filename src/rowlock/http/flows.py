"""Routes of flows: jobs that wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, cast

from msgspec import Struct

from rowlock.client.flows import FlowDraft, FlowNode, FlowView, Graph, Node
from rowlock.core.flows import MAX_JOBS, IfFailed, derived_id
from rowlock.core.ids import check_id
from rowlock.core.job import MAX_TEXT, Status
from rowlock.core.rules import MAX_CHARS, parse_condition
from rowlock.errors import FlowKeyTaken, InvalidInput, KeyTaken, OnceTaken, UnknownParent
from rowlock.http.call import Call
from rowlock.http.enqueue import (
    EnqueueBody,
    EnqueuedBody,
    check_new,
    enqueued_body,
    had,
    hidden_jobs,
    in_own_scope,
    refuse_hidden,
)
from rowlock.http.jobs import DeleteQuery
from rowlock.http.problems import Problem
from rowlock.http.redacting import check_results, job_body
from rowlock.http.routes import ENQUEUE, MANAGE_JOBS, Routes, scope
from rowlock.http.shapes import Asked, JobBody, JobId, PageQuery, Reason, ReasonBody, Text, Time, copied, schema
from rowlock.stores.queries import State, check_limit
from rowlock.tasks import Draft, JobOptions

ROUTES = Routes()

READ = scope("read", or_scope="flows")
STEER = scope("flows")

_AT_ONCE = 100  # jobs of a new flow that are checked before other requests have their turn

NodeName = Annotated[str, schema(pattern="^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
FlowStatus = Annotated[str, schema(enum=["running", "held", "completed", "failed", "cancelled"])]
JobStatus = Annotated[str, schema(enum=list(Status))]


# ── What is asked, what is answered ──


class FlowJob(EnqueueBody, frozen=True, kw_only=True):
    """A job of a new flow, with all options of a job. `name`: in `after`, in conditions and on the page; default: from
    its topic. `after`: the jobs that it waits for: names of jobs of this flow, or ids of other jobs. `if_failed`: what
    happens if one of them failed, expired or was cancelled. `when`: a condition on how they end, instead of if_failed:
    `pay.result.amount > 100`. If it is false, the job is cancelled as not taken. `{"$result": "pay.amount"}` in the
    payload stands for a part of the result of the job `pay`, and implies `after`."""

    name: NodeName | None = None
    after: Annotated[tuple[Text, ...], schema(maxItems=MAX_JOBS)] = ()
    if_failed: IfFailed = "cancel"
    when: Annotated[str, schema(minLength=1, maxLength=MAX_CHARS)] | None = None


class FlowCreateBody(Asked, frozen=True, kw_only=True):
    """A new flow. Its jobs may stand in any order. `id`: your own id of the flow; if it is sent twice, there is one
    flow."""

    name: Annotated[str, schema(minLength=1, maxLength=MAX_TEXT, pattern=r"\S")]
    jobs: Annotated[tuple[FlowJob, ...], schema(minItems=1, maxItems=MAX_JOBS)]
    id: JobId | None = None


class FlowCreated(Struct, kw_only=True):
    """`jobs`: by their names in the flow."""

    id: str
    name: str
    jobs: dict[str, EnqueuedBody]


class FlowsQuery(PageQuery, frozen=True, kw_only=True):
    name: Text | None = None


class BranchBody(Asked, frozen=True, kw_only=True):
    """`node`: the name or the id of a job: only this job and those that wait for it."""

    node: Text | None = None
    reason: Reason | None = None


class FlowBody(Struct, kw_only=True):
    """A flow. `status`: held means that nothing runs, and a person must decide. `progress`: percent of its jobs that
    have ended. `jobs`: how many it has had; those that were pruned count as ended. `counts`: jobs that are there, by
    status. `held`: jobs that wait for a person."""

    id: str
    name: str
    by: str | None
    status: FlowStatus
    progress: float
    jobs: int
    counts: dict[str, int]
    held: int
    created: Time


class FlowsAnswer(Struct, kw_only=True):
    """Newest first."""

    items: list[FlowBody]
    next: str | None


class NodeBody(Struct, kw_only=True):
    """A job of a flow. If it was deleted or pruned, `topic`, `progress` and the times are null, and `status` is the
    last that its children know of. `held`: it waits for a person. `taken` false: no true condition has led to it.
    `outside`: it is not part of the flow, which only waits for it. `call`: a job of the flow has started it, by its
    n-th ctx.gather."""

    id: str
    name: str
    topic: str | None
    status: JobStatus | None
    progress: float | None
    held: bool
    taken: bool
    outside: bool
    call: int | None
    created: Time | None
    started_at: Time | None
    finished_at: Time | None


class EdgeBody(Struct, kw_only=True):
    """The job `child` waits for the job `parent`. `ended`: how the parent has ended; null: it has not. `call`: the
    child has started the parent, by its n-th ctx.gather."""

    parent: str
    child: str
    if_failed: str
    when: str | None
    ended: str | None
    call: int | None


class GraphAnswer(Struct, kw_only=True):
    """A flow, its jobs and what they wait for. Parents come before their children."""

    flow: FlowBody
    nodes: list[NodeBody]
    edges: list[EdgeBody]


class FlowChanged(Struct, kw_only=True):
    """`changed`: how many jobs."""

    changed: int


# ── Make ──


@ROUTES.add("POST", "/api/flows", ENQUEUE, "Add jobs that wait for each other: all or none", status=201, errors=(409,))
async def create_flow(call: Call, asked: FlowCreateBody) -> FlowCreated:
    if len(asked.jobs) > MAX_JOBS:
        raise InvalidInput(
            "jobs", "too_many", f"a flow has at most {MAX_JOBS:,} jobs, this one has {len(asked.jobs):,}"
        )
    await call.api.jobs.definitions.refresh()
    jobs = [in_own_scope(call, one) for one in asked.jobs]
    for n, one in enumerate(jobs):
        with _at(n):
            check_new(call, one)
        if n % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
    if asked.id is not None and (there := await _there(call, asked)) is not None:
        return there
    await refuse_hidden(call, jobs)
    flow = call.api.jobs.flow(asked.name)
    put_together(flow, jobs, asked.id)
    await _check_parents(call, flow, jobs)
    try:
        told = await flow.enqueue(by=call.by)
    except OnceTaken as error:
        raise await had(call, error) from None
    except FlowKeyTaken as error:
        if error.holder is not None and await hidden_jobs(call, [error.holder]):
            text = "a live job has the key of a job of the flow"
            raise Problem("flow_key_taken", text, field=error.field) from None
        raise
    topics = dict(zip(told.jobs, (one.topic for one in jobs), strict=True))
    answers = {name: enqueued_body(topics[name], one) for name, one in told.jobs.items()}
    return FlowCreated(id=told.id, name=told.name, jobs=answers)


def put_together(flow: FlowDraft, jobs: Sequence[FlowJob], flow_id: str | None = None) -> None:
    """Add these jobs to a flow. Each may wait for those that stand behind it. With the same `flow_id`, the jobs get
    the same ids again."""
    if flow_id is not None:
        flow.id = check_id(flow_id)
    nodes: list[Node[Any]] = []
    for n, one in enumerate(jobs):
        draft = Draft(one.topic, one.payload, cast(JobOptions, one.options()))
        if flow_id is not None:
            draft.options.setdefault("id", derived_id(flow.id, "job", n))
        with _at(n):
            nodes.append(flow._place(draft, one.name))
    for n, (node, one) in enumerate(zip(nodes, jobs, strict=True)):
        with _at(n):
            flow._link(node, one.after, one.if_failed, one.when)


@contextmanager
def _at(n: int) -> Iterator[None]:
    """Let errors name the place of the job."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"jobs[{n}].{error.field}", error.code, error.problem) from None
    except Problem as problem:
        problem.field = f"jobs[{n}]" if problem.field is None else f"jobs[{n}].{problem.field}"
        raise


async def _check_parents(call: Call, flow: FlowDraft, jobs: Sequence[FlowJob]) -> None:
    """Refuse to wait for jobs that the caller may not see, and to use what is hidden from it."""
    hidden = await hidden_jobs(call, list(flow._outside))
    outside = {node.name for node in flow._outside.values()}
    for n, (one, added) in enumerate(zip(jobs, flow._added.values(), strict=True)):
        if unseen := hidden & {edge.node.id for edge in added.parents.values()}:
            raise UnknownParent(min(unseen), f"jobs[{n}].after")
        asked = [] if one.when is None else list(parse_condition(one.when, added.parents).claims())
        with _at(n):
            check_results(call, one.payload, asked, outside)


async def _there(call: Call, asked: FlowCreateBody) -> FlowCreated | None:
    """Return the flow that has this id already: the same request has come before."""
    store = await call.store()
    found = await store.flow_graph(check_id(asked.id))
    if found is None:
        return None
    names = dict(found.nodes)
    if await hidden_jobs(call, list(found.jobs)):
        raise Problem("key_taken", "a flow with this id is there already", field="id")
    if found.flow.name != asked.name or len(names) != len(asked.jobs):
        raise Problem("id_taken", "this id was used before, for another flow", field="id")
    jobs = await store.read(list(names), State)
    known = {name: jobs[job_id] for job_id, name in names.items() if job_id in jobs}
    told = {name: copied(EnqueuedBody, job, status=str(job.status), existing=True) for name, job in known.items()}
    return FlowCreated(id=found.flow.id, name=found.flow.name, jobs=told)


# ── Look and steer ──


@ROUTES.add("GET", "/api/flows", READ, "Flows, newest first")
async def list_flows(call: Call, asked: FlowsQuery) -> FlowsAnswer:
    cursor = await call.api.cursors.open(call, asked.cursor)
    page = await call.api.jobs.flows.list(name=asked.name, limit=check_limit(asked.limit), cursor=cursor)
    items, following = [_flow_body(one) for one in page.items], await call.api.cursors.seal(call, page.next)
    return FlowsAnswer(items=items, next=following)


@ROUTES.add("GET", "/api/flows/{id}", READ, "A flow, its jobs and what they wait for")
async def get_flow(call: Call) -> GraphAnswer:
    return graph_body(await call.api.jobs.flows.graph(call.parameters["id"]))


def graph_body(graph: Graph) -> GraphAnswer:
    return GraphAnswer(
        flow=_flow_body(graph.flow),
        nodes=[_node_body(one) for one in graph.nodes],
        edges=[copied(EdgeBody, one) for one in graph.edges],
    )


@ROUTES.add("POST", "/api/flows/{id}/cancel", STEER, "Cancel the live jobs of a flow, or of a branch")
async def cancel_flow(call: Call, asked: BranchBody) -> FlowChanged:
    flows, flow_id = call.api.jobs.flows, call.parameters["id"]
    return FlowChanged(changed=await flows.cancel(flow_id, node=asked.node, reason=asked.reason, by=call.by))


@ROUTES.add(
    "POST", "/api/flows/{id}/requeue", STEER,
    "Run the failed and expired jobs of a flow or a branch again; if there is none, the cancelled ones", errors=(409,),
)  # fmt: skip
async def requeue_flow(call: Call, asked: BranchBody) -> FlowChanged:
    flows, flow_id = call.api.jobs.flows, call.parameters["id"]
    try:
        return FlowChanged(changed=await flows.requeue(flow_id, node=asked.node, reason=asked.reason, by=call.by))
    except KeyTaken as error:
        if await hidden_jobs(call, [error.holder]):
            text = f"a live job has the key of job {error.job_id}. Nothing was requeued"
            raise Problem("key_taken", text, job=error.job_id) from None
        raise Problem("key_taken", str(error), job=error.job_id, holder=error.holder) from None


@ROUTES.add("DELETE", "/api/flows/{id}", STEER, "Delete a flow and its jobs, if none of them is live", errors=(409,))
async def delete_flow(call: Call, asked: DeleteQuery) -> FlowChanged:
    deleting = call.api.jobs.flows.delete(call.parameters["id"], reason=asked.reason, by=call.by)
    return FlowChanged(changed=await deleting)


@ROUTES.add("POST", "/api/jobs/{id}/release", MANAGE_JOBS, "Let a job run that a flow holds", errors=(409,))
async def release_job(call: Call, asked: ReasonBody) -> JobBody:
    job = await call.job("manage")
    await call.api.jobs.flows.release(job.id, reason=asked.reason, by=call.by)
    return job_body(call, await call.api.jobs.get(job.id))


def _flow_body(flow: FlowView) -> FlowBody:
    return copied(FlowBody, flow, counts=dict(flow.counts))


_OF_JOB = ("topic", "progress", "created", "started_at", "finished_at")


def _node_body(node: FlowNode) -> NodeBody:
    of_job = {name: None if node.job is None else getattr(node.job, name) for name in _OF_JOB}
    return copied(NodeBody, node, **of_job)
