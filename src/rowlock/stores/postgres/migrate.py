"""Migrations on PostgreSQL: in one transaction, under an advisory lock that PgBouncer's transaction mode allows too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from rowlock import errors
from rowlock.stores import migrations
from rowlock.stores.migrations import Migration
from rowlock.stores.postgres.connections import MIN_SERVER, Target
from rowlock.stores.postgres.functions import functions
from rowlock.stores.postgres.statements import PACKAGE

# Tables and views with their columns. information_schema would show only those that the role may use.
_THERE = """
SELECT c.relname::text, array_agg(a.attname::text) FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname = $1::text AND c.relkind IN ('r', 'p', 'v') AND starts_with(c.relname, '_jobs')
GROUP BY c.relname
"""
# Functions are applied again and again.
_AGAIN = "\n    ON CONFLICT (number) DO UPDATE SET checksum = excluded.checksum, applied_at = excluded.applied_at"


def known() -> tuple[Migration, ...]:
    """Return the numbered migrations, and the functions behind them, which need their tables."""
    return (*migrations.load(PACKAGE), functions())


async def applied(connection: Any, target: Target) -> dict[int, str]:
    """Return numbers and checksums of what was applied to the database; nothing if there are no rowlock tables."""
    version = connection.get_server_version()
    if version.major < MIN_SERVER:
        raise errors.StoreError(f"{target.label} is version {version.major}; rowlock needs {MIN_SERVER} or newer")
    table = f"{target.quoted_schema}._jobs_migrations"
    if await connection.fetchval("SELECT to_regclass($1)", table) is None:
        return {}
    return dict(await connection.fetch(f"SELECT number, checksum FROM {table}"))  # noqa: S608 - a checked identifier


async def pending(connection: Any, target: Target) -> list[Migration]:
    return migrations.pending(known(), await applied(connection, target), where(target))


async def check_schema(connection: Any, target: Target) -> None:
    """Raise SchemaDamaged if a table, view or column is gone that the applied migrations have made."""
    done = await applied(connection, target)  # read first: another process may add tables meanwhile
    there = {name: set(columns) for name, columns in await connection.fetch(_THERE, target.schema)}
    migrations.require_whole(known(), done, there, where(target))


def where(target: Target) -> str:
    return f"{target.label}, schema {target.schema},"


async def migrate(connection: Any, target: Target) -> list[Migration]:
    """Apply all pending migrations, or none. A second process waits, then finds nothing to do."""
    try:
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"rowlock {target.schema}"
            )
            todo = await pending(connection, target)
            if todo:
                await check_schema(connection, target)  # before a migration fails because a table is gone
                exists = await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", target.schema)
                await connection.execute(script(todo, target, create_schema=not exists))
    except asyncpg.InsufficientPrivilegeError as error:
        raise errors.AccessDenied(
            f"{target.label}, schema {target.schema}: {error}. Migrating needs CREATE on the schema "
            "(and on the database, to create the schema); or run the output of `rowlock migrate --sql` as an owner"
        ) from error
    except asyncpg.ReadOnlySQLTransactionError as error:
        raise errors.StoreReadOnly(f"{target.label} is read-only (a standby?): {error}") from error
    return todo


def script(todo: Sequence[Migration], target: Target, *, create_schema: bool) -> str:
    """Return the SQL that applies `todo`, without BEGIN and COMMIT."""
    schema = target.quoted_schema
    lines = [f"CREATE SCHEMA IF NOT EXISTS {schema};"] if create_schema else []
    lines.append(
        f"CREATE TABLE IF NOT EXISTS {schema}._jobs_migrations (\n"
        "    number integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_at timestamptz NOT NULL);"
    )
    for migration in todo:
        lines.append(f"\n-- {migration.title}")
        lines.append(migration.sql.replace("{schema}", schema).strip())
        lines.append(
            f"INSERT INTO {schema}._jobs_migrations (number, name, checksum, applied_at)\n"  # noqa: S608 - our own names
            f"    VALUES ({migration.number}, '{migration.name}', '{migration.checksum}', clock_timestamp())"
            f"{_AGAIN if migration.number == 0 else ''};"
        )
    return "\n".join(lines) + "\n"
