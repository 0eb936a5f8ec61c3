"""Options that several commands share, and the kinds of values they take."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from rowlock import logs
from rowlock.core.repeated import repeated_key

if TYPE_CHECKING:
    _Kind = click.ParamType[Any]
else:
    _Kind = click.ParamType  # older versions of click take no type argument

F = TypeVar("F", bound=Callable[..., Any])

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d|w)?\Z")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


# ── Kinds of values ──


class Span(_Kind):
    """A length of time: seconds, or 90s, 15m, 2h, 3d, 1w."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        seconds = read_span(value)
        if seconds is None:
            self.fail(f"{value!r} is not a length of time: write seconds, or 90s, 15m, 2h, 3d, 1w", param, ctx)
        return seconds


class Moment(_Kind):
    """A point in time: RFC 3339, or a span before now (`sign` -1) or after it (+1), by this machine's clock."""

    name = "time"

    def __init__(self, sign: int) -> None:
        self._sign = sign

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        seconds = read_span(value)
        try:
            if seconds is not None:
                return datetime.now(UTC) + self._sign * timedelta(seconds=seconds)
            at = datetime.fromisoformat(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time: write 2h, 3d, or 2026-05-01T14:30:00Z", param, ctx)
        if at.utcoffset() is None:
            self.fail(f"{value!r} has no time zone: add Z for UTC, or +02:00", param, ctx)
        return at


class Json(_Kind):
    """JSON: the text itself, @file, or - for stdin."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            if value == "-":
                text = sys.stdin.read()
            else:
                text = Path(value[1:]).read_text("utf-8") if value.startswith("@") else value
        except (OSError, UnicodeDecodeError) as error:
            self.fail(f"{value} can't be read: {error}", param, ctx)
        return read_json(text, lambda problem: self.fail(problem, param, ctx))


class PathValue(_Kind):
    """path=JSON: a value in a payload."""

    name = "path=json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value
        path, equals, text = value.partition("=")
        if not equals:
            self.fail(f"{value!r} is not path=JSON: write user.id=7, or 'user.name=\"ada\"'", param, ctx)
        return path, read_json(text, lambda problem: self.fail(f"{problem}; text needs quotes", param, ctx))


class Whole(Struct, frozen=True):
    """A whole payload."""

    payload: Any


class PathOrPayload(PathValue):
    """For a verb that chooses jobs by what their payload holds (path=JSON), or gives jobs a new one (see Json)."""

    name = "path=json or json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and (value == "-" or value.lstrip().startswith(("{", "@"))):
            return Whole(Json().convert(value, param, ctx))
        return value if isinstance(value, Whole) else super().convert(value, param, ctx)


def priority(text: str) -> int | str:
    """Return the priority as a number, or the name of a priority, which core checks."""
    try:
        return int(text)
    except ValueError:
        return text


def tags(text: str) -> list[str]:
    """Return the tags of a text that has commas between them."""
    return [tag.strip() for tag in text.split(",") if tag.strip()]


def read_span(text: str) -> float | None:
    found = _SPAN.match(text.strip())
    return float(found[1]) * _SECONDS[found[2] or "s"] if found else None


def read_json(text: str, refuse: Callable[[str], Any]) -> Any:
    try:
        value = json.loads(text)
        twice = repeated_key(text.encode("utf-8", "surrogatepass"), value)
        return value if twice is None else refuse(f"holds the key {twice:.80} twice")
    except json.JSONDecodeError as error:
        return refuse(f"is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}")
    except RecursionError:
        return refuse("is nested too deeply")
    except ValueError:  # Python reads no number of that many digits
        return refuse("holds a number that is too long")


# ── Options ──


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return one decorator that adds all of these options."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _remember_format(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        os.environ[logs.FORMAT] = value  # worker processes inherit it


url = click.option("--url", metavar="URL", help="The database. Default: ROWLOCK_URL, or url in rowlock.toml.")
output = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True,
    help="For people, or for programs.",
)  # fmt: skip
log_format = click.option(
    "--log-format", type=click.Choice(["text", "json"]), expose_value=False, callback=_remember_format,
    help=f"For people, or a JSON object per line. Also {logs.FORMAT}. Default: text.",
)  # fmt: skip
# They change a job; its payload is not among them.
edits = together(
    click.option("--priority", type=priority, metavar="N", help="Higher first; also explicit, discovered, backfill."),
    click.option("--run-at", type=Moment(+1), metavar="TIME", help="Not before: 2026-05-01T14:30:00Z."),
    click.option("--delay", type=Span(), metavar="SPAN", help="Not before this much time has passed: 30, 15m, 2h."),
    click.option("--tags", type=tags, metavar="A,B", help="The new tags, all of them; '' for none."),
)
