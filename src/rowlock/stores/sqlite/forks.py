"""A connection must not cross fork(): used or closed in the child, it damages the file.

Use is refused by the store (it remembers its process). Closing would come about by itself, when the child collects its
garbage or exits; so a child keeps the connections it inherited, for ever.
"""

from __future__ import annotations

import os
import sqlite3

_open: set[sqlite3.Connection] = set()
_inherited: list[sqlite3.Connection] = []


def keep(conn: sqlite3.Connection, on: bool = True) -> None:
    """Say that `conn` is open, or that it has been closed."""
    (_open.add if on else _open.discard)(conn)


def _after_fork_in_child() -> None:
    _inherited.extend(_open)
    _open.clear()
    try:
        import ctypes
    except ImportError:  # a Python without it: then they are kept until the child exits
        return
    for conn in _inherited:
        # One reference that nobody gives back: even the end of the interpreter doesn't close it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(conn))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
