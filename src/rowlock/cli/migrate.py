from __future__ import annotations

import asyncio

import click

from rowlock import config
from rowlock.cli.connect import Database, database
from rowlock.cli.show import items
from rowlock.stores import open_store
from rowlock.stores.base import Store
from rowlock.stores.migrations import Migration


@click.command()
@click.option("--plan", is_flag=True, help="Show what would be applied, and change nothing.")
@click.option("--sql", is_flag=True, help="Print the SQL of what would be applied, and change nothing.")
@database
def migrate(db: Database, plan: bool, sql: bool) -> None:
    """Create or update rowlock's tables.

    Safe to run twice, and from several machines at once: one migrates, the others wait and find nothing to do.
    """
    if plan and sql:
        raise click.UsageError("give --plan or --sql, not both")
    store = open_store(config.load({"url": db.url}).url)
    changes_nothing = plan or sql
    if changes_nothing:
        pending = asyncio.run(store.pending_migrations(whole=True))
        found, script = pending.migrations, pending.script
    else:
        found, script = asyncio.run(_apply(store)), ""
    documents = [{"number": one.number, "name": one.name} for one in found]
    what = "to apply" if plan else "applied"
    lines = [f"{what}: {one.title}" for one in found] or ["up to date: nothing to apply"]
    db.tell(
        items(documents, applied=not changes_nothing, **({"sql": script} if sql else {})),
        script or f"-- {lines[0]}" if sql else "\n".join(lines),
    )


async def _apply(store: Store) -> list[Migration]:
    applied = await store.migrate()
    await store.pending_migrations(whole=True)  # checks the schema, also if there was nothing to apply
    return applied
