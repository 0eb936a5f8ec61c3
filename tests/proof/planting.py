"""Tools to plant a violation in a valid history. They raise `Barren` if the history has nothing of the kind to
spoil."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from msgspec import structs

from tests.proof.history import Execution, History, Operation, RowChange
from tests.proof.lives import Life, Step, World
from tests.proof.witness import ARCHIVE

T = TypeVar("T")
Where = Callable[[Life, Step], Any]
HOUR = 3_600_000_000
STRANGER = "0193fb1e-0000-7000-8000-00000000beef"  # no job has this id


class Barren(Exception):
    """The history has nothing that this plant could spoil."""


def anywhere(_life: Life, _step: Step) -> bool:
    return True


def first(things: Iterable[T], where: Callable[[T], Any]) -> T:
    for thing in things:
        if where(thing):
            return thing
    raise Barren


class Garden:
    """A copy of a history, and ways to spoil it."""

    def __init__(self, history: History) -> None:
        copies = {
            n: list(getattr(history, n))
            for n in (
                "changes",
                "operations",
                "executions",
                "faults",
                "steps",
                "signals",
                "step_runs",
                "schedules",
                "fires",
            )
        }
        copies |= {n: dict(getattr(history, n)) for n in ("jobs", "archive", "events", "settings")}  # type: ignore[misc]
        self.history = structs.replace(history, **copies)
        self.world = World(history)

    def step(self, move: str, where: Where = anywhere) -> tuple[Life, Step]:
        steps = ((life, step) for life in self.world.lives for step in life.steps if step.move == move)
        return first(steps, lambda found: where(*found))

    def life(self, where: Callable[[Life], Any]) -> Life:
        return first(self.world.lives, where)

    def execution(self, where: Callable[[Execution], Any]) -> Execution:
        return first(self.history.executions, where)

    def operation(self, where: Callable[[Operation], Any]) -> Operation:
        return first(self.history.operations, where)

    # ── The witness's record ──

    def alter(self, step: Step, before: dict[str, Any] | None = None, after: dict[str, Any] | None = None) -> None:
        """Change columns in the rows before and after a step, in all statements of the step."""
        for n, change in enumerate(self.history.changes):
            if change.seq not in (step.first, step.seq):
                continue
            starts = change.seq == step.first or change.table == ARCHIVE or change.op == "delete"
            self.history.changes[n] = structs.replace(
                change,
                before=change.before and change.before | ((before if starts else after) or {}),
                after=change.after and change.after | (after or {}),
            )

    def entry(self, step: Step, **fields: Any) -> None:
        """Change what a step wrote into the history."""
        assert step.after is not None
        old = step.after["history"][-1]
        new = old | fields

        def told(row: dict[str, Any] | None) -> dict[str, Any] | None:
            if row is None or old not in (row.get("history") or ()):
                return row
            return row | {"history": [new if one == old else one for one in row["history"]]}

        job_id = step.after["id"]
        for n, change in enumerate(self.history.changes):
            if (change.after or change.before or {}).get("id") == job_id:  # later rows of the job have the entry, too
                self.history.changes[n] = structs.replace(change, before=told(change.before), after=told(change.after))
        for rows in (self.history.jobs, self.history.archive):
            if job_id in rows:
                rows[job_id] = told(rows[job_id]) or {}

    def move(self, step: Step, *, at: int | None = None, tx: int | None = None) -> None:
        """Move a step to another time, or its last statement to another transaction."""
        if at is not None:
            self._replace(step.first, at=at)
            self._replace(step.seq, at=at)
        if tx is not None:
            self._replace(step.seq, tx=tx)

    def _replace(self, seq: int, **fields: Any) -> None:
        changes = self.history.changes
        for n, change in enumerate(changes):
            if change.seq == seq:
                changes[n] = structs.replace(change, **fields)

    def drop(self, *steps: Step) -> None:
        seqs = {seq for step in steps for seq in (step.first, step.seq)}
        self.history.changes = [change for change in self.history.changes if change.seq not in seqs]

    def repeat(self, step: Step, **fields: Any) -> None:
        """Repeat a step at the end of the record."""
        last = self.history.changes[-1]
        for change in [c for c in self.history.changes if c.seq in (step.first, step.seq)]:
            later = structs.replace(change, seq=last.seq + change.seq, tx=last.tx + 1, **fields)
            self.history.changes.append(later)

    def audit(self, tx: int) -> RowChange:
        return first(self.history.changes, lambda change: change.table == "_jobs_audit" and change.tx == tx)

    def forget(self, life: Life) -> None:
        """Remove the job from the record, as if it had never been written."""
        ids = {life.id}
        self.history.changes = [c for c in self.history.changes if (c.after or c.before or {}).get("id") not in ids]
        for kept in (self.history.jobs, self.history.archive, self.history.events):
            kept.pop(life.id, None)

    # ── Records of clients and handlers ──

    def swap(self, old: Execution | Operation, **fields: Any) -> None:
        records: list[Any] = self.history.executions if isinstance(old, Execution) else self.history.operations
        records[records.index(old)] = structs.replace(old, **fields)


Plant = Callable[[Garden], None]
PLANTS: dict[str, tuple[str, Plant]] = {}
SAID: dict[str, str] = {}  # by name of a plant: words of the violation, if an invariant has many parts


def breaks(invariant: str, saying: str | None = None) -> Callable[[Plant], Plant]:
    """Declare a function that plants a violation of this invariant."""

    def register(plant: Plant) -> Plant:
        name = plant.__name__.replace("_", " ")
        PLANTS[name] = (invariant, plant)
        if saying is not None:
            SAID[name] = saying
        return plant

    return register
