"""What happened in one run of a suite: what the database saw, what clients were told, what handlers did.

The checker reads nothing else. So it can check every suite that fills a `History`: a fleet of real processes, or a
simulation.
"""

from typing import Any

from msgspec import Struct, field


class RowChange(Struct, frozen=True):
    """One change of one row, seen by the witness's own triggers."""

    seq: int
    """Order in the witness's log; per job it is the true order (row locks, or one writer)."""
    at: int
    """The database's clock, microseconds."""
    table: str
    """_jobs, _jobs_archive, _jobs_steps, _jobs_signals, _jobs_schedules, _jobs_fires, _jobs_audit, …"""
    op: str
    """insert, update or delete."""
    tx: int
    """The transaction. PostgreSQL: txid_current(). SQLite: a counter that the witness keeps."""
    before: dict[str, Any] | None
    """The whole row; times are integer microseconds."""
    after: dict[str, Any] | None
    snapshot: str | None = None
    """PostgreSQL: which transactions had ended when the row changed, as txid_current_snapshot() tells it."""


class Operation(Struct, frozen=True):
    """What a client (a producer or an operator) asked for, and what it was told."""

    client: str
    n: int
    verb: str
    """enqueue, cancel, requeue, update, delete, pause, resume, transaction, signal, wake, …"""
    begun: int
    ended: int
    """Microseconds by the client's own clock: only for its own order."""
    outcome: str
    """ok, fail or unknown."""
    ids: tuple[str, ...]
    """The jobs it asked for, by its own ids."""
    answer: dict[str, Any] | None = None
    detail: dict[str, Any] | None = None
    """topic, key, run_at, max_retries, …; of a signal: name, id, data"""


class Execution(Struct, frozen=True):
    """A handler's own record of one run."""

    worker: str
    job_id: str
    version: int
    begun: int
    """Microseconds by CLOCK_MONOTONIC of this machine, or by the simulation's clock."""
    ended: int | None
    """None: it never ended, its process was killed."""
    result: Any = None
    error: str | None = None
    told: str | None = None
    """How it was interrupted, if it was."""


class StepRun(Struct, frozen=True):
    """A handler's own record that the function of a step began."""

    job_id: str
    version: int
    name: str
    n: int
    begun: int
    """As that of an Execution."""


class Fault(Struct, frozen=True):
    """What the suite did to the system: kill, stop, cont, term, exit, outage, cut, …"""

    at: int
    kind: str
    target: str


class History(Struct):
    """Everything that the checker may know."""

    store: str
    settings: dict[str, float] = field(default_factory=dict)
    """lease, poll, grace, maintenance, cancel_grace, … in seconds."""
    changes: list[RowChange] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    archive: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Final rows, by id."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    """What is stored of steps at the end."""
    signals: list[dict[str, Any]] = field(default_factory=list)
    """… and of signals."""
    schedules: list[dict[str, Any]] = field(default_factory=list)
    fires: list[dict[str, Any]] = field(default_factory=list)
    """… and of schedules and their nominal times."""
    step_runs: list[StepRun] = field(default_factory=list)
    events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The product's own events, per job."""
    at_rest: bool = False
    """Was everything drained, and were all workers alive, at the end?"""


class Violation(Struct, frozen=True):
    """One broken invariant."""

    invariant: str
    job_id: str | None
    text: str
