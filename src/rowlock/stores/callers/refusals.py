"""Why a connection can't carry what it is asked to. Every refusal says the way out."""

from __future__ import annotations

from collections.abc import Iterator

from rowlock.errors import ConnectionRefused
from rowlock.stores.base import Home

NAMES = {"sqlite": "SQLite", "sqlite3": "SQLite", "postgres": "PostgreSQL", "postgresql": "PostgreSQL"}
IN_MEMORY = "the jobs are kept in memory, where no other connection can see them: use a file"


def refuse_dialect(kind: str, dialect: str, home: Home) -> None:
    if NAMES.get(dialect) != NAMES[home.dialect]:
        raise ConnectionRefused(
            kind,
            "wrong_dialect",
            f"it leads to {NAMES.get(dialect, dialect)}, but the jobs are kept in {NAMES[home.dialect]}. "
            "Pass a connection to that database, or leave out conn=",
        )


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it wraps: SQLAlchemy keeps the driver's own as .orig, Django as __cause__."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        yield current
        orig = getattr(current, "orig", None)
        current = orig if isinstance(orig, BaseException) else current.__cause__


def closed(kind: str) -> ConnectionRefused:
    return ConnectionRefused(kind, "closed", "it is closed (or was given back to its pool): pass an open one")


def autocommit(kind: str, way_out: str) -> ConnectionRefused:
    return ConnectionRefused(
        kind,
        "autocommit",
        "it is not in a transaction, and commits every statement by itself: the job would stay although your data is "
        f"rolled back. {way_out}, or leave out conn=",
    )


def failed(kind: str, way_out: str = "Roll it back first") -> ConnectionRefused:
    return ConnectionRefused(kind, "failed_transaction", f"its transaction has failed, nothing can be added. {way_out}")


def read_only(kind: str) -> ConnectionRefused:
    return ConnectionRefused(
        kind, "read_only", "its transaction is read-only (or it leads to a standby): pass one that may write"
    )


def deleted_file(kind: str, where: str) -> ConnectionRefused:
    return ConnectionRefused(
        kind,
        "another_database",
        f"{where} was deleted, moved or replaced after this connection was opened, so nobody would find what it "
        "writes. Close it, and pass a new one",
    )


def another_database(kind: str, where: str) -> ConnectionRefused:
    return ConnectionRefused(
        kind,
        "another_database",
        f"this connection leads to another database ({where}) than the one where the jobs are kept; a copy is another "
        "one too. Pass a connection to the jobs' database, or leave out conn=",
    )
