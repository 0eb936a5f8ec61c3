"""Which database a connection leads to."""

from __future__ import annotations

from sqlite3 import Connection, Cursor

from rowlock.stores.base import MEMORY
from rowlock.stores.sqlite.files import Inode, inode
from rowlock.stores.sqlite.rows import sql

GONE = "@gone"  # how the identity ends of a connection whose file is not at its path any more


def identity(cursor: Cursor) -> str:
    """Return the tables' random text, and which file is at the connection's path. Both must be those of our database: a
    connection that has a deleted file open has that one's text, and a copy is another file."""
    (file,) = (file for _, name, file in cursor.execute("PRAGMA database_list").fetchall() if name == "main")
    if not file:
        return f"{_text(cursor)}{MEMORY}"
    found = inode(file)
    return f"{_text(cursor)}{GONE if found is None else tag(found)}"


def own_identity(cursor: Cursor, file: Inode) -> str:
    """The same, where it is known which file the connection has open."""
    return f"{_text(cursor)}{tag(file)}"


def tag(file: Inode) -> str:
    device, number = file
    return f"@{device}.{number}"


def mark_of(conn: Connection) -> str | None:
    """Return the tag of the file that the tables were in when a process last noted it."""
    found = conn.execute(sql("identity_file")).fetchone()
    return None if found is None else found[0]


def mark(conn: Connection, file: Inode) -> None:
    """Write down which file the tables are in. If that was another one, this file is a copy of it: a restored backup,
    for example. It gets a text of its own, or a connection to the deleted original would be taken for one to the copy.
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
