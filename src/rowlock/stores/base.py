"""Store: the one protocol between rowlock and a database.

Every verb is a batch, and answers in the order it was asked. Every verb is one guarded statement or one transaction;
it may be repeated after a lost reply (`OutcomeUnknown`) without doing its work twice. A guard that doesn't match
changes nothing and says so. Time is the database's clock: the caller passes delays, never "now".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import force_setattr

from rowlock.core.codec import clean_text
from rowlock.core.job import Event, Job, Lane, LiveKey, Log, NewJob, Status
from rowlock.core.lifecycle import Settlement, Verdict
from rowlock.core.verify import Kept
from rowlock.stores.failures import FailureQuery, Failures
from rowlock.stores.migrations import Migration
from rowlock.stores.reading import DAY as DAY
from rowlock.stores.reading import MIN_RETENTION as MIN_RETENTION
from rowlock.stores.reading import Filter, Page, PartitionReport, State, Stats
from rowlock.stores.reading import Retention as Retention
from rowlock.stores.records import Audited, AuditFilter, Entry, Record, Write
from rowlock.stores.series import Series, Window

if TYPE_CHECKING:  # it has need of Edit
    from rowlock.stores.bulk import Bulk, BulkItem, NewBulk

MAX_PROGRESS_TEXT = 2000  # bytes of a stage or message
MAX_LOG_LINES = 200  # kept with a job, the newest; what is dropped is counted
MAX_LOG_TEXT = 1000  # bytes of a line
MEMORY = "@memory"  # how the identity of a database in memory ends: no other connection can see that one


class Home(Struct, frozen=True):
    """Which database is ours; a connection that an application brings must lead to the same. See `Store.identity`."""

    dialect: Literal["sqlite", "postgres"]
    identity: str
    schema: str | None


class Enqueued(Struct, frozen=True):
    """`id` is the caller's, or the id of the job that was there before (same id, or same live key)."""

    id: str
    existing: bool
    status: Status
    run_at: datetime
    created: datetime


class Claim(Struct, frozen=True):
    """`start`: the handlers start at once, so mark it in the claim itself. Jobs claimed ahead are marked by heartbeat,
    or by settle. `size`: bytes of payload after which the claim brings no more jobs; None: any number."""

    worker: str
    lanes: tuple[Lane, ...]
    limit: int
    lease: float
    start: bool = True
    size: int | None = None


class Claimed(Struct, frozen=True):
    """`contended`: others held some of the jobs that were due, or they were too large; ask again at once.
    `next_due`: seconds until the next future job wants `promote`; None if there is none.
    `size`: bytes of their payloads."""

    jobs: list[Job]
    contended: bool
    next_due: float | None
    size: int = 0


class Settled(Struct, frozen=True):
    verdicts: list[Verdict]
    claimed: Claimed | None


class Beat(Struct, frozen=True):
    """A run. `started`: the handler of a job that was claimed ahead starts now (or has started): a durable start mark.
    `worker`: who must have it; None: whoever has it."""

    id: str
    version: int
    started: bool = False
    worker: str | None = None


class NewLine(Struct, frozen=True):
    """A line of a job's log, said `age` seconds ago."""

    age: float
    level: str
    text: str

    def __post_init__(self) -> None:
        force_setattr(self, "level", clean_text(self.level[:20]))
        force_setattr(self, "text", clean_text(self.text, MAX_LOG_TEXT))


class Progress(Struct, frozen=True):
    """What a run says about itself. None leaves percent, stage or message as it is; lines are added to the log.
    `worker`: who must have it; None: whoever has it."""

    id: str
    version: int
    percent: float | None = None
    stage: str | None = None
    message: str | None = None
    lines: tuple[NewLine, ...] = ()
    worker: str | None = None

    def __post_init__(self) -> None:
        # Whatever a handler says: one report must not fail the batch that it goes with.
        if self.percent is not None:
            percent = self.percent if self.percent == self.percent else 0.0
            force_setattr(self, "percent", float(min(max(percent, 0.0), 100.0)))
        for name in ("stage", "message"):
            text = getattr(self, name)
            if text is not None:
                force_setattr(self, name, clean_text(str(text), MAX_PROGRESS_TEXT))


class Hold(StrEnum):
    """A worker's standing with a job, answered by heartbeat and progress."""

    KEPT = "kept"
    CANCEL = "cancel"  # kept, but a cancel has been requested
    LOST = "lost"  # not this run's any more; nothing was written
    UNSEEN = "unseen"  # someone had the row locked for a moment; nothing was written, ask again


class Rescued(Struct, frozen=True):
    id: str
    topic: str
    version: int
    status: Status  # after
    charged: bool


class Changed(Struct, frozen=True):
    """An operator's verb on one job. `status` is after the change, or why there was none; None: no such job.
    `holder`: requeue only, the live job that has the key."""

    id: str
    done: bool
    status: Status | None
    holder: str | None = None


class Edit(Struct, frozen=True, kw_only=True):
    """What `update`, or a requeue, changes; UNSET stays. Values are checked and encoded already (see core.job)."""

    priority: int | UnsetType = UNSET
    run_at: datetime | UnsetType = UNSET
    delay: float | UnsetType = UNSET  # seconds from the database's clock; excludes run_at
    payload: str | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET

    @property
    def changed(self) -> list[str]:
        """Names of the columns that it sets, sorted."""
        given = {name for name in self.__struct_fields__ if getattr(self, name) is not UNSET}
        return sorted("run_at" if name == "delay" else name for name in given)


class Pause(Struct, frozen=True):
    topic: str
    at: datetime
    until: datetime | None
    reason: str | None
    by: str


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """A worker as the database knows it. `seen` is its last report; None in a report that is about to be made."""

    name: str
    host: str
    pid: int
    topics: tuple[str, ...]
    concurrency: int
    running: int
    lease: float
    stopping: bool = False
    rowlock: str  # its version
    started: datetime | None = None
    seen: datetime | None = None


class Guard(Struct):
    """The run that a transaction belongs to: it commits only while the run holds its lease (HELD, same version, same
    worker; None: whoever has it). `completion`: the transaction completes the job as well, by this settlement.
    `outage`: the store says here that the database went away during the application's own statements."""

    id: str
    version: int
    completion: Settlement | None = None
    worker: str | None = None
    outage: bool = False


class Store(Protocol):
    @property
    def any_loop(self) -> bool:
        """May it be used from several event loops? If not, each needs a store of its own."""
        ...

    @property
    def is_private(self) -> bool:
        """Can no other process see it? A database in memory."""
        ...

    @property
    def owes_ring(self) -> bool:
        """Has it inserted jobs without having rung for anyone? Inserts ring by themselves where that saves time."""
        ...

    @property
    def watches_commits(self) -> bool:
        """Does wait_for_work notice every commit by itself? Then nobody needs to ring."""
        ...

    # ── Life of the store ──
    async def open(self) -> None:
        """Connect and check the schema: NotMigrated, SchemaTooNew, StoreUnavailable, …"""

    async def close(self) -> None:
        """Let go of all connections. Safe to call twice."""

    async def migrate(self, *, create: bool = True) -> list[Migration]:
        """Bring the schema up to date and answer what was applied. Safe to run twice, and at once from several
        processes. Needs no open(). `create`: make an SQLite file that is missing; else it is StoreUnavailable."""
        ...

    async def pending_migrations(self) -> list[Migration]:
        """What `migrate` would apply. Checks the applied ones against this code."""
        ...

    async def check_schema(self) -> None:
        """SchemaDamaged if a table or a column is gone that the applied migrations have made. It names all of them."""

    def migration_sql(self, migrations: Sequence[Migration]) -> str:
        """The same as a script, for those who run migrations themselves."""
        ...

    async def now(self) -> datetime:
        """The database's clock."""
        ...

    async def identity(self) -> str:
        """Which database this is: random text made by the first migration, and the place where it is kept, so that a
        copy (a restored dump, a copied file) is another one."""
        ...

    async def home(self) -> Home:
        """The identity, and how to get there."""
        ...

    def is_home(self, home: Home) -> bool:
        """False if this answer of `home` is out of date: ask again. An SQLite file may have been replaced."""
        ...

    # ── Clients ──
    async def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued]:
        """All jobs in one transaction. A live job with the same (topic, scope, scope_id, key), or any job with the same
        id, answers instead of a new one; also one earlier in the same batch. `repeat`: the ids may have been inserted
        by an earlier try whose outcome is unknown, or are the caller's own: look in the archive as well."""
        ...

    # ── Workers ──
    async def claim(self, claim: Claim) -> Claimed:
        """pending → processing for at most `limit` jobs of the lanes: ready, not expired, topic not paused; highest
        priority first across all lanes, then oldest run_at, then id. In that order."""
        ...

    async def settle(self, settlements: Sequence[Settlement], claim: Claim | None = None) -> Settled:
        """Apply transitions, each guarded by status, version AND worker; a verdict per settlement. With `claim`, also
        claim the next batch in the same round trip and transaction."""
        ...

    async def heartbeat(self, beats: Sequence[Beat], lease: float) -> list[Hold]:
        """Extend leases, never shorten them."""
        ...

    async def progress(self, reports: Sequence[Progress]) -> list[Hold]: ...

    async def look(self, runs: Sequence[Beat]) -> list[Hold]:
        """How runs stand, without writing anything: KEPT, CANCEL or LOST."""
        ...

    async def held_by(self, worker: str) -> list[Beat]:
        """What this worker holds by the record; it may have missed the reply to a claim. `started`: by the mark."""
        ...

    async def held_by_any(self, workers: Sequence[str], limit: int) -> list[Beat]:
        """The same of several, up to so many: those whose leases end first."""
        ...

    def transaction(self, guard: Guard, *, longest: float) -> AbstractAsyncContextManager[Any]:
        """A connection for the application's own writes, in a transaction of its own that commits at the end, after the
        guard was checked as the last statement before COMMIT; else LeaseLost, and nothing is written. PostgreSQL: an
        asyncpg connection. SQLite: a sqlite3 connection that holds the write lock for at most `longest` seconds; then
        it is rolled back, and StoreBusy is raised by whatever is done with it, and at the end."""
        ...

    def sync_transaction(self, guard: Guard, *, longest: float) -> AbstractContextManager[Any]:
        """The same for code without an event loop, in the thread that uses it. PostgreSQL: a psycopg connection."""
        ...

    # ── Workers' register ──
    async def report(self, worker: WorkerInfo) -> datetime:
        """Write down that this worker lives. Answers the database's clock."""
        ...

    async def retire(self, names: Sequence[str]) -> int:
        """Remove workers from the register; how many."""
        ...

    async def workers(self) -> list[WorkerInfo]:
        """The register, by name: those that live, and those that did not say goodbye."""
        ...

    async def set_backoff(self, tables: Mapping[str, Sequence[float] | None]) -> None:
        """Keep the backoff tables of topics, for rescues; None: a topic has none of its own (any more). Writes nothing
        where nothing is new. Who says it last is right."""

    # ── Maintenance: each call does at most `limit`, any number of processes may call at once ──
    async def promote(self, limit: int = 1000) -> int:
        """Make jobs whose run_at has come ready for claiming; how many."""
        ...

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
        """Take back jobs whose lease has expired (`workers`: instead, whatever these dead workers hold). `before`: only
        leases that had expired by then; this call may wait for a lock while their owners do so as well.
        Charged if the handler had started: retries+1, pending after backoff[retries] (at once on the first crash), or
        expired when no retry is left. Not started: pending, not charged. cancel_requested: cancelled. `backoff` is for
        topics that have no table of their own (`set_backoff`).

        `crashes` grows by one: the job is a suspect from now on. With `workers`, only if the handler had started: who
        names dead workers knows what they had started, and has marked it. `detail` says how they died, for the error.
        """
        ...

    async def expire(self, *, by: str, limit: int = 500) -> list[str]:
        """pending past expires_at → expired."""
        ...

    async def cancel_timeout(self, *, by: str, grace: float = 30.0, limit: int = 500) -> list[str]:
        """cancel_requested for longer than `grace` → cancelled. The status fences the zombie."""
        ...

    async def prune(self, retention: Retention, limit: int = 1000) -> int:
        """Delete finished jobs that are past their retention; how many. Completed ones are kept a day at least."""
        ...

    async def fold_counts(self, limit: int = 10_000) -> int:
        """Add what was counted since to the totals; how many notes were folded. Numbers are right without it; it keeps
        `stats` fast. Also makes rollups of them, exactly once: charts are right without it too, but for a bound."""
        ...

    async def sweep_rollups(self, limit: int = 10_000) -> int:
        """Remove rollups that have been kept for as long as their span is; how many."""
        ...

    async def group_failures(self, limit: int = 200) -> int:
        """Give dead letters that have none their fingerprint, the newest first; how many. For those that SQL alone has
        made, or an older worker."""
        ...

    async def keep_partitions(self, retention: Retention, *, ahead: int = 3) -> PartitionReport:
        """Make the archive's parts for today and `ahead` days more, and drop those in which nothing is kept any more.
        Never waits long for others: what can't be done now is left to the next call."""
        ...

    # ── Operators: each also writes the audit, in the same transaction ──
    async def cancel(self, ids: Sequence[str], *, by: str, reason: str | None = None) -> list[Changed]:
        """pending, blocked, waiting → cancelled; processing → cancel_requested. Again on cancel_requested: not done."""
        ...

    async def requeue(
        self,
        ids: Sequence[str],
        edit: Edit = Edit(),  # noqa: B008 - it is frozen
        *,
        version: int | None = None,
        by: str,
        reason: str | None = None,
    ) -> list[Changed]:
        """failed, expired, cancelled → pending: retries, crashes, progress and cancel request reset, run_at now (unless
        the edit says when), expires_at cleared. Refused while another live job has its key (`holder`), and if a job's
        version is not this one."""
        ...

    async def update(self, ids: Sequence[str], edit: Edit, *, by: str, reason: str | None = None) -> list[Changed]:
        """Change pending jobs."""
        ...

    async def delete(self, ids: Sequence[str], *, by: str, reason: str | None = None) -> list[Changed]:
        """Remove pending or finished jobs, archived ones too. The audit entry stays; `status` is what it was."""
        ...

    async def pause(self, topic: str, *, by: str, reason: str | None = None, until: datetime | None = None) -> None:
        """No claim that begins after this returns takes jobs of `topic`, until resume or `until`."""

    async def resume(self, topic: str, *, by: str, reason: str | None = None) -> bool:
        """False: it was not paused."""
        ...

    async def paused(self) -> list[Pause]: ...

    # ── Reading ──
    async def get(self, ids: Sequence[str]) -> dict[str, Job]:
        """Jobs by id, live or archived; the missing ones are missing."""
        ...

    async def holders(self, keys: Sequence[LiveKey]) -> list[str]:
        """The ids of the live jobs that have these keys, in no order."""
        ...

    async def statuses(self, ids: Sequence[str]) -> dict[str, Status]:
        """The same, without all that may be large: for those who wait for many."""
        ...

    async def states(self, ids: Sequence[str]) -> dict[str, State]:
        """The same for those who watch many: what of jobs is short."""
        ...

    async def newest(self, filters: Sequence[Filter], limit: int) -> list[list[str]]:
        """For each filter the ids of the newest jobs that meet it, newest first: as `list`, but nothing is counted."""
        ...

    async def newest_of_scopes(self, filters: Sequence[Filter], limit: int) -> list[list[str] | None]:
        """The same in one go, for filters that ask for a scope_id and nothing else but topics and statuses. None: the
        scope has so many other jobs that not enough was found among the newest `OWN_WINDOW`."""
        ...

    async def mark(self) -> str:
        """As long as this is the same, so is everything that is read here."""
        ...

    async def events(self, job_id: str) -> list[Event]:
        """The job's history, oldest first."""
        ...

    async def logs(self, job_id: str) -> Log:
        """What its handlers have logged (`ctx.log`), oldest first, over all runs."""
        ...

    async def failures(self, query: FailureQuery) -> Failures:
        """Dead letters in groups, by their fingerprints."""
        ...

    async def kept(self, *, archived: bool, before: str | None, limit: int) -> list[Kept]:
        """Rows of _jobs or of the archive as they are kept, from the largest id down, below `before`: for `verify`."""
        ...

    async def kept_counts(self, limit: int) -> dict[Status, tuple[int, int]]:
        """By end state: how many jobs there are (counted up to `limit`), and how many have ended so, ever."""
        ...

    # ── Records: settings, accounts, sessions, tokens ──
    async def records(
        self, kind: str, ids: Sequence[str] | None = None, *, after: str | None = None, limit: int | None = None
    ) -> list[Record]:
        """Those of a kind, all or by id, without what has expired, in the order of ids; behind the id `after`."""
        ...

    async def write_records(self, writes: Sequence[Write], entry: Entry | None = None) -> bool:
        """All of them and the audit's entry, or nothing: then one of them found another revision than it wanted."""
        ...

    async def sweep_records(self, limit: int) -> int:
        """Remove what has expired."""
        ...

    async def audit(
        self,
        filter: AuditFilter | None = None,
        *,
        before: int | None = None,
        limit: int = 50,
        bulk: str | None = None,
    ) -> list[Audited]:
        """What was done by whom, the newest first; `before`: below this id. `bulk`: short for a filter by it."""
        ...

    # ── Bulk actions (stores/bulk.py) ──
    async def create_bulk(self, bulk: NewBulk, filter: Filter) -> Bulk:
        """A preview: the jobs that meet `filter` (see `bulk.fitting`) as they stand, by one snapshot. InvalidInput if
        they are too many, or take too long to find. If it undoes another one: instead, the pending jobs that this one
        has cancelled, as it has left them."""
        ...

    async def start_bulk(self, bulk_id: str, *, by: str, reason: str | None = None) -> bool:
        """preview or stopped → running, with an entry in the audit. A reason takes the place of the one that it has.
        False: it is in another state, or too old."""
        ...

    async def stop_bulk(self, bulk_id: str, *, by: str, reason: str | None = None) -> bool:
        """running → stopped: what is done stays done, and no further job is changed once this has returned."""
        ...

    async def run_bulk(self, bulk_id: str | None = None, limit: int = 500) -> Bulk | None:
        """The next `limit` jobs of the one that has waited for longest (or of this one), in one transaction with what
        is noted of it: each job is changed once, whoever dies in between. None: none is running, or others are at it.
        Any number of processes may call it at once."""
        ...

    async def bulks(
        self, ids: Sequence[str] | None = None, *, before: str | None = None, limit: int = 50
    ) -> list[Bulk]:
        """The newest first; `before`: below this id."""
        ...

    async def bulk_items(
        self, bulk_id: str, *, outcome: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[BulkItem]:
        """In the order of job ids, behind `after`; those of one outcome, or "unrun"."""
        ...

    async def prune_bulks(self, limit: int = 10_000) -> int:
        """Remove previews that nobody has started, and what ended long ago, `limit` rows at a time; how many."""
        ...

    # ── Wake-up: a hint, never the truth ──
    async def ring(self) -> None:
        """Wake whoever waits for work."""

    async def wait_for_work(self, timeout: float) -> bool:
        """True when the doorbell rang (or something was committed) since the last call returned; False after
        `timeout` seconds. A missed ring costs a poll, nothing else."""
        ...

    # ── Lists and numbers. Last, because from here on `list` is a verb ──
    async def stats(self, topic: str | None = None) -> Stats:
        """How many jobs stand where, and how all jobs have ended, also those that were pruned; by topic."""
        ...

    async def series(self, topic: str | None, window: Window) -> Series:
        """What happened when, by topic or in all, from rollups and what is not folded yet: no job is looked at."""
        ...

    async def list(self, filter: Filter, *, limit: int = 20, offset: int = 0, cursor: str | None = None) -> Page:
        """Jobs that meet `filter`, live and archived, newest first (by id). `cursor` is an earlier page's `next`."""
        ...
