from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click
import msgspec

from rowlock.cli.connect import Database, database
from rowlock.cli.show import (
    clean,
    exact,
    how_many,
    is_fancy,
    job_document,
    note,
    one_line,
    pretty,
    print_fields,
    print_heading,
    print_json,
    print_table,
)
from rowlock.cli.steps import print_steps
from rowlock.client.step_list import StepStatus
from rowlock.client.why import spell_seconds
from rowlock.core.flows import is_for_children
from rowlock.core.job import Event, Job, Log, LogLine, Status
from rowlock.core.waits import is_step_name
from rowlock.errors import ScheduleNotFound
from rowlock.jobs import Jobs

_LOOK = 0.5  # seconds between looks, with --follow


@click.command()
@click.argument("job_id", metavar="ID")
@database
def show(db: Database, job_id: str) -> None:
    """Everything about a job: its fields, payload, result, error, steps, history and log."""

    async def look(jobs: Jobs) -> tuple[Job, Sequence[StepStatus], Sequence[Event], Log, str | None]:
        job, steps = await jobs.get(job_id), await jobs.steps(job_id)
        return job, steps, await jobs.events(job_id), await jobs.logs(job_id), await _schedule_of(jobs, job)

    job, steps, events, log, schedule = db.run(look)
    if db.wants_json:
        print_json({**job_document(job), "steps": steps, "events": events, "log": log})
        return
    _print_job(job, steps, schedule)
    if steps:
        print_heading("steps")
        print_steps(steps)
    _print_events(events)
    _print_log(log)


async def _schedule_of(jobs: Jobs, job: Job) -> str | None:
    """Return the name of the schedule that made the job; its id, if the schedule was deleted."""
    if job.schedule_id is None:
        return None
    try:
        return (await jobs.schedules.get(job.schedule_id)).name
    except ScheduleNotFound:
        return f"{job.schedule_id} (deleted)"


def _print_job(job: Job, steps: Sequence[StepStatus], schedule: str | None) -> None:
    print_fields(_fields(job, steps, schedule))
    result = None if job.result is None else pretty(job.result)
    for title, text in (("payload", pretty(job.payload)), ("result", result), ("error", job.last_error)):
        if text:
            print_heading(title)
            click.echo(clean(text))


def _waits(job: Job, steps: Sequence[StepStatus]) -> str | None:
    """Return what the job waits for, and until when."""
    if job.waits_for is None:
        return None
    wait = next((step for step in steps if step.is_open_wait and step.waits_for == job.waits_for), None)
    kind, _, signal = job.waits_for.partition(":")
    what = "jobs that it has started" if is_for_children(signal) else f"signal {signal}" if signal else kind
    if wait is None:
        return what
    return f"{what} without end" if wait.deadline is None else f"{what} until {exact(wait.deadline)}"


def _fields(job: Job, steps: Sequence[StepStatus], schedule: str | None) -> list[tuple[str, str | None]]:
    scope = " ".join(word for word in (job.scope, job.scope_id) if word)
    progress = [f"{job.progress:g} %" if job.progress else None, job.stage, job.message]
    return [
        ("id", job.id),
        ("topic", job.topic + (f" (template version {job.template_version})" if job.template_version else "")),
        ("status", job.status),
        ("waits for", _waits(job, steps)),
        ("priority", str(job.priority)),
        ("key", job.key),
        ("scope", scope),
        ("tags", ", ".join(job.tags)),
        ("progress", ", ".join(word for word in progress if word)),
        ("step", job.step if job.step is not None and is_step_name(job.step) else None),
        ("attempts", str(job.attempts)),
        ("retries", f"{job.retries} of {job.max_retries}"),
        ("crashes", str(job.crashes) if job.crashes else None),
        ("timeout", spell_seconds(job.timeout)),
        ("worker", job.locked_by),
        ("lease until", exact(job.locked_until)),
        ("cancel requested", exact(job.cancel_requested_at)),
        ("cancel reason", job.cancel_reason),
        ("flow", job.flow_id),
        ("schedule", schedule),
        ("fire time", exact(job.fire_at)),
        ("trace", job.trace),
        ("created", exact(job.created)),
        ("due", None if job.status is Status.WAITING else exact(job.run_at)),
        ("expires", exact(job.expires_at)),
        ("claimed", exact(job.claimed_at)),
        ("started", exact(job.started_at)),
        ("finished", exact(job.finished_at)),
        ("updated", exact(job.updated)),
    ]


def _print_events(events: Sequence[Event]) -> None:
    print_heading("history")
    rows = [(exact(event.at), event.event, event.status or "", event.by or "", _about(event)) for event in events]
    print_table(("at", "event", "status", "by", "data"), rows)


def _about(event: Event) -> str:
    text = ", ".join(f"{name}: {one_line(str(value))}" for name, value in event.data.items() if value is not None)
    return f"{text[:119]}…" if is_fancy() and len(text) > 120 else text


def _print_log(log: Log) -> None:
    if not log.lines and not log.dropped:
        return
    print_heading("log")
    if log.dropped:
        click.echo(f"({_dropped(log.dropped)})")
    for line in log.lines:
        click.echo(_line(line))


def _dropped(count: int) -> str:
    return f"{how_many(count, 'older line')} {'was' if count == 1 else 'were'} dropped"


def _line(line: LogLine) -> str:
    return f"{exact(line.at)}  run {line.version}  {line.level:<7}  {clean(line.text)}"


# ── The log alone ──


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Continue until the job has ended.")
@database
def logs(db: Database, job_id: str, follow: bool) -> None:
    """The lines that a job's handler wrote with ctx.log. With --follow, -o json prints one object per line."""
    if follow:
        db.run(lambda jobs: _follow(jobs, job_id, db.output))
        return
    log = db.run(lambda jobs: jobs.logs(job_id))
    db.tell(log, lambda: _tell(log, 0, db.output))


async def _follow(jobs: Jobs, job_id: str, output: str) -> None:
    seen = 0
    while True:
        is_live = (await jobs.get(job_id)).is_live  # read first: an ended job logs nothing more
        seen = _tell(await jobs.logs(job_id), seen, output)
        if not is_live:
            return
        await asyncio.sleep(_LOOK)


def _tell(log: Log, seen: int, output: str) -> int:
    """Print the lines after the first `seen`, and return how many there are now. Some may have been dropped."""
    if log.dropped > seen:
        note(_dropped(log.dropped - seen))
    for line in log.lines[max(seen - log.dropped, 0) :]:
        click.echo(msgspec.json.encode(line) if output == "json" else _line(line))
    return log.dropped + len(log.lines)
