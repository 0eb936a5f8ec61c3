from __future__ import annotations

import re
from typing import Any, cast, get_args

import click

from rowlock.cli.completion import complete_topic
from rowlock.cli.connect import Database, database
from rowlock.cli.options import Json, Moment, Span, priority
from rowlock.cli.show import note
from rowlock.cli.spelling import guess_topic
from rowlock.cli.waiting import report_end, wait_for
from rowlock.core.debounce import Debounce
from rowlock.core.job import Job
from rowlock.core.templates import IfLive
from rowlock.jobs import Jobs
from rowlock.stores.base import Enqueued
from rowlock.tasks import EnqueueOptions

_FOREVER = "forever"


class Patience(Span):
    """The optional value of --wait."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if value == _FOREVER:
            return float("inf")
        if isinstance(value, str) and not re.match(r"\d", value):
            self.fail(f"{value!r} is not a length of time: put --wait last, or write --wait=30", param, ctx)
        return super().convert(value, param, ctx)


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@click.argument("payload", type=Json(), default="{}")
@click.option(
    "--key", metavar="KEY", help="Add no job if a live one of the topic and scope has this key; print its id instead."
)
@click.option(
    "--if-live",
    type=click.Choice(get_args(IfLive)),
    help="If a live job has the key: add none, queue behind it, or replace it. Default: as the template says.",
)
@click.option(
    "--debounce",
    type=Span(),
    metavar="SPAN",
    help="Replace the payload of the job with this key that has not started, and run it so long after now.",
)
@click.option(
    "--debounce-at-most",
    "at_most",
    type=Span(),
    metavar="SPAN",
    help="With --debounce: not later than so long after the first enqueue.",
)
@click.option(
    "--throttle",
    type=Span(),
    metavar="SPAN",
    help="Add no job if one with this key was added within this time; print its id instead.",
)
@click.option(
    "--template-version",
    "version",
    type=click.IntRange(0),
    metavar="N",
    help="The version of the topic. Default: the newest enabled one.",
)
@click.option("--delay", type=Span(), metavar="SPAN", help="Not before this much time has passed: 30, 15m, 2h.")
@click.option("--run-at", type=Moment(+1), metavar="TIME", help="Not before: 2026-05-01T14:30:00Z.")
@click.option(
    "--expires-at", type=Moment(+1), metavar="TIME", help="It expires if it has not started by then: 2h, or a time."
)
@click.option("--priority", type=priority, metavar="N", help="Higher first; also explicit, discovered, backfill.")
@click.option("--max-retries", type=int, metavar="N")
@click.option("--timeout", type=Span(), metavar="SPAN", help="Longest time of one run: 30, 15m, 2h.")
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="May be repeated.")
@click.option("--scope", metavar="TEXT", help="The kind of its owner: user, account, …")
@click.option("--scope-id", metavar="TEXT", help="The id of its owner.")
@click.option("--id", metavar="UUID", help="Your own id: if it is enqueued twice, there is one job.")
@click.option(
    "--wait",
    type=Patience(),
    metavar="[SPAN]",
    is_flag=False,
    flag_value=_FOREVER,
    help="Wait until it has ended, and print the result. Exit codes as for `jobs wait`.",
)
@database
def enqueue(
    db: Database,
    topic: str,
    payload: Any,
    wait: float | None,
    debounce: float | None,
    at_most: float | None,
    **options: Any,
) -> None:
    """Add a job, and print its id.

    PAYLOAD is a JSON object, @file, or - for stdin.

    \b
    rowlock enqueue send_mail '{"to": "ada@example.org"}' --delay 15m
    rowlock enqueue report @report.json --wait 30
    """
    if debounce is not None:
        options["debounce"] = Debounce(debounce, at_most)
    elif at_most is not None:
        raise click.UsageError("--debounce-at-most needs --debounce")
    given = cast(EnqueueOptions, {name: value for name, value in options.items() if value not in (None, ())})

    async def add(jobs: Jobs) -> tuple[Enqueued, Job | None]:
        guess = await guess_topic(jobs, topic)
        enqueued = await jobs.enqueue(topic, payload, **given)
        if guess:
            note(f"rowlock: no other job and no worker has the topic {topic!r}.{guess}")
        if wait is None:
            return enqueued, None
        note(enqueued.id)
        return enqueued, await wait_for(jobs, enqueued.id, wait)

    enqueued, job = db.run(add, create=True)
    if enqueued.existing:
        what = "carries the new payload" if debounce is not None else f"is {enqueued.status}"
        note(f"exists already: {enqueued.id} {what}")
    if job is not None:
        report_end(job, wait, db.output)
    else:
        db.tell(enqueued, enqueued.id)
