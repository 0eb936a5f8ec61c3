from __future__ import annotations

import json
from typing import Any

import click
import msgspec

from rowlock.access import settings as access
from rowlock.cli.connect import run
from rowlock.cli.options import actor, database
from rowlock.cli.show import print_json, print_table
from rowlock.jobs import Jobs


@click.group()
def settings() -> None:
    """Who may do what over HTTP, and how workers work: kept in the database."""


@settings.command()
@database
def show(url: str | None, output: str) -> None:
    """All settings, with their defaults."""

    async def look(jobs: Jobs) -> access.Current:
        return await access.load(await jobs._store())

    _show(run(url, look), output)


@settings.command("set")
@click.argument("changes", metavar="NAME=VALUE...", nargs=-1, required=True)
@actor
@database
def change(changes: tuple[str, ...], reason: str | None, by: str | None, url: str | None, output: str) -> None:
    """Change settings: view_rule='scope_id = @request.auth.id', allowed_topics='["mail"]', worker_pool_size=20.

    Servers apply it within a second, workers within five. `null` means the default.
    """
    wanted = dict(_read(one) for one in changes)

    async def write(jobs: Jobs) -> access.Current:
        return await access.change(await jobs._store(), wanted, by=jobs.settings.by, reason=reason)

    _show(run(url, write, by=by), output)


def _read(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign:
        raise click.UsageError(f"{text!r} is not NAME=VALUE, such as http_enabled=false")
    if value == "null":
        return name, None
    if name in access.RULES:
        return name, value
    try:
        return name, json.loads(value)
    except ValueError:
        raise click.UsageError(f"{name}: {value!r} is not JSON: write true, 10, or '[\"mail\"]'") from None


def _show(current: access.Current, output: str) -> None:
    values = msgspec.structs.asdict(current.settings)
    if output == "json":
        print_json({**values, "given": sorted(current.given)})
        return
    rows = [
        (name, json.dumps(value, ensure_ascii=False), "set" if name in current.given else "default")
        for name, value in values.items()
    ]
    print_table(("name", "value", "note"), rows)
