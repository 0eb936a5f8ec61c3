"""From a command, which has no event loop, to the verbs of Jobs."""

from __future__ import annotations

import asyncio
import functools
import getpass
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click
from msgspec import Struct

from rowlock import config
from rowlock.cli.groups import traceback_option
from rowlock.cli.options import output, together, url
from rowlock.cli.show import print_json
from rowlock.jobs import Jobs
from rowlock.stores.base import Store

T = TypeVar("T")


class Database(Struct, frozen=True):
    """The database that a command works on, and how it prints its answer. `by` and `reason` are for the audit."""

    url: str | None = None
    output: str = "table"
    by: str | None = None
    reason: str | None = None

    @property
    def wants_json(self) -> bool:
        return self.output == "json"

    def run(self, work: Callable[[Jobs], Awaitable[T]], *, create: bool = False, tasks_of: Jobs | None = None) -> T:
        """Connect, do the work, close the connections.

        Only `create` may create tables: a mistyped path must not become an empty database. `tasks_of`: an application
        whose tasks the work needs; without --url, its database is used.
        """

        async def connected() -> T:
            url = self.url if self.url is not None or tasks_of is None else tasks_of.settings.url
            name = self.by or _operator(url)
            async with Jobs(url, by=name, migrate=None if create else False) as jobs:
                if tasks_of is not None:
                    jobs._versions.update(tasks_of._versions)
                    jobs.schedules.owner = tasks_of.schedules.owner
                return await work(jobs)

        return asyncio.run(connected())

    def run_on_store(self, work: Callable[[Store, str], Awaitable[T]], *, create: bool = False) -> T:
        """As `run`, for functions that take a store. They also get the name for the audit."""

        async def on_store(jobs: Jobs) -> T:
            return await work(await jobs._store(), jobs.settings.by)

        return self.run(on_store, create=create)

    def tell(self, document: Any, text: str | Callable[[], object]) -> None:
        """Print the document as JSON, or the text for people. A text that is a function prints by itself."""
        if self.wants_json:
            print_json(document)
        elif callable(text):
            text()
        else:
            click.echo(text)


def database(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --url, --output and --traceback. The command gets them as `db`, with what `actor` has added."""

    @functools.wraps(command)
    def connected(url: str | None, output: str, by: str | None = None, reason: str | None = None, **rest: Any) -> Any:
        return command(db=Database(url, output, by, reason), **rest)

    return url(output(traceback_option(connected)))


by = click.option(
    "--by", metavar="NAME", help="Who does this, for the audit. Default: `by` of the settings, or your user name."
)
# For verbs that the audit keeps.
actor = together(click.option("--reason", metavar="TEXT", help="Why, for the audit."), by)


def ask(question: str, *, refused: str = "nothing was changed") -> None:
    """Go on only if a person says yes. Without a terminal, --yes is needed."""
    if not _is_asked_in_person():
        raise click.UsageError(f"{question} Add --yes to do it.")
    if not click.confirm(f"{question} Go on?", err=True):
        raise click.ClickException(refused)


def _is_asked_in_person() -> bool:
    return sys.stdin.isatty()


def _operator(url: str | None) -> str:
    """Return the name for the audit: `by` of the settings, else the user at this terminal."""
    configured = config.load({"url": url}).by
    if configured != config.Settings("").by:
        return configured
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError, ImportError):  # a user id without a name
        return "cli"
