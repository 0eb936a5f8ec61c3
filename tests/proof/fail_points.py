"""Fail-points at the boundary to the driver: right before a call is sent, and right after its reply has come.

SQLite's calls are its COMMITs: whatever stands before one is undone by whoever opens the file next. PostgreSQL's calls
are all that a client sends. The product knows nothing of this: the drivers' own classes are exchanged.
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

PRODUCT = "rowlock"  # the application_name of its connections; those of onlookers are left alone
_CALLS = ("execute", "executemany", "fetch", "fetchrow", "fetchval")
Spring = Callable[[Any], NoReturn]  # is given the driver's connection


class Point(NamedTuple):
    """The nth call to the driver, counted from 1."""

    nth: int
    after: bool

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} call {self.nth}"


class Trap:
    """Counts calls from `set` on, and springs once."""

    def __init__(self) -> None:
        self.calls = 0
        self._point: Point | None = None
        self._spring: Spring | None = None
        self._is_set = False

    def set(self, point: Point | None = None, spring: Spring | None = None) -> None:
        """Without a point it only counts."""
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
    """Whatever became of the call, nobody hears of it."""
    if isinstance(connection, sqlite3.Connection):
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error
    connection.terminate()
    raise ConnectionResetError("the connection was cut")


@contextmanager
def trapped(trap: Trap) -> Iterator[None]:
    """All connections of this process that are opened inside go through the trap."""
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
