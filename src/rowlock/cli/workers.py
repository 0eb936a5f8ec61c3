from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from rowlock.cli.connect import Database, database
from rowlock.cli.show import items, moment, print_table
from rowlock.client.why import is_silent
from rowlock.jobs import Jobs
from rowlock.stores.base import WorkerInfo

COLUMNS = ("worker", "host", "pid", "busy", "state", "seen", "started", "version", "topics")


@click.command()
@database
def workers(db: Database) -> None:
    """The workers that the database knows: running ones, and those that died without signing off."""
    found, now = db.run(look)
    db.tell(items(found), lambda: print_table(COLUMNS, [row(worker, now) for worker in found]))


async def look(jobs: Jobs) -> tuple[Sequence[WorkerInfo], datetime]:
    """Return the workers, and the time by the database's clock."""
    return await jobs.workers.list(), await (await jobs._store()).now()


def row(worker: WorkerInfo, now: datetime) -> tuple[str, ...]:
    """Return the cells of COLUMNS."""
    stopping = "stopping" if worker.stopping else ""
    return (
        worker.name,
        worker.host,
        str(worker.pid),
        f"{worker.running}/{worker.concurrency}",
        "gone" if is_silent(worker, now) else stopping,
        moment(worker.seen),
        moment(worker.started),
        worker.rowlock,
        ", ".join(worker.topics),
    )
