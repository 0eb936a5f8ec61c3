"""PostgresStore: every verb is one statement on a pooled connection, named like its file in sql/."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from rowlock import errors
from rowlock.core.codec import decode
from rowlock.core.job import HELD, Event, Job, LiveKey, Log, NewJob, Status
from rowlock.core.lifecycle import (
    APPLIED,
    CRASH_ERROR,
    EXPIRED_ERROR,
    LOST,
    MOVES,
    Settlement,
    Standing,
    Verdict,
    ended_by,
    judge,
    same_worker,
)
from rowlock.core.verify import Kept
from rowlock.stores.base import (
    MAX_LOG_LINES,
    Beat,
    Changed,
    Claim,
    Claimed,
    Edit,
    Enqueued,
    Guard,
    Hold,
    Home,
    Pause,
    Progress,
    Rescued,
    Retention,
    Settled,
    WorkerInfo,
)
from rowlock.stores.bulk import BATCH, KEPT, PREVIEW_LIFE, WAKING, Bulk, BulkItem, NewBulk, fitting
from rowlock.stores.failures import FailureQuery, Failures
from rowlock.stores.listing import Seen, Step, find, find_newest, make_page, page_ids
from rowlock.stores.migrations import Migration, require_none
from rowlock.stores.postgres import bulk as bulks
from rowlock.stores.postgres import failures, listing, migrate, partitions, records, rollups, rows
from rowlock.stores.postgres.clock import JUMPED
from rowlock.stores.postgres.connections import CONFLICTS, Conflict, Connections, parse_listener, parse_target
from rowlock.stores.postgres.doorbell import Direct, Doorbell
from rowlock.stores.postgres.hints import Floor, LaneHints, Lanes, Plan
from rowlock.stores.postgres.insert import insert, insert_new
from rowlock.stores.postgres.listing import PostgresStep
from rowlock.stores.postgres.statements import Statements
from rowlock.stores.postgres.sync_transactions import sync_transaction
from rowlock.stores.postgres.transactions import Transactions
from rowlock.stores.reading import (
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
from rowlock.stores.records import Audited, AuditFilter, Entry, Record, Write
from rowlock.stores.reports import Reporter, death, merge, read_log
from rowlock.stores.rollups import ALL
from rowlock.stores.series import Series, Window, make_series

T = TypeVar("T")
ATTEMPTS = 8  # of a verb that lost a race: a deadlock, or a key that came and went
RINGS = 0.01  # seconds between two in which an insert rings: a NOTIFY takes a global lock when it commits
NOTHING = Claimed([], contended=False, next_due=None)


class _Row(NamedTuple):
    """A job as it stands; `worker` is locked_by."""

    status: Status
    version: int
    worker: str | None
    history: list[dict[str, Any]]


class _Seen(NamedTuple):
    """The same of a row that we had locked."""

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
        self._doorbell = Doorbell(self._connections, direct=self._direct(listen_url))
        self._transactions = Transactions(self._connections)
        self._hints = LaneHints()
        self._due = Floor()
        self._bell = self._target.channel, self._target.waiting_key, self._target.ringing_key
        self._owes_ring = False
        self._rang = 0.0  # when someone was last rung for, by time.monotonic()

    def __repr__(self) -> str:
        return f"<PostgresStore {self._target.label}, schema {self._target.schema}>"

    @property
    def any_loop(self) -> bool:
        return False

    @property
    def is_private(self) -> bool:
        return False

    @property
    def watches_commits(self) -> bool:
        return False

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
        await self._transactions.close()
        await self._doorbell.close()  # wakes who waits, and they must find the connections closed
        await self._connections.close()

    async def migrate(self, *, create: bool = True) -> list[Migration]:
        async with self._connections.alone() as connection:
            return await migrate.migrate(connection, self._target)

    async def pending_migrations(self) -> list[Migration]:
        async with self._connections.alone() as connection:
            return await migrate.pending(connection, self._target)

    async def check_schema(self) -> None:
        async with self._connections.alone() as connection:
            await migrate.check_schema(connection, self._target)

    def migration_sql(self, migrations: Sequence[Migration]) -> str:
        return f"BEGIN;\n{migrate.script(migrations, self._target, create_schema=True)}COMMIT;\n"

    async def now(self) -> datetime:
        (row,) = await self._fetch("SELECT clock_timestamp()")
        at: datetime = row[0]
        return at

    async def identity(self) -> str:
        (row,) = await self._fetch(self._sql.identity, "identity")
        return str(row[0])

    async def home(self) -> Home:
        return Home("postgres", await self.identity(), self._target.schema)

    def is_home(self, home: Home) -> bool:
        return True

    # ── Clients ──

    async def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued]:
        if not jobs:
            return []
        answers = await self._insert(jobs, repeat)
        if past := [job.run_at for job in jobs if job.run_at is not None]:
            self._hints.reach(min(past))
        return answers

    async def _insert(self, jobs: Sequence[NewJob], repeat: bool) -> list[Enqueued]:
        keyed = any(job.key is not None for job in jobs)
        if not keyed and not repeat:
            return await self._insert_new(jobs)
        self._owes_ring = True

        async def run(connection: Any) -> list[Enqueued]:
            if len(jobs) == 1 and not repeat:
                return await insert(connection, self._sql, self._clock, jobs, keyed=keyed, repeat=repeat)
            # It may have to be undone.
            async with connection.transaction(isolation="read_committed"):
                return await insert(connection, self._sql, self._clock, jobs, keyed=keyed, repeat=repeat)

        return await self._with_connection(run)

    async def _insert_new(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        target = self._target
        began = time.monotonic()
        ring = (target.listen and began - self._rang >= RINGS, *self._bell)
        if ring[0]:
            self._rang = began
        answers, rang = await self._with_connection(
            lambda connection: insert_new(connection, self._sql, self._clock, jobs, ring)
        )
        if rang is None:  # whoever another one has woken looks again, when these have been committed, if that was soon
            rang = time.monotonic() - began < self._doorbell.rhythm.echo / 2
        if not rang:
            self._owes_ring = True
        return answers

    # ── Workers ──

    async def claim(self, claim: Claim) -> Claimed:
        if claim.limit <= 0 or not claim.lanes:
            return NOTHING
        asked = self._ask(claim)

        async def run(connection: Any) -> list[Any]:
            not_after = self._clock.not_after()
            found: list[Any] = await connection.fetch(self._sql.claim, *asked.parameters, not_after, claim.size)
            if self._is_late(found, not_after):
                raise Conflict(JUMPED)
            return found

        return self._claimed(claim, asked, await self._with_connection(run))

    def _is_late(self, found: list[Any], not_after: datetime | None) -> bool:
        """Did a claim come too late? Then it has claimed nothing."""
        return self._clock.was_late(found[0]["now"], not_after) and len(found) == 1

    def _ask(self, claim: Claim) -> _Asked:
        lanes, after = self._hints.of(claim.lanes), self._due.after
        plan = lanes.plan()
        rest = (after, claim.limit, claim.worker, claim.lease, claim.start)
        return _Asked(lanes, plan, after, time.monotonic(), (*plan.lanes, *plan.parts, *rest))

    def _claimed(self, claim: Claim, asked: _Asked, found: list[Any]) -> Claimed:
        (contended, dead, dead_due), next_due, now, until = found[0][:4]
        started = now if claim.start else None
        jobs = [rows.claimed_job(row, claim.worker, now, until, started) for row in found[1:]]
        jobs.sort(key=rows.turn)
        looked = now - timedelta(seconds=time.monotonic() - asked.sent)  # it may have waited for locks since
        if jobs or not contended:  # of those that are locked, or too large, only what comes before is dealt with
            asked.lanes.learn(asked.plan, len(jobs) if contended else claim.limit, jobs, dead, looked)
        self._due.learn(asked.due_after, dead_due, looked, done=next_due is None or next_due > 0)
        return Claimed(jobs, bool(contended), next_due, sum([len(row[rows.CLAIMED_PAYLOAD]) for row in found[1:]]))

    async def settle(self, settlements: Sequence[Settlement], claim: Claim | None = None) -> Settled:
        if not settlements:
            return Settled([], None if claim is None else await self.claim(claim))
        places: dict[str, int] = {}  # a second settlement of the same job is looked at after the first
        for n, settlement in enumerate(settlements):
            places.setdefault(settlement.id, n)
        batch = [settlements[n] for n in places.values()]
        if claim is None or claim.limit <= 0 or not claim.lanes:
            applied = (await self._settle(batch))[0]["applied"]
            claimed = None if claim is None else NOTHING
        else:
            asked, not_after = self._ask(claim), self._clock.not_after()
            found = await self._settle(batch, *asked.parameters, not_after, claim.size)
            late = self._is_late(found, not_after)
            claimed = await self.claim(claim) if late else self._claimed(claim, asked, found)
            applied = found[0]["applied"]
        if applied is None and len(batch) == len(settlements):
            return Settled([APPLIED] * len(batch), claimed)
        done = set(places.values()) if applied is None else {places[str(job_id)] for job_id in applied}
        return Settled(await self._verdicts(settlements, done, claimed), claimed)

    async def _settle(self, batch: list[Settlement], *claim: Any) -> list[Any]:
        version, worker = batch[0].version, batch[0].worker
        complete = all(
            one.transition.status is Status.COMPLETED and one.version == version and one.worker == worker
            for one in batch
        )

        async def run(connection: Any) -> list[Any]:
            nonlocal complete
            if complete:
                complete = False  # but once: a conflict means that the archive has one of them already
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

    async def _verdicts(
        self, settlements: Sequence[Settlement], done: set[int], claimed: Claimed | None
    ) -> list[Verdict]:
        """What became of those that are not `done`, by a fresh look; what would pass the guard now is tried again.
        `claimed` came after them, in the same statement: none of it is theirs, though it may have their version."""
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
            [(applied,)] = await self._settle([settlements[n] for n in missed.values()])
            done |= set(missed.values()) if applied is None else {missed[str(job_id)] for job_id in applied}
        verdicts = []
        for n, settlement in enumerate(settlements):
            if n in done:
                verdicts.append(APPLIED)
            elif (settlement.id, settlement.version) in new:
                verdicts.append(LOST)
            else:
                verdicts.append(_judge(settlement, standing.get(settlement.id)))
        return verdicts

    async def _standing(self, ids: Sequence[str]) -> dict[str, _Row]:
        """By a fresh snapshot."""
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
        """Write start marks with a statement of their own. The ids of those that have them now."""
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
        return [answers[report.id, report.version, report.worker] for report in reports]

    async def look(self, runs: Sequence[Beat]) -> list[Hold]:
        found = await self._fetch(self._sql.look, [run.id for run in runs]) if runs else []
        seen = {str(job_id): _Seen(status, version, worker, True) for job_id, status, version, worker in found}
        return [_hold(run.version, run.worker, seen.get(run.id), None) for run in runs]

    async def held_by(self, worker: str) -> list[Beat]:
        found = await self._fetch(self._sql.held_by, worker)
        return [Beat(str(job_id), version, started, worker) for job_id, version, started in found]

    async def held_by_any(self, workers: Sequence[str], limit: int) -> list[Beat]:
        found = await self._fetch(self._sql.held_by_any, list(workers), max(limit, 0)) if workers else []
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
        [(seen,)] = await self._fetch(self._sql.report, *rows.worker_values(worker))
        at: datetime = seen
        return at

    async def retire(self, names: Sequence[str]) -> int:
        gone = list(names)
        return _count(await self._with_connection(lambda connection: connection.execute(self._sql.retire, gone)))

    async def workers(self) -> list[WorkerInfo]:
        return [rows.worker(row) for row in await self._fetch(self._sql.workers)]

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
        [(promoted, oldest, dead, at)] = await self._fetch(self._sql.promote, limit, after)
        self._due.learn(after, dead, at, done=promoted < limit)
        if oldest is not None:
            self._hints.reach(oldest)
        return int(promoted)

    async def rescue(
        self,
        *,
        by: str,
        backoff: Sequence[float],
        limit: int = 500,
        workers: Sequence[str] | None = None,
        detail: str | None = None,
        before: datetime | None = None,
    ) -> list[Rescued]:
        parameters: list[Any] = [by, list(backoff), CRASH_ERROR, limit, death(detail, seen=workers is not None)]
        if workers is None:
            found = await self._fetch(self._sql.rescue, *parameters, before)
        else:
            found = await self._fetch(self._sql.rescue_workers, *parameters, list(workers))
        if found:
            self._hints.forget()  # a job that crashed for the first time is back in its old place
        return [
            Rescued(str(job_id), topic, version, rows.STATUS[status], charged)
            for job_id, topic, version, status, charged in found
        ]

    async def expire(self, *, by: str, limit: int = 500) -> list[str]:
        return [str(row[0]) for row in await self._fetch(self._sql.expire, by, limit, EXPIRED_ERROR)]

    async def cancel_timeout(self, *, by: str, grace: float = 30.0, limit: int = 500) -> list[str]:
        return [str(row[0]) for row in await self._fetch(self._sql.cancel_timeout, by, limit, grace)]

    async def prune(self, retention: Retention, limit: int = 1000) -> int:
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

    async def fold_counts(self, limit: int = 10_000) -> int:
        key = self._target.folding_key
        return await self._with_connection(lambda connection: rollups.fold(connection, self._sql, key, limit))

    async def sweep_rollups(self, limit: int = 10_000) -> int:
        return _count(await self._with_connection(lambda connection: rollups.sweep(connection, self._sql, limit)))

    async def group_failures(self, limit: int = 200) -> int:
        return await self._with_connection(lambda connection: failures.group(connection, self._sql, max(limit, 0)))

    async def keep_partitions(self, retention: Retention, *, ahead: int = 3) -> PartitionReport:
        async with self._connections.acquire() as connection:
            return await partitions.keep(connection, self._target, retention, ahead)

    # ── Operators ──

    async def cancel(self, ids: Sequence[str], *, by: str, reason: str | None = None) -> list[Changed]:
        return await self._change("cancel", self._sql.cancel, ids, by, reason)

    async def requeue(
        self,
        ids: Sequence[str],
        edit: Edit = Edit(),  # noqa: B008 - it is frozen
        *,
        version: int | None = None,
        by: str,
        reason: str | None = None,
    ) -> list[Changed]:
        self._hints.forget()
        statement, rest = self._sql.requeue, (version, *rows.edit(edit), False)
        answers = await self._change("requeue", statement, ids, by, reason, len(ids) == 1, *rest)
        keyed = sorted({answer.id for answer in answers if answer.holder == answer.id})
        alone = {
            job_id: (await self._change("requeue", statement, [job_id], by, reason, True, *rest))[0] for job_id in keyed
        }
        return [alone.get(answer.id, answer) for answer in answers]

    async def update(self, ids: Sequence[str], edit: Edit, *, by: str, reason: str | None = None) -> list[Changed]:
        self._hints.forget()
        return await self._change("update", self._sql.update, ids, by, reason, *rows.edit(edit))

    async def delete(self, ids: Sequence[str], *, by: str, reason: str | None = None) -> list[Changed]:
        return await self._change("delete", self._sql.delete, ids, by, reason)

    async def _change(self, verb: str, statement: str, ids: Sequence[str], *parameters: Any) -> list[Changed]:
        """Ask until every job has an answer that holds.

        Someone else's commit may come while we wait for a row's lock: then the row is too new for our snapshot and the
        write misses it, or it has just been completed and stands in the archive now.
        """
        answers: dict[str, Changed] = {}
        todo = list(dict.fromkeys(ids))
        for _ in range(ATTEMPTS):
            found = await self._fetch(statement, todo, *parameters) if todo else []
            for job_id, status, done, holder in found:
                other = None if holder is None else str(holder)
                answers[str(job_id)] = Changed(str(job_id), done, rows.STATUS[status], other)
            if missing := [job_id for job_id in todo if job_id not in answers]:
                for job_id, row in (await self._standing(missing)).items():
                    answers[job_id] = Changed(job_id, False, row[0])
            sources = MOVES[verb].sources
            todo = [a.id for a in answers.values() if not a.done and a.holder is None and a.status in sources]
            if not todo:
                break
        return [answers.get(job_id, Changed(job_id, False, None)) for job_id in ids]

    async def pause(self, topic: str, *, by: str, reason: str | None = None, until: datetime | None = None) -> None:
        await self._fetch(self._sql.pause, topic, by, reason, until)

    async def resume(self, topic: str, *, by: str, reason: str | None = None) -> bool:
        self._hints.forget()
        return bool(await self._fetch(self._sql.resume, topic, by, reason))

    async def paused(self) -> list[Pause]:
        return [Pause(*row) for row in await self._fetch(self._sql.paused)]

    # ── Reading ──

    async def get(self, ids: Sequence[str]) -> dict[str, Job]:
        jobs = [rows.job(row) for row in await self._fetch(self._sql.get, list(ids))] if ids else []
        return {job.id: job for job in jobs}

    async def holders(self, keys: Sequence[LiveKey]) -> list[str]:
        if not keys:
            return []
        found = await self._fetch(self._sql.existing, [None] * len(keys), *map(list, zip(*keys, strict=True)))
        return [str(row["id"]) for row in found]

    async def statuses(self, ids: Sequence[str]) -> dict[str, Status]:
        found = await self._fetch(self._sql.statuses, list(ids)) if ids else []
        return {str(row[0]): Status(row[1]) for row in found}

    async def states(self, ids: Sequence[str]) -> dict[str, State]:
        found = await self._fetch(self._sql.states, list(ids)) if ids else []
        return {(state := rows.state(row)).id: state for row in found}

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

    async def events(self, job_id: str) -> list[Event]:
        return [rows.event(row) for row in await self._fetch(self._sql.events, job_id)]

    async def logs(self, job_id: str) -> Log:
        found = await self._fetch(self._sql.logs, job_id)
        return read_log(*found[0]) if found else Log([])

    async def failures(self, query: FailureQuery) -> Failures:
        return await self._with_connection(lambda connection: failures.read(connection, self._sql, query))

    async def kept(self, *, archived: bool, before: str | None, limit: int) -> list[Kept]:
        statement = self._sql.kept_archived if archived else self._sql.kept
        return [rows.kept(row) for row in await self._fetch(statement, before or rows.LARGEST_ID, max(limit, 0))]

    async def kept_counts(self, limit: int) -> dict[Status, tuple[int, int]]:
        found = await self._fetch(self._sql.kept_counts, max(limit, 0))
        return {rows.STATUS[status]: (there, counted) for status, there, counted in found}

    # ── Records ──

    async def records(
        self, kind: str, ids: Sequence[str] | None = None, *, after: str | None = None, limit: int | None = None
    ) -> list[Record]:
        asked = None if ids is None else list(ids)
        found = await self._fetch(self._sql.records, kind, asked, after or "", limit)
        return [records.record(kind, row) for row in found]

    async def write_records(self, writes: Sequence[Write], entry: Entry | None = None) -> bool:
        async def run(connection: Any) -> bool:
            try:
                async with connection.transaction(isolation="read_committed"):
                    await records.write(connection, self._sql, writes, entry)
            except records.Refused:
                return False
            return True

        return await self._with_connection(run)

    async def sweep_records(self, limit: int) -> int:
        return len(await self._fetch(self._sql.record_sweep, max(limit, 0)))

    async def audit(
        self,
        filter: AuditFilter | None = None,
        *,
        before: int | None = None,
        limit: int = 50,
        bulk: str | None = None,
    ) -> list[Audited]:
        asked = filter or AuditFilter(bulk=bulk)
        statement = self._sql.audited
        if asked.job_id is not None:
            statement = self._sql.audited_of_job
        elif asked.bulk is not None:
            statement = self._sql.audited_of_bulk
        wanted = asked.bulk, asked.job_id, asked.by, asked.action, asked.since
        return [records.audited(row) for row in await self._fetch(statement, before, max(limit, 0), *wanted)]

    # ── Bulk actions ──

    async def create_bulk(self, bulk: NewBulk, filter: Filter) -> Bulk:
        async def run(connection: Any) -> Bulk:
            async with connection.transaction(isolation="read_committed"):
                wanted = fitting(bulk.action, filter)
                return await bulks.create(connection, self._sql, self._target.quoted_schema, bulk, wanted)

        return await self._with_connection(run)

    async def start_bulk(self, bulk_id: str, *, by: str, reason: str | None = None) -> bool:
        return bool(await self._fetch(self._sql.bulk_start, bulk_id, by, PREVIEW_LIFE, KEPT, reason))

    async def stop_bulk(self, bulk_id: str, *, by: str, reason: str | None = None) -> bool:
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
            self._hints.forget()
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

    async def prune_bulks(self, limit: int = 10_000) -> int:
        [(count,)] = await self._fetch(self._sql.bulk_prune, max(limit, 0), PREVIEW_LIFE, KEPT)
        return int(count)

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
        """Run a verb on a connection of its own; again if others made the database roll it back."""
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

    async def _follow(self, connection: Any, filter: Filter, search: Generator[Step, Seen, T]) -> T:
        try:
            step = next(search)
            while True:
                render = PostgresStep(self._target.quoted_schema, filter, step)
                row = await connection.fetchrow(render.render(), *render.values)
                step = search.send(listing.seen(row))
        except StopIteration as end:
            found: T = end.value
            return found

    # ── Lists and numbers. Last, because from here on `list` is a verb ──

    async def stats(self, topic: str | None = None) -> Stats:
        bounds = (BOUND, MAX_TOPICS + 2)  # one row is for all topics, one more tells that there are more
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
            got = await connection.fetch(self._sql.get, page_ids(found, place))
            await connection.execute("COMMIT")
            return make_page(found, place, {str(row[0]): rows.job(row) for row in got})

        return await self._with_connection(run)


def _may_settle(settlement: Settlement, row: _Row | None) -> bool:
    """The guard of settle.sql, on a row read later."""
    if row is None or row.version != settlement.version or not same_worker(settlement.worker, row.worker):
        return False
    return row.status is Status.PROCESSING or (
        row.status is Status.CANCEL_REQUESTED and settlement.transition.from_cancel_requested
    )


def _judge(settlement: Settlement, row: _Row | None) -> Verdict:
    version, worker, standing = settlement.version, settlement.worker, None
    if row is not None:
        ended = ended_by(version, row.status, row.version, row.history, worker, row.worker)
        standing = Standing(row.status, row.version, ended, row.worker)
    return judge(version, settlement.transition.event, standing, worker)


def _hold(version: int, worker: str | None, seen: _Seen | None, elsewhere: _Row | None) -> Hold:
    """`seen`: the row as we locked it; `elsewhere`: the row as others see it, when someone else had it locked."""
    row = seen or elsewhere
    if row is None or row.version != version or not same_worker(worker, row.worker) or row.status not in HELD:
        return Hold.LOST
    if seen is None or not seen.written:
        return Hold.UNSEEN
    return Hold.CANCEL if seen.status == Status.CANCEL_REQUESTED else Hold.KEPT


def _count(tag: str) -> int:
    """How many rows, from a command tag such as UPDATE 5."""
    return int(tag.rsplit(" ", 1)[1])
