from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

from rowlock.cli.connect import run
from rowlock.cli.options import Moment, database
from rowlock.cli.show import is_fancy, moment, note, print_json, print_table
from rowlock.jobs import Jobs
from rowlock.stores.reading import MAX_LIMIT
from rowlock.stores.records import Audited


@click.command()
@click.option("--job", "job_id", metavar="ID", help="What was done to this job, also by bulk actions.")
@click.option("--by", metavar="NAME", help="What this one did.")
@click.option("--action", metavar="NAME", help="requeue, cancel, delete, update, pause, resume, bulk_start, …")
@click.option("--since", type=Moment(-1), metavar="TIME", help="2h, 3d, 2026-05-01T14:30:00Z.")
@click.option("--bulk", metavar="ID", help="What this bulk action did to each of its jobs.")
@click.option("--limit", type=click.IntRange(1, MAX_LIMIT), default=50, show_default=True, metavar="N")
@click.option("--before", type=int, metavar="N", help="Go on where an earlier page ended (its `next`).")
@database
def audit(
    job_id: str | None,
    by: str | None,
    action: str | None,
    since: datetime | None,
    bulk: str | None,
    limit: int,
    before: int | None,
    url: str | None,
    output: str,
) -> None:
    """What operators did, newest first: who, what, to which job or topic, and why.

    Those lines that meet all options. It outlives the jobs.
    """

    async def look(jobs: Jobs) -> Sequence[Audited]:
        return await jobs.audit(job_id=job_id, by=by, action=action, since=since, bulk=bulk, limit=limit, before=before)

    found = run(url, look)
    more = found[-1].id if len(found) == limit else None
    if output == "json":
        print_json({"items": found, "total": len(found), "next": more})
        return
    rows = [
        (moment(one.at), one.by, one.action, one.job_id or "", one.topic or "", one.reason or "", _details(one))
        for one in found
    ]
    print_table(("at", "by", "action", "job", "topic", "note", "data"), rows)
    if more is not None:
        note(f"there may be more; go on with --before {more}")


def _details(one: Audited) -> str:
    text = ", ".join(f"{name}: {_json(value)}" for name, value in one.data.items() if value is not None)
    return f"{text[:119]}…" if is_fancy() and len(text) > 120 else text


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
