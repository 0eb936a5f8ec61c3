"""Migrations: twice, at once from several stores, and the same schema in the end."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg

from rowlock.stores.base import Store
from rowlock.stores.migrations import Migration
from rowlock.stores.postgres.store import PostgresStore
from rowlock.stores.sqlite.store import SqliteStore
from tests.stores.conftest import StoreDatabases
from tests.stores.processes import real_job


async def schema_of_sqlite(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY 1, 2").fetchall()


async def schema_of_postgres(url: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        columns = await connection.fetch(
            "SELECT table_name, ordinal_position, column_name, data_type, is_nullable, column_default "
            "FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2"
        )
        indexes = await connection.fetch(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"
        )
        checks = await connection.fetch(
            "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE connamespace = 'public'::regnamespace ORDER BY 1"
        )
        views = await connection.fetch(
            "SELECT viewname, definition FROM pg_views WHERE schemaname = 'public' ORDER BY 1"
        )
        return [*map(tuple, columns), *map(tuple, indexes), *map(tuple, checks), *map(tuple, views)]
    finally:
        await connection.close()


async def migrate_at_once(make: Callable[[], Store]) -> None:
    assert await make().pending_migrations() != []
    applied: list[list[Migration]] = await asyncio.gather(*(make().migrate() for _ in range(8)))
    numbers = [migration.number for answer in applied for migration in answer]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert await make().migrate() == []
    assert await make().pending_migrations() == []
    store = make()
    await store.open()
    await store.insert([real_job()])
    await store.close()


async def test_migrations_at_once_on_sqlite(tmp_path: Path) -> None:
    shared, alone = tmp_path / "shared.db", tmp_path / "alone.db"
    await migrate_at_once(lambda: SqliteStore(str(shared)))
    await SqliteStore(str(alone)).migrate()
    await SqliteStore(str(alone)).migrate()
    assert await schema_of_sqlite(shared) == await schema_of_sqlite(alone) != []


async def test_migrations_at_once_on_postgres(postgres_url: str, store_databases: StoreDatabases) -> None:
    await migrate_at_once(lambda: PostgresStore(postgres_url))
    async with store_databases.fresh() as migrated_url:  # made by one store alone
        assert await schema_of_postgres(postgres_url) == await schema_of_postgres(migrated_url) != []
