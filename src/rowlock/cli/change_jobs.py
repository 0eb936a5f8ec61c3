"""`jobs cancel`, `requeue` and `delete`: for jobs given by id, or as a bulk action for jobs that match a filter."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import click
from msgspec.structs import replace

from rowlock.cli import options
from rowlock.cli.bulk import Change, report, run_bulk
from rowlock.cli.connect import Database, actor, ask, database
from rowlock.cli.exits import Exit
from rowlock.cli.filters import filters
from rowlock.cli.show import how_many, items, print_json, progress_bar
from rowlock.core.lifecycle import MOVES
from rowlock.errors import RowlockError, StoreError
from rowlock.jobs import Jobs
from rowlock.stores.queries import Filter

# Which results of steps a requeue drops. None: those that the verb itself drops.
_STEPS = options.together(
    click.option(
        "--from-step",
        metavar="NAME",
        help="Run this step again, and those behind it: embed, or embed#3 for the third call.",
    ),
    click.option("--drop-steps", "keep_steps", flag_value=False, default=None, type=bool, help="Run all steps again."),
)
_AT_ONCE = 8  # jobs changed at the same time: fewer than a pool has connections


def _command(verb: str, text: str, *, edits: bool = False) -> click.Command:
    """Return the command for a verb. `edits`: its options can also edit jobs that are given by id."""
    states = sorted(MOVES[verb].sources)

    @click.command(
        verb, help=f"{text}\n\nGive ids, or options that choose jobs; then it says how many there are, and asks first."
    )
    @click.argument("ids", metavar="[ID]...", nargs=-1)
    @partial(filters, or_payload=edits)
    @options.together(*([options.edits, _STEPS] if edits else []))
    @click.option("--all", "every", is_flag=True, help=f"All jobs that are {', '.join(states)}.")
    @click.option("--yes", "-y", is_flag=True, help="Don't ask.")
    @actor
    @database
    def command(db: Database, ids: tuple[str, ...], wanted: Filter, every: bool, yes: bool, **changes: Any) -> None:
        given = {name: value for name, value in changes.items() if value is not None}
        if given and not ids:
            raise click.UsageError(
                "--priority, --run-at, --delay, --tags, --from-step, --drop-steps and a new --payload "
                "need the ids of the jobs"
            )
        if "from_step" in given and "keep_steps" in given:
            raise click.UsageError("give --from-step, which drops some results, or --drop-steps, which drops all")
        if bool(ids) + (every or wanted != Filter()) != 1:
            raise click.UsageError("give ids, or options that choose jobs (--topic, --status, …), or --all")
        if unfit := [status for status in wanted.statuses if status not in states]:
            raise click.UsageError(f"{verb} needs jobs that are {', '.join(states)}; not {', '.join(unfit)}")
        if ids:
            _by_ids(db, verb, list(dict.fromkeys(ids)), given)
        else:
            fit = wanted if wanted.statuses else replace(wanted, statuses=states)
            db.run(lambda jobs: _by_filter(jobs, db, verb, fit, yes))

    return command


cancel = _command("cancel", "Cancel jobs: at once if they are not running, else their workers are asked to stop them.")
requeue = _command("requeue", "Run failed, expired or cancelled jobs again.", edits=True)
delete = _command("delete", "Delete jobs that are not running. Their audit entries stay.")


async def _by_filter(jobs: Jobs, db: Database, verb: str, wanted: Filter, yes: bool) -> None:
    bulk = await jobs.bulk.prepare(verb, wanted, reason=db.reason)
    if bulk.total and not yes:
        ask(f"This would {verb} {how_many(bulk.total)}.")
    await run_bulk(jobs, db, bulk.id)


def _by_ids(db: Database, verb: str, ids: Sequence[str], given: dict[str, Any]) -> None:
    changes: list[Change] = []
    try:
        db.run(lambda jobs: _change_all(jobs, verb, ids, changes, {"reason": db.reason, **given}))
    finally:
        if changes:  # report what was done, also after an error or Ctrl-C
            _summarize(db, verb, changes)
    if any(not change.done for change in changes):
        sys.exit(Exit.REFUSED)


async def _change_all(jobs: Jobs, verb: str, ids: Sequence[str], changes: list[Change], given: dict[str, Any]) -> None:
    with progress_bar(verb, len(ids)) as advance:
        for start in range(0, len(ids), _AT_ONCE):
            tasks = [asyncio.create_task(_change(jobs, verb, one, given)) for one in ids[start : start + _AT_ONCE]]
            try:
                await asyncio.wait(tasks)
            finally:
                await asyncio.wait(tasks)  # after Ctrl-C: changes that have begun come to their end, and are reported
                changes += [task.result() for task in tasks if task.exception() is None]
            for task in tasks:
                task.result()  # raises what went wrong
            advance(len(tasks))


async def _change(jobs: Jobs, verb: str, job_id: str, given: dict[str, Any]) -> Change:
    try:
        job = await getattr(jobs, verb)(job_id, **given)
    except StoreError:
        raise  # the database has failed, not this job
    except RowlockError as error:
        return Change(job_id, False, error=str(error))
    return Change(job_id, True, None if job is None else job.status)


def _summarize(db: Database, verb: str, changes: list[Change]) -> None:
    refused = [change.error or "" for change in changes if not change.done]
    done = len(changes) - len(refused)
    if db.wants_json:
        print_json(items(changes, done=done))
    else:
        report(verb, refused, len(refused), done)
