"""The connection that a handler gets for its own writes: it holds SQLite's write lock, so never for long."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from functools import wraps
from typing import Any, NoReturn, Self, cast
from weakref import WeakSet

from rowlock.errors import ConnectionRefused, RowlockError, StoreBusy
from rowlock.stores.sqlite.connect import disconnect

_AGAIN = 0.01  # seconds between tries to interrupt a statement


class _Phase(Enum):
    NEW = "not begun"
    OPEN = "the application's statements"
    LEFT = "the application ended the transaction by itself"
    EXPIRED = "it took too long, and was rolled back"
    ENDING = "fence and COMMIT"
    OVER = "it has ended"


class FencedConnection(sqlite3.Connection):
    """Its transaction ends in one of two ways: by `finish` (fence and COMMIT), or by the watchdog (ROLLBACK).

    Each first moves the phase away from OPEN, under one lock. So the watchdog never rolls back between fence and
    COMMIT; if it was first, `finish` raises. Every call on the connection holds `_turn` and checks the phase. So no
    statement runs beside the ROLLBACK, or after it, where SQLite would commit each statement by itself."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._phase = _Phase.NEW
        self._phase_lock = threading.Lock()
        self._turn = threading.RLock()
        self._cursors: WeakSet[FencedCursor] = WeakSet()
        self._longest = 0.0
        self._watchdog: threading.Timer | None = None

    # ── Steering the transaction ──

    def watch(self, longest: float) -> None:
        """Start the watchdog: the transaction has begun, and may take so many seconds."""
        self._longest = longest
        self._phase = _Phase.OPEN
        watchdog = threading.Timer(longest, self._expire)
        watchdog.daemon = True
        watchdog.name = "rowlock-sqlite-watchdog"
        watchdog.start()  # there may be no room for another thread
        self._watchdog = watchdog

    def finish(self, commit: Callable[[], None]) -> None:
        """Run `commit`, unless the transaction is gone."""
        with self._turn:
            self._notice_the_end()
            if not self._move(_Phase.OPEN, _Phase.ENDING):
                raise self._gone()
            try:
                self.row_factory, self.text_factory = None, str  # whatever the application has set
                commit()
            finally:
                self._move(_Phase.ENDING, _Phase.OVER)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise our own error if SQLite failed because the watchdog had rolled back."""
        try:
            yield
        except sqlite3.Error as error:
            if self._phase is _Phase.EXPIRED:
                raise self._gone() from error
            raise

    def end(self) -> None:
        """Roll back an open transaction, and close the connection. Never raises; safe to call twice."""
        self._move(_Phase.OPEN, _Phase.OVER)
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog.join()  # it may be rolling back
        self._roll_back()
        disconnect(self)

    def _expire(self) -> None:
        if self._move(_Phase.OPEN, _Phase.EXPIRED):
            self._roll_back()

    def _roll_back(self) -> None:
        """Roll back, even if a statement runs in another thread. The phase lets no new statement begin."""
        # Interrupt again and again: an interrupt has no effect on a statement that was let in but had not begun.
        while not self._turn.acquire(timeout=_AGAIN):
            self.interrupt()
        try:
            with suppress(sqlite3.Error):
                # While rows of a SELECT are to be fetched, an interrupt stays in force, also against the ROLLBACK.
                for cursor in list(self._cursors):
                    cursor.close()
                if self._in_transaction():
                    super().cursor().execute("ROLLBACK")
        finally:
            self._turn.release()

    def _move(self, source: _Phase, target: _Phase) -> bool:
        with self._phase_lock:
            if self._phase is not source:
                return False
            self._phase = target
            return True

    # ── The application's statements ──

    def take_turn(self) -> None:
        self._turn.acquire()
        if self._phase not in (_Phase.NEW, _Phase.OPEN, _Phase.ENDING):  # ENDING: `finish` itself, it has the turn
            self._turn.release()
            raise self._gone()

    def end_turn(self) -> None:
        try:
            self._notice_the_end()
        finally:
            self._turn.release()

    def _notice_the_end(self) -> None:
        """Notice if the application has ended the transaction. COMMIT and ROLLBACK come in many forms: as a statement,
        as an error, as a new isolation_level."""
        if self._phase is _Phase.OPEN and not self._in_transaction():
            self._move(_Phase.OPEN, _Phase.LEFT)

    def _in_transaction(self) -> bool:
        try:
            return self.in_transaction
        except sqlite3.ProgrammingError:  # it was closed
            return False

    def cursor(self, factory: None = None) -> FencedCursor:  # type: ignore[override]
        if factory is not None:
            raise _refused("a cursor of another class would not be watched: use conn.cursor(), and row_factory")
        cursor = super().cursor(FencedCursor)
        self._cursors.add(cursor)
        return cursor

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> Any:
        return self.cursor().executemany(sql, parameters)

    def executescript(self, sql_script: str, /) -> NoReturn:
        raise _refused("executescript() commits before it begins: execute the statements one by one")

    def commit(self) -> NoReturn:
        raise _refused("it commits at the end of the block, with the fence")

    def rollback(self) -> NoReturn:
        raise _refused("leave the block with an exception to roll back")

    def __enter__(self) -> Self:
        raise _refused("it commits at the end of the block that made it: don't use it in a `with` of its own")

    def _gone(self) -> RowlockError:
        if self._phase is _Phase.EXPIRED:
            return StoreBusy(
                f"this transaction held SQLite's write lock for more than {self._longest:g} s, while all others had to "
                "wait, and was rolled back: do slow work before the transaction, and only the writes in it"
            )
        if self._phase is _Phase.LEFT:
            return _refused(
                "its transaction was ended inside the block, by COMMIT, ROLLBACK or an error that makes SQLite roll "
                "back: nothing after that was written. Leave COMMIT and ROLLBACK to the block"
            )
        return ConnectionRefused(_KIND, "closed", "the block that made it has ended")


def _in_turn(method: Callable[..., Any]) -> Any:
    """Wrap the method: it runs alone on the connection, and raises if the transaction is over."""

    @wraps(method)
    def turn(cursor: FencedCursor, *arguments: Any, **options: Any) -> Any:
        connection = cast(FencedConnection, cursor.connection)
        connection.take_turn()
        try:
            return method(cursor, *arguments, **options)
        finally:
            connection.end_turn()

    return turn


class FencedCursor(sqlite3.Cursor):
    execute = _in_turn(sqlite3.Cursor.execute)
    executemany = _in_turn(sqlite3.Cursor.executemany)
    fetchone = _in_turn(sqlite3.Cursor.fetchone)
    fetchmany = _in_turn(sqlite3.Cursor.fetchmany)
    fetchall = _in_turn(sqlite3.Cursor.fetchall)
    __next__ = _in_turn(sqlite3.Cursor.__next__)

    def executescript(self, sql_script: str, /) -> NoReturn:
        cast(FencedConnection, self.connection).executescript(sql_script)


_KIND = "sqlite3 Connection"


def _refused(problem: str) -> ConnectionRefused:
    return ConnectionRefused(_KIND, "no_transaction", problem)
