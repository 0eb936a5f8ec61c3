"""Store: the one protocol between rowlock and a database.

Every verb takes a batch, and its answers have the order of the questions. Every verb is one guarded statement or one
transaction. The caller may repeat a verb after a lost reply (`OutcomeUnknown`): the verb won't do its work twice. If a
guard doesn't match, the verb changes nothing and says so. Time is the database's clock: the caller passes delays, not
times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import force_setattr

from rowlock.core.codec import clean_text
from rowlock.core.job import Job, Lane, LiveKey, NewJob, Status
from rowlock.core.lifecycle import Settlement, Verdict
from rowlock.core.moves import Decision, Due, Order, Patch, patches
from rowlock.core.moves import Edit as Edit
from rowlock.core.steps import StepMark, StepState
from rowlock.core.verify import StepOwner, StoredRow
from rowlock.core.waits import Wait
from rowlock.stores.failures import FailureQuery, Failures
from rowlock.stores.migrations import Migration, Pending
from rowlock.stores.queries import DAY as DAY
from rowlock.stores.queries import MIN_RETENTION as MIN_RETENTION
from rowlock.stores.queries import Filter, Page, Stats
from rowlock.stores.queries import Retention as Retention
from rowlock.stores.records import ALL_LINES, Audited, AuditFilter, Entry, Record, Write
from rowlock.stores.series import Series, Window

if TYPE_CHECKING:
    import typing_extensions  # its TypeVar has a default, also before Python 3.13

    # These import this module.
    from rowlock.core.flows import FlowRow, NewChildren, NewFlow
    from rowlock.core.schedules import Fired, Schedule
    from rowlock.stores.bulk import Bulk, BulkItem, NewBulk, Steering
    from rowlock.stores.flows import FlowGraph
    from rowlock.stores.limits import NewShare, Usage
    from rowlock.stores.schedules import Decide, Decided, ScheduleFilter, Which

    R_co = typing_extensions.TypeVar("R_co", covariant=True, default=Any)
else:
    R_co = TypeVar("R_co", covariant=True)

T = TypeVar("T")

MAX_PROGRESS_TEXT = 2000  # bytes of a stage or message
MAX_LOG_LINES = 200  # stored with a job, the newest; older lines are dropped and counted
MAX_LOG_TEXT = 1000  # bytes of a line
MOST_COUNTED = 10_000  # jobs of a lane or a line
MEMORY = "@memory"  # ends the identity of a database in memory, which no other connection can see


# Bounded work in the background: any number of processes may do it at once. See `Store.tidy`.
# fold_counts: add new counts to the totals and to the rollups, exactly once. It keeps `stats` fast. Numbers and charts
#   are right without it, but for a bound.
# group_failures: give dead letters that have none their fingerprint, the newest first. SQL alone, or an older worker,
#   makes such dead letters.
# sweep_records, sweep_rollups: remove expired records and rollups. prune_bulks: remove previews that no operator has
#   started, and bulk actions that ended long ago.
# prune_fires: remove old fires of schedules that made no job.
# prune_flows: remove flows that have no job any more. prune_throttles: forget keys whose throttle is over.
# prune_starts: remove starts that no rate counts any more.
Chore = Literal[
    "fold_counts",
    "group_failures",
    "sweep_records",
    "sweep_rollups",
    "prune_bulks",
    "prune_fires",
    "prune_flows",
    "prune_throttles",
    "prune_starts",
]
CHORES: dict[Chore, int] = {  # what one call should do at most
    "fold_counts": 10_000,
    "group_failures": 200,
    "sweep_records": 1000,
    "sweep_rollups": 10_000,
    "prune_bulks": 10_000,
    "prune_fires": 10_000,
    "prune_flows": 1000,
    "prune_throttles": 10_000,
    "prune_starts": 10_000,
}


Part = Literal["jobs", "archive", "steps"]  # a part of the stored data, see `Store.stored_rows`


class Home(Struct, frozen=True):
    """The database of the store. A connection that an application passes must lead to the same database.

    `dialect` names the database system (see stores/callers). `identity`: random text made by the first migration, and
    the place where it is stored. So a copy (a restored dump, a copied file) has another identity."""

    dialect: str
    identity: str
    schema: str | None

    def is_current(self) -> bool:
        """Return False if it is out of date, because an SQLite file was replaced. Then call `Store.home` again."""
        return True


class Traits(Struct, frozen=True):
    """Facts about a store that never change.

    `any_loop`: several event loops may use it; else each needs a store of its own. `is_private`: no other process can
    see it (a database in memory). `watches_commits`: wait_for_work notices every commit, so that no ring is needed."""

    any_loop: bool
    is_private: bool
    watches_commits: bool


class Enqueued(Struct, Generic[R_co], frozen=True):
    """`id` is the caller's id, or that of an existing job that answers instead (`existing`). That job has the same id
    or live key. With debounce, it now carries the payload. With throttle, it is the last job that was made with the
    key.

    `Enqueued[R]`: R is what the job's handler returns. Only type checkers see it; `jobs.result` gives it.
    """

    id: str
    existing: bool
    status: Status
    run_at: datetime
    created: datetime


class Claim(Struct, frozen=True):
    """`start`: the handlers start at once, so mark it in the claim itself. Jobs claimed ahead are marked by heartbeat,
    or by settle. `size`: bytes of payload after which the claim brings no more jobs; None: any number. `slots`: how
    many handlers could start at once; None: all. Jobs of topics with limits are not claimed ahead."""

    worker: str
    lanes: tuple[Lane, ...]
    limit: int
    lease: float
    start: bool = True
    size: int | None = None
    slots: int | None = None

    @property
    def starting(self) -> int:
        """Return how many jobs may be claimed that start at once."""
        return self.limit if self.slots is None else min(self.limit, self.slots)


class Claimed(Struct, frozen=True):
    """`contended`: other workers had locked some of the due jobs, or they were too large; claim again at once.
    `next_due`: seconds until `promote` is needed for the next future job; None if there is none. `size`: bytes of the
    payloads. `ends`: some lines need a look; the store takes it before it answers. `limited`: some topics have limits:
    claim again when a run has ended, which may make room. `start`: as in Claim, if it differs from the claim's.
    `next_start`: seconds until a rate lets a job start; None: no rate delays a job."""

    jobs: list[Job]
    contended: bool
    next_due: float | None
    size: int = 0
    ends: bool = False
    limited: bool = False
    start: bool | None = None
    next_start: float | None = None


class Settled(Struct, frozen=True):
    verdicts: list[Verdict]
    claimed: Claimed | None


class Beat(Struct, frozen=True):
    """A run. `started`: the handler of a job that was claimed ahead starts now (or has started): a durable start mark.
    `worker`: the worker that must hold the job; None: any."""

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
    """The report of a run about itself. None leaves percent, stage or message as it is; lines are added to the log.
    `worker`: the worker that must hold the job; None: any."""

    id: str
    version: int
    percent: float | None = None
    stage: str | None = None
    message: str | None = None
    lines: tuple[NewLine, ...] = ()
    worker: str | None = None

    def __post_init__(self) -> None:
        # A handler may report anything. Its report must not fail the others in its batch.
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
    LOST = "lost"  # this run doesn't hold it any more; nothing was written
    UNSEEN = "unseen"  # another transaction had locked the row; nothing was written, ask again


PROMOTER = "rowlock"  # the name in the history of jobs that `promote` has resumed


class Awaited(Struct, frozen=True):
    """The answer to `take_signal`. `hold`: KEPT, CANCEL or LOST; the other fields are set for KEPT only.

    `state`: SUCCEEDED: the wait has ended, and the handler gets `result` (JSON text); FAILED: the wait has timed out
    without a default; RUNNING: the run must end and wait, for `left` seconds at most (None: for ever). `seen`: the
    number of signals that the job has got, for the transition."""

    hold: Hold
    state: StepState = StepState.RUNNING
    result: str | None = None
    left: float | None = None
    seen: int = 0


class Moved(Struct, frozen=True):
    """A job that was due. `status` is after the move. `charged`: it has paid a retry."""

    id: str
    topic: str
    version: int
    status: Status
    charged: bool


def moved(decided: Iterable[Decision]) -> list[Moved]:
    return [
        Moved(row.id, row.topic, row.version, patch.status or row.status, "retried" in patch.counts)
        for row, patch in patches(decided)
    ]


class Changed(Struct, frozen=True):
    """The answer to an operator's order for one job. `status` is the status after the change, or the one that forbade
    the change; None: no such job. A job that was deleted has the status that it had. `holder`: requeue only, the live
    job that has the key. `steps`: requeue from a step only, the names of all stored steps if the requested step is not
    stored. `why`: as in Refusal."""

    id: str
    done: bool
    status: Status | None
    holder: str | None = None
    steps: tuple[str, ...] | None = None
    why: str | None = None


def changed(decided: Iterable[Decision]) -> dict[str, Changed]:
    """Return the answers to an operator's order, by id."""
    answers = {}
    for row, answer in decided:
        if isinstance(answer, Patch):
            answers[row.id] = Changed(row.id, True, answer.status or row.status)
        else:
            answers[row.id] = Changed(row.id, False, answer.status, answer.holder, answer.steps, answer.why)
    return answers


TopicSteering = Literal["pause", "resume"]


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


class InLine(Struct, frozen=True):
    """Where a live job stands in the line of its key. `head`: the job whose turn it is; None while the store chooses
    the next one. `before`: the job right before this one. `ahead`, `behind`: how many jobs, counted up to a bound."""

    head: str | None
    before: str | None
    ahead: int
    behind: int
    ahead_capped: bool
    behind_capped: bool


def in_line(
    own: str, limit: int, is_head: bool, head: str | None, before: str | None, ahead: int, behind: int
) -> InLine:
    """Return an InLine from the values that a store has found. `ahead`, `behind`: blocked jobs, counted up to one more
    than `limit`."""
    if is_head:
        ahead, before = 0, None
    elif head is not None:
        ahead, before = ahead + 1, before or head
    return InLine(
        own if is_head else head, before, min(ahead, limit), min(behind, limit), ahead > limit, behind > limit
    )


class Guard(Struct):
    """The run that a transaction belongs to. It commits only while the run holds its lease (HELD, same version, same
    worker; None: any worker). `checkpoint`: the transaction also stores this mark of a step. `completion`: the
    transaction also completes the job, by this settlement. `outage`: the store sets it if the database went away during
    the application's own statements."""

    id: str
    version: int
    completion: Settlement | None = None
    worker: str | None = None
    outage: bool = False
    checkpoint: StepMark | None = None


class Store(Protocol):
    @property
    def traits(self) -> Traits: ...

    @property
    def owes_ring(self) -> bool:
        """Return True if the store has inserted jobs without waking a worker. An insert rings by itself where that
        saves time."""
        ...

    # ── Life of the store ──
    async def open(self) -> None:
        """Connect and check the schema. Raise NotMigrated, SchemaTooNew, StoreUnavailable, …"""

    async def close(self) -> None:
        """Close all connections. Safe to call twice."""

    async def migrate(self, *, create: bool = True) -> list[Migration]:
        """Bring the schema up to date and return what was applied. Safe to run twice, and at once from several
        processes. Needs no open(). `create`: make an SQLite file that is missing; else raise StoreUnavailable."""
        ...

    async def pending_migrations(self, *, whole: bool = False) -> Pending:
        """Return what `migrate` would apply. Raise an error if an applied migration differs from this code. `whole`:
        also raise SchemaDamaged if tables or columns that migrations have made are gone; the error names all of
        them."""
        ...

    async def now(self) -> datetime:
        """Return the time of the database's clock."""
        ...

    async def home(self) -> Home:
        """Return which database this is."""
        ...

    # ── Clients ──
    async def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued]:
        """Insert all jobs in one transaction. A live job with the same (topic, scope, scope_id, key), or any job with
        the same id, answers instead of a new one; so does a job earlier in the same batch. `repeat`: also look in the
        archive, because an earlier try with an unknown outcome may have inserted the ids, or they are the caller's own.

        With debounce, the job of the line that no worker has claimed takes the payload and answers. With throttle, the
        last job that was made with the key answers, while the window lasts."""
        ...

    # ── Workers ──
    async def claim(self, claim: Claim) -> Claimed:
        """Move at most `limit` jobs of the lanes from pending to processing, and return them: ready, not expired, not
        paused, limits free. They are chosen and returned in this order: highest priority first across all lanes, then
        oldest run_at, then id. Shares take turns."""
        ...

    async def settle(self, settlements: Sequence[Settlement], claim: Claim | None = None) -> Settled:
        """Apply transitions, each guarded by status, version AND worker. Return a verdict per settlement. With `claim`,
        also claim the next batch in the same round trip and transaction."""
        ...

    async def heartbeat(self, beats: Sequence[Beat], lease: float) -> list[Hold]:
        """Extend leases, never shorten them. Return how the runs stand."""
        ...

    async def progress(self, reports: Sequence[Progress]) -> list[Hold]:
        """Write reports of runs that hold their jobs, and return how the runs stand. A run that has completed its job
        in its own transaction has lost the job. The lines that the run had logged before are added to the archived
        job."""
        ...

    async def checkpoint(self, marks: Sequence[StepMark]) -> list[Hold]:
        """Store the marks of steps, each guarded by status, version AND worker; also `step` and, if the mark says so,
        `progress` of the job. Wait for a locked row; return KEPT, CANCEL (written, too) or LOST. A repeat changes
        nothing. Several marks of one job are applied in their order."""
        ...

    async def take_signal(self, wait: Wait) -> Awaited:
        """Return whether a run has to wait. One transaction, guarded by status, version AND worker, stores how the wait
        stands. If there are unread signals of the name, it reads the oldest and stores it as the result of the wait.
        Else, if the deadline is over, it stores that. Else it stores the wait as open, with its deadline, which later
        calls don't move. A repeat gets the same answer. The job itself only waits once a settlement says so."""
        ...

    async def look(self, runs: Sequence[Beat]) -> list[Hold]:
        """Return how runs stand, without writing anything: KEPT, CANCEL or LOST."""
        ...

    async def held_by(self, workers: Sequence[str], limit: int | None = None) -> list[Beat]:
        """Return the runs that these workers hold, at most `limit`: those whose leases end first. A worker that missed
        the reply to a claim holds more jobs than it knows of. `started`: by the start mark."""
        ...

    def transaction(self, guard: Guard, *, longest: float) -> AbstractAsyncContextManager[Any]:
        """Lend a connection for the application's own writes, in a transaction of its own. At the end, the last
        statement before COMMIT checks the guard. If the guard fails, raise LeaseLost and write nothing. PostgreSQL: an
        asyncpg connection. SQLite: a sqlite3 connection that holds the write lock for at most `longest` seconds; after
        that it is rolled back, and every use of it raises StoreBusy, as does the end."""
        ...

    def sync_transaction(self, guard: Guard, *, longest: float) -> AbstractContextManager[Any]:
        """Do the same for code without an event loop, in the thread that uses the connection. PostgreSQL: a psycopg
        connection."""
        ...

    # ── Workers' register ──
    async def report(self, worker: WorkerInfo) -> datetime:
        """Record that this worker lives. Return the time of the database's clock."""
        ...

    async def retire(self, names: Sequence[str]) -> int:
        """Remove workers from the register; return how many."""
        ...

    async def workers(self) -> list[WorkerInfo]:
        """Return the register, by name: workers that live, and workers that ended without being removed."""
        ...

    async def set_backoff(self, tables: Mapping[str, Sequence[float] | None]) -> None:
        """Store the backoff tables of topics, for rescues; None: a topic has none of its own (any more). Unchanged
        tables are not written. The last caller wins."""

    # ── Maintenance: each call does at most `limit`, any number of processes may call at once ──
    async def promote(self, limit: int = 1000) -> int:
        """Make jobs whose run_at has come ready for claiming, and resume those whose wait is over; return how many."""
        ...

    async def move_due(self, order: Due, limit: int = 500) -> list[Moved]:
        """Apply an order to jobs that are due for it, and return them: pending past expires_at (Expire);
        cancel_requested for longer than its grace (CancelTimeout); with an expired lease, or of a dead worker (Rescue);
        waiting for a time that has come (Resume)."""
        ...

    async def prune(self, retention: Retention, limit: int = 1000) -> int:
        """Delete finished jobs that are past their retention; return how many. Completed jobs are kept a day at least.
        A store whose archive has partitions also makes and drops partitions, now and then."""
        ...

    async def tidy(self, chore: Chore, limit: int) -> int:
        """Do a chore for at most `limit` rows; return the number of rows."""
        ...

    # ── Operators: each verb also writes the audit, in the same transaction ──
    async def move(self, ids: Sequence[str], order: Order) -> list[Changed]:
        """Apply an order (Cancel, Requeue, Update, Delete, Wake, Signal, ReportCallback, AcknowledgeCallback) to jobs.
        MOVES says in which statuses a job takes an order. Other jobs are left as they are, and the answer says why."""
        ...

    async def steer_topic(
        self, topic: str, to: TopicSteering, *, by: str, reason: str | None = None, until: datetime | None = None
    ) -> bool:
        """Pause or resume a topic. After a pause has returned, a new claim takes no jobs of the topic until it is
        resumed, or until `until`. Return False if a topic that is to be resumed was not paused."""
        ...

    async def paused(self) -> list[Pause]: ...

    async def limit_usage(self) -> Usage:
        """Return all limits and their current use (stores/limits.py)."""
        ...

    async def set_shares(self, shares: Sequence[NewShare]) -> None:
        """Set the shares of jobs. A job that a worker holds, or that has changed since it was read, stays as it is."""

    # ── Reading ──
    async def read(self, ids: Sequence[str], shape: type[T]) -> dict[str, T]:
        """Return jobs by id, live or archived. An id without a job is left out. `shape`: Job, State (a job's short
        fields, for streams), Status, Log (the log lines of all runs), StoredSteps or StoredEdges. A job without stored
        steps, or edges, is left out. History and InLine are read job by job, so ask for few. InLine leaves out a job
        that stands in no line."""
        ...

    async def holders(self, keys: Sequence[LiveKey]) -> list[str]:
        """Return the ids of the live jobs that have these keys, in no order."""
        ...

    async def debounced(self, lines: Sequence[str]) -> list[str]:
        """Return the jobs of these lines whose payload a newer enqueue with debounce replaces."""
        ...

    async def count_ready(self, lanes: Sequence[Lane], limit: int = MOST_COUNTED) -> list[int]:
        """Return, for each lane, how many jobs are due and wait for a worker, counted up to `limit`."""
        ...

    async def newest(self, filters: Sequence[Filter], limit: int) -> list[list[str]]:
        """Return, for each filter, the ids of the newest jobs that meet it, newest first. Counts nothing."""
        ...

    async def newest_of_scopes(self, filters: Sequence[Filter], limit: int) -> list[list[str] | None]:
        """Return the same by one statement, for filters that ask for a scope_id and nothing else but topics and
        statuses. None: too few were found among the newest `OWN_WINDOW` jobs of the scope, because other jobs fill
        these."""
        ...

    async def mark(self) -> str:
        """Return a text that changes whenever something is committed."""
        ...

    async def failures(self, query: FailureQuery) -> Failures:
        """Return dead letters in groups, by their fingerprints."""
        ...

    async def stored_rows(self, part: Part, *, before: str | None, limit: int) -> list[StoredRow] | list[StepOwner]:
        """Read `limit` rows from the largest id of a job down, below `before`. Return the jobs, the archived jobs, or
        the jobs that have stored steps, each once. For `verify`."""
        ...

    async def end_counts(self, limit: int) -> dict[Status, tuple[int, int]]:
        """Return, for each end state, how many jobs are in it now (counted up to `limit`), and how many have ever ended
        in it."""
        ...

    # ── Records: settings, accounts, sessions, tokens ──
    async def records(
        self, kind: str, ids: Sequence[str] | None = None, *, after: str | None = None, limit: int | None = None
    ) -> list[Record]:
        """Return the records of a kind, all or by id, without the expired ones, in the order of ids, after `after`."""
        ...

    async def write_records(self, writes: Sequence[Write], *entries: Entry) -> bool:
        """Write all records and the audit's entries. Return False, with nothing written, if a record has another
        revision than a write wants."""
        ...

    async def audit(
        self, filter: AuditFilter = ALL_LINES, *, before: int | None = None, limit: int = 50
    ) -> list[Audited]:
        """Return the audit's entries, the newest first; `before`: below this id."""
        ...

    # ── Schedules (stores/schedules.py) ──
    async def change_schedules(
        self, which: Which, decide: Decide, unreadable: Callable[[str], None] = lambda schedule_id: None
    ) -> list[Decided]:
        """In one transaction: lock schedules, call `decide` for each, insert the jobs of its fires, write fires,
        schedules and audit. A schedule makes at most one job for each nominal time, ever. `decide` may be called again.
        `unreadable`: called with the id of each schedule that this release can't read."""
        ...

    async def next_fire(self, *, skip: Sequence[str] = (), later: bool = False) -> float | None:
        """Return the seconds until the next nominal time of any schedule, below 0 if that time has come; None: there is
        no such time. `skip`: ids of schedules that don't count. `later`: only times that have not come yet."""
        ...

    async def schedules(
        self, filter: ScheduleFilter, *, after: tuple[str, str] | None = None, limit: int = 50
    ) -> list[Schedule]:
        """Return schedules by name, then id; `after`: behind this name and id."""
        ...

    async def fires(
        self, ids: Sequence[str], *, before: datetime | None = None, limit: int = 50
    ) -> dict[str, list[Fired]]:
        """Return the newest fires of schedules, by schedule, newest first; `before`: below this nominal time."""
        ...

    # ── Flows (stores/flows.py) ──
    async def insert_flow(self, flow: NewFlow, *, repeat: bool = False) -> list[Enqueued]:
        """Insert the jobs and the edges of a flow in one transaction. Raise UnknownParent, or FlowKeyTaken if a live
        job has the key of one of its jobs. `repeat`: as in insert."""
        ...

    async def start_children(self, children: NewChildren) -> tuple[Hold, list[Enqueued]]:
        """Insert jobs that a run starts, guarded by status, version AND worker. Return KEPT, CANCEL or LOST, and the
        jobs. Nothing is written unless KEPT. A repeat changes nothing. Raise FlowKeyTaken if a live job has the key of
        one of them."""
        ...

    async def flows(
        self,
        ids: Sequence[str] | None = None,
        *,
        before: str | None = None,
        limit: int = 50,
        name: str | None = None,
    ) -> list[FlowRow]:
        """Return flows, the newest first; `before`: below this id."""
        ...

    async def flow_graph(self, flow_id: str) -> FlowGraph | None: ...

    async def drop_flow(self, flow_id: str) -> None:
        """Remove a flow that has no job any more."""

    # ── Bulk actions (stores/bulk.py) ──
    async def create_bulk(self, bulk: NewBulk, filter: Filter) -> Bulk:
        """Make a preview: list the jobs that meet `filter` (see `bulk.fitting`), by one snapshot. Raise InvalidInput if
        the jobs are too many, or take too long to find. A preview that undoes a bulk cancel lists the
        pending jobs that this has cancelled, as it has left them."""
        ...

    async def steer_bulk(self, bulk_id: str, to: Steering, *, by: str, reason: str | None = None) -> bool:
        """Start a bulk action (preview or stopped → running; a given reason replaces the old one), or stop it (running
        → stopped). A stop undoes nothing, and no further job is changed once this has returned. The audit gets an
        entry. Return False if the bulk action is in another state, or too old to be started."""
        ...

    async def run_bulk(self, bulk_id: str | None = None, limit: int = 500) -> Bulk | None:
        """Change the next `limit` jobs of the bulk action that has waited for longest (or of this one). The same
        transaction writes its progress, so each job is changed once, even if a process dies in between. Return None if
        no bulk action is running, or if other processes work on them. Any number of processes may call it at once."""
        ...

    async def bulks(
        self, ids: Sequence[str] | None = None, *, before: str | None = None, limit: int = 50
    ) -> list[Bulk]:
        """Return bulk actions, the newest first; `before`: below this id."""
        ...

    async def bulk_items(
        self, bulk_id: str, *, outcome: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[BulkItem]:
        """Return the jobs of a bulk action in the order of ids, after `after`; those of one outcome, or "unrun"."""
        ...

    # ── Wake-up: a hint, never the truth ──
    async def ring(self) -> None:
        """Wake the workers that wait for work."""

    async def wait_for_work(self, timeout: float) -> bool:
        """Return True when the doorbell rang (or something was committed) since the last call returned; False after
        `timeout` seconds. A missed ring costs a poll, nothing else."""
        ...

    # ── Lists and numbers. Last, because from here on `list` is a verb ──
    async def stats(self, topic: str | None = None) -> Stats:
        """Return the number of jobs in each status, and the number of jobs that ever ended in each end state, also
        pruned ones; by topic."""
        ...

    async def series(self, topic: str | None, window: Window) -> Series:
        """Return the chart of a topic, or of all topics, from rollups and from counts that are not folded yet. No job
        is read."""
        ...

    async def list(self, filter: Filter, *, limit: int = 20, offset: int = 0, cursor: str | None = None) -> Page:
        """Return jobs that meet `filter`, live and archived, newest first (by id). `cursor`: a page's `next`."""
        ...


async def tidy(store: Store, chore: Chore) -> bool:
    """Do a chore once, in its usual size. Return True if there may be more to do."""
    return await store.tidy(chore, CHORES[chore]) >= CHORES[chore]
