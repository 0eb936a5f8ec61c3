from __future__ import annotations

import json
from typing import Any

import click
import msgspec

from rowlock.access import settings as access
from rowlock.cli.connect import Database, actor, database
from rowlock.cli.groups import Group
from rowlock.cli.show import print_table


@click.group(cls=Group)
def settings() -> None:
    """Settings in the database: access rules of the HTTP API, and how workers work."""


@settings.command()
@database
def show(db: Database) -> None:
    """All settings, with their defaults."""
    current = db.run_on_store(lambda store, _: access.load(store))
    rows = [
        (name, _text(value), "set" if name in current.given else "default")
        for name, value in msgspec.structs.asdict(current.settings).items()
    ]
    db.tell(_document(current), lambda: print_table(("name", "value", "note"), rows))


@settings.command("set")
@click.argument("changes", metavar="NAME=VALUE...", nargs=-1, required=True)
@actor
@database
def change(db: Database, changes: tuple[str, ...]) -> None:
    """Change settings: view_rule='scope_id = @request.auth.id', allowed_topics='["mail"]', worker_pool_size=20.

    Servers apply it within a second, workers within five. `null` means the default.
    """
    wanted = dict(_read(one) for one in changes)
    current = db.run_on_store(lambda store, by: access.change(store, wanted, by=by, reason=db.reason))
    values = msgspec.structs.asdict(current.settings)
    db.tell(_document(current), ", ".join(f"{name} = {_text(values[name])}" for name in wanted))


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


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _document(current: access.Current) -> dict[str, Any]:
    return {**msgspec.structs.asdict(current.settings), "given": sorted(current.given)}
