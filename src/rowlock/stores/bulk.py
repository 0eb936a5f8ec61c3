"""Bulk actions: one action on many jobs. It begins as a preview, which lists the jobs. Once started, it changes the
listed jobs that have not moved since."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct, structs
from msgspec.structs import replace

from rowlock.core.codec import decode, encode
from rowlock.core.job import Status
from rowlock.core.lifecycle import MOVES
from rowlock.core.moves import Cancel, Decision, Delete, Edit, Order, Patch, Refusal, Requeue, Row, Update
from rowlock.core.times import moment
from rowlock.errors import InvalidInput
from rowlock.stores.listing import Walk, plan
from rowlock.stores.queries import Filter
from rowlock.stores.records import Time

# The verb of each action, for a single job.
VERBS = {
    "requeue": "requeue",
    "cancel": "cancel",
    "delete": "delete",
    "reprioritise": "update",
    "reschedule": "update",
}
WAKING = ("requeue", "reprioritise", "reschedule")  # workers may have jobs to claim after these

MAX_ITEMS = 1_000_000
BATCH = 500  # jobs that change in one transaction
PREVIEW_LIFE = 3600.0  # seconds in which a preview may be started
KEPT = 7 * 86_400.0  # seconds for which a bulk action that has ended is kept

BulkStatus = Literal["preview", "running", "stopped", "done"]
Steering = Literal["start", "stop"]
Outcome = Literal["done", "changed", "gone", "key_taken", "locked"]
SKIPS: tuple[Outcome, ...] = ("changed", "gone", "key_taken", "locked")
OUTCOMES: tuple[Outcome, ...] = ("done", *SKIPS)
UNRUN = "unrun"  # in filters: no outcome yet


class Unfit(Struct, frozen=True):
    """How many jobs meet the filter, but have a status that forbids the action. `more`: there are at least so many."""

    count: int
    more: bool = False


class NewBulk(Struct, frozen=True, kw_only=True):
    """A preview to be made. `arguments`: the priority, or run_at in microseconds, or the delay in seconds from its
    start, or the bulk action that it is to `undo`. `filter`: as it is shown."""

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
    """A bulk action as it stands. `done`: the jobs, of `total`, to which it was applied. It has skipped the jobs that
    have `changed` since the preview, or are `gone`, or whose key another live job has (`key_taken`). `locked`: skipped
    because another transaction held the job, or its key, for too long. `unfit`: see Unfit, by status. `moved_at`: its
    last batch."""

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
        """Return the jobs per second since the start."""
        if self.started_at is None or self.moved_at is None or self.moved_at <= self.started_at:
            return None
        return (self.done + self.skipped) / (self.moved_at - self.started_at).total_seconds()

    @property
    def undoes(self) -> str | None:
        """Return the id of the bulk cancel that it undoes: the jobs that were pending become pending again."""
        return self.arguments.get("undo")

    @property
    def note(self) -> str:
        """Return the reason that the history of each job and the audit show."""
        return f"bulk {self.id}" if self.reason is None else f"{self.reason} (bulk {self.id})"

    @property
    def order(self) -> Order:
        """Return the order that is applied to each job."""
        who: dict[str, Any] = {"by": self.started_by or self.by, "reason": self.note, "bulk": self.id}
        if self.action == "requeue":
            return Requeue(**who, undo=self.undoes is not None)
        if self.action in ("cancel", "delete"):
            return Cancel(**who) if self.action == "cancel" else Delete(**who)
        return Update(**who, edit=self._edit)

    @property
    def _edit(self) -> Edit:
        """Return the edit of an action that is an update. All jobs get the same time, however long the bulk action
        runs."""
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
    """The outcome of one job of a batch."""

    job_id: str
    outcome: Outcome
    holder: str | None = None


def sources(action: str) -> frozenset[Status]:
    """Return the statuses in which a job takes the action."""
    return MOVES[VERBS[action]].sources


def fitting(action: str, filter: Filter) -> Filter | None:
    """Return the filter, narrowed to the statuses that the action takes. None: no job can meet it."""
    wanted = frozenset(Status(status) for status in filter.statuses) or frozenset(Status)
    fit = replace(filter, statuses=sorted(wanted & sources(action)))
    return fit if fit.statuses and walks(fit) else None


def walks(filter: Filter) -> list[Walk]:
    """Return the walks that find all jobs that meet the filter, each job once."""
    found: list[Walk] = []
    for group in plan(filter):
        found += group.spare if any(walk.by == "finished" for walk in group.walks) else group.walks
    return found


def shown(filter: Filter) -> dict[str, Any]:
    """Return the given parts of a filter, as JSON."""
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


# ── A batch ──


class Listed(NamedTuple):
    """A job as the preview listed it."""

    job_id: str
    status: Status
    created: int  # microseconds
    events: int


def unmoved(items: Iterable[Listed], rows: Iterable[Row]) -> list[Row]:
    """Return the rows of jobs that have not moved since the preview."""
    listed = {item.job_id: item for item in items}
    found = {row.id: row for row in rows}  # if an id is in both tables, the live job wins: it comes last
    return [row for row in found.values() if (row.id, row.status, row.created, row.events) == listed[row.id]]


def tell(items: Iterable[Listed], rows: Iterable[Row], decided: Iterable[Decision]) -> list[Told]:
    """Return the outcome of each job of a batch, in the order of the items."""
    answers = {row.id: answer for row, answer in decided}
    there = {row.id for row in rows}
    told = []
    for item in items:
        match answers.get(item.job_id):
            case Patch():
                told.append(Told(item.job_id, "done"))
            case Refusal(holder=str(holder)):
                told.append(Told(item.job_id, "key_taken", holder))
            case _:
                told.append(Told(item.job_id, "changed" if item.job_id in there else "gone"))
    return told


# ── Rows ──


def read_bulk(row: Iterable[Any], time: Time) -> Bulk:
    """Return the Bulk of a row whose columns are the fields of Bulk, in their order."""
    known = dict(zip(Bulk.__struct_fields__, row, strict=False))  # a store may have selected more
    known |= {name: time(known[name]) for name in ("created", "started_at", "moved_at", "finished_at")}
    known |= {name: decode(known[name]) for name in ("arguments", "filter")}
    unfit = msgspec.json.decode(known["unfit"], type=dict[str, Unfit])
    return Bulk(**known | {"id": str(known["id"]), "unfit": unfit})


def new_row(bulk: NewBulk, total: int) -> dict[str, Any]:
    """Return the columns of a preview, apart from its time and its status."""
    texts = {name: encode(getattr(bulk, name), name) for name in ("arguments", "filter")}
    return structs.asdict(bulk) | texts | {"total": total, "unfit": msgspec.json.encode(bulk.unfit).decode()}
