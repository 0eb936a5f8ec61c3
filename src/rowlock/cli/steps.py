from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import click
import msgspec

from rowlock.cli.connect import Database, database
from rowlock.cli.show import clean, exact, how_many, is_fancy, items, note, one_line, print_table
from rowlock.client.step_list import StepStatus
from rowlock.client.why import last_line, spell_seconds
from rowlock.core.steps import StepState

_SHOWN = 80  # characters of a result or an error in a table on a terminal …
_PIPED = 1_000  # … and elsewhere


@click.command()
@click.argument("job_id", metavar="ID")
@database
def steps(db: Database, job_id: str) -> None:
    """The steps of a job in their order: state, duration, own retries, stored result or error.

    -o json has the whole results.
    """
    found = db.run(lambda jobs: jobs.steps(job_id))
    db.tell(items(found), lambda: _print(found))


def _print(found: Sequence[StepStatus]) -> None:
    if not found:
        note("the job has no steps")
        return
    print_steps(found)
    own = [step for step in found if step.kind == "step"]
    done = sum(step.state is StepState.SUCCEEDED for step in own)
    note(f"{done:,} of {how_many(len(own), 'step')} done")


def print_steps(found: Sequence[StepStatus]) -> None:
    rows = [
        (step.label, step.title or _words(step), _state(step), _took(step), _retries(step), _said(step))
        for step in found
    ]  # fmt: skip
    print_table(("step", "title", "state", "took", "retries", "note"), rows)


def _words(step: StepStatus) -> str:
    """Return a description of a wait or an address; empty for a step."""
    match step.kind:
        case "signal":
            return f"wait for {step.name}"
        case "callback":
            return f"address for {step.name}"
        case "sleep":
            return "sleep"
        case "step":
            return ""


def _state(step: StepStatus) -> str:
    return "waiting" if step.is_open_wait else step.state


def _took(step: StepStatus) -> str:
    if step.started_at is None or (step.finished_at is None and step.state is not StepState.RUNNING):
        return ""
    return spell_seconds(((step.finished_at or datetime.now(UTC)) - step.started_at).total_seconds())


def _retries(step: StepStatus) -> str:
    if not step.retries and step.max_retries is None:
        return ""
    return str(step.retries) if step.max_retries is None else f"{step.retries}/{step.max_retries}"


def _said(step: StepStatus) -> str:
    """Return the last line of the error, or the result as JSON."""
    if step.is_open_wait or step.kind == "callback":
        text = "without end" if step.deadline is None else f"until {exact(step.deadline)}"
    elif step.state is not StepState.SUCCEEDED:
        text = "" if step.error is None else last_line(step.error)
    else:
        text = "" if step.result is None else msgspec.json.encode(step.result).decode()
    text = clean(one_line(text))
    most = _SHOWN if is_fancy() else _PIPED
    return f"{text[: most - 1]}…" if len(text) > most else text
