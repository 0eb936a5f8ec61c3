"""Jobs: the object that an application holds. It composes the groups and has the verbs of a job."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, overload

from msgspec import UNSET, UnsetType

from rowlock import config
from rowlock.client.audit import Audit, check_by, check_reason
from rowlock.client.bulk import BulkActions
from rowlock.client.callbacks import Callbacks
from rowlock.client.children import Children
from rowlock.client.connections import Handle, Stores
from rowlock.client.context_services import ContextHost
from rowlock.client.definitions import Definitions
from rowlock.client.enqueue import Draftable, Inserts, build, checked, draft, draft_of, safe_insert
from rowlock.client.failures import FailureGroups
from rowlock.client.flows import EnqueuedFlow, Flow, FlowParts, Flows, chained
from rowlock.client.limits import Limits, hindrances
from rowlock.client.middleware import Around
from rowlock.client.random_bytes import noise
from rowlock.client.registry import Registry
from rowlock.client.schedules import Schedules
from rowlock.client.signals import Key, check_data, check_signal_id, current_wait, demand_stored, open_wait
from rowlock.client.step_list import StepStatus, listed
from rowlock.client.templates import Templates
from rowlock.client.tokens import Tokens
from rowlock.client.topics import Topics
from rowlock.client.verify import Report, verify
from rowlock.client.why import Why, explain, has_live_worker, lane_of, name_untaken
from rowlock.client.workers import Workers
from rowlock.core import codec
from rowlock.core.flows import IfFailed, check_blanks
from rowlock.core.ids import IdMaker, check_id
from rowlock.core.job import (
    MAX_TEXT,
    Event,
    Job,
    Lane,
    Log,
    Status,
    check_delay,
    check_flag,
    check_priority,
    check_tags,
    check_time,
    check_topic,
    check_version,
)
from rowlock.core.lifecycle import MOVES
from rowlock.core.moves import Cancel, Delete, Edit, Requeue, SignalSent, Update, Wake
from rowlock.core.moves import Signal as SignalOrder
from rowlock.core.templates import StepInfo
from rowlock.errors import (
    CancelUnsupported,
    ChildrenWait,
    InvalidInput,
    InvalidState,
    JobCancelled,
    JobFailed,
    JobNotFound,
    KeyTaken,
    OutcomeUnknown,
    StoreUnavailable,
    TemplateDisabled,
    TemplateUnreadable,
    VersionPassed,
    WrongContext,
)
from rowlock.signals import Signal, own_job, signal_of
from rowlock.stores import check_listener, open_store, reading
from rowlock.stores.after_fork import keep_for_ever
from rowlock.stores.base import Changed, Enqueued, InLine, Store
from rowlock.stores.flows import StoredEdges
from rowlock.stores.queries import Filter, Page, Stats
from rowlock.stores.series import Series, window
from rowlock.sync import SyncJobs
from rowlock.tasks import EnqueueOptions, Task

if TYPE_CHECKING:  # a process that only enqueues loads neither the worker nor the server
    from rowlock.http.app import Api
    from rowlock.runtime.heartbeat import Replace
    from rowlock.runtime.running_board import RunningBoard
    from rowlock.runtime.worker import Worker
    from rowlock.wasm.options import WasmOptions

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")
Answers = list[Enqueued]  # `list` is a verb below
Steps = list[StepStatus]
_VERSION = {"version"}  # the only option of a plain call of a task
_WASM = {"signature", "memory", "fuel", "grant", "env", "enqueue"}  # options of `jobs.wasm` alone

_FIRST_LOOK, _LAST_LOOK = 0.02, 0.5  # seconds between looks at a job in `wait`

_all: weakref.WeakSet[Jobs] = weakref.WeakSet()


def _module_of_caller() -> str:
    """Return the name of the module that makes these Jobs. Schedules that its code declares belong to it."""
    frame = sys._getframe(2)
    name = frame.f_globals.get("__name__", "__main__")
    return Path(frame.f_code.co_filename).stem if name == "__main__" else str(name)


def all_jobs() -> list[Jobs]:
    """Return every Jobs object of this process. A child process looks for its handler in them."""
    return list(_all)


class Jobs(Registry):
    """A queue in a database.

        jobs = Jobs("sqlite:///jobs.db")        # or postgresql://…; or ROWLOCK_URL, or rowlock.toml

    It connects when it is first used. Verbs of a job stand here, all others in groups: `jobs.audit`, `jobs.bulk`,
    `jobs.failures`, `jobs.flows`, `jobs.limits`, `jobs.schedules`, `jobs.templates`, `jobs.tokens`, `jobs.topics`,
    `jobs.workers`. `jobs.sync` has the same for code without an event loop.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        listen_url: str | None = None,
        migrate: bool | None = None,
        by: str | None = None,
        public_url: str | None = None,
        config_file: str | os.PathLike[str] | None = None,
    ) -> None:
        given = {"url": url, "listen_url": listen_url, "migrate": migrate, "by": by, "public_url": public_url}
        self.settings = config.load(given, config=config_file)
        first = open_store(self.settings.url, self.settings.listen_url)  # raises here if the URL is wrong
        super().__init__(in_memory=first.traits.is_private)
        sqlite = self.settings.url.startswith("sqlite:")
        self._stores = Stores(
            lambda: open_store(self.settings.url, self.settings.listen_url),
            first,
            migrate=sqlite if self.settings.migrate is None else self.settings.migrate,
            insert=safe_insert,
        )
        self.definitions = Definitions(self._store, self._versions)
        self._ids = IdMaker(time.time_ns, noise)
        self._inserts = Inserts(self._stores, self._announce)
        self._callbacks = Callbacks(self._store, self.settings.public_url)
        self._worker: Worker | None = None
        self.audit = Audit(self._store)
        self.bulk = BulkActions(self._store, self._ids, self._actor)
        self.failures = FailureGroups(self._store)
        self._flow_parts = FlowParts(
            self._stores,
            self.definitions,
            self._ids,
            self._inserts,
            self._actor,
            lambda: self._middleware,
            self._announce,
        )
        self.flows = Flows(self._stores, self._actor, self._announce)
        self.limits = Limits(self._stores, self._actor, self.definitions, self._announce)
        self.schedules = Schedules(
            self._stores,
            self._actor,
            self._versions,
            self.definitions,
            self._ids,
            self._inserts,
            self._announce,
            _module_of_caller(),
        )
        self.templates = Templates(self._stores, self._actor, self._versions, self.definitions)
        self.tokens = Tokens(self._store, self._actor)
        self.topics = Topics(self._stores, self._actor, self._announce)
        self.workers = Workers(self._store)
        self.sync = SyncJobs(self)
        _all.add(self)

    def __repr__(self) -> str:
        return f"<Jobs {self._stores.first!r}>"

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect now, and raise what is wrong. Without it, the first use connects."""
        self._stores.reopen()
        await self._stores.handle()

    async def close(self) -> None:
        """Stop the worker, and close all connections. Safe to call twice."""
        await self.stop()
        await self._stores.close()

    def asgi(self, **settings: Any) -> Api:
        """Return the HTTP API as an ASGI application, to run or to mount at any prefix. `settings` are those of
        rowlock.http.settings.ApiSettings: `authenticate`, `origins`, `read_only`, `jwt_secret`, …

            app.mount("/queue", jobs.asgi(authenticate=current_user))
        """
        from rowlock.http.app import Api
        from rowlock.http.settings import ApiSettings

        return Api(self, ApiSettings(**settings))

    @overload
    def wasm(
        self,
        topic: str,
        file: str | os.PathLike[str],
        *,
        signature: Callable[P, R],
        **options: Unpack[WasmOptions],
    ) -> Task[P, R]: ...

    @overload
    def wasm(self, topic: str, file: str | os.PathLike[str], **options: Unpack[WasmOptions]) -> Task[..., Any]: ...

    def wasm(self, topic: str, file: str | os.PathLike[str], **options: Any) -> Task[..., Any]:
        """Register a WASM module as a handler. It runs in a sandbox: the payload is its stdin, the result its stdout.

            thumbnail = jobs.wasm("thumbnail", "thumbnail.wasm", memory=64 << 20, fuel=2_000_000_000, timeout=30)
            await thumbnail.enqueue(image="…", width=64)

        It may use `memory` bytes and `fuel`, about one per instruction. It has no files, no network and no environment,
        and a real clock and random bytes only if granted: `grant=["clock", "random"]`, `env={"LEVEL": "3"}`,
        `enqueue=["topics", "that", "it", "may", "enqueue"]`. `signature`: a function that declares the types of the
        payload and the result; it is never called. All other options are those of `@jobs.task`. See docs/wasm.md.
        """
        from rowlock.wasm.handler import make_handler

        own = {name: options.pop(name) for name in _WASM & options.keys()}
        if unfit := sorted(options.keys() & {"external", "steps"}):
            raise InvalidInput(unfit[0], "not_here", "is for handlers that are functions: a module has no such option")
        return self.register(topic, make_handler(topic, file, sys._getframe(1), **own), **options)

    def context_host(self, *, in_child: bool = False) -> ContextHost:
        """Return what a Context needs from these Jobs. `in_child`: this is a child process of a worker. The worker has
        opened the database before, so a file that is missing now is lost and must not be created again."""
        if in_child:
            self._stores.creates = False
        return ContextHost(self, self._stores, self._callbacks, Children(self._flow_parts, self.lanes))

    # ── Work ──

    async def start(
        self,
        *,
        concurrency: int | None = None,
        topics: Sequence[str] | None = None,
        lease: float | None = None,
        poll: float | None = None,
        grace: float | None = None,
        listen: bool = True,
    ) -> None:
        """Run jobs in this event loop, `concurrency` at once, until `stop`. Return when the worker is connected.

        `topics`: only these; default: every topic that has a handler. `lease`: seconds after which other workers may
        take the jobs of a silent worker. `poll`: seconds between looks for work. `grace`: seconds that `stop` waits for
        running jobs. To run a worker as a program of its own, use `rowlock worker module:jobs`.

        Raises if the database can't be reached (StoreUnavailable, StoreFull, …); call `start` again later. Once it is
        started, the worker waits through outages by itself.
        """
        self._forget_dead_worker()
        if self._worker is not None:
            raise WrongContext("these Jobs have a running worker already: call stop() first")
        given: dict[str, Any] = {"concurrency": concurrency, "lease": lease, "poll": poll, "grace": grace}
        worker = self.make_worker(topics=topics, listen=listen, **{k: v for k, v in given.items() if v is not None})
        await self._run(worker)

    async def stop(self, *, grace: float | None = None) -> None:
        """Claim no more jobs, let running jobs finish within the grace, and give back the rest at no cost of a retry.
        Safe to call twice."""
        self._forget_dead_worker()
        worker = self._worker
        if worker is None:
            return
        if worker.loop is not asyncio.get_running_loop():
            raise WrongContext("call stop() in the event loop in which start() was called")
        await worker.stop(grace)
        if self._worker is worker:
            self._worker = None

    async def _run(self, worker: Worker) -> None:
        """Start the worker, and remember it: an enqueue in this process then wakes it directly."""
        self._worker = worker
        try:
            await self._check_listener()
            await worker.start()
        except BaseException:
            self._worker = None
            raise

    async def _check_listener(self) -> None:
        """Raise if `listen_url` leads to another database."""
        if self.settings.listen_url is not None:
            await check_listener(await self._store())

    def _forget_dead_worker(self) -> None:
        """Drop a worker whose event loop has ended, or that belongs to the parent process before fork()."""
        if self._worker is not None and (self._worker.loop.is_closed() or self._worker.pid != os.getpid()):
            keep_for_ever(self._worker)
            self._worker = None

    def make_worker(
        self,
        *,
        topics: Sequence[str] | None = None,
        app: str | None = None,
        board: RunningBoard | None = None,
        replace: Replace | None = None,
        **settings: Any,
    ) -> Worker:
        """Return a worker that is not started yet. `settings` are those of WorkerSettings."""
        from rowlock import __version__
        from rowlock.runtime.settings import ADOPTED, WorkerSettings
        from rowlock.runtime.worker import Worker

        own = {name: getattr(self.settings, name) for name in ("concurrency", "lease", "poll", "grace")}
        only = None if topics is None else tuple(check_topic(topic) for topic in topics)
        follows = ADOPTED - self.settings.given - settings.keys()
        return Worker(
            WorkerSettings(**{**own, **settings}, topics=only, follows=follows),
            self.lanes(),
            self.run_middleware,
            self.context_host(),
            self._stores,
            self.publish,
            self.schedules,
            version=__version__,
            app=app,
            board=board,
            replace=replace,
        )

    async def publish(self, *, by: str | None = None) -> None:
        """Store the definitions and the schedules of all tasks of this process. Workers call it when they start."""
        await self.templates.publish(by=by)
        await self.schedules.publish(by=by)

    # ── Enqueue ──

    async def enqueue(
        self, topic: str, payload: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued:
        """Add a job. Return when it is committed; with `conn=`, when it is part of that transaction."""
        if self.definitions.is_stale:
            await self._look_at_templates(options.get("conn"))
        if not self._middleware and (not options or options.keys() <= _VERSION):  # the usual case
            known = topic if type(topic) is str else check_topic(topic)
            job = self.definitions.rule(known, options.get("version")).plain(self._ids.one(), payload)
            if job.key is None:
                return await self._inserts.alone(job)
        one = draft(topic, payload, options)
        with Around(self._middleware, [one]) as around:
            job = checked(one, self._ids.one(), self.definitions)
            answers = await self._inserts.write([job], "id" in one.options, options.get("conn"), options.get("notify"))
            around.done(answers)
        return answers[0]

    async def enqueue_at(
        self, topic: str, payload: Mapping[str, Any] | None, at: datetime, **options: Unpack[EnqueueOptions]
    ) -> Enqueued:
        """Add a job that runs at the time `at`, not earlier."""
        options["run_at"] = at
        return await self.enqueue(topic, payload, **options)

    async def enqueue_many(self, jobs: Sequence[Draftable], *, conn: Any = None, notify: bool | None = None) -> Answers:
        """Add many jobs in one transaction: all or none. Each is a Draft (`task.draft(…)`), a (topic, payload) pair, or
        a mapping with topic, payload and options."""
        if self.definitions.is_stale:
            await self._look_at_templates(conn)
        if not self._middleware:  # only middleware needs drafts
            entries = [*jobs]
            built, named = build(entries, self._ids.many(len(entries)), self.definitions)
            return await self._inserts.write(built, named, conn, notify)
        drafts = [draft_of(n, job) for n, job in enumerate(jobs)]
        with Around(self._middleware, drafts) as around:
            built, named = build(drafts, self._ids.many(len(drafts)), self.definitions)
            answers = await self._inserts.write(built, named, conn, notify)
            around.done(answers)
        return answers

    def flow(self, name: str) -> Flow:
        """Begin a flow: jobs that wait for each other. `flow.add` adds jobs, `flow.enqueue` enqueues all of them."""
        return Flow(name, self._flow_parts)

    async def chain(
        self,
        *jobs: Draftable | str,
        name: str = "chain",
        if_failed: IfFailed = "cancel",
        conn: Any = None,
        notify: bool | None = None,
        by: str | None = None,
    ) -> EnqueuedFlow:
        """Enqueue jobs that run one after the other. The first ones may be ids of jobs that are there: the others wait
        for them.

            await jobs.chain(fetch.draft(1), convert.draft(2), publish.draft(3))
        """
        return await chained(self.flow(name), jobs, if_failed).enqueue(conn=conn, notify=notify, by=by)

    async def _look_at_templates(self, conn: Any) -> None:
        if conn is not None:
            await self._stores.home()  # it says what is wrong if the caller's transaction keeps us from connecting
        await self.definitions.refresh()

    def _registered(self) -> None:
        self.definitions.forget_rules()

    def _announce(self, handle: Handle, *, ring: bool = True) -> None:
        """Wake the worker of this process directly, and the others by the doorbell."""
        if self._worker is not None:
            self._worker.nudge()
        if ring:
            handle.bell.ring()

    # ── Look ──

    async def get(self, job_id: str) -> Job:
        """Return the job, live or archived. Raise JobNotFound if there is none, or if it was deleted or pruned."""
        wanted = check_id(job_id)
        found = await (await self._store()).read([wanted], Job)
        if wanted not in found:
            raise JobNotFound(wanted)
        return found[wanted]

    async def list(
        self, filter: Filter | None = None, *, limit: int = 20, offset: int = 0, cursor: str | None = None
    ) -> Page:
        """Return a page of jobs, newest first. `page.next` is the cursor of the next page."""
        if filter is not None and not isinstance(filter, Filter):
            raise InvalidInput("filter", "not_a_filter", f"must be a Filter(…), not {type(filter).__name__}")
        return await (await self._store()).list(filter or Filter(), limit=limit, offset=offset, cursor=cursor)

    async def stats(self, topic: str | None = None) -> Stats:
        """Return the number of jobs by status, in all and by topic; how many have ever ended; how long they took."""
        return await (await self._store()).stats(None if topic is None else check_topic(topic))

    async def series(
        self,
        topic: str | None = None,
        *,
        range: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        step: int | None = None,
    ) -> Series:
        """Return a time series, of one topic or of all: jobs enqueued, jobs ended by status, waiting and run times.

        `range`: 15m, 1h (default), 6h, 24h, 7d, 30d or 90d until now; or give `since` and `until`. `step`: seconds per
        point, a multiple of 60. Minutes are kept for 3 days, hours for 40, days for 400.
        """
        only = None if topic is None else check_topic(topic)
        store = await self._store()
        return await store.series(only, window(await store.now(), range, since, until, step))

    async def events(self, job_id: str) -> Sequence[Event]:
        """Return the job's history, oldest first."""
        job = await self.get(job_id)
        return await reading.events(await self._store(), job.id)

    async def logs(self, job_id: str) -> Log:
        """Return the lines that the job's handlers wrote with `ctx.log`, oldest first."""
        job = await self.get(job_id)
        return (await (await self._store()).read([job.id], Log)).get(job.id, Log([]))

    async def steps(self, job_id: str) -> Steps:
        """Return the steps of a job: those that its runs have called, in their order, then those that its template
        declares and that were not called yet."""
        job = await self.get(job_id)
        store = await self._store()
        stored = await reading.steps(store, job.id) if job.step is not None else []
        await self.definitions.refresh()
        return listed(job, stored, self._declared_steps(job))

    def _declared_steps(self, job: Job) -> tuple[StepInfo, ...]:
        published = self.definitions.published(job.topic, job.template_version)
        if published is not None:
            return published.steps
        task = self.lanes().get(Lane(job.topic, job.template_version))
        return () if task is None else task.template.steps

    async def why(self, job_id: str) -> Why:
        """Return why the job is not running; or which worker runs it, or how it ended."""
        job = await self.get(job_id)
        store = await self._store()
        pauses = {pause.topic: pause for pause in await store.paused()}
        now, workers, lane = await store.now(), await store.workers(), lane_of(job)
        ready, place, wait, edges = 0, None, None, None
        limited: Sequence[tuple[str, str]] = ()
        if job.status is Status.PENDING:
            limited = await hindrances(store, job)
            [ready] = [0] if has_live_worker(lane, now, workers) else await store.count_ready([lane])
        elif job.status is Status.BLOCKED:
            edges = (await store.read([job.id], StoredEdges)).get(job.id)
            if edges is None:
                place = (await store.read([job.id], InLine)).get(job.id)
            elif held := [edge.parent for edge in edges.items if edge.verdict == "hold"]:
                edges = StoredEdges(name_untaken(edges.items, await store.read(held, StoredEdges)))
        elif job.status is Status.WAITING:
            edges = None if job.flow_id is None else (await store.read([job.id], StoredEdges)).get(job.id)
            wait = current_wait(job, await reading.steps(store, job.id))
        await self.definitions.refresh()
        return explain(
            job,
            now,
            pauses.get(job.topic),
            workers,
            ready=ready,
            place=place,
            wait=wait,
            edges=() if edges is None else edges.items,
            is_external=self._is_external(job),
            limited=limited,
        )

    def _is_external(self, job: Job) -> bool:
        """True if only remote workers run its topic."""
        published = self.definitions.published(job.topic, job.template_version)
        if published is not None:
            return published.external
        task = self.lanes().get(Lane(job.topic, job.template_version))
        return task is not None and task.is_external

    async def verify(self, *, limit: int = 10_000, seconds: float = 30.0) -> Report:
        """Check the newest `limit` live jobs and as many archived ones for contradictions. It only reads. Empty
        `findings` mean that it found nothing wrong."""
        return await verify(await self._store(), limit=limit, seconds=seconds)

    async def wait(self, job_id: str, *, timeout: float | None = None) -> Job:
        """Return the job once it has ended: completed, failed, expired or cancelled. Raise TimeoutError after `timeout`
        seconds."""
        job = await self.get(job_id)  # before the timeout starts: the job may have ended already
        async with asyncio.timeout(timeout):
            pause = _FIRST_LOOK
            while job.is_live:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _LAST_LOOK)
                job = await self.get(job_id)
        return job

    @overload
    async def result(self, made: Enqueued[R], *, timeout: float | None = None) -> R: ...

    @overload
    async def result(self, made: str, *, timeout: float | None = None) -> Any: ...

    async def result(self, made: Enqueued[Any] | str, *, timeout: float | None = None) -> Any:
        """Wait until the job has completed, and return its result. `made`: what enqueue returned, or a job's id.

        If a task of the job's topic is registered here, the result has the type of its return annotation. Else it is
        plain JSON. Raise JobFailed if the job failed or expired, JobCancelled if it was cancelled, WrongResult if the
        result doesn't fit the annotation, TimeoutError after `timeout` seconds. The job goes on after a TimeoutError.
        """
        job = await self.wait(made if isinstance(made, str) else made.id, timeout=timeout)
        match job.status:
            case Status.COMPLETED:
                task = self.lanes().get(Lane(job.topic, job.template_version))
                return job.result if task is None else task.arguments.returns.convert(job)
            case Status.CANCELLED:
                raise JobCancelled(job)
            case _:
                raise JobFailed(job)

    # ── Change: the audit keeps who did it (`by`) and why (`reason`) ──

    async def cancel(self, job_id: str, *, reason: str | None = None, by: str | None = None) -> Job:
        """Cancel a job: at once if it is not running, else its worker is asked to stop it. Raise InvalidState if the
        job has ended."""
        wanted = check_id(job_id)
        store = await self._store()
        [change] = await store.move([wanted], Cancel(by=self._actor(by), reason=check_reason(reason)))
        if not change.done and change.status in MOVES["cancel"].sources:
            raise CancelUnsupported(wanted, change.status)
        if change.status is not Status.CANCEL_REQUESTED:  # a cancel was requested before
            _demand("cancel", change)
        return await self.get(wanted)

    @overload
    async def signal(
        self,
        target: str | Key,
        signal: Signal[D],
        data: D,
        *,
        id: str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> Job: ...

    @overload
    async def signal(
        self,
        target: str | Key,
        signal: Signal[None] | str,
        data: Any = None,
        *,
        id: str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> Job: ...

    async def signal(
        self,
        target: str | Key,
        signal: Signal[Any] | str,
        data: Any = None,
        *,
        id: str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> Job:
        """Tell a job something that its handler waits for, or will wait for. `target`: the job's id, or
        `Key(topic, key)`. `id`: a signal with this id counts once per job.

            await jobs.signal(job_id, decision, Decision(ok=True))
            await jobs.signal(Key("order", "order-7"), "paid", {"amount": 12})

        A job that waits for the signal goes on at once. Else the signal is kept until the handler asks for it. Raise
        InvalidInput if the data doesn't fit the signal's type, or what the job waits for; InvalidState if the job has
        ended; SignalRefused if the id has come before, or the job has too many signals that it has not read. After
        OutcomeUnknown, only a signal with an `id` may be sent again: then SignalRefused means that it was stored.
        """
        wanted = signal_of(signal)
        text = wanted.encode(data)
        sent = SignalSent(wanted.name, text, check_signal_id(id))
        order = SignalOrder(by=self._actor(by), reason=check_reason(reason), sent=sent)
        handle = await self._stores.handle()
        job_id = await target.find(handle.store) if isinstance(target, Key) else check_id(target, "target")
        if own_job.get() == job_id:
            raise WrongContext(f"job {job_id} can't signal itself: pass the value on in the handler")
        check_data(codec.decode(text), open_wait(await reading.steps(handle.store, job_id), wanted.name))
        [change] = await handle.store.move([job_id], order)
        demand_stored(change, order)
        self._announce(handle)
        try:
            return await self.get(job_id)
        except StoreUnavailable as error:
            raise OutcomeUnknown(f"the signal is stored, but the job could not be read: {error}") from error

    async def wake(self, job_id: str, *, reason: str | None = None, by: str | None = None) -> Job:
        """End a sleep, or the time of a wait, now. A wait for a signal ends as after its timeout: with its default, or
        with WaitTimeout. Raise InvalidState if the job doesn't wait."""
        wanted = check_id(job_id)
        handle = await self._stores.handle()
        [change] = await handle.store.move([wanted], Wake(by=self._actor(by), reason=check_reason(reason)))
        _demand("wake", change)
        self._announce(handle)
        return await self.get(wanted)

    async def requeue(
        self,
        job_id: str,
        *,
        priority: int | str | UnsetType = UNSET,
        run_at: datetime | UnsetType = UNSET,
        delay: float | timedelta | UnsetType = UNSET,
        payload: Mapping[str, Any] | UnsetType = UNSET,
        tags: Sequence[str] | UnsetType = UNSET,
        version: int | None = None,
        from_step: str | None = None,
        keep_steps: bool = True,
        reason: str | None = None,
        by: str | None = None,
    ) -> Job:
        """Run a failed, expired or cancelled job again, with its retries reset and with the given changes.

        Steps that have succeeded keep their results, unless the payload changes. `from_step`: this step and all that
        were called after it run again: "charge", or "charge#2" for the second call. `keep_steps` False: all steps run
        again.

        Raise KeyTaken if another live job has its key, VersionPassed if the job has run again since `version`.
        """
        wanted = check_id(job_id)
        edit = await self._edit(wanted, priority, run_at, delay, payload, tags)
        handle = await self._stores.handle()
        order = Requeue(
            by=self._actor(by),
            reason=check_reason(reason),
            edit=edit,
            version=None if version is None else check_version(version),
            from_step=None if from_step is None else codec.check_text(from_step, "from_step", max_chars=MAX_TEXT),
            keep_steps=check_flag(keep_steps, "keep_steps"),
        )
        if from_step is not None and not keep_steps:
            raise InvalidInput("from_step", "both_given", "give from_step, or keep_steps=False for all steps, not both")
        if from_step is not None and payload is not UNSET:
            raise InvalidInput(
                "from_step", "both_given", "give from_step or payload: another payload drops the results of all steps"
            )
        [change] = await handle.store.move([wanted], order)
        if change.holder is not None:
            raise KeyTaken(wanted, (await self.get(wanted)).key or "", change.holder)
        if change.steps is not None:
            known = f"there are: {', '.join(change.steps)}" if change.steps else "the job has no stored steps"
            raise InvalidInput("from_step", "unknown_step", f"{from_step!r:.80} is no stored step of the job; {known}")
        if version is not None and not change.done and change.status in MOVES["requeue"].sources:
            raise VersionPassed(wanted, "requeue", version)
        _demand("requeue", change)
        self._announce(handle)
        return await self.get(wanted)

    async def update(
        self,
        job_id: str,
        *,
        priority: int | str | UnsetType = UNSET,
        run_at: datetime | UnsetType = UNSET,
        delay: float | timedelta | UnsetType = UNSET,
        payload: Mapping[str, Any] | UnsetType = UNSET,
        tags: Sequence[str] | UnsetType = UNSET,
        reason: str | None = None,
        by: str | None = None,
    ) -> Job:
        """Change the given fields of a pending job."""
        wanted = check_id(job_id)
        edit = await self._edit(wanted, priority, run_at, delay, payload, tags)
        if edit == Edit():
            raise InvalidInput("update", "nothing_given", "give priority, run_at, delay, payload or tags")
        handle = await self._stores.handle()
        [change] = await handle.store.move([wanted], Update(by=self._actor(by), reason=check_reason(reason), edit=edit))
        _demand("update", change)
        self._announce(handle)
        return await self.get(wanted)

    async def _edit(
        self,
        job_id: str,
        priority: int | str | UnsetType,
        run_at: datetime | UnsetType,
        delay: float | timedelta | UnsetType,
        payload: Mapping[str, Any] | UnsetType,
        tags: Sequence[str] | UnsetType,
    ) -> Edit:
        if payload is None:
            raise InvalidInput("payload", "not_an_object", "must be a JSON object (a dict), not None")
        if run_at is not UNSET and delay is not UNSET:
            raise InvalidInput("delay", "both_given", "give run_at or delay, not both")
        share: str | UnsetType | None = UNSET
        if payload is not UNSET:
            job = await self.get(job_id)
            await self._check_payload(job, payload)
            share = self.definitions.share(job, payload)
        return Edit(
            priority=UNSET if priority is UNSET else check_priority(priority),
            run_at=UNSET if run_at is UNSET else check_time(run_at, "run_at"),
            delay=UNSET if delay is UNSET else check_delay(delay, "delay"),
            payload=UNSET if payload is UNSET else codec.encode_payload(payload),
            tags=UNSET if tags is UNSET else check_tags(tags),
            share=share,
        )

    async def _check_payload(self, job: Job, payload: Mapping[str, Any]) -> None:
        """Raise if a new payload doesn't fit the version that the job has, or uses a result that can't be filled in. A
        version that is gone, or disabled, has nothing to say: the handler checks the payload when it starts."""
        blanks: Collection[str] = ()
        if job.flow_id is not None:
            found = (await (await self._store()).read([job.id], StoredEdges)).get(job.id)
            blanks = check_blanks(payload, () if found is None else found.items)
        await self.definitions.refresh()
        with suppress(TemplateDisabled, TemplateUnreadable):
            if self.definitions.knows(job.topic, job.template_version):
                self.definitions.rule(job.topic, job.template_version).check(payload, blanks)

    async def delete(self, job_id: str, *, reason: str | None = None, by: str | None = None) -> None:
        """Delete a job that is not running. Its audit entries stay."""
        wanted = check_id(job_id)
        store = await self._store()
        [change] = await store.move([wanted], Delete(by=self._actor(by), reason=check_reason(reason)))
        _demand("delete", change)

    async def _store(self) -> Store:
        return (await self._stores.handle()).store

    def _actor(self, by: str | None) -> str:
        return self.settings.by if by is None else check_by(by)


def _demand(verb: str, change: Changed) -> None:
    """Raise if the change was refused."""
    if change.status is None:
        raise JobNotFound(change.id)
    if change.why == "awaited":
        raise ChildrenWait(change.id, change.status)
    if not change.done:
        raise InvalidState(change.id, verb, change.status, tuple(sorted(MOVES[verb].sources)))
