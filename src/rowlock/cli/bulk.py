"""Verbs for one job or for many: by id, or by filter, as a bulk action that is looked at first."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import click
from msgspec import Struct
from msgspec.structs import replace

from rowlock.cli import options
from rowlock.cli.connect import run
from rowlock.cli.exits import Exit
from rowlock.cli.filters import filters
from rowlock.cli.options import actor, database
from rowlock.cli.show import how_many, is_fancy, note, print_json
from rowlock.core.job import Job, Status
from rowlock.core.lifecycle import MOVES
from rowlock.errors import RowlockError, StoreError
from rowlock.jobs import Jobs
from rowlock.stores.bulk import SKIPS, Bulk, BulkItem
from rowlock.stores.reading import MAX_LIMIT, Filter

_AT_ONCE = 8  # jobs steered at the same time: fewer than a pool has connections
_TOLD = 20  # refusals told one by one
_LONG = 50  # jobs that take long enough for a progress bar

Verb = Callable[[Jobs, str, str | None], Awaitable[Job | None]]
F = TypeVar("F", bound=Callable[..., Any])


class Change(Struct, frozen=True):
    """What became of one job; `status` is None for one that is deleted, or was not changed."""

    id: str
    done: bool
    status: Status | None = None
    error: str | None = None


class Work(Struct):
    """A verb on its way through many jobs. What is done stays known, however it ends."""

    verb: str
    act: Verb
    reason: str | None
    changes: list[Change]

    async def go(self, jobs: Jobs, batches: AsyncIterator[Sequence[str]], advance: Callable[[int], None]) -> None:
        async for batch in batches:
            for start in range(0, len(batch), _AT_ONCE):
                few = batch[start : start + _AT_ONCE]
                await self._at_once(jobs, few)
                advance(len(few))

    async def _at_once(self, jobs: Jobs, ids: Sequence[str]) -> None:
        tasks = [asyncio.create_task(self._one(jobs, job_id)) for job_id in ids]
        try:
            await asyncio.wait(tasks)
        finally:
            await asyncio.wait(tasks)  # after Ctrl-C: what is under way comes to its end, and is accounted for
            self.changes += [task.result() for task in tasks if task.exception() is None]
        for task in tasks:
            task.result()  # raises what went wrong

    async def _one(self, jobs: Jobs, job_id: str) -> Change:
        try:
            job = await self.act(jobs, job_id, self.reason)
        except StoreError:
            raise  # the database is in trouble, not this job
        except RowlockError as error:
            return Change(job_id, False, error=str(error))
        return Change(job_id, True, None if job is None else job.status)


# ── The commands ──


def _as_it_is(command: F) -> F:
    return command


def _command(verb: str, act: Verb, text: str, *, edits: bool = False) -> click.Command:
    """`edits`: jobs that are named by id can be changed with it."""
    states = sorted(MOVES[verb].sources)

    @click.command(verb, help=f"{text}\n\nGive ids, or options that choose jobs; then it says how many and asks first.")
    @click.argument("ids", metavar="[ID]...", nargs=-1)
    @partial(filters, or_payload=edits)
    @(options.edits if edits else _as_it_is)
    @click.option("--all", "every", is_flag=True, help=f"All jobs that are {', '.join(states)}.")
    @click.option("--yes", "-y", is_flag=True, help="Don't ask.")
    @actor
    @database
    def command(
        ids: tuple[str, ...],
        wanted: Filter,
        every: bool,
        yes: bool,
        reason: str | None,
        by: str | None,
        url: str | None,
        output: str,
        **changes: Any,
    ) -> None:
        given = {name: value for name, value in changes.items() if value is not None}
        if given and not ids:
            raise click.UsageError("--priority, --run-at, --delay, --tags and a new --payload need the ids of the jobs")
        chosen = wanted != Filter()
        if bool(ids) + (chosen or every) != 1:
            raise click.UsageError("give ids, or options that choose jobs (--topic, --status, …), or --all")
        if unfit := [status for status in wanted.statuses if status not in states]:
            raise click.UsageError(f"{verb} needs jobs that are {', '.join(states)}; not {', '.join(unfit)}")
        if not ids:
            fit = wanted if wanted.statuses else replace(wanted, statuses=states)
            run(url, lambda jobs: _by_filter(jobs, verb, fit, reason, yes, output), by=by)
            return
        work = Work(verb, partial(act, **given), reason, [])
        try:
            run(url, lambda jobs: _by_ids(jobs, work, ids), by=by)
        except BaseException:
            if work.changes:  # what is done is done, and should be known
                _summarize(work, output)
            raise
        _summarize(work, output)
        if any(not change.done for change in work.changes):
            sys.exit(Exit.REFUSED)

    return command


async def _cancel(jobs: Jobs, job_id: str, reason: str | None) -> Job:
    return await jobs.cancel(job_id, reason=reason)


async def _requeue(jobs: Jobs, job_id: str, reason: str | None, **edits: Any) -> Job:
    return await jobs.requeue(job_id, reason=reason, **edits)


async def _delete(jobs: Jobs, job_id: str, reason: str | None) -> None:
    await jobs.delete(job_id, reason=reason)


cancel = _command("cancel", _cancel, "Stop jobs: at once if they are not running, else they are asked to.")
requeue = _command("requeue", _requeue, "Run jobs again that have failed, expired or were cancelled.", edits=True)
delete = _command("delete", _delete, "Remove jobs that are not running. The audit entry stays.")


# ── Which jobs ──


async def _by_ids(jobs: Jobs, work: Work, ids: Sequence[str]) -> None:
    async def batches() -> AsyncIterator[Sequence[str]]:
        yield list(dict.fromkeys(ids))

    with _progress(work.verb, len(ids)) as advance:
        await work.go(jobs, batches(), advance)


async def _by_filter(jobs: Jobs, verb: str, wanted: Filter, reason: str | None, yes: bool, output: str) -> None:
    bulk = await jobs.bulk(verb, wanted, reason=reason)
    if bulk.total and not yes:
        ask(f"This would {verb} {how_many(bulk.total)}.")
    await work_off(jobs, bulk.id, output)


async def work_off(jobs: Jobs, bulk_id: str, output: str, reason: str | None = None) -> None:
    """Start a bulk action and see it through, unless it is interrupted. Either way it is told how far it came."""
    bulk = await jobs.start_bulk(bulk_id, reason=reason)
    if not bulk.total:
        await _account(jobs, bulk, output)
        return
    try:
        with _progress(bulk.action, bulk.total) as advance:
            bulk = await _see_through(jobs, bulk, advance)
    except asyncio.CancelledError:  # Ctrl-C
        stopped = await jobs.stop_bulk(bulk.id, reason="interrupted")
        await _account(jobs, stopped, output)
        note(f"rowlock: stopped, {stopped.left:,} left; go on with: rowlock bulk start {bulk.id}")
        raise
    except StoreError:
        note(f"rowlock: workers and servers go on with it; see: rowlock bulk show {bulk.id}")
        raise
    await _account(jobs, bulk, output)
    if bulk.skipped or bulk.status == "stopped":
        sys.exit(Exit.REFUSED)


async def _see_through(jobs: Jobs, bulk: Bulk, advance: Callable[[int], None]) -> Bulk:
    left = bulk.total

    def progress(now: Bulk) -> None:
        nonlocal left
        advance(left - now.left)
        left = now.left

    return await jobs.run_bulk(bulk.id, progress=progress)


async def _account(jobs: Jobs, bulk: Bulk, output: str) -> None:
    """What became of the jobs; of those that were skipped the first ones by name, or all of them for programs."""
    if output == "json":
        changes = [_change(item) async for item in _items(jobs, bulk.id) if item.outcome is not None]
        print_json({"items": changes, "total": len(changes), "next": None, "done": bulk.done, "bulk": bulk.id})
        return
    told = 0
    for outcome in SKIPS:
        if getattr(bulk, outcome) and told < _TOLD:
            page = await jobs.bulk_items(bulk.id, outcome=outcome, limit=_TOLD - told)
            for item in page.items:
                note(f"rowlock: {_change(item).error}")
            told += len(page.items)
    if bulk.skipped > told:
        note(f"rowlock: … and {how_many(bulk.skipped - told, 'more refusal')}; -o json names them all")
    _say(bulk.action, bulk.done, bulk.done + bulk.skipped)


async def _items(jobs: Jobs, bulk_id: str) -> AsyncIterator[BulkItem]:
    cursor = None
    while True:
        page = await jobs.bulk_items(bulk_id, limit=MAX_LIMIT, cursor=cursor)
        for item in page.items:
            yield item
        cursor = page.next
        if cursor is None:
            return


_WHY = {
    "changed": "it is not as it was when it was listed, {status}",
    "gone": "it has been deleted",
    "key_taken": "job {holder} is live with the same key",
    "locked": "another transaction holds it, or its key",
}


def _change(item: BulkItem) -> Change:
    why = _WHY.get(item.outcome or "")
    error = None if why is None else f"job {item.job_id}: {why.format(status=item.status, holder=item.holder)}"
    return Change(item.job_id, item.outcome == "done", error=error)


def _is_asked_in_person() -> bool:
    return sys.stdin.isatty()


def ask(question: str) -> None:
    if not _is_asked_in_person():
        raise click.UsageError(f"{question} Add --yes to do it.")
    if not click.confirm(f"{question} Go on?", err=True):
        raise click.ClickException("nothing was changed")


# ── What is seen of it ──


def _progress(verb: str, total: int | None) -> AbstractContextManager[Callable[[int], None]]:
    if not is_fancy() or not sys.stderr.isatty() or (total is not None and total < _LONG):
        return nullcontext(lambda _: None)
    return _Bar(verb, total)


class _Bar(AbstractContextManager[Callable[[int], None]]):
    """A progress bar on stderr."""

    def __init__(self, verb: str, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(verb, total=total)

    def __enter__(self) -> Callable[[int], None]:
        self._bar.start()
        return lambda count: self._bar.advance(self._task, count)

    def __exit__(self, *details: Any) -> None:
        self._bar.stop()


def _summarize(work: Work, output: str) -> None:
    refused = [change for change in work.changes if not change.done]
    done = len(work.changes) - len(refused)
    if output == "json":
        print_json({"items": work.changes, "total": len(work.changes), "next": None, "done": done})
        return
    for change in refused[:_TOLD]:
        note(f"rowlock: {change.error}")
    if len(refused) > _TOLD:
        note(f"rowlock: … and {how_many(len(refused) - _TOLD, 'more refusal')}; -o json names them all")
    _say(work.verb, done, len(work.changes))


def _say(verb: str, done: int, every: int) -> None:
    of = f" of {every:,}" if done < every else ""
    click.echo(f"{verb}: {done:,}{of} {'job' if every == 1 else 'jobs'} done" if every else f"{verb}: no job matches")
