"""rowlock on SQLite: the same program, another URL."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

from benchmarks.systems import rowlock
from benchmarks.systems.base import System


def count(url: str, query: str) -> int:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as connection:
        return int(connection.execute(query).fetchone()[0])


async def unfinished(url: str) -> int:
    return count(url, "SELECT count(*) FROM _jobs WHERE finished_at IS NULL")


async def completed(url: str) -> int:
    return count(url, "SELECT count(*) FROM _jobs_archive")


SYSTEM = System(
    name="rowlock-sqlite",
    store="sqlite",
    version=rowlock.SYSTEM.version,
    unfinished=unfinished,
    completed=completed,
    settings={**rowlock.SYSTEM.settings, "database": "WAL, `synchronous` as the round says (default: full)"},
    pace=30_000,
    start=lambda verb: [sys.executable, "-m", "benchmarks.systems.rowlock", verb],
)
