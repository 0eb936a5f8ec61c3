from __future__ import annotations

import click

from rowlock.cli.connect import run
from rowlock.cli.options import database
from rowlock.cli.show import clean, print_json
from rowlock.client.why import Why
from rowlock.jobs import Jobs


@click.command()
@click.argument("job_id", metavar="JOB")
@database
def why(job_id: str, url: str | None, output: str) -> None:
    """Why is this job not running? Or where is it, if it is."""

    async def ask(jobs: Jobs) -> Why:
        return await jobs.why(job_id)

    answer = run(url, ask)
    if output == "json":
        print_json(answer)
        return
    click.echo(clean(answer.answer))
    for detail in answer.details:
        click.echo(f"  {clean(detail)}")
