"""Counts the jobs that are left in a store."""

from __future__ import annotations

from typing import Any

CONNECTIONS = 10  # of a client with many callers: the usual size of a pool; more connections only queue for two cores


async def count_rows(url: str, query: str, *arguments: object) -> int:
    """Return the single number that a PostgreSQL query answers."""
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval(query, *arguments))
    finally:
        await connection.close()


def redis_client(url: str) -> Any:
    import redis.asyncio

    return redis.asyncio.from_url(url)
