"""Turn row changes into lives: what each job went through, move by move, read from its columns."""

from collections import Counter, defaultdict
from functools import cached_property
from typing import Any

from msgspec import Struct, field

from tests.proof.history import Execution, Fault, History, Operation, RowChange
from tests.proof.witness import ARCHIVE, AUDIT, JOBS, STEPS, is_dated

Row = dict[str, Any]

LIVE = frozenset({"pending", "blocked", "processing", "waiting", "cancel_requested"})
HELD = frozenset({"processing", "cancel_requested"})  # by a worker, if there is a lease: see is_held
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
DEATHS = frozenset({"kill", "exit", "crash"})  # kinds of faults after which a process is gone
REPLACED = "replaced by "  # the reason of a job that a newer one has replaced begins with this
BEGUN = "the job that has started it was cancelled"  # the reason of a job that is cancelled together with its starter
_HISTORY = frozenset({"history", "history_dropped"})
_LINES = frozenset({"log", "log_dropped"})
_MOVE_OF_EVENT = {
    "retried": "fail",
    "failed": "fail",
    "step_retried": "retry_step",
    "snoozed": "snooze",
    "released": "release",
    "waited": "wait",
    "wait_cancelled": "cancel_wait",
    "resumed": "resume",  # or wake, or signal
    "signalled": "signal",
    "cancel_requested": "cancel",
    "cancel_timed_out": "cancel_timeout",
    "rescued": "rescue",
    "expired": "expire",
    "updated": "update",
    "requeued": "requeue",
    "unblocked": "unblock",
    "debounced": "debounce",
    "blocked": "block",
    "block_refused": "block",
    "hold_released": "release_hold",
}


def is_held(row: Row) -> bool:
    """Return True if a worker holds the job. A waiting job that is cancelled has no lease until a worker claims it
    again."""
    return row.get("status") in HELD and row["locked_until"] is not None


class Step(Struct):
    """One move of one job. `before` is None for an enqueue, `after` is None for a removal. The `after` of a completion
    is the archive's row, with the status added."""

    move: str | None
    """A name of MOVES; None: no move looks like this."""
    seq: int
    at: int
    tx: int
    before: Row | None
    after: Row | None
    entries: list[Row]
    """What was appended to the job's history."""
    rewritten: bool = False
    """Its history changed in another way."""
    first: int = 0
    """The seq it began with; SQLite moves and writes the history in two statements."""
    lined: Row | None = None
    """The archive's row after lines were added that the handler had logged before its own transaction. Or the row after
    another job has begun to wait for it."""

    @property
    def old(self) -> Row:
        """The row before the move. An enqueue has none."""
        assert self.before is not None
        return self.before

    @property
    def new(self) -> Row:
        """The row after the move. A removal leaves none."""
        assert self.after is not None
        return self.after

    @property
    def version(self) -> int:
        row = self.after or self.before
        return int(row["version"]) if row else 0

    def said(self, name: str) -> Any:
        """Return this field of the history entry that the move appended."""
        return self.entries[0].get(name) if self.entries else None

    def __str__(self) -> str:
        was = self.before["status"] if self.before else "nothing"
        now = self.after["status"] if self.after else "nothing"
        return f"{self.move or 'something'} ({was} → {now}, version {self.version}, #{self.seq})"


class Life(Struct, dict=True):
    """One job, from its insert to its removal or to the end of the record."""

    id: str
    steps: list[Step]
    runs: dict[int, list[Execution]] = field(default_factory=dict)
    """By version: what handlers recorded of this job. A later job may have the same id, and count its own versions."""

    @property
    def last(self) -> Step:
        return self.steps[-1]

    @property
    def gone(self) -> bool:
        return self.last.after is None

    @cached_property
    def claims(self) -> dict[int, Step]:
        return {step.version: step for step in self.steps if step.move == "claim"}

    @cached_property
    def ends(self) -> dict[int, Step]:
        """By version: the step that ended that run."""
        found = {}
        for step in self.steps:
            if step.before and is_held(step.before) and not (step.after and is_held(step.after)):
                found[int(step.before["version"])] = step
        return found


class World:
    """A history, indexed for the checker."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.lives = _lives(history.changes)
        self.by_id: dict[str, list[Life]] = defaultdict(list)
        for life in self.lives:
            self.by_id[life.id].append(life)
        self.unborn: list[Execution] = []  # runs of jobs that never existed
        for execution in sorted(history.executions, key=lambda one: one.begun):
            mine = self._life_of(execution)
            if mine is None:
                self.unborn.append(execution)
            else:
                mine.runs.setdefault(execution.version, []).append(execution)
        self.completions: dict[tuple[str, int], list[Operation]] = defaultdict(list)
        for operation in history.operations:
            if operation.verb == "complete":
                for job_id in operation.ids:
                    self.completions[job_id, int((operation.detail or {})["version"])].append(operation)
        self.audits = Counter(
            (change.tx, change.after["action"], change.after["job_id"])
            for change in history.changes
            if change.table == AUDIT and change.after is not None
        )

    def _life_of(self, run: Execution) -> Life | None:
        """Return the last of the jobs with this id that the worker had claimed when the run began. Two of them may have
        been claimed so soon after each other that the clocks can't tell: then the first one without a run has it."""
        lives = self.by_id.get(run.job_id)
        if not lives:
            return None
        begun = self.by_database(run.begun)
        found: Life | None = None
        for life in reversed(lives):
            claim = life.claims.get(run.version)
            if claim is None or claim.after is None or claim.after["locked_by"] != run.worker:
                continue
            if begun is None:
                return life
            if found is not None and run.version in life.runs:
                break
            if claim.after["claimed_at"] <= begun + self.apart:
                found = life
            if claim.after["claimed_at"] <= begun - self.apart:
                break
        return found or lives[-1]

    @property
    def slack(self) -> int:
        """How far the witness's clock may lag, in microseconds: SQLite's own clock counts milliseconds."""
        return 2_000 if self.history.store == "sqlite" else 0

    @property
    def apart(self) -> int:
        """How far two clocks may be apart after they were compared, in microseconds."""
        return self.slack + (5_000 if self.history.settings.get("monotonic_offset") else 0)

    @property
    def records_runs(self) -> bool:
        """True if the handlers of this suite have recorded their runs."""
        return bool(self.history.executions)

    def by_database(self, monotonic: int) -> int | None:
        """Return the time by the database's clock, or None if the suite didn't say how the two clocks compare."""
        offset = self.history.settings.get("monotonic_offset")
        return None if offset is None else monotonic + int(offset)

    def deaths(self, worker: str | None) -> list[Fault]:
        return [f for f in self.history.faults if f.kind in DEATHS and is_target(f.target, worker)]


def is_target(target: str, worker: str | None) -> bool:
    """Return True if the fault hit this worker. A fault names the worker, or the pid in its name (host-pid-random)."""
    return worker is not None and (target == worker or f"-{target}-" in worker)


def changed(before: Row, after: Row) -> set[str]:
    return {name for name in before.keys() & after.keys() if before[name] != after[name]}


def _lives(changes: list[RowChange]) -> list[Life]:
    mine: dict[str, list[RowChange]] = defaultdict(list)
    deleted: dict[str, set[int]] = defaultdict(set)  # by job: transactions whose audit has a delete
    marked: dict[str, set[int]] = defaultdict(set)  # by job: transactions that wrote a step
    woken: dict[str, set[int]] = defaultdict(set)  # by job: transactions in which an operator ended its wait
    for change in changes:
        row = change.after or change.before
        if row is None:
            continue
        if change.table in (JOBS, ARCHIVE):
            mine[row["id"]].append(change)
        elif change.table == STEPS and change.after is not None:
            marked[row["job_id"]].add(change.tx)
        elif change.table == AUDIT and row["action"] == "delete":
            deleted[row["job_id"]].add(change.tx)
        elif change.table == AUDIT and row["action"] == "wake":
            woken[row["job_id"]].add(change.tx)
    lives = []
    for job_id, own in mine.items():
        life = Life(job_id, [])
        for step in _steps(own, deleted.get(job_id, set())):
            reports = step.move in ("progress", "heartbeat")  # judged by its columns alone, which a checkpoint shares
            if reports and (step.tx in marked[job_id] or "step" in _different(step)):
                step.move = "checkpoint"
            if step.move == "resume" and step.tx in woken[job_id]:
                step.move = "wake"
            if life.steps and life.gone:
                lives.append(life)
                life = Life(job_id, [])
            life.steps.append(step)
        if life.steps:
            lives.append(life)
    return lives


def _different(step: Step) -> set[str]:
    return changed(step.before or {}, step.after or {})


def _steps(changes: list[RowChange], deleted_in: set[int]) -> list[Step]:
    steps: list[Step] = []
    place = 0
    while place < len(changes):
        change = changes[place]
        following = changes[place + 1] if place + 1 < len(changes) else None
        place += 1
        if following is not None and _are_nothing(change, following):
            place += 1
        elif following is not None and _are_completion(change, following):
            place += 1
            steps.append(_completion(change, following))
        elif steps and _is_afterthought(steps[-1], change):
            steps[-1] = _joined(steps[-1], change)
        elif is_dated(change) and any(step.move == "enqueue" and step.tx == change.tx for step in steps):
            _date(steps, change)
        elif steps and (_is_grouped(change) or _is_shared(change)):
            steps[-1].after = change.after
        elif steps and is_watched(change):
            steps[-1].lined = change.after
        elif steps and change.after is not None and _are_last_lines(steps[-1], change):
            steps[-1].lined = change.after | {"status": "completed"}
        else:
            steps.append(_step(change, deleted_in))
    return steps


def _are_nothing(one: RowChange, other: RowChange) -> bool:
    """Return True if one transaction inserted and deleted the row, so no other has seen it. PostgreSQL does this for an
    id that is archived."""
    return one.tx == other.tx and (one.table, one.op, other.table, other.op) == (JOBS, "insert", JOBS, "delete")


def _are_completion(one: RowChange, other: RowChange) -> bool:
    kinds = {(one.table, one.op), (other.table, other.op)}
    return one.tx == other.tx and kinds == {(JOBS, "delete"), (ARCHIVE, "insert")}


def _completion(one: RowChange, other: RowChange) -> Step:
    removed, archived = (one, other) if one.table == JOBS else (other, one)
    assert archived.after is not None
    after = archived.after | {"status": "completed"}
    return Step("complete", other.seq, other.at, one.tx, removed.before, after, [], first=one.seq)


def _is_afterthought(last: Step, change: RowChange) -> bool:
    """Return True if this is SQLite's second statement of a move, in the same transaction. It writes only the history,
    or the log lines of a progress report."""
    if change.table != JOBS or change.op != "update" or last.tx != change.tx or last.entries or last.before is None:
        return False
    assert change.before is not None
    assert change.after is not None
    different = changed(change.before, change.after)
    return last.after == change.before and (different <= _HISTORY or (last.move == "progress" and different <= _LINES))


def _are_last_lines(last: Step, change: RowChange) -> bool:
    """Return True if the change only adds lines that a handler logged before it completed its job in its own
    transaction. That is no move."""
    before, after = change.before, change.after
    if change.table != ARCHIVE or before is None or after is None or last.move != "complete":
        return False
    return changed(before, after) <= _LINES


def _is_shared(change: RowChange) -> bool:
    """Return True if an idle job got another share because its topic got a limit by another field."""
    before, after = change.before, change.after
    if change.table != JOBS or before is None or after is None:
        return False
    return changed(before, after) == {"share"} and not is_held(after)


def _is_grouped(change: RowChange) -> bool:
    """Return True if a dead letter was given its fingerprint. That is no move."""
    before, after = change.before, change.after
    if change.table != JOBS or before is None or after is None or changed(before, after) != {"fingerprint"}:
        return False
    return before["fingerprint"] is None and after["status"] in ("failed", "expired")


def is_watched(change: RowChange) -> bool:
    """Return True if other jobs began to wait for this job, which stands in no line. From now on its end is noted."""
    before, after = change.before, change.after
    if change.table != JOBS or before is None or after is None or before["line"] is not None:
        return False
    return "line" in changed(before, after) <= {"line", "flow_id"}


def _date(steps: list[Step], change: RowChange) -> None:
    """Add the schedule and its nominal time to the job's steps. The transaction that enqueues the job writes them
    last."""
    assert change.after is not None
    dated = {name: change.after[name] for name in ("schedule_id", "fire_at")}
    for step in steps:
        if step.tx == change.tx:
            step.before = step.before and step.before | dated
            step.after = step.after and step.after | dated


def _joined(last: Step, change: RowChange) -> Step:
    assert last.before is not None
    assert change.after is not None
    joined = _update(change, last.before, change.after)
    joined.first = last.first
    return joined


def _step(change: RowChange, deleted_in: set[int]) -> Step:
    before, after = change.before, change.after
    if change.table == ARCHIVE:
        before = before and before | {"status": "completed"}
        after = after and after | {"status": "completed"}
    if before is not None and after is not None and change.table == JOBS:
        return _update(change, before, after)
    move = None
    if after is None:
        move = "delete" if change.tx in deleted_in else "prune"
    elif before is None and change.table == JOBS:
        move = "enqueue"
    return Step(move, change.seq, change.at, change.tx, before, after, [], first=change.seq)


def _update(change: RowChange, before: Row, after: Row) -> Step:
    entries, rewritten = _appended(before, after)
    move = _move(before, after, entries)
    return Step(move, change.seq, change.at, change.tx, before, after, entries, rewritten, change.seq)


def _appended(before: Row, after: Row) -> tuple[list[Row], bool]:
    old, new = before["history"] or [], after["history"] or []
    kept = old[after["history_dropped"] - before["history_dropped"] :]
    return (new[len(kept) :], False) if new[: len(kept)] == kept else ([], True)


def _move(before: Row, after: Row, entries: list[Row]) -> str | None:
    if entries:
        event = entries[0]["event"]
        if event in ("cancelled", "cancel_requested") and str(entries[0].get("reason")).startswith(REPLACED):
            return "replace"
        if event in ("cancelled", "cancel_requested") and entries[0].get("by") == "rowlock":
            return "replace" if entries[0].get("reason") == BEGUN else "stop"
        if event == "cancelled" and before["status"] == "cancel_requested" and not is_held(before):
            return "acknowledge_callback"
        if event == "cancelled":
            return "acknowledge_cancel" if before["status"] in HELD else "cancel"
        if event == "resumed" and entries[0].get("signal") is not None:
            return "signal"
        return _MOVE_OF_EVENT.get(event)
    if before["version"] != after["version"] or (before["status"] == "pending" and after["status"] == "processing"):
        return "claim"
    different = changed(before, after)
    if before["status"] == after["status"] == "waiting":
        return "report_callback"
    if is_held(before) and after["status"] == before["status"]:
        return "heartbeat" if different <= {"locked_until", "started_at"} else "progress"
    return "promote" if different == {"ready"} and after["ready"] else None
