"""Bulk actions: prepared, started, and worked off by whoever has time for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from rowlock.core.ids import check_id
from rowlock.core.job import Job, Status, check_delay, check_priority, check_time
from rowlock.errors import BulkNotFound, BulkRefused, InvalidInput
from rowlock.stores.base import Store
from rowlock.stores.bulk import OUTCOMES, UNRUN, VERBS, WAKING, Bulk, BulkItem, NewBulk, Unfit, shown, sources
from rowlock.stores.reading import Filter, check_limit, make_cursor, read_cursor
from rowlock.stores.times import micros

SAMPLE = 10
_BREATH = 0.01  # seconds between two batches: SQLite has one writer, and others want to be it, too
_LOOK = 0.05  # seconds between looks at one that another process works on


class BulkPage(Struct, frozen=True, kw_only=True):
    """Bulk actions, newest first. `next`: the cursor of the next page; None: this is all."""

    items: list[Bulk]
    next: str | None


class ItemsPage(Struct, frozen=True, kw_only=True):
    """Jobs of a bulk action, in the order of their ids, which is the order in which it comes to them."""

    items: list[BulkItem]
    next: str | None


# ── Prepare ──


def new_bulk(
    bulk_id: str,
    action: str,
    filter: Filter,
    *,
    everything: bool,
    priority: int | str | UnsetType,
    run_at: datetime | UnsetType,
    delay: float | timedelta | UnsetType,
    by: str,
    reason: str | None,
) -> NewBulk:
    if action not in VERBS:
        raise InvalidInput("action", "unknown_action", f"{action!r:.40} is none of {', '.join(VERBS)}")
    if not isinstance(filter, Filter):
        raise InvalidInput("filter", "not_a_filter", f"must be a Filter(…), not {type(filter).__name__}")
    if (filter == Filter()) != everything:
        text = "an empty filter is every job: if that is meant, say so" if not everything else "give no filter with it"
        raise InvalidInput("everything", "everything", text)
    given = {"priority": priority, "run_at": run_at, "delay": delay}
    arguments = _arguments(action, {name: value for name, value in given.items() if value is not UNSET})
    return NewBulk(
        id=bulk_id, action=action, arguments=arguments, filter=shown(filter), unfit={}, by=by, reason=reason
    )  # fmt: skip


def new_undo(undo_id: str, bulk: Bulk, *, by: str, reason: str | None) -> NewBulk:
    """What puts back the jobs that a bulk cancel has cancelled while they were pending. Others had begun: what they did
    can't be taken back."""
    if bulk.action != "cancel":
        raise BulkRefused(bulk.id, "undo", bulk.status, f"it is a {bulk.action}, and only a cancel can be undone")
    if bulk.status not in ("done", "stopped"):
        raise BulkRefused(
            bulk.id, "undo", bulk.status, "stop it first" if bulk.status == "running" else "nothing is done"
        )
    return NewBulk(
        id=undo_id,
        action="requeue",
        arguments={"undo": bulk.id},
        filter={},
        unfit={},
        by=by,
        reason=f"undo of bulk {bulk.id}" if reason is None else reason,
    )


def _arguments(action: str, given: dict[str, Any]) -> dict[str, Any]:
    wanted = {"reprioritise": ("priority",), "reschedule": ("run_at", "delay")}.get(action, ())
    for name in given:
        if name not in wanted:
            raise InvalidInput(name, "not_wanted", f"is nothing for {action}")
    if wanted and len(given) != 1:
        raise InvalidInput(wanted[-1], "missing", f"{action} needs {' or '.join(wanted)}, and only one")
    if "priority" in given:
        return {"priority": check_priority(given["priority"])}
    if "run_at" in given:
        return {"run_at": micros(check_time(given["run_at"], "run_at"))}
    return {"delay": check_delay(given["delay"], "delay")} if "delay" in given else {}


async def prepare(store: Store, bulk: NewBulk, filter: Filter) -> Bulk:
    return await store.create_bulk(replace(bulk, unfit=await _unfit(store, bulk.action, filter)), filter)


async def _unfit(store: Store, action: str, filter: Filter) -> dict[str, Unfit]:
    """Jobs that meet the filter and can't be had, by status: counted as far as lists count."""
    wanted = frozenset(Status(status) for status in filter.statuses) or frozenset(Status)
    found = {}
    for status in sorted(wanted - sources(action)):
        page = await store.list(replace(filter, statuses=[status]), limit=1)
        if page.total or page.total_capped:
            found[str(status)] = Unfit(page.total, page.total_capped)
    return found


# ── Steer ──


async def get(store: Store, bulk_id: str) -> Bulk:
    found = await store.bulks([check_id(bulk_id)], limit=1)
    if not found:
        raise BulkNotFound(bulk_id)
    return found[0]


async def start(store: Store, bulk_id: str, *, by: str, reason: str | None = None) -> Bulk:
    """One that is running, or is done, needs no start."""
    started = await store.start_bulk(check_id(bulk_id), by=by, reason=reason)
    bulk = await get(store, bulk_id)
    if not started and bulk.status in ("preview", "stopped"):
        raise BulkRefused(bulk.id, "start", bulk.status, "too long ago: make a new one")
    return bulk


async def stop(store: Store, bulk_id: str, *, by: str, reason: str | None) -> Bulk:
    """One that is not running has nothing to stop."""
    stopped = await store.stop_bulk(check_id(bulk_id), by=by, reason=reason)
    bulk = await get(store, bulk_id)
    if not stopped and bulk.status == "preview":
        raise BulkRefused(bulk.id, "stop", bulk.status, "it was not started")
    return bulk


# ── Work off ──


async def run_some(store: Store) -> bool:
    """A batch of whichever has waited for longest. Is there more to do, as far as is known?"""
    bulk = await store.run_bulk()
    if bulk is None:
        return False
    await _after(store, bulk)
    return True


async def run_all(store: Store, bulk_id: str, progress: Callable[[Bulk], None] | None = None) -> Bulk:
    """Until it has ended, with whoever else works on it."""
    wanted = check_id(bulk_id)
    while True:
        bulk = await store.run_bulk(wanted)
        if bulk is not None:
            await _after(store, bulk)
        else:
            bulk = await get(store, wanted)
            if bulk.status == "running":
                await asyncio.sleep(_LOOK)
        if progress is not None:
            progress(bulk)
        if bulk.status != "running":
            return bulk


async def _after(store: Store, bulk: Bulk) -> None:
    if bulk.action in WAKING and not store.watches_commits:
        await store.ring()
    await asyncio.sleep(_BREATH)


async def sweep(store: Store) -> bool:
    """Remove what nobody will look at any more. Is there more of it?"""
    return await store.prune_bulks(10_000) >= 10_000


# ── Look ──


async def sample(store: Store, bulk_id: str) -> list[Job]:
    """The first jobs of it that are there still."""
    ids = [item.job_id for item in await store.bulk_items(bulk_id, limit=SAMPLE)]
    found = await store.get(ids)
    return [found[job_id] for job_id in ids if job_id in found]


async def page(store: Store, limit: int, cursor: str | None) -> BulkPage:
    before = None if cursor is None else read_cursor(cursor)
    found = await store.bulks(before=before, limit=check_limit(limit) + 1)
    return BulkPage(items=found[:limit], next=make_cursor(found[limit - 1].id) if len(found) > limit else None)


async def items(store: Store, bulk_id: str, outcome: str | None, limit: int, cursor: str | None) -> ItemsPage:
    if outcome is not None and outcome not in (*OUTCOMES, UNRUN):
        names = ", ".join((*OUTCOMES, UNRUN))
        raise InvalidInput("outcome", "unknown_outcome", f"{outcome!r:.40} is none of {names}")
    after = None if cursor is None else read_cursor(cursor)
    bulk = await get(store, bulk_id)
    found: Sequence[BulkItem] = await store.bulk_items(
        bulk.id, outcome=outcome, after=after, limit=check_limit(limit) + 1
    )
    last = make_cursor(found[limit - 1].job_id) if len(found) > limit else None
    return ItemsPage(items=[*found[:limit]], next=last)
