from __future__ import annotations

import sys

import click
import msgspec

from rowlock.access import superusers
from rowlock.cli.connect import Database, actor, database
from rowlock.cli.groups import Group
from rowlock.cli.show import items, moment, print_table
from rowlock.jobs import Jobs

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

    async def make(jobs: Jobs) -> None:
        store, password = await jobs._store(), _password(password_stdin)
        await superusers.create(store, email, password, by=jobs.settings.by, reason=db.reason, read_only=read_only)

    db.run(make, create=True)
    text = f"{email.lower()} may log in{', and change nothing' if read_only else ''}"
    db.tell({"email": email.lower(), "read_only": read_only}, text)


@superuser.command("list")
@database
def list_superusers(db: Database) -> None:
    """All accounts."""

    async def look(jobs: Jobs) -> list[superusers.Superuser]:
        return await superusers.every(await jobs._store())

    found = db.run(look)
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

    async def change(jobs: Jobs) -> None:
        store, new = await jobs._store(), _password(password_stdin)
        await superusers.set_password(store, email, new, by=jobs.settings.by, reason=db.reason)

    db.run(change)
    db.tell({"email": email.lower()}, f"{email.lower()} has another password; its sessions have ended")


@superuser.command()
@click.argument("email")
@actor
@database
def delete(db: Database, email: str) -> None:
    """Delete an account. Ends all its sessions."""

    async def remove(jobs: Jobs) -> None:
        await superusers.delete(await jobs._store(), email, by=jobs.settings.by, reason=db.reason)

    db.run(remove)
    db.tell({"email": email.lower(), "deleted": True}, f"{email.lower()} is deleted")
