from __future__ import annotations

import asyncio
from contextlib import suppress

import click
from click.shell_completion import get_completion_class

from rowlock.cli.connect import Database
from rowlock.errors import RowlockError
from rowlock.jobs import Jobs

_PATIENCE = 1.0  # seconds that a person waits after pressing Tab

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, options, statuses and topics in a shell.

    \b
    eval "$(rowlock completion bash)"    in ~/.bashrc
    eval "$(rowlock completion zsh)"     in ~/.zshrc
    rowlock completion fish | source     in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - click has all three
    made = kind(ctx.find_root().command, {}, "rowlock", "_ROWLOCK_COMPLETE")
    click.echo(made.source_template % made.source_vars())


def complete_topic(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics in the database; none if it does not answer quickly: a completion can't print errors."""

    async def known(jobs: Jobs) -> list[str]:
        return list((await asyncio.wait_for(jobs.stats(), _PATIENCE)).topics)

    with suppress(RowlockError, TimeoutError, OSError):
        return [topic for topic in Database(ctx.params.get("url")).run(known) if topic.startswith(incomplete)]
    return []
