"""Turn the arguments of enqueue into checked jobs, and insert them safely."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar, cast

from rowlock.client.connections import Handle, Stores
from rowlock.client.definitions import Definitions
from rowlock.client.portal import running_loop
from rowlock.core import codec
from rowlock.core.debounce import DEBOUNCE
from rowlock.core.flows import NewFlow
from rowlock.core.job import Job, NewJob, check_topic
from rowlock.errors import (
    IdTaken,
    InvalidInput,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    WrongContext,
)
from rowlock.stores.base import Enqueued, Store
from rowlock.stores.callers import SyncCaller, caller_for
from rowlock.stores.callers.work import Insert, InsertFlow, Work
from rowlock.tasks import Draft, JobOptions

T = TypeVar("T")
Draftable = Draft | tuple[str, Mapping[str, Any]] | Mapping[str, Any]

_PATIENCE = 15.0  # seconds to repeat an insert whose outcome is unknown: enough for a server to restart
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 2.0


def draft(topic: str, payload: Mapping[str, Any] | None, options: Mapping[str, Any]) -> Draft:
    codec.check_object(payload)
    own = {name: value for name, value in options.items() if name not in ("conn", "notify")}
    return Draft(topic, dict(payload or {}), cast(JobOptions, own))


def draft_of(n: int, job: object) -> Draft:
    """Return the draft of one entry of enqueue_many, which should be a Draftable."""
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


def checked(draft: Draft, new_id: str, definitions: Definitions) -> NewJob:
    """Return the checked job, with the defaults of its topic."""
    return definitions.rule(check_topic(draft.topic), draft.options.get("version")).job(draft, new_id)


def build(entries: Sequence[object], ids: Sequence[str], definitions: Definitions) -> tuple[list[NewJob], bool]:
    """Return the jobs of enqueue_many, and whether the caller gave any of the ids."""
    jobs: list[NewJob] = []
    named = False
    for n, entry in enumerate(entries):
        pair = type(entry) is tuple and len(entry) == 2 and type(entry[0]) is str
        draft = None if pair else draft_of(n, entry)  # a plain pair needs none
        try:
            if draft is None:
                topic, payload = cast(tuple[str, Any], entry)
                jobs.append(definitions.rule(topic).plain(ids[n], payload))
            else:
                jobs.append(_drafted(draft, ids[n], definitions))
                named = named or "id" in draft.options
        except InvalidInput as error:
            raise _at(n, error) from None
    return jobs, named


def _drafted(draft: Draft, new_id: str, definitions: Definitions) -> NewJob:
    options = draft.options
    if len(options) == 1 and "version" in options:  # task.draft(…)
        return definitions.rule(check_topic(draft.topic), options["version"]).plain(new_id, draft.payload)
    return checked(draft, new_id, definitions)


def _at(n: int, error: InvalidInput) -> InvalidInput:
    """Return the error with its place in the call."""
    return InvalidInput(f"jobs[{n}].{error.field}", error.code, error.problem)


class Announce(Protocol):
    def __call__(self, handle: Handle, *, ring: bool = True) -> None: ...


class SafeInsert(Protocol):
    async def __call__(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued]: ...


def safe_insert(store: Store) -> SafeInsert:
    """Return the store's insert, which is repeated while its outcome is unknown. The ids stay the same, so each job is
    inserted once."""

    async def insert(jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued]:
        try:
            return await store.insert(jobs, repeat=repeat)
        except OutcomeUnknown as unknown:
            answers = await _insist(lambda: _find_out(store, jobs), unknown)
            return answers if repeat else [_ours(job, answer) for job, answer in zip(jobs, answers, strict=True)]

    return insert


async def insert_flow(store: Store, flow: NewFlow, *, named: bool) -> list[Enqueued]:
    """Insert a flow. It is repeated while its outcome is unknown. `named`: some ids were given by the caller."""
    try:
        return await store.insert_flow(flow, repeat=named)
    except OutcomeUnknown as unknown:
        answers = await _insist(lambda: store.insert_flow(flow, repeat=True), unknown)
        return answers if named else [_ours(job, one) for job, one in zip(flow.jobs, answers, strict=True)]


async def _find_out(store: Store, jobs: Sequence[NewJob]) -> list[Enqueued]:
    return await store.insert(jobs, repeat=True)


async def _insist(repeat: Callable[[], Awaitable[list[Enqueued]]], unknown: OutcomeUnknown) -> list[Enqueued]:
    """Repeat an insert until its outcome is known."""
    pause = _FIRST_PAUSE
    try:
        async with asyncio.timeout(_PATIENCE):
            while True:
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads callers, no secret
                try:
                    return await repeat()
                except (StoreUnavailable, StoreBusy):
                    pause = min(2 * pause, _LAST_PAUSE)
    except (TimeoutError, StoreError):  # whatever the repeat raises, the first try may have been committed
        raise unknown from None


def _ours(job: NewJob, answer: Enqueued) -> Enqueued:
    """Return the answer with existing=False if the id was made here: then the first try was committed."""
    if answer.id != job.id:
        return answer
    return Enqueued(answer.id, False, answer.status, answer.run_at, answer.created)


async def refuse_other_content(store: Store, jobs: Sequence[NewJob]) -> None:
    """Raise IdTaken if a job with the caller's id exists with other content. The same content may be enqueued again."""
    found = await store.read([job.id for job in jobs], Job)
    there = {job_id: (job.topic, job.payload) for job_id, job in found.items()}
    # A newer enqueue may have replaced the payload of such a job, but not its key.
    debounced = {job_id: _place(job) for job_id, job in found.items() if job.if_live == DEBOUNCE}
    for job in jobs:
        content = (job.topic, codec.decode(job.payload))
        topic, payload = there.setdefault(job.id, content)  # also for the same id twice in one call
        if topic != job.topic:
            raise IdTaken(job.id, "topic")
        if job.debounce is not None and job.id in debounced:
            if debounced[job.id] != _place(job):
                raise IdTaken(job.id, "key or scope")
        elif payload != content[1]:
            raise IdTaken(job.id, "payload")


def _place(job: Job | NewJob) -> tuple[str | None, str | None, str | None]:
    """Return what makes the key of a job unique in its topic."""
    return job.key, job.scope, job.scope_id


class Inserts:
    """Inserts checked jobs: by group commit, in one statement, or on the caller's connection. `announce` wakes the
    workers."""

    def __init__(self, stores: Stores, announce: Announce) -> None:
        self._stores = stores
        self._announce = announce

    async def write(self, jobs: Sequence[NewJob], named: bool, conn: Any, notify: bool | None) -> list[Enqueued]:
        """`named`: some ids were given by the caller."""
        if not jobs:
            return []
        if conn is not None:
            return await self._insert_on(conn, jobs, named, bool(notify))
        return await self._insert(jobs, named)

    async def alone(self, job: NewJob) -> Enqueued:
        """Insert a job by group commit."""
        handle = await self._stores.handle()
        answer = await handle.group.call(job)
        if not answer.existing:
            self._announce(handle, ring=handle.store.owes_ring)
        return answer

    async def _insert(self, jobs: Sequence[NewJob], named: bool) -> list[Enqueued]:
        handle = await self._stores.handle()
        # A keyed job may have to wait for another caller's transaction, and the whole group with it. SQLite has one
        # writer at a time: there, all of them wait anyway.
        if len(jobs) == 1 and not named and (jobs[0].key is None or handle.store.traits.any_loop):
            return [await self.alone(jobs[0])]
        if named:
            await refuse_other_content(handle.store, jobs)
        answers = await safe_insert(handle.store)(jobs, repeat=named)
        if any(not answer.existing for answer in answers):
            self._announce(handle, ring=handle.store.owes_ring)
        return answers

    async def _insert_on(self, conn: Any, jobs: Sequence[NewJob], named: bool, notify: bool) -> list[Enqueued]:
        return await self.carry(conn, Insert(jobs, named, notify))

    async def write_flow(self, flow: NewFlow, named: bool, conn: Any, notify: bool | None) -> list[Enqueued]:
        """See `write`."""
        if conn is not None:
            return await self.carry(conn, InsertFlow(flow, named, bool(notify)))
        handle = await self._stores.handle()
        if named:
            await refuse_other_content(handle.store, flow.jobs)
        answers = await insert_flow(handle.store, flow, named=named)
        self._announce(handle, ring=handle.store.owes_ring)
        return answers

    async def carry(self, conn: Any, work: Work[T]) -> T:
        """Do work in the transaction of the caller's connection, and wake workers when it commits."""
        caller = caller_for(conn, await self._stores.home())
        if isinstance(caller, SyncCaller):
            if running_loop() is not None and not caller.never_waits:
                raise WrongContext(
                    f"{caller.kind} would block the event loop. Use an async connection, or that of `async with "
                    "ctx.transaction()` in a handler; or do all of it in a thread, with jobs.sync.enqueue(…, conn=conn)"
                )
            answers = caller.carry(work)
        else:
            if running_loop() is None:
                raise WrongContext(f"{caller.kind} needs an event loop: use await jobs.enqueue(…, conn=conn)")
            answers = await caller.carry(work)
        caller.on_commit(self._ring)
        return answers

    def _ring(self) -> None:
        """Wake workers after a caller's commit. Called from the thread that committed."""

        async def ring() -> None:
            self._announce(await self._stores.handle())

        with suppress(StoreError):
            self._stores.portal.submit(ring)
