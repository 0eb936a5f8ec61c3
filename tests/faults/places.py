"""Databases for stages: an SQLite file, or a new PostgreSQL server that keeps what it has acknowledged."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from tests.faults.stage import Stage, prepared
from tests.faults.suites import Cell
from tests.servers import PostgresServer


@asynccontextmanager
async def staged(cell: Cell, app: str = "history_app:jobs") -> AsyncIterator[Stage]:
    """Yield a stage on the cell's kind of database."""
    if cell.store == "sqlite":
        cell.folder.mkdir(parents=True, exist_ok=True)
        async with prepared(cell.folder, f"sqlite:///{cell.folder}/jobs.db", cell.seed, app=app) as stage:
            yield stage
    else:
        async with on_server(cell, app=app) as (stage, _server):
            yield stage


@asynccontextmanager
async def on_server(
    cell: Cell, *, app: str = "history_app:jobs", settings: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Stage, PostgresServer]]:
    """Yield a stage, and its PostgreSQL server, which the suite may kill."""
    with PostgresServer(durable=True, settings=settings) as server:
        async with prepared(cell.folder, server.url(), cell.seed, app=app) as stage:
            yield stage, server
