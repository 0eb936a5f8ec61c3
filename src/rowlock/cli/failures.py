from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from rowlock.cli.completion import complete_topic
from rowlock.cli.connect import Database, database
from rowlock.cli.options import Moment
from rowlock.cli.show import how_many, moment, note, number, print_json, print_table
from rowlock.stores.failures import MOST_GROUPS, TRENDS, Failure

COLUMNS = ("fingerprint", "topic", "count", "first", "last", "trend", "frame", "note")
_BARS = "▁▂▃▄▅▆▇█"


@click.command()
@click.option(
    "--topic", "topics", metavar="TOPIC", multiple=True, shell_complete=complete_topic, help="May be repeated."
)
@click.option("--since", type=Moment(-1), metavar="TIME", help="Ended since: 2h, 3d, 2026-05-01T14:30:00Z.")
@click.option(
    "--trend", type=click.Choice(list(TRENDS)), default="hour", show_default=True,
    help="Count per hour of the last day, or per day of the last 30.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(1, MOST_GROUPS), default=50, show_default=True, metavar="N")
@database
def failures(db: Database, **wanted: Any) -> None:
    """Dead letters in groups that failed alike: same topic, type of error, and place in your code.

    `rowlock jobs list --fingerprint F` shows a group's jobs, `rowlock jobs requeue --fingerprint F` runs them again.
    """
    found = db.run(lambda jobs: jobs.failures.list(**wanted))
    if db.wants_json:
        print_json(found)
        return
    print_table(COLUMNS, [_row(group, found.capped) for group in found.items])
    if found.next is not None:
        note("there are more groups than these")
    if found.capped:
        note("only the newest dead letters were counted: there are more")
    if found.ungrouped:
        note(f"{how_many(found.ungrouped, 'dead letter')} not grouped yet: a running worker does that")


def _row(group: Failure, capped: bool) -> tuple[str, ...]:
    first, last = moment(group.first), moment(group.last)
    count = number(group.count, capped)
    return group.fingerprint, group.topic, count, first, last, bars(group.trend), group.frame, group.title


def bars(counts: Sequence[int]) -> str:
    """Return a small bar chart. Every count above zero has a visible bar."""
    most = max(counts, default=0)
    top = len(_BARS) - 1
    return "".join(_BARS[-(-count * top // most)] if count else " " for count in counts).strip()
