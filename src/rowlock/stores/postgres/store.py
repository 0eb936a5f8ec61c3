"""PostgresStore: every verb is one statement or one transaction on a pooled connection. sql/ has the statements."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar, assert_never, cast

from msgspec import structs
from msgspec.structs import astuple

from rowlock import errors
from rowlock.core.codec import decode
from rowlock.core.flows import FlowRow, NewChildren, NewFlow, ReleaseHold
from rowlock.core.job import HELD, History, Job, Lane, LiveKey, Log, NewJob, Status
from rowlock.core.lifecycle import (
    APPLIED,
    LOST,
    MOVES,
    Settlement,
    Standing,
    Verdict,
    ended_by,
    judge,
    same_worker,
)
from rowlock.core.moves import Cancel, Due, Order, Requeue, Rescue, Resume, Update
from rowlock.core.schedules import Fired, Schedule
from rowlock.core.steps import MarkingRun, StepMark, StoredSteps, marks_by_run, with_step_events
from rowlock.core.verify import StepOwner, StoredRow
from rowlock.core.waits import Wait
from rowlock.stores.base import (
    MAX_LOG_LINES,
    MOST_COUNTED,
    PROMOTER,
    Awaited,
    Beat,
    Changed,
    Chore,
    Claim,
    Claimed,
    Enqueued,
    Guard,
    Hold,
    Home,
    InLine,
    Moved,
    Part,
    Pause,
    Progress,
    Retention,
    Settled,
    TopicSteering,
    Traits,
    WorkerInfo,
    in_line,
)
from rowlock.stores.bulk import BATCH, KEPT, PREVIEW_LIFE, WAKING, Bulk, BulkItem, NewBulk, Steering, fitting
from rowlock.stores.driver_neutral import Query, drive_async
from rowlock.stores.failures import FailureQuery, Failures
from rowlock.stores.flows import FlowGraph, StoredEdges
from rowlock.stores.limits import NewShare, Taken, Usage, add_limited
from rowlock.stores.listing import Seen, WalkPart, find, find_newest, make_page, page_ids
from rowlock.stores.migrations import Migration, Pending, require_none
from rowlock.stores.postgres import bulk as bulks
from rowlock.stores.postgres import (
    failures,
    flows,
    insert_on_conn,
    limits,
    listing,
    migrate,
    moves,
    partitions,
    records,
    rollups,
    rows,
    schedules,
    waits,
)
from rowlock.stores.postgres.claim_bounds import ClaimBounds, Floor, Lanes, Plan
from rowlock.stores.postgres.clock import JUMPED, Deadlines, Ghosts
from rowlock.stores.postgres.connections import (
    CONFLICTS,
    FAREWELL,
    Conflict,
    Connections,
    parse_listener,
    parse_target,
)
from rowlock.stores.postgres.doorbell import Direct, Doorbell
from rowlock.stores.postgres.insert import insert, insert_new
from rowlock.stores.postgres.lines import advance_lines
from rowlock.stores.postgres.listing import PostgresPart
from rowlock.stores.postgres.statements import Statements
from rowlock.stores.postgres.steps import checkpoint, read_marked
from rowlock.stores.postgres.sync_transactions import sync_transaction
from rowlock.stores.postgres.transactions import Transactions
from rowlock.stores.queries import (
    BOUND,
    MAX_TOPICS,
    OWN_WINDOW,
    Filter,
    Page,
    PartitionReport,
    State,
    Stats,
    Tally,
    check_place,
    make_stats,
)
from rowlock.stores.records import (
    ALL_LINES,
    Audited,
    AuditFilter,
    Entry,
    Record,
    Refused,
    Write,
    read_audited,
    read_record,
)
from rowlock.stores.rollups import ALL
from rowlock.stores.schedules import FIRES_KEPT, Decide, Decided, ScheduleFilter, Which, schedules_of
from rowlock.stores.series import Series, Window, make_series
from rowlock.stores.worker_reports import Reporter, merge

T = TypeVar("T")

log = logging.getLogger("rowlock")

ATTEMPTS = 8  # of a verb that lost a race: a deadlock, or a key that came and went
MARK_ATTEMPTS = 100  # of a checkpoint or a wait; it is repeated if its rows changed while it waited for their locks
RINGS = 0.01  # seconds between two in which an insert rings: a NOTIFY takes a global lock when it commits
FEW_LINED = 10  # times as large a batch is tried without lines: a flow's root may be alone among its children
LINED = 1.0  # seconds for which completions are settled with their lines, after some of them stood in one
ADVANCING = 1.0  # seconds that a caller waits for the jobs behind its own. The end of a long chain takes 4 ms per job
BRIEFLY = 0.1  # … that a worker waits
NOTHING = Claimed([], contended=False, next_due=None)
_PARTITIONS = 600.0  # seconds between two looks at the archive's partitions
_TRAITS = Traits(any_loop=False, is_private=False, watches_commits=False)


class _Row(NamedTuple):
    """The current state of a job; `worker` is locked_by."""

    status: Status
    version: int
    worker: str | None
    history: list[dict[str, Any]]


class _Seen(NamedTuple):
    """The state of a job whose row the statement had locked."""

    status: str
    version: int
    worker: str | None
    written: bool


class _Asked(NamedTuple):
    """A claim that is under way."""

    lanes: Lanes
    plan: Plan
    due_after: datetime | None
    sent: float
    parameters: tuple[Any, ...]


class PostgresStore:
    """Implements `rowlock.stores.base.Store`. Belongs to the event loop in which it was opened."""

    def __init__(self, url: str, listen_url: str | None = None) -> None:
        self._target = parse_target(url)
        self._sql = Statements(self._target.quoted_schema)
        self._connections = Connections(self._target, self._sql.all, self._sql.lasting)
        self._clock = self._connections.clock
        self._ghosts = Ghosts()
        self._doorbell = Doorbell(self._connections, direct=self._direct(listen_url))
        self._transactions = Transactions(self._connections)
        self._claim_bounds = ClaimBounds()
        self._due = Floor()
        self._bell = self._target.channel, self._target.waiting_key, self._target.ringing_key
        self._owes_ring = False
        self._reads: dict[type, str] = {
            Job: self._sql.read_jobs,
            State: self._sql.read_states,
            Status: self._sql.read_statuses,
            Log: self._sql.read_logs,
        }
        self._one_by_one: dict[type, Callable[[str], Awaitable[Any]]] = {
            History: self._history,
            InLine: self._in_line,
        }
        self._next_partitions = 0.0
        self._may_partition = True
        self._lined_until = 0.0  # until then, jobs that stand in lines are expected; by time.monotonic()
        self._lined = 0  # how many of them came together
        self._rang = 0.0  # when an insert last rang, by time.monotonic()
        self._advancing: asyncio.Task[None] | None = None  # it unblocks jobs

    def __repr__(self) -> str:
        return f"<PostgresStore {self._target.label}, schema {self._target.schema}>"

    @property
    def traits(self) -> Traits:
        return _TRAITS

    def _direct(self, listen_url: str | None) -> Direct | None:
        if listen_url is None:
            return None
        connections = Connections(parse_listener(listen_url, self._target))
        return Direct(connections, self._sql.identity, self.identity)

    # ── Life of the store ──

    async def open(self) -> None:
        await self._connections.open()
        try:
            async with self._connections.acquire() as connection:
                require_none(await migrate.pending(connection, self._target), migrate.where(self._target))
        except BaseException:
            await self._connections.close()
            raise

    async def close(self) -> None:
        if self._advancing is not None:
            self._advancing.cancel()  # the notes stay, and another worker finds them
            await asyncio.wait([self._advancing], timeout=FAREWELL)
            self._advancing = None
        await self._transactions.close()
        await self._doorbell.close()  # wakes the waiting workers, which must find the connections closed
        await self._connections.close()

    async def migrate(self, *, create: bool = True) -> list[Migration]:
        async with self._connections.alone() as connection:
            return await migrate.migrate(connection, self._target)

    async def pending_migrations(self, *, whole: bool = False) -> Pending:
        async with self._connections.alone() as connection:
            found = await migrate.pending(connection, self._target)
            if whole:
                await migrate.check_schema(connection, self._target)
        script = migrate.script(found, self._target, create_schema=True)
        return Pending(found, f"BEGIN;\n{script}COMMIT;\n" if found else "")

    async def now(self) -> datetime:
        (row,) = await self._fetch("SELECT clock_timestamp()")
        at: datetime = row[0]
        return at

    async def identity(self) -> str:
        (row,) = await self._fetch(self._sql.identity, "identity")
        return str(row[0])

    async def home(self) -> Home:
        return Home("postgres", await self.identity(), self._target.schema)

    # ── Clients ──

    async def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued]:
        if not jobs:
            return []
        answers = await self._insert(jobs, repeat)
        if past := [job.run_at for job in jobs if job.run_at is not None]:
            self._claim_bounds.reach(min(past))
        return answers

    async def _insert(self, jobs: Sequence[NewJob], repeat: bool) -> list[Enqueued]:
        # One pass, and no generator, which takes twice as long.
        if not repeat and not any([job.key is not None or job.share is not None for job in jobs]):  # noqa: C419
            return await self._insert_new(jobs)
        keyed = any(job.key is not None for job in jobs)
        shared = any(job.share is not None for job in jobs)
        self._owes_ring = True
        if repeat:
            await self._ghosts.outlast(jobs, self.now)
        if shared or (keyed and any(job.line or job.once or job.throttle for job in jobs)):
            return await self._insert_lined(jobs, repeat)
        if len(jobs) == 1 and not repeat:
            return await self._insert_keyed(jobs)

        async def run(connection: Any) -> list[Enqueued]:
            # It may have to be undone. Until it is committed, a repeat waits for it: so it can't come too late.
            async with connection.transaction(isolation="read_committed"):
                return await insert(connection, self._sql, self._clock, jobs, keyed=keyed, repeat=repeat)

        return await self._with_connection(run)

    async def _insert_keyed(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        deadlines = Deadlines(self._clock)
        try:
            return await self._with_connection(
                lambda connection: insert(connection, self._sql, deadlines, jobs, keyed=True, repeat=False)
            )
        except errors.OutcomeUnknown:
            self._ghosts.note(jobs, deadlines.newest)
            raise

    async def _insert_lined(self, jobs: Sequence[NewJob], repeat: bool) -> list[Enqueued]:
        """Insert jobs of which some stand in a line, count once or are throttled. A repeat is recognised by the ids. No
        statement carries a deadline: a statement that arrives too late is in a transaction that is never committed."""

        async def run(connection: Any) -> list[Enqueued]:
            async def ask(query: Query) -> str:
                answer: str = await connection.fetchval(query.text, query.parameter)
                return answer

            async with connection.transaction(isolation="read_committed"):
                return await drive_async(insert_on_conn.insert(self._target.schema, jobs, repeat=repeat), ask)

        answers = await self._with_connection(run)
        if not any(job.line for job in jobs):
            return answers
        heads = await self._advance()
        return [structs.replace(one, status=Status.PENDING) if one.id in heads else one for one in answers]

    async def _insert_new(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        target = self._target
        began = time.monotonic()
        ring = (target.listen and began - self._rang >= RINGS, *self._bell)
        if ring[0]:
            self._rang = began
        deadlines = Deadlines(self._clock)
        try:
            answers, rang = await self._with_connection(
                lambda connection: insert_new(connection, self._sql, deadlines, jobs, ring)
            )
        except errors.OutcomeUnknown:
            self._ghosts.note(jobs, deadlines.newest)
            raise
        # None: another producer was ringing. A woken worker looks again after `echo`, and finds what is committed.
        if rang is None:
            rang = time.monotonic() - began < self._doorbell.rhythm.echo / 2
        if not rang:
            self._owes_ring = True
        return answers

    # ── Workers ──

    async def claim(self, claim: Claim) -> Claimed:
        if claim.limit <= 0 or not claim.lanes:
            return NOTHING
        if not self._claim_bounds.of(claim.lanes).limited:
            return await self._with_limited(claim, await self._claim(claim))
        taken = await self._claim_limited(claim, claim.starting)
        if not taken.jobs:
            return add_limited(taken, await self._claim(claim))
        # All of them start at once: what is claimed ahead could take the slot of a job that counts as started.
        rest = structs.replace(claim, limit=claim.starting - len(taken.jobs), slots=None, start=True)
        return add_limited(taken, await self._claim(rest) if rest.limit > 0 else NOTHING)

    async def _with_limited(self, claim: Claim, claimed: Claimed) -> Claimed:
        """Claim jobs of topics with limits, if the claim has met such topics for the first time."""
        if not claimed.limited or not claim.start or len(claimed.jobs) >= claim.starting:
            return claimed
        return add_limited(await self._claim_limited(claim, claim.starting - len(claimed.jobs)), claimed)

    async def _claim_limited(self, claim: Claim, limit: int) -> Taken:
        if limit <= 0:
            return Taken()
        taken = await self._with_connection(
            lambda connection: limits.claim_limited(connection, self._sql, self._clock, claim, limit)
        )
        self._claim_bounds.of(claim.lanes).limited = taken.limited
        if taken.more:  # other workers may have slots for them
            await self._ring_for_others()
        return taken

    async def _ring_for_others(self) -> None:
        try:
            await self.ring()
        except errors.StoreError as error:  # not the caller's error: its statement is committed
            log.warning("no worker was woken: %s", error)

    async def _claim(self, claim: Claim) -> Claimed:
        asked = self._ask(claim)

        async def run(connection: Any) -> list[Any]:
            not_after = self._clock.not_after()
            found: list[Any] = await connection.fetch(self._sql.claim, *asked.parameters, not_after, claim.size)
            if self._is_late(found, not_after):
                raise Conflict(JUMPED)
            return found

        claimed = self._claimed(claim, asked, await self._with_connection(run))
        return await self._with_ends(claimed)

    async def _with_ends(self, claimed: Claimed) -> Claimed:
        """Unblock jobs if there is a note that something has ended in their lines. Then it pays to claim again."""
        if not claimed.ends:
            return claimed
        if claimed.jobs:  # these jobs need not wait for it
            self._advance_behind()
        unblocked = self._advancing is not None or bool(await self._advance(once=True))
        return structs.replace(claimed, ends=False, contended=unblocked or claimed.contended)

    async def _advance(self, *, once: bool = False) -> set[str]:
        """Unblock jobs, and return their ids. `once`: no more than a batch, so that workers can begin with these. A
        task unblocks the rest meanwhile."""
        until = time.monotonic() + (BRIEFLY if once else ADVANCING)
        heads: set[str] = set()
        more = True
        while more and not (once and heads) and time.monotonic() < until:
            new, more = await self._advance_batch()
            heads |= new
        if more:
            self._advance_behind()
        return heads

    def _advance_behind(self) -> None:
        if self._advancing is None:
            self._advancing = asyncio.create_task(self._advance_rest())

    async def _advance_rest(self) -> None:
        try:
            more = True
            while more:
                heads, more = await self._advance_batch()
                if heads:
                    await self._ring_for_others()
        finally:
            self._advancing = None

    async def _advance_batch(self) -> tuple[set[str], bool]:
        """Unblock a batch of jobs. Return their ids, and whether there may be more to do. An error is not the caller's,
        whose own statement is committed: the notes stay, and the next claim finds them."""
        try:
            heads, more = await self._with_connection(lambda connection: advance_lines(connection, self._sql))
        except errors.StoreError as error:
            log.warning("lines could not be advanced: %s", error)
            return set(), False
        if heads:
            self._claim_bounds.forget()
            self._owes_ring = True
        return heads, more

    def _is_late(self, found: list[Any], not_after: datetime | None) -> bool:
        """Return True if a claim came too late. Then it has claimed nothing."""
        return self._clock.was_late(found[0]["now"], not_after) and len(found) == 1

    def _ask(self, claim: Claim) -> _Asked:
        lanes, after = self._claim_bounds.of(claim.lanes), self._due.after
        plan = lanes.plan()
        rest = (after, claim.limit, claim.worker, claim.lease, claim.start)
        return _Asked(lanes, plan, after, time.monotonic(), (*plan.lanes, *plan.parts, *rest))

    def _claimed(self, claim: Claim, asked: _Asked, found: list[Any]) -> Claimed:
        (contended, dead, dead_due, ends, limited), next_due, now, until = found[0][:4]
        asked.lanes.limited = bool(limited)
        started = now if claim.start else None
        jobs = [rows.claimed_job(row, claim.worker, now, until, started) for row in found[1:]]
        jobs.sort(key=rows.turn)
        looked = now - timedelta(seconds=time.monotonic() - asked.sent)  # it may have waited for locks since
        if jobs or not contended:  # if some jobs are locked, or too large, only the jobs before them are dealt with
            asked.lanes.learn(asked.plan, len(jobs) if contended else claim.limit, jobs, dead, looked)
        self._due.learn(asked.due_after, dead_due, looked, done=next_due is None or next_due > 0)
        size = sum([len(row[rows.CLAIMED_PAYLOAD]) for row in found[1:]])
        return Claimed(jobs, bool(contended), next_due, size, bool(ends), bool(limited))

    async def settle(self, settlements: Sequence[Settlement], claim: Claim | None = None) -> Settled:
        if not settlements:
            return Settled([], None if claim is None else await self.claim(claim))
        places: dict[str, int] = {}  # a second settlement of the same job is looked at after the first
        for n, settlement in enumerate(settlements):
            places.setdefault(settlement.id, n)
        batch = [settlements[n] for n in places.values()]
        if claim is None or claim.limit <= 0 or not claim.lanes:
            [(applied, ended, woken)] = await self._settle(batch)
            claimed = None if claim is None else NOTHING
            await self._follow_up(ended, woken)
        elif self._claim_bounds.of(claim.lanes).limited:  # the settled jobs make room for jobs of limited topics
            [(applied, ended, woken)] = await self._settle(batch)
            await self._follow_up(ended, woken)
            claimed = await self.claim(claim)
        else:
            asked, not_after = self._ask(claim), self._clock.not_after()
            found = await self._settle(batch, *asked.parameters, not_after, claim.size)
            late = self._is_late(found, not_after)
            claimed = await self.claim(claim) if late else await self._with_ends(self._claimed(claim, asked, found))
            claimed = await self._with_limited(claim, claimed)
            applied = found[0]["applied"]
        if applied is None and len(batch) == len(settlements):
            return Settled([APPLIED] * len(batch), claimed)
        done = set(places.values()) if applied is None else {places[str(job_id)] for job_id in applied}
        verdicts, unblocked = await self._verdicts(settlements, done, claimed)
        if unblocked and claimed is not None:  # since the claim: claim again, and don't wait for a poll
            claimed = structs.replace(claimed, contended=True)
        return Settled(verdicts, claimed)

    async def _settle(self, batch: list[Settlement], *claim: Any, plain: bool = True) -> list[Any]:
        """Run the statement that settles a batch, and return its rows. `plain`: first try the statement that leaves out
        jobs that stand in a line. It is not tried while such jobs are expected: each of them would cost a look and a
        second statement."""
        version, worker = batch[0].version, batch[0].worker
        complete = (
            plain
            and (time.monotonic() >= self._lined_until or len(batch) > FEW_LINED * self._lined)
            and all(
                one.transition.status is Status.COMPLETED and one.version == version and one.worker == worker
                for one in batch
            )
        )

        async def run(connection: Any) -> list[Any]:
            nonlocal complete
            if complete:
                complete = False  # only once: a conflict means that the archive has one of the jobs already
                statement = self._sql.complete_and_claim if claim else self._sql.complete
                parameters = rows.completions(batch)
            elif all(one.worker == worker for one in batch):
                statement = self._sql.settle_and_claim if claim else self._sql.settle
                parameters = rows.settle_arrays(batch)
            else:
                statement = self._sql.settle_mixed_and_claim if claim else self._sql.settle_mixed
                parameters = rows.settle_arrays(batch, mixed=True)
            found: list[Any] = await connection.fetch(statement, *parameters, *claim)
            return found

        return await self._with_connection(run)

    async def _follow_up(self, ended: bool, woken: bool, *, claims: bool = False) -> bool:
        """Unblock jobs and wake workers after a settle without a claim of its own. Return True if jobs are unblocked.
        `woken`: a job is ready again, and no worker knows it. `claims`: if this returns True, the worker claims again
        at once."""
        unblocked = await self._advance(once=True) if ended else set()
        if woken or len(unblocked) > claims:
            await self._ring_for_others()
        return bool(unblocked)

    async def _verdicts(
        self, settlements: Sequence[Settlement], done: set[int], claimed: Claimed | None
    ) -> tuple[list[Verdict], bool]:
        """Return the verdicts, and whether jobs are unblocked by these settlements. Look afresh at the settlements that
        are not `done`, and try those again that would pass the guard now. `claimed` is from the same statement and came
        after them. So a claimed job is not held by an old run, though it may have the version of a settlement."""
        unblocked = False
        new = {(job.id, job.version) for job in claimed.jobs} if claimed else set()
        standing: dict[str, _Row] = {}
        for _ in range(ATTEMPTS):
            standing = await self._standing([s.id for n, s in enumerate(settlements) if n not in done])
            missed: dict[str, int] = {}
            for n, settlement in enumerate(settlements):
                if n in done or (settlement.id, settlement.version) in new:
                    continue
                if _may_settle(settlement, standing.get(settlement.id)):
                    missed.setdefault(settlement.id, n)
            if not missed:
                break
            [(applied, ended, woken)] = await self._settle([settlements[n] for n in missed.values()], plain=False)
            if ended:
                self._lined_until, self._lined = time.monotonic() + LINED, len(missed)
            unblocked |= await self._follow_up(ended, woken, claims=claimed is not None)
            done |= set(missed.values()) if applied is None else {missed[str(job_id)] for job_id in applied}
        verdicts = []
        for n, settlement in enumerate(settlements):
            if n in done:
                verdicts.append(APPLIED)
            elif (settlement.id, settlement.version) in new:
                verdicts.append(LOST)
            else:
                verdicts.append(_judge(settlement, standing.get(settlement.id)))
        return verdicts, unblocked

    async def _standing(self, ids: Sequence[str]) -> dict[str, _Row]:
        """Return the current state of these jobs, by a fresh snapshot."""
        found = await self._fetch(self._sql.standing, list(ids))
        return {
            str(job_id): _Row(rows.STATUS[status], version, worker, decode(history) if history else [])
            for job_id, status, version, worker, history in found
        }

    async def heartbeat(self, beats: Sequence[Beat], lease: float) -> list[Hold]:
        if not beats:
            return []
        marked = set() if lease else await self._mark(beats)
        if len(marked) == len(beats):
            return [Hold.KEPT] * len(beats)
        rest = [beat for beat in beats if beat.id not in marked]
        asked = [(beat.id, beat.version, beat.worker) for beat in rest]
        holds = iter(await self._hold(asked, self._sql.heartbeat, [beat.started for beat in rest], lease))
        return [Hold.KEPT if beat.id in marked else next(holds) for beat in beats]

    async def _mark(self, beats: Sequence[Beat]) -> set[str]:
        """Write start marks with a statement of their own. Return the ids of the jobs that have them now."""
        version, worker = beats[0].version, beats[0].worker
        if worker is None or not all(one.started and (one.version, one.worker) == (version, worker) for one in beats):
            return set()
        ids = [beat.id for beat in beats]
        return {str(job_id) for (job_id,) in await self._fetch(self._sql.start_marks, ids, version, worker)}

    async def progress(self, reports: Sequence[Progress]) -> list[Hold]:
        if not reports:
            return []
        merged = merge(reports)
        holds = await self._hold(
            list(merged),
            self._sql.progress,
            [report.percent for report in merged.values()],
            [report.stage for report in merged.values()],
            [report.message for report in merged.values()],
            [rows.lines_text(report.lines) for report in merged.values()],
            MAX_LOG_LINES,
        )
        answers = dict(zip(merged, holds, strict=True))
        if last := [report for run, report in merged.items() if report.lines and answers[run] is Hold.LOST]:
            await self._fetch(
                self._sql.progress_archived,
                [report.id for report in last],
                [report.version for report in last],
                [report.worker for report in last],
                [rows.lines_text(report.lines) for report in last],
                MAX_LOG_LINES,
            )
        return [answers[report.id, report.version, report.worker] for report in reports]

    async def checkpoint(self, marks: Sequence[StepMark]) -> list[Hold]:
        holds: dict[MarkingRun, Hold] = {}
        left = marks_by_run(marks)
        for _ in range(MARK_ATTEMPTS):
            if not left:
                break
            # Each job only once in a statement: marks of another run of the job come after that.
            batch = {run: left[run] for run in {run.id: run for run in reversed(left)}.values()}
            query = checkpoint(self._sql, batch)
            [(answer,)] = await self._fetch(query.text, query.parameter)
            seen = {job_id: _Seen(*row) for job_id, row in read_marked(answer).items()}
            for run in batch:
                hold = _hold(run.version, run.worker, seen.get(run.id), None)
                if hold is not Hold.UNSEEN:
                    holds[run] = hold
                    del left[run]
        if left:
            raise errors.StoreBusy(f"{self._target.label}: steps of {len(left)} jobs could not be stored")
        return [holds[mark.run] for mark in marks]

    async def take_signal(self, wait: Wait) -> Awaited:
        asked = waits.asked(wait)
        for _ in range(MARK_ATTEMPTS):
            found = [waits.read(row) for row in await self._fetch(self._sql.take_signal, asked)]
            seen = next((_Seen(*answer[:4]) for answer in found), None)
            hold = _hold(wait.version, wait.worker, seen, None)
            if hold is Hold.KEPT:
                return waits.awaited(found[0])
            if hold is Hold.LOST or found[0].status == Status.CANCEL_REQUESTED:
                return Awaited(Hold.LOST if hold is Hold.LOST else Hold.CANCEL)
        raise errors.StoreBusy(f"{self._target.label}: a wait of job {wait.id} could not be stored")

    async def look(self, runs: Sequence[Beat]) -> list[Hold]:
        found = await self._fetch(self._sql.look, [run.id for run in runs]) if runs else []
        seen = {str(job_id): _Seen(status, version, worker, True) for job_id, status, version, worker in found}
        return [_hold(run.version, run.worker, seen.get(run.id), None) for run in runs]

    async def held_by(self, workers: Sequence[str], limit: int | None = None) -> list[Beat]:
        most = None if limit is None else max(limit, 0)
        found = await self._fetch(self._sql.held_by, list(workers), most) if workers else []
        return [Beat(str(job_id), version, started, worker) for job_id, version, started, worker in found]

    async def _hold(self, asked: list[Reporter], statement: str, *parameters: Any) -> list[Hold]:
        ids, versions = [job_id for job_id, _, _ in asked], [version for _, version, _ in asked]
        found = await self._fetch(statement, ids, versions, [worker for _, _, worker in asked], *parameters)
        seen = {str(job_id): _Seen(*row) for job_id, *row in found}
        unseen = [job_id for job_id in ids if job_id not in seen]
        elsewhere = await self._standing(unseen) if unseen else {}
        return [_hold(version, by, seen.get(job_id), elsewhere.get(job_id)) for job_id, version, by in asked]

    # ── Workers' register ──

    async def report(self, worker: WorkerInfo) -> datetime:
        [(seen,)] = await self._fetch(self._sql.report, *astuple(worker)[:-2])  # started and seen are the clock's
        at: datetime = seen
        return at

    async def retire(self, names: Sequence[str]) -> int:
        gone = list(names)
        return rows.count(await self._with_connection(lambda connection: connection.execute(self._sql.retire, gone)))

    async def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo(**{**row, "topics": tuple(row["topics"])}) for row in await self._fetch(self._sql.workers)]

    # ── Transactions of the application's own: no lock is held before the fence, so `longest` is nothing to fear ──

    def transaction(self, guard: Guard, *, longest: float) -> AbstractAsyncContextManager[Any]:
        return self._transactions.begin(guard)

    def sync_transaction(self, guard: Guard, *, longest: float) -> AbstractContextManager[Any]:
        return sync_transaction(self._target, guard)

    async def set_backoff(self, tables: Mapping[str, Sequence[float] | None]) -> None:
        texts = [None if table is None else f"{{{','.join(map(repr, table))}}}" for table in tables.values()]
        await self._fetch(self._sql.set_backoff, list(tables), texts)

    # ── Maintenance ──

    async def promote(self, limit: int = 1000) -> int:
        after = self._due.after_now_and_then
        [(promoted, oldest, dead, at, over)] = await self._fetch(self._sql.promote, limit, after)
        resumed = len(await self._move_due(Resume(by=PROMOTER), over, after)) if over else 0
        self._due.learn(after, dead, at, done=promoted + over < limit and resumed == over)
        if oldest is not None:
            self._claim_bounds.reach(oldest)
        return int(promoted) + resumed

    async def move_due(self, order: Due, limit: int = 500) -> list[Moved]:
        return await self._move_due(order, limit, None)

    async def _move_due(self, order: Due, limit: int, after: datetime | None) -> list[Moved]:
        found = await self._with_connection(
            lambda connection: moves.move_due(connection, self._sql, order, limit, after)
        )
        if found and isinstance(order, Rescue):
            self._claim_bounds.forget()  # a job that crashed for the first time is back in its old place
        return found

    async def prune(self, retention: Retention, limit: int = 1000) -> int:
        if self._may_partition and time.monotonic() >= self._next_partitions:
            self._next_partitions = time.monotonic() + _PARTITIONS
            await self._try_partitions(retention)
        rules = [(status, retention.of(status)) for status in MOVES["prune"].sources]
        own = [(status, topic) for status, _ in rules for topic in retention.exceptions(status)]
        (row,) = await self._fetch(
            self._sql.prune,
            limit,
            [status for status, _ in rules],
            [seconds for _, seconds in rules],
            [status for status, _ in own],
            [topic for _, topic in own],
            [retention.of(status, topic) for status, topic in own],
        )
        count: int = row[0]
        return count

    async def _try_partitions(self, retention: Retention) -> None:
        try:
            await self.keep_partitions(retention)
        except errors.AccessDenied as error:  # only the tables' owner may: warn once, the default part takes all jobs
            self._may_partition = False
            log.warning("the archive's daily parts can't be kept: %s", error)

    async def keep_partitions(self, retention: Retention, *, ahead: int = 3) -> PartitionReport:
        """Make the archive's parts for today and `ahead` days more, and drop the parts that hold no job any more. It
        doesn't wait long for a lock: the next call does the work that this call can't do."""
        async with self._connections.acquire() as connection:
            return await partitions.keep(connection, self._target, retention, ahead)

    async def tidy(self, chore: Chore, limit: int) -> int:
        most = max(limit, 0)

        async def run(connection: Any) -> int:
            match chore:
                case "fold_counts":
                    return await rollups.fold(connection, self._sql, self._target.folding_key, most)
                case "group_failures":
                    return await failures.group(connection, self._sql, most)
                case "sweep_records":
                    return len(await connection.fetch(self._sql.record_sweep, most))
                case "prune_fires":
                    return len(await connection.fetch(self._sql.prune_fires, most, FIRES_KEPT))
                case "prune_starts":
                    return len(await connection.fetch(self._sql.prune_starts, most))
                case "sweep_rollups":
                    return rows.count(await rollups.sweep(connection, self._sql, most))
                case "prune_throttles":
                    return len(await connection.fetch(self._sql.prune_throttles, most))
                case "prune_flows":
                    return int(await connection.fetchval(self._sql.prune_flows, most))
                case "prune_bulks":
                    return int(await connection.fetchval(self._sql.bulk_prune, most, PREVIEW_LIFE, KEPT))
                case _:
                    assert_never(chore)

        return await self._with_connection(run)

    # ── Operators ──

    async def move(self, ids: Sequence[str], order: Order) -> list[Changed]:
        if isinstance(order, Update):  # a requeue is one, too
            self._claim_bounds.forget()

        answers = await self._move(list(set(ids)), order) if ids else {}
        for job_id in sorted(set(ids) - set(answers)):
            answers |= await self._move([job_id], order)
        # Not left to the next claim: there may be no worker at all.
        if isinstance(order, Cancel | Requeue | ReleaseHold) and any(one.done for one in answers.values()):
            await self._advance()
        return [answers[job_id] for job_id in ids]

    async def _move(self, ids: Sequence[str], order: Order) -> dict[str, Changed]:
        """Apply the order. If another transaction holds the key of a job, wait for it without holding any lock."""
        patience = time.monotonic() + self._target.command_timeout
        pause = 0.01
        while True:
            answers = await self._with_connection(lambda connection: moves.move(connection, self._sql, order, ids))
            if answers is not None:
                return answers
            if time.monotonic() > patience:
                raise errors.StoreBusy(f"{self._target.label}: another transaction holds the key of job {ids[0]}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.2)

    async def limit_usage(self) -> Usage:
        async def run(connection: Any) -> Usage:
            return await limits.usage(connection, self._sql)

        return await self._with_connection(run)

    async def set_shares(self, shares: Sequence[NewShare]) -> None:
        if shares:
            columns = [list(column) for column in zip(*shares, strict=True)]
            await self._fetch(self._sql.set_shares, *columns)

    async def steer_topic(
        self, topic: str, to: TopicSteering, *, by: str, reason: str | None = None, until: datetime | None = None
    ) -> bool:
        if to == "pause":
            await self._fetch(self._sql.pause, topic, by, reason, until)
            return True
        self._claim_bounds.forget()
        return bool(await self._fetch(self._sql.resume, topic, by, reason))

    async def paused(self) -> list[Pause]:
        return [Pause(*row) for row in await self._fetch(self._sql.paused)]

    # ── Reading ──

    async def read(self, ids: Sequence[str], shape: type[T]) -> dict[str, T]:
        if shape is StoredSteps:
            return cast(dict[str, T], await self._stored_steps(ids))
        if shape is StoredEdges:
            return cast(dict[str, T], await self._with_connection(lambda conn: flows.edges_of(conn, self._sql, ids)))
        if (read_one := self._one_by_one.get(shape)) is not None:
            one_by_one = {job_id: await read_one(job_id) for job_id in ids}
            return {job_id: one for job_id, one in one_by_one.items() if one is not None}
        found = await self._fetch(self._reads[shape], list(ids)) if ids else []
        make = rows.READERS[shape]
        return {str(row[0]): make(row) for row in found}

    async def _stored_steps(self, ids: Sequence[str]) -> dict[str, StoredSteps]:
        steps: dict[str, StoredSteps] = {}
        for row in await self._fetch(self._sql.steps, list(set(ids))):
            steps.setdefault(str(row[0]), StoredSteps([])).items.append(rows.step(row))
        return steps

    async def _history(self, job_id: str) -> History | None:
        events = [rows.event(row) for row in await self._fetch(self._sql.events, job_id)]
        ended = [rows.step(row) for row in await self._fetch(self._sql.ended_steps, job_id)]
        return History(with_step_events(events, ended)) if events else None

    async def _in_line(self, job_id: str) -> InLine | None:
        found = await self._fetch(self._sql.place_in_line, job_id, MOST_COUNTED + 1)
        return in_line(job_id, MOST_COUNTED, *found[0]) if found else None

    async def holders(self, keys: Sequence[LiveKey]) -> list[str]:
        found = await self._with_connection(lambda connection: moves.holders(connection, self._sql, keys))
        return list(found.values())

    async def debounced(self, lines: Sequence[str]) -> list[str]:
        return [str(job_id) for _, job_id in await self._fetch(self._sql.debounced, list(lines))]

    async def count_ready(self, lanes: Sequence[Lane], limit: int = MOST_COUNTED) -> list[int]:
        topics, versions = [lane.topic for lane in lanes], [lane.template_version for lane in lanes]
        return [count for (count,) in await self._fetch(self._sql.count_ready, topics, versions, max(limit, 0))]

    async def newest(self, filters: Sequence[Filter], limit: int) -> list[list[str]]:
        async def run(connection: Any) -> list[list[str]]:
            await connection.execute(listing.BEGIN)
            found = [await self._follow(connection, filter, find_newest(filter, limit)) for filter in filters]
            await connection.execute("COMMIT")
            return found

        return await self._with_connection(run) if filters else []

    async def newest_of_scopes(self, filters: Sequence[Filter], limit: int) -> list[list[str] | None]:
        newest: list[list[str]] = [[] for _ in filters]
        beyond: set[int] = set()
        scope_ids = [one.scope_id for one in filters]
        topics = [" ".join(one.topics) or None for one in filters]
        statuses = [" ".join(one.statuses) or None for one in filters]
        asked = (scope_ids, topics, statuses, limit, OWN_WINDOW)
        for n, job_id, is_beyond in await self._fetch(self._sql.newest_of_scopes, *asked):
            newest[n - 1].append(job_id)
            if is_beyond:
                beyond.add(n - 1)
        return [None if n in beyond else list(dict.fromkeys(ids)) for n, ids in enumerate(newest)]

    async def mark(self) -> str:
        [row] = await self._fetch(self._sql.mark)
        return str(row[0])

    async def failures(self, query: FailureQuery) -> Failures:
        return await self._with_connection(lambda connection: failures.read(connection, self._sql, query))

    async def stored_rows(self, part: Part, *, before: str | None, limit: int) -> list[StoredRow] | list[StepOwner]:
        where = before or rows.LARGEST_ID, max(limit, 0)
        if part == "steps":
            owners = dict(await self._fetch(self._sql.step_owners, *where))
            return [StepOwner(str(job_id), exists) for job_id, exists in owners.items()]
        statement = self._sql.stored_rows_archived if part == "archive" else self._sql.stored_rows
        return [rows.stored_row(row) for row in await self._fetch(statement, *where)]

    async def end_counts(self, limit: int) -> dict[Status, tuple[int, int]]:
        found = await self._fetch(self._sql.end_counts, max(limit, 0))
        return {rows.STATUS[status]: (there, counted) for status, there, counted in found}

    # ── Records ──

    async def records(
        self, kind: str, ids: Sequence[str] | None = None, *, after: str | None = None, limit: int | None = None
    ) -> list[Record]:
        asked = None if ids is None else list(ids)
        found = await self._fetch(self._sql.records, kind, asked, after or "", limit)
        return [read_record(kind, row, _same) for row in found]

    async def write_records(self, writes: Sequence[Write], *entries: Entry) -> bool:
        async def run(connection: Any) -> bool:
            try:
                async with connection.transaction(isolation="read_committed"):
                    await records.write(connection, self._sql, writes, *entries)
            except Refused:
                return False
            return True

        return await self._with_connection(run)

    async def audit(
        self, filter: AuditFilter = ALL_LINES, *, before: int | None = None, limit: int = 50
    ) -> list[Audited]:
        statement = self._sql.audited
        if filter.job_id is not None:
            statement = self._sql.audited_of_job
        elif filter.bulk is not None:
            statement = self._sql.audited_of_bulk
        wanted = filter.bulk, filter.job_id, filter.by, filter.action, filter.since
        return [read_audited(row, _same) for row in await self._fetch(statement, before, max(limit, 0), *wanted)]

    # ── Schedules ──

    async def change_schedules(
        self, which: Which, decide: Decide, unreadable: Callable[[str], None] = lambda schedule_id: None
    ) -> list[Decided]:
        async def run(connection: Any) -> list[Decided]:
            async def ask(query: Query) -> str:
                answer: str = await connection.fetchval(query.text, query.parameter)
                return answer

            async with connection.transaction(isolation="read_committed"):
                await connection.fetchval(self._sql.silence)
                return await drive_async(schedules.change(self._target.schema, which, decide, unreadable), ask)

        decided = await self._with_connection(run)
        if made := [one.fire_at for each in decided for one in each.fired if one.job_id is not None]:
            self._owes_ring = True
            self._claim_bounds.reach(min(made))
            if any(each.schedule is not None and each.schedule.if_live != "allow" for each in decided):
                await self._advance()
        return decided

    async def next_fire(self, *, skip: Sequence[str] = (), later: bool = False) -> float | None:
        found = await self._fetch(self._sql.next_fire_later if later else self._sql.next_fire, list(skip))
        return found[0][0] if found else None

    async def schedules(
        self, filter: ScheduleFilter, *, after: tuple[str, str] | None = None, limit: int = 50
    ) -> list[Schedule]:
        asked = [list(filter.ids) if filter.ids is not None else None, *astuple(filter)[1:]]
        found = await self._fetch(self._sql.schedules, *asked, *(after or (None, None)), limit)
        return schedules_of(decode(row) for (row,) in found).schedules

    async def fires(
        self, ids: Sequence[str], *, before: datetime | None = None, limit: int = 50
    ) -> dict[str, list[Fired]]:
        fired: dict[str, list[Fired]] = {schedule_id: [] for schedule_id in ids}
        found = await self._fetch(self._sql.fires, list(ids), before, limit)
        for schedule_id, fire_at, at, kind, job_id, reason, detail in found:
            made = None if job_id is None else str(job_id)
            fired[str(schedule_id)].append(
                Fired(fire_at=fire_at, at=at, kind=kind, job_id=made, reason=reason, detail=detail)
            )
        return fired

    # ── Flows ──

    async def insert_flow(self, flow: NewFlow, *, repeat: bool = False) -> list[Enqueued]:
        async def run(connection: Any) -> list[Enqueued]:
            async def ask(query: Query) -> str:
                answer: str = await connection.fetchval(query.text, query.parameter)
                return answer

            async with connection.transaction(isolation="read_committed"):
                return await drive_async(flows.insert_flow(self._target.schema, flow, repeat=repeat), ask)

        answers = await self._with_connection(run)
        self._owes_ring = True
        if not flow.outside and not any(job.if_live for job in flow.jobs):
            return answers
        started = await self._advance()
        return [structs.replace(one, status=Status.PENDING) if one.id in started else one for one in answers]

    async def start_children(self, children: NewChildren) -> tuple[Hold, list[Enqueued]]:
        async def run(connection: Any) -> tuple[Hold, list[Enqueued]]:
            async with connection.transaction(isolation="read_committed"):
                return await flows.start_children(connection, self._sql, self._target.schema, children)

        answer = await self._with_connection(run)
        self._owes_ring = True
        return answer

    async def flows(
        self,
        ids: Sequence[str] | None = None,
        *,
        before: str | None = None,
        limit: int = 50,
        name: str | None = None,
    ) -> list[FlowRow]:
        return await self._with_connection(
            lambda connection: flows.flows(connection, self._sql, ids, before, limit, name)
        )

    async def flow_graph(self, flow_id: str) -> FlowGraph | None:
        async def run(connection: Any) -> FlowGraph | None:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return await flows.graph(connection, self._sql, flow_id)

        return await self._with_connection(run)

    async def drop_flow(self, flow_id: str) -> None:
        await self._fetch(self._sql.drop_flow, flow_id)

    # ── Bulk actions ──

    async def create_bulk(self, bulk: NewBulk, filter: Filter) -> Bulk:
        async def run(connection: Any) -> Bulk:
            async with connection.transaction(isolation="read_committed"):
                wanted = fitting(bulk.action, filter)
                return await bulks.create(connection, self._sql, self._target.quoted_schema, bulk, wanted)

        return await self._with_connection(run)

    async def steer_bulk(self, bulk_id: str, to: Steering, *, by: str, reason: str | None = None) -> bool:
        if to == "start":
            return bool(await self._fetch(self._sql.bulk_start, bulk_id, by, PREVIEW_LIFE, KEPT, reason))
        return bool(await self._fetch(self._sql.bulk_stop, bulk_id, by, reason))

    async def run_bulk(self, bulk_id: str | None = None, limit: int = BATCH) -> Bulk | None:
        async def run(connection: Any) -> Bulk | None:
            for most, patience in bulks.TRIES:
                with suppress(bulks.Contended):
                    async with connection.transaction(isolation="read_committed"):
                        return await bulks.run(connection, self._sql, bulk_id, max(min(limit, most), 1), patience)
            raise AssertionError("a job alone is never contended")

        bulk = await self._with_connection(run)
        if bulk is not None and bulk.action in WAKING:
            self._claim_bounds.forget()
        return bulk

    async def bulks(
        self, ids: Sequence[str] | None = None, *, before: str | None = None, limit: int = 50
    ) -> list[Bulk]:
        asked = None if ids is None else list(ids)
        found = await self._fetch(self._sql.bulks, asked, before or rows.LARGEST_ID, max(limit, 0))
        return [bulks.read(row) for row in found]

    async def bulk_items(
        self, bulk_id: str, *, outcome: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[BulkItem]:
        found = await self._fetch(self._sql.bulk_items, bulk_id, bulks.behind(after), outcome, max(limit, 0))
        return [bulks.item(row) for row in found]

    # ── Wake-up ──

    @property
    def owes_ring(self) -> bool:
        return self._owes_ring and self._target.listen

    async def ring(self) -> None:
        if not self._target.listen:
            return
        self._owes_ring = False
        self._rang = time.monotonic()
        await self._fetch(self._sql.ring, *self._bell)

    async def check_listener(self) -> None:
        await self._doorbell.check()

    async def wait_for_work(self, timeout: float) -> bool:
        self._connections.check()
        return await self._doorbell.wait(timeout)

    # ── Running statements ──

    async def _fetch(self, statement: str, *parameters: Any) -> list[Any]:
        found: list[Any] = await self._with_connection(lambda connection: connection.fetch(statement, *parameters))
        return found

    async def _with_connection(self, run: Callable[[Any], Awaitable[T]]) -> T:
        """Run a verb on a connection of its own. Run it again if the database rolled it back because of other
        transactions."""
        attempt = 1
        while True:
            try:
                async with self._connections.acquire() as connection:
                    return await run(connection)
            except CONFLICTS as error:
                if attempt == ATTEMPTS:
                    message = f"{self._target.label}: still in conflict after {attempt} attempts: {error}"
                    raise errors.StoreBusy(message) from error
                attempt += 1

    async def _follow(self, connection: Any, filter: Filter, search: Generator[WalkPart, Seen, T]) -> T:
        async def look(step: WalkPart) -> Seen:
            render = PostgresPart(self._target.quoted_schema, filter, step)
            return listing.seen(await connection.fetchrow(render.render(), *render.values))

        return await drive_async(search, look)

    # ── Lists and numbers. Last, because from here on `list` is a verb ──

    async def stats(self, topic: str | None = None) -> Stats:
        bounds = (BOUND, MAX_TOPICS + 2)  # one row is for all topics, one more row tells that there are more
        if topic is None:
            found = await self._fetch(self._sql.stats, *bounds)
        else:
            found = await self._fetch(self._sql.stats_of_topic, *bounds, topic)
        live = [Tally(*row[:5]) for row in found if row[0] is not None]
        return make_stats(topic, live, [(row[1], row[5]) for row in found if row[0] is None])

    async def series(self, topic: str | None, window: Window) -> Series:
        statement = self._sql.series if topic is None else self._sql.series_of_topic
        found = await self._fetch(statement, window.span, topic or ALL, *window.times)
        return make_series(topic, window, rollups.read(found))

    async def list(self, filter: Filter, *, limit: int = 20, offset: int = 0, cursor: str | None = None) -> Page:
        place = check_place(limit, offset, cursor)

        async def run(connection: Any) -> Page:
            await connection.execute(listing.BEGIN)
            found = await self._follow(connection, filter, find(filter, place))
            got = await connection.fetch(self._sql.read_jobs, page_ids(found, place))
            await connection.execute("COMMIT")
            return make_page(found, place, {str(row[0]): rows.job(row) for row in got})

        return await self._with_connection(run)


def _may_settle(settlement: Settlement, row: _Row | None) -> bool:
    """Return True if the row, read later, passes the guard of settle.sql."""
    if row is None or row.version != settlement.version or not _has_lease(row, settlement.worker):
        return False
    if row.status is Status.PROCESSING:
        return settlement.transition.status is not Status.CANCEL_REQUESTED
    return row.status is Status.CANCEL_REQUESTED and settlement.transition.from_cancel_requested


def _has_lease(row: _Row | _Seen, worker: str | None) -> bool:
    """Return True if this worker has the lease; None: any worker. A waiting job that is being cancelled may have no
    lease."""
    return row.worker is not None and same_worker(worker, row.worker)


def _judge(settlement: Settlement, row: _Row | None) -> Verdict:
    version, worker, standing = settlement.version, settlement.worker, None
    if row is not None:
        ended = ended_by(version, row.status, row.version, row.history, worker, row.worker)
        standing = Standing(row.status, row.version, ended, row.worker)
    return judge(version, settlement.transition.event, standing, worker)


def _hold(version: int, worker: str | None, seen: _Seen | None, elsewhere: _Row | None) -> Hold:
    """Return how a run stands. `seen`: the row, if the statement locked it; `elsewhere`: the committed row, if another
    transaction had locked it."""
    row = seen or elsewhere
    if row is None or row.version != version or not _has_lease(row, worker) or row.status not in HELD:
        return Hold.LOST
    if seen is None or not seen.written:
        return Hold.UNSEEN
    return Hold.CANCEL if seen.status == Status.CANCEL_REQUESTED else Hold.KEPT


def _same(at: Any) -> Any:
    """Return a time unchanged: the driver makes datetimes."""
    return at
