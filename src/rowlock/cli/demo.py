from __future__ import annotations

import asyncio
import logging
import signal
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rowlock.access import tokens
from rowlock.cli.demo_page import served
from rowlock.cli.demo_past import make_up
from rowlock.cli.options import Span
from rowlock.cli.sample import Customers, register
from rowlock.cli.show import STYLES, is_fancy
from rowlock.client.why import spell_seconds
from rowlock.core.flows import is_for_children
from rowlock.core.job import HELD, Job, Status
from rowlock.core.waits import is_step_name
from rowlock.jobs import Jobs
from rowlock.runtime.periodic import is_set_within
from rowlock.stores.queries import Filter, Stats

if TYPE_CHECKING:
    from rich.console import Group

_EVERY = 0.25  # seconds between pictures
_ROWS = 18
_WAITING = 3  # rows for jobs that wait for a decision


@click.command()
@click.option(
    "--for", "seconds", type=Span(), metavar="SPAN", help="End after this time: 30, 2m. Default: Ctrl-C ends it."
)
@click.option("--url", help="The database. Default: a new SQLite file, deleted at the end.")
def demo(seconds: float | None, url: str | None) -> None:
    """See rowlock work: a database, a worker, customers who enqueue all kinds of jobs, and the page that shows them.

    Some are quick, some report their progress, some fail and are retried, some never succeed, some are cancelled, some
    wait for their time, some overtake all others, some go on step by step, some wait for other jobs, and some wait
    until a person decides: you, on the page.
    """
    logging.getLogger("rowlock").addHandler(logging.NullHandler())  # the picture shows it
    if url is not None:
        asyncio.run(_run(url, seconds))
        return
    with tempfile.TemporaryDirectory(prefix="rowlock-demo-") as folder:
        own = Path(folder) / "demo.db"
        asyncio.run(_run(f"sqlite:///{own}", seconds, own))


async def _run(url: str, seconds: float | None, own: Path | None = None) -> None:
    """`own`: the demo's own SQLite file, in which it may invent a past."""
    jobs = Jobs(url, migrate=True, by="demo")
    register(jobs)
    enough = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, enough.set)
    async with jobs:
        before = await jobs.stats()
        if own is not None:
            await asyncio.to_thread(make_up, own, time.time())
            await tokens.create(
                await jobs._store(),
                "shop front",
                ["enqueue"],
                topics=["mail.send", "order.express"],
                by="ann@example.org",
            )
        await jobs.start(concurrency=8, grace=3)
        customers = Customers(jobs)
        await customers.open()
        async with served(jobs) as link:
            if link is not None:
                click.echo(f"Open the page: {link}")
                if own is not None:
                    click.echo("Its charts show an invented past, up to now.")
                click.echo("A refund waits there for your decision: see Jobs, waiting. So does an order: see Flows.")
            else:
                click.echo("There is also a page, which needs the HTTP server: pip install 'rowlock[server]'")
            click.echo()
            shopping = asyncio.create_task(customers.shop())
            shopping.add_done_callback(lambda _: enough.set())
            began = time.monotonic()
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await (_watch if is_fancy() else _tell)(jobs, customers, enough, began)
            finally:
                shopping.cancel()
                customers.leave()
        took = time.monotonic() - began
        await jobs.stop()
        undecided = await jobs.list(Filter(topics=["refund.approve"], statuses=["waiting"]), limit=1)
        _sum_up(before, await jobs.stats(), customers.enqueued, undecided.total or 0, took)
        if shopping.done() and not shopping.cancelled() and (error := shopping.exception()) is not None:
            raise error


def _sum_up(before: Stats, after: Stats, enqueued: int, undecided: int, seconds: float) -> None:
    ended = {name: getattr(after, name) - getattr(before, name) for name in ("completed", "failed", "cancelled")}
    waiting = f", {undecided} of them waiting for a decision" if undecided else ""
    click.echo(
        f"{enqueued} jobs in {seconds:.0f} s: "
        + ", ".join(f"{count} {name}" for name, count in ended.items())
        + f", {enqueued - sum(ended.values())} not done yet{waiting}"
    )


async def _recent(jobs: Jobs, customers: Customers, count: int) -> list[Job]:
    """Return the running jobs, those that wait for a person, and the newest ones."""
    running = (await jobs.list(Filter(statuses=["processing", "cancel_requested"]), limit=count)).items
    waiting = (await jobs.list(Filter(statuses=["waiting"]), limit=_WAITING)).items
    ids = list(dict.fromkeys([*(job.id for job in [*waiting, *running]), *list(customers.recent)[:count]]))[:count]
    page = await jobs.list(Filter(ids=ids), limit=count) if ids else None
    return page.items if page else []


# ── On a terminal: a picture ──


async def _watch(jobs: Jobs, customers: Customers, enough: asyncio.Event, began: float) -> None:
    from rich.live import Live

    with Live(auto_refresh=False, screen=False, transient=False) as live:
        while not enough.is_set():
            picture = _picture(jobs, await jobs.stats(), await _recent(jobs, customers, _ROWS), began)
            live.update(picture, refresh=True)
            await is_set_within(enough, _EVERY)


def _picture(jobs: Jobs, stats: Stats, recent: list[Job], began: float) -> Group:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    counts = [
        (stats.pending, "pending", "yellow"),
        (stats.processing + stats.cancel_requested, "running", "bold cyan"),
        (stats.waiting, "waiting", "blue"),
        (stats.completed, "completed", "green"),
        (stats.failed, "failed", "bold red"),
        (stats.cancelled, "cancelled", "magenta"),
    ]
    head = Text("rowlock demo   ", style="bold")
    for count, name, style in counts:
        head.append(f"{count} {name}   ", style=style)
    head.append(f"{time.monotonic() - began:.0f} s", style="dim")
    table = Table(box=None, pad_edge=False, expand=True)
    for name, width in (("job", 14), ("status", 16), ("try", 3), ("progress", 14)):
        table.add_column(name, width=width, no_wrap=True)
    table.add_column("what happens", ratio=1, no_wrap=True, overflow="ellipsis")
    for job in recent:
        style = STYLES.get(job.status, "")
        moves = job.status in HELD and job.progress
        bar = ProgressBar(total=100, completed=job.progress, width=14) if moves else Text("")
        table.add_row(
            job.topic, Text(_status(job), style=style), str(max(job.attempts, 1)), bar, Text(_story(job), style="dim")
        )
    url = jobs.settings.url if jobs.settings.url.startswith("sqlite:") else "…"  # other URLs may hold a password
    foot = Text(f"From another terminal: rowlock top --url '{url}'    Ctrl-C ends it.", style="dim")
    return Group(head, Text(), table, Text(), foot)


def _status(job: Job) -> str:
    if job.status is Status.PENDING and job.retries:
        return "waits to retry"
    return job.status.replace("_", " ")


def _story(job: Job) -> str:
    match job.status:
        case Status.COMPLETED:
            return str(job.result) if job.result is not None else "done"
        case Status.CANCELLED | Status.CANCEL_REQUESTED:
            return job.cancel_reason or ""
        case Status.WAITING if is_for_children((job.waits_for or "").partition(":")[2]):
            return f"{job.message}: waits for the jobs that it has started"
        case Status.WAITING:
            left = (job.run_at - datetime.now(UTC)).total_seconds()
            return f"{job.message} ({spell_seconds(max(left, 1))} left)"
        case Status.PROCESSING:
            return job.message or (f"step {job.step}" if job.step and is_step_name(job.step) else "")
        case _ if job.last_error:
            return job.last_error.rpartition("\n")[2]
        case Status.PENDING if (wait := (job.run_at - datetime.now(UTC)).total_seconds()) > 0:
            return f"in {wait:.0f} s"
        case Status.PENDING if job.priority > 100:
            return "overtakes the others"
        case _:
            return ""


# ── Elsewhere: a line for every change ──


async def _tell(jobs: Jobs, customers: Customers, enough: asyncio.Event, began: float) -> None:
    told: dict[str, str] = {}
    while not enough.is_set():
        for job in reversed(await _recent(jobs, customers, 100)):
            status = _status(job)
            if told.get(job.id) != status:
                told[job.id] = status
                click.echo(f"{time.monotonic() - began:6.1f} s  {job.topic:<15} {status:<17} {_story(job)}".rstrip())
        await is_set_within(enough, _EVERY)
