from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from msgspec import Struct

from rowlock.cli.bench_runs import Bench, Drain, Pickup, Rate, rate
from rowlock.cli.connect import Database, ask, database
from rowlock.cli.exits import Exit
from rowlock.cli.options import Span
from rowlock.cli.show import how_many, is_fancy, note, print_table
from rowlock.client.why import is_live, spell_seconds
from rowlock.core.codec import MAX_BYTES
from rowlock.errors import RowlockError
from rowlock.jobs import Jobs
from rowlock.runtime.running_board import MOST_SLOTS

COLUMNS = ("what", "jobs", "jobs/s", "ms")

_SPAN = 20.0  # seconds in all, unless --for is given
_ENQUEUING = 0.1  # shares of it: for enqueuing one by one …
_DRAINING = 0.12  # … for each drain of empty jobs
_SLEEPING = 0.1
_PICKUPS = 10  # per second of it
_FEWEST, _MOST = 1000, 100_000  # jobs of a drain whose number is not given
_BUSY = 1000  # live jobs in the database, above which it asks first
_LONGEST_SLEEP = 60.0


class Plan(Struct, frozen=True, kw_only=True):
    """`count`: jobs of each measurement; None: as many as fit into `span` seconds."""

    count: int | None
    span: float
    processes: tuple[int, ...]
    concurrency: int
    sleep: float
    payload: int
    keep: bool
    yes: bool


class Report(Struct, kw_only=True):
    topic: str
    concurrency: int
    payload: int
    enqueue: Rate
    enqueue_bulk: Rate
    drains: list[Drain]
    drain_sleep: Drain
    pickup: Pickup
    removed: bool


@click.command()
@click.option("-n", "--jobs", "count", type=click.IntRange(1, 1_000_000), help="Jobs of each measurement.")
@click.option("--for", "span", type=Span(), metavar="SPAN", help="About how long it takes in all. Default: 20 s.")
@click.option(
    "-p", "--processes", type=click.IntRange(1, 64), multiple=True, default=(1, 2), show_default="1 and 2",
    help="Number of worker processes; may be repeated. Sleeping jobs and pickup use the first number.",
)  # fmt: skip
@click.option(
    "-c", "--concurrency", type=click.IntRange(1, MOST_SLOTS), default=100, show_default=True,
    help="Jobs at once in each process.",
)  # fmt: skip
@click.option("--sleep", type=Span(), default=0.01, show_default="10 ms", help="How long the sleeping jobs take.")
@click.option(
    "--payload", type=click.IntRange(0, MAX_BYTES - 64), default=0, show_default=True, metavar="BYTES",
    help="Size of each job's payload.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Leave the jobs in the database.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask, even if the database is in use.")
@database
def bench(
    db: Database, count: int | None, span: float | None, processes: tuple[int, ...], sleep: float, **rest: Any
) -> None:
    """Measure this machine and this database: enqueue jobs, drain empty jobs, drain jobs that sleep, and the time until
    an idle worker has started a job.

    Its jobs have a topic of their own, rowlock.bench.…: your workers don't see them, and its workers run nothing else.
    They are `rowlock worker` processes, and a job counts when the database says that it is completed. At the end, after
    Ctrl-C too, the jobs are deleted.
    """
    if sys.platform == "win32":
        raise click.ClickException("`rowlock bench` needs Linux or macOS, as `rowlock worker` does")
    if count is not None and span is not None:
        raise click.UsageError("give --jobs or --for, not both")
    _within(span, 1.0, 3600.0, "--for")
    _within(sleep, 0.001, _LONGEST_SLEEP, "--sleep")
    span = _SPAN if span is None else span
    plan = Plan(count=count, span=span, processes=tuple(dict.fromkeys(processes)), sleep=sleep, **rest)
    try:
        report = db.run(lambda jobs: _bench(jobs, plan))
    except asyncio.CancelledError:  # SIGTERM
        raise KeyboardInterrupt from None
    db.tell(report, lambda: _print(report))
    if plan.keep:
        note(f"its jobs are kept: rowlock jobs list --topic {report.topic}")
    elif not report.removed:
        sys.exit(Exit.REFUSED)


def _within(seconds: float | None, low: float, high: float, option: str) -> None:
    if seconds is not None and not low <= seconds <= high:
        raise click.BadParameter(f"must be {spell_seconds(low)} to {spell_seconds(high)}", param_hint=option)


# ── Measure ──


async def _bench(jobs: Jobs, plan: Plan) -> Report:
    await _ask_if_others_are_here(jobs, plan)
    me = asyncio.current_task()
    assert me is not None  # noqa: S101 - narrows the type
    for number in (signal.SIGTERM, signal.SIGHUP):  # as for Ctrl-C, which asyncio handles
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            asyncio.get_running_loop().add_signal_handler(number, me.cancel)
    bench = Bench(jobs, concurrency=plan.concurrency, payload=plan.payload)
    removed = False
    try:
        with _status() as status:
            report = await _measure(bench, plan, status)
    finally:
        if not plan.keep:
            removed = await _remove(bench)
    report.removed = removed
    return report


async def _ask_if_others_are_here(jobs: Jobs, plan: Plan) -> None:
    if plan.yes:
        return
    now = await (await jobs._store()).now()
    workers = sum(is_live(worker, now) for worker in await jobs.workers.list())
    stats = await jobs.stats()
    live = stats.pending + stats.processing + stats.waiting + stats.blocked + stats.cancel_requested
    if not workers and live <= _BUSY:
        return
    question = (
        f"This will load a database with {how_many(workers, 'live worker')} and {how_many(live, 'live job')} "
        f"for {'a while' if plan.count else f'about {spell_seconds(plan.span)}'}."
    )
    ask(question, refused="nothing was measured")


async def _measure(bench: Bench, plan: Plan, status: Callable[[str], None]) -> Report:
    few = plan.processes[0]
    status("enqueuing one by one")
    enqueue, ids = await bench.enqueue_one_by_one(plan.count or _MOST, plan.span * _ENQUEUING)
    status("warming up")
    warm = await bench.drain(ids, few)
    count = plan.count or min(max(round(warm.per_second * plan.span * _DRAINING), _FEWEST), _MOST)
    bulks: list[Rate] = []
    drains: list[Drain] = []
    for processes in plan.processes:
        status(f"enqueuing {how_many(count)}")
        bulk, ids = await bench.enqueue_bulk(count)
        bulks.append(bulk)
        status(f"{_processes(processes)}: draining {how_many(count)}")
        drains.append(await bench.drain(ids, processes))
    slots = few * plan.concurrency
    fastest = min(slots / plan.sleep, drains[0].per_second)
    count = plan.count or min(max(round(fastest * plan.span * _SLEEPING), 2 * slots), _MOST)
    status(f"{_processes(few)}: draining {how_many(count)} that sleep for {spell_seconds(plan.sleep)}")
    _, ids = await bench.enqueue_bulk(count, plan.sleep)
    drain_sleep = await bench.drain(ids, few, plan.sleep)
    status("waking an idle worker")
    most = max(10, round(plan.span * _PICKUPS))
    pickup = await bench.pick_up(min(plan.count or most, most), few)
    return Report(
        topic=bench.topic, concurrency=plan.concurrency, payload=plan.payload, enqueue=enqueue,
        enqueue_bulk=_sum(bulks), drains=drains, drain_sleep=drain_sleep, pickup=pickup, removed=False,
    )  # fmt: skip


async def _remove(bench: Bench) -> bool:
    by_hand = f"rowlock jobs delete --topic {bench.topic} --yes"
    try:
        left = await bench.remove()
    except BaseException as error:
        because = f" ({error})" if isinstance(error, RowlockError) else ""
        note(f"rowlock: not all jobs of the measurement are removed{because}; to do it: {by_hand}")
        if not isinstance(error, RowlockError):
            raise
        return False
    if left:
        note(f"rowlock: a worker holds {how_many(left)} of the measurement; to remove what is left later: {by_hand}")
    return left == 0


# ── Print ──


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """Show the current step in a line on stderr, which disappears at the end; nothing without a terminal."""
    if not is_fancy() or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("…") as line:
        yield line.update


def _print(report: Report) -> None:
    print_table(COLUMNS, _rows(report))
    click.echo(f"\n{_sizing(report)}")


def _rows(report: Report) -> list[tuple[str, str, str, str]]:
    def row(what: str, measured: Rate, ms: str = "") -> tuple[str, str, str, str]:
        return what, f"{measured.jobs:,}", f"{measured.per_second:,.0f}", ms

    pickup = report.pickup
    late = f"p50 {pickup.p50:.1f}, p95 {pickup.p95:.1f}, p99 {pickup.p99:.1f}"
    each = f"{1000 * report.enqueue.seconds / report.enqueue.jobs:.2f} each"
    sleep = report.drain_sleep
    return [
        row("enqueue, one by one", report.enqueue, each),
        row("enqueue, many at once", report.enqueue_bulk),
        *(row(f"drain, {_processes(drain.processes)}", drain, _absent(drain)) for drain in report.drains),
        row(f"drain, {spell_seconds(sleep.sleep)} each, {_processes(sleep.processes)}", sleep, _absent(sleep)),
        ("pickup by an idle worker", f"{pickup.jobs:,}", "", late),
    ]


def _absent(drain: Drain) -> str:
    if drain.workers >= drain.processes:
        return ""
    return f"only {drain.workers} of {drain.processes} started in time: needs more jobs"


def _sizing(report: Report) -> str:
    drain, sleep = report.drains[0], report.drain_sleep
    one = drain.processes == 1
    who = "One worker process" if one else f"{drain.processes} worker processes"
    kind = f"jobs of {report.payload:,} bytes" if report.payload else "empty jobs"
    slots = sleep.processes * report.concurrency
    return (
        f"{who} of this machine {'drains' if one else 'drain'} about {_about(drain.per_second)} {kind}/s here; "
        f"at {spell_seconds(sleep.sleep)} each, {how_many(slots, 'slot')} {'does' if slots == 1 else 'do'} "
        f"{_about(sleep.per_second)}/s."
    )


def _processes(count: int) -> str:
    return f"{count} process{'' if count == 1 else 'es'}"


def _about(per_second: float) -> str:
    """Return the rate with three digits: the next run will differ in the others."""
    return f"{float(f'{per_second:.3g}'):,.0f}"


def _sum(rates: Sequence[Rate]) -> Rate:
    return rate(sum(one.jobs for one in rates), sum(one.seconds for one in rates))
