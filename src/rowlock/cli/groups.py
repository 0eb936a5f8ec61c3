"""Groups of commands, which are imported when they are used. Errors become one line and an exit code here."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from rowlock.cli.exits import Exit
from rowlock.cli.spelling import did_you_mean
from rowlock.errors import RowlockError

TRACEBACK = "ROWLOCK_TRACEBACK"  # environment variable: not 0 and not empty means yes


class Lazy(NamedTuple):
    """Where a command is, as module:attribute, and its line in the list of commands."""

    target: str
    help: str


class Group(click.Group):
    """Suggests a command for a mistyped one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}.{did_you_mean(name, known)}")
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """Imports a command when it is called. Listing the commands imports none."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = dict(lazy)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, _, attribute = self.lazy[cmd_name].target.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.lazy.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [
            CompletionItem(name, help=entry.help) for name, entry in self.lazy.items() if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


class Root(LazyGroup):
    """`rowlock` itself."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError:
            raise  # click shows the usage as well, and exits with 2
        except (RowlockError, click.ClickException) as error:
            tell(error)
            ctx.exit(error.exit_code if isinstance(error, click.ClickException) else Exit.REFUSED)
        except BrokenPipeError:
            _ignore_the_pipe()
            ctx.exit(Exit.DONE)  # the reader, such as `head`, has closed the pipe
        except (KeyboardInterrupt, click.Abort):
            click.echo(err=True)  # the terminal has written ^C
            ctx.exit(Exit.INTERRUPTED)


def tell(error: RowlockError | click.ClickException) -> None:
    """Print one line on stderr; with --traceback, the traceback before it."""
    if os.environ.get(TRACEBACK, "0") not in ("", "0"):
        traceback.print_exception(error)
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    click.echo(f"rowlock: {message}", err=True)


def _want_traceback(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        os.environ[TRACEBACK] = "1"  # worker processes inherit it


traceback_option = click.option(
    "--traceback", is_flag=True, expose_value=False, is_eager=True, callback=_want_traceback,
    help=f"Show where an error came from. Also {TRACEBACK}=1.",
)  # fmt: skip


def _ignore_the_pipe() -> None:
    """Replace stdout: Python flushes it once more at exit, and would print an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
