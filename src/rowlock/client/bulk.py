"""`jobs.bulk`: one action for many jobs. It is prepared, started, and then run by workers, servers and clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from rowlock.client.audit import Actor, check_reason
from rowlock.core.ids import IdMaker, check_id
from rowlock.core.job import Job, Status, check_delay, check_priority, check_time
from rowlock.core.times import micros
from rowlock.errors import BulkNotFound, BulkRefused, InvalidInput
from rowlock.stores.base import Store
from rowlock.stores.bulk import OUTCOMES, UNRUN, VERBS, WAKING, Bulk, BulkItem, NewBulk, Unfit, shown, sources
from rowlock.stores.queries import Filter, check_limit, make_cursor, read_cursor

SAMPLE = 10
_BREATH = 0.01  # seconds between two batches: SQLite has one writer, and other writers need their turn
_LOOK = 0.05  # seconds between looks at a bulk action that another process is running


class BulkPage(Struct, frozen=True, kw_only=True):
    """Bulk actions, newest first. `next`: the cursor of the next page; None: this is all."""

    items: list[Bulk]
    next: str | None


class ItemsPage(Struct, frozen=True, kw_only=True):
    """Jobs of a bulk action, in the order of their ids: it runs in this order. `next`: see BulkPage."""

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
        text = "give a filter, or everything=True for all jobs" if not everything else "give a filter or this, not both"
        raise InvalidInput("everything", "everything", text)
    given = {"priority": priority, "run_at": run_at, "delay": delay}
    arguments = _arguments(action, {name: value for name, value in given.items() if value is not UNSET})
    return NewBulk(
        id=bulk_id, action=action, arguments=arguments, filter=shown(filter), unfit={}, by=by, reason=reason
    )  # fmt: skip


def new_undo(undo_id: str, bulk: Bulk, *, by: str, reason: str | None) -> NewBulk:
    """Return the action that requeues the jobs which a bulk cancel has cancelled while they were pending. Jobs that had
    started can't be undone."""
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
            raise InvalidInput(name, "not_wanted", f"{action} does not take it")
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
    """Return how many jobs match the filter but have a status that the action can't start from. Counts are capped as in
    lists."""
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
    """Start the action; no change if it is running or done."""
    started = await store.steer_bulk(check_id(bulk_id), "start", by=by, reason=reason)
    bulk = await get(store, bulk_id)
    if not started and bulk.status in ("preview", "stopped"):
        raise BulkRefused(bulk.id, "start", bulk.status, "it is too old: prepare a new one")
    return bulk


async def stop(store: Store, bulk_id: str, *, by: str, reason: str | None) -> Bulk:
    """Stop the action; no change if it is done or stopped."""
    stopped = await store.steer_bulk(check_id(bulk_id), "stop", by=by, reason=reason)
    bulk = await get(store, bulk_id)
    if not stopped and bulk.status == "preview":
        raise BulkRefused(bulk.id, "stop", bulk.status, "it was not started")
    return bulk


# ── Run ──


async def run_some(store: Store) -> bool:
    """Run a batch of the action that has waited longest. Return False if no action is running."""
    bulk = await store.run_bulk()
    if bulk is None:
        return False
    await _after(store, bulk)
    return True


async def run_all(store: Store, bulk_id: str, progress: Callable[[Bulk], None] | None = None) -> Bulk:
    """Run the action until it has ended. Other processes may run it at the same time."""
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
    if bulk.action in WAKING and not store.traits.watches_commits:
        await store.ring()
    await asyncio.sleep(_BREATH)


# ── The group ──


class BulkActions:
    """`jobs.bulk`: see docs/bulk.md."""

    def __init__(self, store: Callable[[], Awaitable[Store]], ids: IdMaker, actor: Actor) -> None:
        self._store = store
        self._ids = ids
        self._actor = actor

    async def prepare(
        self,
        action: str,
        filter: Filter | None = None,
        *,
        everything: bool = False,
        priority: int | str | UnsetType = UNSET,
        run_at: datetime | UnsetType = UNSET,
        delay: float | timedelta | UnsetType = UNSET,
        dry_run: bool = True,
        reason: str | None = None,
        by: str | None = None,
    ) -> Bulk:
        """List the jobs that match the filter now, for one action: requeue, cancel, delete, reprioritise (with
        `priority`) or reschedule (with `run_at`, or `delay` from the start of the action).

        Nothing is changed before `start`; with `dry_run=False` it starts at once. Jobs that are added or changed after
        the listing are left alone.
        """
        by, why = self._actor(by), check_reason(reason)
        wanted = Filter() if filter is None else filter
        new = new_bulk(
            self._ids.one(), action, wanted, everything=everything, priority=priority, run_at=run_at, delay=delay,
            by=by, reason=why,
        )  # fmt: skip
        store = await self._store()
        prepared = await prepare(store, new, wanted)
        return prepared if dry_run else await start(store, prepared.id, by=by)

    async def undo(
        self, bulk_id: str, *, dry_run: bool = True, reason: str | None = None, by: str | None = None
    ) -> Bulk:
        """Prepare another bulk action that undoes a bulk cancel, to be started like any other.

        It requeues the jobs that were pending when they were cancelled, with their old time, retries and expiry. Jobs
        that were changed since then are skipped.
        """
        store = await self._store()
        done = await get(store, bulk_id)
        new = new_undo(self._ids.one(), done, by=self._actor(by), reason=check_reason(reason))
        prepared = await store.create_bulk(new, Filter())
        return prepared if dry_run else await start(store, prepared.id, by=new.by)

    async def start(self, bulk_id: str, *, reason: str | None = None, by: str | None = None) -> Bulk:
        """Start a prepared bulk action, or continue a stopped one. Workers and servers run it. `reason` replaces the
        one of `prepare`."""
        return await start(await self._store(), bulk_id, by=self._actor(by), reason=check_reason(reason))

    async def run(self, bulk_id: str, *, progress: Callable[[Bulk], None] | None = None) -> Bulk:
        """Run a started bulk action in this process too, until it is done or stopped. Calls `progress` after each
        batch."""
        return await run_all(await self._store(), bulk_id, progress)

    async def stop(self, bulk_id: str, *, reason: str | None = None, by: str | None = None) -> Bulk:
        """Stop a bulk action. When this returns, no further job is changed. Changes made before are kept."""
        return await stop(await self._store(), bulk_id, by=self._actor(by), reason=check_reason(reason))

    async def get(self, bulk_id: str) -> Bulk:
        """Return the bulk action as it is now. Raise BulkNotFound if there is none, or if it was pruned."""
        return await get(await self._store(), bulk_id)

    async def list(self, *, limit: int = 20, cursor: str | None = None) -> BulkPage:
        """Return a page of bulk actions, newest first."""
        before = None if cursor is None else read_cursor(cursor)
        found = await (await self._store()).bulks(before=before, limit=check_limit(limit) + 1)
        return BulkPage(items=found[:limit], next=make_cursor(found[limit - 1].id) if len(found) > limit else None)

    async def sample(self, bulk_id: str) -> Sequence[Job]:
        """Return the first ten jobs of a bulk action, without those that are deleted."""
        store = await self._store()
        bulk = await get(store, bulk_id)
        ids = [item.job_id for item in await store.bulk_items(bulk.id, limit=SAMPLE)]
        found = await store.read(ids, Job)
        return [found[job_id] for job_id in ids if job_id in found]

    async def items(
        self, bulk_id: str, *, outcome: str | None = None, limit: int = 20, cursor: str | None = None
    ) -> ItemsPage:
        """Return a page of the action's jobs with the outcome of each: done, changed, gone, key_taken or locked. Jobs
        that it has not reached yet are "unrun"."""
        if outcome is not None and outcome not in (*OUTCOMES, UNRUN):
            names = ", ".join((*OUTCOMES, UNRUN))
            raise InvalidInput("outcome", "unknown_outcome", f"{outcome!r:.40} is none of {names}")
        after = None if cursor is None else read_cursor(cursor)
        store = await self._store()
        bulk = await get(store, bulk_id)
        found = await store.bulk_items(bulk.id, outcome=outcome, after=after, limit=check_limit(limit) + 1)
        last = make_cursor(found[limit - 1].job_id) if len(found) > limit else None
        return ItemsPage(items=[*found[:limit]], next=last)
