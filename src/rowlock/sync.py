"""`jobs.sync`: the verbs of Jobs for code without an event loop. Made by tools/sync_twin.py: do not edit.

One implementation stands behind both. Verbs run on the portal, a thread with an event loop; with `conn=` they run in
the caller's thread, on the caller's driver.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from msgspec import UNSET, UnsetType

from rowlock.client.bulk import BulkPage, ItemsPage
from rowlock.client.enqueue import Draftable
from rowlock.client.portal import drive, refuse_in_loop
from rowlock.client.verify import Report
from rowlock.client.why import Why
from rowlock.core.job import Event, Job, Log
from rowlock.stores.base import Enqueued, Pause, WorkerInfo
from rowlock.stores.bulk import Bulk
from rowlock.stores.failures import Failures
from rowlock.stores.reading import Filter, Page, Stats
from rowlock.stores.records import Audited
from rowlock.stores.series import Series
from rowlock.tasks import EnqueueOptions

if TYPE_CHECKING:
    from rowlock.jobs import Jobs

T = TypeVar("T")
Answers = list[Enqueued]  # `list` is a verb below


class SyncJobs:
    """Usable from any number of threads, and after fork(). Refuses to be called where an event loop is running."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def open(self) -> None:
        """Connect now, and find out what is wrong. Without it, the first use connects."""
        refuse_in_loop()
        self._jobs._stores.reopen()
        self._run(self._jobs.open)

    def close(self) -> None:
        """Stop working, and let go of all connections. Safe to call twice."""
        refuse_in_loop()
        if self._jobs._worker is not None:
            self.stop()
        self._jobs._stores.close_from_sync()

    def _run(self, verb: Callable[[], Coroutine[Any, Any, T]], conn: Any = None) -> T:
        refuse_in_loop()
        run = self._jobs._stores.portal.run
        if conn is None:
            return run(verb)
        if not self._jobs._knows_home:
            run(self._jobs._home)  # known from here on: the verb need not wait for anything
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
        """Run jobs in this event loop, `concurrency` at once, until `stop`. Returns when it is connected and working.

        `topics`: only these; else all that have a handler. `lease`: seconds after which others may take the jobs of a
        worker that went silent. `poll`: seconds between looks for work. `grace`: seconds that `stop` waits for running
        jobs. To run a worker as a program of its own, use `rowlock worker module:jobs`.

        A database that is not there yet is an error here (StoreUnavailable, StoreFull, …): call it again when you like.
        Later on, the worker waits for its database by itself.
        """
        return self._run(
            lambda: self._jobs.start(
                concurrency=concurrency, topics=topics, lease=lease, poll=poll, grace=grace, listen=listen
            )
        )

    def stop(self, *, grace: float | None = None) -> None:
        """Claim nothing more, let running jobs finish within the grace, give back the rest at no cost. Safe to call
        twice."""
        return self._run(lambda: self._jobs.stop(grace=grace))

    def enqueue(
        self, topic: str, payload: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued:
        """Add a job. Returns when it is committed; with `conn=`, when it is part of that transaction."""
        return self._run(lambda: self._jobs.enqueue(topic, payload, **options), options.get("conn"))

    def enqueue_at(
        self, topic: str, payload: Mapping[str, Any] | None, at: datetime, **options: Unpack[EnqueueOptions]
    ) -> Enqueued:
        """Add a job that is not run before `at`."""
        return self._run(lambda: self._jobs.enqueue_at(topic, payload, at, **options), options.get("conn"))

    def enqueue_many(self, jobs: Sequence[Draftable], *, conn: Any = None, notify: bool | None = None) -> Answers:
        """Add many jobs in one transaction: all or none. Each is a Draft (`task.draft(…)`), a (topic, payload) pair, or
        a mapping with topic, payload and options."""
        return self._run(lambda: self._jobs.enqueue_many(jobs, conn=conn, notify=notify), conn)

    def get(self, job_id: str) -> Job:
        """The job, live or archived; JobNotFound if it never was, or is gone."""
        return self._run(lambda: self._jobs.get(job_id))

    def list(
        self, filter: Filter | None = None, *, limit: int = 20, offset: int = 0, cursor: str | None = None
    ) -> Page:
        """Jobs, newest first. `page.next` is the cursor of the next page."""
        return self._run(lambda: self._jobs.list(filter, limit=limit, offset=offset, cursor=cursor))

    def stats(self, topic: str | None = None) -> Stats:
        """How many jobs are in which state, in all and by topic; how many ended how, ever; how long they took."""
        return self._run(lambda: self._jobs.stats(topic))

    def failures(
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
        return self._run(
            lambda: self._jobs.failures(
                topics=topics, since=since, fingerprint=fingerprint, trend=trend, limit=limit, cursor=cursor
            )
        )

    def series(
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
        return self._run(lambda: self._jobs.series(topic, range=range, since=since, until=until, step=step))

    def events(self, job_id: str) -> Sequence[Event]:
        """The job's history, oldest first."""
        return self._run(lambda: self._jobs.events(job_id))

    def logs(self, job_id: str) -> Log:
        """What the job's handlers have said by `ctx.log`, oldest first."""
        return self._run(lambda: self._jobs.logs(job_id))

    def audit(
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
        return self._run(
            lambda: self._jobs.audit(
                job_id=job_id, by=by, action=action, since=since, bulk=bulk, limit=limit, before=before
            )
        )

    def workers(self) -> Sequence[WorkerInfo]:
        """The workers that have reported to this database, by name; also those that went without a word (`seen`)."""
        return self._run(lambda: self._jobs.workers())

    def why(self, job_id: str) -> Why:
        """Why is it not running? Or why did it end, or who has it."""
        return self._run(lambda: self._jobs.why(job_id))

    def verify(self, *, limit: int = 10000, seconds: float = 30.0) -> Report:
        """Look for what must not be, among the newest `limit` jobs on their way and as many completed ones. Reads only.
        An empty `findings` means that nothing is wrong with what was looked at."""
        return self._run(lambda: self._jobs.verify(limit=limit, seconds=seconds))

    def wait(self, job_id: str, *, timeout: float | None = None) -> Job:
        """The job once it has ended (completed, failed, expired or cancelled); TimeoutError if that takes too long."""
        return self._run(lambda: self._jobs.wait(job_id, timeout=timeout))

    def cancel(self, job_id: str, *, reason: str | None = None, by: str | None = None) -> Job:
        """Stop a job: at once if it is not running, else it is asked to. InvalidState if it has ended."""
        return self._run(lambda: self._jobs.cancel(job_id, reason=reason, by=by))

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
        reason: str | None = None,
        by: str | None = None,
    ) -> Job:
        """Run a failed, expired or cancelled job again, with its retries reset, and what is given changed. KeyTaken if
        its key is in use; VersionPassed if it has run again since `version`."""
        return self._run(
            lambda: self._jobs.requeue(
                job_id,
                priority=priority,
                run_at=run_at,
                delay=delay,
                payload=payload,
                tags=tags,
                version=version,
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
        """Change a pending job: what is given, and nothing else."""
        return self._run(
            lambda: self._jobs.update(
                job_id, priority=priority, run_at=run_at, delay=delay, payload=payload, tags=tags, reason=reason, by=by
            )
        )

    def delete(self, job_id: str, *, reason: str | None = None, by: str | None = None) -> None:
        """Remove a job that is not running. The audit entry stays."""
        return self._run(lambda: self._jobs.delete(job_id, reason=reason, by=by))

    def pause(
        self, topic: str, *, reason: str | None = None, until: datetime | None = None, by: str | None = None
    ) -> None:
        """Start no more jobs of a topic, until `resume` or `until`. Running ones go on."""
        return self._run(lambda: self._jobs.pause(topic, reason=reason, until=until, by=by))

    def resume(self, topic: str, *, reason: str | None = None, by: str | None = None) -> bool:
        """Start jobs of a topic again. False if it was not paused."""
        return self._run(lambda: self._jobs.resume(topic, reason=reason, by=by))

    def paused(self) -> Sequence[Pause]:
        """The topics that are paused, with who, why and until when."""
        return self._run(lambda: self._jobs.paused())

    def bulk(
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
        return self._run(
            lambda: self._jobs.bulk(
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

    def start_bulk(self, bulk_id: str, *, reason: str | None = None, by: str | None = None) -> Bulk:
        """Have it done, by whichever workers and servers there are. Also goes on with one that was stopped. A reason
        takes the place of the preview's."""
        return self._run(lambda: self._jobs.start_bulk(bulk_id, reason=reason, by=by))

    def run_bulk(self, bulk_id: str, *, progress: Callable[[Bulk], None] | None = None) -> Bulk:
        """Work on a started one here, until it is done or stopped. `progress` is told how it stands, now and then."""
        return self._run(lambda: self._jobs.run_bulk(bulk_id, progress=progress))

    def stop_bulk(self, bulk_id: str, *, reason: str | None = None, by: str | None = None) -> Bulk:
        """What is done stays done; no further job is changed once this has returned."""
        return self._run(lambda: self._jobs.stop_bulk(bulk_id, reason=reason, by=by))

    def undo_bulk(
        self, bulk_id: str, *, dry_run: bool = True, reason: str | None = None, by: str | None = None
    ) -> Bulk:
        """Put back the jobs that a bulk cancel has cancelled while they were pending, with the time, retries and expiry
        that they had. Answers another bulk action: a preview to be started with `start_bulk`, as `bulk` does. What has
        happened to a job since is not undone: such a job is skipped."""
        return self._run(lambda: self._jobs.undo_bulk(bulk_id, dry_run=dry_run, reason=reason, by=by))

    def get_bulk(self, bulk_id: str) -> Bulk:
        """How it stands; BulkNotFound if it never was, or is gone."""
        return self._run(lambda: self._jobs.get_bulk(bulk_id))

    def bulk_sample(self, bulk_id: str) -> Sequence[Job]:
        """The first ten of its jobs."""
        return self._run(lambda: self._jobs.bulk_sample(bulk_id))

    def bulk_items(
        self, bulk_id: str, *, outcome: str | None = None, limit: int = 20, cursor: str | None = None
    ) -> ItemsPage:
        """What became of each job: done, changed, gone, key_taken, locked; or unrun, which it has not come to."""
        return self._run(lambda: self._jobs.bulk_items(bulk_id, outcome=outcome, limit=limit, cursor=cursor))

    def list_bulk(self, *, limit: int = 20, cursor: str | None = None) -> BulkPage:
        """Bulk actions, newest first."""
        return self._run(lambda: self._jobs.list_bulk(limit=limit, cursor=cursor))
