"""A run's transactions on asyncpg: BEGIN, the application's statements, the fence, COMMIT."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import asyncpg

from rowlock import errors
from rowlock.stores.after_fork import keep_for_ever
from rowlock.stores.base import Guard
from rowlock.stores.driver_neutral import Query, drive_async
from rowlock.stores.postgres.connections import FAREWELL, Connections
from rowlock.stores.postgres.end_transaction import MARK, last_statements

MOST_IDLE = 10  # idle connections that are kept; handlers may use more at once
KEEP = 60.0  # seconds that an idle connection is kept
_KIND = "asyncpg Connection"
_PATIENCE = 5.0  # seconds to clean up a connection before it is closed
# Errors with which a server announces that it is about to close the connection.
_GOODBYE = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.InternalClientError,  # the driver lost track: seen when the server was killed between two messages
)
_FAILURES = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


class _Connection(asyncpg.Connection):
    """Notes whether the application has changed codecs, which no reset brings back."""

    altered = False

    async def set_type_codec(self, *arguments: Any, **options: Any) -> None:
        self.altered = True
        await super().set_type_codec(*arguments, **options)

    async def set_builtin_type_codec(self, *arguments: Any, **options: Any) -> None:
        self.altered = True
        await super().set_builtin_type_codec(*arguments, **options)


class Transactions:
    """The transactions of runs. They have connections of their own, because claim and settle must never wait for a
    handler. These connections have the server's settings: the store's settings would give the application's statements
    strange plans."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._idle: dict[Any, asyncio.TimerHandle] = {}  # the last used connection is taken first

    @asynccontextmanager
    async def begin(self, guard: Guard) -> AsyncIterator[Any]:
        connection, transaction = await self._begun()
        sound = False
        try:
            yield connection
            with self._lost(connection, errors.StoreUnavailable, "before the COMMIT, so nothing was written"):
                await self._check(connection, guard)
            with self._lost(connection, errors.OutcomeUnknown, "at the COMMIT, which may have been carried out or not"):
                async with asyncio.timeout(self._connections.target.command_timeout):
                    await transaction.commit()
            sound = await self._clean(connection, transaction)
        except (Exception, asyncio.CancelledError) as error:
            # A connection to a read-only server is not kept: another server can be written to, or will be.
            sound = await self._clean(connection, transaction) and not _read_only(error)
            guard.outage = not sound
            raise
        finally:
            self._give_back(connection, sound)

    async def close(self) -> None:
        if self._connections.forked:
            keep_for_ever(list(self._idle))
            self._idle = {}
        while self._idle:
            connection, timer = self._idle.popitem()
            timer.cancel()
            with suppress(*_FAILURES):  # the connection is gone already, as wanted
                await connection.close(timeout=FAREWELL)

    async def _begun(self) -> tuple[Any, Any]:
        if self._connections.forked:
            keep_for_ever(list(self._idle))
        self._connections.check()
        while self._idle:
            connection, timer = self._idle.popitem()
            timer.cancel()
            with suppress(*_FAILURES):  # the server had closed it while it was idle
                return connection, await self._begin(connection)
        connection = await self._connections.connect_plain(_Connection)
        with self._lost(connection, errors.StoreUnavailable, "at the BEGIN"):
            return connection, await self._begin(connection)

    async def _begin(self, connection: Any) -> Any:
        try:
            async with asyncio.timeout(self._connections.target.connect_timeout):
                # The driver's own transaction, so that the application's `conn.transaction()` is a savepoint in it.
                transaction = connection.transaction(isolation="read_committed")
                await transaction.start()
                await connection.execute(MARK)
        except BaseException:
            connection.terminate()
            raise
        return transaction

    async def _check(self, connection: Any, guard: Guard) -> None:
        async def run(query: Query) -> str:
            answer: str = await connection.fetchval(query.text, query.parameter)
            return answer

        async with asyncio.timeout(self._connections.target.command_timeout):
            await drive_async(last_statements(_KIND, self._connections.target.schema, guard), run)

    async def _clean(self, connection: Any, transaction: Any) -> bool:
        """Roll back an open transaction and reset the session. Return False if the connection must be closed."""
        with suppress(*_FAILURES):
            async with asyncio.timeout(_PATIENCE):
                if not connection.is_closed():
                    if connection.is_in_transaction():
                        await transaction.rollback()
                    await connection.reset()
                    return True
        return False

    def _give_back(self, connection: Any, sound: bool) -> None:
        if sound and not connection.altered and self._connections.opened and len(self._idle) < MOST_IDLE:
            self._idle[connection] = asyncio.get_running_loop().call_later(KEEP, self._expire, connection)
        else:
            connection.terminate()

    def _expire(self, connection: Any) -> None:
        del self._idle[connection]
        connection.terminate()

    @contextmanager
    def _lost(self, connection: Any, error: type[errors.StoreUnavailable], when: str) -> Iterator[None]:
        """Translate the error of a broken connection. All other errors of the server are for the application."""
        label = self._connections.target.label
        try:
            yield
        except TimeoutError as cause:
            connection.terminate()
            raise error(f"{label} gave no answer {when}") from cause
        except _FAILURES as cause:
            if connection.is_closed() or isinstance(cause, (OSError, *_GOODBYE)):
                connection.terminate()
                raise error(f"{label} hung up {when}: {str(cause) or type(cause).__name__}") from cause
            raise


def _read_only(error: BaseException) -> bool:
    return isinstance(error, asyncpg.ReadOnlySQLTransactionError) or (
        error.__cause__ is not None and _read_only(error.__cause__)
    )
