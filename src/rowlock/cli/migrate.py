from __future__ import annotations

import asyncio

import click

from rowlock import config
from rowlock.cli.options import database
from rowlock.cli.show import items, print_json
from rowlock.stores import open_store
from rowlock.stores.base import Store
from rowlock.stores.migrations import Migration


@click.command()
@click.option("--plan", is_flag=True, help="Show what would be applied, and change nothing.")
@click.option("--sql", is_flag=True, help="Print the SQL of what would be applied, and change nothing.")
@database
def migrate(plan: bool, sql: bool, url: str | None, output: str) -> None:
    """Create or update rowlock's tables.

    Safe to run twice, and from several machines at once: one migrates, the others wait and find nothing to do.
    """
    if plan and sql:
        raise click.UsageError("give --plan or --sql, not both")
    store = open_store(config.load({"url": url}).url)
    changes_nothing = plan or sql
    found = asyncio.run(_find(store) if changes_nothing else _apply(store))
    if output == "json":
        documents = [{"number": one.number, "name": one.name} for one in found]
        script = {"sql": store.migration_sql(found) if found else ""} if sql else {}
        print_json(items(documents, applied=not changes_nothing, **script))
    elif sql:
        click.echo(store.migration_sql(found) if found else "-- up to date: nothing to apply")
    else:
        _list("to apply" if plan else "applied", found)


async def _find(store: Store) -> list[Migration]:
    pending = await store.pending_migrations()
    await store.check_schema()
    return pending


async def _apply(store: Store) -> list[Migration]:
    applied = await store.migrate()
    await store.check_schema()  # also if there was nothing to apply
    return applied


def _list(what: str, migrations: list[Migration]) -> None:
    for migration in migrations:
        click.echo(f"{what}: {migration.title}")
    if not migrations:
        click.echo("up to date: nothing to apply")
