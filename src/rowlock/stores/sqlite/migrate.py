"""Applying migrations to an SQLite database. What a migration is stands in stores.migrations."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

from rowlock.errors import StoreError
from rowlock.stores.migrations import Migration, load, pending, require_whole
from rowlock.stores.sqlite.rows import sql


def known() -> tuple[Migration, ...]:
    return load("rowlock.stores.sqlite")


def missing(conn: sqlite3.Connection, where: str) -> list[Migration]:
    """Return the migrations that are still to be applied. Raise if an applied migration differs from this code."""
    return pending(known(), _applied(conn), where)


def _applied(conn: sqlite3.Connection) -> dict[int, str]:
    there = conn.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '_jobs_migrations'").fetchone()
    return dict(conn.execute("SELECT number, checksum FROM _jobs_migrations").fetchall() if there else [])


def check_schema(conn: sqlite3.Connection, where: str) -> None:
    """Raise if something is gone that the applied migrations have made."""
    applied = _applied(conn)  # read first: another process may add tables meanwhile
    there: dict[str, set[str]] = {}
    for name, column in conn.execute(sql("schema")):
        there.setdefault(name, set()).add(column)
    require_whole(known(), applied, there, where)


def apply_next(conn: sqlite3.Connection, now: int, where: str) -> Migration | None:
    """Apply the next migration, in the caller's write transaction; None: nothing is left. A process that waited for the
    write lock sees what was applied meanwhile."""
    todo = missing(conn, where)
    if not todo:
        return None
    check_schema(conn, where)  # before a statement fails because a table is gone
    migration = todo[0]
    conn.execute(sql("migrations_table"))
    for statement in statements(migration.sql):
        conn.execute(statement)
    conn.execute(
        "INSERT INTO _jobs_migrations (number, name, checksum, applied_at) VALUES (?, ?, ?, ?)",
        (migration.number, migration.name, migration.checksum, now),
    )
    return migration


def script(todo: Sequence[Migration]) -> str:
    """Return the SQL that applies `todo` in the sqlite3 shell. WAL comes first: it can't be switched on in a
    transaction."""
    parts = ["PRAGMA journal_mode = wal;", "BEGIN IMMEDIATE;", f"{sql('migrations_table').strip()};"]
    for migration in todo:
        parts += [f"\n-- {migration.title}", migration.sql.strip()]
        # julianday, because unixepoch('subsec') is newer than the oldest SQLite that we work with.
        parts.append(
            "INSERT INTO _jobs_migrations (number, name, checksum, applied_at) VALUES\n"
            f"    ({migration.number}, '{migration.name}', '{migration.checksum}',\n"
            "     CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER));"
        )
    return "\n".join([*parts, "COMMIT;"]) + "\n"


def statements(script: str) -> Iterator[str]:
    """Yield the statements of a script. sqlite3's executescript would commit first, and leave half a migration behind
    when it fails."""
    part = ""
    for line in script.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            yield part
            part = ""
    if any(line.strip() and not line.lstrip().startswith("--") for line in part.splitlines()):
        raise StoreError(f"a migration ends in the middle of a statement: {part.strip():.80}")
