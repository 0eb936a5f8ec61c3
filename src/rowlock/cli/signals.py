from __future__ import annotations

from typing import Any

import click

from rowlock.cli.connect import Database, actor, database
from rowlock.cli.jobs import print_jobs
from rowlock.cli.options import Json
from rowlock.cli.show import job_document, note
from rowlock.core.waits import signal_of


@click.command()
@click.argument("job_id", metavar="ID")
@click.argument("name", metavar="NAME")
@click.argument("data", type=Json(), metavar="[DATA]", required=False)
@click.option("--id", "signal_id", metavar="TEXT", help="A signal with this id counts once per job.")
@actor
@database
def signal(db: Database, job_id: str, name: str, data: Any, signal_id: str | None) -> None:
    """Send a signal to a job. DATA is JSON, @file, or - for stdin; default: null.

    A job that waits for the signal goes on at once. Else the signal is kept until its handler asks for it.
    """
    job = db.run(lambda jobs: jobs.signal(job_id, name, data, id=signal_id, reason=db.reason))
    db.tell(job_document(job), lambda: print_jobs([job]))
    awaited = signal_of(job.waits_for)
    if awaited is not None and awaited != name and not awaited.startswith("@"):
        note(f"rowlock: the job waits for the signal {awaited!r}. {name!r} is kept until its handler asks for it.")


@click.command()
@click.argument("job_id", metavar="ID")
@actor
@database
def wake(db: Database, job_id: str) -> None:
    """End a sleep, or the time of a wait, now.

    A wait for a signal ends as after its timeout: with its default, or with WaitTimeout.
    """
    job = db.run(lambda jobs: jobs.wake(job_id, reason=db.reason))
    db.tell(job_document(job), lambda: print_jobs([job]))
