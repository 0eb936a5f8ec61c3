from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
from msgspec import structs

from rowlock.cli.connect import Database, actor, database
from rowlock.cli.filters import filters
from rowlock.cli.groups import Lazy, LazyGroup
from rowlock.cli.options import Json, Span, edits
from rowlock.cli.show import exact, how_many, is_fancy, job_document, moment, note, print_json, print_table, remark
from rowlock.cli.waiting import report_end, wait_for
from rowlock.core.job import Job, Status
from rowlock.jobs import Jobs
from rowlock.stores.queries import DEFAULT_LIMIT, MAX_LIMIT, Filter, Page


@click.group(
    cls=LazyGroup,
    lazy={
        "list": Lazy("rowlock.cli.jobs:list_jobs", "Jobs, newest first."),
        "show": Lazy("rowlock.cli.job:show", "Everything about a job."),
        "steps": Lazy("rowlock.cli.steps:steps", "The steps of a job, with what is stored of them."),
        "logs": Lazy("rowlock.cli.job:logs", "The log lines of a job; --follow shows them live."),
        "wait": Lazy("rowlock.cli.jobs:wait", "Wait until a job has ended, and print its result."),
        "cancel": Lazy("rowlock.cli.change_jobs:cancel", "Cancel jobs."),
        "signal": Lazy("rowlock.cli.signals:signal", "Send a signal to a job that waits for it."),
        "wake": Lazy("rowlock.cli.signals:wake", "End a sleep, or the time of a wait, now."),
        "requeue": Lazy("rowlock.cli.change_jobs:requeue", "Run failed, expired or cancelled jobs again."),
        "update": Lazy("rowlock.cli.jobs:update", "Change a pending job."),
        "delete": Lazy("rowlock.cli.change_jobs:delete", "Delete jobs that are not running."),
    },
)
def jobs() -> None:
    """List, show, wait for, and change jobs."""


@click.command("list")
@filters
@click.option("--limit", type=click.IntRange(1, MAX_LIMIT), default=DEFAULT_LIMIT, show_default=True, metavar="N")
@click.option("--cursor", metavar="TEXT", help="Continue after an earlier page (its `next`).")
@click.option("--all", "every", is_flag=True, help="All of them, however many there are and however long it takes.")
@database
def list_jobs(db: Database, wanted: Filter, limit: int, cursor: str | None, every: bool) -> None:
    """Jobs, newest first: those that match all options.

    A search for --payload, --tag or --error looks at about 10,000 jobs at a time, and says so.
    """

    async def look(jobs: Jobs) -> Page:
        if every:
            return await _all_pages(jobs, wanted, cursor)
        return await jobs.list(wanted, limit=limit, cursor=cursor)

    page = db.run(look)
    if db.wants_json:
        told = {name: getattr(page, name) for name in ("total", "total_capped", "partial", "next")}
        print_json({"items": [job_document(job) for job in page.items], **told})
        return
    print_jobs(page.items)
    if page.reached is not None:
        # The total is of the whole search from the newest job on, not of this page: it would only confuse.
        note(
            f"{how_many(len(page.items))} found. Jobs created before {exact(page.reached)} were not searched: "
            f"continue with --cursor {page.next}, or search all jobs with --all"
        )
    elif page.next is not None:
        total = f"{page.total:,}{' or more' if page.total_capped else ''}"
        note(f"{how_many(len(page.items))} of {total}; continue with --cursor {page.next}, or --all")


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
        return ""  # people need not be told that a job is due already
    return moment(job.run_at)


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("--timeout", type=Span(), metavar="SPAN", help="Wait this long at most: 30, 15m, 2h.")
@database
def wait(db: Database, job_id: str, timeout: float | None) -> None:
    """Wait until a job has ended, and print its result.

    \b
    Exit codes:
      0  completed
      3  it ended otherwise: failed, expired or cancelled
      4  the timeout was over first
    """
    report_end(db.run(lambda jobs: wait_for(jobs, job_id, timeout)), timeout, db.output)


@click.command()
@click.argument("job_id", metavar="ID")
@edits
@click.option("--payload", type=Json(), metavar="JSON", help="A JSON object, @file, or - for stdin.")
@actor
@database
def update(db: Database, job_id: str, **changes: Any) -> None:
    """Change the given fields of a pending job."""
    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        raise click.UsageError("give --priority, --run-at, --delay, --payload or --tags")
    job = db.run(lambda jobs: jobs.update(job_id, reason=db.reason, **given))
    db.tell(job_document(job), lambda: print_jobs([job]))
