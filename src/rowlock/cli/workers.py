from __future__ import annotations

import click

from rowlock.cli.connect import Database, database
from rowlock.cli.show import items, moment, print_table
from rowlock.stores.base import WorkerInfo

COLUMNS = ("worker", "host", "pid", "busy", "state", "seen", "started", "version", "topics")


@click.command()
@database
def workers(db: Database) -> None:
    """The workers that the database knows: running ones, and those that died without signing off."""
    found = db.run(lambda jobs: jobs.workers.list())
    db.tell(items(found), lambda: print_table(COLUMNS, [row(worker) for worker in found]))


def row(worker: WorkerInfo) -> tuple[str, ...]:
    """Return the cells of COLUMNS."""
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
