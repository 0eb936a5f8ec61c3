from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
from msgspec import UNSET
from msgspec.structs import asdict

from rowlock.cli.bulk import ask, work_off
from rowlock.cli.connect import run
from rowlock.cli.filters import filters
from rowlock.cli.groups import Group
from rowlock.cli.jobs import print_jobs
from rowlock.cli.options import Moment, Priority, Span, actor, database
from rowlock.cli.show import exact, how_many, moment, note, number, print_fields, print_heading, print_json, print_table
from rowlock.client.bulk import BulkPage
from rowlock.core.job import Job
from rowlock.jobs import Jobs
from rowlock.stores.bulk import SKIPS, VERBS, Bulk
from rowlock.stores.reading import DEFAULT_LIMIT, MAX_LIMIT, Filter


@click.group(cls=Group)
def bulk() -> None:
    """Many jobs at once: look first, then do it.

    A preview lists the jobs as they stand. Once it is started, those of them that have not moved since are changed, and
    no other. Workers and servers go on with what has been started, whoever dies.
    """


@bulk.command()
@click.argument("action", type=click.Choice(list(VERBS)))
@filters
@click.option("--all", "every", is_flag=True, help="All jobs that the action can be done to.")
@click.option("--priority", type=Priority(), metavar="N", help="For reprioritise.")
@click.option("--run-at", type=Moment(+1), metavar="TIME", help="For reschedule: not before.")
@click.option("--delay", type=Span(), metavar="SPAN", help="For reschedule: not before so long from the start.")
@actor
@database
def preview(
    action: str,
    wanted: Filter,
    every: bool,
    priority: int | str | None,
    run_at: datetime | None,
    delay: float | None,
    reason: str | None,
    by: str | None,
    url: str | None,
    output: str,
) -> None:
    """List the jobs that an action would be done to. Nothing is changed before `bulk start`."""
    if (wanted == Filter()) != every:
        raise click.UsageError("give options that choose jobs (--topic, --status, …), or --all")
    given = {"priority": priority, "run_at": run_at, "delay": delay}
    options: dict[str, Any] = {name: UNSET if value is None else value for name, value in given.items()}

    async def look(jobs: Jobs) -> tuple[Bulk, Sequence[Job]]:
        made = await jobs.bulk(action, wanted, everything=every, reason=reason, **options)
        return made, await jobs.bulk_sample(made.id)

    made, sample = run(url, look, by=by)
    if output == "json":
        print_json({**_document(made), "sample": [job.id for job in sample]})
        return
    _print(made)
    if sample:
        print_heading("the first of them")
        print_jobs([*sample])
    note(f"do it within the hour: rowlock bulk start {made.id}")


@bulk.command()
@click.argument("bulk_id", metavar="ID")
@click.option("--background", is_flag=True, help="Leave it to workers and servers.")
@actor
@database
def start(bulk_id: str, background: bool, reason: str | None, by: str | None, url: str | None, output: str) -> None:
    """Do it, or go on with one that was stopped. Ctrl-C stops it."""

    async def begin(jobs: Jobs) -> None:
        if not background:
            await work_off(jobs, bulk_id, output, reason)
            return
        started = await jobs.start_bulk(bulk_id, reason=reason)
        if output == "json":
            print_json(_document(started))
        else:
            click.echo(f"{started.action} of {how_many(started.total)} is {started.status}")

    run(url, begin, by=by)


@bulk.command()
@click.argument("bulk_id", metavar="ID")
@actor
@database
def stop(bulk_id: str, reason: str | None, by: str | None, url: str | None, output: str) -> None:
    """Change no further job. What is done stays done."""

    async def end(jobs: Jobs) -> Bulk:
        return await jobs.stop_bulk(bulk_id, reason=reason)

    stopped = run(url, end, by=by)
    if output == "json":
        print_json(_document(stopped))
    else:
        click.echo(f"{stopped.action}: {stopped.status}, {stopped.done:,} done, {stopped.left:,} left")


@bulk.command()
@click.argument("bulk_id", metavar="ID")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@actor
@database
def undo(bulk_id: str, yes: bool, reason: str | None, by: str | None, url: str | None, output: str) -> None:
    """Put back the jobs that a bulk cancel has cancelled before they ran, as they were.

    Jobs that were running, and jobs to which something has happened since, stay as they are.
    """

    async def put_back(jobs: Jobs) -> None:
        made = await jobs.undo_bulk(bulk_id, reason=reason)
        if made.total and not yes:
            cancelled = (await jobs.get_bulk(bulk_id)).done
            ask(f"This would requeue {how_many(made.total)}, of {cancelled:,} that it has cancelled.")
        await work_off(jobs, made.id, output)

    run(url, put_back, by=by)


@bulk.command()
@click.argument("bulk_id", metavar="ID")
@database
def show(bulk_id: str, url: str | None, output: str) -> None:
    """How far it is, and what was skipped and why."""

    async def look(jobs: Jobs) -> Bulk:
        return await jobs.get_bulk(bulk_id)

    found = run(url, look)
    if output == "json":
        print_json(_document(found))
    else:
        _print(found)


@bulk.command("list")
@click.option("--limit", type=click.IntRange(1, MAX_LIMIT), default=DEFAULT_LIMIT, show_default=True, metavar="N")
@click.option("--cursor", metavar="TEXT", help="Where an earlier page ended (its `next`).")
@database
def list_bulk(limit: int, cursor: str | None, url: str | None, output: str) -> None:
    """Bulk actions, newest first."""

    async def look(jobs: Jobs) -> BulkPage:
        return await jobs.list_bulk(limit=limit, cursor=cursor)

    page = run(url, look)
    if output == "json":
        print_json({"items": [_document(one) for one in page.items], "total": len(page.items), "next": page.next})
        return
    rows = [
        (one.id, one.action, one.status, moment(one.created), number(one.total), number(one.done), number(one.skipped),
         one.started_by or one.by, one.reason or "")
        for one in page.items
    ]  # fmt: skip
    print_table(("id", "action", "status", "created", "jobs", "done", "skipped", "by", "note"), rows)
    if page.next is not None:
        note(f"there are more; go on with --cursor {page.next}")


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
