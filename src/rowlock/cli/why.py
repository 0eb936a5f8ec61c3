from __future__ import annotations

import click

from rowlock.cli.connect import Database, database
from rowlock.cli.show import clean


@click.command()
@click.argument("job_id", metavar="JOB")
@database
def why(db: Database, job_id: str) -> None:
    """Why is this job not running? If it is running or has ended: where, or how."""
    found = db.run(lambda jobs: jobs.why(job_id))
    details = [f"  {clean(detail)}" for detail in found.details]
    db.tell(found, "\n".join([clean(found.answer), *details]))
