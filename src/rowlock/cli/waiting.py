"""Wait until a job has ended, and report how: for `jobs wait` and `enqueue --wait`."""

from __future__ import annotations

import sys

import click

from rowlock.cli.exits import Exit
from rowlock.cli.show import job_document, note, pretty, print_json
from rowlock.client.why import last_line, spell_seconds
from rowlock.core.job import Job, Status
from rowlock.jobs import Jobs


async def wait_for(jobs: Jobs, job_id: str, patience: float | None) -> Job:
    """Return the job once it has ended, or as it is when the time is over."""
    try:
        return await jobs.wait(job_id, timeout=None if patience in (None, float("inf")) else patience)
    except TimeoutError:
        return await jobs.get(job_id)


def report_end(job: Job, patience: float | None, output: str) -> None:
    """Print the result, or what went wrong. Exit with the code for it."""
    if output == "json":
        print_json(job_document(job))
    elif job.status is Status.COMPLETED:
        click.echo(pretty(job.result))
    if job.status is Status.COMPLETED:
        return
    if job.is_live:
        after = "" if patience is None else f" after {spell_seconds(patience)}"
        note(f"rowlock: job {job.id} is still {job.status}{after}")
        sys.exit(Exit.TIMED_OUT)
    what = job.cancel_reason if job.status is Status.CANCELLED else last_line(job.last_error or "")
    note(f"rowlock: job {job.id} ended as {job.status}{f': {what}' if what else ''}")
    sys.exit(Exit.ENDED_BADLY)
