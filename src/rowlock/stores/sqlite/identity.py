"""The identity of the database that a connection leads to."""

from __future__ import annotations

from sqlite3 import Connection, Cursor

from rowlock.stores.base import MEMORY
from rowlock.stores.sqlite.files import Inode, inode
from rowlock.stores.sqlite.rows import sql

GONE = "@gone"  # how the identity ends of a connection whose file is not at its path any more


def identity(cursor: Cursor) -> str:
    """Return the tables' random text, and which file is at the connection's path. Both must be those of our database: a
    connection to a deleted file still reads our text, and a copy of the database has our text in another file."""
    (file,) = (file for _, name, file in cursor.execute("PRAGMA database_list").fetchall() if name == "main")
    if not file:
        return f"{_text(cursor)}{MEMORY}"
    found = inode(file)
    return f"{_text(cursor)}{GONE if found is None else tag(found)}"


def own_identity(cursor: Cursor, file: Inode) -> str:
    """Return the same, for a connection whose open file is known."""
    return f"{_text(cursor)}{tag(file)}"


def tag(file: Inode) -> str:
    device, number = file
    return f"@{device}.{number}"


def mark_of(conn: Connection) -> str | None:
    """Return the tag of the file that the tables were in when a process last noted it."""
    found = conn.execute(sql("identity_file")).fetchone()
    return None if found is None else found[0]


def mark(conn: Connection, file: Inode) -> None:
    """Write down which file the tables are in. If they were in another file before, this file is a copy: a restored
    backup, for example. Then it gets a text of its own. Else a connection to the deleted original would be taken for a
    connection to the copy.
    """
    known = mark_of(conn)
    if known == tag(file):
        return
    if known is not None:
        conn.execute(sql("identity_renew"))
    conn.execute(sql("identity_mark"), (tag(file),))


def _text(cursor: Cursor) -> str:
    (text,) = cursor.execute(sql("identity")).fetchone()
    assert isinstance(text, str)  # noqa: S101 - narrows the type
    return text
