"""Find the job of a signal, and check the signal before it is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

from rowlock.core import codec
from rowlock.core.conditions import Compared, Condition, Every
from rowlock.core.job import LIVE, MAX_TEXT, Job, LiveKey, Status, check_topic
from rowlock.core.lifecycle import MOVES
from rowlock.core.moves import Signal as SignalOrder
from rowlock.core.steps import StepState, StoredStep
from rowlock.core.waits import read_terms, signal_wait, step_name
from rowlock.errors import InvalidInput, InvalidState, JobNotFound, SignalRefused
from rowlock.schemas import BadSchema, Validator
from rowlock.stores.base import Changed, Store
from rowlock.stores.queries import MAX_LIMIT, Filter

_AT_WORK = tuple(LIVE - {Status.BLOCKED})


class Key(Struct, frozen=True):
    """Names the live job that has this key: `await jobs.signal(Key("order", "order-7"), paid, …)`. If several jobs
    stand in the line of the key, it names the first."""

    topic: str
    key: str
    scope: str | None = None
    scope_id: str | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "topic", check_topic(self.topic))
        for name in ("key", "scope", "scope_id"):
            if (value := getattr(self, name)) is not None:
                force_setattr(self, name, codec.check_text(value, name, max_chars=MAX_TEXT))
        if not self.key:
            raise InvalidInput("key", "empty", "must be the key of a job")

    def __str__(self) -> str:
        scope = "".join(f" {word}" for word in (self.scope, self.scope_id) if word)
        return f"of {self.topic} with the key {self.key!r:.80}{scope}"

    @property
    def _scoped(self) -> Condition:
        """Return the condition on the key's scope. A Filter without a scope means any scope, but a key without a scope
        belongs to jobs without one."""
        return Every(tuple(Compared(name, "=", getattr(self, name)) for name in ("scope", "scope_id")))

    async def find(self, store: Store) -> str:
        """Return the id of the job. Raise JobNotFound if no live job has the key."""
        if found := await store.holders([LiveKey(self.topic, self.scope, self.scope_id, self.key)]):
            return found[0]
        for statuses in (_AT_WORK, (Status.BLOCKED,)):  # jobs of a line share their key
            wanted = Filter(
                topics=[self.topic],
                keys=[self.key],
                scope=self.scope,
                scope_id=self.scope_id,
                statuses=statuses,
                where=self._scoped,
            )
            if items := (await store.list(wanted, limit=MAX_LIMIT)).items:
                return items[-1].id  # the oldest
        raise JobNotFound(str(self))


def check_signal_id(value: str | None) -> str | None:
    """Return the checked id of a signal. Ids that begin with @ are kept for callbacks."""
    if value is None:
        return None
    text = codec.check_text(value, "id", max_chars=MAX_TEXT)
    if not text or text.startswith("@"):
        raise InvalidInput("id", "bad_value", "must be a text that doesn't begin with @")
    return text


def open_wait(steps: Sequence[StoredStep], signal: str) -> StoredStep | None:
    """Return the wait for this signal that is open."""
    return _open(steps, signal_wait(signal))


def current_wait(job: Job, steps: Sequence[StoredStep]) -> StoredStep | None:
    """Return the open wait of the job; None if it does not wait."""
    return None if job.waits_for is None else _open(steps, job.waits_for)


def _open(steps: Sequence[StoredStep], waits_for: str) -> StoredStep | None:
    name = step_name(waits_for)
    return next((row for row in steps if row.name == name and row.state is StepState.RUNNING), None)


def check_data(data: Any, *rows: StoredStep | None) -> None:
    """Raise InvalidInput if the data doesn't fit the schema of the open wait, or of the callback. A signal that comes
    before its wait is checked by the run that reads it."""
    for row in rows:
        schema = None if row is None else read_terms(row.result).schema
        if schema is not None:
            try:
                validator = Validator(schema)
            except BadSchema:
                continue  # the run checks the data by its type
            validator.check_data(data)


def demand_stored(change: Changed, order: SignalOrder) -> None:
    """Raise if the signal was refused."""
    if change.status is None:
        raise JobNotFound(change.id)
    if change.why is not None:
        raise SignalRefused(change.id, order.sent.name, change.why, change.status)
    if not change.done:
        raise InvalidState(change.id, "signal", change.status, tuple(sorted(MOVES["signal"].sources)))
