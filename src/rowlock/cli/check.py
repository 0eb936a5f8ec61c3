from __future__ import annotations

import sys

import click

from rowlock.cli.app import load_jobs
from rowlock.cli.connect import Database, database
from rowlock.cli.exits import Exit
from rowlock.cli.show import how_many, note, number, print_table
from rowlock.client.check import Comparison, compare
from rowlock.jobs import Jobs


@click.command()
@click.argument("app", metavar="MODULE:JOBS")
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=10_000, show_default=True,
    help="Read so many jobs that wait, and so many that run, the newest first.",
)  # fmt: skip
@database
def check(db: Database, app: str, limit: int) -> None:
    """Compare new code with the database before a deploy.

    It finds payloads that the new handlers would refuse, versions and topics of jobs that no handler would run,
    published versions whose schema or steps differ, half-done jobs whose stored steps the new code does not have,
    disabled topics, schedules whose jobs the new handlers would refuse, and limits that were put and don't fit.

    It only reads, within bounds. Exit code 0: it found nothing; 1: it found something.
    """
    new = load_jobs(app)

    async def look(jobs: Jobs) -> Comparison:
        declared, owner = jobs.schedules.declared(), jobs.schedules.owner
        return await compare(await jobs._store(), jobs.lanes(), limit=limit, declared=declared, owner=owner)

    found = db.run(look, tasks_of=new)
    db.tell(found, lambda: _print(found))
    if found.findings:
        sys.exit(Exit.REFUSED)


def _print(found: Comparison) -> None:
    if found.findings:
        rows = [
            (
                one.check,
                one.topic,
                str(one.version),
                number(one.count) if one.jobs else "",
                one.schedule or " ".join(one.jobs),
                one.text,
            )
            for one in found.findings
        ]
        print_table(("check", "topic", "version", "jobs", "such as", "note"), rows)
    said = how_many(len(found.findings), "finding") if found.findings else "the new code fits"
    more = "; there are more jobs or schedules than were checked: raise --limit" if found.partial else ""
    note(f"{how_many(found.checked)} checked: {said}{more}")
