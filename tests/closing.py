"""Context managers for objects that must be closed with `await`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from rowlock.stores.base import Store

S = TypeVar("S", bound=Store)


@asynccontextmanager
async def opening(store: S) -> AsyncIterator[S]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """Yield a connection to PostgreSQL."""
    connection = await asyncpg.connect(url, **options)
    try:
        yield connection
    finally:
        await connection.close()
