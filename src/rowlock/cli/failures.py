from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import click

from rowlock.cli.completion import complete_topic
from rowlock.cli.connect import run
from rowlock.cli.options import Moment, database
from rowlock.cli.show import how_many, moment, note, number, print_json, print_table
from rowlock.jobs import Jobs
from rowlock.stores.failures import MOST_GROUPS, TRENDS, Failures

COLUMNS = ("fingerprint", "topic", "count", "first", "last", "trend", "frame", "note")
_BARS = "▁▂▃▄▅▆▇█"


@click.command()
@click.option("--topic", metavar="TOPIC", multiple=True, shell_complete=complete_topic, help="May be repeated.")
@click.option("--since", type=Moment(-1), metavar="TIME", help="Ended since: 2h, 3d, 2026-05-01T14:30:00Z.")
@click.option(
    "--trend", type=click.Choice(list(TRENDS)), default="hour", show_default=True, help="Of a day, or a month."
)
@click.option("--limit", type=click.IntRange(1, MOST_GROUPS), default=50, show_default=True, metavar="N")
@database
def failures(
    topic: tuple[str, ...],
    since: datetime | None,
    trend: Literal["hour", "day"],
    limit: int,
    url: str | None,
    output: str,
) -> None:
    """Dead letters in groups that failed alike: same topic, type of error, and place in your code.

    `rowlock jobs list --fingerprint F` shows a group's jobs, `rowlock jobs requeue --fingerprint F` runs them again.
    """

    async def look(jobs: Jobs) -> Failures:
        return await jobs.failures(topics=topic, since=since, trend=trend, limit=limit)

    found = run(url, look)
    if output == "json":
        print_json(found)
        return
    rows = [
        (
            group.fingerprint,
            group.topic,
            number(group.count, found.capped),
            moment(group.first),
            moment(group.last),
            bars(group.trend),
            group.frame,
            group.title,
        )
        for group in found.items
    ]
    print_table(COLUMNS, rows)
    if found.next is not None:
        note("there are more groups than these")
    if found.capped:
        note("only the newest dead letters were looked at: there are more")
    if found.ungrouped:
        note(f"{how_many(found.ungrouped, 'dead letter')} not grouped yet: a running worker does that")


def bars(counts: Sequence[int]) -> str:
    """A little chart; what is not zero can be seen."""
    most = max(counts, default=0)
    top = len(_BARS) - 1
    return "".join(_BARS[-(-count * top // most)] if count else " " for count in counts).strip()
