"""Which database a connection leads to."""

from __future__ import annotations

import os
from sqlite3 import Cursor

from rowlock.stores.base import MEMORY
from rowlock.stores.sqlite.rows import sql


def identity(cursor: Cursor) -> str:
    """The random text made by the first migration, and the file's inode: a copy of a file is another database."""
    (value,) = cursor.execute(sql("identity")).fetchone()
    (file,) = (file for _, name, file in cursor.execute("PRAGMA database_list").fetchall() if name == "main")
    if not file:
        return f"{value}{MEMORY}"
    try:
        found = os.stat(file)  # noqa: PTH116 - SQLite's own spelling, whatever it is
    except OSError:
        return f"{value}@gone"
    return f"{value}@{found.st_dev}.{found.st_ino}"
