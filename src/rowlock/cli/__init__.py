"""The `rowlock` command. One file per noun; this one turns errors into one line and an exit code."""

from __future__ import annotations

import sys

import click

from rowlock import __version__
from rowlock.cli.migrate import migrate
from rowlock.errors import RowlockError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rowlock")
def cli() -> None:
    """Jobs that live in the database you already have."""


cli.add_command(migrate)


def main() -> None:
    """Exit codes: 0 done, 1 the database or a job said no, 2 wrong usage."""
    try:
        cli()
    except RowlockError as error:
        click.echo(f"rowlock: {error}", err=True)
        sys.exit(1)
