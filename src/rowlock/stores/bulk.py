"""Bulk actions: one thing that is done to many jobs. First it is a preview, a list of the jobs as they stand; what is
changed later is what stands in the list and has not moved since."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rowlock.core.job import LiveKey, Status
from rowlock.core.lifecycle import MOVES
from rowlock.errors import InvalidInput
from rowlock.stores.base import Edit
from rowlock.stores.listing import Walk, plan
from rowlock.stores.reading import Filter
from rowlock.stores.times import moment

# The verb that each of them is, job by job.
VERBS = {
    "requeue": "requeue",
    "cancel": "cancel",
    "delete": "delete",
    "reprioritise": "update",
    "reschedule": "update",
}
WAKING = ("requeue", "reprioritise", "reschedule")  # after which there may be something to claim

MAX_ITEMS = 1_000_000
BATCH = 500  # jobs that change in one transaction
PREVIEW_LIFE = 3600.0  # seconds in which a preview may be started
KEPT = 7 * 86_400.0  # seconds for which what has ended can be looked at

BulkStatus = Literal["preview", "running", "stopped", "done"]
Outcome = Literal["done", "changed", "gone", "key_taken", "locked"]
SKIPS: tuple[Outcome, ...] = ("changed", "gone", "key_taken", "locked")
OUTCOMES: tuple[Outcome, ...] = ("done", *SKIPS)
UNRUN = "unrun"  # in questions: no outcome yet


class Unfit(Struct, frozen=True):
    """Jobs that meet the filter, but are in a state in which this can't be done to them. `more`: at least so many."""

    count: int
    more: bool = False


class NewBulk(Struct, frozen=True, kw_only=True):
    """A preview that is to be made. `arguments`: the priority, or run_at in microseconds, or the delay in seconds from
    its start, or the bulk action that it is to `undo`. `filter`: as it is shown."""

    id: str
    action: str
    arguments: dict[str, Any]
    filter: dict[str, Any]
    unfit: dict[str, Unfit]
    by: str
    reason: str | None = None

    @property
    def undoes(self) -> str | None:
        return self.arguments.get("undo")


class Bulk(Struct, frozen=True, kw_only=True):
    """A bulk action as it stands. Of `total` jobs so many are `done`; the others that it has come to were skipped:
    they have `changed` since the preview, or are `gone`; their key is taken by another live job; or another transaction
    held the job, or its key, for too long (`locked`). `unfit`: see Unfit, by status. `moved_at`: its last batch."""

    id: str
    action: str
    status: BulkStatus
    arguments: dict[str, Any]
    filter: dict[str, Any]
    unfit: dict[str, Unfit]
    total: int
    done: int
    changed: int
    gone: int
    key_taken: int
    locked: int
    reason: str | None
    by: str
    started_by: str | None
    created: datetime
    started_at: datetime | None
    moved_at: datetime | None
    finished_at: datetime | None

    @property
    def skipped(self) -> int:
        return self.changed + self.gone + self.key_taken + self.locked

    @property
    def left(self) -> int:
        return self.total - self.done - self.skipped

    @property
    def rate(self) -> float | None:
        """Jobs a second, since it was started."""
        if self.started_at is None or self.moved_at is None or self.moved_at <= self.started_at:
            return None
        return (self.done + self.skipped) / (self.moved_at - self.started_at).total_seconds()

    @property
    def undoes(self) -> str | None:
        """The id of the cancel whose jobs it puts back: those that were pending, as they were before."""
        return self.arguments.get("undo")

    @property
    def note(self) -> str:
        """What stands as the reason in the history of each job and in the audit."""
        return f"bulk {self.id}" if self.reason is None else f"{self.reason} (bulk {self.id})"

    @property
    def edit(self) -> Edit:
        """Of the actions that are updates. All jobs get the same time, however long it takes to come to them."""
        if "priority" in self.arguments:
            return Edit(priority=self.arguments["priority"])
        if "run_at" in self.arguments:
            return Edit(run_at=moment(self.arguments["run_at"]))
        return Edit(run_at=(self.started_at or self.created) + timedelta(seconds=self.arguments["delay"]))


class BulkItem(Struct, frozen=True):
    """One job of it: its status at the time of the preview, and what became of it; None: nothing yet. `holder`: the
    live job that has its key."""

    job_id: str
    status: Status
    outcome: Outcome | None = None
    holder: str | None = None


class Told(Struct, frozen=True):
    """What became of one job of a batch."""

    job_id: str
    outcome: Outcome
    holder: str | None = None


def sources(action: str) -> frozenset[Status]:
    """The states in which a job must be."""
    return MOVES[VERBS[action]].sources


def fitting(action: str, filter: Filter) -> Filter | None:
    """The filter, with the states that the action takes; None: no job can meet that."""
    wanted = frozenset(Status(status) for status in filter.statuses) or frozenset(Status)
    fit = replace(filter, statuses=sorted(wanted & sources(action)))
    return fit if fit.statuses and walks(fit) else None


def walks(filter: Filter) -> list[Walk]:
    """Along which all jobs are found that meet the filter, each by one of them."""
    found: list[Walk] = []
    for group in plan(filter):
        found += group.spare if any(walk.by == "finished" for walk in group.walks) else group.walks
    return found


def shown(filter: Filter) -> dict[str, Any]:
    """What is given of a filter, as JSON."""
    given = msgspec.to_builtins(filter)
    told = {name: value for name, value in given.items() if value not in (None, [], ())}
    if "payload" in told:
        told["payload"] = dict(told["payload"])
    return told


def too_many() -> InvalidInput:
    return InvalidInput("filter", "too_many", f"more than {MAX_ITEMS:,} jobs meet it: narrow it, and do it in parts")


def too_broad(seconds: float) -> InvalidInput:
    text = f"to find all jobs that meet it takes longer than {seconds:g} s: add a topic, a state or a range of time"
    return InvalidInput("filter", "too_broad", text)


def without_rivals(fit: list[tuple[str, LiveKey]]) -> tuple[list[str], dict[str, str]]:
    """Of ids and what is unique among live jobs, oldest first: the ids of which no two have the same key, and for every
    other one the first that has its key. Only that one can live."""
    first: dict[LiveKey, str] = {}
    rivals: dict[str, str] = {}
    for job_id, own in fit:
        if own.key is not None and (holder := first.setdefault(own, job_id)) != job_id:
            rivals[job_id] = holder
    return [job_id for job_id, _ in fit if job_id not in rivals], rivals
