from __future__ import annotations

import sys

import click
import msgspec

from rowlock.access import superusers
from rowlock.cli.connect import Database, actor, database
from rowlock.cli.groups import Group
from rowlock.cli.show import items, moment, print_table
from rowlock.stores.base import Store

_stdin = click.option("--password-stdin", is_flag=True, help="Read the password from stdin, not from the terminal.")


@click.group(cls=Group)
def superuser() -> None:
    """The accounts of operators."""


def _password(from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\n")
    text: str = click.prompt("Password (12 characters or more)", hide_input=True, confirmation_prompt=True)
    return text


@superuser.command()
@click.argument("email")
@click.option("--read-only", is_flag=True, help="The account may look at everything and change nothing.")
@_stdin
@actor
@database
def create(db: Database, email: str, read_only: bool, password_stdin: bool) -> None:
    """Create an account."""
    superusers.check_email(email)

    async def make(store: Store, by: str) -> None:
        password = _password(password_stdin)  # asked for when the database has answered
        await superusers.create(store, email, password, by=by, reason=db.reason, read_only=read_only)

    db.run_on_store(make, create=True)
    text = f"{email.lower()} may log in{', and change nothing' if read_only else ''}"
    db.tell({"email": email.lower(), "read_only": read_only}, text)


@superuser.command("list")
@database
def list_superusers(db: Database) -> None:
    """All accounts."""
    found = db.run_on_store(lambda store, _: superusers.every(store))
    documents = [msgspec.structs.asdict(one) for one in found]
    for document in documents:
        del document["stamp"]
    rows = [(one.email, "read-only" if one.read_only else "", moment(one.created)) for one in found]
    db.tell(items(documents), lambda: print_table(("email", "may", "created"), rows))


@superuser.command()
@click.argument("email")
@_stdin
@actor
@database
def password(db: Database, email: str, password_stdin: bool) -> None:
    """Change an account's password. Ends all its sessions."""

    async def change(store: Store, by: str) -> None:
        await superusers.set_password(store, email, _password(password_stdin), by=by, reason=db.reason)

    db.run_on_store(change)
    db.tell({"email": email.lower()}, f"{email.lower()} has another password; its sessions have ended")


@superuser.command()
@click.argument("email")
@actor
@database
def delete(db: Database, email: str) -> None:
    """Delete an account. Ends all its sessions."""
    db.run_on_store(lambda store, by: superusers.delete(store, email, by=by, reason=db.reason))
    db.tell({"email": email.lower(), "deleted": True}, f"{email.lower()} is deleted")
