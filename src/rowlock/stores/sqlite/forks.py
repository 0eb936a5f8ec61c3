"""A connection must not cross fork(): used or closed in the child, it damages the file.

Nor may the child open the same file anew. SQLite keeps one list of a process's locks for each file; the child inherits
that list, but not the locks, and believes that it holds what only its parent holds. So the files that were open stay
closed to the child.
"""

from __future__ import annotations

import os
import sqlite3

from rowlock.errors import ForkedStore
from rowlock.stores.after_fork import keep_for_ever
from rowlock.stores.sqlite.files import Inode, inode

_open: dict[sqlite3.Connection, Inode | None] = {}  # → the file, None for a database in memory
_files: set[Inode] = set()  # files that were open in the parent


def keep(conn: sqlite3.Connection, path: str | None) -> None:
    """Note an opened connection and its file. The file must be known now: later another file may be at the path."""
    _open[conn] = None if path is None else inode(path)


def forget(conn: sqlite3.Connection) -> None:
    """Forget a connection that has been closed."""
    _open.pop(conn, None)


def refusal(where: str) -> ForkedStore:
    return ForkedStore(
        f"{where} was open in the parent process when this one was forked, and SQLite's locks don't survive that. "
        "Fork first and open later (gunicorn: no --preload, or open in post_fork), or start processes by spawn"
    )


def refuse_inherited(path: str) -> None:
    if inode(path) in _files:
        raise refusal(path)


def _after_fork_in_child() -> None:
    _files.update(file for file in _open.values() if file is not None)
    for conn in _open:
        keep_for_ever(conn)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
