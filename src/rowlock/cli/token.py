from __future__ import annotations

from datetime import datetime

import click
import msgspec

from rowlock.access import tokens
from rowlock.access.identity import SCOPES
from rowlock.access.short_lived import USUAL
from rowlock.cli.connect import Database, actor, database
from rowlock.cli.groups import Group
from rowlock.cli.options import Moment, Span
from rowlock.cli.show import how_many, items, moment, note, print_table


@click.group(cls=Group)
def token() -> None:
    """API tokens: for programs, and short-lived ones for browsers."""


for_scope = click.option("--for-scope", nargs=2, metavar="SCOPE ID", help="The jobs that have this scope and scope_id.")


@token.command()
@click.argument("name")
@click.option("-s", "--scope", "scopes", multiple=True, type=click.Choice(SCOPES), help="What a program may do.")
@click.option("-t", "--topic", "topics", multiple=True, help="Only for this topic. Default: for all.")
@click.option("--expires", type=Moment(+1), metavar="TIME", help="30d, 2026-05-01T00:00:00Z. Default: never.")
@for_scope
@click.option("--for-job", metavar="ID", help="For a browser: this job alone.")
@click.option("--enqueue", multiple=True, metavar="TOPIC", help="A browser may add jobs of this topic to its scope.")
@click.option("--cancel", is_flag=True, help="A browser may cancel its jobs.")
@click.option("--ttl", type=Span(), metavar="SPAN", help="How long a browser may use it, up to 24h. Default: 15m.")
@actor
@database
def create(
    db: Database,
    name: str,
    scopes: tuple[str, ...],
    topics: tuple[str, ...],
    expires: datetime | None,
    for_scope: tuple[str, str] | None,
    for_job: str | None,
    enqueue: tuple[str, ...],
    cancel: bool,
    ttl: float | None,
) -> None:
    """Create a token. It is printed to stdout once, and can't be shown again.

    \b
    For a program:  rowlock token create shop --scope enqueue --scope read
    For a browser:  rowlock token create page --for-scope user 7 --enqueue render --cancel
    """
    of_browser = bool(for_scope or for_job or enqueue or cancel or ttl is not None)
    of_program = bool(scopes or topics or expires)
    if of_browser and of_program:
        raise click.UsageError("--scope, --topic and --expires are for programs, the other options for browsers")
    if of_browser and not (for_scope or for_job):
        raise click.UsageError("a token for a browser needs --for-scope SCOPE ID, or --for-job ID")
    if not of_browser and not scopes:
        raise click.UsageError("a token needs --scope (for a program), or --for-scope or --for-job (for a browser)")
    made: tokens.Token
    if of_browser:
        scope, scope_id = for_scope or (None, None)
        new = db.run(
            lambda jobs: jobs.tokens.create(
                job=for_job, scope=scope, scope_id=scope_id, enqueue=enqueue, cancel=cancel, name=name,
                reason=db.reason,
                ttl=USUAL if ttl is None else ttl,
            )
        )  # fmt: skip
        made, text = new, new.token
    else:
        made, text = db.run_on_store(
            lambda store, by: tokens.create(
                store, name, scopes, by=by, reason=db.reason, topics=topics or None, expires_at=expires
            )
        )
    db.tell({**msgspec.structs.asdict(made), "token": text}, text)
    if not db.wants_json:
        until = f", until {moment(made.expires_at)}" if made.expires_at else ""
        note(f"{made.id}: {_allows(made)}{until}; keep it, it is not shown again")


def _allows(one: tokens.Token) -> str:
    told = ", ".join(one.scopes)
    return told if one.enqueue is None else f"{told} ({', '.join(one.enqueue)})"


def _jobs(one: tokens.Token) -> str:
    if one.job is not None:
        return f"job {one.job}"
    return "all" if one.scope is None else f"{one.scope} {one.scope_id}"


@token.command("list")
@database
def list_tokens(db: Database) -> None:
    """All tokens that have not expired."""
    found = db.run_on_store(lambda store, _: tokens.every(store))
    rows = [
        (
            one.id,
            one.name,
            _allows(one),
            ", ".join(one.topics) if one.topics is not None else "all",
            _jobs(one),
            moment(one.expires_at) or "never",
            moment(one.last_used) or "never",
        )
        for one in found
    ]
    columns = ("id", "name", "scopes", "topics", "jobs", "expires", "last used")
    db.tell(items([msgspec.structs.asdict(one) for one in found]), lambda: print_table(columns, rows))


@token.command()
@click.argument("token_id", metavar="[ID]", required=False)
@for_scope
@actor
@database
def revoke(db: Database, token_id: str | None, for_scope: tuple[str, str] | None) -> None:
    """Revoke a token, or all browsers' tokens of a scope. They are refused from now on."""
    if (token_id is None) == (for_scope is None):
        raise click.UsageError("give the ID of a token, or --for-scope SCOPE ID for all tokens of that scope")
    scope, scope_id = for_scope or (None, None)
    count = db.run(lambda jobs: jobs.tokens.revoke(token_id, scope=scope, scope_id=scope_id, reason=db.reason))
    if for_scope is not None:
        db.tell({"scope": scope, "scope_id": scope_id, "revoked": count}, f"revoked {how_many(count, 'token')}")
    elif not count:
        raise click.ClickException(f"there is no token {token_id}: `rowlock token list` shows their ids")
    else:
        db.tell({"id": token_id, "revoked": True}, f"{token_id} is revoked")
