from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from rowlock.cli import stats as stats_command
from rowlock.cli import workers as workers_command
from rowlock.cli.connect import Database, database
from rowlock.cli.show import Row, is_fancy, job_document, moment, number, plain_lines, print_json, rich_table
from rowlock.core.job import HELD, Job
from rowlock.errors import StoreError
from rowlock.jobs import Jobs
from rowlock.runtime.periodic import is_set_within
from rowlock.stores.base import WorkerInfo
from rowlock.stores.queries import Filter, Stats

if TYPE_CHECKING:
    from rich.console import Group

_EVERY = 1.0  # seconds between looks
_SMOOTHING = 5  # looks that a rate is averaged over: it would jump too much to be read
_RUNNING = 20  # jobs shown

_ENDS = ("completed", "failed", "expired", "cancelled")
_LIVE = ("pending", "processing", "waiting", "blocked", "cancel_requested")


class Look(Struct, frozen=True):
    """The queue at one moment; `at` is from a monotonic clock."""

    at: float
    stats: Stats
    workers: Sequence[WorkerInfo]
    now: datetime
    running: list[Job]


class Rates(Struct, frozen=True):
    """Jobs per second between two looks."""

    enqueued: float
    completed: float
    failed: float


@click.command()
@click.option("--once", is_flag=True, help="Print the state once and end; the default without a terminal.")
@database
def top(db: Database, once: bool) -> None:
    """Watch the queue: backlog, rates, topics, workers and running jobs. q ends it."""
    if db.wants_json:
        seen = db.run(look)
        running = [job_document(job) for job in seen.running]
        print_json({"stats": seen.stats, "workers": seen.workers, "running": running})
    elif once or not is_fancy():
        _print(db.run(look))
    else:
        db.run(_watch)


async def look(jobs: Jobs) -> Look:
    stats, (workers, now) = await jobs.stats(), await workers_command.look(jobs)
    running = (await jobs.list(Filter(statuses=sorted(HELD)), limit=_RUNNING)).items
    return Look(time.monotonic(), stats, workers, now, running)


def rates(before: Look, after: Look) -> Rates | None:
    """Return the rates between two looks, None if no time has passed. Jobs that came and ended in between count too."""
    seconds = after.at - before.at
    if seconds <= 0:
        return None

    def per_second(*names: str) -> float:
        grown: int = sum(getattr(after.stats, name) - getattr(before.stats, name) for name in names)
        return grown / seconds

    return Rates(
        enqueued=max(per_second(*_ENDS, *_LIVE), 0.0),
        completed=max(per_second("completed"), 0.0),
        failed=max(per_second("failed", "expired"), 0.0),
    )


# ── The picture ──


def headline(seen: Look, speed: Rates | None) -> str:
    stats = seen.stats
    words = [
        f"{number(stats.pending, 'pending' in stats.capped)} pending",
        f"{number(stats.processing + stats.cancel_requested)} running",
        f"{number(stats.failed + stats.expired)} dead letters",
    ]
    if speed is not None:
        words.append(f"{speed.enqueued:,.1f}/s in, {speed.completed:,.1f}/s done, {speed.failed:,.1f}/s failed")
    return "   ".join(words)


def sections(seen: Look) -> list[tuple[Row, Sequence[Row]]]:
    topics = [stats_command.row(name, counts) for name, counts in seen.stats.topics.items()]
    running = [
        (job.id, job.topic, job.locked_by or "", moment(job.started_at), f"{job.progress:g}%", _stage(job))
        for job in seen.running
    ]
    return [
        (stats_command.COLUMNS, topics),
        (workers_command.COLUMNS, [workers_command.row(worker, seen.now) for worker in seen.workers]),
        (("id", "topic", "worker", "started", "progress", "stage"), running),
    ]


def _stage(job: Job) -> str:
    return " ".join(word for word in (job.stage, job.message) if word)


def _print(seen: Look) -> None:
    click.echo(headline(seen, None))
    for columns, rows in sections(seen):
        click.echo()
        for line in plain_lines(columns, rows):
            click.echo(line)


def _frame(seen: Look, speed: Rates | None, trouble: str | None, width: int) -> Group:
    from rich.console import Group
    from rich.text import Text

    head = Text(f"rowlock   {headline(seen, speed)}", style="bold")
    alarm = [Text(trouble, style="bold red")] if trouble else []
    tables = [rich_table(columns, rows, width) for columns, rows in sections(seen)]
    return Group(head, *alarm, *(part for table in tables for part in (Text(), table)))


# ── Live ──


async def _watch(jobs: Jobs) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    seen = [await look(jobs)]
    trouble: str | None = None
    first = _frame(seen[-1], None, None, console.width)
    with _keys() as quit_pressed, Live(first, console=console, screen=True, auto_refresh=False) as live:
        while not await is_set_within(quit_pressed, _EVERY):
            try:
                seen = [*seen[-_SMOOTHING:], await look(jobs)]
                trouble = None
            except StoreError as error:  # the database may come back
                trouble = str(error)
            live.update(_frame(seen[-1], rates(seen[0], seen[-1]), trouble, console.width), refresh=True)


@contextmanager
def _keys() -> Iterator[asyncio.Event]:
    """Yield an event that is set when q is pressed. Without a terminal and on Windows, only Ctrl-C ends it."""
    pressed = asyncio.Event()
    try:
        import termios
        import tty
    except ImportError:
        yield pressed
        return
    if not sys.stdin.isatty():
        yield pressed
        return
    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()

    def read() -> None:
        keys = os.read(keyboard, 64)
        if not keys or b"q" in keys.lower():  # no keys: the terminal is gone
            pressed.set()

    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, read)
    try:
        yield pressed
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
