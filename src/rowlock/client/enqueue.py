"""From what callers write to what stores insert, and the safe way to insert it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from rowlock.core import codec
from rowlock.core.ids import check_id
from rowlock.core.job import NewJob, check_topic, new_job, plain_job
from rowlock.errors import IdTaken, InvalidInput, OutcomeUnknown, StoreBusy, StoreError, StoreUnavailable
from rowlock.stores.base import Enqueued, Store
from rowlock.tasks import Draft, JobOptions, Task

Draftable = Draft | tuple[str, Mapping[str, Any]] | Mapping[str, Any]
Tasks = Mapping[str, Task[..., Any]]  # by topic

_PATIENCE = 15.0  # seconds to find out about an insert whose outcome is unknown: enough for a server to restart
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 2.0


def draft(topic: str, payload: Mapping[str, Any] | None, options: Mapping[str, Any]) -> Draft:
    codec.check_object(payload)
    own = {name: value for name, value in options.items() if name not in ("conn", "notify")}
    return Draft(topic, dict(payload or {}), cast(JobOptions, own))


def draft_of(n: int, job: object) -> Draft:
    """One entry of enqueue_many: a Draftable, if the caller kept to the types."""
    if isinstance(job, Draft):
        return job
    try:
        if isinstance(job, Mapping):
            options = dict(job)
            if "topic" not in options:
                raise InvalidInput("topic", "missing", "every job needs a topic")
            return draft(options.pop("topic"), options.pop("payload", None), options)
        if isinstance(job, tuple) and len(job) == 2:
            return draft(job[0], job[1], {})
    except InvalidInput as error:
        raise _at(n, error) from None
    raise InvalidInput(
        f"jobs[{n}]", "not_a_job", f"must be task.draft(…), (topic, payload) or a mapping, not {type(job).__name__}"
    )


def checked(draft: Draft, new_id: str, task: Task[..., Any] | None) -> NewJob:
    """Every check of one job, with the defaults of its task."""
    options: JobOptions = draft.options
    if not options:
        return plain(new_id, draft.topic, draft.payload, task)
    if task is not None:
        options = {**task.policy.defaults(), **options}
        task.arguments.values(draft.payload)
    rest = cast(dict[str, Any], {**options})
    own = rest.pop("id", None)
    if unknown := sorted(rest.keys() - JobOptions.__annotations__.keys()):
        raise InvalidInput(unknown[0], "unknown_option", f"is none of {', '.join(JobOptions.__annotations__)}")
    return new_job(new_id if own is None else check_id(own), draft.topic, draft.payload, **rest)


def plain(new_id: str, topic: str, payload: Mapping[str, Any] | None, task: Task[..., Any] | None) -> NewJob:
    """A job without options."""
    if task is None:
        return plain_job(new_id, topic, payload)
    codec.check_object(payload)
    return task.usual_job(new_id, payload)


def build(entries: Sequence[object], ids: Sequence[str], tasks: Tasks) -> tuple[list[NewJob], bool]:
    """The jobs of enqueue_many, and whether any has an id of the caller's own."""
    jobs: list[NewJob] = []
    named = False
    for n, entry in enumerate(entries):
        pair = type(entry) is tuple and len(entry) == 2 and type(entry[0]) is str
        draft = None if pair else draft_of(n, entry)  # a plain pair would have no use for it
        try:
            if draft is None:
                topic, payload = cast(tuple[str, Any], entry)
                jobs.append(plain(ids[n], topic, payload, tasks.get(topic)))
            else:
                jobs.append(checked(draft, ids[n], tasks.get(check_topic(draft.topic))))
                named = named or "id" in draft.options
        except InvalidInput as error:
            raise _at(n, error) from None
    return jobs, named


def _at(n: int, error: InvalidInput) -> InvalidInput:
    """It says where in the call."""
    return InvalidInput(f"jobs[{n}].{error.field}", error.code, error.problem)


class SafeInsert(Protocol):
    async def __call__(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued]: ...


def safe_insert(store: Store) -> SafeInsert:
    """The store's insert, repeated while its outcome is unknown. The ids stay the same, so it makes one job each."""

    async def insert(jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued]:
        try:
            return await store.insert(jobs, repeat=repeat)
        except OutcomeUnknown as unknown:
            try:
                async with asyncio.timeout(_PATIENCE):
                    answers = await _find_out(store, jobs)
            except (TimeoutError, StoreError):  # whatever a repeat is told, the first try may have gone through
                raise unknown from None
            return answers if repeat else [_ours(job, answer) for job, answer in zip(jobs, answers, strict=True)]

    return insert


async def _find_out(store: Store, jobs: Sequence[NewJob]) -> list[Enqueued]:
    pause = _FIRST_PAUSE
    while True:
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads callers, no secret
        try:
            return await store.insert(jobs, repeat=True)
        except (StoreUnavailable, StoreBusy):
            pause = min(2 * pause, _LAST_PAUSE)


def _ours(job: NewJob, answer: Enqueued) -> Enqueued:
    """With an id that we made, "existing" can only mean that our own first try had gone through."""
    if answer.id != job.id:
        return answer
    return Enqueued(answer.id, False, answer.status, answer.run_at, answer.created)


async def refuse_other_content(store: Store, jobs: Sequence[NewJob]) -> None:
    """A caller's own id may be enqueued again with the same content; with other content it is a mistake."""
    there = {job_id: (job.topic, job.payload) for job_id, job in (await store.get([job.id for job in jobs])).items()}
    for job in jobs:
        content = (job.topic, codec.decode(job.payload))
        topic, payload = there.setdefault(job.id, content)  # the same id twice in one call is no different
        if topic != job.topic:
            raise IdTaken(job.id, "topic")
        if payload != content[1]:
            raise IdTaken(job.id, "payload")
