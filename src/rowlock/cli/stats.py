from __future__ import annotations

import click

from rowlock.cli.completion import complete_topic
from rowlock.cli.connect import run
from rowlock.cli.options import database
from rowlock.cli.show import milliseconds, note, number, percent, print_json, print_table
from rowlock.jobs import Jobs
from rowlock.stores.reading import Counts, Stats

COLUMNS = (
    "topic",
    "pending",
    "processing",
    "waiting",
    "completed",
    "failed",
    "expired",
    "cancelled",
    "success",
    "mean run",
)


@click.command()
@click.argument("topic", required=False, shell_complete=complete_topic)
@database
def stats(topic: str | None, url: str | None, output: str) -> None:
    """How many jobs stand where now, how they have ended ever since, and how long they took.

    Success is completed ÷ (completed + failed + expired).
    """

    async def look(jobs: Jobs) -> Stats:
        return await jobs.stats(topic)

    found = run(url, look)
    if output == "json":
        print_json(found)
        return
    rows = [row(name, counts) for name, counts in found.topics.items()]
    print_table(COLUMNS, [*rows, row(topic or "all", found)])
    if found.topics_capped:
        note("there are more topics than these")


def row(name: str, counts: Counts) -> tuple[str, ...]:
    """A line of COLUMNS. Waiting are those that hold no slot and are not in line: waiting and blocked."""

    def live(*names: str) -> str:
        return number(sum(getattr(counts, one) for one in names), any(one in counts.capped for one in names))

    return (
        name,
        live("pending"),
        live("processing", "cancel_requested"),
        live("waiting", "blocked"),
        *(number(getattr(counts, one)) for one in COLUMNS[4:8]),
        percent(counts.success_rate),
        milliseconds(counts.avg_execution_time),
    )
