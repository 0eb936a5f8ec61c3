"""The files that a connection has open, and checks whether they still are the files at its path.

SQLite keeps the files open that it has opened. If the database is deleted, moved or replaced, a connection goes on with
a file that no other process can find. In WAL mode SQLite doesn't notice. So rowlock compares device and inode.

Never open() one of these files here: when a process closes any descriptor of a file, it loses all locks on that file,
and these locks are SQLite's.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec import Struct

from rowlock.errors import StoreBusy, StoreUnavailable

Inode = tuple[int, int]  # device and inode. The system reuses it only when no process has the file open any more

_PATIENCE = 5.0  # seconds to wait for the lock of the directory, which is held for milliseconds
_PAUSE = 0.005


def inode(path: str) -> Inode | None:
    """Return which file is at the path, or None if there is none that we can see."""
    try:
        found = os.stat(path)  # noqa: PTH116 - SQLite's own spelling, whatever it is
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Files(Struct, frozen=True):
    """The files of one open connection. `real` is the path without symbolic links: SQLite names the write-ahead log
    (`log`) and the shared memory (`shared`) after it."""

    path: str
    real: str
    main: Inode
    log: Inode | None
    shared: Inode | None

    @staticmethod
    def opened(path: str) -> Files | None:
        """Return the files of a connection that was just opened and has read; None if there is no file."""
        real = os.path.realpath(path)
        main = inode(path)
        return None if main is None else Files(path, real, main, inode(_log(real)), inode(_shared(real)))

    def is_current(self) -> bool:
        """Return True if the open database is the one at the path."""
        try:
            found = os.stat(self.path)  # noqa: PTH116 - after every commit
        except OSError:
            return False
        return found.st_ino == self.main[1] and found.st_dev == self.main[0]

    def has_log(self) -> bool:
        """Return True if the open write-ahead log is the one beside the database."""
        return self.log is None or inode(_log(self.real)) == self.log

    def is_whole(self) -> bool:
        """Return True if other processes can find the last commit, also after a crash."""
        return self.is_current() and self.has_log()

    def require_log(self) -> None:
        if not self.has_log():
            raise StoreUnavailable(
                f"{_log(self.real)} was deleted or replaced while {self.path} was open. It holds the newest commits, "
                f"so nothing more is written. Stop all programs that have {self.path} open, then start them again"
            )

    def abandon(self, *, complete: bool) -> None:
        """Remove the log and the shared memory of this file if another file has taken its place. SQLite would take them
        for those of the new file, and damage it. `complete`: the log has been copied into this file, which may still
        exist under another name."""
        with locked_directory(self.real):
            if inode(self.real) in (None, self.main):
                return
            beside = ((_log(self.real), self.log), (_shared(self.real), self.shared))
            left = [name for name, was in beside if was is not None and inode(name) == was]
            if left and not complete:
                raise StoreUnavailable(
                    f"{self.path} was replaced, but {' and '.join(left)} belong to the file that was there before, "
                    "which other programs still read. Wait until they end, or delete these files"
                )
            for name in left:
                _unlink(name)


def gone(path: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{path} was deleted or moved away while it was open, so nothing is written and nothing is read. "
        "Put the file back, or make a new one: `rowlock migrate`"
    )


@contextmanager
def new_file(path: str) -> Iterator[None]:
    """Let no other process make a file at the path while the block makes one. Remove a log or shared memory that is
    there without a database. It is left from a deleted database that other processes may still have open: SQLite would
    share it with them."""
    real = os.path.realpath(path)
    with locked_directory(real):
        if inode(real) is None:
            _unlink(_log(real))
            _unlink(_shared(real))
        yield


@contextmanager
def locked_directory(path: str) -> Iterator[None]:
    """Lock the directory. While one process removes the files of a deleted database, no other may make or remove such
    files: the first could remove files that the second has just made."""
    directory = os.path.dirname(path)  # noqa: PTH120 - as the other paths here
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreUnavailable(f"can't lock the directory {directory}: {error.strerror}") from error
    try:
        _lock(descriptor, directory)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough if the process was forked meanwhile
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: str) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise StoreBusy(f"{directory} was locked by others for more than {_PATIENCE:g} s") from None
            time.sleep(_PAUSE)
        else:
            return


def _log(real: str) -> str:
    return f"{real}-wal"


def _shared(real: str) -> str:
    return f"{real}-shm"


def _unlink(name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name)  # noqa: PTH108 - as the other paths here
