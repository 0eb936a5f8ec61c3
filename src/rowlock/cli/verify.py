from __future__ import annotations

import sys

import click

from rowlock.cli.connect import run
from rowlock.cli.exits import Exit
from rowlock.cli.options import Span, database
from rowlock.cli.show import how_many, note, print_json, print_table
from rowlock.client.verify import Report
from rowlock.jobs import Jobs

COLUMNS = ("check", "job", "note")


@click.command()
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=10_000, show_default=True,
    help="Look at so many jobs on their way, and so many completed ones, the newest first.",
)  # fmt: skip
@click.option("--time", "seconds", type=Span(), default=30.0, show_default="30 s", help="Stop looking after this.")
@database
def verify(limit: int, seconds: float, url: str | None, output: str) -> None:
    """Look for what must not be: rows that contradict themselves or their history, jobs that are kept twice, keys that
    two live jobs have, leases that nobody took back, counters that know of fewer jobs than there are.

    It only reads, within bounds, and may run beside workers at any time. Exit code 0: nothing is wrong with what it has
    looked at; 1: something is.
    """

    async def look(jobs: Jobs) -> Report:
        return await jobs.verify(limit=limit, seconds=seconds)

    report = run(url, look)
    if output == "json":
        print_json(report)
    else:
        if report.findings:
            print_table(COLUMNS, [(found.check, found.job_id or "", found.text) for found in report.findings])
        _summarize(report)
    if report.findings:
        sys.exit(Exit.REFUSED)


def _summarize(report: Report) -> None:
    found = f"{how_many(len(report.findings), 'finding')}" if report.findings else "nothing is wrong"
    more = "; there is more than was looked at" if report.partial else ""
    note(f"{how_many(report.checked)} checked: {found}{more}")
    if report.silent:
        note(f"not heard of for longer than their lease: {', '.join(report.silent)}")
