"""`jobs.sync`: the verbs of Jobs for code without an event loop. Made by tools/sync_twin.py: do not edit.

Each verb calls its async twin on the portal, a thread with an event loop. With `conn=` it runs in the caller's thread,
on the caller's driver.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from msgspec import UNSET, UnsetType

from rowlock.access.short_lived import USUAL
from rowlock.access.tokens import Token
from rowlock.client.audit import Audit
from rowlock.client.bulk import BulkActions, BulkPage, ItemsPage
from rowlock.client.enqueue import Draftable
from rowlock.client.failures import FailureGroups
from rowlock.client.flows import EnqueuedFlow, FlowDraft, FlowPage, Flows, FlowView, Graph
from rowlock.client.limits import Kind, LimitInfo, Limits
from rowlock.client.portal import drive, refuse_in_loop
from rowlock.client.schedules import BackfillTime, Preview, SchedulePage, Schedules
from rowlock.client.signals import Key
from rowlock.client.step_list import StepStatus
from rowlock.client.templates import Change, Templates
from rowlock.client.tokens import NewToken, Tokens
from rowlock.client.topics import Topics
from rowlock.client.verify import Report
from rowlock.client.why import Why
from rowlock.client.workers import Workers
from rowlock.core.cron import When
from rowlock.core.flows import IfFailed
from rowlock.core.job import Event, Job, Log
from rowlock.core.limits import Limit
from rowlock.core.schedules import Fired, IfLiveJob, Missed, Schedule, State
from rowlock.core.templates import Stored, Unreadable
from rowlock.signals import Signal
from rowlock.stores.base import Enqueued, Pause, WorkerInfo
from rowlock.stores.bulk import Bulk
from rowlock.stores.failures import Failures
from rowlock.stores.queries import Filter, Page, Stats
from rowlock.stores.records import Audited
from rowlock.stores.series import Series
from rowlock.tasks import EnqueueOptions, Task

if TYPE_CHECKING:
    from rowlock.jobs import Jobs

R = TypeVar("R")
D = TypeVar("D")
T = TypeVar("T")
Answers = list[Enqueued]  # `list` is a verb below
Steps = list[StepStatus]


class SyncJobs:
    """Usable from any number of threads, and after fork(). Refuses to be called where an event loop is running."""

    def __init__(self, jobs: Jobs) -> None:
        self._async = jobs
        self.audit = SyncAudit(jobs.audit, self)
        self.bulk = SyncBulkActions(jobs.bulk, self)
        self.failures = SyncFailureGroups(jobs.failures, self)
        self.flows = SyncFlows(jobs.flows, self)
        self.limits = SyncLimits(jobs.limits, self)
        self.schedules = SyncSchedules(jobs.schedules, self)
        self.templates = SyncTemplates(jobs.templates, self)
        self.tokens = SyncTokens(jobs.tokens, self)
        self.topics = SyncTopics(jobs.topics, self)
        self.workers = SyncWorkers(jobs.workers, self)

    def open(self) -> None:
        """Connect now, and raise what is wrong. Without it, the first use connects."""
        refuse_in_loop()
        self._async._stores.reopen()
        self._run(self._async.open)

    def close(self) -> None:
        """Stop the worker, and close all connections. Safe to call twice."""
        refuse_in_loop()
        if self._async._worker is not None:
            self.stop()
        self._async._stores.close_from_sync()

    def flow(self, name: str) -> SyncFlow:
        """Begin a flow: jobs that wait for each other. `flow.add` adds jobs, `flow.enqueue` enqueues all of them."""
        return SyncFlow(name, self)

    def _run(self, verb: Callable[[], Coroutine[Any, Any, T]], conn: Any = None) -> T:
        refuse_in_loop()
        stores = self._async._stores
        if conn is None:
            return stores.portal.run(verb)
        if not stores.knows_home:
            stores.portal.run(stores.home)  # from here on the verb need not wait for anything …
        if self._async.definitions.is_stale:
            stores.portal.run(self._async.definitions.refresh)  # … not even for templates
        return drive(verb())

    def start(
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
        return self._run(
            lambda: self._async.start(
                concurrency=concurrency, topics=topics, lease=lease, poll=poll, grace=grace, listen=listen
            )
        )

    def stop(self, *, grace: float | None = None) -> None:
        """Claim no more jobs, let running jobs finish within the grace, and give back the rest at no cost of a retry.
        Safe to call twice."""
        return self._run(lambda: self._async.stop(grace=grace))

    def publish(self, *, by: str | None = None) -> None:
        """Store the definitions and the schedules of all tasks of this process. Workers call it when they start."""
        return self._run(lambda: self._async.publish(by=by))

    def enqueue(
        self, topic: str, payload: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued:
        """Add a job. Return when it is committed; with `conn=`, when it is part of that transaction."""
        return self._run(lambda: self._async.enqueue(topic, payload, **options), options.get("conn"))

    def enqueue_at(
        self, topic: str, payload: Mapping[str, Any] | None, at: datetime, **options: Unpack[EnqueueOptions]
    ) -> Enqueued:
        """Add a job that runs at the time `at`, not earlier."""
        return self._run(lambda: self._async.enqueue_at(topic, payload, at, **options), options.get("conn"))

    def enqueue_many(self, jobs: Sequence[Draftable], *, conn: Any = None, notify: bool | None = None) -> Answers:
        """Add many jobs in one transaction: all or none. Each is a Draft (`task.draft(…)`), a (topic, payload) pair, or
        a mapping with topic, payload and options."""
        return self._run(lambda: self._async.enqueue_many(jobs, conn=conn, notify=notify), conn)

    def chain(
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
        return self._run(
            lambda: self._async.chain(*jobs, name=name, if_failed=if_failed, conn=conn, notify=notify, by=by), conn
        )

    def get(self, job_id: str) -> Job:
        """Return the job, live or archived. Raise JobNotFound if there is none, or if it was deleted or pruned."""
        return self._run(lambda: self._async.get(job_id))

    def list(
        self, filter: Filter | None = None, *, limit: int = 20, offset: int = 0, cursor: str | None = None
    ) -> Page:
        """Return a page of jobs, newest first. `page.next` is the cursor of the next page."""
        return self._run(lambda: self._async.list(filter, limit=limit, offset=offset, cursor=cursor))

    def stats(self, topic: str | None = None) -> Stats:
        """Return the number of jobs by status, in all and by topic; how many have ever ended; how long they took."""
        return self._run(lambda: self._async.stats(topic))

    def series(
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
        return self._run(lambda: self._async.series(topic, range=range, since=since, until=until, step=step))

    def events(self, job_id: str) -> Sequence[Event]:
        """Return the job's history, oldest first."""
        return self._run(lambda: self._async.events(job_id))

    def logs(self, job_id: str) -> Log:
        """Return the lines that the job's handlers wrote with `ctx.log`, oldest first."""
        return self._run(lambda: self._async.logs(job_id))

    def steps(self, job_id: str) -> Steps:
        """Return the steps of a job: those that its runs have called, in their order, then those that its template
        declares and that were not called yet."""
        return self._run(lambda: self._async.steps(job_id))

    def why(self, job_id: str) -> Why:
        """Return why the job is not running; or which worker runs it, or how it ended."""
        return self._run(lambda: self._async.why(job_id))

    def verify(self, *, limit: int = 10000, seconds: float = 30.0) -> Report:
        """Check the newest `limit` live jobs and as many archived ones for contradictions. It only reads. Empty
        `findings` mean that it found nothing wrong."""
        return self._run(lambda: self._async.verify(limit=limit, seconds=seconds))

    def wait(self, job_id: str, *, timeout: float | None = None) -> Job:
        """Return the job once it has ended: completed, failed, expired or cancelled. Raise TimeoutError after `timeout`
        seconds."""
        return self._run(lambda: self._async.wait(job_id, timeout=timeout))

    @overload
    def result(self, made: Enqueued[R], *, timeout: float | None = None) -> R: ...

    @overload
    def result(self, made: str, *, timeout: float | None = None) -> Any: ...

    def result(self, made: Enqueued[Any] | str, *, timeout: float | None = None) -> Any:
        """Wait until the job has completed, and return its result. `made`: what enqueue returned, or a job's id.

        If a task of the job's topic is registered here, the result has the type of its return annotation. Else it is
        plain JSON. Raise JobFailed if the job failed or expired, JobCancelled if it was cancelled, WrongResult if the
        result doesn't fit the annotation, TimeoutError after `timeout` seconds. The job goes on after a TimeoutError.
        """
        return self._run(lambda: self._async.result(made, timeout=timeout))

    def cancel(self, job_id: str, *, reason: str | None = None, by: str | None = None) -> Job:
        """Cancel a job: at once if it is not running, else its worker is asked to stop it. Raise InvalidState if the
        job has ended."""
        return self._run(lambda: self._async.cancel(job_id, reason=reason, by=by))

    @overload
    def signal(
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
    def signal(
        self,
        target: str | Key,
        signal: Signal[None] | str,
        data: Any = None,
        *,
        id: str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> Job: ...

    def signal(
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
        return self._run(lambda: self._async.signal(target, signal, data, id=id, reason=reason, by=by))

    def wake(self, job_id: str, *, reason: str | None = None, by: str | None = None) -> Job:
        """End a sleep, or the time of a wait, now. A wait for a signal ends as after its timeout: with its default, or
        with WaitTimeout. Raise InvalidState if the job doesn't wait."""
        return self._run(lambda: self._async.wake(job_id, reason=reason, by=by))

    def requeue(
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
        return self._run(
            lambda: self._async.requeue(
                job_id,
                priority=priority,
                run_at=run_at,
                delay=delay,
                payload=payload,
                tags=tags,
                version=version,
                from_step=from_step,
                keep_steps=keep_steps,
                reason=reason,
                by=by,
            )
        )

    def update(
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
        return self._run(
            lambda: self._async.update(
                job_id, priority=priority, run_at=run_at, delay=delay, payload=payload, tags=tags, reason=reason, by=by
            )
        )

    def delete(self, job_id: str, *, reason: str | None = None, by: str | None = None) -> None:
        """Delete a job that is not running. Its audit entries stay."""
        return self._run(lambda: self._async.delete(job_id, reason=reason, by=by))


class SyncFlow(FlowDraft):
    """Made by `jobs.sync.flow(name)`."""

    def __init__(self, name: str, jobs: SyncJobs) -> None:
        super().__init__(name, jobs._async._flow_parts)
        self._run = jobs._run

    def enqueue(self, *, conn: Any = None, notify: bool | None = None, by: str | None = None) -> EnqueuedFlow:
        """Add all jobs in one transaction: all or none. With `conn=`, in that of the caller."""
        return self._run(lambda: self._enqueue(conn, notify, by), conn)


class SyncAudit:
    """`jobs.sync.audit`."""

    def __init__(self, group: Audit, jobs: SyncJobs) -> None:
        self._async = group
        self._run = jobs._run

    def list(
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
        """Return the audit's entries that match every argument, newest first.

        `before`: only entries older than the one with this id. A bulk action has an entry for each of its jobs: they
        are listed only with `bulk` or `job_id`.
        """
        return self._run(
            lambda: self._async.list(
                job_id=job_id, by=by, action=action, since=since, bulk=bulk, limit=limit, before=before
            )
        )


class SyncBulkActions:
    """`jobs.sync.bulk`."""

    def __init__(self, group: BulkActions, jobs: SyncJobs) -> None:
        self._async = group
        self._run = jobs._run

    def prepare(
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
        """List the jobs that match the filter now, for one action: requeue, cancel, delete, reprioritise (with
        `priority`) or reschedule (with `run_at`, or `delay` from the start of the action).

        Nothing is changed before `start`; with `dry_run=False` it starts at once. Jobs that are added or changed after
        the listing are left alone.
        """
        return self._run(
            lambda: self._async.prepare(
                action,
                filter,
                everything=everything,
                priority=priority,
                run_at=run_at,
                delay=delay,
                dry_run=dry_run,
                reason=reason,
                by=by,
            )
        )

    def undo(self, bulk_id: str, *, dry_run: bool = True, reason: str | None = None, by: str | None = None) -> Bulk:
        """Prepare another bulk action that undoes a bulk cancel, to be started like any other.

        It requeues the jobs that were pending when they were cancelled, with their old time, retries and expiry. Jobs
        that were changed since then are skipped.
        """
        return self._run(lambda: self._async.undo(bulk_id, dry_run=dry_run, reason=reason, by=by))

    def start(self, bulk_id: str, *, reason: str | None = None, by: str | None = None) -> Bulk:
        """Start a prepared bulk action, or continue a stopped one. Workers and servers run it. `reason` replaces the
        one of `prepare`."""
        return self._run(lambda: self._async.start(bulk_id, reason=reason, by=by))

    def run(self, bulk_id: str, *, progress: Callable[[Bulk], None] | None = None) -> Bulk:
        """Run a started bulk action in this process too, until it is done or stopped. Calls `progress` after each
        batch."""
        return self._run(lambda: self._async.run(bulk_id, progress=progress))

    def stop(self, bulk_id: str, *, reason: str | None = None, by: str | None = None) -> Bulk:
        """Stop a bulk action. When this returns, no further job is changed. Changes made before are kept."""
        return self._run(lambda: self._async.stop(bulk_id, reason=reason, by=by))

    def get(self, bulk_id: str) -> Bulk:
        """Return the bulk action as it is now. Raise BulkNotFound if there is none, or if it was pruned."""
        return self._run(lambda: self._async.get(bulk_id))

    def list(self, *, limit: int = 20, cursor: str | None = None) -> BulkPage:
        """Return a page of bulk actions, newest first."""
        return self._run(lambda: self._async.list(limit=limit, cursor=cursor))

    def sample(self, bulk_id: str) -> Sequence[Job]:
        """Return the first ten jobs of a bulk action, without those that are deleted."""
        return self._run(lambda: self._async.sample(bulk_id))

    def items(
        self, bulk_id: str, *, outcome: str | None = None, limit: int = 20, cursor: str | None = None
    ) -> ItemsPage:
        """Return a page of the action's jobs with the outcome of each: done, changed, gone, key_taken or locked. Jobs
        that it has not reached yet are "unrun"."""
        return self._run(lambda: self._async.items(bulk_id, outcome=outcome, limit=limit, cursor=cursor))


class SyncFailureGroups:
    """`jobs.sync.failures`."""

    def __init__(self, group: FailureGroups, jobs: SyncJobs) -> None:
        self._async = group
        self._run = jobs._run

    def list(
        self,
        *,
        topics: Sequence[str] = (),
        since: datetime | None = None,
        fingerprint: str | None = None,
        trend: Literal["hour", "day"] = "hour",
        limit: int = 50,
        cursor: str | None = None,
    ) -> Failures:
        """Return groups of dead letters that failed alike, the largest group first.

        `fingerprint`: only this group; `jobs.list(Filter(fingerprint=…))` lists its jobs. `trend`: counts per hour of
        the last 24 hours, or per day of the last 30 days. `cursor`: the `next` of the page before.
        """
        return self._run(
            lambda: self._async.list(
                topics=topics, since=since, fingerprint=fingerprint, trend=trend, limit=limit, cursor=cursor
            )
        )


class SyncFlows:
    """`jobs.sync.flows`."""

    def __init__(self, group: Flows, jobs: SyncJobs) -> None:
        self._async = group
        self._run = jobs._run

    def get(self, flow_id: str) -> FlowView:
        """Return a flow. Raise FlowNotFound if there is none, or all its jobs are pruned."""
        return self._run(lambda: self._async.get(flow_id))

    def graph(self, flow_id: str) -> Graph:
        """Return a flow with its jobs and what they wait for."""
        return self._run(lambda: self._async.graph(flow_id))

    def cancel(self, flow_id: str, *, node: str | None = None, reason: str | None = None, by: str | None = None) -> int:
        """Cancel all live jobs of a flow; `node`: only this one and those that wait for it. Return how many."""
        return self._run(lambda: self._async.cancel(flow_id, node=node, reason=reason, by=by))

    def requeue(
        self, flow_id: str, *, node: str | None = None, reason: str | None = None, by: str | None = None
    ) -> int:
        """Run the failed and expired jobs of a flow again; `node`: only this one and those that wait for it. Jobs that
        were cancelled because of them are blocked again. If there is none, cancelled jobs are requeued. Return how
        many were requeued. Raise KeyTaken if another live job has the key of one of all these: then none is."""
        return self._run(lambda: self._async.requeue(flow_id, node=node, reason=reason, by=by))

    def delete(self, flow_id: str, *, reason: str | None = None, by: str | None = None) -> int:
        """Delete a flow and its jobs. Raise FlowRefused if one of them is live: cancel the flow first. Return how many
        jobs were deleted."""
        return self._run(lambda: self._async.delete(flow_id, reason=reason, by=by))

    def release(self, job_id: str, *, reason: str | None = None, by: str | None = None) -> None:
        """Let a job run that is held because a parent failed (if_failed="hold"). Raise InvalidState if nothing holds
        it. To give up instead, cancel the job."""
        return self._run(lambda: self._async.release(job_id, reason=reason, by=by))

    def list(self, *, name: str | None = None, limit: int = 20, cursor: str | None = None) -> FlowPage:
        """Return flows, newest first; `name`: only those of this name. `page.next` is the cursor of the next page."""
        return self._run(lambda: self._async.list(name=name, limit=limit, cursor=cursor))


class SyncLimits:
    """`jobs.sync.limits`."""

    def __init__(self, group: Limits, jobs: SyncJobs) -> None:
        self._async = group
        self._run = jobs._run

    def put(
        self, name: str, limit: Limit, *, value: object = None, reason: str | None = None, by: str | None = None
    ) -> None:
        """Set a limit at run time, for a topic or for all topics that share the limit with this name. It takes the
        place of the limit in the code with the same kind and field, until it is cleared. `value`: only for this value
        of the field. It holds from the next claim of any worker on.

        Jobs that wait already get their values of a new field. Jobs that other processes enqueue within the next second
        may have none: they count together, as those without a value."""
        return self._run(lambda: self._async.put(name, limit, value=value, reason=reason, by=by))

    def clear(
        self,
        name: str,
        *,
        kind: Kind | None = None,
        field: str | None = None,
        value: object = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> int:
        """Remove limits that were put at run time, so that those of the code hold again; return how many. All of this
        name, or those of a kind, by a field (the empty text: by no field), or for a value. 0: none was put."""
        return self._run(lambda: self._async.clear(name, kind=kind, field=field, value=value, reason=reason, by=by))

    def get(self, name: str) -> Sequence[LimitInfo]:
        """Return the limits of a topic or of a name, and what is used of them. Raise LimitNotFound if there is none."""
        return self._run(lambda: self._async.get(name))

    def holders(self, name: str, *, limit: int = 20) -> Sequence[Job]:
        """Return jobs that workers hold now, of all topics that have a limit of this name; the newest first."""
        return self._run(lambda: self._async.holders(name, limit=limit))

    def misfits(self) -> Sequence[str]:
        """Return sentences about limits that were put and don't fit the template of their topic. They can be put before
        the template is published."""
        return self._run(lambda: self._async.misfits())

    def list(self) -> Sequence[LimitInfo]:
        """Return all limits by name, and what is used of them."""
        return self._run(lambda: self._async.list())


class SyncSchedules:
    """`jobs.sync.schedules`."""

    def __init__(self, group: Schedules, jobs: SyncJobs) -> None:
        self._async = group
        self._run = jobs._run

    def put(
        self,
        name: str,
        job: Draftable | Task[..., Any],
        when: When,
        *,
        missed: Missed = "last",
        most: int = 100,
        within: float | timedelta | None = None,
        if_live: IfLiveJob = "allow",
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: float | timedelta = 0.0,
        description: str | None = None,
        revision: int | None = None,
        schedule_id: str | None = None,
        conn: Any = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> Schedule:
        """Make a schedule, or change the one that has this name, with the scope and scope_id of the job.

            await jobs.schedules.put("nightly", report.draft(7), Cron("0 2 * * *", "Europe/Berlin"))

        `job`: what each time makes: task.draft(…), a task without arguments, or (topic, payload). Texts in the payload
        may have blanks: {{fire_at}}, {{fire_date}}, {{schedule}}, … `missed`: what happens to times at which no worker
        was there: "last" makes a job for the newest, "skip" for none, "all" for at most `most` of the last `within`
        seconds. `if_live`: what happens if the last job is not over: "allow", "reject" (skip this time), "queue" (one
        waits), "replace" (cancel the last one). `start`, `end`: no time before or after. `jitter`: start each job up to
        so many seconds later. `revision`: change the schedule only if it has this revision; 0: only make a new one;
        else raise ScheduleChanged or ScheduleExists. `schedule_id`: change the schedule only if it has this id, and
        make no new one; else raise ScheduleNotFound. A schedule that was deleted and made again has another id.
        `conn`: do it in this connection's transaction.
        """
        return self._run(
            lambda: self._async.put(
                name,
                job,
                when,
                missed=missed,
                most=most,
                within=within,
                if_live=if_live,
                start=start,
                end=end,
                jitter=jitter,
                description=description,
                revision=revision,
                schedule_id=schedule_id,
                conn=conn,
                reason=reason,
                by=by,
            ),
            conn,
        )

    def get(self, name: str, *, scope: str | None = None, scope_id: str | None = None) -> Schedule:
        """Return a schedule. Raise ScheduleNotFound."""
        return self._run(lambda: self._async.get(name, scope=scope, scope_id=scope_id))

    def delete(
        self,
        name: str,
        *,
        scope: str | None = None,
        scope_id: str | None = None,
        conn: Any = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> Schedule | None:
        """Delete a schedule and its history. Its jobs stay. Return it as it was; None: a newer release has written it,
        and this one can't read it. Raise ScheduleExists if code declares it: remove it there, or pause it."""
        return self._run(
            lambda: self._async.delete(name, scope=scope, scope_id=scope_id, conn=conn, reason=reason, by=by), conn
        )

    def pause(
        self,
        name: str,
        *,
        scope: str | None = None,
        scope_id: str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> Schedule:
        """Make no jobs until `resume`. The times that pass meanwhile are recorded, and never caught up. Times that came
        before the pause, and that no process has decided yet, are decided first."""
        return self._run(lambda: self._async.pause(name, scope=scope, scope_id=scope_id, reason=reason, by=by))

    def resume(
        self,
        name: str,
        *,
        scope: str | None = None,
        scope_id: str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> Schedule:
        """Make jobs again, from the next time on."""
        return self._run(lambda: self._async.resume(name, scope=scope, scope_id=scope_id, reason=reason, by=by))

    def run_now(
        self,
        name: str,
        *,
        scope: str | None = None,
        scope_id: str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> Fired:
        """Make a job now, beside the schedule's own times, even if it is paused. `if_live` holds: the answer has a
        reason instead of a job_id if the last job is not over. Raise what is wrong with the job."""
        return self._run(lambda: self._async.run_now(name, scope=scope, scope_id=scope_id, reason=reason, by=by))

    def backfill(
        self,
        name: str,
        start: datetime,
        end: datetime,
        *,
        scope: str | None = None,
        scope_id: str | None = None,
        dry_run: bool = False,
        priority: int | str = "backfill",
        reason: str | None = None,
        by: str | None = None,
    ) -> Sequence[BackfillTime]:
        """Make the jobs of past times, from `start` to `end`, for those that have none: times that were missed, or that
        came before the schedule was made. All in one transaction, at most 1,000. `dry_run`: only return the times.

        `if_live` does not hold here. Jobs run oldest first, behind others: `priority` is 30 if nothing else is said.
        """
        return self._run(
            lambda: self._async.backfill(
                name,
                start,
                end,
                scope=scope,
                scope_id=scope_id,
                dry_run=dry_run,
                priority=priority,
                reason=reason,
                by=by,
            )
        )

    def preview(
        self,
        schedule: str | When,
        *,
        scope: str | None = None,
        scope_id: str | None = None,
        limit: int = 5,
        after: datetime | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> Preview:
        """Return the next times of a schedule, or of a Cron or Every, with what changes of the clocks do to them."""
        return self._run(
            lambda: self._async.preview(
                schedule, scope=scope, scope_id=scope_id, limit=limit, after=after, start=start, end=end
            )
        )

    def history(
        self,
        name: str,
        *,
        scope: str | None = None,
        scope_id: str | None = None,
        limit: int = 50,
        before: datetime | None = None,
    ) -> Sequence[Fired]:
        """Return what became of the schedule's times, newest first: each made a job, or has a reason why not. `before`:
        only times before this one. The database keeps times without a job for 90 days."""
        return self._run(lambda: self._async.history(name, scope=scope, scope_id=scope_id, limit=limit, before=before))

    def histories(self, ids: Sequence[str], *, limit: int = 30) -> Mapping[str, Sequence[Fired]]:
        """Return the same for many schedules, by their ids."""
        return self._run(lambda: self._async.histories(ids, limit=limit))

    def publish(self, *, by: str | None = None) -> Sequence[Schedule]:
        """Store the schedules that tasks declare (@jobs.task(schedule=…)). Return those that have changed. Those that
        the code has declared before, and does not any more, are paused and marked as absent. Workers call it when they
        start."""
        return self._run(lambda: self._async.publish(by=by))

    def mark_absent(self, *, by: str | None = None) -> Sequence[Schedule]:
        """Pause the schedules that the code of this process has declared before, and does not any more. Return them.

        Another program may have a module of the same name: a schedule whose topic another live worker runs, and no task
        of this process, is left alone. So workers look again now and then: those of an older release end at last."""
        return self._run(lambda: self._async.mark_absent(by=by))

    def list(
        self,
        *,
        topic: str | None = None,
        scope: str | None = None,
        scope_id: str | None = None,
        state: State | None = None,
        text: str | None = None,
        absent: bool | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> SchedulePage:
        """Return schedules by name. `state`: active, paused, or over (it never fires again). `text`: a part of the
        name, in capitals or not. `absent`: the code that declared it is gone. `cursor`: `next` of the page before."""
        return self._run(
            lambda: self._async.list(
                topic=topic,
                scope=scope,
                scope_id=scope_id,
                state=state,
                text=text,
                absent=absent,
                limit=limit,
                cursor=cursor,
            )
        )


class SyncTemplates:
    """`jobs.sync.templates`."""

    def __init__(self, group: Templates, jobs: SyncJobs) -> None:
        self._async = group
        self._run = jobs._run

    def get(self, topic: str, version: int | None = None) -> Stored:
        """Return a stored template; without `version`, the newest enabled one. Raise TemplateNotFound."""
        return self._run(lambda: self._async.get(topic, version))

    def diff(self) -> Sequence[Change]:
        """Return what `publish` would change."""
        return self._run(lambda: self._async.diff())

    def publish(self, *, by: str | None = None) -> Sequence[Change]:
        """Store the definitions of all tasks of this process. Return what has changed.

        Raise TemplateFrozen, and write nothing, if a task with a version from 1 on has another schema or other steps
        than the stored ones. Workers call it when they start.
        """
        return self._run(lambda: self._async.publish(by=by))

    def create(self, definition: Mapping[str, Any], *, reason: str | None = None, by: str | None = None) -> Stored:
        """Store a template for a topic whose workers are not written with rowlock's Python library. Raise
        TemplateExists if there is one with this topic and version: `update` changes it. One that can't be read is
        replaced."""
        return self._run(lambda: self._async.create(definition, reason=reason, by=by))

    def update(
        self,
        topic: str,
        version: int,
        definition: Mapping[str, Any],
        *,
        reason: str | None = None,
        by: str | None = None,
    ) -> Stored:
        """Change the given fields of a stored template. Raise TemplateFrozen if schema or steps of a version from 1 on
        would change: create the next version instead."""
        return self._run(lambda: self._async.update(topic, version, definition, reason=reason, by=by))

    def enable(
        self, topic: str, version: int | None = None, *, reason: str | None = None, by: str | None = None
    ) -> Sequence[Stored]:
        """Let jobs be enqueued again: of one version, or of all."""
        return self._run(lambda: self._async.enable(topic, version, reason=reason, by=by))

    def disable(
        self, topic: str, version: int | None = None, *, reason: str | None = None, by: str | None = None
    ) -> Sequence[Stored]:
        """Refuse new jobs: of one version, or of all. Jobs that are there still run; `jobs.topics.pause` stops them."""
        return self._run(lambda: self._async.disable(topic, version, reason=reason, by=by))

    def unreadable(self, topic: str | None = None) -> Sequence[Unreadable]:
        """Return what should be templates, and can't be read by this release; of one topic, or of all. Only
        processes that have the task can enqueue jobs of these topics. `publish` and `create` replace them."""
        return self._run(lambda: self._async.unreadable(topic))

    def list(self, topic: str | None = None) -> Sequence[Stored]:
        """Return the stored templates by topic and version, the newest version first; of one topic, or of all."""
        return self._run(lambda: self._async.list(topic))


class SyncTokens:
    """`jobs.sync.tokens`."""

    def __init__(self, group: Tokens, jobs: SyncJobs) -> None:
        self._async = group
        self._run = jobs._run

    def create(
        self,
        *,
        job: str | None = None,
        scope: str | None = None,
        scope_id: str | None = None,
        enqueue: Sequence[str] | None = None,
        cancel: bool = False,
        ttl: float | timedelta = USUAL,
        name: str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> NewToken:
        """Make a token for a browser. Send its `token` to the page: only this answer has it.

            made = await jobs.tokens.create(scope="user", scope_id="7", enqueue=["render"], cancel=True)

        It sees one `job`, or the jobs that have this `scope` and `scope_id`, and nothing else. `cancel`: it may cancel
        them. `enqueue`: it may add jobs of these topics, which get its scope. `ttl`: seconds until it ends, up to a
        day. `name` is shown in lists and in the audit.
        """
        return self._run(
            lambda: self._async.create(
                job=job,
                scope=scope,
                scope_id=scope_id,
                enqueue=enqueue,
                cancel=cancel,
                ttl=ttl,
                name=name,
                reason=reason,
                by=by,
            )
        )

    def list(self) -> Sequence[Token]:
        """Return all tokens that are good: those for browsers, and those for programs (`rowlock token create`)."""
        return self._run(lambda: self._async.list())

    def revoke(
        self,
        id: str | None = None,
        *,
        scope: str | None = None,
        scope_id: str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> int:
        """Revoke the token with this id, or all tokens for the jobs of this `scope` and `scope_id`, as at a logout. The
        next request with one of them is refused. Return how many were revoked: 0 if there is none (any more)."""
        return self._run(lambda: self._async.revoke(id, scope=scope, scope_id=scope_id, reason=reason, by=by))


class SyncTopics:
    """`jobs.sync.topics`."""

    def __init__(self, group: Topics, jobs: SyncJobs) -> None:
        self._async = group
        self._run = jobs._run

    def pause(
        self, topic: str, *, reason: str | None = None, until: datetime | None = None, by: str | None = None
    ) -> None:
        """Start no more jobs of this topic, until `resume` or until the time `until`. Running jobs continue."""
        return self._run(lambda: self._async.pause(topic, reason=reason, until=until, by=by))

    def resume(self, topic: str, *, reason: str | None = None, by: str | None = None) -> bool:
        """Start jobs of this topic again. Return False if it was not paused."""
        return self._run(lambda: self._async.resume(topic, reason=reason, by=by))

    def paused(self) -> Sequence[Pause]:
        """Return the paused topics: who paused each of them, why, and until when."""
        return self._run(lambda: self._async.paused())


class SyncWorkers:
    """`jobs.sync.workers`."""

    def __init__(self, group: Workers, jobs: SyncJobs) -> None:
        self._async = group
        self._run = jobs._run

    def list(self) -> Sequence[WorkerInfo]:
        """Return the registered workers by name, with those that died without signing off: see their `seen`."""
        return self._run(lambda: self._async.list())
