from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
from msgspec import structs

from rowlock.cli.connect import run
from rowlock.cli.filters import filters
from rowlock.cli.groups import Lazy, LazyGroup
from rowlock.cli.options import Json, Span, actor, database, edits
from rowlock.cli.show import exact, how_many, is_fancy, job_document, moment, note, print_json, print_table, remark
from rowlock.cli.waiting import report_end, wait_for
from rowlock.core.job import Job, Status
from rowlock.jobs import Jobs
from rowlock.stores.reading import DEFAULT_LIMIT, MAX_LIMIT, Filter, Page


@click.group(
    cls=LazyGroup,
    lazy={
        "list": Lazy("rowlock.cli.jobs:list_jobs", "Jobs, newest first."),
        "show": Lazy("rowlock.cli.job:show", "Everything about a job."),
        "logs": Lazy("rowlock.cli.job:logs", "What a job's handler has logged; --follow shows it live."),
        "wait": Lazy("rowlock.cli.jobs:wait", "Wait for a job's end, and print its result."),
        "cancel": Lazy("rowlock.cli.bulk:cancel", "Stop jobs."),
        "requeue": Lazy("rowlock.cli.bulk:requeue", "Run jobs again that have failed, expired or were cancelled."),
        "update": Lazy("rowlock.cli.jobs:update", "Change a pending job."),
        "delete": Lazy("rowlock.cli.bulk:delete", "Remove jobs that are not running."),
    },
)
def jobs() -> None:
    """List, show, wait for, and steer jobs."""


@click.command("list")
@filters
@click.option("--limit", type=click.IntRange(1, MAX_LIMIT), default=DEFAULT_LIMIT, show_default=True, metavar="N")
@click.option("--cursor", metavar="TEXT", help="Where an earlier page ended (its `next`).")
@click.option("--all", "every", is_flag=True, help="All of them, however many there are and however long it takes.")
@database
def list_jobs(wanted: Filter, limit: int, cursor: str | None, every: bool, url: str | None, output: str) -> None:
    """Jobs, newest first: those that meet all options.

    A search for --payload, --tag or --error looks at some 10,000 jobs at a time, and says so.
    """

    async def look(jobs: Jobs) -> Page:
        if every:
            return await _all_pages(jobs, wanted, cursor)
        return await jobs.list(wanted, limit=limit, cursor=cursor)

    page = run(url, look)
    if output == "json":
        print_json(
            {
                "items": [job_document(job) for job in page.items],
                "total": page.total,
                "total_capped": page.total_capped,
                "partial": page.partial,
                "next": page.next,
            }
        )
        return
    print_jobs(page.items)
    if page.reached is not None:
        # The total is of the whole search from the newest job on, not of this page: it would only confuse.
        note(
            f"{how_many(len(page.items))} found. Jobs created before {exact(page.reached)} were not searched: "
            f"go on with --cursor {page.next}, or search all jobs with --all"
        )
    elif page.next is not None:
        total = f"{page.total:,}{' or more' if page.total_capped else ''}"
        note(f"{how_many(len(page.items))} of {total}; go on with --cursor {page.next}, or --all")


async def _all_pages(jobs: Jobs, wanted: Filter, cursor: str | None) -> Page:
    found: list[Job] = []
    while True:
        page = await jobs.list(wanted, limit=MAX_LIMIT, cursor=cursor)
        found += page.items
        cursor = page.next
        if cursor is None:
            return structs.replace(page, items=found, total=len(found), total_capped=False, partial=False)


def print_jobs(jobs: list[Job]) -> None:
    rows = [
        (
            job.id,
            job.topic,
            job.status,
            moment(job.created),
            _due(job),
            f"{job.retries}/{job.max_retries}" if job.retries else "",
            job.key or "",
            remark(job),
        )
        for job in jobs
    ]
    print_table(("id", "topic", "status", "created", "due", "retries", "key", "note"), rows)


def _due(job: Job) -> str:
    if job.status is not Status.PENDING or (is_fancy() and job.run_at <= datetime.now(UTC)):
        return ""  # for people, that it is due is no news
    return moment(job.run_at)


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("--timeout", type=Span(), metavar="SPAN", help="Wait so long at most: 30, 15m, 2h.")
@database
def wait(job_id: str, timeout: float | None, url: str | None, output: str) -> None:
    """Wait for a job's end, and print its result.

    \b
    Exit codes:
      0  completed
      3  it ended otherwise: failed, expired or cancelled
      4  the time was over first
    """

    async def until_its_end(jobs: Jobs) -> Job:
        return await wait_for(jobs, job_id, timeout)

    report_end(run(url, until_its_end), timeout, output)


@click.command()
@click.argument("job_id", metavar="ID")
@edits
@click.option("--payload", type=Json(), metavar="JSON", help="A JSON object, @file, or - for stdin.")
@actor
@database
def update(job_id: str, reason: str | None, by: str | None, url: str | None, output: str, **changes: Any) -> None:
    """Change a pending job: what is given, and nothing else."""
    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        raise click.UsageError("give --priority, --run-at, --delay, --payload or --tags")

    async def change(jobs: Jobs) -> Job:
        return await jobs.update(job_id, reason=reason, **given)

    job = run(url, change, by=by)
    if output == "json":
        print_json(job_document(job))
    else:
        print_jobs([job])
