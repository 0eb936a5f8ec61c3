from __future__ import annotations

import asyncio
from contextlib import suppress

import click
from click.shell_completion import get_completion_class

from rowlock.cli.connect import run
from rowlock.errors import RowlockError
from rowlock.jobs import Jobs

_PATIENCE = 1.0  # seconds that a person who pressed Tab may be kept waiting

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
    """Topics that the database knows; none if it can't be asked quickly: a completion has nowhere to complain."""

    async def ask(jobs: Jobs) -> list[str]:
        return list((await jobs.stats()).topics)

    async def quickly(jobs: Jobs) -> list[str]:
        return await asyncio.wait_for(ask(jobs), _PATIENCE)

    with suppress(RowlockError, TimeoutError, OSError):
        return [topic for topic in run(ctx.params.get("url"), quickly) if topic.startswith(incomplete)]
    return []
