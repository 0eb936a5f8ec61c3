"""Translates SQLite's errors into rowlock's errors, which tell what to do."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from rowlock.errors import (
    AccessDenied,
    OutcomeUnknown,
    SchemaDamaged,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from rowlock.stores.migrations import DAMAGED

_MISSING = re.compile(r"no such table: (main\.)?_jobs|no such column: |table _jobs\w* has no column named ")
_LITTLE = 1 << 20  # bytes free below which an I/O error is put down to a full disk


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLITE_BUSY for SQLITE_BUSY_SNAPSHOT and so on; 0 for errors that sqlite3 raised by itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


@contextmanager
def translated(where: str, *, committing: bool = False) -> Iterator[None]:
    """Raise SQLite's errors as rowlock's. `where` names the database: a path, or "in memory"."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, where, committing=committing) from error


def translate(error: sqlite3.Error, where: str, *, committing: bool = False) -> StoreError:
    said = f"SQLite said: {error}"
    match primary_code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreBusy(f"{where} is locked by another connection; {said}")
        case sqlite3.SQLITE_FULL:
            return StoreFull(f"no space left for {where}: make room, and try again; {said}")
        case sqlite3.SQLITE_READONLY:
            return StoreReadOnly(f"{where} can't be written to: check the file, its directory and the mount; {said}")
        case sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return AccessDenied(f"no permission for {where}; {said}")
        case sqlite3.SQLITE_CANTOPEN:
            return StoreUnavailable(f"can't open {where}: check the path and the permissions; {said}")
        case sqlite3.SQLITE_NOTADB:
            return StoreError(f"{where} is not an SQLite database (or it is encrypted): choose another path; {said}")
        case sqlite3.SQLITE_CORRUPT:
            return StoreError(f"{where} is damaged: restore a backup, or try `sqlite3 … .recover`; {said}")
        case sqlite3.SQLITE_IOERR:
            return _input_output(where, said, committing)
        case sqlite3.SQLITE_ERROR if _MISSING.match(str(error)):
            return SchemaDamaged(f"{where}: {said}. {DAMAGED}")
        case 0 if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
            return StoreClosed(f"{where} has been closed")
    return StoreError(f"{where}: {said}")


def _input_output(where: str, said: str, committing: bool) -> StoreError:
    # The shared memory beside the file can't grow on a full disk, which SQLite calls an I/O error.
    try:
        room = os.statvfs(os.path.dirname(where) or ".")  # noqa: PTH120 - `where` need not be a path
        full = room.f_bavail * room.f_frsize < _LITTLE
    except OSError:
        full = False
    if full:
        return StoreFull(f"no space left for {where}: make room, and try again; {said}")
    if committing:
        return OutcomeUnknown(f"{where} failed while committing; {said}")
    return StoreUnavailable(f"{where} can't be read or written; {said}")
