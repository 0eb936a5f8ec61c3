"""Jobs: what an application holds. It opens a store, knows the tasks, and enqueues in anyone's transaction."""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from msgspec import UNSET, UnsetType

from rowlock import config
from rowlock.client import bulk as bulks
from rowlock.client.bulk import BulkPage, ItemsPage
from rowlock.client.connections import Handle, Stores
from rowlock.client.enqueue import Draftable, build, checked, draft, draft_of, plain, refuse_other_content, safe_insert
from rowlock.client.host import ContextHost
from rowlock.client.middleware import Around
from rowlock.client.noise import noise
from rowlock.client.portal import running_loop
from rowlock.client.registry import Registry
from rowlock.client.verify import Report, verify
from rowlock.client.why import Why, explain
from rowlock.core import codec
from rowlock.core.ids import IdMaker, check_id
from rowlock.core.job import (
    MAX_TEXT,
    Event,
    Job,
    Log,
    NewJob,
    Status,
    check_delay,
    check_priority,
    check_tags,
    check_time,
    check_topic,
    check_version,
)
from rowlock.core.lifecycle import MOVES
from rowlock.errors import (
    InvalidInput,
    InvalidState,
    JobNotFound,
    KeyTaken,
    StoreBusy,
    StoreError,
    VersionPassed,
    WrongContext,
)
from rowlock.stores import check_listener, open_store
from rowlock.stores.base import Changed, Edit, Enqueued, Home, Pause, Store, WorkerInfo
from rowlock.stores.bulk import Bulk
from rowlock.stores.callers import SyncCaller, caller_for
from rowlock.stores.failures import FailureQuery, Failures
from rowlock.stores.inherited import keep_for_ever
from rowlock.stores.reading import Filter, Page, Stats, check_place
from rowlock.stores.records import Audited, AuditFilter
from rowlock.stores.series import Series, window
from rowlock.sync import SyncJobs
from rowlock.tasks import EnqueueOptions

if TYPE_CHECKING:  # who only enqueues doesn't load the worker, nor the server
    from rowlock.http.app import Api
    from rowlock.runtime.board import Board
    from rowlock.runtime.worker import Replace, Worker

Answers = list[Enqueued]  # `list` is a verb below

_PATIENCE_IN_TRANSACTION = 5.0  # seconds to open the database while a caller's transaction may lock it
_FIRST_LOOK, _LAST_LOOK = 0.02, 0.5  # seconds between looks at a job that is waited for

_all: weakref.WeakSet[Jobs] = weakref.WeakSet()


def all_jobs() -> list[Jobs]:
    """Every Jobs object of this process: where a child process looks for its handler."""
    return list(_all)


class Jobs(Registry):
    """A queue in a database.

        jobs = Jobs("sqlite:///jobs.db")        # or postgresql://…; or ROWLOCK_URL, or rowlock.toml

    Connects when it is first used. `jobs.sync` has the same verbs for code without an event loop.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        listen_url: str | None = None,
        migrate: bool | None = None,
        by: str | None = None,
        config_file: str | os.PathLike[str] | None = None,
    ) -> None:
        given = {"url": url, "listen_url": listen_url, "migrate": migrate, "by": by}
        self.settings = config.load(given, config=config_file)
        first = open_store(self.settings.url, self.settings.listen_url)  # a wrong URL is an error here, not later
        super().__init__(in_memory=first.is_private)
        sqlite = self.settings.url.startswith("sqlite:")
        self._stores = Stores(
            lambda: open_store(self.settings.url, self.settings.listen_url),
            first,
            migrate=sqlite if self.settings.migrate is None else self.settings.migrate,
            insert=safe_insert,
        )
        self._ids = IdMaker(time.time_ns, noise)
        self._own_home: Home | None = None
        self._worker: Worker | None = None
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
        """Connect now, and find out what is wrong. Without it, the first use connects."""
        self._stores.reopen()
        self._own_home = None
        await self._stores.handle()

    async def close(self) -> None:
        """Stop working, and let go of all connections. Safe to call twice."""
        await self.stop()
        await self._stores.close()

    def asgi(self, **settings: Any) -> Api:
        """The HTTP API as an ASGI application, to run or to mount at any prefix. `settings` are those of
        rowlock.http.settings.ApiSettings: `authenticate`, `origins`, `read_only`, `jwt_secret`, …

            app.mount("/queue", jobs.asgi(authenticate=whoever_is_logged_in))
        """
        from rowlock.http.app import Api
        from rowlock.http.settings import ApiSettings

        return Api(self, ApiSettings(**settings))

    def context_host(self, *, in_child: bool = False) -> ContextHost:
        """What a Context of one of these jobs needs of us. `in_child`: in a process of a worker, which has made the
        database: if it is missing now, it is lost, and must not be made anew."""
        if in_child:
            self._stores.creates = False
        return ContextHost(self, self._stores, self._home)

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
        """Run jobs in this event loop, `concurrency` at once, until `stop`. Returns when it is connected and working.

        `topics`: only these; else all that have a handler. `lease`: seconds after which others may take the jobs of a
        worker that went silent. `poll`: seconds between looks for work. `grace`: seconds that `stop` waits for running
        jobs. To run a worker as a program of its own, use `rowlock worker module:jobs`.

        A database that is not there yet is an error here (StoreUnavailable, StoreFull, …): call it again when you like.
        Later on, the worker waits for its database by itself.
        """
        self._forget_dead_worker()
        if self._worker is not None:
            raise WrongContext("these Jobs are working already: call stop() first")
        given: dict[str, Any] = {"concurrency": concurrency, "lease": lease, "poll": poll, "grace": grace}
        worker = self.make_worker(topics=topics, listen=listen, **{k: v for k, v in given.items() if v is not None})
        await self._run(worker)

    async def stop(self, *, grace: float | None = None) -> None:
        """Claim nothing more, let running jobs finish within the grace, give back the rest at no cost. Safe to call
        twice."""
        self._forget_dead_worker()
        worker = self._worker
        if worker is None:
            return
        if worker.loop is not asyncio.get_running_loop():
            raise WrongContext("stop() belongs to the event loop in which start() was called")
        await worker.stop(grace)
        if self._worker is worker:
            self._worker = None

    async def _run(self, worker: Worker) -> None:
        """It is the worker of these Jobs from now on: what is enqueued here wakes it without a detour."""
        self._worker = worker
        try:
            await self._check_listener()
            await worker.start()
        except BaseException:
            self._worker = None
            raise

    async def _check_listener(self) -> None:
        """Before anybody listens: a `listen_url` that leads to another database is a mistake that is told at once."""
        if self.settings.listen_url is not None:
            await check_listener(await self._store())

    def _forget_dead_worker(self) -> None:
        """Its event loop has ended, or it was the parent's before fork()."""
        if self._worker is not None and (self._worker.loop.is_closed() or self._worker.pid != os.getpid()):
            keep_for_ever(self._worker)
            self._worker = None

    def make_worker(
        self,
        *,
        topics: Sequence[str] | None = None,
        app: str | None = None,
        board: Board | None = None,
        replace: Replace | None = None,
        **settings: Any,
    ) -> Worker:
        """A worker that has not begun; `settings` are those of WorkerSettings."""
        from rowlock import __version__
        from rowlock.runtime.settings import ADOPTED, WorkerSettings
        from rowlock.runtime.worker import Worker

        own = {name: getattr(self.settings, name) for name in ("concurrency", "lease", "poll", "grace")}
        only = None if topics is None else tuple(check_topic(topic) for topic in topics)
        follows = ADOPTED - self.settings.given - settings.keys()
        return Worker(
            WorkerSettings(**{**own, **settings}, topics=only, follows=follows),
            self._tasks,
            self.run_middleware,
            self.context_host(),
            self._stores,
            version=__version__,
            app=app,
            board=board,
            replace=replace,
        )

    # ── Enqueue ──

    async def enqueue(
        self, topic: str, payload: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued:
        """Add a job. Returns when it is committed; with `conn=`, when it is part of that transaction."""
        if not options and not self._middleware:  # the usual case, in short
            return await self._insert_alone(plain(self._ids.one(), topic, payload, self._tasks.get(check_topic(topic))))
        one = draft(topic, payload, options)
        with Around(self._middleware, [one]) as around:
            job = checked(one, self._ids.one(), self._tasks.get(check_topic(one.topic)))
            answers = await self._write([job], "id" in one.options, options.get("conn"), options.get("notify"))
            around.done(answers)
        return answers[0]

    async def enqueue_at(
        self, topic: str, payload: Mapping[str, Any] | None, at: datetime, **options: Unpack[EnqueueOptions]
    ) -> Enqueued:
        """Add a job that is not run before `at`."""
        options["run_at"] = at
        return await self.enqueue(topic, payload, **options)

    async def enqueue_many(self, jobs: Sequence[Draftable], *, conn: Any = None, notify: bool | None = None) -> Answers:
        """Add many jobs in one transaction: all or none. Each is a Draft (`task.draft(…)`), a (topic, payload) pair, or
        a mapping with topic, payload and options."""
        if not self._middleware:  # nobody will change them: they need no drafts
            entries = [*jobs]
            built, named = build(entries, self._ids.many(len(entries)), self._tasks)
            return await self._write(built, named, conn, notify)
        drafts = [draft_of(n, job) for n, job in enumerate(jobs)]
        with Around(self._middleware, drafts) as around:
            built, named = build(drafts, self._ids.many(len(drafts)), self._tasks)
            answers = await self._write(built, named, conn, notify)
            around.done(answers)
        return answers

    async def _write(self, jobs: Sequence[NewJob], named: bool, conn: Any, notify: bool | None) -> Answers:
        """`named`: some ids are the caller's own."""
        if not jobs:
            return []
        if conn is not None:
            return await self._insert_on(conn, jobs, named, bool(notify))
        return await self._insert(jobs, named)

    async def _insert_alone(self, job: NewJob) -> Enqueued:
        """With whatever else is enqueued at this moment."""
        handle = await self._stores.handle()
        answer = await handle.group.insert(job)
        if not answer.existing:
            self._announce(handle, ring=handle.store.owes_ring)
        return answer

    async def _insert(self, jobs: Sequence[NewJob], named: bool) -> Answers:
        if len(jobs) == 1 and jobs[0].key is None and not named:
            return [await self._insert_alone(jobs[0])]
        handle = await self._stores.handle()
        if named:
            await refuse_other_content(handle.store, jobs)
        answers = await safe_insert(handle.store)(jobs, repeat=named)
        if any(not answer.existing for answer in answers):
            self._announce(handle, ring=handle.store.owes_ring)
        return answers

    def _announce(self, handle: Handle, *, ring: bool = True) -> None:
        """There is work: for our own worker without a detour, and for others."""
        if self._worker is not None:
            self._worker.nudge()
        if ring:
            handle.bell.ring()

    async def _insert_on(self, conn: Any, jobs: Sequence[NewJob], named: bool, notify: bool) -> Answers:
        caller = caller_for(conn, await self._home())
        if isinstance(caller, SyncCaller):
            if running_loop() is not None:
                raise WrongContext(f"{caller.kind} would block the event loop: use jobs.sync.enqueue(…, conn=conn)")
            answers = caller.insert(jobs, repeat=named, notify=notify)
        else:
            if running_loop() is None:
                raise WrongContext(f"{caller.kind} needs an event loop: use await jobs.enqueue(…, conn=conn)")
            answers = await caller.insert(jobs, repeat=named, notify=notify)
        caller.on_commit(self._ring)
        return answers

    async def _home(self) -> Home:
        """Which database is ours. Known after the first call, so that a sync caller need not wait for it."""
        if not self._knows_home:
            patience = _PATIENCE_IN_TRANSACTION if self._stores.first.any_loop else None  # SQLite locks the file
            try:
                async with asyncio.timeout(patience):
                    self._own_home = await (await self._store()).home()
            except TimeoutError:
                raise StoreBusy(
                    "the first use of these Jobs came inside a transaction, which keeps them from opening the "
                    "database: call jobs.open() or jobs.sync.open() once, when the program starts"
                ) from None
        assert self._own_home is not None  # noqa: S101 - narrows the type
        return self._own_home

    @property
    def _knows_home(self) -> bool:
        return self._own_home is not None and self._stores.first.is_home(self._own_home)

    def _ring(self) -> None:
        """After a caller's commit, from whatever thread made it."""

        async def ring() -> None:
            self._announce(await self._stores.handle())

        with suppress(StoreError):
            self._stores.portal.submit(ring)

    # ── Look ──

    async def get(self, job_id: str) -> Job:
        """The job, live or archived; JobNotFound if it never was, or is gone."""
        wanted = check_id(job_id)
        found = await (await self._store()).get([wanted])
        if wanted not in found:
            raise JobNotFound(wanted)
        return found[wanted]

    async def list(
        self, filter: Filter | None = None, *, limit: int = 20, offset: int = 0, cursor: str | None = None
    ) -> Page:
        """Jobs, newest first. `page.next` is the cursor of the next page."""
        if filter is not None and not isinstance(filter, Filter):
            raise InvalidInput("filter", "not_a_filter", f"must be a Filter(…), not {type(filter).__name__}")
        return await (await self._store()).list(filter or Filter(), limit=limit, offset=offset, cursor=cursor)

    async def stats(self, topic: str | None = None) -> Stats:
        """How many jobs are in which state, in all and by topic; how many ended how, ever; how long they took."""
        return await (await self._store()).stats(None if topic is None else check_topic(topic))

    async def failures(
        self,
        *,
        topics: Sequence[str] = (),
        since: datetime | None = None,
        fingerprint: str | None = None,
        trend: Literal["hour", "day"] = "hour",
        limit: int = 50,
        cursor: str | None = None,
    ) -> Failures:
        """Dead letters in groups that failed alike, the largest first. `fingerprint`: one group alone. `trend`: counts
        of the last 24 hours, or of the last 30 days. Filter(fingerprint=…) lists a group's jobs. `cursor`: the `next`
        of an earlier answer."""
        query = FailureQuery(
            topics=topics, since=since, fingerprint=fingerprint, trend=trend, limit=limit, cursor=cursor
        )
        return await (await self._store()).failures(query)

    async def series(
        self,
        topic: str | None = None,
        *,
        range: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        step: int | None = None,
    ) -> Series:
        """What happened when: how many jobs came, ended and how, how long they waited and ran, of a topic or in all.

        `range`: 15m, 1h (if nothing is said), 6h, 24h, 7d, 30d or 90d until now; or `since` and `until`. `step`:
        seconds per point, a multiple of 60. Minutes are kept for 3 days, hours for 40, days for 400.
        """
        only = None if topic is None else check_topic(topic)
        store = await self._store()
        return await store.series(only, window(await store.now(), range, since, until, step))

    async def events(self, job_id: str) -> Sequence[Event]:
        """The job's history, oldest first."""
        job = await self.get(job_id)
        return await (await self._store()).events(job.id)

    async def logs(self, job_id: str) -> Log:
        """What the job's handlers have said by `ctx.log`, oldest first."""
        job = await self.get(job_id)
        return await (await self._store()).logs(job.id)

    async def audit(
        self,
        *,
        job_id: str | None = None,
        by: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        bulk: str | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> Sequence[Audited]:
        """What operators did, newest first: those lines that meet all that is given. `before`: older than the line with
        this id. What a bulk action did to each of its jobs is told for that `bulk`, or that `job_id`, only."""
        wanted = AuditFilter(
            job_id=None if job_id is None else check_id(job_id),
            by=None if by is None else codec.check_text(by, "by", max_chars=MAX_TEXT),
            action=None if action is None else codec.check_text(action, "action", max_chars=MAX_TEXT),
            since=None if since is None else check_time(since, "since"),
            bulk=None if bulk is None else check_id(bulk),
        )
        store = await self._store()
        return await store.audit(wanted, before=before, limit=check_place(limit, 0, None).limit)

    async def workers(self) -> Sequence[WorkerInfo]:
        """The workers that have reported to this database, by name; also those that went without a word (`seen`)."""
        return await (await self._store()).workers()

    async def why(self, job_id: str) -> Why:
        """Why is it not running? Or why did it end, or who has it."""
        job = await self.get(job_id)
        store = await self._store()
        pauses = {pause.topic: pause for pause in await store.paused()}
        return explain(job, await store.now(), pauses.get(job.topic), await store.workers())

    async def verify(self, *, limit: int = 10_000, seconds: float = 30.0) -> Report:
        """Look for what must not be, among the newest `limit` jobs on their way and as many completed ones. Reads only.
        An empty `findings` means that nothing is wrong with what was looked at."""
        return await verify(await self._store(), limit=limit, seconds=seconds)

    async def wait(self, job_id: str, *, timeout: float | None = None) -> Job:
        """The job once it has ended (completed, failed, expired or cancelled); TimeoutError if that takes too long."""
        job = await self.get(job_id)  # whatever the timeout: it may have ended already
        async with asyncio.timeout(timeout):
            pause = _FIRST_LOOK
            while job.is_live:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _LAST_LOOK)
                job = await self.get(job_id)
        return job

    # ── Steer: each is kept in the audit, with who (`by`) and why ──

    async def cancel(self, job_id: str, *, reason: str | None = None, by: str | None = None) -> Job:
        """Stop a job: at once if it is not running, else it is asked to. InvalidState if it has ended."""
        wanted = check_id(job_id)
        store = await self._store()
        [change] = await store.cancel([wanted], by=self._actor(by), reason=_reason(reason))
        if change.status is not Status.CANCEL_REQUESTED:  # asked before: nothing to add
            _demand("cancel", change)
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
        reason: str | None = None,
        by: str | None = None,
    ) -> Job:
        """Run a failed, expired or cancelled job again, with its retries reset, and what is given changed. KeyTaken if
        its key is in use; VersionPassed if it has run again since `version`."""
        wanted = check_id(job_id)
        edit = await self._edit(wanted, priority, run_at, delay, payload, tags)
        handle = await self._stores.handle()
        [change] = await handle.store.requeue(
            [wanted],
            edit,
            version=None if version is None else check_version(version),
            by=self._actor(by),
            reason=_reason(reason),
        )
        if change.holder is not None:
            raise KeyTaken(wanted, (await self.get(wanted)).key or "", change.holder)
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
        """Change a pending job: what is given, and nothing else."""
        wanted = check_id(job_id)
        edit = await self._edit(wanted, priority, run_at, delay, payload, tags)
        if not edit.changed:
            raise InvalidInput("update", "nothing_given", "give priority, run_at, delay, payload or tags")
        handle = await self._stores.handle()
        [change] = await handle.store.update([wanted], edit, by=self._actor(by), reason=_reason(reason))
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
        if payload is not UNSET:
            task = self._tasks.get((await self.get(job_id)).topic)
            if task is not None:
                task.arguments.values(payload)
        return Edit(
            priority=UNSET if priority is UNSET else check_priority(priority),
            run_at=UNSET if run_at is UNSET else check_time(run_at, "run_at"),
            delay=UNSET if delay is UNSET else check_delay(delay, "delay"),
            payload=UNSET if payload is UNSET else codec.encode_payload(payload),
            tags=UNSET if tags is UNSET else check_tags(tags),
        )

    async def delete(self, job_id: str, *, reason: str | None = None, by: str | None = None) -> None:
        """Remove a job that is not running. The audit entry stays."""
        wanted = check_id(job_id)
        store = await self._store()
        [change] = await store.delete([wanted], by=self._actor(by), reason=_reason(reason))
        _demand("delete", change)

    async def pause(
        self, topic: str, *, reason: str | None = None, until: datetime | None = None, by: str | None = None
    ) -> None:
        """Start no more jobs of a topic, until `resume` or `until`. Running ones go on."""
        end = None if until is None else check_time(until, "until")
        store = await self._store()
        await store.pause(check_topic(topic), by=self._actor(by), reason=_reason(reason), until=end)

    async def resume(self, topic: str, *, reason: str | None = None, by: str | None = None) -> bool:
        """Start jobs of a topic again. False if it was not paused."""
        handle = await self._stores.handle()
        resumed = await handle.store.resume(check_topic(topic), by=self._actor(by), reason=_reason(reason))
        self._announce(handle)
        return resumed

    async def paused(self) -> Sequence[Pause]:
        """The topics that are paused, with who, why and until when."""
        return await (await self._store()).paused()

    # ── Many at once: docs/bulk.md ──

    async def bulk(
        self,
        action: str,
        filter: Filter | None = None,
        *,
        everything: bool = False,
        priority: int | str | UnsetType = UNSET,
        run_at: datetime | UnsetType = UNSET,
        delay: float | timedelta | UnsetType = UNSET,
        dry_run: bool = True,
        reason: str | None = None,
        by: str | None = None,
    ) -> Bulk:
        """Requeue, cancel, delete, reprioritise (`priority`) or reschedule (`run_at`, or `delay` from its start) the
        jobs that meet the filter now. As long as it is a dry run, it only lists them: nothing is changed before
        `start_bulk`. Jobs that come later, or have moved since, are never caught."""
        by, why = self._actor(by), _reason(reason)
        wanted = Filter() if filter is None else filter
        new = bulks.new_bulk(
            self._ids.one(), action, wanted, everything=everything, priority=priority, run_at=run_at, delay=delay,
            by=by, reason=why,
        )  # fmt: skip
        store = await self._store()
        prepared = await bulks.prepare(store, new, wanted)
        return prepared if dry_run else await bulks.start(store, prepared.id, by=by)

    async def start_bulk(self, bulk_id: str, *, reason: str | None = None, by: str | None = None) -> Bulk:
        """Have it done, by whichever workers and servers there are. Also goes on with one that was stopped. A reason
        takes the place of the preview's."""
        return await bulks.start(await self._store(), bulk_id, by=self._actor(by), reason=_reason(reason))

    async def run_bulk(self, bulk_id: str, *, progress: Callable[[Bulk], None] | None = None) -> Bulk:
        """Work on a started one here, until it is done or stopped. `progress` is told how it stands, now and then."""
        return await bulks.run_all(await self._store(), bulk_id, progress)

    async def stop_bulk(self, bulk_id: str, *, reason: str | None = None, by: str | None = None) -> Bulk:
        """What is done stays done; no further job is changed once this has returned."""
        return await bulks.stop(await self._store(), bulk_id, by=self._actor(by), reason=_reason(reason))

    async def undo_bulk(
        self, bulk_id: str, *, dry_run: bool = True, reason: str | None = None, by: str | None = None
    ) -> Bulk:
        """Put back the jobs that a bulk cancel has cancelled while they were pending, with the time, retries and expiry
        that they had. Answers another bulk action: a preview to be started with `start_bulk`, as `bulk` does. What has
        happened to a job since is not undone: such a job is skipped."""
        store = await self._store()
        done = await bulks.get(store, bulk_id)
        new = bulks.new_undo(self._ids.one(), done, by=self._actor(by), reason=_reason(reason))
        prepared = await store.create_bulk(new, Filter())
        return prepared if dry_run else await bulks.start(store, prepared.id, by=new.by)

    async def get_bulk(self, bulk_id: str) -> Bulk:
        """How it stands; BulkNotFound if it never was, or is gone."""
        return await bulks.get(await self._store(), bulk_id)

    async def bulk_sample(self, bulk_id: str) -> Sequence[Job]:
        """The first ten of its jobs."""
        return await bulks.sample(await self._store(), (await self.get_bulk(bulk_id)).id)

    async def bulk_items(
        self, bulk_id: str, *, outcome: str | None = None, limit: int = 20, cursor: str | None = None
    ) -> ItemsPage:
        """What became of each job: done, changed, gone, key_taken, locked; or unrun, which it has not come to."""
        return await bulks.items(await self._store(), bulk_id, outcome, limit, cursor)

    async def list_bulk(self, *, limit: int = 20, cursor: str | None = None) -> BulkPage:
        """Bulk actions, newest first."""
        return await bulks.page(await self._store(), limit, cursor)

    async def _store(self) -> Store:
        return (await self._stores.handle()).store

    def _actor(self, by: str | None) -> str:
        return self.settings.by if by is None else codec.check_text(by, "by", max_chars=MAX_TEXT)


def _reason(reason: str | None) -> str | None:
    return None if reason is None else codec.check_text(reason, "reason", max_chars=2000)


def _demand(verb: str, change: Changed) -> None:
    """The verb was done, or this says why not."""
    if change.status is None:
        raise JobNotFound(change.id)
    if not change.done:
        raise InvalidState(change.id, verb, change.status, tuple(sorted(MOVES[verb].sources)))
