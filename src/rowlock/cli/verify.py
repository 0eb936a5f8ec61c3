from __future__ import annotations

import sys

import click

from rowlock.cli.connect import Database, database
from rowlock.cli.exits import Exit
from rowlock.cli.options import Span
from rowlock.cli.show import how_many, note, print_table
from rowlock.client.verify import Report


@click.command()
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=10_000, show_default=True,
    help="Check so many live jobs, and so many archived ones, the newest first.",
)  # fmt: skip
@click.option("--time", "seconds", type=Span(), default=30.0, show_default="30 s", help="Stop after this time.")
@database
def verify(db: Database, limit: int, seconds: float) -> None:
    """Check a database in use: rows that contradict themselves or their history, jobs that are stored twice, keys that
    two live jobs have, expired leases that no worker rescued, counters that are too low, limits that no claim obeys.

    It only reads, within bounds, and may run beside workers at any time. Exit code 0: it found nothing wrong; 1: it
    found something.
    """
    report = db.run(lambda jobs: jobs.verify(limit=limit, seconds=seconds))
    db.tell(report, lambda: _print(report))
    if report.findings:
        sys.exit(Exit.REFUSED)


def _print(report: Report) -> None:
    if report.findings:
        rows = [(found.check, found.job_id or "", found.text) for found in report.findings]
        print_table(("check", "job", "note"), rows)
    found = how_many(len(report.findings), "finding") if report.findings else "nothing is wrong"
    more = "; there are more jobs than were checked" if report.partial else ""
    note(f"{how_many(report.checked)} checked: {found}{more}")
    if report.silent:
        note(f"silent for longer than their lease: {', '.join(report.silent)}")
