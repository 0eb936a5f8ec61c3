from __future__ import annotations

from typing import Any

import click
import msgspec

from rowlock.cli.connect import Database, database
from rowlock.cli.options import Moment
from rowlock.cli.show import is_fancy, moment, note, print_json, print_table
from rowlock.stores.queries import MAX_LIMIT
from rowlock.stores.records import Audited


@click.command()
@click.option("--job", "job_id", metavar="ID", help="Changes of this job, also those by bulk actions.")
@click.option("--by", "author", metavar="NAME", help="Changes by this author.")
@click.option("--action", metavar="NAME", help="requeue, cancel, delete, update, pause, resume, bulk_start, …")
@click.option("--since", type=Moment(-1), metavar="TIME", help="2h, 3d, 2026-05-01T14:30:00Z.")
@click.option("--bulk", metavar="ID", help="What this bulk action did to each of its jobs.")
@click.option("--limit", type=click.IntRange(1, MAX_LIMIT), default=50, show_default=True, metavar="N")
@click.option("--before", type=int, metavar="N", help="Continue after an earlier page (its `next`).")
@database
def audit(db: Database, limit: int, author: str | None, **wanted: Any) -> None:
    """What operators did, newest first: who, what, to which job or topic, and why.

    Shows the entries that match all options. The audit outlives the jobs.
    """
    found = db.run(lambda jobs: jobs.audit.list(**wanted, by=author, limit=limit))
    more = found[-1].id if len(found) == limit else None
    if db.wants_json:
        print_json({"items": found, "total": len(found), "next": more})
        return
    rows = [
        (moment(one.at), one.by, one.action, one.job_id or "", one.topic or "", one.reason or "", _details(one))
        for one in found
    ]
    print_table(("at", "by", "action", "job", "topic", "note", "data"), rows)
    if more is not None:
        note(f"there may be more; continue with --before {more}")


def _details(one: Audited) -> str:
    text = ", ".join(
        f"{name}: {msgspec.json.encode(value).decode()}" for name, value in one.data.items() if value is not None
    )
    return f"{text[:119]}…" if is_fancy() and len(text) > 120 else text
