from __future__ import annotations

from collections.abc import Sequence

import click

from rowlock.cli.connect import run
from rowlock.cli.options import database
from rowlock.cli.show import items, moment, print_json, print_table
from rowlock.jobs import Jobs
from rowlock.stores.base import WorkerInfo

COLUMNS = ("worker", "host", "pid", "busy", "state", "seen", "started", "version", "topics")


@click.command()
@database
def workers(url: str | None, output: str) -> None:
    """The workers that the database knows: those that live, and those that did not say goodbye."""

    async def look(jobs: Jobs) -> Sequence[WorkerInfo]:
        return await jobs.workers()

    found = run(url, look)
    if output == "json":
        print_json(items(found))
    else:
        print_table(COLUMNS, [row(worker) for worker in found])


def row(worker: WorkerInfo) -> tuple[str, ...]:
    """A line of COLUMNS."""
    return (
        worker.name,
        worker.host,
        str(worker.pid),
        f"{worker.running}/{worker.concurrency}",
        "stopping" if worker.stopping else "",
        moment(worker.seen),
        moment(worker.started),
        worker.rowlock,
        ", ".join(worker.topics),
    )
