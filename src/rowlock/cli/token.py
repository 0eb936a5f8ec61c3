from __future__ import annotations

from datetime import datetime

import click
import msgspec

from rowlock.access import tokens
from rowlock.access.identity import SCOPES
from rowlock.cli.connect import run
from rowlock.cli.groups import Group
from rowlock.cli.options import Moment, actor, database
from rowlock.cli.show import items, moment, note, print_json, print_table
from rowlock.jobs import Jobs


@click.group(cls=Group)
def token() -> None:
    """API tokens: for programs."""


@token.command()
@click.argument("name")
@click.option(
    "-s", "--scope", "scopes", multiple=True, required=True, type=click.Choice(SCOPES), help="What it may do."
)
@click.option("-t", "--topic", "topics", multiple=True, help="Only for this topic. Default: for all.")
@click.option("--expires", type=Moment(+1), metavar="TIME", help="When it ends: 30d, 2026-05-01T00:00:00Z. Or never.")
@actor
@database
def create(
    name: str,
    scopes: tuple[str, ...],
    topics: tuple[str, ...],
    expires: datetime | None,
    reason: str | None,
    by: str | None,
    url: str | None,
    output: str,
) -> None:
    """Make a token. Its text goes to stdout once, and can't be told again."""

    async def make(jobs: Jobs) -> tuple[tokens.Token, str]:
        return await tokens.create(
            await jobs._store(),
            name,
            scopes,
            by=jobs.settings.by,
            reason=reason,
            topics=topics or None,
            expires_at=expires,
        )

    made, text = run(url, make, by=by)
    if output == "json":
        print_json({**msgspec.structs.asdict(made), "token": text})
    else:
        click.echo(text)
        until = f", until {moment(expires)}" if expires else ""
        note(f"{made.id}: {', '.join(made.scopes)}{until}; keep it, it is not shown again")


@token.command("list")
@database
def list_tokens(url: str | None, output: str) -> None:
    """All tokens that have not expired."""

    async def look(jobs: Jobs) -> list[tokens.Token]:
        return await tokens.every(await jobs._store())

    found = run(url, look)
    if output == "json":
        print_json(items([msgspec.structs.asdict(one) for one in found]))
        return
    rows = [
        (
            one.id,
            one.name,
            ", ".join(one.scopes),
            ", ".join(one.topics) if one.topics is not None else "all",
            moment(one.expires_at) if one.expires_at else "never",
            moment(one.last_used) if one.last_used else "never",
        )
        for one in found
    ]
    print_table(("id", "name", "scopes", "topics", "expires", "last used"), rows)


@token.command()
@click.argument("token_id", metavar="ID")
@actor
@database
def revoke(token_id: str, reason: str | None, by: str | None, url: str | None, output: str) -> None:
    """Make a token worthless, at once."""

    async def end(jobs: Jobs) -> bool:
        return await tokens.revoke(await jobs._store(), token_id, by=jobs.settings.by, reason=reason)

    if not run(url, end, by=by):
        raise click.ClickException(f"there is no token {token_id}: `rowlock token list` shows their ids")
    if output == "json":
        print_json({"id": token_id, "revoked": True})
    else:
        click.echo(f"{token_id} is revoked")
