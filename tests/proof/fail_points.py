"""Fail-points at the boundary to the driver: right before a call is sent, and right after its reply has come.

On SQLite only COMMITs count as calls: the next process that opens the file undoes all statements before a COMMIT. On
PostgreSQL every statement of a client counts. The product knows nothing of this: the drivers' own classes are replaced.
"""

import functools
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import asyncpg
import pytest

from rowlock.stores.sqlite import connect

PRODUCT = "rowlock"  # the application_name of the product's connections; calls of other connections don't count
_CALLS = ("execute", "executemany", "fetch", "fetchrow", "fetchval")
Spring = Callable[[Any], NoReturn]  # its argument is the driver's connection


class Point(NamedTuple):
    """The moment before or after the nth call to the driver, counted from 1."""

    nth: int
    after: bool

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} call {self.nth}"


class Trap:
    """Counts the calls after `set`, and calls its spring once, at its point."""

    def __init__(self) -> None:
        self.calls = 0
        self._point: Point | None = None
        self._spring: Spring | None = None
        self._is_set = False

    def set(self, point: Point | None = None, spring: Spring | None = None) -> None:
        """Start to count. Without a point, the trap only counts."""
        self.calls, self._point, self._spring, self._is_set = 0, point, spring, True

    def sending(self, connection: Any) -> None:
        if self._is_set:
            self.calls += 1
            self._pass(connection, after=False)

    def answered(self, connection: Any) -> None:
        if self._is_set:
            self._pass(connection, after=True)

    def _pass(self, connection: Any, *, after: bool) -> None:
        if self._point == (self.calls, after) and self._spring is not None:
            spring, self._spring = self._spring, None
            spring(connection)


def die(connection: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process goes on")


def hang_up(connection: Any) -> NoReturn:
    """Break the connection, so that the caller never learns what became of the call."""
    if isinstance(connection, sqlite3.Connection):
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error
    connection.terminate()
    raise ConnectionResetError("the connection was cut")


@contextmanager
def trapped(trap: Trap) -> Iterator[None]:
    """Send the calls of all connections that this process opens inside the context through the trap."""
    with pytest.MonkeyPatch.context() as patch:
        open_ = connect._connect

        def open_trapped(path: str, mode: str, patience: int, factory: type[sqlite3.Connection]) -> sqlite3.Connection:
            return open_(path, mode, patience, trapping(factory, trap))

        patch.setattr(connect, "_connect", open_trapped)
        for name in _CALLS:
            patch.setattr(asyncpg.Connection, name, _through(getattr(asyncpg.Connection, name), trap))
        yield


def trapping(factory: type[sqlite3.Connection], trap: Trap) -> type[sqlite3.Connection]:
    class Trapping(factory):  # type: ignore[valid-type, misc]
        def execute(self, sql: str, parameters: Any = (), /) -> Any:
            if sql != "COMMIT":
                return super().execute(sql, parameters)
            trap.sending(self)
            done = super().execute(sql, parameters)
            trap.answered(self)
            return done

    return Trapping


def _through(call: Callable[..., Any], trap: Trap) -> Callable[..., Any]:
    @functools.wraps(call)
    async def through(self: Any, *arguments: Any, **options: Any) -> Any:
        if self.get_settings().application_name != PRODUCT:
            return await call(self, *arguments, **options)
        trap.sending(self)
        answer = await call(self, *arguments, **options)
        trap.answered(self)
        return answer

    return through
