from __future__ import annotations

import sys

import click
import msgspec

from rowlock.access import superusers
from rowlock.cli.connect import run
from rowlock.cli.groups import Group
from rowlock.cli.options import actor, database
from rowlock.cli.show import items, moment, print_json, print_table
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
@click.option("--read-only", is_flag=True, help="It may look at everything and change nothing.")
@_stdin
@actor
@database
def create(
    email: str, read_only: bool, password_stdin: bool, reason: str | None, by: str | None, url: str | None, output: str
) -> None:
    """Make an account."""
    superusers.check_email(email)

    async def make(jobs: Jobs) -> None:
        await superusers.create(
            await jobs._store(),
            email,
            _password(password_stdin),
            by=jobs.settings.by,
            reason=reason,
            read_only=read_only,
        )

    run(url, make, by=by, create=True)
    if output == "json":
        print_json({"email": email.lower(), "read_only": read_only})
    else:
        click.echo(f"{email.lower()} may log in{', and change nothing' if read_only else ''}")


@superuser.command("list")
@database
def list_superusers(url: str | None, output: str) -> None:
    """All accounts."""

    async def look(jobs: Jobs) -> list[superusers.Superuser]:
        return await superusers.every(await jobs._store())

    found = run(url, look)
    if output == "json":
        documents = [msgspec.structs.asdict(one) for one in found]
        print_json(items([{name: value for name, value in one.items() if name != "stamp"} for one in documents]))
    else:
        rows = [(one.email, "read-only" if one.read_only else "", moment(one.created)) for one in found]
        print_table(("email", "may", "created"), rows)


@superuser.command()
@click.argument("email")
@_stdin
@actor
@database
def password(
    email: str, password_stdin: bool, reason: str | None, by: str | None, url: str | None, output: str
) -> None:
    """Give an account another password. Ends all its sessions."""

    async def change(jobs: Jobs) -> None:
        await superusers.set_password(
            await jobs._store(), email, _password(password_stdin), by=jobs.settings.by, reason=reason
        )

    run(url, change, by=by)
    if output == "json":
        print_json({"email": email.lower()})
    else:
        click.echo(f"{email.lower()} has another password; its sessions have ended")


@superuser.command()
@click.argument("email")
@actor
@database
def delete(email: str, reason: str | None, by: str | None, url: str | None, output: str) -> None:
    """Remove an account. Ends all its sessions."""

    async def remove(jobs: Jobs) -> None:
        await superusers.delete(await jobs._store(), email, by=jobs.settings.by, reason=reason)

    run(url, remove, by=by)
    if output == "json":
        print_json({"email": email.lower(), "deleted": True})
    else:
        click.echo(f"{email.lower()} is gone")
