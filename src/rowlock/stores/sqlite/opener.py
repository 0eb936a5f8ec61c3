"""Opens connections to an SQLite file, and makes sure which file they lead to."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from functools import partial

from rowlock.errors import StoreError, StoreUnavailable
from rowlock.stores.migrations import Migration, require_none
from rowlock.stores.sqlite import connect
from rowlock.stores.sqlite.connection import SqliteConnection
from rowlock.stores.sqlite.fenced import FencedConnection
from rowlock.stores.sqlite.files import Files, gone, inode, new_file
from rowlock.stores.sqlite.migrate import known

log = logging.getLogger("rowlock")

_TRIES = 3  # to open a file that is being replaced


class Opener:
    """`writer`: the store's own connection, while the store is open."""

    writer: SqliteConnection | None = None

    def __init__(
        self,
        path: str,
        *,
        synchronous: connect.Synchronous,
        busy_timeout: float,
        force_network_fs: bool,
        clock: Callable[[], int],
    ) -> None:
        self.path = path
        self._synchronous = synchronous
        self._busy_timeout = busy_timeout
        self._force_network_fs = force_network_fs
        self._clock = clock

    def open_writer(self) -> SqliteConnection:
        connection = self._migrated(self._writing)
        try:
            connection.mark_file()
        except BaseException:
            connection.close()
            raise
        return connection

    def open_reader(self) -> SqliteConnection:
        return self._migrated(self._reading)

    def open_fenced(self) -> SqliteConnection:
        """Open a new connection for a transaction of the application. If it leads to the file that the store has open,
        its tables have been checked."""
        checked = None if self.writer is None else self.writer.files
        if checked is None or not checked.is_current():
            return self._migrated(partial(self._writing, FencedConnection))
        return self._at_path(partial(self._writing, FencedConnection))

    def migrate(self, create: bool) -> list[Migration]:
        if self._is_there():
            connection = self._writing()
        elif not create:
            raise gone(self.path)
        else:
            with new_file(self.path):
                connection = self._writing(create=True)
        try:
            return connection.migrate()
        finally:
            connection.close()

    def pending_migrations(self, whole: bool) -> list[Migration]:
        if not self._is_there():
            return list(known())
        connection = self._reading()
        try:
            return connection.pending_migrations(whole=whole)
        finally:
            connection.close()

    def _is_there(self) -> bool:
        return connect.check_path(self.path, force_network_fs=self._force_network_fs)

    def _migrated(self, make: Callable[[], SqliteConnection]) -> SqliteConnection:
        """Open the file at the path. Raise an error if it lacks our tables."""
        if self.writer is None:
            return self._checked(make)
        if inode(self.path) is None:
            raise gone(self.path)
        try:
            return self._checked(make)
        except StoreError as error:
            if type(error) is not StoreError:
                raise
            # No database, or a damaged one. The error is not about a single write: our database is not there.
            raise StoreUnavailable(str(error)) from error

    def _checked(self, make: Callable[[], SqliteConnection]) -> SqliteConnection:
        if not self._is_there():
            require_none(list(known()), self.path)  # so that no file is made needlessly
        connection = self._at_path(make)
        try:
            require_none(connection.pending_migrations(), self.path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _at_path(self, make: Callable[[], SqliteConnection]) -> SqliteConnection:
        """Open a connection that knows its files: those that were at the path before and after."""
        for _ in range(_TRIES):
            before = inode(self.path)
            connection = make()
            try:
                connection.data_version()  # SQLite opens the log when it first reads
                connection.files = Files.opened(self.path)
            except BaseException:
                connection.close()
                raise
            if connection.files is not None and connection.files.main == before:
                return connection
            connection.close()
        raise StoreUnavailable(f"{self.path} was replaced while it was being opened: try again")

    def _reading(self) -> SqliteConnection:
        conn = connect.connect_reader(self.path, busy_timeout=self._busy_timeout)
        return SqliteConnection(conn, self.path, clock=self._clock, reopen=self.open_reader)

    def _writing(
        self, factory: type[sqlite3.Connection] = sqlite3.Connection, *, create: bool = False
    ) -> SqliteConnection:
        conn = connect.connect_writer(
            self.path, synchronous=self._synchronous, busy_timeout=self._busy_timeout, factory=factory, create=create
        )
        return SqliteConnection(
            conn, self.path, clock=self._clock, busy_timeout=self._busy_timeout, reopen=self._reopen_writer
        )

    def _reopen_writer(self) -> SqliteConnection:
        connection = self.open_writer()
        log.warning("%s was replaced by another file: going on with that one", self.path)
        return connection
