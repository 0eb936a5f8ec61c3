"""Errors for connections that can't be used. Every message says what to do instead."""

from __future__ import annotations

from collections.abc import Iterator

from rowlock.errors import ConnectionRefused

IN_MEMORY = "the jobs are kept in memory, where no other connection can see them: use a file"


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the errors that it wraps: SQLAlchemy keeps the driver's error as .orig, Django as
    __cause__."""
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
        f"{where} was deleted, moved or replaced after this connection was opened, so no other program would "
        "find what it writes. Close it, and pass a new one",
    )


def another_database(kind: str, where: str) -> ConnectionRefused:
    return ConnectionRefused(
        kind,
        "another_database",
        f"this connection leads to another database ({where}) than the one where the jobs are kept; a copy is another "
        "one too. Pass a connection to the jobs' database, or leave out conn=",
    )
