"""Opens the file. Errors name the path and tell what to do."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from rowlock.errors import (
    AccessDenied,
    NoSuchDatabase,
    StoreBusy,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
    UnsafeFilesystem,
)
from rowlock.stores.sqlite import forks
from rowlock.stores.sqlite.filesystem import current_mounts, network_filesystem
from rowlock.stores.sqlite.translate_errors import primary_code, translate, translated

Synchronous = Literal["full", "normal"]

OLDEST = (3, 35, 0)  # the first version with RETURNING
_WRITER_PATIENCE = 5  # ms that SQLite waits for a lock by itself; SqliteConnection goes on waiting in a loop
_PRAGMAS = (
    "PRAGMA journal_size_limit = 67108864",  # shrinks a WAL that has grown because of a long reader
    "PRAGMA temp_store = memory",
    "PRAGMA cache_size = -16384",  # KiB
)


def check_version(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> None:
    if version < OLDEST:
        have, need = (".".join(map(str, v)) for v in (version, OLDEST))
        raise StoreError(f"this Python has SQLite {have}, rowlock needs {need} or newer: use a newer Python or SQLite")


def connect_memory() -> sqlite3.Connection:
    check_version()
    conn = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    forks.keep(conn, None)
    return conn


def connect_writer(
    path: str,
    *,
    synchronous: Synchronous,
    busy_timeout: float,
    factory: type[sqlite3.Connection] = sqlite3.Connection,
    create: bool = True,
) -> sqlite3.Connection:
    """Return a connection that writes. Make the file if it is missing and `create` says so. WAL stays on in the file
    for all processes."""
    conn = _connect(path, "rwc" if create else "rw", _WRITER_PATIENCE, factory)
    try:
        _switch_to_wal(conn, path, busy_timeout)
        with translated(path):
            for pragma in (*_PRAGMAS, f"PRAGMA synchronous = {synchronous}"):
                conn.execute(pragma).fetchall()
        _probe(conn, path)
    except BaseException:
        disconnect(conn)
        raise
    return conn


def connect_reader(path: str, *, busy_timeout: float) -> sqlite3.Connection:
    conn = _connect(path, "rw", int(busy_timeout * 1000), sqlite3.Connection)
    with translated(path):
        for pragma in (*_PRAGMAS, "PRAGMA query_only = on"):
            conn.execute(pragma).fetchall()
    return conn


def disconnect(conn: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        conn.close()
    forks.forget(conn)


def _connect(path: str, mode: str, patience: int, factory: type[sqlite3.Connection]) -> sqlite3.Connection:
    check_version()
    forks.refuse_inherited(path)
    with translated(path):
        uri = f"file:{quote(path)}?mode={mode}"
        conn = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, factory=factory)
        forks.keep(conn, path)
        conn.execute(f"PRAGMA busy_timeout = {patience}").fetchall()
    return conn


def _switch_to_wal(conn: sqlite3.Connection, path: str, busy_timeout: float) -> None:
    """Switch to WAL, and try again while the file is locked: several processes that do this at once are told "locked"
    whatever the busy_timeout."""
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            (mode,) = conn.execute("PRAGMA journal_mode = wal").fetchone()
        except sqlite3.Error as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY:
                raise translate(error, path) from error
            if time.monotonic() >= deadline:
                raise StoreBusy(f"{path} is locked, so it can't be switched to WAL; close what has it open") from error
            time.sleep(0.005)
        else:
            if mode != "wal":
                raise StoreError(f"{path} can't be switched to WAL (it stays {mode}): choose a local file system")
            return


def _probe(conn: sqlite3.Connection, path: str) -> None:
    """Raise an error if the file can't be written to. Permissions alone don't tell: think of root, immutable files,
    read-only mounts."""
    try:
        conn.execute("BEGIN IMMEDIATE")
        conn.execute("ROLLBACK")
    except sqlite3.Error as error:
        if primary_code(error) != sqlite3.SQLITE_BUSY:  # busy: another process is writing to it, so it can be done
            raise translate(error, path) from error


def check_path(path: str, *, force_network_fs: bool) -> bool:
    """Return True if the file exists. Raise an error if it could not be opened for writing, or made."""
    if not path or "\0" in path:
        raise StoreError(f"{path!r} is not a path; use None for a database in memory")
    file = Path(path)
    directory = file.parent
    try:
        found: os.stat_result | None = file.stat()
    except FileNotFoundError:
        found = None
    except NotADirectoryError:
        raise NoSuchDatabase(f"can't open {path}: a part of {directory} is not a directory") from None
    except PermissionError as error:
        raise AccessDenied(f"can't open {path}: no permission to enter {directory}") from error
    except OSError as error:
        raise StoreUnavailable(f"can't open {path}: {error.strerror}") from error
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise StoreError(f"can't open {path}: it is a directory; give the path of a file in it")
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise StoreError(f"can't open {path}: it is not a regular file")
    if not directory.is_dir():
        raise NoSuchDatabase(f"can't open {path}: the directory {directory} doesn't exist; create it first")
    kind = None if force_network_fs else network_filesystem(os.path.realpath(path), current_mounts())
    if kind is not None:
        raise UnsafeFilesystem(
            f"{path} is on a network file system ({kind}), where SQLite's locks don't hold and the file gets damaged: "
            "choose a local disk, or a database server; force_network_fs=True if only one machine ever opens it"
        )
    _check_permissions(path, directory, found is not None)
    return found is not None


def _may(path: str | Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _check_permissions(path: str, directory: Path, exists: bool) -> None:
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        raise StoreReadOnly(f"{path} is on a file system that is mounted read-only: choose another place")
    if exists and not _may(path, os.R_OK):
        raise AccessDenied(f"no permission to read {path}: change its owner or mode")
    if exists and not _may(path, os.W_OK):
        raise StoreReadOnly(f"{path} is read-only for this user: change its owner or mode")
    if not _may(directory, os.W_OK | os.X_OK):
        need = "SQLite keeps its -wal and -shm files there" if exists else "the database is to be made there"
        raise AccessDenied(f"no permission to write to the directory {directory} of {path}: {need}")
    for beside in (f"{path}-wal", f"{path}-shm"):
        if _may(beside, os.F_OK) and not _may(beside, os.R_OK | os.W_OK):
            raise AccessDenied(f"no permission for {beside}: run as the user who made it, or change its owner")
