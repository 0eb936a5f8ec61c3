"""Everything that a store keeps of a job, and the timeline that follows from it."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct

from rowlock.core.job import Event, Job, Status
from rowlock.core.steps import StoredStep

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SignalRow(Struct, frozen=True, kw_only=True):
    """A signal that a job has received. `wait` and `wait_n`: the wait that has read it."""

    seq: int
    name: str
    signal_id: str | None
    data: Any
    at: datetime
    by: str | None
    wait: str | None = None
    wait_n: int | None = None


class Row(Struct, frozen=True):
    """Everything that a store keeps of a job. `got`: how many signals the row has counted (0 in the archive).
    `waited`: the job was blocked at first."""

    job: Job
    ready: bool
    history: tuple[dict[str, Any], ...] = ()
    dropped: int = 0
    log: tuple[dict[str, Any], ...] = ()
    log_dropped: int = 0
    steps: tuple[StoredStep, ...] = ()  # by position, name and n
    signals: tuple[SignalRow, ...] = ()  # by seq
    got: int = 0
    waited: bool = False


class Audit(Struct, frozen=True, kw_only=True):
    at: datetime
    by: str
    action: str
    job_id: str | None
    topic: str | None
    reason: str | None
    data: dict[str, Any]


def micros(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def moment(micros_: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros_)


def known(**values: Any) -> dict[str, Any]:
    """Return the fields of a history entry: times as integers, and no nulls."""
    return {k: micros(v) if isinstance(v, datetime) else v for k, v in values.items() if v is not None}


def plain(value: Any) -> Any:
    """Return the value as the audit's JSON has it."""
    if isinstance(value, datetime):
        return micros(value)
    return list(value) if isinstance(value, tuple) else value


def timeline(row: Row) -> Iterable[Event]:
    """Yield the events: enqueue, claims and completion from the columns, everything else from the history entries."""
    job = row.job

    def event(seq: int, at: datetime, what: str, status: Status, version: int, by: str | None, **data: Any) -> Event:
        return Event(
            job_id=job.id, seq=seq, at=at, event=what, status=status, version=version, by=by, data=known(**data)
        )

    def claimed(version: int, at: datetime, by: str | None, started_at: int | datetime | None) -> Event:
        earlier = row.dropped + sum(entry["version"] < version for entry in row.history)
        return event(version + earlier, at, "claimed", Status.PROCESSING, version, by, started_at=started_at)

    yield event(0, job.created, "enqueued", Status.BLOCKED if row.waited else Status.PENDING, 0, None)
    for k, entry in enumerate(row.history, start=row.dropped):
        rest = dict(entry)
        at, what, status = moment(rest.pop("at")), rest.pop("event"), Status(rest.pop("status"))
        version, by = rest.pop("version"), rest.pop("by", None)
        if "claimed_at" in rest:
            yield claimed(version, moment(rest["claimed_at"]), rest.get("worker", by), rest.get("started_at"))
        yield event(1 + k + version, at, what, status, version, by, **rest)
    if job.locked_until is not None or job.status is Status.COMPLETED:
        assert job.claimed_at
        yield claimed(job.version, job.claimed_at, job.locked_by, job.started_at)
    if job.status is Status.COMPLETED:
        assert job.finished_at
        yield event(job.events_count - 1, job.finished_at, "completed", job.status, job.version, job.locked_by)
