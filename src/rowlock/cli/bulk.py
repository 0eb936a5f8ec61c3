"""`rowlock bulk`: one action for many jobs. It is previewed, started and followed to its end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import asdict

from rowlock.cli.connect import Database, actor, ask, database
from rowlock.cli.exits import Exit
from rowlock.cli.filters import filters
from rowlock.cli.groups import Group
from rowlock.cli.jobs import print_jobs
from rowlock.cli.options import Moment, Span, priority
from rowlock.cli.show import (
    exact,
    how_many,
    items,
    moment,
    note,
    number,
    print_fields,
    print_heading,
    print_json,
    print_table,
    progress_bar,
)
from rowlock.core.job import Job, Status
from rowlock.errors import StoreError
from rowlock.jobs import Jobs
from rowlock.stores.bulk import SKIPS, VERBS, Bulk, BulkItem
from rowlock.stores.queries import DEFAULT_LIMIT, MAX_LIMIT, Filter

_TOLD = 20  # refusals printed one by one


@click.group(cls=Group)
def bulk() -> None:
    """One action for many jobs: preview it, then start it.

    A preview lists the jobs as they are now. The action changes only listed jobs, and skips those that have changed
    since. Once it is started, workers and servers run it to its end, even if this process dies.
    """


@bulk.command()
@click.argument("action", type=click.Choice(list(VERBS)))
@filters
@click.option("--all", "every", is_flag=True, help="All jobs that the action can change.")
@click.option("--priority", type=priority, metavar="N", help="For reprioritise.")
@click.option("--run-at", type=Moment(+1), metavar="TIME", help="For reschedule: not before this time.")
@click.option("--delay", type=Span(), metavar="SPAN", help="For reschedule: not before this long after the start.")
@actor
@database
def preview(db: Database, action: str, wanted: Filter, every: bool, **arguments: Any) -> None:
    """List the jobs that an action would change. Nothing is changed before `bulk start`."""
    if (wanted == Filter()) != every:
        raise click.UsageError("give options that choose jobs (--topic, --status, …), or --all")
    given: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}

    async def look(jobs: Jobs) -> tuple[Bulk, Sequence[Job]]:
        made = await jobs.bulk.prepare(action, wanted, everything=every, reason=db.reason, **given)
        return made, await jobs.bulk.sample(made.id)

    made, sample = db.run(look)
    db.tell({**_document(made), "sample": [job.id for job in sample]}, lambda: _print_preview(made, sample))


def _print_preview(made: Bulk, sample: Sequence[Job]) -> None:
    _print(made)
    if sample:
        print_heading("the first of them")
        print_jobs([*sample])
    note(f"to do it, within an hour: rowlock bulk start {made.id}")


@bulk.command()
@click.argument("bulk_id", metavar="ID")
@click.option("--background", is_flag=True, help="Leave it to workers and servers.")
@actor
@database
def start(db: Database, bulk_id: str, background: bool) -> None:
    """Start a previewed action, or continue a stopped one. Ctrl-C stops it."""
    if not background:
        db.run(lambda jobs: run_bulk(jobs, db, bulk_id, db.reason))
        return
    started = db.run(lambda jobs: jobs.bulk.start(bulk_id, reason=db.reason))
    db.tell(_document(started), f"{started.action} of {how_many(started.total)} is {started.status}")


@bulk.command()
@click.argument("bulk_id", metavar="ID")
@actor
@database
def stop(db: Database, bulk_id: str) -> None:
    """Change no further job. Changes made before are kept."""
    stopped = db.run(lambda jobs: jobs.bulk.stop(bulk_id, reason=db.reason))
    text = f"{stopped.action}: {stopped.status}, {stopped.done:,} done, {stopped.left:,} left"
    db.tell(_document(stopped), text)


@bulk.command()
@click.argument("bulk_id", metavar="ID")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@actor
@database
def undo(db: Database, bulk_id: str, yes: bool) -> None:
    """Undo a bulk cancel: requeue the jobs that it cancelled before they ran.

    Jobs that were running, and jobs that have changed since, are left as they are.
    """

    async def put_back(jobs: Jobs) -> None:
        made = await jobs.bulk.undo(bulk_id, reason=db.reason)
        if made.total and not yes:
            cancelled = (await jobs.bulk.get(bulk_id)).done
            ask(f"This would requeue {how_many(made.total)}, of {cancelled:,} that it has cancelled.")
        await run_bulk(jobs, db, made.id)

    db.run(put_back)


@bulk.command()
@click.argument("bulk_id", metavar="ID")
@database
def show(db: Database, bulk_id: str) -> None:
    """How far the action is, and which jobs were skipped and why."""
    found = db.run(lambda jobs: jobs.bulk.get(bulk_id))
    db.tell(_document(found), lambda: _print(found))


@bulk.command("list")
@click.option("--limit", type=click.IntRange(1, MAX_LIMIT), default=DEFAULT_LIMIT, show_default=True, metavar="N")
@click.option("--cursor", metavar="TEXT", help="Continue after an earlier page (its `next`).")
@database
def list_bulk(db: Database, limit: int, cursor: str | None) -> None:
    """Bulk actions, newest first."""
    page = db.run(lambda jobs: jobs.bulk.list(limit=limit, cursor=cursor))
    if db.wants_json:
        print_json(items([_document(one) for one in page.items], next=page.next))
        return
    rows = [
        (one.id, one.action, one.status, moment(one.created), number(one.total), number(one.done), number(one.skipped),
         one.started_by or one.by, one.reason or "")
        for one in page.items
    ]  # fmt: skip
    print_table(("id", "action", "status", "created", "jobs", "done", "skipped", "by", "note"), rows)
    if page.next is not None:
        note(f"there are more; continue with --cursor {page.next}")


def _document(bulk: Bulk) -> dict[str, Any]:
    return {**asdict(bulk), "skipped": bulk.skipped, "left": bulk.left, "rate": bulk.rate}


def _print(bulk: Bulk) -> None:
    skips = [f"{getattr(bulk, name):,} {name}" for name in SKIPS if getattr(bulk, name)]
    unfit = [f"{number(one.count, one.more)} {status}" for status, one in bulk.unfit.items()]
    print_fields(
        [
            ("id", bulk.id),
            ("action", " ".join([bulk.action, *(f"{name}={value}" for name, value in bulk.arguments.items())])),
            ("status", bulk.status),
            ("filter", ", ".join(f"{name}: {value}" for name, value in bulk.filter.items()) or "everything"),
            ("jobs", number(bulk.total)),
            ("not taken", ", ".join(unfit)),
            ("done", number(bulk.done)),
            ("skipped", ", ".join(skips)),
            ("left", number(bulk.left)),
            ("jobs a second", None if bulk.rate is None else f"{bulk.rate:,.0f}"),
            ("reason", bulk.reason),
            ("by", bulk.by),
            ("started by", bulk.started_by),
            ("created", exact(bulk.created)),
            ("started", exact(bulk.started_at)),
            ("finished", exact(bulk.finished_at)),
        ]
    )


# ── Run it to its end, and report ──


class Change(Struct, frozen=True):
    """The outcome for one job. `status` is None if the job was deleted or not changed."""

    id: str
    done: bool
    status: Status | None = None
    error: str | None = None


async def run_bulk(jobs: Jobs, db: Database, bulk_id: str, reason: str | None = None) -> None:
    """Start a bulk action, help to run it, and report how far it came. Ctrl-C stops it."""
    bulk = await jobs.bulk.start(bulk_id, reason=reason)
    left = bulk.total
    try:
        with progress_bar(bulk.action, bulk.total) as advance:

            def progress(now: Bulk) -> None:
                nonlocal left
                advance(left - now.left)
                left = now.left

            if bulk.total:
                bulk = await jobs.bulk.run(bulk.id, progress=progress)
    except asyncio.CancelledError:  # Ctrl-C
        stopped = await jobs.bulk.stop(bulk.id, reason="interrupted")
        await _account(jobs, db, stopped)
        note(f"rowlock: stopped, {stopped.left:,} left; continue with: rowlock bulk start {bulk.id}")
        raise
    except StoreError:
        note(f"rowlock: workers and servers continue it; see: rowlock bulk show {bulk.id}")
        raise
    await _account(jobs, db, bulk)
    if bulk.skipped or (bulk.total and bulk.status == "stopped"):
        sys.exit(Exit.REFUSED)


async def _account(jobs: Jobs, db: Database, bulk: Bulk) -> None:
    """Print the outcome: for programs every job, for people the numbers and the first skipped jobs."""
    if db.wants_json:
        changes = [_change(item) async for item in _items(jobs, bulk.id) if item.outcome is not None]
        print_json(items(changes, done=bulk.done, bulk=bulk.id))
        return
    errors: list[str] = []
    for outcome in SKIPS:
        if getattr(bulk, outcome) and len(errors) < _TOLD:
            page = await jobs.bulk.items(bulk.id, outcome=outcome, limit=_TOLD - len(errors))
            errors += [_change(item).error or "" for item in page.items]
    report(bulk.action, errors, bulk.skipped, bulk.done)


async def _items(jobs: Jobs, bulk_id: str) -> AsyncIterator[BulkItem]:
    cursor = None
    while True:
        page = await jobs.bulk.items(bulk_id, limit=MAX_LIMIT, cursor=cursor)
        for item in page.items:
            yield item
        cursor = page.next
        if cursor is None:
            return


_WHY = {
    "changed": "it is not as it was when it was listed, {status}",
    "gone": "it has been deleted",
    "key_taken": "job {holder} is live with the same key",
    "locked": "another transaction holds it, or its key",
}


def _change(item: BulkItem) -> Change:
    why = _WHY.get(item.outcome or "")
    error = None if why is None else f"job {item.job_id}: {why.format(status=item.status, holder=item.holder)}"
    return Change(item.job_id, item.outcome == "done", error=error)


def report(verb: str, errors: Sequence[str], refused: int, done: int) -> None:
    """Print how many jobs were changed, after the first errors. `refused` counts all jobs that were not changed."""
    for error in errors[:_TOLD]:
        note(f"rowlock: {error}")
    if refused > _TOLD:
        note(f"rowlock: … and {how_many(refused - _TOLD, 'more refusal')}; -o json names them all")
    every = done + refused
    of = f" of {every:,}" if refused else ""
    click.echo(f"{verb}: {done:,}{of} {'job' if every == 1 else 'jobs'} done" if every else f"{verb}: no job matches")
