"""The jobs that a handler starts by ctx.gather: their ids follow from the job and the call, so that a later run finds
them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace

from rowlock.client.definitions import refuse_windows
from rowlock.client.enqueue import Draftable, draft_of
from rowlock.client.flows import FlowParts
from rowlock.client.middleware import Around
from rowlock.core.flows import MAX_JOBS, Edge, NewChildren, derived_id
from rowlock.core.job import Job, Lane, NewJob, check_topic, own_line
from rowlock.errors import InvalidInput
from rowlock.stores.base import Hold
from rowlock.stores.flows import StoredEdges
from rowlock.tasks import Draft, JobOptions, ReturnType, Task


class Children:
    """`lanes`: the tasks of this process, which say what handlers return."""

    def __init__(self, parts: FlowParts, lanes: Callable[[], Mapping[Lane, Task[..., Any]]]) -> None:
        self._parts = parts
        self._lanes = lanes

    async def start(self, job: Job, call: int, drafts: Sequence[Draft]) -> Hold:
        """Enqueue the children of the n-th call, if the run holds its job."""
        parts = self._parts
        handle = await parts.stores.handle()
        await parts.definitions.refresh()
        flow_id = job.flow_id or job.id
        with Around(parts.middleware(), drafts) as around:
            jobs = [self._job(job, call, n, draft, flow_id) for n, draft in enumerate(drafts)]
            children = NewChildren(
                id=job.id,
                version=job.version,
                worker=job.locked_by,
                call=call,
                flow_id=flow_id,
                name=job.topic,
                by=f"{job.topic} {job.id}",
                jobs=jobs,
            )
            hold, answers = await handle.store.start_children(children)
            if hold is Hold.KEPT:
                around.done(answers)
        if hold is Hold.KEPT:
            parts.announce(handle)
        return hold

    def _job(self, parent: Job, call: int, n: int, draft: Draft, flow_id: str) -> NewJob:
        """Return the n-th child of a call. Its id also follows from the run that starts the call: a requeue that drops
        what was done starts other jobs. Later runs find these by their edges, which are written together with them."""
        try:
            if "id" in draft.options:
                raise InvalidInput("id", "not_here", "follows from the job and the call: leave it out")
            rule = self._parts.definitions.rule(check_topic(draft.topic), draft.options.get("version"))
            inherited = {name: getattr(parent, name) for name in ("scope", "scope_id", "trace")}
            known = {name: value for name, value in inherited.items() if value is not None}
            options = cast(JobOptions, {**known, **draft.options})
            job_id = derived_id(parent.id, "gather", call, n, parent.version, at=parent.claimed_at)
            job = rule.job(Draft(draft.topic, draft.payload, options), job_id)
            refuse_windows(job, "ctx.gather and ctx.run")
        except InvalidInput as error:
            raise InvalidInput(f"jobs[{n}].{error.field}", error.code, error.problem) from None
        return replace(job, flow_id=flow_id, line=job.line or own_line(job.id))

    async def ends(self, job_id: str, call: int) -> list[Edge]:
        """Return the edges of the children of the n-th call, in their order. Empty: they are not started yet."""
        store = (await self._parts.stores.handle()).store
        found = (await store.read([job_id], StoredEdges)).get(job_id)
        edges = [] if found is None else [edge for edge in found.items if edge.call == call]
        return sorted(edges, key=lambda edge: edge.place)

    def returns(self, draft: Draft) -> ReturnType:
        """Return the type of the child's result, if its task is registered here."""
        task = self._lanes().get(Lane(draft.topic, draft.options.get("version") or 0))
        return ReturnType(Any) if task is None else task.arguments.returns


def drafts_of(jobs: Sequence[Draftable]) -> list[Draft]:
    """Return the checked list of a call of ctx.gather."""
    if isinstance(jobs, str | bytes | Mapping | Draft) or not isinstance(jobs, Sequence):
        raise InvalidInput("jobs", "not_a_list", f"must be a list of task.draft(…), not {type(jobs).__name__}")
    if len(jobs) > MAX_JOBS:
        raise InvalidInput("jobs", "too_many", f"has {len(jobs):,} jobs, at most {MAX_JOBS:,} are allowed in a call")
    return [draft_of(n, job) for n, job in enumerate(jobs)]
