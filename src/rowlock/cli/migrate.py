from __future__ import annotations

import asyncio

import click

from rowlock import config
from rowlock.stores import open_store
from rowlock.stores.migrations import Migration


@click.command()
@click.option("--url", help="The database. Default: ROWLOCK_URL, or url in rowlock.toml.")
@click.option("--plan", is_flag=True, help="Show what would be applied, and change nothing.")
@click.option("--sql", is_flag=True, help="Print the SQL of what would be applied, and change nothing.")
def migrate(url: str | None, plan: bool, sql: bool) -> None:
    """Create or update rowlock's tables.

    Safe to run twice, and from several machines at once: one migrates, the others wait and find nothing to do.
    """
    if plan and sql:
        raise click.UsageError("give --plan or --sql, not both")
    store = open_store(config.load({"url": url}).url)
    if sql:
        todo = asyncio.run(store.pending_migrations())
        click.echo(store.migration_sql(todo) if todo else "-- up to date: nothing to apply")
    elif plan:
        _list("to apply", asyncio.run(store.pending_migrations()))
    else:
        _list("applied", asyncio.run(store.migrate()))


def _list(what: str, migrations: list[Migration]) -> None:
    for migration in migrations:
        click.echo(f"{what}: {migration.title}")
    if not migrations:
        click.echo("up to date: nothing to apply")
