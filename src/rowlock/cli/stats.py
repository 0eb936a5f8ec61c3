from __future__ import annotations

import click

from rowlock.cli.completion import complete_topic
from rowlock.cli.connect import Database, database
from rowlock.cli.show import milliseconds, note, number, percent, print_json, print_table
from rowlock.stores.queries import Counts

_ENDED = ("completed", "failed", "expired", "cancelled")
COLUMNS = ("topic", "pending", "processing", "waiting", *_ENDED, "success", "mean run")


@click.command()
@click.argument("topic", required=False, shell_complete=complete_topic)
@database
def stats(db: Database, topic: str | None) -> None:
    """How many jobs have which status now, how many have ever ended, and how long they took.

    Success is completed ÷ (completed + failed + expired).
    """
    found = db.run(lambda jobs: jobs.stats(topic))
    if db.wants_json:
        print_json(found)
        return
    rows = [row(name, counts) for name, counts in found.topics.items()]
    print_table(COLUMNS, [*rows, row(topic or "all", found)])
    if found.topics_capped:
        note("there are more topics than these")


def row(name: str, counts: Counts) -> tuple[str, ...]:
    """Return the cells of COLUMNS. The column `waiting` adds up the statuses waiting and blocked."""

    def live(*names: str) -> str:
        return number(sum(getattr(counts, one) for one in names), any(one in counts.capped for one in names))

    return (
        name,
        live("pending"),
        live("processing", "cancel_requested"),
        live("waiting", "blocked"),
        *(number(getattr(counts, one)) for one in _ENDED),
        percent(counts.success_rate),
        milliseconds(counts.avg_execution_time),
    )
