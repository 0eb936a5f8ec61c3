"""Output: one JSON document, tables for people at a terminal, plain aligned text elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from rowlock.client.why import last_line, spell_seconds, spell_time
from rowlock.core.job import Job, Status
from rowlock.core.steps import StepState

if TYPE_CHECKING:
    from rich.table import Table

Row = Sequence[str]

# Text of a job must not control the terminal: these are control characters and those that turn the writing direction.
_HARMFUL = [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_VISIBLE = {code: repr(chr(code))[1:-1] for code in _HARMFUL if chr(code) not in "\n\t"}

STYLES: dict[str, str] = {
    Status.COMPLETED: "green",
    Status.PROCESSING: "cyan",
    Status.WAITING: "blue",
    Status.CANCEL_REQUESTED: "yellow",
    Status.FAILED: "bold red",
    Status.EXPIRED: "red",
    Status.CANCELLED: "dim",
    StepState.SUCCEEDED: "green",
    StepState.RUNNING: "cyan",
    StepState.SKIPPED: "dim",
}

_GAP = 2  # between columns
_LONG = 50  # jobs that take long enough for a progress bar
_FOLDED = frozenset(
    {"topic", "topics", "key", "note", "worker", "data", "stage", "paused", "limit", "source"}
)  # the rest stays on a line


def is_fancy() -> bool:
    """True if stdout is a terminal that can show colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


# ── For programs ──


def print_json(document: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def items(things: Sequence[Any], **more: Any) -> dict[str, Any]:
    """Return the JSON document of a complete list."""
    return {"items": things, "total": len(things), "next": None, **more}


def job_document(job: Job) -> dict[str, Any]:
    return {**msgspec.structs.asdict(job), "attempts": job.attempts}


# ── For people ──


def print_table(columns: Row, rows: Iterable[Row]) -> None:
    """Print the heading and the rows."""
    if is_fancy():
        from rich.console import Console

        console = Console()
        console.print(rich_table(columns, rows, console.width))
        return
    for line in plain_lines(columns, rows):
        click.echo(line)


def rich_table(columns: Row, rows: Iterable[Row], width: int) -> Table:
    """Return a table for a terminal of this width. If it is too narrow, columns without values are left out."""
    from rich.table import Table
    from rich.text import Text

    body = [[one_line(cell) for cell in row] for row in rows]
    kept: Sequence[int] = range(len(columns))
    if sum(max(len(line[n]) for line in (columns, *body)) + _GAP for n in kept) > width:
        kept = [n for n in kept if n == 0 or any(line[n] not in ("", "0") for line in body)]
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for n in kept:
        folded = columns[n] in _FOLDED
        table.add_column(columns[n], no_wrap=not folded, overflow="fold", min_width=8 if folded else None)
    for line in body:
        table.add_row(*(Text(line[n], style=STYLES.get(line[n], "")) for n in kept))
    return table


def plain_lines(columns: Row, rows: Iterable[Row]) -> list[str]:
    """Return aligned lines without a limit of their width, for pipes and files."""
    lines = [list(columns), *([one_line(cell) or "-" for cell in row] for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def print_fields(fields: Iterable[tuple[str, str | None]]) -> None:
    """Print names and values, one per line. Fields without a value are left out."""
    given = [(name, value) for name, value in fields if value]
    width = max((len(name) for name, _ in given), default=0)
    for name, value in given:
        click.echo(f"{click.style(name.ljust(width), bold=True) if is_fancy() else name.ljust(width)}  {clean(value)}")


def print_heading(title: str) -> None:
    click.echo(f"\n{click.style(title, bold=True) if is_fancy() else title}")


def note(text: str) -> None:
    """Print a remark to stderr: stdout has only the answer."""
    click.echo(clean(text), err=True)


@contextmanager
def progress_bar(verb: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr, if there is a terminal and the work takes long enough. Yields the function that
    advances it."""
    if not is_fancy() or not sys.stderr.isatty() or total < _LONG:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=total)
        yield lambda count: bar.advance(task, count)


# ── Words ──


def clean(text: str) -> str:
    return text.translate(_VISIBLE)


def one_line(text: str) -> str:
    return clean(" ".join(text.split()) if "\n" in text or "\t" in text else text)


def moment(at: datetime | None) -> str:
    """Return how long ago it was, for people at a terminal; elsewhere the exact time."""
    if at is None:
        return ""
    if not is_fancy():
        return spell_time(at)
    seconds = (at - datetime.now(UTC)).total_seconds()
    roughly = " ".join(spell_seconds(abs(seconds)).split()[:2])
    return f"in {roughly}" if seconds > 0 else f"{roughly} ago"


def exact(at: datetime | None) -> str:
    return "" if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def number(count: int, capped: bool = False) -> str:
    return f"{count:,}{'+' if capped else ''}"


def how_many(count: int, word: str = "job") -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def milliseconds(value: float | None) -> str:
    return "" if value is None else spell_seconds(value / 1000)


def pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def remark(job: Job) -> str:
    """Return the progress of a running job, or the last error of another one."""
    if job.status in (Status.PROCESSING, Status.CANCEL_REQUESTED):
        return " ".join(word for word in (f"{job.progress:g}%", job.step, job.stage, job.message) if word)
    return "" if job.last_error is None or job.status is Status.COMPLETED else last_line(job.last_error)
