from __future__ import annotations

from datetime import datetime

import click
import msgspec

from rowlock.access import tokens
from rowlock.access.identity import SCOPES
from rowlock.cli.connect import Database, actor, database
from rowlock.cli.groups import Group
from rowlock.cli.options import Moment
from rowlock.cli.show import items, moment, note, print_table


@click.group(cls=Group)
def token() -> None:
    """API tokens: for programs."""


@token.command()
@click.argument("name")
@click.option(
    "-s", "--scope", "scopes", multiple=True, required=True, type=click.Choice(SCOPES), help="What it may do."
)
@click.option("-t", "--topic", "topics", multiple=True, help="Only for this topic. Default: for all.")
@click.option("--expires", type=Moment(+1), metavar="TIME", help="30d, 2026-05-01T00:00:00Z. Default: never.")
@actor
@database
def create(db: Database, name: str, scopes: tuple[str, ...], topics: tuple[str, ...], expires: datetime | None) -> None:
    """Create a token. It is printed to stdout once, and can't be shown again."""
    made, text = db.run_on_store(
        lambda store, by: tokens.create(
            store, name, scopes, by=by, reason=db.reason, topics=topics or None, expires_at=expires
        )
    )
    db.tell({**msgspec.structs.asdict(made), "token": text}, text)
    if not db.wants_json:
        until = f", until {moment(expires)}" if expires else ""
        note(f"{made.id}: {', '.join(made.scopes)}{until}; keep it, it is not shown again")


@token.command("list")
@database
def list_tokens(db: Database) -> None:
    """All tokens that have not expired."""
    found = db.run_on_store(lambda store, _: tokens.every(store))
    rows = [
        (
            one.id,
            one.name,
            ", ".join(one.scopes),
            ", ".join(one.topics) if one.topics is not None else "all",
            moment(one.expires_at) or "never",
            moment(one.last_used) or "never",
        )
        for one in found
    ]
    columns = ("id", "name", "scopes", "topics", "expires", "last used")
    db.tell(items([msgspec.structs.asdict(one) for one in found]), lambda: print_table(columns, rows))


@token.command()
@click.argument("token_id", metavar="ID")
@actor
@database
def revoke(db: Database, token_id: str) -> None:
    """Revoke a token. It is refused from now on."""
    if not db.run_on_store(lambda store, by: tokens.revoke(store, token_id, by=by, reason=db.reason)):
        raise click.ClickException(f"there is no token {token_id}: `rowlock token list` shows their ids")
    db.tell({"id": token_id, "revoked": True}, f"{token_id} is revoked")
