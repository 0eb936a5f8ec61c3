"""Conditions that a job's row must always meet: the pure part of `rowlock verify`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from rowlock.core.job import HELD, Status
from rowlock.core.lifecycle import (
    BLOCKED,
    CANCEL_REQUESTED,
    CANCELLED,
    COMPLETED,
    EXPIRED,
    FAILED,
    MAX_HISTORY,
    MOVES,
    PENDING,
    PROCESSING,
    WAITING,
)

_ENDED = frozenset({COMPLETED, FAILED, EXPIRED, CANCELLED})
_CLAIMABLE = {PENDING: PROCESSING, CANCEL_REQUESTED: CANCEL_REQUESTED}  # what a claim makes of it
_AFTER_START = [move for name, move in MOVES.items() if move.events and name not in ("enqueue", "claim", "complete")]


class StoredRow(Struct, frozen=True):
    """The columns of a job's row that `verify` checks. `twice`: a job with this id is in _jobs and in the archive.
    `has_steps`: something is stored of its steps."""

    id: str
    topic: str
    status: Status
    ready: bool
    version: int
    retries: int
    max_retries: int
    key: str | None
    if_live: str | None
    scope: str | None
    scope_id: str | None
    flow_id: str | None
    waits_for: str | None
    locked_by: str | None
    locked_until: datetime | None
    finished_at: datetime | None
    history: Sequence[dict[str, Any]]
    history_dropped: int
    step: str | None
    twice: bool
    has_steps: bool


class StepOwner(Struct, frozen=True):
    """The id of a job that has stored steps. `exists`: there is such a job."""

    id: str
    exists: bool


class Finding(Struct, frozen=True):
    """A contradiction. `check` is stable for programs: lease, ready, wait, finished, retries, version,
    history, twice, overdue, key, counts, steps, limits."""

    check: str
    job_id: str | None
    text: str


def examine(row: StoredRow | StepOwner, now: datetime, patience: float) -> Iterator[Finding]:
    """Yield the contradictions in a row. `patience`: seconds that an expired lease may wait for its rescue."""
    if isinstance(row, StepOwner):
        if not row.exists:
            yield Finding("steps", row.id, "is gone, but something is stored of its steps")
        return
    for check, text in [*_columns(row), *_overdue(row, now, patience), *_history(row)]:
        yield Finding(check, row.id, text)


def _columns(row: StoredRow) -> Iterator[tuple[str, str]]:
    # A waiting job that is being cancelled has no lease before a worker claims it once more.
    held = row.status is PROCESSING or (row.status is CANCEL_REQUESTED and row.locked_until is not None)
    if (row.locked_until is not None) != held:
        yield "lease", f"is {row.status} with {'no' if held else 'a'} lease"
    if (row.locked_by is not None) != (held or row.status is COMPLETED):
        yield "lease", f"is {row.status} and locked by {row.locked_by or 'nobody'}"
    if row.ready and row.status is not PENDING and (held or row.status is not CANCEL_REQUESTED):
        yield "ready", f"is {row.status} and ready to be claimed"
    waits = row.status is WAITING or (row.status is CANCEL_REQUESTED and not held and not row.ready)
    if (row.waits_for is not None) != waits:
        yield "wait", f"is {row.status} and waits for {row.waits_for or 'nothing'}"
    if (row.finished_at is not None) != (row.status in _ENDED):
        yield "finished", f"is {row.status} with{'out' if row.finished_at is None else ''} a time at which it ended"
    if not 0 <= row.retries <= row.max_retries:
        yield "retries", f"has used {row.retries} retries of {row.max_retries}"
    if row.twice:
        yield "twice", "is in _jobs and in _jobs_archive"
    elif row.has_steps != (row.step is not None):
        text = "names a step, but nothing is stored of its steps"
        yield "steps", text if row.step is not None else "names no step, but something is stored of its steps"


def _overdue(row: StoredRow, now: datetime, patience: float) -> Iterator[tuple[str, str]]:
    if row.locked_until is not None and (late := (now - row.locked_until).total_seconds()) > patience:
        yield "overdue", f"the lease of {row.locked_by} ended {late:.0f} s ago, and no worker has taken the job back"


def _history(row: StoredRow) -> Iterator[tuple[str, str]]:
    """Yield contradictions to a legal path from the enqueue to the row's status, with a claim for every version."""
    if len(row.history) > MAX_HISTORY or (row.history_dropped and len(row.history) < MAX_HISTORY):
        yield "history", f"keeps {len(row.history)} history entries and counts {row.history_dropped} as dropped"
    status, version = _at_first(row), 0
    for n, entry in enumerate(row.history):
        event, said, run = entry.get("event"), entry.get("status"), entry.get("version")
        if n == 0 and row.history_dropped:
            status, version = _before(entry)
        if run == version + 1 and status in _CLAIMABLE:
            status, version = _CLAIMABLE[status], version + 1  # a claim leaves no entry of its own
        if run != version:
            yield "version", f"{event} belongs to run {run}; by then there had been {version} claims"
            return
        if not any(event in move.events and status in move.sources and said in move.targets for move in _AFTER_START):
            yield "history", f"can't have gone from {status} to {said} by {event} (entry {n + 1} of its history)"
            return
        status = Status(str(said))
    if row.version == version + 1 and status in _CLAIMABLE:
        status, version = _CLAIMABLE[status], version + 1
    if row.version != version and not (row.history_dropped and not row.history):
        yield "version", f"has version {row.version} after {version} claims"
    elif not (status is row.status or (row.status is COMPLETED and status in HELD)):
        yield "history", f"is {row.status}; its history ends with {status}"


def _at_first(row: StoredRow) -> Status:
    """Return the status with which the job was enqueued: it came to the end of its line, or waited for its parents."""
    if row.if_live is not None:
        return BLOCKED
    if row.flow_id is None:
        return PENDING
    if not row.history:
        return BLOCKED if row.status is BLOCKED else PENDING
    first = row.history[0]
    waited = first.get("event") == "unblocked" or first.get("status") == BLOCKED
    return BLOCKED if waited else PENDING


def _before(entry: dict[str, Any]) -> tuple[Status, int]:
    """Return a status that the job can have had before its oldest entry, and its version then."""
    moves = [move for move in _AFTER_START if entry.get("event") in move.events and entry.get("status") in move.targets]
    sources = sorted({source for move in moves for source in move.sources})
    ran = "claimed_at" in entry
    fits = [source for source in sources if (source in HELD) == ran] or sources or [PENDING]
    return fits[0], int(entry.get("version", 0))
